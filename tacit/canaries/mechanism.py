"""Mechanisms with canaries among the units: the same sampler draws them, the same noise covers them, at the same price."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from dp_accounting import DpEvent

from tacit.errors import BadInput
from tacit.privacy.central.mechanism import CohortGaussian
from tacit.privacy.mechanism import CohortMechanism, NoiseState, TrainingMechanism
from tacit.random import Stream
from tacit.types import Bounded, Private

LOUD = 10.0  # clips: how long a canary client's update is before it is clipped


class PlantedTraining:
    """One client's round of DP-SGD with canaries: records whose clipped gradient is C along a coordinate of their own.

    Guarantee: that of `own`, at its price: what is added to a sum is a function of coins, of draws and of nobody's rows.
    A record that takes part is drawn by the very call that draws the client's records.
    """

    def __init__(self, own: TrainingMechanism, places: np.ndarray, coins: np.ndarray):
        self.own, self.places = own, torch.from_numpy(places)
        self.taking = np.flatnonzero(coins)
        self.real = np.zeros(len(places))  # what the records themselves came to, at the canaries' coordinates
        self.drawn = np.zeros(len(places), dtype=np.int32)
        self._now = self.taking[:0]
        self.clip, self.sampling_rate, self.steps = own.clip, own.sampling_rate, own.steps
        self.noise_std, self.noise_growth = own.noise_std, own.noise_growth

    def init(self) -> NoiseState:
        """The mechanism's own."""
        return self.own.init()

    def sample(self, state: NoiseState, stream: Stream, size: int) -> tuple[NoiseState, np.ndarray]:
        """The records of one step; canaries are drawn behind them."""
        state, drawn = self.own.sample(state, stream, size + len(self.taking))
        self._now = self.taking[drawn[drawn >= size] - size]
        return state, drawn[drawn < size]

    def noise(self, state: NoiseState, stream: Stream, bounded: Bounded) -> tuple[NoiseState, Private]:
        """Adds the drawn canaries to the sum, and has it noised."""
        vector, places = bounded.vector, self.places.to(bounded.vector.device)
        self.real += vector[places].double().cpu().numpy()
        self.drawn[self._now] += 1
        hit = places[torch.from_numpy(self._now).to(places.device)]
        vector = vector.index_add(0, hit, vector.new_full((len(hit),), self.clip))
        return self.own.noise(state, stream, Bounded(vector, bounded.sensitivity))

    def event(self) -> DpEvent:
        """The mechanism's own price."""
        return self.own.event()

    def seen(self, update: torch.Tensor, *, scale: float) -> dict[str, np.ndarray]:
        """What somebody who knows the records, and has the update, sees at the canaries' coordinates, in clips."""
        found = -update[self.places.to(update.device)].double().cpu().numpy() / scale - self.real
        return {"seen": (found / self.clip).astype(np.float32), "drawn": self.drawn}


class PlantedCohort:
    """A server's round with canary clients: drawn by the cohort's sampler, clipped like everybody, noised with the sum.

    Guarantee: that of `own`, at its price. `told` is called with what somebody who knows the clients' sum sees of the canaries.
    """

    def __init__(
        self, own: CohortMechanism, places: np.ndarray, coins: np.ndarray, told: Callable[[dict[str, Any]], None]
    ):
        self.own, self.places, self.coins, self.told = own, places, coins, told

    def __getattr__(self, name: str) -> Any:
        if name == "own":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.own, name)

    def at(self, clip: float) -> "PlantedCohort":
        """The same with another clip."""
        return PlantedCohort(self.own.at(clip), self.places, self.coins, self.told)

    def bound_rows(self, updates: torch.Tensor) -> torch.Tensor:
        """The mechanism's own."""
        return self.own.bound_rows(updates)  # pyright: ignore[reportAttributeAccessIssue] - asked for where it has one

    def noise(self, state: NoiseState, stream: Stream, bounded: Bounded) -> tuple[NoiseState, Private]:
        """Adds the drawn canary clients to the sum, and has it noised."""
        taking = np.flatnonzero(self.coins)
        drawn = taking[_drawn(self.own, stream, len(taking))]
        total = bounded.vector.clone()
        for place in self.places[drawn].tolist():
            update = torch.zeros_like(total)
            update[place] = LOUD * self.own.clip
            total += self.own.bound(update).vector
        state, noised = self.own.noise(state, stream, Bounded(total, bounded.sensitivity))
        places = torch.from_numpy(self.places).to(total.device)
        found = (noised.vector[places].double() - bounded.vector[places].double()).cpu().numpy() / self.own.sensitivity
        self.told({"seen": found.astype(np.float32), "drawn": np.isin(np.arange(len(self.places)), drawn)})
        return state, noised


def _drawn(own: CohortMechanism, stream: Stream, count: int) -> np.ndarray:
    """Which of so many more clients are drawn: by the cohort's own sampler, of a population so many times as large."""
    if not isinstance(own, CohortGaussian):
        raise BadInput("Canary clients are drawn by Tacit's own cohorts: leave out [audit].")
    times = max(1, -(-count // own.population))
    larger = replace(own, population=times * own.population, cohort=times * own.cohort)
    _, drawn = larger.sample(larger.init(), stream, larger.population)
    return drawn[drawn < count]
