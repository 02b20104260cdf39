"""A person with several rows: the unit "person" beside group privacy at the same epsilon per person. MNIST, LogR; every person has
five rows drawn at random, so that a person's rows are no more alike than others'.

    python experiments/persons.py --out runs/persons                 # 20 clients x 100 persons, local and central (noise once)
    python experiments/persons.py --out runs/persons --persons 600   # all rows of MNIST
    python experiments/persons.py --data digits --clients 2 --persons 8 --rounds 2 --rates 1 --epsilons 3 --seeds 1   # small

Group privacy: (e, d) per record is (5 e, 5 exp(4 e) d) per person of five rows, so e is a fifth and d what makes that delta.
"""

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np

import tacit
from tacit.data.sources import load
from tacit.experiment.data import DataSection

ROWS, DELTA = 5, 1e-5
WAYS = ("record", "group", "person")  # the first protects one row, and is here to show what the others pay


def rows_of(name: str, clients: int, persons: int, *, seed: int, people: bool) -> tacit.Dataset:
    """So many persons of five rows at each client, and the test rows of the data."""
    all_rows = load(DataSection(name=name), seed=0)
    chosen = np.random.default_rng(seed).permutation(len(all_rows.y))[: clients * persons * ROWS]
    who = np.arange(len(chosen)) // ROWS
    test = (all_rows.test_x, all_rows.test_y)
    more: dict[str, Any] = {"persons": who} if people else {}
    return tacit.Dataset(all_rows.x[chosen], all_rows.y[chosen], clients=who // persons, classes=10, test=test, **more)


def privacy(kind: str, way: str, epsilon: float) -> dict[str, Any]:
    said: dict[str, Any] = {"kind": kind, "unit": "person" if way == "person" else "record", "clip": 1.0}
    if way == "person":
        return said | {"epsilon": epsilon, "delta": DELTA, "rows_per_person": ROWS}
    if way == "record":
        return said | {"epsilon": epsilon, "delta": DELTA}
    each = epsilon / ROWS
    return said | {"epsilon": each, "delta": DELTA / (ROWS * math.exp((ROWS - 1) * each))}


def accuracy(kind: str, way: str, epsilon: float, given: argparse.Namespace, seed: int, rate: float) -> float:
    train: dict[str, Any] = {"rounds": given.rounds, "learning_rate": rate, "local_steps": 1}
    if kind == "local":
        train |= {"local_steps": given.steps, "sampling_rate": given.sampling_rate}
    name = f"{kind}-{way}-{epsilon:g}-{given.persons}-{rate:g}-{seed}"
    made = tacit.Experiment(
        name=name,
        data={"partition": "natural"},
        model={"name": "logr"},
        train=train,
        privacy=privacy(kind, way, epsilon),
        run={"seed": seed},
    )
    rows = rows_of(given.data, given.clients, given.persons, seed=seed, people=way == "person")
    return tacit.run(made, data=rows, out=given.out / name, force=True, page=False).summary["test_accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"out": Path("runs/persons"), "clients": 20, "persons": 100, "rounds": 30, "steps": 5}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--sampling-rate", type=float, default=0.2)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 3.0])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.1, 0.3, 1.0], help="the best of these is shown")
    parser.add_argument("--kinds", nargs="+", default=["local", "central"])
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    for kind, epsilon, way in ((k, e, w) for k in given.kinds for e in given.epsilons for w in WAYS):
        found = {r: [accuracy(kind, way, epsilon, given, s, r) for s in range(given.seeds)] for r in given.rates}
        best = max(found, key=lambda rate: float(np.mean(found[rate])))
        print(f"{kind:8} epsilon {epsilon:g} {way:7} {np.mean(found[best]):.3f} (learning rate {best:g})", flush=True)


if __name__ == "__main__":
    main()
