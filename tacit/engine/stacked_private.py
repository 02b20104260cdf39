"""DP-SGD of clients in step: sampled, clipped, summed and noised together (Algorithm 2, lines 8-15, of arXiv:2009.03561).

Guarantee: that of each client's mechanism. It samples and names its noise here as in `train.dp_sgd`; the sums are labelled with the
clip that bounded them, and a mechanism made for another one refuses. Where noise is drawn on the device, its deviation is read off
the mechanism whose event is charged (`row_noise`); any other mechanism than `SampledGaussian` noises each client itself."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from tacit.data.population import Population
from tacit.privacy.local.mechanism import SampledGaussian, row_noise
from tacit.privacy.mechanism import TrainingMechanism
from tacit.random import Stream
from tacit.training.batches import Batches, Shifts, filled, later, sent
from tacit.training.clipping import Trained
from tacit.training.dp_sgd import DpSgd, in_units
from tacit.training.fused import DeviceStream, add_normals_, keys_of
from tacit.training.optimizer import Motion, full_precision, noise_growth
from tacit.training.stacked import Stackable
from tacit.training.stacked_steps import dp_sgd_step, dp_sgd_steps
from tacit.types import Bounded, Client, Private

FOLD = 4  # batches of other sizes are filled up to a multiple of this at least
Found = tuple[torch.Tensor, torch.Tensor]
Recorded = Callable[..., Found]  # (name, steps, theta, batches, *more)


@dataclass(frozen=True, eq=False)
class InStep:
    """Clients that take as many steps, from `theta`; `corrections` are SCAFFOLD's, one row for each."""

    stack: Stackable
    population: Population
    clip: float
    local: DpSgd  # of the round
    recorded: Recorded
    theta: torch.Tensor
    clients: Sequence[Client]
    mechanisms: Sequence[TrainingMechanism]
    streams: Sequence[Stream]
    corrections: torch.Tensor | None

    def begin(self) -> Callable[[], list[Trained]]:
        """Sets them to work. What is returned waits for the device, and gives what each has trained."""
        local, pairs = self.local, list(zip(self.mechanisms, self.clients, strict=True))
        expected = np.array([mechanism.sampling_rate * client.size for mechanism, client in pairs])
        rates = local.learning_rate * local.descent.share / expected
        numbers = [sent(torch.from_numpy(part).to(self.theta.dtype), self.theta.device) for part in (rates, expected)]
        with full_precision(self.theta.device):
            updates, seen = self._there(*numbers) if self._on_device() else self._here(*numbers)
        updates = torch.where(
            updates.isfinite().all(1, keepdim=True), updates, 0.0
        )  # as `dp_sgd.finite`, for all at once
        numbers_seen = later(seen.T)

        def trained() -> list[Trained]:
            found = []
            told = zip(self.mechanisms, updates, rates.tolist(), numbers_seen(), strict=True)
            for mechanism, update, rate, (loss, examples, clipped) in told:
                growth = noise_growth(mechanism, local.descent, learning_rate=local.learning_rate)
                info = {"loss": loss / max(examples, 1), "clipped": clipped / max(examples, 1)}
                one = Trained(Private(update, rate * mechanism.noise_std * growth), info)
                found.append(in_units(one, local.descent.share))
            return found

        return trained

    def _on_device(self) -> bool:
        return self.theta.is_cuda and noised_there(self.mechanisms, self.streams)

    @property
    def _starts(self) -> list[int]:
        return [int(self.population.offsets[client.index]) for client in self.clients]

    def _there(self, rates: torch.Tensor, summed: torch.Tensor) -> Found:
        drawn = [
            [mechanism.sample(mechanism.init(), stream, client.size)[1] for _ in range(mechanism.steps)]
            for client, mechanism, stream in zip(self.clients, self.mechanisms, self.streams, strict=True)
        ]
        clip, stack, keys = self.clip, self.stack, keys_of(self.streams, self.theta.device)
        own: Any = self.mechanisms  # each a SampledGaussian, by `_on_device`
        stds = sent(row_noise(own, clip=clip), self.theta.device)
        batches = filled(drawn, self._starts, fold=_fold(drawn)).to(self.theta.device)
        how = {"descent": dataclasses.replace(self.local.descent, correction=None), "clip": clip}

        views, corrected = self.local.views, self.corrections is not None

        def steps(start: torch.Tensor, *rest: torch.Tensor) -> Found:
            x, y, places, mask, rates, summed, keys, stds, *more = rest
            own = more.pop(0) if corrected else None
            shown = None if views is None else partial(_shown, views, more.pop(0))
            noise = partial(_noised, stds, keys)
            return dp_sgd_steps(stack, start, x, y, places, mask, rates, summed, own, **how, noise=noise, shown=shown)

        more = [part for part in (self.corrections, self._offsets(batches, drawn)) if part is not None]
        return self.recorded("private", steps, self.theta, batches, rates, summed, keys, stds, *more)

    def _offsets(self, batches: Batches, drawn: Sequence[Sequence[np.ndarray]]) -> torch.Tensor | None:
        views = self.local.views
        if views is None:
            return None
        offsets = torch.zeros(*batches.places.shape, views.count, 2, dtype=torch.long)
        for k, (stream, own) in enumerate(zip(self.streams, drawn, strict=True)):
            for step, batch in enumerate(own):
                offsets[step, k, : len(batch)] = views.offsets(stream, len(batch))
        return sent(offsets, self.theta.device)

    def _here(self, rates: torch.Tensor, summed: torch.Tensor) -> Found:
        states = [mechanism.init() for mechanism in self.mechanisms]
        rows, seen = self.stack.rows(self.theta, len(self.clients)), self.theta.new_zeros(3, len(self.clients))
        move = Motion(self.local.descent, self.theta, self.corrections)

        def noise(sums: torch.Tensor) -> torch.Tensor:
            noisy = []
            for k, (mechanism, stream, row) in enumerate(zip(self.mechanisms, self.streams, sums, strict=True)):
                states[k], noised = mechanism.noise(states[k], stream, Bounded(row, self.clip))  # + N(0, (zC)^2 I)
                noisy.append(noised.vector)
            return torch.stack(noisy)

        for _ in range(self.mechanisms[0].steps):
            drawn = []
            for k, (client, mechanism, stream) in enumerate(
                zip(self.clients, self.mechanisms, self.streams, strict=True)
            ):
                states[k], batch = mechanism.sample(states[k], stream, client.size)  # line 11: each with probability p
                drawn.append([batch])
            batches = filled(drawn, self._starts).to(self.theta.device)
            x, y = self._rows(batches, drawn)
            at = (self.stack, rows, seen, x, y, batches.mask[0], rates, summed, move)
            dp_sgd_step(*at, clip=self.clip, noise=noise)
        return rows - self.theta, seen

    def _rows(self, batches: Batches, drawn: Sequence[Sequence[np.ndarray]]) -> Found:
        places, offsets = batches.places[0], self._offsets(batches, drawn)
        x, y = self.population.x[places], self.population.y[places]
        return (x, y) if offsets is None or self.local.views is None else (_shown(self.local.views, offsets, x, 0), y)


def noised_there(mechanisms: Sequence[TrainingMechanism], streams: Sequence[Stream]) -> bool:
    """Whether a device draws the noise: of mechanisms that it knows, and of streams that a seeded simulation has."""
    plain = all(type(mechanism) is SampledGaussian for mechanism in mechanisms)
    return plain and all(isinstance(stream, DeviceStream) for stream in streams)


def _fold(drawn: Sequence[Sequence[np.ndarray]]) -> int:
    longest = max(len(batch) for batches in drawn for batch in batches)
    return max(FOLD, 1 << max(0, longest.bit_length() - 5))


def _shown(views: Shifts, offsets: torch.Tensor, x: torch.Tensor, step: int) -> torch.Tensor:
    return views.of(x.flatten(0, 1), offsets[step].flatten(0, 1)).unflatten(0, x.shape[:2])


def _noised(stds: torch.Tensor, keys: torch.Tensor, sums: torch.Tensor, step: int) -> torch.Tensor:
    return add_normals_(sums, stds, keys, step)
