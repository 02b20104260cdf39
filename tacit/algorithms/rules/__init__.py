"""Aggregation rules: how the server combines updates. One file per rule; its name is the name in the TOML.

A rule is post-processing of what clients released, so it costs no privacy. docs/how-to-add-a-rule.md walks through a new one.
Messages are given to `add` one by one as they arrive; `apply` is called after the last, with what `add` has kept. So nobody trains
inside a rule, and a round of sums holds one sum and one message."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from tacit import plugin
from tacit.errors import BadInput
from tacit.experiment.training import AggregateSection
from tacit.types import Message

ROOM = "tacit.algorithms.rules"
EQUAL_SHARES = 10  # unless said: a tenth of the clients may still carry all the weight, as PFA's public ones do
SLACK = 1e-9  # of a product that should be a whole number
Memory = dict[str, torch.Tensor]  # what a rule keeps from round to round, by name
Layout = Sequence[tuple[int, int]]  # (start, stop) of every parameter in the flat vector


@dataclass(frozen=True, eq=False)
class PopulationStatistics:
    """What the server knows of all clients beforehand: budgets, and the noise per coordinate that follows from them.

    Public by assumption: sizes, budgets and settings are declared, and nothing here depends on rows. One client's epsilon counts up
    to `most_epsilon`, its examples up to `most_examples` (`aggregate.most_share`); the epsilons here are cut already.
    """

    epsilons: np.ndarray = field(repr=False)
    noise_stds: np.ndarray = field(repr=False)
    rounds: float = 1.0  # in how many a client is expected to take part
    most_epsilon: float = math.inf
    most_examples: float = math.inf

    def facts(self, examples: int, epsilon: float) -> dict[str, Any]:
        """What a client is weighed by: what it declares, up to what one may count for."""
        return {"examples": min(examples, self.most_examples), "epsilon": min(epsilon, self.most_epsilon)}


@dataclass(frozen=True)
class Applied:
    """The combined update, what the rule remembers, and numbers that are recorded with the round and never read again."""

    update: torch.Tensor = field(repr=False)
    memory: Memory = field(repr=False)
    info: dict[str, Any] = field(default_factory=dict)


@dataclass
class Sum:
    """The sum of w x, that of w, and how many clients are in it: one vector, however many updates were added.

    >>> gathered = Sum()
    >>> for weight, update in ((3.0, torch.tensor([1.0])), (1.0, torch.tensor([5.0]))): gathered.add(weight, update)
    >>> gathered.mean(), gathered.weight, gathered.clients
    (tensor([2.]), 4.0, 2)
    """

    rule: str = ""
    weight: float = 0.0
    clients: int = 0
    _total: torch.Tensor | None = field(default=None, repr=False)

    def add(self, weight: float, update: torch.Tensor, *, clients: int = 1) -> None:
        """Adds w x for so many clients. Raises: BadInput for a weight that is negative or not finite; nothing was added then."""
        if not (np.isfinite(weight) and weight >= 0):
            raise BadInput(f"Expected weights that are finite and not negative, got {weight}.")
        self._total = update * weight if self._total is None else self._total.add_(update, alpha=weight)
        self.weight += weight
        self.clients += clients

    @property
    def total(self) -> torch.Tensor:
        """The sum of w x, which the next `add` changes in place. Raises: BadInput where no weight is above zero."""
        if self._total is None or self.weight <= 0:
            raise BadInput(
                "Expected at least one update with a weight above zero: the weights of this round sum to zero."
            )
        return self._total

    def mean(self) -> torch.Tensor:
        """A convex combination of the updates, as a tensor of its own. Raises: BadInput where no weight is above zero."""
        return self.total / self.weight

    def __iter__(self) -> Iterator[Message]:
        """Refuses a second pass by the rule's name: the messages are gone. Raises: BadInput."""
        raise BadInput(
            f"The rule {self.rule} went over the messages twice: it sees sums, for which each was added as it arrived. Use the"
            ' sum\'s `total`, `weight` and `clients`, or say sees = "rows" and get a list of them.'
        )


