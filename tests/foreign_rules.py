"""Rules of somebody else's package, by `foreign_rules:name`: what a newcomer writes, right and wrong."""

from dataclasses import dataclass

import numpy as np
import torch

from tacit.algorithms import Applied, Rule
from tacit.algorithms.rules.mean import mean


@dataclass(frozen=True)
class twice(Rule):
    """Says that sums are enough, and goes over the messages all the same."""

    sees = "sums"
    needs = ()

    def weight(self, facts):
        return facts["examples"]

    def apply(self, memory, messages):
        n = sum(m.facts["examples"] for m in messages)
        return Applied(sum(m.tensors["update"] * m.facts["examples"] / n for m in messages), memory)


@dataclass(frozen=True)
class rows_twice(twice):
    """The same pair of passes by a rule that asks for rows."""

    sees = "rows"


@dataclass(frozen=True)
class rows_once(Rule):
    """The same weights, kept in one pass."""

    needs = ()

    def apply(self, memory, messages):
        kept = [(m.facts["examples"], m.tensors["update"]) for m in messages]
        n = sum(examples for examples, _ in kept)
        return Applied(sum(update * examples / n for examples, update in kept), memory)


@dataclass(frozen=True)
class speechless(Rule):
    """Does not say how it combines what it gathers."""

    def combine(self, memory, messages):
        return Applied(messages[0], memory)


@dataclass(frozen=True)
class weightless(Rule):
    """Sees sums and does not say of what."""

    sees = "sums"
    needs = ()

    def apply(self, memory, gathered):
        return Applied(gathered.mean(), memory)


NOTES = []


@dataclass(frozen=True)
class noting(mean):
    """The mean, with a note of every message and of the end of the round."""

    def add(self, gathered, message):
        NOTES.append(f"added {message.sender}")
        super().add(gathered, message)

    def apply(self, memory, gathered):
        NOTES.append("applied")
        return super().apply(memory, gathered)


@dataclass(frozen=True)
class mistaken(mean):
    """Has a mistake that shows in its second round, where it has counted the first."""

    def init(self, layout, statistics):
        return {"rounds": torch.zeros(1)}

    def apply(self, memory, gathered):
        if memory["rounds"] > 0:
            raise KeyError("weigths")
        return Applied(super().apply({}, gathered).update, {"rounds": memory["rounds"] + 1})


@dataclass(frozen=True)
class given_to_another(mean):
    """Hands its mistake to numpy, whose file is not the author's."""

    def apply(self, memory, gathered):
        return np.concatenate([np.zeros(2), np.zeros((2, 2))])
