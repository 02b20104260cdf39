"""Somebody's own parts, as docs/how-to-extend.md has them: named as "somebody:...", and known to no list of Tacit's."""

import json
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from tacit.algorithms import Applied, Memory, Rule
from tacit.data.dataset import Dataset
from tacit.errors import BadInput
from tacit.types import Message


@dataclass(frozen=True)
class trimmed_mean(Rule):
    """Every coordinate's mean without its `beta` largest and smallest values (Yin et al. 2018, arXiv:1803.01498)."""

    beta: float
    needs = ()

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 0.5:
            raise BadInput(f"Expected 0 <= aggregate.beta < 0.5, got {self.beta}.")

    def apply(self, memory: Memory, messages: Iterable[Message]) -> Applied:
        rows = torch.stack([m.tensors["update"] for m in messages]).sort(dim=0).values
        cut = int(self.beta * len(rows))
        return Applied(rows[cut : len(rows) - cut].mean(dim=0), memory, {"cut": cut})


@dataclass(frozen=True)
class stripes:
    """Rows of noise, of which every class has one feature that is `height` higher."""

    rows: int = 60
    height: float = 1.0

    def load(self, *, seed: int, progress: object = None) -> Dataset:
        drawn = torch.Generator().manual_seed(seed)
        y = torch.arange(self.rows) % 3
        x = torch.rand(self.rows, 3, generator=drawn) + self.height * nn.functional.one_hot(y, 3)
        return Dataset(name="stripes", x=x, y=y, test_x=x[:9], test_y=y[:9], class_names=("a", "b", "c"))


def wide(*, input_shape: tuple[int, ...], classes: int, width: int = 8) -> nn.Module:
    """One hidden layer of any width."""
    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0], width), nn.Tanh(), nn.Linear(width, classes))


class diary:
    """Writes one line a round into the run's folder."""

    def __init__(self, folder):
        self._path = folder / "diary.txt"

    def past(self, records):
        self._path.write_text("")

    def round(self, record):
        with self._path.open("a") as file:
            file.write(json.dumps(record["accuracy"]) + "\n")

    def finish(self, summary):
        pass

    def close(self):
        pass


class chat:
    """A writer that cannot be made of what a run gives."""

    def __init__(self, folder, channel: str):
        self.channel = channel


def raising(*, beta: float = 0.1):
    raise ZeroDivisionError("by beta")


def no_rule():
    return 3


number = 3


class moody:
    """A metric that raises."""

    better, best, worst = "higher", 1.0, 0.0

    def __call__(self, answers):
        raise RuntimeError("not today")
