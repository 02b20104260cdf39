"""Whether a round's cost grows with the rounds: budgets and noise that differ, every rule, the server's share and the checkpoint.

    python bench/growth.py [--clients 2000] [--cohort 100] [--rounds 30] [--rules random-effects,mean,...] [--features 784]
    python bench/growth.py --clients 20 --cohort 5 --rounds 2 --features 10  # small

Random rows, the model `mlp`, local DP with epsilon uniform in [1, 10], noise by the default strategy, so that noise differs.
For each rule: the server's seconds over the clients' (one process trains them) in an early and in a late round (medians of five),
a late round over an early one, and the checkpoint's size. Compare ratios only.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

import numpy as np

import tacit
from tacit.algorithms import rules

WINDOW = 5  # rounds in a median
ROWS, CLASSES, TEST = 60, 10, 200


def data(clients: int, features: int) -> tacit.Dataset:
    """Random rows of so many clients."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((clients * ROWS + TEST, features), dtype=np.float32)
    y = rng.integers(0, CLASSES, len(x))
    owners = np.repeat(np.arange(clients), ROWS)
    return tacit.Dataset(x[:-TEST], y[:-TEST], clients=owners, classes=CLASSES, test=(x[-TEST:], y[-TEST:]))


def measure(rule: str, rows: tacit.Dataset, cohort: int, rounds: int) -> str:
    """One run of a rule, as a line."""
    experiment = tacit.Experiment(
        model={"name": "mlp"},
        train={"rounds": rounds, "clients_per_round": cohort, "local_steps": 10, "batch_size": 10},
        privacy={"kind": "local", "epsilon": "uniform"},
        aggregate={"rule": rule},
        run={"workers": 1},
    )
    with tempfile.TemporaryDirectory() as folder:
        history = tacit.run(experiment, data=rows, out=Path(folder) / "run", page=False)
        kept = (Path(folder) / "run" / "checkpoint.safetensors").stat().st_size / 2**20
    shares, whole = [], []
    for part in (history.rounds[1 : 1 + WINDOW], history.rounds[-WINDOW:]):
        shares.append(statistics.median(r["seconds_server"] / r["seconds_train"] for r in part))
        whole.append(statistics.median(r["seconds"] for r in part))
    early, late = (f"{100 * share:6.1f} %" for share in shares)
    ends = f"late / early round {whole[1] / whole[0]:5.2f}   checkpoint {kept:7.1f} MiB"
    return f"{rule:18} server / clients {early} ->{late}   {ends}"


def main() -> None:
    """Prints a line for each rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=2000)
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--features", type=int, default=784)
    parser.add_argument("--rules", default=",".join(name for name in rules.names() if name != "robust"))
    asked = parser.parse_args()
    rows = data(asked.clients, asked.features)
    for rule in asked.rules.split(","):
        print(measure(rule, rows, asked.cohort, asked.rounds), flush=True)


if __name__ == "__main__":
    main()
