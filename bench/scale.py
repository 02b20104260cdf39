"""From 100 to 100,000 clients: the time of a round with 10 of them, and the memory beyond their data.

60 examples of 8x8 features a client (random), logistic regression, local DP, 10 clients in every round, by `tacit.run` with its
ledger, log and checkpoint. Every client has its own budget and the noise that follows from it (`--noise same`: one multiplier for
all), combined by the default rule or `--rule`. Every population runs in a fresh process. The data's bytes are those of the float32
features and int64 labels of all clients, once. Memory is the peak of the main process plus what its workers hold beyond it.
How rounds grow with their number, rule by rule, is growth.py.

    python bench/scale.py --clients 1000000 --examples 4 --repeats 1        # how long a million clients take to start
    python bench/scale.py --clients 20 --rounds 1 --repeats 1 --examples 20  # small
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from peers.contender import quiet
from rich.console import Console
from rich.table import Table

FEATURES, CLASSES, TEST = 64, 10, 200
COHORT, BATCH = 10, 10
NOISE_MULTIPLIER = 4.0  # with --noise same: rounds differ in nothing but the population; every budget affords a few
LEVELS = 17  # pixels are 0..16, as in scikit-learn's digits
WARM_UP = 5  # the first rounds fill caches, above all of prices
MOST_BEYOND = 3.0  # GB beyond the data that 100,000 clients may take
PATIENCE = 0.5  # seconds to wait for a quiet machine before a round
GB = 1e9


def write_data(path: Path, clients: int, examples: int) -> int:
    """Writes random rows with the client of each; returns the bytes they take in memory as Tacit keeps them."""
    rng, rows = np.random.default_rng(0), clients * examples
    np.savez(
        path,
        x=rng.integers(0, LEVELS, (rows, FEATURES), dtype=np.uint8),
        y=rng.integers(0, CLASSES, rows),
        client=rng.permutation(np.repeat(np.arange(clients, dtype=np.int32), examples)),
        x_test=rng.integers(0, LEVELS, (TEST, FEATURES), dtype=np.uint8),
        y_test=rng.integers(0, CLASSES, TEST),
    )
    return rows * (FEATURES * np.dtype(np.float32).itemsize + np.dtype(np.int64).itemsize)


def one(path: str, clients: int, asked: argparse.Namespace) -> dict[str, Any]:
    """Runs one population in this process and measures it."""
    import tacit

    rounds, noise = asked.rounds, {"noise_multiplier": NOISE_MULTIPLIER} if asked.noise == "same" else {}
    experiment = tacit.Experiment(
        data={
            "name": "npz", "path": path, "partition": asked.partition, "clients": clients,
            "classes": CLASSES, "divide_by": LEVELS - 1,
        },
        model={"name": "logr"},
        train={
            "rounds": rounds + WARM_UP, "clients_per_round": COHORT, "local_steps": 10,
            "batch_size": min(BATCH, asked.examples),
        },
        privacy={"kind": "local", "epsilon": "uniform", **noise},
        aggregate={"rule": asked.rule} if asked.rule else {},
    )  # fmt: skip
    began, seconds, beyond = time.perf_counter(), [], [0]
    ready: list[float] = []
    worked: list[float] = []

    def observe(record: dict[str, Any]) -> None:
        now = time.perf_counter()
        seconds.append(now - ready[-1])
        if record["round"] == rounds + WARM_UP - 1:
            beyond[0] = held_by_workers()
        quiet(PATIENCE)
        ready.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:

        def begins(*_: Any) -> None:
            worked.append(time.process_time())
            ready.append(time.perf_counter())

        tacit.run(experiment, out=f"{folder}/run", observe=observe, ready=begins)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + beyond[0]
    return {"setup": ready[0] - began, "worked": worked[0], "seconds": seconds[WARM_UP:], "peak": peak}


def held_by_workers() -> int:
    """Bytes that this process's children hold and it does not: all shares of shared pages, less what it has itself."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    if not children.exists():
        return 0
    shares = sum(_rollup(pid, "Pss:") for pid in (str(os.getpid()), *children.read_text().split()))
    return max(0, shares - _rollup(str(os.getpid()), "Rss:"))


