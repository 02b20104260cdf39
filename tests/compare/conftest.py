"""Comparisons: one that was really run, and rows of any shape for tables and figures."""

import numpy as np
import pytest

from tacit.lab.compare.grid import expand
from tacit.lab.compare.results import Row, Run

SMALL = {
    "name": "small",
    "data": {"clients": 4, "examples_per_client": 40},
    "train": {"rounds": 15, "local_steps": 2, "sampling_rate": 0.5},
    "privacy": {"kind": "local", "epsilon": 3},
    "run": {"seed": 5},
}
PROMISE = {"adversary": "the server", "relation": "add or remove one", "delta": 1e-5}


@pytest.fixture(scope="session")
def small():
    """The values of a small experiment."""
    return SMALL


@pytest.fixture
def made(tmp_path):
    """Builds rows without running anything: made(vary, unit=lambda number: "record")."""

    def make(vary, *, seeds=3, rounds=12, unit=lambda number: "record"):
        rng, rows = np.random.default_rng(0), []
        for number, cell in enumerate(expand(SMALL, vary, seeds=seeds)):
            epsilon = float(cell.varied.get("privacy.epsilon") or 3)
            promise = PROMISE | {"epsilon": {"min": epsilon / 2, "median": epsilon / 1.5, "max": epsilon - 0.0001}}
            promise = promise | {"unit": unit(number)} if unit(number) else None
            runs = tuple(
                _run(tmp_path / cell.slug, seed, rng.uniform(0.3, 0.9, rounds), promise) for seed in range(seeds)
            )
            rows.append(Row(cell, runs))
        return rows

    return make


def _run(folder, seed, accuracies, promise):
    records = tuple({"accuracy": float(value), "uplink_bytes": 1000} for value in accuracies)
    summary = {"test_accuracy": float(accuracies[-1]), "guarantee": promise, "rounds": len(records), "seconds": 1.5}
    summary |= {"uplink_bytes": 1000 * len(records), "downlink_bytes": 2000 * len(records)}
    return Run(seed, folder / f"seed-{seed}", summary, records)
