"""The table of a comparison for people: on the terminal and as Markdown, one row per cell, in the order of the grid."""

import math
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tacit.engine.malicious import BADGE
from tacit.lab.compare import differences, ledger, results
from tacit.lab.compare.grid import for_some_alone, headings, short, size, text
from tacit.lab.compare.results import (
    BACKDOORED,
    CONFIDENCE,
    FEWEST_SEEDS,
    Estimate,
    Row,
    last_rounds,
    lengths,
    statement,
    units,
)
from tacit.parts import metrics
from tacit.privacy.guarantee import shown

NOTHING = "–"
ATTACKED = "What an attack reached"
AUC = "AUC"
Column = tuple[str, list[str]]


def table_columns(rows: Sequence[Row]) -> list[Column]:
    """Headings with a text per row. Each unit of privacy has its own column: their epsilons are not comparable."""
    keys = list(rows[0].cell.varied)
    found: list[Column] = [
        (name, [_value(row, key, units(rows)) for row in rows]) for key, name in zip(keys, headings(keys), strict=True)
    ]
    found = found or [("experiment", [row.cell.label for row in rows])]
    found.append((f"{metrics.words(rows[0].metric)} ({last_rounds(lengths(rows))})", [score(row) for row in rows]))
    found += results.columns(rows)
    found += results.spread_columns(rows)
    found += [(f"{name}*", [with_interval(row.attacks.get(name)) for row in rows]) for name in attacked(rows)]
    found += [(f"epsilon spent per {unit}", [_epsilon(row, unit) for row in rows]) for unit in units(rows)]
    if len(statements(rows)) > 1:
        found.append(("guarantee", [_which(row, statements(rows)) for row in rows]))
    found.append(("up", [_bytes(row, "uplink_bytes") for row in rows]))
    found.append(("down", [_bytes(row, "downlink_bytes") for row in rows]))
    found.append(("seconds", [f"{row.mean('seconds'):.1f}" if row.ended else NOTHING for row in rows]))
    return found


def attacked(rows: Iterable[Row]) -> list[str]:
    """What attacks have measured in any cell."""
    return list(dict.fromkeys(name for row in rows for name in row.attacks))


def statements(rows: Iterable[Row]) -> list[str]:
    """The different promises of the cells, in words."""
    return list(dict.fromkeys(statement(row.guarantee) for row in rows if row.guarantee))


def notes(rows: Sequence[Row]) -> list[str]:
    """What must be read with the table, a sentence each."""
    name = metrics.words(rows[0].metric)
    said = [f"{name[0].upper()}{name[1:]}: {_over(rows[0])} That of the final models is in table.csv."]
    rare = sorted({row.cell.experiments[0].run.evaluate_every or 1 for row in rows})
    if rare[-1] > 1:
        often = " or ".join(map(str, rare))
        said.append(
            f"Models were tested every {often} rounds and after the last: means are over those among the last rounds."
        )
    said += for_some_alone([row.cell for row in rows])
    said += differences.notes(rows)
    said += results.notes(rows)
    said += results.notes_client_spread(rows)
    if attacked(rows):
        said.append(_attacked(rows))
    promises = statements(rows)
    if not promises:
        return [*said, "No privacy is promised."]
    if len(promises) == 1:
        said.append(f"Epsilon: smallest to largest spent by a client, {promises[0]}.")
    else:
        said.append("Epsilon: smallest to largest spent by a client; the promises differ, each row names its own:")
        said += [f"({number}) {promise}." for number, promise in enumerate(promises, 1)]
    if len(units(rows)) > 1:
        said.append("Epsilons per record and per client measure different things, so no figure has an epsilon axis.")
    return [*said, *ledger.notes(rows)]


def _attacked(rows: Sequence[Row]) -> str:
    """What must be read with the columns of attacks."""
    found = [f"* {ATTACKED}: measured on a simulation, {BADGE}."]
    names = attacked(rows)
    if BACKDOORED in names:
        found.append(
            "A backdoor accuracy is the share of test rows with the trigger that are taken for the attackers' class; an epsilon is"
            " about honest clients. Clipping does nearly all of the work of DP as a defence: compare it with clip only"
            " (aggregate.rule=norm-bound)."
        )
    if any(name.endswith(AUC) for name in names):
        found.append("An AUC of 0.5 is guessing, 1 is certainty.")
    if any(name.startswith("property ") for name in names):
        found.append("A property of many rows is not what an epsilon per record hides.")
    if names != [BACKDOORED] and len(rows[0].runs) == 1:
        found.append("Of one seed, intervals are the attacks' own, over their records or clients.")
    return " ".join(found)


