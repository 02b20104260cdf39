"""The tables of a comparison: for people (terminal, Markdown, LaTeX) and for programs (CSV, JSON).
A row per cell; `compare.csv` has one per run, `rounds.csv` per round of every run, `differences.csv` per pair of cells."""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from tacit import store
from tacit.engine.evaluate import BACKDOOR
from tacit.engine.history import filled, scalars
from tacit.engine.malicious import BADGE
from tacit.lab.compare import differences, ledger, results
from tacit.lab.compare.findings import AUC
from tacit.lab.compare.grid import for_some_alone, headings, short, size, text
from tacit.lab.compare.results import Row, Run
from tacit.parts import metrics
from tacit.table import COUNT, EPSILON, INTERVAL, Column, Kind, Table, for_json, with_interval

SCORE = "score"  # of a record as it is read: the headline under another name
SIZE, SECONDS = Kind(size), Kind("{:.1f}".format)
MACHINE = ("up", "down", "seconds")  # of the machine, not of the method: left out of papers
PROMISE = ("unit", "adversary", "relation", "delta")
COPIED = (
    "test_loss",
    "rounds",
    "stopped",
    "clients",
    "parameters",
    "seconds",
    "uplink_bytes",
    "downlink_bytes",
    "out_of_budget",
)


def cells(rows: Sequence[Row]) -> Table:
    """The table of the cells. Each unit of privacy has its own column: their epsilons are not comparable."""
    keys, known, promises, metric = (
        list(rows[0].cell.varied),
        results.units(rows),
        results.statements(rows),
        rows[0].metric,
    )
    found = [Column(name, [_value(row, key, known) for row in rows]) for key, name in _named(keys).items()]
    found = found or [Column("experiment", [row.cell.label for row in rows])]
    heading = f"{metrics.words(metric)} ({results.last_rounds(results.lengths(rows))})"
    found.append(Column(heading, [row.score for row in rows], INTERVAL, f"{metric}_last_10"))
    found.append(Column("", [row.final for row in rows], INTERVAL, f"{metric}_final"))
    found += results.client_columns(rows)
    keys_of = {results.BACKDOORED: f"{BACKDOOR}_last_10"}
    found += [
        Column(f"{name}*", [row.attacks.get(name) for row in rows], INTERVAL, keys_of.get(name, name.replace(" ", "_")))
        for name in attacked(rows)
    ]
    for unit in known:
        spent = [row.epsilon(unit) or (_no_promise(row) if row.guarantee is None else None) for row in rows]
        found.append(Column(f"epsilon spent per {unit}", spent, EPSILON, f"epsilon_per_{unit}"))
    if len(promises) > 1:
        which = [results.which_promise(row, promises) if row.guarantee else _no_promise(row) for row in rows]
        found.append(Column("guarantee", which))
    traffic = {"up": "uplink_bytes", "down": "downlink_bytes", "seconds": "seconds", "": "rounds"}
    for name, key in traffic.items():
        kind = {"": COUNT, "seconds": SECONDS}.get(name, SIZE)
        found.append(Column(name, [row.mean(key) if row.ended else None for row in rows], kind, key))
    return Table(found, notes(rows))


def _named(keys: Sequence[str]) -> dict[str, str]:
    return dict(zip(keys, headings(keys), strict=True))


def _no_promise(row: Row) -> str | None:
    return "no promise" if row.ended else None


def _value(row: Row, key: str, known: list[str]) -> str | None:
    value = row.cell.varied[key]
    if value is None:
        return None
    of_unit = f" per {row.guarantee['unit']}" if key == "privacy.epsilon" and row.guarantee and len(known) > 1 else ""
    return short(text(value)) + of_unit


def attacked(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.attacks))


def score(row: Row) -> str:
    return with_interval(row.score)


