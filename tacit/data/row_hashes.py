"""A row by a hash of its encoded values and its label: who holds it, and whether it is held out, are asked by that."""

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np
import torch

HASH_BYTES = 16


def row_hashes(x: torch.Tensor, y: torch.Tensor, *, key: bytes = b"") -> Iterator[bytes]:
    """The hash of every row, one after the other; under a key it is a coin that nobody without the key can foresee.

    >>> one, other, again = row_hashes(torch.tensor([[1.0], [2.0], [1.0]]), torch.tensor([0, 0, 0]))
    >>> one == again, one == other
    (True, False)
    """
    values = np.ascontiguousarray(x.cpu().numpy().reshape(len(x), x.shape[1:].numel()))
    for row, label in zip(values, y.tolist(), strict=True):
        yield hashlib.blake2b(row.tobytes() + repr(label).encode(), digest_size=HASH_BYTES, key=key).digest()


def coins(x: torch.Tensor, y: torch.Tensor, *, share: float, seed: int, purpose: str = "held out") -> np.ndarray:
    """Tosses a coin for every record, keyed by the seed and by nothing but the record itself: True for about `share` of them.

    So a record that comes or goes moves no other one between the two sides, and equal records are on one side. Coins of different
    purposes fall independently.

    >>> round(float(coins(torch.arange(1000.0)[:, None], torch.zeros(1000), share=0.2, seed=0).mean()), 1)
    0.2
    """
    return _tossed(row_hashes(x, y, key=f"tacit {purpose} {seed}".encode()), share)


def coins_of(marks: Iterable[bytes], *, share: float, seed: int) -> np.ndarray:
    """The same of records that are known by their marks (`text_marks`), however they are encoded afterwards."""
    key = f"tacit held out {seed}".encode()
    return _tossed((hashlib.blake2b(mark, digest_size=HASH_BYTES, key=key).digest() for mark in marks), share)


def text_marks(columns: Iterable[Iterable[object]]) -> list[bytes]:
    """A hash of every row of a table as it was written, column by column: it does not depend on how cells are read.

    >>> one, other, again = text_marks([["63", "41", "63"], ["m", "m", "m"]])
    >>> one == again, one == other
    (True, False)
    """
    rows = zip(*columns, strict=True)
    return [hashlib.blake2b("\x1f".join(map(str, row)).encode(), digest_size=HASH_BYTES).digest() for row in rows]


def _tossed(hashes: Iterable[bytes], share: float) -> np.ndarray:
    words = b"".join(row[:8] for row in hashes)
    return np.frombuffer(words, dtype="<u8") < np.uint64(min(share * 2.0**64, 2.0**64 - 2048))
