"""A mechanism: one object owns who is in a step, the noise on it, and the whole price, so that the three cannot differ.

The contract is four functions and a state that goes from each to the next:

    state = mechanism.init()
    for every step:
        state, drawn = mechanism.sample(state, stream, size)
        state, noised = mechanism.noise(state, stream, bounded)
    mechanism.event()  # the price of all of it

A mechanism is frozen and printable: its repr is part of the key of its noise (tacit/build/release.py), so every number that
the noise depends on is a field. What changes from step to step is the state: named tensors, so that whoever runs for longer
than one call can keep it in a checkpoint. Independent noise has an empty one. Correlated noise (a tree, a band) keeps there
what it must draw on again; such a state is as secret as the data, and never sent.

What else a caller reads of a mechanism stands in a protocol of its own: `TrainingMechanism` where noise is added in local
training, `CohortMechanism` where a trusted server noises the sum of a cohort (`TurnMechanism`: of one that is public),
`ShareMechanism` where every client adds a share.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np
import torch
from dp_accounting import DpEvent

from tacit.protect.quantise import Quantised
from tacit.random import Stream
from tacit.types import Bounded, Private, Shared

NoiseState = Mapping[str, torch.Tensor]
Taken = TypeVar("Taken", contravariant=True)
Given = TypeVar("Given", covariant=True)


class Mechanism(Protocol[Taken, Given]):
    """Takes what was bounded and gives what carries its noise: `Bounded` to `Private`, or integers to a client's share.

    Guarantee, of every implementation: `sample` and `noise`, called in turn from `init()` for the steps that `event` pays for,
    are private at the price of `event`, whatever the bounded vectors are and even if each depends on what was released before.
    All randomness comes from the stream: the same stream, state and vector give the same bits.
    """

    def init(self) -> NoiseState:
        """The state before the first step of what `event` pays for. It draws nothing."""
        ...

    def sample(self, state: NoiseState, stream: Stream, size: int) -> tuple[NoiseState, np.ndarray]:
        """The indices, among `size` units, of those that are in the next step; nothing but chance and the state decides.

        Raises: BadInput for another number of units than was priced, where the price depends on it.
        """
        ...

    def noise(self, state: NoiseState, stream: Stream, bounded: Taken) -> tuple[NoiseState, Given]:
        """Noises the step. Raises BadInput for a vector of another sensitivity than was priced."""
        ...

    def event(self) -> DpEvent:
        """The price of all steps from `init` on, of a kind that a ledger knows (tacit/privacy/accounting/events.py)."""
        ...


class TrainingMechanism(Mechanism[Bounded, Private], Protocol):
    """A mechanism of `steps` steps in the training of one client: one `event` pays for all of them.

    Assumes, of its caller: every step's sum is of vectors clipped to `clip` and of exactly the units that `sample` drew, it is
    noised even where none was drawn, and nothing but noised sums leaves the client.
    """

    @property
    def clip(self) -> float:
        """The norm C that a unit's vector is clipped to: the sensitivity of a step's sum."""
        ...

    @property
    def sampling_rate(self) -> float:
        """The expected share of the units in a step; the sum is divided by it times their number."""
        ...

    @property
    def steps(self) -> int:
        """How often `noise` is called."""
        ...

    @property
    def noise_std(self) -> float:
        """The standard deviation of what is drawn in a step."""
        ...

    @property
    def noise_growth(self) -> float:
        """The standard deviation of the noise on the sum of all steps, in units of `noise_std`: sqrt(steps) if independent."""
        ...


class CohortMechanism(Mechanism[Bounded, Private], Protocol):
    """A mechanism of one round at a trusted server: who is drawn, how each update is bounded, the noise on their sum.

    Assumes, of its caller: the cohort is told to nobody, weights are at most 1, and what is divided by is public.
    """

    @property
    def clip(self) -> float:
        """The norm that a client's update is clipped to."""
        ...

    @property
    def sensitivity(self) -> float:
        """How far one client can move the sum."""
        ...

    def at(self, clip: float) -> "CohortMechanism":
        """The same with another clip; the price stays."""
        ...

    def bound(self, update: torch.Tensor) -> Bounded:
        """One client's update, clipped; the very tensor where it was short enough."""
        ...

    def noised_share(self, stream: Stream, unclipped: int, answers: int) -> float:
        """The share of updates within the clip, with its noise. Raises TypeError where the price holds no such count."""
        ...


class TurnMechanism(CohortMechanism, Protocol):
    """A cohort's mechanism whose clients take turns in public, and whose noise goes on from round to round.

    Assumes, of its caller: nobody is in a sum out of turn, and a round is released once.
    """

    def round_of(self, state: NoiseState) -> int:
        """The round that the state is before. Raises BadInput for a state that this noise cannot go on from."""
        ...


class ShareMechanism(Mechanism[Quantised, Shared], Protocol):
    """A mechanism of which each client adds its share: private is the sum of enough of them.

    Assumes, of its caller: a sum of fewer than `fewest` reports is never opened, and of one round only one.
    """

    @property
    def fewest(self) -> int:
        """How few reports a sum may be opened of."""
        ...


class AdaptiveClip(Protocol):
    """How the clip of the next round follows from what the mechanism releases about this one."""

    def next(self, mechanism: CohortMechanism, within: Sequence[bool], stream: Stream) -> float:
        """The next clip; `within` says of every answer whether it was within this one."""
        ...
