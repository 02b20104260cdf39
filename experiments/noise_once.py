"""Noise once against noise at every client: the same records, budgets and model, the mean of the last ten rounds.

    python experiments/noise_once.py --seeds 0,1,2                                    # 30 clients x 1,200 MNIST rows, LogR
    python experiments/noise_once.py --clients 20 --rows 100 --budgets 1.0 --rounds 100 --rate 1 --ways "local;distributed;none"
    python experiments/noise_once.py --partitions iid,labels --ways "local;local, pfa;central, cap 1" --workers 16 --device cuda
    python experiments/noise_once.py --seeds 100,101 --ways central --rounds 50,100,200 --rate 1,2,4 --table tuned.csv
    python experiments/noise_once.py --clients 4 --rows 30 --budgets 2.0 --rounds 3 --data 'name="digits"'  # small

Ways: `local` (random-effects; behind a comma another rule), `central` and `distributed` of records, `none`; behind a comma `cap 4`
or `no cap` instead of the default cap, and `half` where half of the clients collude. As many may be absent as --absent says: shares
are sized for the others. The partition `labels` is two shards a client; the loosest budgets go to the clients with the highest
labels. Several --rounds and --rate are tried with each other. A --table gets a line for every run; those in it are not repeated.
"""

import argparse
import csv
import json
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import astuple, dataclass, fields
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import mean

LAST = 10  # rounds that accuracy is averaged over
LOCAL = {"rounds": 100, "local_steps": 10, "averaging": 0.9}
RATES = {"logr": 0.1, "cnn": 0.2}  # of local: chosen on seeds 100 to 102, as in pfa_paper.py
OPTIONS = {
    name: {"split": "top", "share": 0.1} for name in ("pfa", "public-only")
}  # the released code's public clients
OPTIONS["pfa"] |= {"reading": "code"}
NO_CAP = 1e9
PHYSICAL = {"logr": 65536, "cnn": 4096}  # rows at once on a device


@dataclass(frozen=True)
class Run:
    """One run, by what tells it from the others of a table."""

    data: str
    model: str
    partition: str
    budgets: str
    way: str
    rounds: int
    rate: float
    seed: int