def notes(rows: Sequence[Row]) -> list[str]:
    name = metrics.words(rows[0].metric)
    said = [f"{name[0].upper()}{name[1:]}: {_over(rows[0])} That of the final models is in table.csv."]
    rare = sorted({row.cell.experiments[0].run.evaluate_every or 1 for row in rows})
    if rare[-1] > 1:
        often = " or ".join(map(str, rare))
        said.append(f"Models were tested every {often} rounds and after the last: means are over tested rounds.")
    said += for_some_alone([row.cell for row in rows])
    said += differences.notes(rows)
    said += results.client_notes(rows)
    if attacked(rows):
        said.append(_attacked(rows))
    promises = results.statements(rows)
    if not promises:
        return [*said, "No privacy is promised."]
    if len(promises) == 1:
        said.append(f"Epsilon: smallest to largest spent by a client, {promises[0]}.")
    else:
        said.append("Epsilon: smallest to largest spent by a client; the promises differ, each row names its own:")
        said += [f"({number}) {promise}." for number, promise in enumerate(promises, 1)]
    same = {(row.guarantee["unit"], row.guarantee["relation"]) for row in rows if row.guarantee}
    if len(promises) > 1 and len(same) == 1:
        ((unit, relation),) = same
        said.append(
            f"All epsilons are per {unit} ({relation}), so they are compared like for like; against whom differs."
        )
    if len(results.units(rows)) > 1:
        said.append("Epsilons per record and per client measure different things, so no figure has an epsilon axis.")
    return [*said, *ledger.notes(rows)]


def _over(row: Row) -> str:
    seeds, ends = len(row.runs), [f"{end:g}" for end in metrics.bounds(row.metric) if math.isfinite(end)]
    if seeds == 1:
        return "one seed, so no interval."
    if seeds < results.FEWEST_SEEDS:
        return f"mean over {seeds} seeds, which are too few for an interval."
    cut = f", cut at {' and '.join(ends)}" if ends else ""
    return f"mean over {seeds} seeds ± {100 * results.CONFIDENCE:g} % interval (Student t{cut})."


def _attacked(rows: Sequence[Row]) -> str:
    found = [f"* What an attack reached: measured on a simulation, {BADGE}."]
    names = attacked(rows)
    if results.BACKDOORED in names:
        found.append(
            "A backdoor accuracy is the share of test rows with the trigger that are taken for the attackers' class; an epsilon is"
            " about honest clients. Clipping does nearly all of the work of DP as a defence: compare it with clip only"
            " (aggregate.rule=norm-bound)."
        )
    if any(name.endswith(AUC) for name in names):
        found.append("An AUC of 0.5 is guessing, 1 is certainty.")
    if any(name.startswith("property ") for name in names):
        found.append("A property of many rows is not what an epsilon per record hides.")
    if names != [results.BACKDOORED] and len(rows[0].runs) == 1:
        found.append("Of one seed, intervals are the attacks' own, over their records or clients.")
    return " ".join(found)


def troubles(row: Row) -> list[str]:
    found = [f"seed {run.seed} failed: {run.failure.rstrip('.')}" for run in row.runs if run.failure]
    planned = row.cell.experiments[0].train.rounds
    early = [len(run.rounds) for run in row.ended if len(run.rounds) < planned]
    if early:
        found.append(
            f"{len(early)} of {len(row.runs)} runs stopped for want of budget after {min(early)} of {planned} rounds"
        )
    return found


def _trouble(row: Row) -> str:
    failed = len(row.runs) - len(row.ended)
    return f"{failed} failed" if failed else "stopped early" if troubles(row) else ""


def _tables(rows: Sequence[Row], trouble: Sequence[str]) -> list[Table]:
    first, second = cells(rows), differences.table(rows)
    columns = [*first.columns, Column("trouble", trouble)] if any(trouble) else first.columns
    return [Table(columns, first.notes), *([second] if second.columns else [])]


def markdown(rows: Sequence[Row]) -> str:
    first, *more = _tables(rows, ["; ".join(troubles(row)) for row in rows])
    texts = "\n\n".join(one.markdown() for one in (first, *more))
    return f"{texts}\n\n" + "\n".join(f"- {note}" for note in first.notes) + "\n"


def show(rows: Sequence[Row], console: Console) -> None:
    """Prints the tables, what went wrong in which cell, and the notes."""
    first, *more = _tables(rows, [_trouble(row) for row in rows])
    for one in (first, *more):
        console.print(one.terminal(), crop=False, soft_wrap=True)
    for row in rows:
        for sentence in troubles(row):
            console.print(Text(f"{row.cell.label}: {sentence}", style="red"))
    for note in first.notes:
        console.print(Text(note, style="dim"))


