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
from tacit.training.sgd import DpSgd
from tacit.types import Bounded, Private, Shared

TRAINERS = ("one by one", "side by side", "stacked", "site")  # the names that an audit is given
PLANTS = ("noise=0.95", "reuse", "clip", "layer", "sampling", "divisor", "weights", "share")
STUCK = b"the noise of a planted bug"

Noised = tuple[NoiseState, Any]
Vector = torch.Tensor


@dataclass(frozen=True)
class Wrapped:
    """A real mechanism or grid; what is not said below is its own, and so is its price. With another clip it has the same bug."""

    own: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def at(self, clip: float) -> "Wrapped":
        return replace(self, own=self.own.at(clip))

    def event(self) -> Any:
        return self.own.event()


@dataclass(frozen=True)
class Changed(Wrapped):
    """What it noises is changed, by what it was before and after."""

    change: Callable[[Vector, Vector], Vector]

    def noise(self, state: NoiseState, stream: Stream, bounded: Any) -> Noised:
        state, noised = self.own.noise(state, stream, bounded)
        before = torch.from_numpy(bounded.values) if isinstance(bounded, Quantised) else bounded.vector
        vector = self.change(before.double(), noised.vector.double())
        if isinstance(noised, Shared):
            return state, Shared(vector.round().to(noised.vector.dtype))
        return state, Private(vector.to(noised.vector.dtype), noised.noise_std)


def _less(factor: float) -> Callable[[Vector, Vector], Vector]:
    return lambda before, noised: before + factor * (noised - before)


def _bare(place: slice) -> Callable[[Vector, Vector], Vector]:
    def change(before: Vector, noised: Vector) -> Vector:
        vector = noised.clone()
        vector[place] = before[place]
        return vector

    return change


@dataclass(frozen=True)
class Again(Wrapped):
    """The same noise in every round, keyed by the step alone; within a round the steps differ."""

    calls: list[int] = field(default_factory=lambda: [0], compare=False, repr=False)

    def init(self) -> NoiseState:
        self.calls[0] = 0
        return self.own.init()

    def noise(self, state: NoiseState, stream: Stream, bounded: Any) -> Noised:
        self.calls[0] += 1
        return self.own.noise(state, keyed(STUCK)(repr(self.own), self.calls[0]), bounded)

    def at(self, clip: float) -> "Wrapped":
        return Again(self.own.at(clip))


@dataclass(frozen=True)
class Everybody(Wrapped):
    """No sampling, nor any turns: all of them, whoever was drawn; of a sampler of cohorts, in every round."""

    @property
    def cohorts(self) -> "Everybody":
        """The server's sampler, with the same bug."""
        return Everybody(self.own.cohorts)

    def sample(self, state: NoiseState, stream: Stream, size: int) -> tuple[NoiseState, np.ndarray]:
        state, _ = self.own.sample(state, stream, size)
        return state, np.arange(size)

    def draw(self, stream: Stream, round: int) -> np.ndarray:
        return np.arange(self.own.population)

    def scheduled(self, round: int) -> list[int]:
        return list(range(self.own.population))


@dataclass(frozen=True)
class ByBatch(Wrapped):
    """What it noises is scaled so that, divided by the expected batch, it is divided by the real one."""

    seen: list[float] = field(default_factory=lambda: [1.0], compare=False, repr=False)

    def sample(self, state: NoiseState, stream: Stream, size: int) -> tuple[NoiseState, np.ndarray]:
        state, drawn = self.own.sample(state, stream, size)
        self.seen[0] = self.own.sampling_rate * size / max(1, len(drawn))
        return state, drawn

    def noise(self, state: NoiseState, stream: Stream, bounded: Any) -> Noised:
        return Changed(self.own, lambda before, noised: noised * self.seen[0]).noise(state, stream, bounded)


@dataclass(frozen=True)
class ByAnswers(Wrapped):
    """The same at a server: divided by how many answered."""

    expected: float
    seen: list[int] = field(default_factory=lambda: [0], compare=False, repr=False)

    def at(self, clip: float) -> "Wrapped":
        return ByAnswers(self.own.at(clip), self.expected)

    def bound(self, update: torch.Tensor) -> Bounded:
        self.seen[0] += 1
        return self.own.bound(update)

    def noise(self, state: NoiseState, stream: Stream, bounded: Any) -> Noised:
        scale = self.expected / max(1, self.seen[0])
        return Changed(self.own, lambda before, noised: noised * scale).noise(state, stream, bounded)