def markdown(rows: Sequence[Row]) -> str:
    """The table and its notes as Markdown."""
    found = table_columns(rows)
    if any(troubles(row) for row in rows):
        found.append(("trouble", ["; ".join(troubles(row)) for row in rows]))
    tables = [_markdown(one) for one in (found, differences.columns(rows)) if one]
    return "\n\n".join(tables) + "\n\n" + "\n".join(f"- {note}" for note in notes(rows)) + "\n"


def _markdown(found: Sequence[Column]) -> str:
    lines = [[heading for heading, _ in found], ["---"] * len(found), *zip(*(texts for _, texts in found), strict=True)]
    return "\n".join("| " + " | ".join(_escaped(cell) for cell in line) + " |" for line in lines)


def show(rows: Sequence[Row], console: Console) -> None:
    """Prints the table, what went wrong in which cell, and the notes."""
    found = table_columns(rows)
    if any(troubles(row) for row in rows):
        found.append(("trouble", [_trouble(row) for row in rows]))
    for one in (found, differences.columns(rows)):
        if one:
            console.print(_table(one), crop=False, soft_wrap=True)
    for row in rows:
        for sentence in troubles(row):
            console.print(Text(f"{row.cell.label}: {sentence}", style="red"))
    for note in notes(rows):
        console.print(Text(note, style="dim"))


def _table(found: Sequence[Column]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for heading, texts in found:
        table.add_column(heading, min_width=max(map(len, [*heading.split(), *texts])))
    for line in zip(*(texts for _, texts in found), strict=True):
        table.add_row(*map(Text, line))
    return table


def score(row: Row) -> str:
    """The metric with its interval, as in `0.8731 ± 0.0120`."""
    return with_interval(row.score)


def with_interval(found: Estimate | None) -> str:
    """A mean with its interval over seeds."""
    if found is None:
        return NOTHING
    return f"{found.mean:.4f}" + ("" if found.interval is None else f" ± {max(found.span):.4f}")


def _over(row: Row) -> str:
    seeds, ends = len(row.runs), [f"{end:g}" for end in metrics.bounds(row.metric) if math.isfinite(end)]
    if seeds == 1:
        return "one seed, so no interval."
    if seeds < FEWEST_SEEDS:
        return f"mean over {seeds} seeds, which are too few for an interval."
    return f"mean over {seeds} seeds ± {100 * CONFIDENCE:g} % interval (Student t{', cut at ' * bool(ends)}{' and '.join(ends)})."


def troubles(row: Row) -> list[str]:
    """Runs that failed, and runs that ended before the planned rounds."""
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


def _value(row: Row, key: str, known: list[str]) -> str:
    value = row.cell.varied[key]
    if value is None:
        return NOTHING
    of_unit = f" per {row.guarantee['unit']}" if key == "privacy.epsilon" and row.guarantee and len(known) > 1 else ""
    return short(text(value)) + of_unit


def _epsilon(row: Row, unit: str) -> str:
    promise = row.guarantee
    if promise is None:
        return _no_promise(row)
    if promise["unit"] != unit:
        return NOTHING
    low, high = shown(promise["epsilon"]["min"]), shown(promise["epsilon"]["max"])
    return low if low == high else f"{low} to {high}"


def _which(row: Row, promises: list[str]) -> str:
    if row.guarantee is None:
        return _no_promise(row)
    return f"({promises.index(statement(row.guarantee)) + 1}) per {row.guarantee['unit']}"


def _no_promise(row: Row) -> str:
    return "no promise" if row.ended else NOTHING


def _bytes(row: Row, key: str) -> str:
    return size(row.mean(key)) if row.ended else NOTHING


def _escaped(words: str) -> str:
    return words.replace("|", "\\|").replace("\n", " ")
