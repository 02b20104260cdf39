"""Clients that opt out (epsilon = inf) beside private ones, under local DP: nobody, 5 % of them, everybody.

    python experiments/opted_out.py --seeds 0,1,2                        # MNIST, 40 clients x 300 rows, epsilon 1
    python experiments/opted_out.py --data fashion-mnist --partition shards --rules random-effects,inverse-variance,mean
    python experiments/opted_out.py --data digits --clients 20 --rows 40 --rounds 2 --seeds 0   # small

The share that opts out is that of FedHDP (Aldaghri, Mahdavifar, Beirami, arXiv:2110.15252). `none` is kind = "none" with the rule
mean, and the same steps.
"""

import argparse
import json
import math
import tempfile
from pathlib import Path
from statistics import mean

LAST = 5  # rounds that accuracy is averaged over


def experiment(given: argparse.Namespace, epsilons: list[float], rule: str | None, seed: int) -> dict:
    """The tables of one run; without epsilons, one that promises nothing."""
    data = {
        "name": given.data,
        "clients": given.clients,
        "examples_per_client": given.rows,
        "partition": given.partition,
    }
    train = {"rounds": given.rounds, "local_steps": given.steps, "sampling_rate": 0.1, "learning_rate": given.rate}
    privacy = {"kind": "local", "epsilon": epsilons, "delta": 1e-5, "clip": 1.0} if epsilons else {"kind": "none"}
    aggregate = {"rule": rule} if rule else {}
    return {
        "data": data,
        "train": train | {"averaging": 0.9},
        "privacy": privacy,
        "aggregate": aggregate,
        "run": {"seed": seed, "workers": 1},
    }


def accuracy(tables: dict) -> float:
    """Its mean accuracy over the last rounds."""
    import tacit

    with tempfile.TemporaryDirectory() as folder:
        tacit.run(tacit.Experiment(**tables), out=Path(folder) / "run", page=False)
        records = [json.loads(line) for line in (Path(folder) / "run" / "rounds.jsonl").read_text().splitlines()]
    return mean(record["accuracy"] for record in records[-LAST:])


def main() -> None:
    """A line for every way: the accuracy of each seed, and their mean."""
    given = arguments()
    out = max(1, round(given.share * given.clients))
    private = [given.epsilon] * given.clients
    some = [given.epsilon] * (given.clients - out) + [math.inf] * out
    ways = [("nobody opts out", private, "mean")]
    ways += [(f"{out} of {given.clients} opt out, {rule}", some, rule) for rule in given.rules.split(",")]
    ways += [("none", [], "mean")]
    for name, epsilons, rule in ways:
        found = [accuracy(experiment(given, epsilons, rule, seed)) for seed in map(int, given.seeds.split(","))]
        print(f"{name:48} {mean(found):.3f}   {' '.join(f'{one:.3f}' for one in found)}", flush=True)


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--partition", default="iid")
    parser.add_argument("--rules", default="random-effects,inverse-variance,weighted,pfa,mean")
    parser.add_argument("--seeds", default="0")
    for key, value in {"clients": 40, "rows": 300, "rounds": 20, "steps": 10}.items():
        parser.add_argument(f"--{key}", type=int, default=value)
    for key, value in {"epsilon": 1.0, "share": 0.05, "rate": 0.2}.items():
        parser.add_argument(f"--{key}", type=float, default=value)
    return parser.parse_args()


if __name__ == "__main__":
    main()
