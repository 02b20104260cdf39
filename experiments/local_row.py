"""The tuned local row of "Local or central": a search over what the row was never tuned for, then the best setting on other seeds.

    python experiments/local_row.py --out runs/local-row                              # finished runs are kept
    python experiments/local_row.py --out runs/local-row --device cuda --jobs 3
    python experiments/local_row.py --out runs/small --rates 1 --epochs 1 --rounds 1 \
        --set data.name=digits --set data.clients=5 --set data.examples_per_client=40 --set train.clients_per_round=5  # small

`mnist-central` with record-level local DP at the same epsilon: learning rate, clip and local steps are searched on one seed, by the
mean accuracy of the last ten rounds on the public test rows, and the best is run on others. The search is no part of the printed
epsilon: MNIST is public, and whoever searches on private rows pays for it (`tacit tune`).
"""

import argparse
import itertools
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import mean, stdev

LAST = 10


def accuracy(setting: tuple[float, float, int, int], *, out: str, rounds: int, more: list[str], device: str) -> float:
    """The accuracy of one run (learning rate, clip, local epochs, seed), or of a finished one."""
    import tacit

    rate, clip, epochs, seed = setting
    place = Path(out) / f"rate{rate}_clip{clip}_epochs{epochs}_seed{seed}"
    if not (place / "summary.json").exists():
        changes = [
            'privacy.kind="local"',
            f"train.learning_rate={rate}",
            f"privacy.clip={clip}",
            f"train.local_steps={{epochs = {epochs}}}",
            f"train.rounds={rounds}",
            f"run.seed={seed}",
            f'run.device="{device}"',
            *more,
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
    parser.add_argument("--set", action="append", default=[], help="section.key=value for every run, as in `tacit run`")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    measured = partial(accuracy, out=given.out, rounds=given.rounds, more=given.set, device=given.device)
    rates, clips, epochs = (given.rates.split(","), given.clips.split(","), given.epochs.split(","))
    grid = list(itertools.product(map(float, rates), map(float, clips), map(int, epochs), [given.seed]))
    with ProcessPoolExecutor(given.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = {}
        for setting, value in zip(grid, pool.map(measured, grid), strict=True):
            found[setting] = value
            print("rate {}, clip {}, epochs {}:".format(*setting), f"{value:.4f}", flush=True)
        best = max(found, key=lambda setting: found[setting])
        print("best: rate {}, clip {}, epochs {}".format(*best))
        seeds = [int(seed) for seed in given.then.split(",") if seed]
        values = list(pool.map(measured, [(*best[:3], seed) for seed in seeds]))
    for seed, value in zip(seeds, values, strict=True):
        print("seed", seed, f"{value:.4f}")
    if len(values) > 1:
        print(f"mean {mean(values):.4f} ± {stdev(values):.4f} (standard deviation)")


if __name__ == "__main__":
    main()