@dataclass(frozen=True)
class Twice(Wrapped):
    """Bounded by 2C, and noised as if it were C."""

    @property
    def clip(self) -> float:
        return 2 * self.own.clip

    def bound(self, update: torch.Tensor) -> Bounded:
        return Bounded(self.own.at(2 * self.own.clip).bound(update).vector, self.own.clip)

    def noise(self, state: NoiseState, stream: Stream, bounded: Bounded) -> Noised:
        sensitivity = getattr(self.own, "sensitivity", self.own.clip)
        return self.own.noise(state, stream, Bounded(bounded.vector, sensitivity))

    def at(self, clip: float) -> "Wrapped":
        return Twice(self.own.at(clip / 2))


@dataclass(frozen=True)
class Longer(Wrapped):
    """A grid that clips to 2C."""

    def quantise(self, vector: np.ndarray, **rest: Any) -> Quantised:
        made = self.own.quantise(np.asarray(vector) / 2, **rest)
        return replace(made, values=made.values * 2)


@dataclass(frozen=True)
class Weighing(Wrapped):
    """A grid that weighs after it has bounded, by whatever weight."""

    def quantise(self, vector: np.ndarray, *, weight: float, **rest: Any) -> Quantised:
        made = self.own.quantise(vector, weight=1.0, **rest)
        return replace(made, values=np.rint(made.values * weight).astype(np.int64))


def wrapped(wrap: Callable[..., object], parts: Parts) -> Parts:
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
    return wrapped(partial(Changed, change=_less(factor)), parts)


def layer(parts: Parts) -> Parts:
    """The last layer carries no noise."""
    return wrapped(partial(Changed, change=_bare(layers_of(parts.model)[-1].place)), parts)


def divisor(parts: Parts) -> Parts:
    """Sums are divided by the real number of records or clients in them."""
    algorithm = parts.algorithm
    if isinstance(algorithm, CentralDP):
        return wrapped(partial(ByAnswers, expected=algorithm.expected_weight), parts)
    return wrapped(ByBatch, parts)


def clip(parts: Parts) -> Parts:
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
    bare = replace(algorithm.groups[name], noise=Changed(algorithm.groups[name].noise, _bare(slice(None))))
    return replace(parts, algorithm=replace(algorithm, groups=dict(algorithm.groups) | {name: bare}))


@dataclass(frozen=True)
class Plant:
    """A bug: what it is, and the algorithms that can have it."""

    prepare: Prepare
    kinds: tuple[type, ...] = (LocalDP, CentralDP, Encrypted)


PLANTED: dict[str, Plant] = {
    "noise=0.95": Plant(partial(noise, 0.95)),
    "reuse": Plant(partial(wrapped, Again)),  # every round has the same noise
    "clip": Plant(clip),
    "layer": Plant(layer),
    "sampling": Plant(partial(wrapped, Everybody), (LocalDP, CentralDP)),  # everybody, at the price of a sample
    "divisor": Plant(divisor, (LocalDP, CentralDP)),
    "weights": Plant(weights, (CentralDP, Encrypted)),
    "share": Plant(share, (Encrypted,)),
}


def noise_factor(plant: str) -> float | None:
    """The factor of `noise=F`, below 1; None for a bug without one. Raises BadInput for a name that there is not.

    >>> noise_factor("noise=0.5"), noise_factor("clip")
    (0.5, None)
    """
    word, _, factor = plant.partition("=")
    if word != "noise" or not factor:
        check.one_of(PLANTS, **{"--plant": plant})
        return None
    try:
        number = float(factor)
    except ValueError:
        raise BadInput(f"Expected --plant noise=F with a factor below 1, as in noise=0.95; got {plant!r}.") from None
    if not 0 <= number < 1:
        raise BadInput(f"Expected --plant noise=F with a factor of at least 0 and below 1, got {number:g}.")
    return number


def plant_of(name: str, parts: Parts) -> Prepare:
    """The bug of a name; `noise=F` takes any factor below 1. Raises BadInput for a bug that this experiment cannot have."""
    factor, algorithm, why = noise_factor(name), parts.algorithm, ""
    plant = PLANTED[name] if factor is None else Plant(partial(noise, factor))
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
    return plant.prepare


def _sampled(parts: Parts) -> bool:
    algorithm = parts.algorithm
    if isinstance(algorithm, CentralDP):
        return parts.plan.sampler.rate < 1  # type: ignore[attr-defined]
    return isinstance(algorithm, LocalDP) and algorithm.mechanism(parts.population[0]).sampling_rate < 1
