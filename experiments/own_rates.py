"""Whole clients under a trusted server: each at the rate that its own epsilon pays for, against one rate for all at the smallest.

    python experiments/own_rates.py                                      # MNIST, 2,000 clients x 30 rows, LogR, 30 rounds
    python experiments/own_rates.py --partitions labels --seeds 0,1,2
    python experiments/own_rates.py --data digits --clients 40 --rows 20 --rounds 3 --partitions iid   # small

Budgets are 54 % / 37 % / 9 % of --epsilons (1, 3 and 9), dealt at random (`iid`), or with two label shards a client and the
loosest budgets at the clients with the highest labels (`labels`). Ways: one rate (privacy.level = "minimum"), own rates with the
default cap, cap 2 and no cap, and no privacy.
"""

import argparse
from statistics import mean

import numpy as np
from opted_out import accuracy

SHARES = (0.54, 0.37, 0.09)
WAYS = {
    "one rate": {"level": "minimum"},
    "own rates": {},
    "own rates, cap 2": {"rate_cap": 2.0},
    "own rates, no cap": {"rate_cap": 1e9},
    "no privacy": None,
}


def budgets(data: dict, partition: str, epsilons: list[float], *, seed: int) -> list[float]:
    """Everybody's epsilon."""
    import tacit
    from tacit.engine.assemble import clients

    counts = np.rint(np.cumsum(SHARES) * data["clients"]).astype(int)
    values = np.repeat(epsilons, np.diff(counts, prepend=0))
    if partition == "iid":
        return np.random.default_rng(seed).permutation(values).tolist()
    _, _, population = clients(tacit.Experiment(data=data, privacy={"kind": "none"}, run={"seed": seed}))
    labels, found = [float(population[k].y.numpy().mean()) for k in range(len(population))], np.empty(len(values))
    found[np.argsort(labels, kind="stable")] = values
    return found.tolist()


def main() -> None:
    """A line for every way in every partition: the mean accuracy, and each seed's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for key, value in {"data": "mnist", "partitions": "iid,labels", "seeds": "0", "ways": ";".join(WAYS)}.items():
        parser.add_argument(f"--{key}", default=value)
    for key, value in {"clients": 2000, "rows": 30, "rounds": 30}.items():
        parser.add_argument(f"--{key}", type=int, default=value)
    parser.add_argument("--clip", type=float, default=0.5)
    parser.add_argument("--epsilons", default="1,3,9")
    given = parser.parse_args()
    epsilons = [float(one) for one in given.epsilons.split(",")]
    for partition in given.partitions.split(","):
        data = {"name": given.data, "clients": given.clients, "examples_per_client": given.rows}
        data |= {"partition": "iid"} if partition == "iid" else {"partition": "shards", "shards_per_client": 2}
        for way in given.ways.split(";"):
            found, more = [], WAYS[way]
            for seed in map(int, given.seeds.split(",")):
                train = {"rounds": given.rounds, "local_steps": 5, "batch_size": 10, "learning_rate": 0.1}
                epsilon = budgets(data, partition, epsilons, seed=seed)
                privacy = {"kind": "central", "epsilon": epsilon, "delta": 1e-5, "clip": given.clip} | (more or {})
                privacy = {"kind": "none"} if more is None else privacy
                run = {"seed": seed, "workers": 1, "at_once": True}
                found.append(accuracy({"data": data, "train": train, "privacy": privacy, "run": run}))
            print(f"{partition:8} {way:20} {mean(found):.3f}   {' '.join(f'{one:.3f}' for one in found)}", flush=True)


if __name__ == "__main__":
    main()
