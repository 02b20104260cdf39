"""The words of Tacit: what a client allows, how far an update has come, what a run guarantees.

The type of an update says how far it has come on its one way: `Bounded` (clipped) -> `Private` (noised), or `Quantised` (on
the integer grid, tacit/crypto/grid.py) -> `Shared` (with a share of the noise; private only in a sum). A mechanism
adds noise only to a `Bounded` whose sensitivity is its own, so noise before clipping, or noise for another clip, does
not run.
"""

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from tacit import check
from tacit.errors import BadInput

if TYPE_CHECKING:
    import numpy as np
    import torch

Unit = Literal["record", "person", "client"]


@dataclass(frozen=True)
class Budget:
    """What a client allows: (epsilon, delta) for one unit. `epsilon = inf` says "no limit" and must be said.

    >>> Budget(epsilon=3.0, delta=1e-5)
    Budget(epsilon=3.0, delta=1e-05, unit='record')
    """

    epsilon: float
    delta: float
    unit: Unit = "record"

    def __post_init__(self) -> None:
        if self.epsilon != math.inf:
            check.positive(epsilon=self.epsilon)
        check.probability(delta=self.delta)
        check.one_of(get_args(Unit), unit=self.unit)


@dataclass(frozen=True, eq=False)
class Persons:
    """Whose rows are whose where a person is the unit. Rows lie person by person: those of person k are `offsets[k]` to
    `offsets[k + 1]`. At most `most` of them are drawn at a time."""

    offsets: "np.ndarray" = field(repr=False)
    most: int
    tags: tuple[bytes, ...] = field(default=(), repr=False)  # the hash of each one's id, where a ledger may ask

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True)
class Client:
    """One participant of a round. Its data never becomes part of a printable description."""

    index: int
    id: str
    budget: Budget
    x: "torch.Tensor" = field(repr=False)
    y: "torch.Tensor" = field(repr=False)
    digest: bytes = field(default=b"", repr=False)  # of its rows, where no population knows it
    persons: Persons | None = field(default=None, repr=False)  # where each is a unit

    @property
    def size(self) -> int:
        """The number of units, records or persons: declared public, because weights, sampling rates and divisors depend on it."""
        return self.y.shape[0] if self.persons is None else len(self.persons)


@dataclass(frozen=True)
class Bounded:
    """A vector whose change, when one unit comes or goes, has norm at most `sensitivity`."""

    vector: "torch.Tensor" = field(repr=False)
    sensitivity: float


@dataclass(frozen=True)
class Raw:
    """A vector with no protection: it leaves its client only where the experiment asks for no privacy."""

    vector: "torch.Tensor" = field(repr=False)


@dataclass(frozen=True)
class Private:
    """A vector that may be released: it carries its noise."""

    vector: "torch.Tensor" = field(repr=False)
    noise_std: float


@dataclass(frozen=True)
class Shared:
    """Integers with one client's share of the noise: private in a sum of enough of them, hardly by itself."""

    vector: "torch.Tensor" = field(repr=False)


@dataclass(frozen=True)
class Message:
    """What one side sends to the other: named tensors and plain facts. Only what the trust model allows goes in."""

    sender: str
    tensors: "dict[str, torch.Tensor]" = field(repr=False)
    facts: dict[str, Any] = field(default_factory=dict)

    def to(self, device: "torch.device") -> "Message":
        """The same with its tensors on a device; itself where they are there."""
        if all(tensor.device == device for tensor in self.tensors.values()):
            return self
        return Message(self.sender, {name: tensor.to(device) for name, tensor in self.tensors.items()}, self.facts)


@dataclass(frozen=True)
class State:
    """What the server needs next round: the model's parameters as one vector, and what its parts remember, each for itself.
    `memory` is the rule's (central DP, which has no rule, keeps its clip there), `optimizer` that of the server's optimiser.
    `average` is the running mean of the parameters over rounds, where the experiment asks for one; `control` are SCAFFOLD's
    control variates, the server's and every client's."""

    params: "torch.Tensor" = field(repr=False)
    memory: "dict[str, torch.Tensor]" = field(default_factory=dict, repr=False)
    optimizer: "dict[str, torch.Tensor]" = field(default_factory=dict, repr=False)
    average: "torch.Tensor | None" = field(default=None, repr=False)
    control: "dict[str, torch.Tensor]" = field(default_factory=dict, repr=False)

    def to(self, device: "torch.device") -> "State":
        """The same with all that is as long as the model on a device; the rest is for the CPU."""

        def moved(tensors: "dict[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
            long = self.params.numel()
            return {name: tensor.to(device) if long in tensor.shape else tensor for name, tensor in tensors.items()}

        average = None if self.average is None else self.average.to(device)
        return State(self.params.to(device), moved(self.memory), moved(self.optimizer), average, moved(self.control))

    @property
    def result(self) -> "torch.Tensor":
        """The parameters to evaluate and to keep: the average where there is one."""
        return self.params if self.average is None else self.average


@dataclass(frozen=True)
class Others:
    """What a run and the others of its ledger promise together, by the rule that is named. `runs` promise the same unit and are
    counted, `releases` of them no runs but other releases that were charged; `apart` promise another one and are not.
    `epsilon` is that of the client that has spent most, at `delta`."""

    runs: int
    apart: int
    epsilon: float
    delta: float
    rule: str
    releases: int = 0


@dataclass(frozen=True)
class Guarantee:
    """An epsilon with everything that makes it a statement: for whom, against whom, under which change. `epsilon` is what was
    really spent by each client in this run: the smallest, the median and the largest."""

    unit: Unit
    adversary: str
    relation: str
    sampler: str
    accountant: str
    delta: float
    epsilon_min: float
    epsilon_median: float
    epsilon_max: float
    randomness: str
    assumes: tuple[str, ...] = ()
    also: tuple["Guarantee", ...] = ()  # what holds against somebody who can see more
    others: Others | None = None  # where the ledger holds other runs
    whom: str = "every client"
    unpromised: tuple[str, ...] = ()  # clients that opted out; `whom` says so

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon_min <= self.epsilon_median <= self.epsilon_max:
            raise BadInput("Expected 0 <= smallest <= median <= largest epsilon in a guarantee.")

    def record(self) -> dict:
        """The guarantee as plain values for summary.json; JSON knows no infinity, so an epsilon without a bound is null."""
        spent = {"min": self.epsilon_min, "median": self.epsilon_median, "max": self.epsilon_max}
        return {
            "unit": self.unit,
            "adversary": self.adversary,
            "relation": self.relation,
            "sampler": self.sampler,
            "accountant": self.accountant,
            "delta": self.delta,
            "epsilon": {name: value if math.isfinite(value) else None for name, value in spent.items()},
            "randomness": self.randomness,
            "assumes": list(self.assumes),
            **({"whom": self.whom} if self.whom != "every client" else {}),
            **({"others": _finite(asdict(self.others))} if self.others else {}),
            **({"also": [other.record() for other in self.also]} if self.also else {}),
        }


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in values.items()
    }
