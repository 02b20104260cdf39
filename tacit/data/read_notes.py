"""What reading csv files changed or found, in words: for whoever holds the rows (at a site its own log, in a simulation the notes).

Nothing here is covered by an epsilon: it is counted from the rows and carries no noise.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from tacit.data.features import CLAMPED, DROPPED, FILLED, TO_OTHER, Change
from tacit.data.held_out import Rows
from tacit.data.names import Coded

TEST_ROWS = "the test rows"
MOST_NAMED = 8  # clients in one note
CHUNK = 1 << 20
PART = 1 << 14  # rows

Counts = Counter[tuple[str, str, str]]  # (what, column, client): how many


def counted(changes: Mapping[Change, np.ndarray], clients: Coded | None) -> Counts:
    """How often each client's values were changed; "" is a client without a name."""
    known, codes = clients or (("",), None)
    found: Counts = Counter()
    for (what, column), rows in changes.items():
        of = np.zeros(int(rows.sum()), np.int64) if codes is None else codes[rows]
        counts = np.bincount(of, minlength=len(known))
        found.update({(what, column, known[code]): int(counts[code]) for code in np.flatnonzero(counts)})
    return found


def changed(counts: Counts, ranges: Mapping[str, object]) -> Iterator[str]:
    """A note for each column and kind of change, with the clients that have most of it.

    >>> next(changed(Counter({("dropped", "", "north"): 3, ("dropped", "", "coast"): 1}), {}))
    'dropped 4 rows with missing values (north 3, coast 1)'
    """
    words = {
        DROPPED: "dropped {} row{} with missing values",
        FILLED: "filled in {} missing value{} of {!r}",
        TO_OTHER: 'took {} unknown value{} of {!r} as "other"',
        CLAMPED: "clamped {} value{} of {!r} into its declared range {}",
    }
    for what, sentence in words.items():
        for column in dict.fromkeys(column for did, column, _ in counts if did == what):
            by_client = Counter({who: n for (did, one, who), n in counts.items() if (did, one) == (what, column)})
            total = by_client.total()
            limits = ranges.get(column)
            ends = f"[{limits[0]:g}, {limits[1]:g}]" if isinstance(limits, tuple) else ""
            yield sentence.format(total, "s" * (total > 1), column, ends) + _named(by_client)


def _named(by_client: Counter[str]) -> str:
    """Who has how many, the most first."""
    if set(by_client) == {""}:
        return ""
    first = [f"{who} {count}" if who else str(count) for who, count in by_client.most_common(MOST_NAMED)]
    rest = len(by_client) - len(first)
    return f" ({', '.join([*first, *([f'{rest} more'] if rest else [])])})"


def same_files(files: Sequence[Path]) -> Iterator[str]:
    """A note for each two files of the same bytes: whoever is in one of them is in the other, too."""
    if len(files) < 2:
        return
    first: dict[bytes, Path] = {}
    for file in dict.fromkeys(files):
        mark = _mark(file)
        if mark in first:
            both = f"{first[mark].name} and {file.name}"
            yield f"{both} hold the same rows: each of them counts in both, and no single epsilon holds for it"
        first.setdefault(mark, file)


def repeated(rows: Rows) -> Iterator[str]:
    """A note where rows equal another one: somebody with k records has about k times the epsilon of one."""
    known: set[int] = set()
    for x, y in zip(rows.x.split(PART), np.split(rows.y, range(PART, len(rows.y), PART)), strict=True):
        content, width = x.numpy().tobytes(), x.shape[1:].numel() * x.element_size()
        known.update(hash((content[row * width : (row + 1) * width], int(label))) for row, label in enumerate(y))
    if again := len(rows.y) - len(known):
        yield (
            f"{again} of {len(rows.y)} rows repeat{'s' * (again == 1)} an earlier one: if these are one person's, the"
            " epsilon of a record is not that person's"
        )


def _mark(file: Path) -> bytes:
    mark = hashlib.blake2b(digest_size=16)
    with file.open("rb") as content:
        while chunk := content.read(CHUNK):
            mark.update(chunk)
    return mark.digest()
