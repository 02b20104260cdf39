"""The tuned local row of "Local or central": a search over what the row was never tuned for, then the best setting on other seeds.

    python experiments/local_row.py --out runs/local-row            # finished runs are kept

`mnist-central` with record-level local DP at the same epsilon: learning rate, clip and local steps are searched on one seed, by the
mean accuracy of the last ten rounds on the public test rows, and the best is run on others. The search is no part of the printed
epsilon: MNIST is public, and whoever searches on private rows pays for it (`tacit tune`).
"""

import argparse
import itertools
import json
from pathlib import Path
from statistics import mean

LAST = 10


def accuracy(place: Path, *, rate: float, clip: float, epochs: int, seed: int, rounds: int, data: str) -> float:
    """The accuracy of one run, or of a finished one."""
    import tacit

    if not (place / "summary.json").exists():
        changes = [
            'privacy.kind="local"',
            f"train.learning_rate={rate}",
            f"privacy.clip={clip}",
            f"train.local_epochs={epochs}",
            f"train.rounds={rounds}",
            f"run.seed={seed}",
            *([f'data.path="{data}"'] if data else []),
        ]
        tacit.run(tacit.Experiment.load("mnist-central", tuple(changes)), out=place, force=True)
    records = [json.loads(line) for line in (place / "rounds.jsonl").read_text().splitlines()]
    return mean(record["accuracy"] for record in records[-LAST:])


def main() -> None:
    """Prints every setting of the search, and the best on the seeds that the search has not seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="runs/local-row")
    parser.add_argument("--rates", default="0.5,1,2")
    parser.add_argument("--clips", default="0.5")
    parser.add_argument("--epochs", default="1,2")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--then", default="0")
    parser.add_argument("--data", default="")
    given = parser.parse_args()
    known = {"rounds": given.rounds, "data": given.data}
    grid = itertools.product(
        *([float(x) for x in text.split(",")] for text in (given.rates, given.clips, given.epochs))
    )
    found = {}
    for rate, clip, epochs in grid:
        setting = {"rate": rate, "clip": clip, "epochs": int(epochs)}
        place = Path(given.out) / f"rate{rate}_clip{clip}_epochs{int(epochs)}_seed{given.seed}"
        found[tuple(setting.items())] = accuracy(place, **setting, seed=given.seed, **known)
        print(setting, f"{found[tuple(setting.items())]:.4f}", flush=True)
    best = dict(max(found, key=lambda setting: found[setting]))
    print("best:", best)
    for seed in filter(None, given.then.split(",")):
        place = Path(given.out) / f"best_seed{seed}"
        print("seed", seed, f"{accuracy(place, **best, seed=int(seed), **known):.4f}", flush=True)


if __name__ == "__main__":
    main()
