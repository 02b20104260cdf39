"""One federated round, side by side: Tacit, a bare torch loop, Flower, pfl-research, and with local DP the same with Opacus.

10 clients x 600 examples, batch 50, 12 local steps, all clients in every round; with DP: Poisson rate 50/600, clip 1, noise
multiplier 1. Every contender is a process of its own that does one round when told to (peers/turns.py). They take turns in random
order; the first rounds are not counted, nor are those with a busy machine before or after them; the best times are compared.
Tacit's time is of its whole path: ledger, evaluation on 100 rows, log and checkpoint included. Nobody else evaluates or writes
anything. Random MNIST-shaped data, or MNIST if $TACIT_DATA is set.

    python bench/round.py [--rounds 10] [--models mlp,cnn] [--skip flower,pfl] [--json FILE]
    python bench/round.py --rounds 1 --models mlp --skip flower,pfl,opacus,ghost --patience 0  # small
    python bench/round.py --rounds 1 --models mlp --skip flower,pfl --patience 0  # small, with opacus
    python bench/round.py --rounds 1 --models mlp --skip pfl,opacus,ghost --patience 0  # small, with opacus, ray
"""

import argparse
import contextlib
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np
from peers.contender import IDLE, Contender, Failed, idle_share, quiet
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
PFL = HERE.parent / ".venv-pfl"
PFL_NEEDS = ("torch==2.13.0", "pfl[pytorch]==0.6.0")  # 0.6.0 pins dp-accounting < 0.6, so it cannot live with Tacit
CLIENTS, EXAMPLES, TEST = 10, 600, 100
WARM_UP = 2
PLAIN, DP = "none", "local DP"
TACIT, BARE, FLOWER_OPACUS = "Tacit", "bare torch loop", "Flower + Opacus"
ORDINARY = "torch's layout"  # Tacit's CNN keeps channels innermost; so do all others without DP, but for this row

Cell = tuple[str, str]  # model, privacy


@dataclass
class Row:
    """One contender in one cell: its times, or why there are none."""

    model: str
    privacy: str
    name: str
    seconds: list[float] = field(default_factory=list)
    calm: list[bool] = field(default_factory=list)  # whether the machine was idle before and after that round
    startup: float | None = None
    failed: str | None = None

    @property
    def counted(self) -> list[float]:
        """The calm rounds, or all where there is none: then no verdict follows."""
        return [s for s, calm in zip(self.seconds, self.calm, strict=True) if calm] or self.seconds

    @property
    def best(self) -> float:
        return min(self.counted)

    @property
    def median(self) -> float:
        return statistics.median(self.counted)


def contenders(model: str, privacy: str, data: Path, rounds: int, skip: set[str]) -> list[Contender]:
    """Who takes part in a cell: (kind, name, interpreter, script, training and further arguments)."""
    python, pfl = sys.executable, str(PFL / "bin" / "python")
    # with channels innermost Opacus's gradients of the CNN are wrong: it gets the layout on which they are exact
    exact = "" if model == "mlp" else f"--model {model}-ordinary"
    plain = [
        ("tacit", TACIT, python, "tacit_round.py", "plain"),
        ("bare", BARE, python, "bare.py", "plain"),
        ("bare", "bare torch loop, 1 thread", python, "bare.py", "plain --threads 1"),
        ("ordinary", f"bare torch loop, {ORDINARY}", python, "bare.py", f"plain --model {model}-ordinary"),
        ("flower", "Flower", python, "flower_app.py", "plain"),
        ("pfl", "pfl-research", pfl, "pfl_round.py", "plain"),
    ]
    private = [
        ("tacit", TACIT, python, "tacit_round.py", "dp"),
        ("bare", "bare torch loop (no DP)", python, "bare.py", "plain"),
        ("opacus", "Opacus in a loop", python, "bare.py", f"opacus {exact}"),
        ("ghost", "Opacus in a loop, ghost", python, "bare.py", f"ghost {exact}"),
        ("flower", FLOWER_OPACUS, python, "flower_app.py", f"opacus {exact}"),
        ("ghost", "Flower + Opacus, ghost", python, "flower_app.py", f"ghost {exact}"),
    ]
    rest = f"--data {data} --model {model} --rounds {rounds} --train"
    without = skip | ({"ordinary"} if model == "mlp" else set())
    return [
        Contender(name, [program, str(HERE / "peers" / script), *rest.split(), *train.split()])
        for kind, name, program, script, train in (plain if privacy == PLAIN else private)
        if kind not in without and not ("flower" in skip and script == "flower_app.py")
    ]


