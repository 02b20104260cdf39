"""Writes made-up patients of five hospitals that differ, and public test rows, into the working directory.

They differ in size, in how common the illness is, in what they measure (a column that a hospital does not measure is empty there)
and in what the measurements mean: whom a hospital is sent, and by which instrument it measures. The numbers were fixed before
anything was tuned on them. Run: python examples/hospitals/make_different.py
"""

import csv
from pathlib import Path

import numpy as np

# name: patients, what is added to the log-odds of being ill, columns that are not measured
HOSPITALS = {
    "bridge": (360, -1.6, ()),
    "castle": (240, 0.0, ("vessels",)),
    "dale": (160, 0.9, ("cholesterol",)),
    "elm": (110, -0.6, ("cholesterol", "vessels")),
    "ferry": (70, 1.6, ("sugar",)),
}
COLUMNS = {  # name: mean, standard deviation, weight in the log-odds, decimals
    "age": (58, 10, 0.6, 0),
    "pressure": (134, 17, 0.3, 0),
    "cholesterol": (235, 50, 0.4, 0),
    "rate": (145, 24, -0.7, 0),
    "depression": (1.1, 0.9, 0.8, 1),
    "vessels": (1.4, 0.8, 1.0, 1),
    "sugar": (5.6, 1.2, 0.3, 1),
    "weight": (78, 13, 0.1, 0),
}
DIFFERENCE = 0.5  # the standard deviation of a weight from hospital to hospital
PUBLIC = 200  # test rows of a hospital that nobody else resembles


def patients(rng: np.random.Generator, count: int, odds: float, weights: np.ndarray, missing: tuple[str, ...]):
    """Rows of texts, one per patient."""
    z = rng.normal(size=(count, len(COLUMNS)))
    ill = rng.random(count) < 1 / (1 + np.exp(-(odds + z @ weights)))
    for row, answer in zip(z, ill, strict=True):
        cells = [
            "" if name in missing else f"{mean + std * value:.{places}f}"
            for value, (name, (mean, std, _, places)) in zip(row, COLUMNS.items(), strict=True)
        ]
        yield [*cells, "yes" if answer else "no"]


def main() -> None:
    rng, common = np.random.default_rng(16), np.array([weight for _, _, weight, _ in COLUMNS.values()])
    Path("different").mkdir(exist_ok=True)
    files = {f"different/{name}.csv": facts for name, facts in HOSPITALS.items()}
    for name, (count, odds, missing) in {**files, "different-test.csv": (PUBLIC, 0.0, ())}.items():
        own = common + DIFFERENCE * rng.normal(size=len(common)) * (name in files)
        with Path(name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([*COLUMNS, "ill"])
            writer.writerows(patients(rng, count, odds, own, missing))
        print(f"{name}: {count} rows")


if __name__ == "__main__":
    main()
