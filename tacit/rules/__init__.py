"""Aggregation rules: how the server combines updates. One file per rule; its name is the name in the TOML.

A rule is post-processing of what clients released, so it costs no privacy. To add one, write one file with a class (or
factory) of the file's name that extends `Rule` and says what it `sees`; docs/how-to-add-a-rule.md walks through it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from tacit import plugin
from tacit.errors import BadInput
from tacit.types import Message

ROOM = "tacit.rules"
Memory = dict[str, torch.Tensor]
Layout = Sequence[tuple[int, int]]  # (start, stop) of every parameter in the flat vector


@dataclass(frozen=True, eq=False)
class Crowd:
    """What the server knows of all clients beforehand: budgets, and the noise per coordinate that follows from them."""

    epsilons: np.ndarray = field(repr=False)
    noise_stds: np.ndarray = field(repr=False)


@dataclass(frozen=True)
class Applied:
    """What a rule gives back: the combined update, what it remembers, and numbers for the reader."""

    update: torch.Tensor = field(repr=False)
    memory: Memory = field(repr=False)
    info: dict[str, Any] = field(default_factory=dict)


class Rule:
    """How the server combines updates. Options are the fields of a frozen dataclass; whatever changes is in `memory`."""

    sees: ClassVar[Literal["sums", "rows"]] = "rows"  # "sums" if (group) sums are all it needs

    needs: ClassVar[tuple[str, ...]] = ("epsilon",)  # facts beside "examples" that a client must state

    def init(self, layout: Layout, crowd: Crowd) -> Memory:
        """What the rule remembers before the first round."""
        return {}

    def tell(self, memory: Memory, epsilons: np.ndarray) -> Message:
        """What the round's clients are told beside the model; the cohort's epsilons are known to the server."""
        return Message("server", {})

    def refuse(self, told: Message, *, size: int) -> None:
        """Raises BadInput for what `tell` cannot have said to clients of a model of `size` parameters: it may be crafted."""

    def send(
        self, update: torch.Tensor, facts: dict[str, Any], told: Message
    ) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """The client's last step: what it uploads of an update that is already private, and what it states beside."""
        return {"update": update}, {}

    def weight(self, facts: dict[str, Any]) -> float:
        """The public weight of a client in the sums that a rule which sees sums needs."""
        raise BadInput(f"The rule {type(self).__name__} sees sums but does not say of what: give it `weight(facts)`.")

    def apply(self, memory: Memory, messages: Iterable[Message]) -> Applied:
        """Combines the messages of one round. One that stands for several clients (`stand_in`) counts like all of them."""
        raise TypeError(f"{type(self).__name__} does not say how it combines messages")


def weighted_sum(pairs: Iterable[tuple[float, torch.Tensor]]) -> tuple[torch.Tensor, float]:
    """The sum of w x and of w, one vector at a time. Raises BadInput where no weight is above zero."""
    total, weight = None, 0.0
    for w, x in pairs:
        if not (np.isfinite(w) and w >= 0):
            raise BadInput(f"Expected weights that are finite and not negative, got {w}.")
        total = x * w if total is None else total.add_(x, alpha=w)
        weight += w
    if total is None or weight <= 0:
        raise BadInput("Expected at least one update with a weight above zero: the weights of this round sum to zero.")
    return total, weight


def stand_in(sender: str, update: torch.Tensor, members: Sequence[dict[str, Any]]) -> Message:
    """One message for a group of clients: the mean of their updates by the rule's weights, and their facts added up."""
    facts: dict[str, Any] = {"clients": len(members)}
    for key in ("examples", "epsilon"):
        facts[key] = sum(float(member[key]) for member in members)
    facts["noise_std"] = sum(float(member["noise_std"]) ** -2 for member in members) ** -0.5
    return Message(sender, {"update": update}, facts | {k: v for k, v in members[0].items() if k == "group"})


def names() -> list[str]:
    """The rules that ship with Tacit, by file."""
    return plugin.names(ROOM)


def seeing_sums() -> list[str]:
    """What to name where only sums are opened."""
    return [*(name for name in names() if load(name).sees == "sums"), 'pfa with aggregate.reading = "paper"']


def load(name: str, **options: Any) -> Rule:
    """The rule of that name, or of "package.module:name", made with its options.

    Raises BadInput in one sentence for a name that leads nowhere, for options that it does not take or that have another type,
    and for what is no rule.
    """
    rule = plugin.make(find(name), options, table="aggregate", keys=("rule",))
    if not isinstance(rule, Rule):
        raise BadInput(f"Expected aggregate.rule = {name!r} to make a tacit.rules.Rule, got a {type(rule).__name__}.")
    return rule


def find(name: str) -> plugin.Factory:
    """What makes the rule of that name. Raises BadInput."""
    return plugin.find(ROOM, name, key="aggregate.rule")