class Rule(ABC):
    """How the server combines updates. Options are the fields of a frozen dataclass; whatever changes is in `memory`.

    Guarantee, of the loop: no message is given twice, and all clients have trained before `apply` is called. Of every rule
    that ships, held by tests/test_contracts.py: messages are left as they were, what is remembered is tensors, equal updates
    come back unchanged (but by the random control), and with `sees = "sums"` the same comes out of sums by group as of single
    messages.

    Assumes: what is added is private already, or nothing is promised. A rule is post-processing, so it costs no privacy; for
    that it must look at nothing but messages, memory and the statistics.
    """

    sees: ClassVar[Literal["sums", "rows"]] = "rows"  # "sums" if (group) sums are all it needs
    needs: ClassVar[tuple[str, ...]] = ("epsilon",)  # facts beside "examples" that a client must state
    whole: ClassVar[bool] = True  # whether `send` always sends the whole update, as SCAFFOLD needs it

    def init(self, layout: Layout, statistics: PopulationStatistics) -> Memory:
        """What the rule remembers before the first round: named tensors, which a checkpoint holds."""
        return {}

    def tell(self, memory: Memory, epsilons: np.ndarray) -> Message:
        """What everybody in the round is told beside the model; `epsilons` are those of the cohort, which the server knows."""
        return Message("server", {})

    def refuse(self, received: Message, *, size: int) -> None:  # noqa: B027 - most rules tell nothing
        """Refuses what `tell` cannot have said to clients of a model of `size` parameters. Raises: BadInput.

        A site asks before it trains, since the server may have crafted it.
        """

    def send(
        self, update: torch.Tensor, facts: dict[str, Any], received: Message
    ) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """What a client uploads of an update that is already private, and states beside. Assumes: `refuse` let `received` pass."""
        return {"update": update}, {}

    def weight(self, facts: dict[str, Any]) -> float:
        """The weight of a client in sums, from public facts alone: under encryption it is needed before anybody sees an update."""
        raise BadInput(f"The rule {type(self).__name__} sees sums but does not say of what: give it `weight(facts)`.")

    def start(self) -> Any:
        """What the messages of one round are added to: a `Sum` by `weight` for a rule that sees sums, a list for rows."""
        return Sum(type(self).__name__) if self.sees == "sums" else []

    def add(self, gathered: Any, message: Message, /) -> None:
        """Takes one message, which comes once; it may stand for several clients (`group_message`). Raises: BadInput."""
        if self.sees == "sums":
            gathered.add(self.weight(message.facts), message.tensors["update"], clients=message.facts.get("clients", 1))
        else:
            gathered.append(message)

    @abstractmethod
    def apply(self, memory: Memory, gathered: Any, /) -> Applied:
        """Combines what was gathered, which is used up; `memory` is left as it is. Raises: BadInput where nothing was gathered."""


def combined(rule: Rule, memory: Memory, messages: Iterable[Message]) -> Applied:
    """A whole round of a rule, for messages that are all there: for tests and one's own scripts. Raises: what the rule raises."""
    gathered = rule.start()
    for message in messages:
        rule.add(gathered, message)
    return rule.apply(memory, gathered)


def weighted_sum(pairs: Iterable[tuple[float, torch.Tensor]]) -> tuple[torch.Tensor, float]:
    """The sum of w x and of w, one vector at a time. Raises: as `Sum`.

    >>> weighted_sum([(3.0, torch.tensor([1.0])), (1.0, torch.tensor([5.0]))])
    (tensor([8.]), 4.0)
    """
    gathered = Sum()
    for w, x in pairs:
        gathered.add(w, x)
    return gathered.total, gathered.weight


def group_message(sender: str, update: torch.Tensor, members: Sequence[dict[str, Any]]) -> Message:
    """One message for a group of clients: the mean of their updates by the rule's weights, and their facts added up.

    Examples and epsilons are added; noise_std is that of the mean by inverse variance, (sum of sigma^-2)^(-1/2), so that
    1/sigma^2 adds up as well. So under every rule that ships and sees sums the group weighs what its members weigh together.
    Assumes: at least one member, and every noise_std above zero.
    """
    facts: dict[str, Any] = {"clients": len(members)}
    for key in ("examples", "epsilon"):
        facts[key] = sum(float(member[key]) for member in members)
    facts["noise_std"] = sum(float(member["noise_std"]) ** -2 for member in members) ** -0.5
    return Message(sender, {"update": update}, facts | {k: v for k, v in members[0].items() if k == "group"})


def names() -> list[str]:
    """The rules that ship with Tacit, by file, as they are written in the TOML."""
    return plugin.names(ROOM)


def seeing_sums() -> list[str]:
    """The rules that work where only sums are opened, for the sentence that refuses another."""
    return [*(name for name in names() if load(name).sees == "sums"), 'pfa with aggregate.reading = "paper"']


