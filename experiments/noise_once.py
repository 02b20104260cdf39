"""Noise once against noise at every client: the same records, budgets and model, the mean of the last ten rounds.

    python experiments/noise_once.py --seeds 0,1,2                                    # 30 clients x 1,200 MNIST rows, LogR
    python experiments/noise_once.py --clients 20 --rows 100 --budgets 1.0 --seeds 0 --rounds 100 --rate 1
    python experiments/noise_once.py --partitions iid,shards --budgets mixgauss1,mixgauss3,uniform --seeds 0,1,2
    python experiments/noise_once.py --partitions iid,labels --ways "local;central, cap 1;central" --workers 16
    python experiments/noise_once.py --clients 4 --rows 30 --budgets 2.0 --rounds 3 --seeds 0 --data 'name="digits"'  # small

Ways: `local` (random-effects), `central` and `distributed` of records, `none`; behind a comma, `cap 4` or `no cap`
instead of the default cap, and `half` where half of the clients collude. As many may be absent as --absent says: shares are sized
for the others. The partition `labels` is two shards a client; the loosest budgets go to the clients with the highest labels.
"""

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import mean

LAST = 10  # rounds that accuracy is averaged over
LOCAL = {"rounds": 100, "local_steps": 10, "sampling_rate": 0.1, "averaging": 0.9}
NO_CAP = 1e9


def experiment(way: str, partition: str, budgets: str, seed: int, given: argparse.Namespace) -> dict:
    """The tables of one run."""
    epsilon = float(budgets) if budgets.replace(".", "").isdigit() else budgets
    data = {"name": "mnist", "clients": given.clients, "examples_per_client": given.rows, "partition": partition}
    data |= {key: json.loads(value) for key, _, value in (text.partition("=") for text in given.data)}
    if partition == "labels":
        data |= {"partition": "shards", "shards_per_client": 2}
        epsilon = _following_labels(data, epsilon, seed)
    once = {"rounds": given.rounds, "local_steps": 1, "learning_rate": given.rate, "averaging": 0.9}
    made = {"data": data, "model": {"name": given.model}, "run": {"seed": seed, "workers": 1}}
    kind, *details = way.split(", ")
    if kind == "none":
        return made | {"train": once | {"sampling_rate": 1.0}, "privacy": {"kind": "none"}}
    privacy = {"kind": kind, "epsilon": epsilon, "delta": 1e-5, "clip": 1.0}
    if kind == "local":
        rounds = min(LOCAL["rounds"], given.rounds)
        return made | {"train": LOCAL | {"rounds": rounds, "learning_rate": given.local_rate}, "privacy": privacy}
    privacy |= {"unit": "record"}
    for detail in details:
        if "cap" in detail:
            privacy |= {"rate_cap": NO_CAP if detail == "no cap" else float(detail.removeprefix("cap "))}
    if kind == "distributed":
        half = "half" in details or given.colluding == "half"
        privacy |= {"fewest_reports": given.clients - given.absent}
        privacy |= {"colluding": given.clients // 2 if half else int(given.colluding)}
    return made | {"train": once, "privacy": privacy}


def _following_labels(data: dict, epsilon: str | float, seed: int) -> list[float]:
    """The same budgets, the loosest at the clients whose rows have the highest labels."""
    import numpy as np

    import tacit
    from tacit.engine.assemble import clients

    tables = {"data": data, "privacy": {"kind": "local", "epsilon": epsilon}, "run": {"seed": seed}}
    _, _, population = clients(tacit.Experiment(**tables))
    labels = [float(np.mean(population[k].y.numpy())) for k in range(len(population))]
    given = np.empty(len(labels))
    given[np.argsort(labels)] = np.sort(population.epsilons)
    return given.tolist()


def accuracy(way: str, partition: str, budgets: str, seed: int, given: argparse.Namespace) -> float:
    """One run; its mean accuracy over the last rounds."""
    import tacit

    tables = experiment(way, partition, budgets, seed, given)
    out = Path(given.out) / f"{way}-{partition}-{budgets}-{seed}".replace(", ", "-").replace(" ", "-")
    tacit.run(tacit.Experiment(**tables), out=out, force=True, page=False)
    records = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    return mean(record["accuracy"] for record in records[-LAST:])


def main() -> None:
    """A line for each way in each setting: the accuracy of every seed."""
    given = arguments()
    seeds, ways = [int(seed) for seed in given.seeds.split(",")], given.ways.split(";")
    settings = list(product(given.partitions.split(","), given.budgets.split(",")))
    runs = [(way, *setting, seed, given) for setting in settings for way in ways for seed in seeds]
    with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool:
        reached = (pool.map if given.workers > 1 else map)(accuracy, *zip(*runs, strict=True))
        for partition, budgets in settings:
            print(f"{partition}, epsilon {budgets}, seeds {given.seeds}")
            for way in ways:
                each = [next(reached) for _ in seeds]
                print(f"  {way:22} {mean(each):.3f}   {' / '.join(f'{one:.3f}' for one in each)}", flush=True)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default="local;central;central, no cap;distributed;none")
    parser.add_argument("--partitions", default="iid")
    parser.add_argument("--budgets", default="mixgauss1")
    parser.add_argument("--model", default="logr")
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--rows", type=int, default=1200)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--rate", type=float, default=2.0, help="the learning rate of noise once, chosen on seed 100")
    parser.add_argument("--local-rate", type=float, default=0.5, help="the learning rate of local, chosen likewise")
    parser.add_argument("--colluding", default="1", help="how many, or half")
    parser.add_argument("--absent", type=int, default=0)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--workers", type=int, default=1, help="runs at once")
    parser.add_argument("--data", action="append", default=[], help="key=value of [data] for every run, as JSON")
    parser.add_argument("--out", default="runs/noise-once")
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
