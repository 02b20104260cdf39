"""Differential privacy as a defence, beside clip only, weak noise and robust rules: the study of Naseri, Hayes, De Cristofaro 2022
(arXiv:2009.03561), whose abstract says that local and central DP mitigate backdoors and white-box membership inference, and that
property inference is not prevented.

    python experiments/defences.py --out runs/defences                  # digits, 20 clients, on CPU; finished runs are kept
    python experiments/defences.py --out runs/defences --minutes 9      # stops then; the same command goes on
    python experiments/defences.py --full --device cuda --out runs/defences-mnist   # MNIST, 1,000 clients x 60 rows
    python experiments/defences.py --out runs/small --seeds 1 --jobs 1 --defences none --attacks replacement  # small

Backdoor columns are the share of triggered public rows that are taken for the attackers' class, in the last 10 rounds; membership
is the AUC of LiRA on the final model and of FedMIA on updates, property that of Melis et al. on updates. No ε covers any of it.
The table is `table.md` and, as a page, `table.html`.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tacit.errors import TacitError
from tacit.experiment import Experiment
from tacit.lab import attacks
from tacit.lab.attacks.backdoor import untouched
from tacit.lab.compare.grid import Cell, Task, tasks_of
from tacit.lab.compare.results import Row, estimate, rows_of
from tacit.lab.worker import run_all
from tacit.report.page import write_matrix
from tacit.table import Estimate, with_interval

BACKDOORS = ("replacement", "dba", "edge-case")
ATTACKS = (*BACKDOORS, "membership", "property")
NOBODY = "nobody malicious"
EPSILON, DELTA = 8.0, 1e-5
TRIMMED = 0.2  # the share of clients that robust rules are made to withstand; a tenth is malicious
PROPERTY = {"classes": [1]}  # does this client have ones?

SMALL = {
    "data": {"name": "digits", "clients": 20},
    "model": {"name": "logr"},
    "train": {"rounds": 30, "local_steps": 5, "sampling_rate": 0.25, "learning_rate": 0.5},
}
FULL = {
    "data": {"name": "mnist", "clients": 1000, "examples_per_client": 60},
    "model": {"name": "logr"},
    "train": {
        "rounds": 100,
        "local_steps": {"epochs": 2},
        "batch_size": 20,
        "learning_rate": 0.2,
        "clients_per_round": 100,
    },
}
SIZES: dict[str, dict[str, Any]] = {
    "small": {"base": SMALL, "clip": 0.5, "noise": 0.01, "start": 5, "models": 8},
    "full": {"base": FULL, "clip": 0.5, "noise": 0.001, "start": 20, "models": 16},
}
# of [privacy], [aggregate] and [attack]; C and s are the study's clip and weak noise
DEFENCES: dict[str, Callable[[float, float], dict[str, Any]]] = {
    "none": lambda C, s: {},
    "clip only": lambda C, s: {"aggregate": {"rule": "norm-bound", "bound": C}},
    "weak DP (no epsilon)": lambda C, s: {"aggregate": {"rule": "norm-bound", "bound": C, "noise": s}},
    "local DP, all": lambda C, s: {"privacy": local(), "attack": {"noise": "own"}},
    "local DP, honest only": lambda C, s: {"privacy": local(), "attack": {"noise": "none"}},
    "central DP": lambda C, s: {"privacy": {"kind": "central", "epsilon": EPSILON, "delta": DELTA, "clip": C}},
    "median": lambda C, s: {"aggregate": {"rule": "median"}},
    "trimmed mean": lambda C, s: {"aggregate": {"rule": "trimmed-mean", "share": TRIMMED}},
    "Krum": lambda C, s: {"aggregate": {"rule": "krum", "share": TRIMMED}},
}


def local() -> dict[str, Any]:
    """DP-SGD at every client, per record."""
    return {"kind": "local", "epsilon": EPSILON, "delta": DELTA, "clip": 1.0}


def experiment(size: str, defence: str, attack: str, seed: int, device: str) -> Experiment:
    """One run of the study: `attack` is a backdoor's kind, or none of them."""
    known = SIZES[size]
    said = DEFENCES[defence](known["clip"], known["noise"])
    malicious = {"kind": attack, "clients": 0.1, "start": known["start"]} | said.get("attack", {})
    return Experiment(
        name=f"{defence}, {attack}",
        **known["base"],
        privacy=said.get("privacy", {"kind": "none"}),
        aggregate=said.get("aggregate", {}),
        run={"seed": seed, "device": device, "workers": 1},
        **({"attack": malicious} if attack in BACKDOORS else {}),
    )


