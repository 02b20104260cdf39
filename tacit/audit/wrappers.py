"""Mechanisms and grids that do something else than they are priced for. Each holds a real one, and is it in all but one thing."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from tacit.privacy.mechanism import NoiseState
from tacit.protect.quantise import Quantised
from tacit.random import Stream, keyed
from tacit.types import Bounded, Private, Shared

STUCK = b"the noise of a planted bug"


@dataclass(frozen=True)
class Wrapped:
    """A real mechanism or grid; what is not said below is its own."""

    own: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def at(self, clip: float) -> "Wrapped":
        """With another clip it has the same bug."""
        return replace(self, own=self.own.at(clip))

    def event(self) -> Any:
        """The price of the real one."""
        return self.own.event()


def _before(bounded: Any) -> torch.Tensor:
    return torch.from_numpy(bounded.values) if isinstance(bounded, Quantised) else bounded.vector


def _as(noised: Any, vector: torch.Tensor) -> Any:
    if isinstance(noised, Shared):
        return Shared(vector.round().to(noised.vector.dtype))
    return Private(vector.to(noised.vector.dtype), noised.noise_std)


@dataclass(frozen=True)
class Less(Wrapped):
    """Noise times a factor."""

    factor: float

    def noise(self, state: NoiseState, stream: Stream, bounded: Any) -> tuple[NoiseState, Any]:
        """The noise, times the factor."""
        state, noised = self.own.noise(state, stream, bounded)
        before = _before(bounded).double()
        return state, _as(noised, before + self.factor * (noised.vector.double() - before))


@dataclass(frozen=True)
class Bare(Wrapped):
    """No noise in one place."""

    place: slice

    def noise(self, state: NoiseState, stream: Stream, bounded: Any) -> tuple[NoiseState, Any]:
        """The noise, but for one place."""
        state, noised = self.own.noise(state, stream, bounded)
        vector = noised.vector.clone()
        vector[self.place] = _before(bounded)[self.place].to(vector.dtype)
        return state, _as(noised, vector)


@dataclass(frozen=True)
class Again(Wrapped):
    """The same noise in every round; within a round the steps differ."""

    calls: list[int] = field(default_factory=lambda: [0], compare=False, repr=False)

    def init(self) -> NoiseState:
        """Counts the steps of a round anew."""
        self.calls[0] = 0
        return self.own.init()

    def noise(self, state: NoiseState, stream: Stream, bounded: Any) -> tuple[NoiseState, Any]:
        """Noise that is keyed by the step alone."""
        self.calls[0] += 1
        return self.own.noise(state, keyed(STUCK)(repr(self.own), self.calls[0]), bounded)

    def at(self, clip: float) -> "Wrapped":
        return Again(self.own.at(clip))


@dataclass(frozen=True)
class Everybody(Wrapped):
    """No sampling."""

    def sample(self, state: NoiseState, stream: Stream, size: int) -> tuple[NoiseState, np.ndarray]:
        """All of them, whoever was drawn."""
        state, _ = self.own.sample(state, stream, size)
        return state, np.arange(size)

    def turn(self, round: int) -> list[int]:
        """Nor any turns."""
        return list(range(len(self.own.groups)))


@dataclass(frozen=True)
class ByBatch(Wrapped):
    """What it noises is scaled so that, divided by the expected batch, it is divided by the real one."""

    seen: list[float] = field(default_factory=lambda: [1.0], compare=False, repr=False)

    def sample(self, state: NoiseState, stream: Stream, size: int) -> tuple[NoiseState, np.ndarray]:
        """What is drawn, and how many there were."""
        state, drawn = self.own.sample(state, stream, size)
        self.seen[0] = self.own.sampling_rate * size / max(1, len(drawn))
        return state, drawn

    def noise(self, state: NoiseState, stream: Stream, bounded: Any) -> tuple[NoiseState, Any]:
        """What is noised, scaled by that."""
        state, noised = self.own.noise(state, stream, bounded)
        return state, _as(noised, noised.vector * self.seen[0])


@dataclass(frozen=True)
class ByAnswers(Wrapped):
    """The same at a server: divided by how many answered."""

    expected: float
    seen: list[int] = field(default_factory=lambda: [0], compare=False, repr=False)

    def at(self, clip: float) -> "Wrapped":
        return ByAnswers(self.own.at(clip), self.expected)

    def bound(self, update: torch.Tensor) -> Bounded:
        """Bounds, and counts."""
        self.seen[0] += 1
        return self.own.bound(update)

    def noise(self, state: NoiseState, stream: Stream, bounded: Any) -> tuple[NoiseState, Any]:
        """What is noised, scaled by the count."""
        state, noised = self.own.noise(state, stream, bounded)
        return state, _as(noised, noised.vector * (self.expected / max(1, self.seen[0])))


@dataclass(frozen=True)
class Twice(Wrapped):
    """Bounded by 2C, and noised as if it were C."""

    @property
    def clip(self) -> float:
        """2C."""
        return 2 * self.own.clip

    def bound(self, update: torch.Tensor) -> Bounded:
        """Within 2C, said to be within C."""
        return Bounded(self.own.at(2 * self.own.clip).bound(update).vector, self.own.clip)

    def noise(self, state: NoiseState, stream: Stream, bounded: Bounded) -> tuple[NoiseState, Any]:
        """Noise for C."""
        sensitivity = getattr(self.own, "sensitivity", self.own.clip)
        return self.own.noise(state, stream, Bounded(bounded.vector, sensitivity))

    def at(self, clip: float) -> "Wrapped":
        return Twice(self.own.at(clip / 2))


@dataclass(frozen=True)
class Longer(Wrapped):
    """A grid that clips to 2C."""

    def quantise(self, vector: np.ndarray, **rest: Any) -> Quantised:
        """Twice as long as the grid would let it be."""
        made = self.own.quantise(np.asarray(vector) / 2, **rest)
        return replace(made, values=made.values * 2)


@dataclass(frozen=True)
class Weighing(Wrapped):
    """A grid that weighs after it has bounded, by whatever weight."""

    def quantise(self, vector: np.ndarray, *, weight: float, **rest: Any) -> Quantised:
        """Bounded first, and weighed then."""
        made = self.own.quantise(vector, weight=1.0, **rest)
        return replace(made, values=np.rint(made.values * weight).astype(np.int64))
