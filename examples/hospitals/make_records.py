"""Writes real patients' rows for three hospitals, and public test rows, into the working directory.

They are scikit-learn's breast cancer data, dealt out unevenly. Run: python examples/hospitals/make_records.py
"""

import csv
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

FILES = {"public-test.csv": 149, "records/north.csv": 220, "records/coast.csv": 130, "records/valley.csv": 70}
COLUMNS = {"radius": 20, "texture": 21, "smoothness": 24, "concave_points": 27}  # of the largest nuclei in a sample
DIAGNOSES = ("malignant", "benign")


def main() -> None:
    x, y = (np.asarray(part) for part in load_breast_cancer(return_X_y=True))
    order = iter(np.random.default_rng(0).permutation(len(y)).tolist())
    Path("records").mkdir(exist_ok=True)
    for name, count in FILES.items():
        with Path(name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([*COLUMNS, "diagnosis"])
            for row in (next(order) for _ in range(count)):
                writer.writerow([*x[row, list(COLUMNS.values())].tolist(), DIAGNOSES[y[row]]])
        print(f"{name}: {count} rows")


if __name__ == "__main__":
    main()
