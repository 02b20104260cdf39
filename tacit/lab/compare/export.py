"""The numbers of a comparison for programs: `compare.csv` (a line per run), `table.csv` (one per cell), `differences.csv` (one per
pair of cells), `rounds.csv` (one per round of every run) and JSON."""

import csv
import io
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacit import store
from tacit.engine.evaluate import BACKDOOR, filled, scalars
from tacit.lab.compare import differences as difference_table
from tacit.lab.compare import results
from tacit.lab.compare.differences import HEADINGS, Difference, found
from tacit.lab.compare.grid import text
from tacit.lab.compare.ledger import together
from tacit.lab.compare.results import Row, Run, units
from tacit.lab.compare.table import Column, markdown, notes, table_columns

# The tables of a comparison for a paper: a `tabular` with booktabs' rules, to be read by \input; its notes are
# comments.

LEFT_OUT = ("up", "down", "seconds")  # of the machine, not of the method
HEAD = r"% needs \usepackage{booktabs}"
ESCAPED = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": r"\textbar{}",
    '"': "''",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    "…": r"\ldots{}",
    "ε": r"$\varepsilon$",
    "†": r"\dag{}",
    "‡": r"\ddag{}",
    "²": "$^2$",
} | {sign: f"\\{sign}" for sign in "&%$#_{}"}


def latex(rows: Sequence[Row]) -> str:
    """The table of the cells."""
    varied = len(rows[0].cell.varied) or 1
    kept = [column for column in table_columns(rows) if column[0] not in LEFT_OUT]
    return tabular(kept, texts=varied, notes=notes(rows))


def differences(rows: Sequence[Row]) -> str:
    """The table of the paired differences; empty where no two seeds can be paired."""
    found = difference_table.columns(rows)
    return tabular(found, texts=1, notes=difference_table.notes(rows)) if found else ""


def tabular(found: Sequence[Column], *, texts: int, notes: Sequence[str]) -> str:
    """Columns as a tabular: the first `texts` begin at the left, the others end at the right.

    >>> print(tabular([("rule", ["pfa_plus"]), ("accuracy", ["0.9 ± 0.1"])], texts=1, notes=["One seed."]))
    % needs \\usepackage{booktabs}
    % One seed.
    \\begin{tabular}{lr}
    \\toprule
    rule & accuracy \\\\
    \\midrule
    pfa\\_plus & 0.9 $\\pm$ 0.1 \\\\
    \\bottomrule
    \\end{tabular}
    <BLANKLINE>
    """
    lines = [[heading for heading, _ in found], *zip(*(words for _, words in found), strict=True)]
    heading, *rest = (" & ".join(map(escaped, line)) + r" \\" for line in lines)
    places = "l" * texts + "r" * (len(found) - texts)
    begin, end = rf"\begin{{tabular}}{{{places}}}", r"\end{tabular}"
    said = ["% " + " ".join(note.split()) for note in notes]
    return "\n".join([HEAD, *said, begin, r"\toprule", heading, r"\midrule", *rest, r"\bottomrule", end, ""])


def escaped(words: str) -> str:
    """A text as LaTeX prints it: nothing in it is a command.

    >>> print(escaped("50 % of {a_b} & \\\\input"))
    50 \\% of \\{a\\_b\\} \\& \\textbackslash{}input
    """
    plain = re.sub(r"(?<!\S)-(?=\d)", "−", " ".join(words.split()))  # of a number it is a minus, not a hyphen
    return "".join(ESCAPED.get(sign, sign) for sign in plain)


SCORE = "score"  # of a record as it is read: the headline under another name
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


def write(out: Path, rows: Sequence[Row]) -> None:
    """Writes compare.csv, table.csv, differences.csv, rounds.csv, table.md and table.tex; in together.json what all runs cost."""
    known = units(rows)
    runs = [
        _varied(row) | {"folder": str(run.folder.relative_to(out))} | run_record(run, known, metric=row.metric)
        for row in rows
        for run in row.runs
    ]
    store.write(out / "compare.csv", _csv(runs))
    store.write(out / "table.csv", _csv([_varied(row) | _flat(row_record(row), known) for row in rows]))
    store.write(out / "differences.csv", _csv([one.record() for one in found(rows)], keys=HEADINGS))
    store.write(out / "rounds.csv", _csv(round_records(rows), keys=("cell", "seed", "round")))
    store.write(out / "table.md", markdown(rows).encode())
    store.write(out / "together.json", json.dumps([one.record() for one in together(rows)], indent=1).encode())
    for name, text_of in (("table.tex", latex), ("differences.tex", differences)):
        if made := text_of(rows):
            store.write(out / name, made.encode())