def cells(args: argparse.Namespace) -> Iterator[tuple[str, str, Cell]]:
    """(defence, backdoor, its runs) of everything that is a run by itself; nobody malicious first."""
    size = "full" if args.full else "small"
    for defence in args.defences:
        for attack in (NOBODY, *(name for name in BACKDOORS if name in args.attacks)):
            if attack == NOBODY and defence == "local DP, honest only":
                continue  # without malicious clients it is the other local DP
            runs = tuple(experiment(size, defence, attack, seed, args.device) for seed in range(args.seeds))
            words = f"{defence}, {attack}"
            yield defence, attack, Cell(words, words.replace(", ", "-").replace(" ", "_"), {}, runs)


def trained(args: argparse.Namespace, ends: float) -> list[tuple[str, str, Row]]:
    """Every backdoor run that is not finished yet, side by side, until time is up."""
    found = list(cells(args))
    tasks = tasks_of(args.out, [cell for _, _, cell in found])
    waiting = [task for task in tasks if not task.finished]
    print(f"{len(waiting)} of {len(tasks)} runs are left.", flush=True)

    def watch(task: Task | None, event: dict[str, Any]) -> None:
        if task is not None and event["kind"] in ("done", "failed"):
            print(f"{task.cell.label}, seed {task.experiment.run.seed}: {event.get('sentence', 'done')}", flush=True)
        if time.monotonic() > ends:
            raise KeyboardInterrupt

    failures: dict[Path, str] = {}
    try:
        if waiting and time.monotonic() < ends:
            failures = run_all(waiting, jobs=args.jobs, logs=args.out / "log", watch=watch)
    except KeyboardInterrupt:
        if time.monotonic() < ends:
            raise
    rows = {row.cell.slug: row for row in rows_of(tasks, failures)}
    return [(defence, attack, rows[cell.slug]) for defence, attack, cell in found]


def inferred(args: argparse.Namespace, ends: float) -> dict[tuple[str, str], list[Estimate]]:
    """What membership (LiRA, the server's view) and property inference find, by defence; when time is up, what is known."""
    size, found = "full" if args.full else "small", {}
    options: dict[str, dict[str, Any]] = {"membership": {"models": SIZES[size]["models"]}, "property": PROPERTY}
    wanted = {"membership": ("LiRA", "server"), "property": ("all looks",)}
    for defence in args.defences:
        for name in (name for name in ("membership", "property") if name in args.attacks):
            if defence == "local DP, honest only":
                continue
            values: dict[str, list[float]] = {}
            for seed in range(args.seeds):
                chosen = experiment(size, defence, name, seed, args.device)
                place = args.out / "attacks" / f"{defence.replace(' ', '_')}-{seed}"
                if time.monotonic() > ends and not (place / f"attack-{name}.json").exists():
                    continue
                finding = attacks.attack(name, chosen, out=place, options=options[name], jobs=args.jobs)
                print(f"{defence}, {name}, seed {seed}: done", flush=True)
                for one in finding.estimates:
                    if one.of in wanted[name] and one.name == finding.estimates[0].name:
                        values.setdefault(one.of, []).append(one.value)
            known = (estimate(numbers, (0.0, 1.0)) for numbers in values.values() if len(numbers) == args.seeds)
            found[defence, name] = [one for one in known if one is not None]
    return found


