"""Three hospitals, each with its own epsilon and its own csv file, train one model. Run: python examples/own_budgets.py"""

import csv
import tempfile
from pathlib import Path

import numpy as np

import tacit

HOSPITALS = {"north": 1.0, "coast": 3.0, "valley": 8.0}  # epsilon per record, named by each hospital
PATIENTS = 400


def write_records(folder: Path) -> None:
    """Made-up patients: risk grows with age and pressure."""
    rng = np.random.default_rng(0)
    for name in HOSPITALS:
        age, pressure = rng.uniform(20, 90, PATIENTS), rng.normal(130, 20, PATIENTS)
        smoker = rng.random(PATIENTS) < 0.3
        risk = (age - 55) / 10 + (pressure - 130) / 15 + 2 * smoker + rng.normal(0, 1, PATIENTS) > 0.5
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["age", "pressure", "smoker", "ill"])
            for row in zip(age.round(), pressure.round(), smoker, risk, strict=True):
                writer.writerow([row[0], row[1], "yes" if row[2] else "no", "yes" if row[3] else "no"])


def main() -> tacit.History:
    folder = Path(tempfile.mkdtemp())
    write_records(folder)
    experiment = tacit.Experiment(
        name="hospitals",
        data={
            "name": "csv",
            "path": str(folder),
            "partition": "natural",  # one file per client
            "label": "ill",
            "classes": ["no", "yes"],
            "numeric": {"age": [0, 120], "pressure": [60, 220]},  # public ranges: nothing is learned from the records
            "categorical": {"smoker": ["no", "yes"]},
        },
        train={"rounds": 30, "local_steps": 5, "sampling_rate": 0.1, "learning_rate": 1.0},
        privacy={"kind": "local", "epsilon": HOSPITALS, "delta": 1e-5},
    )
    history = tacit.run(experiment, out=folder / "run")
    print(f"accuracy {history.summary['test_accuracy']:.3f}")
    print(history.sentence)
    return history


if __name__ == "__main__":
    main()
