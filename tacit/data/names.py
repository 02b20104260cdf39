"""Texts as numbers: labels and clients by name, in an order a person would write them in."""

import re
from collections.abc import Iterable, Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from tacit.errors import BadData, BadInput

FROM_DATA = "from-data"
NUMBERS = "numbers"  # targets are no classes at all
FROM_DATA_NOTE = "the set of labels, which was taken from the data, is public"

DECIMAL = re.compile(r"([+-]?)(0|[1-9]\d*)(?:\.(\d*))?", re.ASCII)

Word = Annotated[str, Field(coerce_numbers_to_str=True)]  # [0, 1] are names
Classes = int | str | tuple[Word, ...]  # the labels, how many there are, "from-data" or "numbers"
Coded = tuple[tuple[str, ...], np.ndarray]  # the distinct texts and, for every row, which of them it has


def coded(texts: Sequence[str] | np.ndarray) -> Coded:
    """Distinct texts and their positions; integers count as their digits."""
    values = np.asarray(texts)
    names, codes = np.unique(values if values.dtype.kind in "iu" else values.astype(str), return_inverse=True)
    return tuple(str(name) for name in names.tolist()), codes.astype(np.int32)


def merged(parts: Sequence[Coded]) -> Coded:
    """Several codings as one, with the names in natural order.

    >>> merged([coded(["b10", "b9"]), coded(["a"])])[0]
    ('a', 'b9', 'b10')
    """
    names = in_natural_order({name for known, _ in parts for name in known})
    code_of = {name: code for code, name in enumerate(names)}
    recoded = [np.array([code_of[name] for name in known], np.int32)[codes] for known, codes in parts]
    return names, np.concatenate(recoded)


def plain(text: str) -> str:
    """A number as it is written shortest, so that 1.0 and 1 are one name; every other text, 007 too, as it stands.

    >>> [plain(text) for text in ("1.0", "+1.", "-0.50", "-0.0", "007", "f", "12345678901234567890.0")]
    ['1', '1', '-0.5', '0', '007', 'f', '12345678901234567890']
    """
    found = DECIMAL.fullmatch(text)
    if found is None:
        return text
    sign, whole, fraction = found[1], found[2], (found[3] or "").rstrip("0")
    minus = "-" if sign == "-" and (whole != "0" or fraction) else ""
    return f"{minus}{whole}{'.' * bool(fraction)}{fraction}"


def in_natural_order(names: Iterable[str]) -> tuple[str, ...]:
    """Sorts "client2" before "client10".

    >>> in_natural_order(["b10", "a", "b9", "9"])
    ('9', 'a', 'b9', 'b10')
    """

    def parts(name: str) -> list[tuple[bool, int, str]]:
        found = (part for part in re.split(r"(\d+)", name) if part)
        return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in found]

    return tuple(sorted(names, key=parts))


def declared(classes: int | tuple[str, ...]) -> tuple[str, ...]:
    return tuple(str(number) for number in range(classes)) if isinstance(classes, int) else classes


def classes(
    said: int | str | tuple[str, ...] | None, found: Sequence[Coded]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The class names, and a note where they were not declared. Raises: BadInput if nothing was said, BadData."""
    if said == FROM_DATA:
        if len(known := merged(found)[0]) < 2:
            raise BadData(f"Expected at least 2 labels in the data, found {', '.join(known) or 'none'}.")
        return known, (FROM_DATA_NOTE,)
    if said is None or isinstance(said, str):
        raise BadInput(f"Expected data.classes to declare the labels, or to say {FROM_DATA!r}.")
    return declared(said), ()


def refuse_undeclared(source: str, path: str | None, classes: Classes | None) -> None:
    """Refuses a person's own file that is not named, and labels that are not declared. Raises BadInput."""
    if path is None:
        raise BadInput(f'Expected data.path to say where the {source} data is, as in path = "records.{source}".')
    refuse_classes(classes, key="data.classes")


def refuse_classes(classes: Classes | None, *, key: str) -> None:
    """Refuses labels that are not declared; `key` is where they should have been. Raises BadInput."""
    if classes == NUMBERS:
        return
    if classes is None or (isinstance(classes, str) and classes != FROM_DATA):
        raise BadInput(
            f'Expected {key} to declare the labels, as in classes = ["no", "yes"] or classes = 10; '
            'classes = "from-data" makes the labels found in the data public, and classes = "numbers" is for a regression.'
        )
    count = classes if isinstance(classes, int) else len(set(classes))
    if count < 2 or (isinstance(classes, tuple) and count < len(classes)):
        raise BadInput(f"Expected {key} to declare at least 2 labels, each once, got {classes!r}.")
