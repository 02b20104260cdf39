"""Known bugs, wrapped around the real objects: `tacit audit --plant NAME` must find each of them.
A bug takes a run's parts and returns them doing something else than is priced; the price is that of the real ones."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch

from tacit import check
from tacit.algorithms.central_dp import CentralDP
from tacit.algorithms.encrypted import Encrypted
from tacit.algorithms.local_dp import LocalDP
from tacit.algorithms.record_sums import RecordSums, SecretRecordSums
from tacit.crypto.grid import Quantised
from tacit.engine.assemble import Parts
from tacit.engine.canaries import wrap
from tacit.errors import BadInput
from tacit.lab.audit.evidence import layers_of
from tacit.lab.audit.probes import Prepare
from tacit.random import keyed
from tacit.training.sgd import DpSgd
from tacit.types import Bounded, Private, Shared

STUCK = b"the noise of a planted bug"

Change = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # before and after the noise: what is released instead


def changed(own: Any, change: Change) -> Any:
    """A mechanism that releases something else than it has noised."""

    def noise(noised_by: Any, state: Any, stream: Any, bounded: Any) -> Any:
        state, noised = noised_by(state, stream, bounded)
        before = torch.from_numpy(bounded.values) if isinstance(bounded, Quantised) else bounded.vector
        vector = change(before.double(), noised.vector.double())
        if isinstance(noised, Shared):
            return state, Shared(vector.round().to(noised.vector.dtype))
        return state, Private(vector.to(noised.vector.dtype), noised.noise_std)

    return wrap(own, noise=noise)


def _less(factor: float) -> Change:
    return lambda before, noised: before + factor * (noised - before)


def _bare(place: slice) -> Change:
    def change(before: torch.Tensor, noised: torch.Tensor) -> torch.Tensor:
        vector = noised.clone()
        vector[place] = before[place]
        return vector

    return change


def _reused(own: Any) -> Any:
    # the same noise in every round, keyed by the step alone; within a round the steps differ
    steps = [0]

    def init(begun_by: Any) -> Any:
        steps[0] = 0
        return begun_by()

    def noise(noised_by: Any, state: Any, stream: Any, bounded: Any) -> Any:
        steps[0] += 1
        return noised_by(state, keyed(STUCK)(repr(own), steps[0]), bounded)

    return _wrapped(own, init=init, noise=noise, at=lambda _, clip: _reused(own.at(clip)))


def _everybody(own: Any) -> Any:
    # no sampling, nor any turns: all of them, whoever was drawn
    def sample(drawn_by: Any, state: Any, stream: Any, size: int) -> Any:
        return drawn_by(state, stream, size)[0], np.arange(size)

    if not hasattr(own, "cohorts"):
        return _wrapped(own, sample=sample)
    every = range(own.cohorts.population)
    sampler = wrap(own.cohorts, draw=lambda *_: np.array(every), scheduled=lambda *_: list(every))
    at: Any = lambda _, clip: _everybody(own.at(clip))  # noqa: E731
    return wrap(own, sample=sample, at=at, facts={"cohorts": property(lambda _: sampler)})


def _by_batch(own: Any) -> Any:
    # a sum is scaled so that, divided by the expected batch, it is divided by the real one
    scale = [1.0]

    def sample(drawn_by: Any, state: Any, stream: Any, size: int) -> Any:
        state, drawn = drawn_by(state, stream, size)
        scale[0] = own.sampling_rate * size / max(1, len(drawn))
        return state, drawn

    return wrap(changed(own, lambda _, noised: noised * scale[0]), sample=sample)


def _by_reports(own: Any, *, expected: float) -> Any:
    # the same at a server: divided by how many reported
    reports = [0]

    def counted(bounded_by: Any, updates: torch.Tensor) -> Any:
        reports[0] += 1 if updates.ndim == 1 else len(updates)
        return bounded_by(updates)

    own_noise = changed(own, lambda _, noised: noised * expected / max(1, reports[0]))
    at: Any = lambda _, clip: _by_reports(own.at(clip), expected=expected)  # noqa: E731
    return _wrapped(own_noise, bound=counted, bound_rows=counted, at=at)


def _twice(own: Any) -> Any:
    # bounded by 2C, and noised as if it were C
    clip = own.clip
    priced = {name: getattr(own, name) for name in ("sensitivity", "noise_std") if hasattr(own, name)}
    facts = {name: property(lambda _, value=value: value) for name, value in (priced | {"clip": 2 * clip}).items()}

    def noise(_: Any, state: Any, stream: Any, bounded: Bounded) -> Any:
        return own.noise(state, stream, Bounded(bounded.vector, priced.get("sensitivity", clip)))

    def bound(_: Any, update: torch.Tensor) -> Bounded:
        return Bounded(own.at(2 * clip).bound(update).vector, clip)

    return _wrapped(own, facts=facts, noise=noise, bound=bound, at=lambda _, clip: _twice(own.at(clip / 2)))


def _wrapped(own: Any, *, facts: dict[str, Any] | None = None, **hooks: Any) -> Any:
    # a client's mechanism has no `at` or `bound`, a server's has; the noise on a sum of records has no `sample`
    return wrap(own, facts=facts, **{name: hook for name, hook in hooks.items() if hasattr(own, name)})


def with_mechanisms(wrapper: Callable[[Any], Any], parts: Parts) -> Parts:
    """The parts with every mechanism wrapped: each client's, the server's, or each group's share."""
    algorithm = parts.algorithm
    if isinstance(algorithm, LocalDP | RecordSums | SecretRecordSums):
        own = algorithm.mechanism
        noise = {"noise": wrapper(algorithm.noise)} if isinstance(algorithm, RecordSums) else {}
        return replace(parts, algorithm=replace(algorithm, mechanism=lambda client: wrapper(own(client)), **noise))
    if isinstance(algorithm, CentralDP):
        plan = replace(parts.plan, mechanism=wrapper(parts.plan.mechanism))  # type: ignore
        return replace(parts, algorithm=replace(algorithm, mechanism=wrapper(algorithm.mechanism)), plan=plan)
    if isinstance(algorithm, Encrypted):
        groups = {name: replace(group, noise=wrapper(group.noise)) for name, group in algorithm.groups.items()}
        return replace(parts, algorithm=replace(algorithm, groups=groups))
    raise BadInput(f"There is no way to plant a bug into {type(algorithm).__name__}.")


