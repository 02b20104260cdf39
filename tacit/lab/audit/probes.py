"""Rows and losses whose gradients are known, in the place of clients' own; all else of a run stays.
All records of a client become one row. The loss is the experiment's own times a factor: 0, so that what is released is noise
alone; so small that nothing is clipped, or so large that everything is. Two probes of one round have the same noise, so that
their difference is exact: that is for an auditor alone; two real releases never share noise."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from tacit.algorithms.local_dp import LocalDP
from tacit.data.population import Population
from tacit.engine.assemble import Parts
from tacit.errors import BadInput
from tacit.parts.losses import Losses
from tacit.training.sgd import DpSgd, clipped_sum_slow

Prepare = Callable[[Parts], Parts]
GIANT = 1e6  # times a loss: every gradient is beyond every clip
LONG = 1e30  # a clip that clips nothing
FAINT = 0.5  # of the clip: a gradient that is left as it is


@dataclass(frozen=True)
class Probe:
    """What every record is, and the factor of its loss. `muted` is a target whose records have no gradient; where there is one,
    every second record has it. A `paired` probe is compared with another of the same round: it has one step, and noise that can be
    drawn again."""

    x: torch.Tensor = field(repr=False)
    y: torch.Tensor = field(repr=False)
    factor: float = 0.0
    muted: torch.Tensor | None = field(default=None, repr=False)
    paired: bool = True

    def __call__(self, parts: Parts) -> Parts:
        losses = partial(_scaled, parts.losses, self.factor, self.muted)
        changed = replace(parts, losses=losses, population=self._rows(parts))
        if not self.paired:
            return changed
        algorithm: Any = parts.algorithm
        if isinstance(algorithm, LocalDP) and isinstance(algorithm.local, DpSgd):
            own: Callable[[Any], Any] = algorithm.mechanism
            algorithm = replace(algorithm, mechanism=lambda client: replace(own(client), steps=1))
        run = parts.experiment.run.model_copy(update={"randomness": "seeded"})
        return replace(changed, algorithm=algorithm, experiment=parts.experiment.model_copy(update={"run": run}))

    def _rows(self, parts: Parts) -> Population:
        old = parts.population
        device, count = old.x.device, int(old.offsets[-1])
        x, y = self.x.to(device), self.y.to(device)
        targets = y.expand(count, *y.shape).clone()
        if self.muted is not None:
            unit = np.arange(count) - np.repeat(old.offsets[:-1], old.rows)
            if old.persons is not None:  # all rows of a person have one target
                owner = np.repeat(np.arange(len(old.persons)), np.diff(old.persons.offsets))
                unit = owner - owner[np.repeat(old.offsets[:-1], old.rows)]
            targets[torch.from_numpy(unit % 2 == 1).to(device)] = self.muted.to(device)
        population = replace(old, x=x.expand(count, *x.shape), y=targets)
        if not parts.is_deployed:
            population.__dict__["row_digests"] = old.row_digests  # the noise of the rows that were there
        return population


def _scaled(
    losses: Losses, factor: float, muted: torch.Tensor | None, outputs: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    scaled = losses(outputs, targets) * factor
    if muted is None:
        return scaled
    same = (targets == muted.to(targets.device)).reshape(len(targets), -1).all(1)
    return scaled * (~same).to(scaled.dtype)


@dataclass(frozen=True)
class Probes:
    x: torch.Tensor = field(repr=False)
    y: torch.Tensor = field(repr=False)
    other: torch.Tensor | None = field(repr=False)  # a second target
    start: torch.Tensor = field(repr=False)
    gradient: np.ndarray = field(repr=False)  # of the record there
    clip: float

    @property
    def noise(self) -> Probe:
        """Nothing but noise, in all steps of a round, drawn as the experiment says."""
        return Probe(self.x, self.y, 0.0, paired=False)

    @property
    def silent(self) -> Probe:
        """Nothing but noise, in one step: what the others are compared with."""
        return Probe(self.x, self.y, 0.0)

    @property
    def faint(self) -> Probe:
        """Every drawn record adds half a clip, in one direction."""
        return Probe(self.x, self.y, FAINT * self.clip / float(np.linalg.norm(self.gradient)))

    @property
    def direction(self) -> np.ndarray:
        """Along it every drawn record of a faint probe adds 1 to a sum, and takes 1 off the parameters."""
        added = self.gradient * self.faint.factor
        return -added / float(added @ added)

    @property
    def half(self) -> Probe | None:
        """The same of every second record; None where all targets are equal."""
        return None if self.other is None else replace(self.faint, muted=self.other)

    def at(self, parts: Parts, start: torch.Tensor) -> "Probes":
        """The same from other parameters."""
        return replace(self, start=start, gradient=_gradient(parts, self.x, self.y, start))

    def longer(self) -> list[Probe]:
        """Longer and longer whole updates: one is beyond the clip and within float32, which too long a one leaves."""
        return [Probe(self.x, self.y, factor) for factor in (1.0, 1e2, 1e4, GIANT)]

    def giants(self) -> list[Probe]:
        """Every record tries to add as much as it can: the row, and one of zeros, whose gradient is in other layers."""
        return [Probe(x, self.y, GIANT) for x in (self.x, torch.zeros_like(self.x))]


def probes_of(parts: Parts) -> Probes:
    """The probes of an experiment: its first row, unless rows are shown in several views; then zeros, which all views of are."""
    x, y = parts.population.x[0].cpu(), parts.population.y[0].cpu()
    if getattr(getattr(parts.algorithm, "local", None), "views", None) is not None:
        x = torch.zeros_like(x)
    targets = parts.population.y.reshape(len(parts.population.y), -1).cpu()
    differ = (targets != targets[0]).any(1).nonzero()
    other = parts.population.y[int(differ[0])].cpu() if len(differ) else None
    for start in (torch.zeros_like(parts.params), parts.params):
        gradient = _gradient(parts, x, y, start)
        if gradient.any():
            return Probes(x, y, other, start, gradient, float(parts.plan.training_clip or 1.0))
    raise BadInput("The model has no gradient for the first record, so that nothing can be told from what it releases.")


def _gradient(parts: Parts, x: torch.Tensor, y: torch.Tensor, start: torch.Tensor) -> np.ndarray:
    before, device = parts.theta.clone(), parts.theta.device
    parts.theta.copy_(start)
    try:
        total = clipped_sum_slow(parts.model, x[None].to(device), y[None].to(device), clip=LONG, losses=parts.losses)
    finally:
        parts.theta.copy_(before)
    return total.double().cpu().numpy()
