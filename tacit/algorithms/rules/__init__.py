"""Aggregation rules, one file per rule; its name is the name in the TOML. docs/how-to-add-a-rule.md walks through a new one.
A rule is post-processing of what clients released, so it costs no privacy."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tacit import plugin
from tacit.algorithms import PopulationStatistics, Rule
from tacit.errors import BadInput
from tacit.experiment.training import AggregateSection
from tacit.types import Message

ROOM = "tacit.algorithms.rules"
EQUAL_SHARES = 10  # unless said: a tenth of the clients may still carry all the weight, as PFA's public ones do
SLACK = 1e-9  # of a product that should be a whole number


def names() -> list[str]:
    return plugin.names(ROOM)


def seeing_sums() -> list[str]:
    """The rules that work where only sums are opened, for the sentence that refuses another."""
    return [name for name in names() if load(name).sees == "sums" or load(name).private_sum]


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
            f"Expected aggregate.rule = {name!r} to make a tacit.algorithms.Rule, got a {type(rule).__name__}."
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
    """Up to what a value counts, so that none is more than its share of the sum of what counts; infinity where all are within it,
    and where one has no limit: it cannot be weighed by it, and the rule says so.

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


def share_count(share: float, count: int) -> int:
    """How many of `count` clients a share is, rounded up, and never half of them or more.

    >>> [share_count(0.1, count) for count in (1, 2, 3, 10, 11, 30)]
    [0, 0, 1, 1, 2, 3]
    """
    return min(math.ceil(share * count - SLACK), (count - 1) // 2)


def middle(rows: torch.Tensor, cut: int) -> torch.Tensor:
    return rows.sort(0).values[cut : len(rows) - cut].mean(0)