def _rollup(pid: str, key: str) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(key))


def measure(clients: int, asked: argparse.Namespace) -> dict[str, Any]:
    """One population in a process of its own; "failed" says why there are no numbers."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.npz"
        data = write_data(path, clients, asked.examples)
        command = [sys.executable, __file__, "--one", str(path), "--clients", str(clients)]
        for key in ("rounds", "partition", "examples", "noise", "rule"):
            command += [f"--{key}", str(getattr(asked, key))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    row = {"clients": clients, "data": data}
    if done.returncode:
        return row | {"failed": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}
    return row | json.loads(done.stdout.splitlines()[-1])


def joined(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Several runs of one population: all their rounds, the shorter set-up, the larger peak."""
    row = {"clients": runs[0]["clients"], "data": runs[0]["data"]}
    if failed := [run["failed"] for run in runs if "failed" in run]:
        return row | {"failed": failed[0]}
    seconds, peak = [second for run in runs for second in run["seconds"]], max(run["peak"] for run in runs)
    row |= {key: min(run[key] for run in runs) for key in ("setup", "worked")} | {"seconds": seconds, "peak": peak}
    return row | {"best": min(seconds), "median": statistics.median(seconds), "beyond": peak - row["data"]}


def table(rows: list[dict[str, Any]]) -> Table:
    """Times as ratios to the smallest population."""
    shown = Table(title=f"a round of {COHORT} clients among many")
    for column in (
        "clients",
        "time / smallest's",
        "by medians",
        "best, ms",
        "set-up, s",
        "of processor",
        "data, GB",
        "beyond it, GB",
    ):
        shown.add_column(column, justify="right")
    base = next((row for row in rows if "best" in row), None)
    for row in rows:
        if base is None or "failed" in row:
            shown.add_row(f"{row['clients']:,}", f"failed: {row['failed']}")
            continue
        ratios = [f"{row[key] / base[key]:.2f}" for key in ("best", "median")]
        memory = [f"{row[key] / GB:.2f}" for key in ("data", "beyond")]
        begins = [f"{row[key]:.1f}" for key in ("setup", "worked")]
        shown.add_row(f"{row['clients']:,}", *ratios, f"{1000 * row['best']:.1f}", *begins, *memory)
    return shown


def verdict(rows: list[dict[str, Any]]) -> str:
    """Whether the largest population stays within its memory."""
    last = rows[-1]
    if "failed" in last:
        return f"MISSED {last['clients']:,} clients could not be run"
    beyond = last["beyond"] / GB
    met = "met   " if beyond < MOST_BEYOND else "MISSED"
    return f"{met} {last['clients']:,} clients: {beyond:.2f} GB beyond the data (target < {MOST_BEYOND:g})"


def main(args: argparse.Namespace) -> None:
    if args.one:
        (clients,) = map(int, args.clients.split(","))
        print(json.dumps(one(args.one, clients, args)))
        return
    console = Console(width=None if sys.stdout.isatty() else 120)
    sizes = [int(clients) for clients in args.clients.split(",")]
    passes = [[measure(clients, args) for clients in sizes] for _ in range(args.repeats)]
    rows = [joined(list(runs)) for runs in zip(*passes, strict=True)]
    console.print(table(rows))
    console.print(verdict(rows), highlight=False)
    if args.json:
        args.json.write_text(json.dumps({"partition": args.partition, "rows": rows}, indent=2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="100,1000,10000,100000", help="population sizes, separated by commas")
    parser.add_argument("--partition", choices=("natural", "iid"), default="natural")
    parser.add_argument("--rounds", type=int, default=30, help="rounds that count")
    parser.add_argument("--repeats", type=int, default=2, help="processes for each population, taken in turns")
    parser.add_argument("--examples", type=int, default=60, help="of a client")
    parser.add_argument("--noise", choices=("differs", "same"), default="differs")
    parser.add_argument("--rule", default="", help="aggregate.rule; nothing: the default for budgets that differ")
    parser.add_argument("--json", type=Path, help="also write everything measured to this file")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # a data file: measure it in this process
    main(parser.parse_args())