def round_records(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A flat dict for every round of every run that ended, with its cell, what that varies and its seed: for pandas, seaborn or R.

    The other keys are those of a run's own rounds.csv; what a run does not have is None.
    """
    found = []
    for row in rows:
        for run in row.ended:
            unit = (run.guarantee or {}).get("unit")
            for record in run.rounds:
                told = {key: value for key, value in scalars(record, unit=unit).items() if key != SCORE}
                found.append(_varied(row) | {"seed": run.seed} | told)
    return filled(found)


def run_record(run: Run, known: Sequence[str], *, metric: str) -> dict[str, Any]:
    """All numbers of a run, flat; the columns of an epsilon carry its unit in their name."""
    summary = run.summary or {}
    noise, promise = summary.get("noise_multiplier") or {}, run.guarantee or {}
    record: dict[str, Any] = {"seed": run.seed}
    known_score = (run.score, run.final) if run.summary else (None, None)
    record |= dict(zip((f"{metric}_last_10", f"{metric}_final"), known_score, strict=True))
    record |= {} if run.backdoor is None else {f"{BACKDOOR}_last_10": run.backdoor}
    record |= results.run_record(run, metric=metric)
    record |= results.run_record_client_spread(run, metric=metric)
    record |= {key: summary.get(key) for key in COPIED}
    record |= {f"noise_multiplier_{which}": noise.get(which) for which in ("min", "median", "max")}
    record |= {key: promise.get(key) for key in ("unit", "adversary", "relation", "delta")}
    for unit in known:
        spent = promise["epsilon"] if promise.get("unit") == unit else {}
        record |= {f"epsilon_per_{unit}_{which}": spent.get(which) for which in ("min", "median", "max")}
    return record | {"failed": run.failure}


def row_record(row: Row) -> dict[str, Any]:
    """A cell as plain values."""
    score, final, promise, metric = row.score, row.final, row.guarantee, row.metric
    means = {key: row.mean(key) for key in ("uplink_bytes", "downlink_bytes", "seconds", "rounds")}
    return {
        "cell": row.cell.label,
        "varied": row.cell.varied,
        "runs": len(row.runs),
        "ended": len(row.ended),
        f"{metric}_last_10": score.mean if score else None,
        f"{metric}_last_10_interval": score.interval if score else None,
        f"{metric}_final": final.mean if final else None,
        f"{metric}_final_interval": final.interval if final else None,
        **results.record(row),
        **results.record_client_spread(row),
        **_attacks(row),
        **{key: value if row.ended else None for key, value in means.items()},
        "guarantee": {key: promise[key] for key in ("unit", "adversary", "relation", "delta", "epsilon")}
        if promise
        else None,
        "failed": {str(run.seed): run.failure for run in row.runs if run.failure},
    }


def _attacks(row: Row) -> dict[str, float | None]:
    """What attacks reached in a cell; nothing where none was tried."""
    found: dict[str, float | None] = {}
    for name, known in row.attacks.items():
        key = name.replace(" ", "_")
        found |= {f"{key}_last_10" if key == BACKDOOR else key: known.mean, f"{key}_interval": known.interval}
    return found


def record(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The whole table for `--json`, with the runs of each cell and how it differs from others. What is infinite is "inf"."""
    pairs = [turned for one in found(rows) for turned in (one, one.turned())]
    return [
        _plain(
            row_record(row)
            | {"differences": [_without_cell(one) for one in pairs if one.cell == row.cell.label]}
            | {"seeds": [run_record(run, units([row]), metric=row.metric) for run in row.runs]}
        )
        for row in rows
    ]


def _without_cell(one: Difference) -> dict[str, Any]:
    return {key: value for key, value in one.record().items() if key != "cell"}


def _varied(row: Row) -> dict[str, Any]:
    return {"cell": row.cell.label} | {
        key: None if value is None else text(value) for key, value in row.cell.varied.items()
    }


def _flat(cell: dict[str, Any], known: Sequence[str]) -> dict[str, Any]:
    promise, failed = cell["guarantee"] or {}, cell["failed"]
    flat = {key: value for key, value in cell.items() if key not in ("varied", "guarantee", "failed")}
    flat |= {key: promise.get(key) for key in ("unit", "adversary", "relation", "delta")}
    for unit in known:
        spent = promise["epsilon"] if promise.get("unit") == unit else {}
        flat |= {f"epsilon_per_{unit}_{which}": spent.get(which) for which in ("min", "max")}
    return flat | {"failed": "; ".join(f"seed {seed}: {sentence}" for seed, sentence in failed.items())}


def _csv(records: list[dict[str, Any]], keys: Sequence[str] = ()) -> bytes:
    file = io.StringIO(newline="")
    found = list(dict.fromkeys(key for record in records for key in record)) or list(keys)
    writer = csv.DictWriter(file, found, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return file.getvalue().encode()


def _plain(value: Any) -> Any:
    """JSON has no infinity."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