def load(name: str, **options: Any) -> Rule:
    """The rule of that name, or of "package.module:name", made with its options. Raises: BadInput.

    Assumes: whoever named it may run code here. A site loads only what its people accepted.

    >>> load("mean").sees
    'sums'
    """
    factory = find(name)
    own = set(options) if plugin.takes_any(factory) else set(plugin.options(factory))
    for option in options:  # what only other rules take is refused with their names
        others = [] if option in own else taking(option)
        if others:
            raise BadInput(
                f"aggregate.{option} is an option of {', '.join(others)}; the rule here is {name}, which takes"
                f" {', '.join(sorted(own)) or 'no options'}: leave it out, or choose another rule."
            )
    rule = plugin.make(factory, options, table="aggregate", keys=("rule",))
    if not isinstance(rule, Rule):
        raise BadInput(
            f"Expected aggregate.rule = {name!r} to make a tacit.algorithms.rules.Rule, got a {type(rule).__name__}."
        )
    return rule


def taking(option: str) -> list[str]:
    """The rules that ship and take an option of that name.

    >>> taking("horizon")
    ['random-effects']
    """
    return [name for name in names() if option in plugin.options(find(name))]


def of(section: AggregateSection, name: str) -> Rule:
    """The rule of that name with the table's options, or the one that was passed from Python and travels with the table."""
    return load(name, **section.options()) if section.part is None else section.part


def find(name: str) -> plugin.Factory:
    """What makes the rule of that name: a class or a factory, not yet called. Raises: BadInput for a name that leads nowhere."""
    return plugin.find(ROOM, name, key="aggregate.rule")


# How much of what all clients declare one may count for: epsilons and sizes are declared, and nobody can check them. Each counts up
# to a ceiling that follows from all of them, so that server and sites compute the same one before the first round.


def share_of(most_share: float | None, clients: int) -> float:
    """The largest share of one client: as said, or ten equal ones; never less than an equal one.

    >>> share_of(None, 7), share_of(None, 40), share_of(0.01, 40)
    (1.0, 0.25, 0.025)
    """
    return max(1 / clients, min(1.0, EQUAL_SHARES / clients) if most_share is None else most_share)


def ceiling(values: np.ndarray, most_share: float | None) -> float:
    """Up to what a value counts, so that none is more than its share of the sum of what counts; infinity where all are within it.

    An infinite value is left alone: whoever sets no limit cannot be weighed by it, and the rule says so.

    >>> ceiling(np.array([1.0, 1.0, 8.0]), 0.5), ceiling(np.array([1.0, 1.0, 8.0]), None)
    (2.0, inf)
    """
    ordered, share = np.sort(np.asarray(values, dtype=float))[::-1], share_of(most_share, len(values))
    if ordered[0] <= share * ordered.sum() or not np.isfinite(ordered[0]):
        return np.inf
    for cut in range(1, len(ordered)):  # the first for which it holds leaves room: cut * share < 1
        top = share * ordered[cut:].sum() / (1 - cut * share)
        if ordered[cut] <= top:
            return float(top)
    return float(ordered[-1])


def refuse_unlimited(statistics: PopulationStatistics) -> None:
    """Refuses to weigh by epsilon where one is infinite, before anybody has paid for a round. Raises: BadInput."""
    if np.isinf(statistics.epsilons).any():
        raise BadInput(
            "A client without a limit (epsilon = inf) cannot be weighed by its epsilon: name a finite one, or use another rule."
        )


# What the rules that look at every update have in common. Each client counts once: what it states is not believed.


def rows_of(messages: Sequence[Message]) -> torch.Tensor:
    """The updates of a round as one matrix (client, parameter). Raises: BadInput without updates."""
    if not messages:
        raise BadInput("Expected at least one update.")
    return torch.stack([message.tensors["update"] for message in messages])


def refuse_half(share: float) -> None:
    """Refuses a share of clients that leaves no majority: the rule would trim everybody away. Raises: BadInput."""
    if not 0 <= share < 0.5:
        raise BadInput(
            f"Expected 0 <= aggregate.share < 0.5, got {share!r}: of a half nothing would be left to believe."
        )


def part(share: float, count: int) -> int:
    """How many of `count` clients a share is, rounded up, and never half of them or more.

    >>> [part(0.1, count) for count in (1, 2, 3, 10, 11, 30)]
    [0, 0, 1, 1, 2, 3]
    """
    return min(math.ceil(share * count - SLACK), (count - 1) // 2)


def middle(rows: torch.Tensor, cut: int) -> torch.Tensor:
    """Every coordinate's mean without its `cut` largest and its `cut` smallest values."""
    return rows.sort(0).values[cut : len(rows) - cut].mean(0)