def table(
    rows: list[tuple[str, str, Row]], seen: dict[tuple[str, str], list[Estimate]], args: argparse.Namespace
) -> str:
    """The matrix as Markdown: defences by attacks."""
    measured: dict[tuple[str, str], str] = {}
    for defence, attack, row in rows:
        measured[defence, attack] = with_interval(row.score if attack == NOBODY else row.backdoor)
        if attack == BACKDOORS[0]:
            measured[defence, "main"] = with_interval(row.score)
    clean = {attack: untouched_by(rows, attack, args) for attack in args.attacks if attack in BACKDOORS}
    measured |= {key: " / ".join(with_interval(one) for one in ones) for key, ones in seen.items() if ones}
    columns = ["main", *args.attacks]
    heads = ["defence", f"accuracy, {NOBODY}", f"accuracy under {BACKDOORS[0]}", *args.attacks]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    first = [measured.get(("none", NOBODY), "–"), "–", *(clean.get(name, "–") for name in args.attacks)]
    lines.append(f"| none, and {NOBODY} | " + " | ".join(first) + " |")
    for defence in args.defences:
        own = "local DP, all" if defence == "local DP, honest only" else defence
        cells = [measured.get((own, NOBODY), "–")]
        cells += [measured.get((defence if name in (*BACKDOORS, "main") else own, name), "–") for name in columns]
        lines.append(f"| {defence} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def page(
    rows: list[tuple[str, str, Row]], seen: dict[tuple[str, str], list[Estimate]], args: argparse.Namespace
) -> None:
    """The matrix as table.html."""
    by = {(defence, attack): row for defence, attack, row in rows}
    titles = {"membership": ("membership LiRA AUC", "membership server AUC"), "property": ("property AUC",)}
    found = []
    for defence in args.defences:
        own = "local DP, all" if defence == "local DP, honest only" else defence
        backdoors = {name: by[defence, name].backdoor for name in args.attacks if (defence, name) in by}
        reached = {f"{name} backdoor": known for name, known in backdoors.items() if known is not None}
        for name in (name for name in titles if seen.get((own, name))):
            reached |= dict(zip(titles[name], seen[own, name], strict=False))
        found.append((defence, by[own, NOBODY].score if (own, NOBODY) in by else None, reached))
    words = f"{'MNIST among 1,000 clients' if args.full else 'Digits among 20 clients'}; {args.seeds} seeds."
    notes = [
        f"The accuracy is that of models with {NOBODY}.",
        f"Local and central DP have ε = {EPSILON:g}, δ = {DELTA:g}.",
    ]
    said = {"name": "Privacy as a defence", "metric": f"accuracy, {NOBODY}", "words": words, "notes": notes}
    write_matrix(args.out / "table.html", rows=found, **said)


def untouched_by(rows: list[tuple[str, str, Row]], attack: str, args: argparse.Namespace) -> str:
    """What triggered rows are taken for by models that nobody attacked and nothing defends, as the column of an attack has it."""
    runs = [run for defence, name, row in rows if (defence, name) == ("none", NOBODY) for run in row.ended]
    size = "full" if args.full else "small"
    values = [untouched(experiment(size, "none", attack, run.seed, args.device), run.folder) for run in runs]
    return with_interval(estimate(values, (0.0, 1.0)))


def main() -> int:
    """Does what is left of the study and prints its table; exit code 1 where time was up, or a run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--full", action="store_true", help="MNIST among 1,000 clients instead of digits among 20")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=1e6, help="stop after so long; finished runs are kept")
    parser.add_argument("--defences", type=lambda text: text.split(";"), default=list(DEFENCES))
    parser.add_argument("--attacks", type=lambda text: text.split(","), default=list(ATTACKS))
    args = parser.parse_args()
    ends = time.monotonic() + 60 * args.minutes
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        rows = trained(args, ends)
        seen = inferred(args, ends)
    except KeyboardInterrupt:
        print("Stopped: what is finished is kept, and the same command goes on.", file=sys.stderr)
        return 130
    except TacitError as error:
        print(error, file=sys.stderr)
        return 1
    text = table(rows, seen, args)
    if time.monotonic() > ends:
        print("Time is up: what is finished is kept and in the table, and the same command goes on.", file=sys.stderr)
    (args.out / "table.md").write_text(text, "utf-8")
    page(rows, seen, args)
    failed = {
        f"{row.cell.label}, seed {run.seed}": run.failure for _, _, row in rows for run in row.runs if run.failure
    }
    (args.out / "failed.json").write_text(json.dumps(failed, indent=1), "utf-8")
    print(text)
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
