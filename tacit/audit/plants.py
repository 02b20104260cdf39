"""Known bugs, wrapped around the real objects at the seam: `tacit audit --plant NAME` must find each of them.

A plant takes a run's parts and gives them back with a mechanism, a clip, a grid or weights that do something else than is priced;
`cost` is asked of the real ones. Production code knows nothing of this file.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from tacit.algorithms.central_dp import CentralDP
from tacit.algorithms.encrypted import Encrypted
from tacit.algorithms.local_dp import LocalDP
from tacit.audit import wrappers
from tacit.audit.noise import layers_of
from tacit.audit.probes import Prepare
from tacit.audit.words import noise_factor
from tacit.build.parts import Parts
from tacit.errors import BadInput
from tacit.train.dp_sgd import DpSgd

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
    return wrapped(partial(wrappers.Less, factor=factor), parts)


def reuse(parts: Parts) -> Parts:
    """Every round has the same noise."""
    return wrapped(wrappers.Again, parts)


def layer(parts: Parts) -> Parts:
    """The last layer carries no noise."""
    return wrapped(partial(wrappers.Bare, place=layers_of(parts.model)[-1].place), parts)


def sampling(parts: Parts) -> Parts:
    """Everybody is in every step, at the price of a sample."""
    return wrapped(wrappers.Everybody, parts)


def divisor(parts: Parts) -> Parts:
    """Sums are divided by the real number of records or clients in them."""
    algorithm = parts.algorithm
    if isinstance(algorithm, CentralDP):
        return wrapped(partial(wrappers.ByAnswers, expected=algorithm.expected_weight), parts)
    return wrapped(wrappers.ByBatch, parts)


def clip(parts: Parts) -> Parts:
    """Everything is clipped to 2C, and noised for C."""
    algorithm = parts.algorithm
    if isinstance(algorithm, Encrypted):
        return replace(parts, algorithm=replace(algorithm, grid=wrappers.Longer(algorithm.grid)))
    planted = wrapped(wrappers.Twice, parts)
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
    return replace(parts, algorithm=replace(algorithm, groups=groups, grid=wrappers.Weighing(algorithm.grid)))


def share(parts: Parts) -> Parts:
    """The largest client adds no share of the noise."""
    algorithm = cast(Encrypted, parts.algorithm)  # by `refuse`
    name = parts.population.names[int(parts.population.sizes.argmax())]
    group = algorithm.groups[name]
    bare = wrappers.Bare(group.noise, slice(None))
    return replace(
        parts, algorithm=replace(algorithm, groups=dict(algorithm.groups) | {name: replace(group, noise=bare)})
    )


@dataclass(frozen=True)
class Plant:
    """A bug: what it is, and the algorithms that can have it."""

    prepare: Prepare
    kinds: tuple[type, ...]


ALL = (LocalDP, CentralDP, Encrypted)
PLANTS: dict[str, Plant] = {
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
    return PLANTS[name] if factor is None else Plant(partial(noise, factor), ALL)


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
        return parts.plan.mechanism.rate < 1  # type: ignore[attr-defined]
    if isinstance(algorithm, LocalDP):
        return algorithm.mechanism(parts.population[0]).sampling_rate < 1
    return False
