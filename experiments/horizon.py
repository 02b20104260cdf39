"""Over how many rounds should `random-effects` let noise average out? Accuracy by horizon, for runs of several lengths.

    python experiments/horizon.py --model logr --rounds 20,60 --seeds 100,101,102
    python experiments/horizon.py --model cnn --partition shards --rounds 20,60 --device cuda --jobs 2
    python experiments/horizon.py --rounds 1 --horizons 20,mean --seeds 100 --jobs 1 \
        --data 'name="digits"' --data examples_per_client=40 --data min_size=2  # small

Thirty clients hold MNIST under Dirichlet(.3) or the paper's shards; their epsilons are spread evenly by ratio from .5 to 16.
"""

import argparse
import itertools
import json
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import mean

import numpy as np

CLIENTS = 30
LAST = 5  # rounds that accuracy is averaged over
TRAIN = {
    "logr": {"local_steps": 10, "learning_rate": 0.5, "sampling_rate": 0.1, "averaging": 0.9},
    "cnn": {"local_steps": 10, "learning_rate": 0.4, "sampling_rate": 0.2, "averaging": 0.8},
}
DATA = {"name": "mnist", "clients": CLIENTS, "examples_per_client": 1200, "alpha": 0.3}


def work(case: tuple[str, int, int], given: argparse.Namespace) -> float:
    """The accuracy of one run, or of a finished one."""
    import tacit

    horizon, rounds, seed = case
    out = Path(given.out) / "_".join((given.model, given.partition, given.budgets, *map(str, case)))
    if not (out / "summary.json").exists():
        spread = np.random.default_rng(seed).permutation(np.geomspace(0.5, 16, CLIENTS)).round(4).tolist()
        aggregate = {"rule": "mean"} if horizon == "mean" else {"rule": "random-effects"}
        if horizon not in ("mean", "default"):
            aggregate["horizon"] = float(horizon)
        partition = {"partition": given.partition, **({"min_size": 100} if given.partition == "dirichlet" else {})}
        experiment = tacit.Experiment(
            data={
                **{k: v for k, v in DATA.items() if k != "alpha" or given.partition == "dirichlet"},
                **partition,
                **{key: json.loads(value) for key, _, value in (text.partition("=") for text in given.data)},
            },
            model={"name": given.model},
            train={"rounds": rounds, **TRAIN[given.model]},
            privacy={
                "kind": "local",
                "delta": 1e-5,
                "clip": 1.0,
                "epsilon": spread if given.budgets == "spread" else given.budgets,
            },
            aggregate=aggregate,
            run={"seed": seed, "device": given.device, "workers": 1},
        )
        tacit.run(experiment, out=out, force=True)
    records = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    return mean(record["accuracy"] for record in records[-LAST:])


def arguments() -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="logr", choices=sorted(TRAIN))
    parser.add_argument("--partition", default="dirichlet", choices=["dirichlet", "shards", "iid"])
    parser.add_argument("--budgets", default="spread", help="spread, or the name of a distribution")
    parser.add_argument("--rounds", default="20,60")
    parser.add_argument("--horizons", default="default,20,60,200,600,2000,6000,20000,mean")
    parser.add_argument("--seeds", default="100,101,102")
    parser.add_argument("--out", default="runs/horizon")
    parser.add_argument("--data", action="append", default=[], help="key=value of [data] for every run, as JSON")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    return parser.parse_args()


def main() -> None:
    """Prints a table: rounds by horizons, the mean over seeds."""
    given = arguments()
    horizons, rounds = given.horizons.split(","), [int(n) for n in given.rounds.split(",")]
    cases = list(itertools.product(horizons, rounds, map(int, given.seeds.split(","))))
    with ProcessPoolExecutor(given.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(work, case, given): case for case in cases}
        found = {futures[future]: future.result() for future in as_completed(futures)}
    print(f"| {given.model}, {given.partition}, {given.budgets} | " + " | ".join(horizons) + " |")
    print("|---" * (len(horizons) + 1) + "|")
    for n in rounds:
        cells = [[value for (h, r, _), value in found.items() if (h, r) == (horizon, n)] for horizon in horizons]
        print(f"| {n} rounds | " + " | ".join(f"{mean(values):.3f}" for values in cells) + " |")


if __name__ == "__main__":
    main()
