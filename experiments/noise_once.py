"""Noise once against noise at every client: the same records, budgets and model, the mean of the last ten rounds.

    python experiments/noise_once.py --seeds 0,1,2                                    # 30 clients x 1,200 MNIST rows, LogR
    python experiments/noise_once.py --clients 20 --rows 100 --budgets 1.0 --seeds 0 --rounds 100 --rate 1
    python experiments/noise_once.py --partitions iid,shards --budgets mixgauss1,mixgauss3,uniform --seeds 0,1,2
    python experiments/noise_once.py --clients 4 --rows 30 --budgets 2.0 --rounds 3 --seeds 0 --data 'name="digits"'  # small

Ways: `local` (random-effects, its own defaults), `central` and `distributed` of records (the default cap, and no cap), `none`. Half
of the clients collude where --colluding half is said; as many may be absent as --absent says (shares are sized for the others).
"""

import argparse
import json
import time
from pathlib import Path
from statistics import mean

LAST = 10  # rounds that accuracy is averaged over
LOCAL = {"rounds": 100, "local_steps": 10, "sampling_rate": 0.1, "learning_rate": 0.5, "averaging": 0.9}


def experiment(way: str, partition: str, budgets: str, seed: int, given: argparse.Namespace) -> dict:
    """The tables of one run."""
    epsilon = float(budgets) if budgets.replace(".", "").isdigit() else budgets
    data = {"name": "mnist", "clients": given.clients, "examples_per_client": given.rows, "partition": partition}
    data |= {key: json.loads(value) for key, _, value in (text.partition("=") for text in given.data)}
    once = {"rounds": given.rounds, "local_steps": 1, "learning_rate": given.rate, "averaging": 0.9}
    made = {"data": data, "model": {"name": given.model}, "run": {"seed": seed, "workers": 1}}
    kind, _, cap = way.partition(", ")
    if kind == "none":
        return made | {"train": once | {"sampling_rate": 1.0}, "privacy": {"kind": "none"}}
    privacy = {"kind": kind, "epsilon": epsilon, "delta": 1e-5, "clip": 1.0}
    if kind == "local":
        return made | {"train": LOCAL | {"rounds": min(LOCAL["rounds"], given.rounds)}, "privacy": privacy}
    privacy |= {"unit": "record"} | ({"rate_cap": 1e9} if cap else {})
    if kind == "distributed":
        privacy |= {"fewest_reports": given.clients - given.absent}
        privacy |= {"colluding": given.clients // 2 if given.colluding == "half" else int(given.colluding)}
    return made | {"train": once, "privacy": privacy}


def main() -> None:
    """A line for each run, and a table of the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default="local;central;central, no cap;distributed;none")
    parser.add_argument("--partitions", default="iid")
    parser.add_argument("--budgets", default="mixgauss1")
    parser.add_argument("--model", default="logr")
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--rows", type=int, default=1200)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--rate", type=float, default=2.0, help="the learning rate of noise once, chosen on seed 100")
    parser.add_argument("--colluding", default="1", help="how many, or half")
    parser.add_argument("--absent", type=int, default=0)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--data", action="append", default=[], help="key=value of [data] for every run, as JSON")
    parser.add_argument("--out", default="runs/noise-once")
    given = parser.parse_args()
    import tacit

    for partition in given.partitions.split(","):
        for budgets in given.budgets.split(","):
            print(f"{partition}, epsilon {budgets}, seeds {given.seeds}")
            for way in given.ways.split(";"):
                reached, began = [], time.perf_counter()
                for seed in map(int, given.seeds.split(",")):
                    tables = experiment(way, partition, budgets, seed, given)
                    out = Path(given.out) / f"{way}-{partition}-{budgets}-{seed}".replace(", ", "-").replace(" ", "-")
                    tacit.run(tacit.Experiment(**tables), out=out, force=True)
                    records = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
                    reached.append(mean(record["accuracy"] for record in records[-LAST:]))
                each = " / ".join(f"{one:.3f}" for one in reached)
                print(f"  {way:18} accuracy {each}   {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