def measure(cell: Cell, taking_part: list[Contender], *, rounds: int, patience: float) -> list[Row]:
    """Lets the contenders of a cell take turns."""
    rows = {c.name: Row(*cell, c.name) for c in taking_part}
    order = random.Random(0)
    with contextlib.ExitStack() as stack:
        for contender in taking_part:
            stack.callback(contender.stop)
            turn(contender, rows[contender.name], first=True)
        for number in range(1, WARM_UP + rounds):
            for contender in order.sample(taking_part, len(taking_part)):
                if rows[contender.name].failed is None:
                    turn(contender, rows[contender.name], counts=number >= WARM_UP, patience=patience)
    return list(rows.values())


def turn(contender: Contender, row: Row, *, first: bool = False, counts: bool = False, patience: float = 0.0) -> None:
    """One round of one contender; the first includes its start."""
    try:
        if first:
            row.startup = contender.start()
            return
        before = quiet(patience)
        seconds = contender.round()
        if counts:
            row.seconds.append(seconds)
            row.calm.append(before and idle_share() >= IDLE)
    except Failed as error:
        row.failed, row.seconds, row.calm = str(error), [], []


def write_data(path: Path) -> str:
    """Writes rows for every client and a small test set; returns what they are."""
    rows, rng = CLIENTS * EXAMPLES, np.random.default_rng(0)
    if os.environ.get("TACIT_DATA"):
        from tacit.data.images import read as load

        mnist = load("mnist")
        x, y, kind = mnist.x[: rows + TEST].numpy(), mnist.y[: rows + TEST].numpy(), "MNIST"
    else:
        x = rng.random((rows + TEST, 1, 28, 28), dtype=np.float32)
        y, kind = rng.integers(0, 10, rows + TEST), "random"
    client = np.repeat(np.arange(CLIENTS), EXAMPLES)
    np.savez(path, x=x[:rows], y=y[:rows], client=client, x_test=x[rows:], y_test=y[rows:])
    return kind


def prepare_pfl() -> str | None:
    """Makes the environment of pfl-research if it is not there. Returns why it cannot be used, or None."""
    python = PFL / "bin" / "python"
    if (
        python.exists()
        and subprocess.run([python, "-c", "import pfl.model.pytorch"], capture_output=True).returncode == 0
    ):
        return None
    steps = ([sys.executable, "-m", "venv", PFL], [python, "-m", "pip", "install", "--quiet", *PFL_NEEDS])
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
            return lines[-1] if lines else f"exit code {done.returncode}"
    return None


def table(rows: list[Row]) -> Table:
    """Every time as a ratio to Tacit's of the same cell."""
    shown = Table("model", "privacy", "contender", title="one round: ratios of the best times")
    for column in ("time / Tacit's", "by medians", "Tacit's / time", "best, ms", "calm", "start-up, s"):
        shown.add_column(column, justify="right")
    for row in rows:
        tacit = find(rows, (row.model, row.privacy), TACIT)
        ratios = ["-"] * 3
        if row.seconds and tacit:
            ratios = [
                f"{row.best / tacit.best:.2f}",
                f"{row.median / tacit.median:.2f}",
                f"{tacit.best / row.best:.2f}",
            ]
        best = f"{1000 * row.best:.0f}" if row.seconds else f"failed: {row.failed}"
        calm = f"{sum(row.calm)}/{len(row.calm)}"
        start = "-" if row.startup is None else f"{row.startup:.1f}"
        shown.add_row(
            row.model, row.privacy, row.name, *ratios, best, calm, start, end_section=row is last_of_cell(rows, row)
        )
    return shown


