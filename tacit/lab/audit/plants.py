"""Known bugs, wrapped around the real objects at the seam: `tacit audit --plant NAME` must find each of them.

A plant takes a run's parts and gives them back with a mechanism, a clip, a grid or weights that do something else than is priced;
`cost` is asked of the real ones. Production code knows nothing of this file."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch

from tacit import check
from tacit.algorithms.central_dp import CentralDP
from tacit.algorithms.encrypted import Encrypted
from tacit.algorithms.local_dp import LocalDP
from tacit.crypto.grid import Quantised
from tacit.engine.assemble import Parts
from tacit.errors import BadInput
from tacit.lab.audit.evidence import layers_of
from tacit.lab.audit.probes import Prepare
from tacit.privacy.mechanism import NoiseState
from tacit.random import Stream, keyed
from tacit.training.dp_sgd import DpSgd
from tacit.types import Bounded, Private, Shared

# Mechanisms and grids that do something else than they are priced for. Each holds a real one, and is it in all but one
# thing.

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


# The names that an audit is given: trainers and bugs. What they stand for is in `trainers` and `plants`: nothing is
# loaded.

TRAINERS = ("one by one", "side by side", "stacked", "site")
PLANTS = ("noise=0.95", "reuse", "clip", "layer", "sampling", "divisor", "weights", "share")


def noise_factor(plant: str) -> float | None:
    """The factor of `noise=F`, below 1; None for a bug without one. Raises BadInput for a name that there is not.

    >>> noise_factor("noise=0.5"), noise_factor("clip")
    (0.5, None)
    """
    word, _, factor = plant.partition("=")
    if word == "noise" and factor:
        try:
            number = float(factor)
        except ValueError:
            raise BadInput(
                f"Expected --plant noise=F with a factor below 1, as in noise=0.95; got {plant!r}."
            ) from None
        if not 0 <= number < 1:
            raise BadInput(f"Expected --plant noise=F with a factor of at least 0 and below 1, got {number:g}.")
        return number
    check.one_of(PLANTS, **{"--plant": plant})
    return None


Wrap = Callable[..., object]


def wrapped(wrap: Wrap, parts: Parts) -> Parts:
    """The parts with every mechanism wrapped: each client's, the server's, or each group's share."""
    algorithm = parts.algorithm
    if isinstance(algorithm, LocalDP):
        own = algorithm.mechanism
        return replace(parts, algorithm=replace(algorithm, mechanism=lambda client: wrap(own(client))))
    if isinstance(algorithm, CentralDP):
        mechanism, plan = wrap(algorithm.mechanism), replace(parts.plan, mechanism=wrap(parts.plan.mechanism))  # type: ignore
        return replace(parts, algorithm=replace(algorithm, mechanism=mechanism), plan=plan)
    if isinstance(algorithm, Encrypted):
        groups = {name: replace(group, noise=wrap(group.noise)) for name, group in algorithm.groups.items()}
        return replace(parts, algorithm=replace(algorithm, groups=groups))
    raise BadInput(f"There is no way to plant a bug into {type(algorithm).__name__}.")


def noise(factor: float, parts: Parts) -> Parts:
    """Noise times a factor, at the whole price."""
    return wrapped(partial(Less, factor=factor), parts)


def reuse(parts: Parts) -> Parts:
    """Every round has the same noise."""
    return wrapped(Again, parts)


def layer(parts: Parts) -> Parts:
    """The last layer carries no noise."""
    return wrapped(partial(Bare, place=layers_of(parts.model)[-1].place), parts)


def sampling(parts: Parts) -> Parts:
    """Everybody is in every step, at the price of a sample."""
    return wrapped(Everybody, parts)


def divisor(parts: Parts) -> Parts:
    """Sums are divided by the real number of records or clients in them."""
    algorithm = parts.algorithm
    if isinstance(algorithm, CentralDP):
        return wrapped(partial(ByAnswers, expected=algorithm.expected_weight), parts)
    return wrapped(ByBatch, parts)


