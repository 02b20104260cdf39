"""From what `[data]` declares of csv columns to the encoder that reads them; and what it leaves undeclared."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tacit import check
from tacit.data import names
from tacit.data.csv_text import MISSING, Heading, header, is_number, listing, no_column, tables
from tacit.data.encoder import DROP, MISSING_CATEGORY, REFUSE, Column, Encoder
from tacit.errors import BadData

if TYPE_CHECKING:
    from tacit.data.sources.csv import csv
    from tacit.data.sources.npz import npz

SHOWN = 12  # columns, and values of one, that a sentence names


def encoder_of(source: "csv", columns: Sequence[str], classes: Sequence[str]) -> Encoder:
    """The encoder of these columns. Raises BadInput for declarations that contradict each other."""
    made = tuple(column_of(column, source) for column in columns)
    width = sum(column.width for column in made)
    outputs = 0 if classes else 1
    return Encoder(tuple(classes), (width,), made, label=source.label, header=source.header, outputs=outputs)


def column_of(name: str, source: "csv") -> Column:
    """One column as it is declared. Raises BadInput."""
    said = source.missing.get(name, REFUSE) if isinstance(source.missing, dict) else source.missing
    indicator = name in source.indicators
    if name not in source.categorical:
        limits = source.ranged.get(name)
        return Column(name, None if isinstance(limits, str) else limits, missing=said, indicator=indicator)
    values = source.categorical[name]
    if not isinstance(said, str):  # a number for every column: a text has none
        said = MISSING_CATEGORY if not isinstance(source.missing, dict) else f"{said:g}"
    if said == MISSING_CATEGORY and said not in values:
        values = (*values, said)
    same = [value for value in values if names.plain(value) == names.plain(said)]
    return Column(
        name, values=values, missing=said if said in (REFUSE, DROP) or not same else same[0], indicator=indicator
    )


def encoded_width(source: "csv") -> int:
    """How many features the declared columns become: a function of the declarations alone."""
    return sum(column_of(column, source).width for column in source.columns or ())


def heading_of(source: "csv") -> Heading:
    """What a first line of names is known by."""
    expected = {source.label, source.client_column, *(source.columns or ()), *source.ranged, *source.categorical}
    return Heading(source.header, frozenset(name for name in expected | {*source.ignore, *source.header} if name))


def pinned_columns(source: "csv") -> tuple[str, ...]:
    """The features as the public test rows have them, so that everybody reads the same ones in the same order."""
    return feature_columns(listing(source.test_path, key="data.test_path")[0], source)


def feature_columns(path: Path, source: "csv") -> tuple[str, ...]:
    """The columns that are features: `data.columns`, or those of the first line. Raises: BadData if a named one is absent."""
    head = header(path, heading_of(source))
    for key, columns in _roles(source).items():
        for column in set(columns).difference(head):
            text = f"{path} has no column {column!r}, which data.{key} names."
            raise no_column(text, check.nearest(column, head), head)
    if source.columns is not None:
        return source.columns
    apart = {source.label, source.client_column, *source.ignore}
    if found := tuple(column for column in head if column not in apart):
        return found
    raise BadData(f"{path} has no feature columns besides {', '.join(head)}.")


def _roles(source: "csv") -> dict[str, list[str]]:
    return {
        "label": [source.label],
        "client_column": [source.client_column] if source.client_column is not None else [],
        "columns": [*(source.columns or ())],
        "numeric": [*source.ranged],
        "categorical": [*source.categorical],
        "ignore": [*source.ignore],
        "missing": [*source.missing] if isinstance(source.missing, dict) else [],
        "indicators": [*source.indicators],
    }


def declared_classes(source: "csv | npz") -> tuple[str, ...]:
    """The class names that are declared, if they are."""
    return () if source.classes is None or isinstance(source.classes, str) else names.declared(source.classes)


def refuse_undeclared(files: Sequence[Path], columns: Sequence[str], source: "csv") -> None:
    """Refuses features of which nothing is declared, and says what they span. Raises BadData.

    Whether it is refused follows from the declarations alone; what is said of the rows is for whoever holds them.
    """
    if isinstance(source.numeric, str):
        return
    open_ = [column for column in columns if column not in source.numeric and column not in source.categorical]
    if not open_:
        return
    spans = "; ".join(_spans(files, open_[:SHOWN], source))
    more = f" and {len(open_) - SHOWN} more" if len(open_) > SHOWN else ""
    named = ", ".join(map(repr, open_[:SHOWN]))
    raise BadData(
        f"data.numeric and data.categorical do not say how to read {named}{more}. In these rows they span {spans!r}: declare"
        f" ranges and values that are public, known without looking at the rows, as in numeric = {{{open_[0]} = [0, 100]}}"
        f' for numbers or categorical = {{{open_[0]} = ["a", "b"]}} for texts;'
        ' "unscaled" in place of a range takes a column as it stands, and data.ignore leaves it out.',
        cell=spans,
    )


def _spans(files: Sequence[Path], columns: Sequence[str], source: "csv") -> Iterator[str]:
    """What each column holds: from where to where, or the first few texts."""
    numbers: dict[str, list[float]] = {column: [] for column in columns}
    texts: dict[str, set[str]] = {column: set() for column in columns}
    for file in files:
        for table in tables(file, columns, ignored=None, heading=heading_of(source)):
            for column in columns:
                found = {cell for cell in map(str, table.columns[column]) if cell not in MISSING}
                read = [float(cell) for cell in found if is_number(cell)]
                numbers[column] += [min(read), max(read)] if read else []
                texts[column] |= {cell for cell in found if not is_number(cell)}
    for column in columns:
        ends, words = numbers[column], sorted(texts[column])
        parts = [f"{min(ends):g} to {max(ends):g}"] if ends else []
        parts += [", ".join(words[:SHOWN]) + ", ..." * (len(words) > SHOWN)] if words else []
        yield f"{column}: {' and '.join(parts) or 'nothing'}"