def last_of_cell(rows: list[Row], row: Row) -> Row:
    """The last row of the same model and privacy."""
    return [other for other in rows if (other.model, other.privacy) == (row.model, row.privacy)][-1]


def find(rows: list[Row], cell: Cell, name: str) -> Row | None:
    """The row of a contender, if it has times."""
    return next((r for r in rows if (r.model, r.privacy, r.name) == (*cell, name) and r.seconds), None)


def targets(rows: list[Row]) -> list[str]:
    """What Tacit promises, and what this run shows."""
    lines = []
    for model in ("mlp", "cnn"):
        ours, bare = (find(rows, (model, PLAIN), name) for name in (TACIT, BARE))
        if ours and bare:
            lines.append(verdict(f"{model}, no DP: Tacit / bare torch loop", ours, bare, at_most=0.8))
    for model, least in (("mlp", 10.0), ("cnn", 3.0)):
        ours, theirs = (find(rows, (model, DP), name) for name in (TACIT, FLOWER_OPACUS))
        if ours and theirs:
            lines.append(verdict(f"{model}, local DP: Flower + Opacus / Tacit", theirs, ours, at_least=least))
    return lines


def verdict(what: str, upper: Row, lower: Row, *, at_most: float = math.inf, at_least: float = 0.0) -> str:
    """One target in one line. A busy machine slows threads that wait for each other most, so it gives no verdict."""
    ratio = upper.best / lower.best
    bound = f"<= {at_most:g}" if at_most < math.inf else f">= {at_least:g}"
    word = "met   " if at_least <= ratio <= at_most else "MISSED"
    if not (any(upper.calm) and any(lower.calm)):
        word = "BUSY  "
    return f"{word} {what} = {ratio:.2f} (target {bound})"


def record(rows: list[Row], data: str) -> dict:
    """Everything measured, as plain values."""
    packages = ("tacit", "torch", "opacus", "flwr", "ray")
    rounds = [vars(row) | ({"best": row.best} if row.seconds else {}) for row in rows]
    found = {}
    for package in packages:
        with contextlib.suppress(Exception):
            found[package] = version(package)
    return {"data": data, "cores": os.cpu_count(), "versions": found, "rows": rounds, "targets": targets(rows)}


def save(place: Path | None, rows: list[Row], data: str) -> None:
    """Writes what is known so far, so that a run that is stopped leaves something."""
    if place is not None:
        place.write_text(json.dumps(record(rows, data), indent=2))


def main(args: argparse.Namespace) -> None:
    console, skip, rows = Console(width=None if sys.stdout.isatty() else 150), set(args.skip.split(",")), []
    refused = None if "pfl" in skip else prepare_pfl()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        kind = write_data(data)
        for privacy in (PLAIN, DP):
            for model in args.models.split(","):
                without = skip | ({"pfl"} if refused else set())
                taking_part = contenders(model, privacy, data, WARM_UP + args.rounds, without)
                rows += measure((model, privacy), taking_part, rounds=args.rounds, patience=args.patience)
                if refused and privacy == PLAIN:
                    rows.append(Row(model, privacy, "pfl-research", failed=refused))
                save(args.json, rows, kind)
    console.print(table(rows))
    console.print(
        f"data: {kind}; best of {args.rounds} rounds each, taken in turns; start-up ends with the first round",
        highlight=False,
    )
    for line in targets(rows):
        console.print(line, highlight=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="rounds of each contender that count")
    parser.add_argument("--models", default="mlp,cnn")
    parser.add_argument("--skip", default="", help="of bare,ordinary,opacus,ghost,flower,pfl, separated by commas")
    parser.add_argument(
        "--patience", type=float, default=3.0, help="seconds to wait for a quiet machine before a round"
    )
    parser.add_argument("--json", type=Path, help="also write everything measured to this file")
    main(parser.parse_args())