def less_noise(factor: float, parts: Parts) -> Parts:
    return with_mechanisms(partial(changed, change=_less(factor)), parts)


def bare_layer(parts: Parts) -> Parts:
    return with_mechanisms(partial(changed, change=_bare(layers_of(parts.model)[-1].place)), parts)


def real_divisor(parts: Parts) -> Parts:
    algorithm = parts.algorithm
    if isinstance(algorithm, CentralDP):
        return with_mechanisms(partial(_by_reports, expected=algorithm.expected_weight), parts)
    if isinstance(algorithm, SUMS):
        return _sums_by_batch(parts)
    return with_mechanisms(_by_batch, parts)


def _sums_by_batch(parts: Parts) -> Parts:
    # each client's sum of gradients is scaled before any noise is on it
    drawn = [0]

    def sample(drawn_by: Any, state: Any, stream: Any, size: int) -> Any:
        state, batch = drawn_by(state, stream, size)
        drawn[0] = len(batch)
        return state, batch

    changed_parts = with_mechanisms(partial(_wrapped, sample=sample), parts)
    own: Any = parts.algorithm

    def scaled(total: torch.Tensor, client: Any) -> torch.Tensor:
        return total * (own.mechanism(client).sampling_rate * client.size / max(1, drawn[0]))

    return _with_sums(changed_parts, scaled)


def _with_sums(parts: Parts, change: Callable[[torch.Tensor, Any], torch.Tensor]) -> Parts:
    # every client's sum is another one, under the label of the clip that is priced
    priced = float(parts.plan.training_clip or 0)

    def summed(summed_by: Any, work: Any, received: Any, client: Any, derive: Any) -> Any:
        trained = summed_by(work, received, client, derive)
        return replace(trained, update=Bounded(change(trained.update.vector, client), priced))

    return replace(parts, algorithm=wrap(parts.algorithm, summed=summed))


def twice_the_clip(parts: Parts) -> Parts:
    algorithm = parts.algorithm
    clip = 2 * float(parts.plan.training_clip or 0)
    louder = replace(parts, plan=wrap(parts.plan, facts={"training_clip": property(lambda _: clip)}))
    if isinstance(algorithm, SUMS):
        return replace(_with_sums(parts, lambda total, _: total), plan=louder.plan)
    if isinstance(algorithm, Encrypted):

        def quantise(_: Any, vector: np.ndarray, **rest: Any) -> Quantised:
            quantised = algorithm.grid.quantise(np.asarray(vector) / 2, **rest)
            return replace(quantised, values=quantised.values * 2)

        return replace(parts, algorithm=replace(algorithm, grid=wrap(algorithm.grid, quantise=quantise)))
    changed_parts = with_mechanisms(_twice, parts)
    if isinstance(algorithm, LocalDP) and isinstance(algorithm.local, DpSgd):  # the workspace clips by the plan's
        return replace(changed_parts, plan=louder.plan)
    return changed_parts


