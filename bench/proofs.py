"""What proofs cost: proving and checking reports, in units of sealing them, one core, ratios of the best of `--repeats` turns.

Sealing (randomisers included), proving and checking take turns, for every size of report and every number of reports that are
checked together. Tables are made beforehand, as for all reports but a process's first, and no proof is remembered. `one by one`
is what finding a forger costs: the equation of all, and each report's own.

    python bench/proofs.py [--key-bits 3072] [--sizes 1 7 30 100] [--reports 1 2 5 10] [--repeats 5] [--json FILE]
    python bench/proofs.py --key-bits 2048 --sizes 1 --reports 1 2 --repeats 1  # small
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tacit.crypto.keys import generate
from tacit.crypto.paillier import SIZES, PublicKey, Randomisers
from tacit.crypto.proofs import Claim, balanced, comb, equation, hold_together, proof_bytes, prove

SHAPES = ("ordinary", "short-exponent")
AIMS = {"proving": 1.5, "checking": 0.5}  # ordinary keys, times sealing


class Clock:
    """The best time of each step, in seconds of the processor."""

    def __init__(self):
        self.best: dict[Any, float] = {}

    def __call__(self, name: Any, work: Callable[[], Any]) -> Any:
        began = time.process_time()
        result = work()
        spent = time.process_time() - began
        self.best[name] = min(spent, self.best.get(name, spent))
        return result


def sealed(public: PublicKey, source: Randomisers, size: int) -> tuple[list, tuple, list[int]]:
    """A report's ciphertexts, the numbers behind their randomisers, and the messages."""
    messages = [(1 << public.plaintext_bits - 8) + i for i in range(size)]
    values, secret = zip(*source.take_known(size), strict=True)
    return public.seal_with(messages, values), secret, messages


def turn(clock: Clock, public: PublicKey, source: Randomisers, size: int, reports: list[int]) -> None:
    """Seals, proves and checks once."""
    claims, proofs = [], []
    for number in range(max(reports)):
        ciphertexts, secret, messages = clock("sealing", lambda: sealed(public, source, size))
        claim = Claim(public, "run", 0, f"client-{number}", "told", ciphertexts)
        proof = clock("proving", lambda c=claim, m=messages, s=secret: prove(c, m, s))
        claims.append(claim)
        proofs.append(proof)

    def equations(count: int) -> list:
        return [equation(c, p, seed=c.seed()) for c, p in zip(claims[:count], proofs[:count], strict=True)]

    for count in reports:
        held = clock(count, lambda n=count: hold_together(public, equations(n)))
        held &= clock(("alone", count), lambda n=count: all(balanced(public, [one], [1]) for one in equations(n)))
        if not held:
            sys.exit("A proof does not hold.")


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each shape and size."""
    rows = []
    for shape in SHAPES:
        public = generate(bits=options.key_bits, shape=shape).public
        source = Randomisers(public, expected=10_000, workers=1)
        source.warm()
        comb(public)
        clocks = {size: Clock() for size in options.sizes}
        for _ in range(options.repeats):
            for size, clock in clocks.items():
                turn(clock, public, source, size, options.reports)
        for size, clock in clocks.items():
            seal = clock.best["sealing"]
            checks = {n: clock.best[n] / n / seal for n in options.reports}
            alone = {n: (clock.best[n] + clock.best["alone", n]) / n / seal for n in options.reports}
            row = {"shape": shape, "size": size, "ms": 1000 * seal, "checking": checks, "one by one": alone}
            rows.append(row | {"proving": 1 + clock.best["proving"] / seal, "bytes": proof_bytes(public)})
    return rows


def main() -> None:
    """Prints the ratios, and where the aims are missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--key-bits", type=int, choices=SIZES, default=3072)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 7, 30, 100])
    parser.add_argument("--reports", type=int, nargs="+", default=[1, 2, 5, 10])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = measure(options)
    heads = [f"checked, {n} together" for n in options.reports]
    last = options.reports[-1]
    table = Table("key", "ciphertexts", "sealed, ms", "with its proof", *heads, f"one by one, {last}")
    for row in rows:
        cells = [f"{ratio:.2f}" for ratio in (row["proving"], *row["checking"].values(), row["one by one"][last])]
        table.add_row(row["shape"], str(row["size"]), f"{row['ms']:.1f}", *cells)
    console = Console(width=150)
    console.print(table)
    for row in rows:
        missed = [f"{n} together" for n, ratio in row["checking"].items() if ratio > AIMS["checking"]]
        missed += ["proving"] if row["proving"] > AIMS["proving"] else []
        if missed and row["shape"] == "ordinary":
            console.print(f"{row['size']} ciphertexts: above the aim at {', '.join(missed)}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
