"""All clients of a federation in columns: 100,000 of them cost a few megabytes beyond their data. Rows are laid out client by
client, so a client's data is a slice of two tensors and building a `Client` copies nothing."""

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from tacit.errors import BadData
from tacit.store import cores
from tacit.types import Budget, Client, Persons, Unit

if TYPE_CHECKING:
    from tacit.data.dataset import Dataset
    from tacit.data.partition import Shares

DIGEST_BYTES = 16
WORTH_THREADS = 1 << 26  # bytes of rows to hash
LATEST = 1024  # clients of which a second look costs nothing
LEAST_REMAINING = (
    0.01  # of an epsilon: what calibration leaves of a spread one; noise for so little would be all that is learnt
)
NOBODY = frozenset(
    {"", "every client"}
)  # in a ledger the empty name is everybody, and among its rows the public test set


@dataclass(frozen=True, eq=False)
class Population:
    """Clients by index. `epsilons` may hold infinity for a client that said it sets no limit."""

    x: torch.Tensor = field(repr=False)
    y: torch.Tensor = field(repr=False)
    offsets: np.ndarray = field(repr=False)
    names: tuple[str, ...] = field(repr=False)
    epsilons: np.ndarray = field(repr=False)
    delta: float
    unit: Unit
    sealed: np.ndarray | None = field(default=None, repr=False)  # of each epsilon, what other runs of a ledger have
    held: "Population | None" = field(
        default=None, repr=False
    )  # the same clients with the rows that they hold out of training
    mask: np.ndarray | None = field(default=None, repr=False)  # which of all their rows those are
    persons: Persons | None = field(default=None, repr=False)  # whose rows are whose, where a person is the unit
    _known: dict[int, Client] = field(default_factory=dict, init=False, repr=False)  # who was looked up of late

    def __post_init__(self) -> None:
        if len(set(self.names)) < len(self.names) or not NOBODY.isdisjoint(self.names):
            raise BadData(
                f"Every client needs a name of its own, and none of {', '.join(map(repr, sorted(NOBODY)))}: rename it."
            )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Client:
        if (known := self._known.get(index)) is not None:
            return known
        start, stop = int(self.offsets[index]), int(self.offsets[index + 1])
        budget = _budget(float(self.epsilons[index]), self.delta, self.unit)
        if len(self._known) == LATEST:
            self._known.clear()
        persons = None
        if self.persons is not None:
            first, last = self._first_persons[index : index + 2].tolist()
            persons = Persons(self.persons.offsets[first : last + 1] - start, self.persons.most)
        client = Client(int(index), self.names[index], budget, self.x[start:stop], self.y[start:stop], persons=persons)
        return self._known.setdefault(index, client)

    @property
    def left(self) -> np.ndarray:
        """What other runs of the ledger have left of each epsilon."""
        if self.sealed is None:
            return self.epsilons
        limited = np.isfinite(self.epsilons)
        return np.where(limited, np.maximum(np.where(limited, self.epsilons, 0.0) - self.sealed, 0.0), np.inf)

    @property
    def to_spread(self) -> np.ndarray:
        """What noise is sized for: what is left; of who has but a crumb left, all of it, and the ledger keeps that one out."""
        return np.where(self.left > LEAST_REMAINING * self.epsilons, self.left, self.epsilons)

    @property
    def rows(self) -> np.ndarray:
        """How many rows each client has."""
        return np.diff(self.offsets)

    @property
    def sizes(self) -> np.ndarray:
        """How many units each client has: persons where a person is the unit, else rows."""
        return self.rows if self.persons is None else np.diff(self._first_persons)

    @cached_property
    def _first_persons(self) -> np.ndarray:
        return self.offsets if self.persons is None else np.searchsorted(self.persons.offsets, self.offsets)

    def to(self, device: torch.device) -> "Population":
        moved = replace(self, x=self.x.to(device), y=self.y.to(device))
        moved.__dict__["row_digests"] = self.row_digests  # hashed where they lay
        return moved

    def holding_out(self, mask: np.ndarray, *, key: str = "data.held_out") -> "Population":
        """The same clients without the rows in the mask, which they hold out of training because of the setting `key`. Raises:
        BadData for a client that would have nothing left to train on."""
        counts = np.add.reduceat(mask, self.offsets[:-1]) if len(mask) else np.zeros(len(self), int)
        kept = self.rows - counts
        if not kept.all():
            name = self.names[int(np.argmin(kept))]
            raise BadData(f"{key} leaves client {name} no row to train on: lower it, or give that client more rows.")
        parts = []
        for rows, sizes in ((~mask, kept), (mask, counts)):
            chosen, offsets, persons = torch.from_numpy(rows), np.concatenate([[0], np.cumsum(sizes)]), self.persons
            if persons is not None:  # a person is on one side, whole
                here = rows[persons.offsets[:-1]]
                tags = tuple(itertools.compress(persons.tags, here))
                own = np.diff(persons.offsets)[here]
                persons = replace(persons, offsets=np.concatenate([[0], np.cumsum(own)]), tags=tags)
            parts.append(replace(self, x=self.x[chosen], y=self.y[chosen], offsets=offsets, persons=persons))
        return replace(parts[0], held=parts[1], mask=mask)

    @cached_property
    def row_digests(self) -> np.ndarray:
        """A hash of each client's rows, [clients, 16] bytes; made once."""
        x, y = (np.ascontiguousarray(part.cpu().numpy()) for part in (self.x, self.y))

        def some(first: int, last: int) -> bytes:
            cuts = zip(range(first, last), itertools.pairwise(self.offsets[first : last + 1].tolist()), strict=True)
            return b"".join(_mark(x[i:j], y[i:j], self._cuts(k)) for k, (i, j) in cuts)

        count = min(cores(), len(self)) if x.nbytes > WORTH_THREADS else 1
        parts = [len(self) * k // count for k in range(count + 1)]
        if count == 1:
            made = some(0, len(self))
        else:
            with ThreadPoolExecutor(count) as threads:  # hashing long rows leaves Python free
                made = b"".join(threads.map(some, parts[:-1], parts[1:]))
        return np.frombuffer(made, dtype=np.uint8).reshape(len(self), DIGEST_BYTES)

    def _cuts(self, index: int) -> bytes:
        if self.persons is None:
            return b""
        first, last = self._first_persons[index : index + 2].tolist()
        return cuts_of(self.persons.offsets[first : last + 1])

    def digest(self) -> str:
        """A hash of every row, label and boundary: what a repeated release must have in common with the first."""
        digest = hashlib.blake2b(np.ascontiguousarray(self.row_digests).data, digest_size=DIGEST_BYTES)
        digest.update(np.ascontiguousarray(self.offsets).data)
        return digest.hexdigest()


@lru_cache(maxsize=1 << 16)
def _budget(epsilon: float, delta: float, unit: Unit) -> Budget:
    return Budget(epsilon, delta, unit)


def rows_digest(x: torch.Tensor, y: torch.Tensor, persons: Persons | None = None) -> bytes:
    cuts = b"" if persons is None else cuts_of(persons.offsets)
    return _mark(np.ascontiguousarray(x.cpu().numpy()), np.ascontiguousarray(y.cpu().numpy()), cuts)


def cuts_of(offsets: np.ndarray) -> bytes:
    """Where one person's rows end and the next one's begin: what is drawn and clipped depends on it."""
    return np.diff(offsets).astype("<i8").tobytes()


def _mark(x: np.ndarray, y: np.ndarray, cuts: bytes = b"") -> bytes:
    digest = hashlib.blake2b(_kind(x.shape, x.dtype, y.dtype), digest_size=DIGEST_BYTES)
    digest.update(x.data)
    digest.update(y.data)
    digest.update(cuts)
    return digest.digest()


@lru_cache(maxsize=1 << 10)
def _kind(shape: tuple[int, ...], x: np.dtype, y: np.dtype) -> bytes:
    return repr((shape, x.str, y.str)).encode()


def populate(
    dataset: "Dataset",
    shares: "Shares",
    *,
    names: tuple[str, ...],
    epsilons: np.ndarray,
    delta: float,
    unit: Unit = "record",
    rows_per_person: int | None = None,
) -> Population:
    """Lays the rows out client by client; where they lie so in a file already, they stay there. With `rows_per_person` a person
    is the unit. Raises: BadData for a person whose rows are at two clients."""
    order = torch.from_numpy(shares.order)
    x, y = (dataset.x, dataset.y) if dataset.mapped else (dataset.x[order], dataset.y[order])
    persons = None
    if rows_per_person is not None and dataset.person is not None:
        persons = persons_of(dataset.person[shares.order], most=rows_per_person, offsets=shares.offsets, names=names)
    return Population(x, y, shares.offsets, names, epsilons, delta, unit, persons=persons)


# A person by a hash of its id, which is not kept.

PERSON_KEY = b"tacit.person"


def person_tags(ids: Sequence[str]) -> np.ndarray:
    """A hash of each row's person, [rows]: the same for the same id at every client, which is all that is asked of it."""
    made = {one: hashlib.blake2b(one.encode(), digest_size=HASH_BYTES, key=PERSON_KEY).hexdigest() for one in set(ids)}
    return np.array([made[one] for one in ids], dtype=f"S{2 * HASH_BYTES}")


def persons_of(
    tags: np.ndarray, *, most: int, offsets: np.ndarray | None = None, names: tuple[str, ...] = ("",)
) -> Persons:
    """The persons of rows that lie client by client, and there person by person. Raises: BadData where one has two clients."""
    offsets = np.array([0, len(tags)]) if offsets is None else offsets
    owner = np.repeat(np.arange(len(names)), np.diff(offsets))
    starts = np.flatnonzero(np.r_[True, (tags[1:] != tags[:-1]) | (owner[1:] != owner[:-1])])
    order = np.argsort(tags[starts], kind="stable")
    twice = np.flatnonzero(tags[starts][order][1:] == tags[starts][order][:-1])
    if len(twice):
        first, second = (names[int(owner[starts[order[twice[0] + k]]])] for k in (0, 1))
        raise BadData(
            f"One person has rows at {first!r} and at {second!r}, and no epsilon covers both: give that person one client, or, if"
            " ids are each client's own numbers, put the client's name before them."
        )
    return Persons(np.append(starts, len(tags)), most, tuple(tags[starts].tolist()))


# A row by a hash of its encoded values and its label: who holds it, and whether it is held out, are asked by that.

HASH_BYTES = 16


def row_hashes(x: torch.Tensor, y: torch.Tensor, *, key: bytes = b"") -> Iterator[bytes]:
    """The hash of every row, one after the other; under a secret key nobody without it can tell a guessed row by its hash.

    >>> one, other, again = row_hashes(torch.tensor([[1.0], [2.0], [1.0]]), torch.tensor([0, 0, 0]))
    >>> one == again, one == other
    (True, False)
    """
    values = np.ascontiguousarray(x.cpu().numpy().reshape(len(x), x.shape[1:].numel()))
    for row, label in zip(values, y.tolist(), strict=True):
        yield hashlib.blake2b(row.tobytes() + repr(label).encode(), digest_size=HASH_BYTES, key=key).digest()


def coins(
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    share: float,
    seed: int,
    purpose: str = "held out",
    persons: np.ndarray | None = None,
) -> np.ndarray:
    """Tosses a coin for every record, keyed by the seed and by nothing but the record itself: True for about `share` of them.
    So a record that comes or goes moves no other one between the two sides, and equal records are on one side. Coins of
    different purposes fall independently. Where the tags of `persons` are known, all rows of one have one coin.

    >>> round(float(coins(torch.arange(1000.0)[:, None], torch.zeros(1000), share=0.2, seed=0).mean()), 1)
    0.2
    """
    if persons is not None:
        return coins_of(persons.tolist(), share=share, seed=seed, purpose=purpose)
    return _tossed(row_hashes(x, y, key=f"tacit {purpose} {seed}".encode()), share)


def coins_of(digests: Iterable[bytes], *, share: float, seed: int, purpose: str = "held out") -> np.ndarray:
    """The same of records that are known by their digests (`text_digests`), however they are encoded afterwards."""
    key = f"tacit {purpose} {seed}".encode()
    return _tossed((hashlib.blake2b(digest, digest_size=HASH_BYTES, key=key).digest() for digest in digests), share)


def text_digests(columns: Iterable[Iterable[object]]) -> list[bytes]:
    """A hash of every row of a table as it was written, column by column: it does not depend on how cells are read.

    >>> one, other, again = text_digests([["63", "41", "63"], ["m", "m", "m"]])
    >>> one == again, one == other
    (True, False)
    """
    rows = zip(*columns, strict=True)
    return [hashlib.blake2b("\x1f".join(map(str, row)).encode(), digest_size=HASH_BYTES).digest() for row in rows]


def _tossed(hashes: Iterable[bytes], share: float) -> np.ndarray:
    words = b"".join(row[:8] for row in hashes)
    return np.frombuffer(words, dtype="<u8") < np.uint64(min(share * 2.0**64, 2.0**64 - 2048))