def clip(parts: Parts) -> Parts:
    """Everything is clipped to 2C, and noised for C."""
    algorithm = parts.algorithm
    if isinstance(algorithm, Encrypted):
        return replace(parts, algorithm=replace(algorithm, grid=Longer(algorithm.grid)))
    planted = wrapped(Twice, parts)
    if isinstance(algorithm, LocalDP) and isinstance(algorithm.local, DpSgd):  # the workspace clips by the plan's
        return replace(planted, plan=replace(parts.plan, clip=2 * parts.plan.training_clip))  # type: ignore
    return planted


def weights(parts: Parts) -> Parts:
    """Clients weigh n_k over the mean, at the price of weights of at most 1."""
    sizes = parts.population.sizes
    own = dict(zip(parts.population.names, (sizes / sizes.mean()).tolist(), strict=True))
    if isinstance(algorithm := parts.algorithm, CentralDP):
        return replace(parts, algorithm=replace(algorithm, weights=own))
    algorithm = cast(Encrypted, algorithm)  # by `refuse`
    groups = {name: replace(group, weights=own) for name, group in algorithm.groups.items()}
    return replace(parts, algorithm=replace(algorithm, groups=groups, grid=Weighing(algorithm.grid)))


def share(parts: Parts) -> Parts:
    """The largest client adds no share of the noise."""
    algorithm = cast(Encrypted, parts.algorithm)  # by `refuse`
    name = parts.population.names[int(parts.population.sizes.argmax())]
    group = algorithm.groups[name]
    bare = Bare(group.noise, slice(None))
    return replace(
        parts, algorithm=replace(algorithm, groups=dict(algorithm.groups) | {name: replace(group, noise=bare)})
    )


@dataclass(frozen=True)
class Plant:
    """A bug: what it is, and the algorithms that can have it."""

    prepare: Prepare
    kinds: tuple[type, ...]


ALL = (LocalDP, CentralDP, Encrypted)
PLANTS_PLANTS: dict[str, Plant] = {
    "noise=0.95": Plant(partial(noise, 0.95), ALL),
    "reuse": Plant(reuse, ALL),
    "clip": Plant(clip, ALL),
    "layer": Plant(layer, ALL),
    "sampling": Plant(sampling, (LocalDP, CentralDP)),
    "divisor": Plant(divisor, (LocalDP, CentralDP)),
    "weights": Plant(weights, (CentralDP, Encrypted)),
    "share": Plant(share, (Encrypted,)),
}


def plant_of(name: str) -> Plant:
    """The bug of a name; `noise=F` takes any factor below 1. Raises BadInput for a name that there is not."""
    factor = noise_factor(name)
    return PLANTS_PLANTS[name] if factor is None else Plant(partial(noise, factor), ALL)


def refuse(name: str, plant: Plant, parts: Parts) -> None:
    """Raises BadInput for a bug that this experiment cannot have."""
    algorithm = parts.algorithm
    why = None
    if not isinstance(algorithm, plant.kinds):
        why = "this kind of privacy has no such part"
    elif name in ("sampling", "divisor") and not _sampled(parts):
        why = "nothing is sampled in it"
    elif name == "weights" and len(set(parts.population.sizes.tolist())) == 1:
        why = "all of its clients have the same number of records"
    elif name == "layer" and isinstance(algorithm, Encrypted) and algorithm.grid.rotation != "none":
        why = "its grid is rotated, so that every number holds something of every layer"
    if why:
        raise BadInput(f"--plant {name} does not apply to this experiment: {why}.")


def _sampled(parts: Parts) -> bool:
    algorithm = parts.algorithm
    if isinstance(algorithm, CentralDP):
        return parts.plan.sampler.rate < 1  # type: ignore[attr-defined]
    if isinstance(algorithm, LocalDP):
        return algorithm.mechanism(parts.population[0]).sampling_rate < 1
    return False
