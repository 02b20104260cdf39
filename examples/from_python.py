"""Rows, a model and a rule from Python: three hospitals whose records are arrays in memory, each with its own epsilon."""

import tempfile
from dataclasses import dataclass

import numpy as np
from torch import nn

import tacit
from tacit.algorithms import Applied

rng = np.random.default_rng(0)


def records(count: int, shift: float) -> tuple[np.ndarray, np.ndarray]:
    """Two measurements, already scaled by public constants, and whether somebody is ill."""
    x = rng.normal(shift, 1.0, size=(count, 2))
    return x, np.where(x @ [1.0, -1.0] + rng.normal(0, 0.3, count) > 0, "ill", "well")


@dataclass(frozen=True)
class half_step(tacit.Rule):
    """Half of the mean update: what the server does with what clients released costs no privacy."""

    sees = "sums"
    needs = ()

    def weight(self, facts: dict) -> float:
        return facts["examples"]

    def apply(self, memory: dict, gathered, /) -> Applied:
        return Applied(0.5 * gathered.mean(), memory)


data = tacit.Dataset(
    {"north": records(400, 0.0), "coast": records(300, 0.3), "valley": records(200, -0.3)},
    classes=["well", "ill"],
    test=records(500, 0.0),  # public rows: no epsilon covers them
)
experiment = tacit.Experiment(
    train={"rounds": 10, "local_steps": 5, "sampling_rate": 0.25},
    privacy={"kind": "local", "epsilon": {"north": 1.0, "coast": 3.0, "valley": 8.0}, "delta": 1e-4},
)
model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))  # a copy of it is trained, from these weights

with tempfile.TemporaryDirectory() as out:
    history = tacit.run(experiment, data=data, model=model, rule=half_step(), out=out)

print(f"accuracy {history.summary['test_accuracy']:.3f} on {data}")
print(history.sentence)