def experiment(run: Run, given: argparse.Namespace) -> dict:
    """The tables of one run."""
    epsilon = float(run.budgets) if run.budgets.replace(".", "").isdigit() else run.budgets
    data = {"name": "mnist", "clients": given.clients, "examples_per_client": given.rows, "partition": run.partition}
    data |= {"alpha": 0.3} if run.partition == "dirichlet" else {}
    data |= {key: json.loads(value) for key, _, value in (text.partition("=") for text in given.data)}
    if run.partition == "labels":
        data |= {"partition": "shards", "shards_per_client": 2}
        epsilon = _following_labels(data, epsilon, run.seed)
    kind, *details = run.way.split(", ")
    train = {"rounds": run.rounds, "learning_rate": run.rate, "averaging": 0.9, "local_steps": 1}
    train |= {"views": given.views} if given.views and kind != "none" else {}
    train |= {"physical_batch": PHYSICAL.get(run.model, 4096)} if given.device != "cpu" else {}
    made = {"data": data, "model": {"name": run.model}}
    made |= {"run": {"seed": run.seed, "workers": 1, "device": given.device, "evaluate_every": given.every}}
    if kind == "none":
        return made | {"train": train | {"sampling_rate": 1.0}, "privacy": {"kind": "none"}}
    privacy = {"kind": kind, "epsilon": epsilon, "delta": 1e-5, "clip": 1.0}
    if kind == "local":
        train |= LOCAL | {"rounds": min(LOCAL["rounds"], run.rounds), "learning_rate": given.local_rate}
        rule = {"rule": details[0], **OPTIONS.get(details[0], {})} if details else {}
        return made | {"train": train | {"sampling_rate": RATES[run.model]}, "privacy": privacy, "aggregate": rule}
    privacy |= {"unit": "record"}
    for detail in details:
        if "cap" in detail:
            privacy |= {"rate_cap": NO_CAP if detail == "no cap" else float(detail.removeprefix("cap "))}
    if kind == "distributed":
        half = "half" in details or given.colluding == "half"
        privacy |= {"fewest_reports": given.clients - given.absent}
        privacy |= {"colluding": given.clients // 2 if half else int(given.colluding)}
    return made | {"train": train, "privacy": privacy}


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


def accuracy(run: Run, given: argparse.Namespace) -> float:
    """One run; its mean accuracy over the last rounds that were evaluated."""
    import tacit

    out = Path(given.out) / "-".join(str(part) for part in astuple(run)).replace(", ", "-").replace(" ", "-")
    tacit.run(tacit.Experiment(**experiment(run, given)), out=out, force=True, page=False)
    records = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    return mean(record["accuracy"] for record in records[-LAST:] if "accuracy" in record)


def grid(given: argparse.Namespace) -> list[Run]:
    """The runs that were asked for, seed by seed."""
    data = dict(text.partition("=")[::2] for text in given.data).get("name", '"mnist"').strip('"')
    rounds, rates = [int(one) for one in given.rounds.split(",")], [float(one) for one in given.rate.split(",")]
    settings = product(map(int, given.seeds.split(",")), given.partitions.split(","), given.budgets.split(","))
    return [
        Run(f"{data} {given.clients} x {given.rows}", given.model, partition, budgets, way, many, rate, seed)
        for seed, partition, budgets in settings
        for way in given.ways.split(";")
        for many, rate in product(rounds, rates)
    ]


def reached(runs: Sequence[Run], given: argparse.Namespace) -> Iterable[tuple[Run, float]]:
    """Every run with its accuracy, as it ends; after --seconds none begins."""
    stop, waiting = time.monotonic() + given.seconds, list(reversed(runs))
    if given.workers == 1:
        while waiting and time.monotonic() < stop:
            run = waiting.pop()
            yield run, accuracy(run, given)
        return
    with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool:
        busy = {}
        while busy or (waiting and time.monotonic() < stop):
            while waiting and len(busy) < given.workers and time.monotonic() < stop:
                run = waiting.pop()
                busy[pool.submit(accuracy, run, given)] = run
            done = next(as_completed(busy))
            yield busy.pop(done), done.result()


def main() -> None:
    """A line for each way in each setting: the accuracy of every seed."""
    given, found = arguments(), dict[Run, float]()
    table = Path(given.table) if given.table else None
    if table and table.exists():
        for *words, value in list(csv.reader(table.open()))[1:]:
            kinds = (field.type for field in fields(Run))
            found[Run(*(kind(word) for kind, word in zip(kinds, words, strict=True)))] = float(value)
    elif table:
        table.write_text(",".join([field.name for field in fields(Run)] + ["accuracy"]) + "\n")
    runs = grid(given)
    for run, value in reached([run for run in runs if run not in found], given):
        found[run] = value
        if table:
            with table.open("a", newline="") as lines:
                csv.writer(lines).writerow([*astuple(run), f"{value:.4f}"])
        print(*astuple(run), f"{value:.4f}", sep=", ", flush=True)
    rows: dict[tuple, list[float]] = {}
    for run in runs:
        if run in found:
            rows.setdefault(astuple(run)[:-1], []).append(found[run])
    for (*setting, way, rounds, rate), each in rows.items():
        where = f"{', '.join(setting)}, {rounds} rounds at {rate:g}"
        print(f"{where:70} {way:24} {mean(each):.3f}   {' / '.join(f'{one:.3f}' for one in each)}")


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default="local;central;central, no cap;distributed;none")
    parser.add_argument("--partitions", default="iid")
    parser.add_argument("--budgets", default="mixgauss1")
    parser.add_argument("--model", default="logr")
    parser.add_argument("--views", type=int, default=0)
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--rows", type=int, default=1200)
    parser.add_argument("--rounds", default="300")
    parser.add_argument("--rate", default="2", help="learning rates of noise once, chosen on seed 100")
    parser.add_argument("--local-rate", type=float, default=0.5, help="the learning rate of local, chosen likewise")
    parser.add_argument("--colluding", default="1", help="how many, or half")
    parser.add_argument("--absent", type=int, default=0)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--workers", type=int, default=1, help="runs at once")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--every", type=int, default=1, help="rounds from one evaluation to the next")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no run begins")
    parser.add_argument("--data", action="append", default=[], help="key=value of [data] for every run, as JSON")
    parser.add_argument("--table", help="a CSV file that gets every run")
    parser.add_argument("--out", default="runs/noise-once")
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
