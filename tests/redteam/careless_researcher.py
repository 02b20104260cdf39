"""A researcher who kills runs, edits files between two starts, resumes, shares ledgers, and looks at every release."""

import contextlib
import csv
from pathlib import Path

import numpy as np
import torch

import tacit
from tacit.engine import evaluate as rounds_module

EXPERIMENT = {
    "data": {"clients": 3, "examples_per_client": 40},
    "train": {"rounds": 3, "local_steps": 1, "sampling_rate": 0.5},
    "privacy": {"kind": "local", "epsilon": 50.0, "noise_multiplier": 20.0},
    "run": {"workers": 1},
}


class Killed(Exception):
    """What stands for a kill between two rounds."""


class Researcher:
    """Runs experiments in folders under one place and keeps every update that reached the server: by run, round, client."""

    def __init__(self, place: Path, monkeypatch):
        self.place, self.seen, self._now = place, {}, ""
        real = rounds_module.receive

        def receive(raw, *, round):
            message = real(raw, round=round)
            self.seen.setdefault((self._now, round, message.sender), []).append(message.tensors["update"].clone())
            return message

        monkeypatch.setattr(rounds_module, "receive", receive)

    def experiment(self, **changes):
        values = {key: dict(value) for key, value in EXPERIMENT.items()}
        for section, change in changes.items():
            values[section] = values.get(section, {}) | change
        return tacit.Experiment(**values)

    def shared(self, share=0.1):
        """Settings that put a run on the one ledger of all."""
        return {"ledger": str(self.place / "shared.db"), "delta_share": share}

    def run(self, name="run", *, killed_after=None, resume=False, force=False, **changes):
        """Runs in the folder `name`, or resumes there; a kill after a round returns None."""

        def observe(record):
            if record["round"] == killed_after:
                raise Killed

        self._now = name
        with contextlib.suppress(Killed):
            experiment = self.experiment(**changes)
            return tacit.run(experiment, out=self.place / name, resume=resume, force=force, observe=observe, page=False)

    def update(self, name, round=0, client="client-0", which=-1):
        return self.seen[name, round, client][which]


def correlation(one: torch.Tensor, other: torch.Tensor) -> float:
    """Of two releases: near 1 where they share their noise, near 0 where they do not."""
    return float(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1])


def natural_rows(path: Path, *, seed=0, rows=90, clients=3, tests=0):
    """Rows of named clients in an npz file; returns them for edits. Without `tests` of their own, some are held out."""
    rng = np.random.default_rng(seed)
    arrays = {"x": rng.normal(size=(rows, 30)), "y": rng.integers(0, 2, rows), "client": np.arange(rows) % clients}
    if tests:
        arrays |= {"x_test": rng.normal(size=(tests, 30)), "y_test": rng.integers(0, 2, tests)}
    np.savez(path, **arrays)
    return arrays


def csv_rows(path: Path, rows):
    """Rows as dicts in a csv file."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
