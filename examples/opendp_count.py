"""A count by OpenDP (`pip install opendp`), charged to the ledger of the runs on the same rows before it is released."""

import csv
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import opendp.prelude

import tacit

HOSPITALS, PATIENTS = ("north", "south"), 400
BUDGET = tacit.Budget(epsilon=3.0, delta=1e-5)  # per record, over everything that is ever released


def write_records(folder: Path) -> None:
    """Made-up patients: risk grows with age."""
    rng = np.random.default_rng(0)
    for name in HOSPITALS:
        age = rng.uniform(20, 90, PATIENTS).round()
        ill = age + rng.normal(0, 10, PATIENTS) > 60
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(
                [("age", "ill"), *((a, "yes" if i else "no") for a, i in zip(age, ill, strict=True))]
            )


def main(folder: Path) -> None:
    write_records(folder)
    experiment = tacit.Experiment(
        data={"name": "csv", "path": str(folder), "partition": "natural", "label": "ill", "classes": ["no", "yes"]}
        | {"numeric": {"age": [0, 120]}},
        train={"rounds": 5, "local_steps": 5, "sampling_rate": 0.1, "learning_rate": 1.0},
        privacy={
            "kind": "local",
            "epsilon": 2.0,
            "delta": BUDGET.delta,
            "delta_share": 0.5,
            "ledger": str(folder / "ledger.db"),
        },
    )
    history = tacit.run(experiment, out=folder / "run")
    print(f"accuracy {history.summary['test_accuracy']:.3f}")

    dp: Any = opendp.prelude
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=str)), dp.symmetric_distance()
    measurement = space >> dp.t.then_count() >> dp.m.then_laplace(scale=4.0)
    ill = [row for row in (folder / "north.csv").read_text().splitlines() if row.endswith("yes")]
    ledger = tacit.Ledger(folder / "ledger.db", budget=BUDGET, client="north")
    price = measurement.map(d_in=1)  # one record more or less, as in Tacit's own unit
    ledger.charge(epsilon=price, unit="record", purpose="patients who are ill, by OpenDP")
    print(f"about {measurement(ill)} patients of north are ill, for epsilon {price}")
    print("left for north:", ledger.left())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as out:
        main(Path(out))
