"""Vectors in a few sums: a linear sketch under random signs, and what clients have shown so far in sketches of their residuals.

Coordinate j goes, times a sign s_j, into sum j mod m, divided by the root of how many it holds (Charikar, Chen, Farach-Colton 2002,
with buckets in turn; m is a prime, so that no layer's width falls into step with it). Noise N(0, sigma^2 I) stays N(0, sigma^2 I),
because every sum has as many signs as its divisor says; inner products are kept on average, with a relative error of sqrt(2/m).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch

SUMS = 2053
CLIENTS = 256  # whose residuals are remembered


def sketched(vectors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sums of every vector, (vector, sums), on the CPU; vectors that are no longer than a sketch are kept as they are."""
    size = vectors[0].numel()
    if size <= SUMS:
        return torch.stack(list(vectors)).cpu()
    signs, divisors = _signs(size, vectors[0].device)
    return torch.stack([_folded(vector * signs) for vector in vectors]).div_(divisors).cpu()


def _folded(vector: torch.Tensor) -> torch.Tensor:
    """The sums over every SUMS-th coordinate."""
    whole = vector.numel() // SUMS * SUMS
    sums = vector[:whole].view(-1, SUMS).sum(0)
    sums[: vector.numel() - whole] += vector[whole:]
    return sums


@lru_cache(maxsize=4)
def _signs(size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The signs, the same in every process, and the root of how many coordinates are in each sum."""
    drawn = torch.randint(0, 2, (size,), generator=torch.Generator().manual_seed(0), dtype=torch.int8)
    return (2.0 * drawn - 1).to(device), _folded(torch.ones(size)).sqrt().to(device)


@dataclass(frozen=True, eq=False)
class Residuals:
    """Of each remembered client: the sum of its residuals, how many there were, the variance of their noise, and its last round.

    Guarantee: post-processing of messages, of a fixed size. Whoever took part longest ago makes room for somebody new.
    """

    names: torch.Tensor  # a hash of each
    sums: torch.Tensor = field(repr=False)
    seen: torch.Tensor
    noise: torch.Tensor
    last: torch.Tensor

    @classmethod
    def of(cls, memory: dict[str, torch.Tensor]) -> "Residuals | Nobody":
        """What a rule remembers, or nobody before its first round."""
        parts = [memory.get(f"residuals.{name}") for name in FIELDS]
        return Nobody() if parts[0] is None else cls(*parts)  # type: ignore[arg-type]

    def memory(self) -> dict[str, torch.Tensor]:
        """As a rule remembers it."""
        return {f"residuals.{name}": getattr(self, name) for name in FIELDS}

    @property
    def means(self) -> torch.Tensor:
        """Each client's mean residual."""
        return self.sums / self.seen[:, None].to(self.sums.dtype)

    @property
    def variances(self) -> torch.Tensor:
        """The noise variance of each mean residual."""
        return self.noise / self.seen**2

    def with_round(
        self, senders: Sequence[str], sketches: torch.Tensor, noise: torch.Tensor, *, weights: torch.Tensor
    ) -> "Residuals":
        """These and a round's residuals around its weighted mean."""
        mean = (weights @ sketches.double() / weights.sum()).to(sketches.dtype)
        ids, known = [hashed(sender) for sender in senders], {name: k for k, name in enumerate(self.names.tolist())}
        places = known | dict(zip((name for name in ids if name not in known), self._free(ids, known), strict=False))
        grown = max(places.values(), default=-1) + 1 - len(known)
        new = [place for name, place in places.items() if name not in known]
        parts = {name: _grown(getattr(self, name), grown, new) for name in FIELDS}
        round = int(self.last.max()) + 1 if len(self.last) else 0
        for name, sketch, sigma2 in zip(ids, sketches, noise, strict=True):
            if name in places:  # else the cohort is larger than what is remembered
                place = places[name]
                parts["names"][place] = name
                parts["sums"][place] += sketch - mean
                parts["seen"][place] += 1
                parts["noise"][place] += sigma2
                parts["last"][place] = round
        return Residuals(**parts)

    def _free(self, ids: Sequence[int], known: dict[int, int]) -> list[int]:
        """Where new clients may stand: beside the others while there is room, then in the places of who took part longest ago."""
        here = {known[name] for name in ids if name in known}
        oldest = [place for place in self.last.argsort(stable=True).tolist() if place not in here]
        return [*range(len(known), CLIENTS), *oldest]


def _grown(part: torch.Tensor, by: int, new: list[int]) -> torch.Tensor:
    """A copy with so many more rows, and nothing in those that are new."""
    grown = torch.cat([part, part.new_zeros(max(0, by), *part.shape[1:])])
    grown[new] = 0
    return grown


FIELDS = ("names", "sums", "seen", "noise", "last")


class Nobody:
    """Before the first round."""

    def with_round(
        self, senders: Sequence[str], sketches: torch.Tensor, noise: torch.Tensor, *, weights: torch.Tensor
    ) -> Residuals:
        """A first round's residuals."""
        whole, number = torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.float64)
        nothing = Residuals(whole, sketches.new_zeros(0, sketches.shape[1]), number, number, whole)
        return nothing.with_round(senders, sketches, noise, weights=weights)


def hashed(name: str) -> int:
    """A client's name as a number."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)