def unpriced_weights(parts: Parts) -> Parts:
    sizes = parts.population.sizes
    own = dict(zip(parts.population.names, (sizes / sizes.mean()).tolist(), strict=True))
    if isinstance(algorithm := parts.algorithm, CentralDP):
        return replace(parts, algorithm=replace(algorithm, weights=own))
    algorithm = cast(Encrypted, algorithm)  # by `bug_of`
    groups = {name: replace(group, weights=own) for name, group in algorithm.groups.items()}

    def quantise(quantised_by: Any, vector: np.ndarray, *, weight: float, **rest: Any) -> Quantised:
        quantised = quantised_by(vector, weight=1.0, **rest)
        return replace(quantised, values=np.rint(quantised.values * weight).astype(np.int64))

    return replace(parts, algorithm=replace(algorithm, groups=groups, grid=wrap(algorithm.grid, quantise=quantise)))


def bare_share(parts: Parts) -> Parts:
    algorithm = cast(Encrypted, parts.algorithm)  # by `bug_of`
    if isinstance(algorithm, SecretRecordSums):
        own, largest = algorithm.mechanism, int(parts.population.sizes.argmax())
        none = partial(changed, change=_bare(slice(None)))
        mixed = replace(algorithm, mechanism=lambda c: none(own(c)) if c.index == largest else own(c))
        return replace(parts, algorithm=mixed)
    name = parts.population.names[int(parts.population.sizes.argmax())]
    bare = replace(algorithm.groups[name], noise=changed(algorithm.groups[name].noise, _bare(slice(None))))
    return replace(parts, algorithm=replace(algorithm, groups=dict(algorithm.groups) | {name: bare}))


SUMS = (RecordSums, SecretRecordSums)
SAMPLED = (LocalDP, CentralDP, *SUMS)
EVERY = (*SAMPLED, Encrypted)
BUGS: dict[str, tuple[Prepare, tuple[type, ...]]] = {  # by name: the bug, and the algorithms that can have it
    "noise=0.95": (partial(less_noise, 0.95), EVERY),  # noise times a factor, at the whole price
    "reuse": (partial(with_mechanisms, _reused), EVERY),  # every round has the same noise
    "clip": (twice_the_clip, EVERY),
    "layer": (bare_layer, EVERY),  # the last layer carries no noise
    "sampling": (partial(with_mechanisms, _everybody), SAMPLED),  # everybody, at a sample's price
    "divisor": (real_divisor, SAMPLED),  # sums are divided by how many records or clients are in them
    "weights": (unpriced_weights, (CentralDP, Encrypted)),  # n_k over the mean, at the price of weights of at most 1
    "share": (bare_share, (Encrypted, SecretRecordSums)),  # the largest client adds no share of the noise
}


def noise_factor(name: str) -> float | None:
    """The factor of `noise=F`, below 1; None for a bug without one. Raises BadInput for a name that there is not."""
    word, _, factor = name.partition("=")
    if word != "noise" or not factor:
        check.one_of(tuple(BUGS), **{"--plant": name})
        return None
    try:
        number = float(factor)
    except ValueError:
        number = math.nan
    if not 0 <= number < 1:
        said = "a factor of at least 0 and below 1, as in noise=0.95"
        raise BadInput(f"Expected --plant noise=F with {said}; got {name!r}.")
    return number


def bug_of(name: str, parts: Parts) -> Prepare:
    """The bug of a name; `noise=F` takes any factor below 1. Raises BadInput for a bug that this experiment cannot have."""
    factor, algorithm, why = noise_factor(name), parts.algorithm, ""
    bug, kinds = BUGS[name] if factor is None else (partial(less_noise, factor), EVERY)
    if type(algorithm) not in kinds:
        why = "this kind of privacy has no such part"
    elif name in ("sampling", "divisor") and not _sampled(parts):
        why = "nothing is sampled in it"
    elif name == "weights" and len(set(parts.population.sizes.tolist())) == 1:
        why = "all of its clients have the same number of records"
    elif name == "layer" and isinstance(algorithm, Encrypted) and algorithm.grid.rotation != "none":
        why = "its grid is rotated, so that every number holds something of every layer"
    if why:
        raise BadInput(f"--plant {name} does not apply to this experiment: {why}.")
    return bug


def _sampled(parts: Parts) -> bool:
    algorithm = parts.algorithm
    if isinstance(algorithm, CentralDP):
        return parts.plan.sampler.rate < 1  # type: ignore[attr-defined]
    if not isinstance(algorithm, LocalDP | RecordSums | SecretRecordSums):
        return False
    return any(algorithm.mechanism(parts.population[k]).sampling_rate < 1 for k in range(len(parts.population)))