def write(out: Path, rows: Sequence[Row]) -> None:
    known, found, pairs = results.units(rows), cells(rows), differences.table(rows)
    runs = [
        _varied(row) | {"folder": str(run.folder.relative_to(out))} | run_record(run, known, metric=row.metric)
        for row in rows
        for run in row.runs
    ]
    store.write(out / "compare.csv", store.csv_of(runs))
    store.write(out / "table.csv", store.csv_of(_flat(rows, found)))
    store.write(
        out / "differences.csv", store.csv_of([one.record() for one in differences.found(rows)], differences.KEYS)
    )
    store.write(out / "rounds.csv", store.csv_of(round_records(rows), ("cell", "seed", "round")))
    store.write(out / "table.md", markdown(rows).encode())
    store.write(out / "table.tex", found.latex(MACHINE).encode())
    store.write(out / "total.json", json.dumps([one.record() for one in ledger.totals(rows)], indent=1).encode())
    if pairs.columns:
        store.write(out / "differences.tex", pairs.latex().encode())


def _flat(rows: Sequence[Row], found: Table) -> list[dict[str, Any]]:
    records = []
    for row, numbers in zip(rows, found.records(), strict=True):
        promise, lost = row.guarantee or {}, [run for run in row.runs if run.failure]
        about = {key: promise.get(key) for key in PROMISE}
        failed = {"failed": "; ".join(f"seed {run.seed}: {run.failure}" for run in lost)}
        records.append(_varied(row) | {"runs": len(row.runs), "ended": len(row.ended)} | about | numbers | failed)
    return records


def _varied(row: Row) -> dict[str, Any]:
    return {"cell": row.cell.label} | {
        key: None if value is None else text(value) for key, value in row.cell.varied.items()
    }


def round_records(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A flat dict for every round of every run that ended, with its cell, what that varies and its seed: for pandas, seaborn or R.
    The other keys are those of a run's own rounds.csv; what a run does not have is None."""
    found = []
    for row in rows:
        for run in row.ended:
            unit = (run.guarantee or {}).get("unit")
            for record in run.rounds:
                numbers = {key: value for key, value in scalars(record, unit=unit).items() if key != SCORE}
                found.append(_varied(row) | {"seed": run.seed} | numbers)
    return filled(found)


def run_record(run: Run, known: Sequence[str], *, metric: str) -> dict[str, Any]:
    """All numbers of a run, flat; the columns of an epsilon carry its unit in their name."""
    summary = run.summary or {}
    noise, promise = summary.get("noise_multiplier") or {}, run.guarantee or {}
    scores = (run.score, run.final) if run.summary else (None, None)
    record: dict[str, Any] = {"seed": run.seed}
    record |= dict(zip((f"{metric}_last_10", f"{metric}_final"), scores, strict=True))
    record |= {} if run.backdoor is None else {f"{BACKDOOR}_last_10": run.backdoor}
    record |= results.client_record(run, metric=metric)
    record |= {key: summary.get(key) for key in COPIED}
    record |= {f"noise_multiplier_{which}": noise.get(which) for which in ("min", "median", "max")}
    record |= {key: promise.get(key) for key in PROMISE}
    for unit in known:
        spent = promise["epsilon"] if promise.get("unit") == unit else {}
        record |= {f"epsilon_per_{unit}_{which}": spent.get(which) for which in ("min", "median", "max")}
    return record | {"failed": run.failure}


def record(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The whole table for `--json`, with the runs of each cell and how it differs from others. What is infinite is "inf"."""
    pairs = [turned.record() for one in differences.found(rows) for turned in (one, one.turned())]
    found = []
    for row, numbers in zip(rows, cells(rows).records(), strict=True):
        label, promise = row.cell.label, row.guarantee
        always = (f"{row.metric}_last_10", f"{row.metric}_final", "uplink_bytes", "downlink_bytes", "seconds", "rounds")
        kept = {
            key: value
            for key, value in numbers.items()
            if not key.startswith("epsilon_per_") and (value is not None or key.removesuffix("_interval") in always)
        }
        own = [{key: value for key, value in one.items() if key != "cell"} for one in pairs if one["cell"] == label]
        one = {"cell": label, "varied": row.cell.varied, "runs": len(row.runs), "ended": len(row.ended)} | kept
        one["guarantee"] = {key: promise[key] for key in (*PROMISE, "epsilon")} if promise else None
        one["failed"] = {str(run.seed): run.failure for run in row.runs if run.failure}
        one["differences"] = own
        one["seeds"] = [run_record(run, results.units([row]), metric=row.metric) for run in row.runs]
        found.append(for_json(one, infinite=str))
    return found
