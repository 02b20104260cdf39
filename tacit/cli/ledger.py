"""`tacit ledger`: who was charged what, when and for what. Every epsilon has its delta and its unit. No torch is loaded."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.text import Text

from tacit.deploy.site.layout import BUDGET, promises
from tacit.deploy.site.limits import Limits, read_limits
from tacit.errors import BadInput, TacitError
from tacit.privacy.guarantee import NOTHING_PROMISED, shown, shown_delta
from tacit.privacy.ledger import disk, reader
from tacit.privacy.ledger.disk import COLUMNS, QUERY
from tacit.privacy.ledger.ledger import ROUNDING
from tacit.store import csv_of
from tacit.table import Table, of_rows

WIDE = 130


def show(path: Path, delta: float | None) -> None:
    """Prints what clients, runs and charges cost, and what was promised."""
    console = Console()
    console.width = max(console.width, WIDE)  # rather a wrapped line than half a number
    for table in (by_client(path, delta=delta), by_run(path), by_charge(path)):
        console.print(table.terminal(box.HEAVY_HEAD if table.title else None, caption=" ".join(table.notes)))
    for name in opted_out(path):
        console.print(
            Text(f"{name} opted out of the run beside this ledger: {NOTHING_PROMISED}, and nothing is charged.")
        )
    for run, promise in promises(path):
        console.print(Text(f"Promised in run {run[:8]}: {promise}"))


def opted_out(path: Path) -> list[str]:
    """The clients that opted out of the run whose own ledger this is; nobody where its folder does not say."""
    file = reader.find(path).parent / "clients.json"
    try:
        known = json.loads(file.read_text("utf-8"))
        return [str(known["names"][index]) for index in known.get("opted_out", [])]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []


def export(path: Path, to: Path) -> None:
    """Writes every charge as CSV or JSON. Raises BadInput for another kind of file, and for one that exists."""
    if to.suffix not in (".csv", ".json"):
        raise BadInput(f"Expected --to to end in .csv or .json, got {to}.")
    if to.exists():
        raise BadInput(f"{to} exists already: choose another name.")
    to.write_text(as_json(path) if to.suffix == ".json" else as_csv(path), "utf-8")


def counted(path: Path) -> str:
    """How many charges a ledger holds, and of how many clients."""
    charges = reader.entries(reader.find(path))
    clients = len({entry["client"] for entry in charges})
    return f"{len(charges)} charges of {clients} client{'s' * (clients != 1)}"


MOST_ROWS, MOST_SHOWN = 40, 60  # charges; characters of what a release was for
CAPTION = (
    "Quote sealed, at its delta: it holds whatever runs were chosen after seeing others (basic composition, arXiv:1605.08294)."
    " joint PLD is one price of all charges, at delta {delta:g}: valid only where all runs were settled before the first of them"
    " was seen. Each epsilon is for adding or removing one unit."
)


def by_client(path: Path, *, delta: float | None) -> Table:
    """A row per client: how often it was charged, in how many runs, and what that adds up to."""
    file = reader.find(path)
    charges, accounts = reader.entries(file), reader.accounts(file)
    delta, limits = _delta(file, delta), _limits(file)
    sealed, used = reader.totals(accounts), reader.totals([replace(a, sealed=a.used) for a in accounts])
    names = ("client", "per", "charges", "runs", "last (UTC)", "epsilon spent", "sealed", "at delta", "joint PLD")
    rows = []
    for (client, unit), joint in sorted(reader.spent(charges, delta=delta).items()):
        mine = [entry for entry in charges if (entry["client"], entry["unit"]) == (client, unit)]
        limit = f" of {limits.epsilon:g}" if limits and limits.unit == unit else ""
        prices = (f"{shown(joint)}{limit}", "", shown_delta(delta), "")
        if (client, unit) in sealed:  # else nothing is reserved: a damaged ledger
            epsilon, at = sealed[client, unit]
            prices = (shown(used[client, unit][0]), f"{shown(epsilon)}{limit}", shown_delta(at), shown(joint))
        runs, others = (
            len({entry["run"] for entry in mine if ("purpose" in entry) == other}) for other in (False, True)
        )
        kinds = f"{runs} and {others} other{'s' * (others != 1)}" if others else runs
        rows.append((client, unit, len(mine), kinds, _time(mine[-1], 16), *prices))
    return of_rows(names, rows, title=str(file), notes=[CAPTION.format(delta=delta)])


def by_run(path: Path) -> Table:
    """A row per run, or other release: what it sealed when it began, what it has used of that, and at which delta; the largest
    over clients."""
    runs: dict[tuple[str, str], list[reader.Account]] = {}
    for account in reader.accounts(reader.find(path)):
        runs.setdefault((account.run, account.unit), []).append(account)
    rows = []
    for (run, unit), members in runs.items():
        who = "all" if members[0].client == disk.EVERYBODY else len(members)
        releases = f"{max(m.releases for m in members)} of {max(m.most for m in members)}"
        prices = shown(max(m.sealed for m in members)), shown(max(m.used for m in members))
        what = f"{run[:8]} {members[0].purpose[:MOST_SHOWN]}".strip()
        rows.append((what, unit, who, releases, *prices, shown_delta(max(m.delta for m in members))))
    return of_rows(("run, or other release", "per", "clients", "releases", "sealed", "used", "at delta"), rows)


def by_charge(path: Path) -> Table:
    """A row per charge, the newest ones."""
    charges = reader.entries(reader.find(path))
    all_of_them = f"the last {MOST_ROWS} of {len(charges)}; `tacit ledger PATH --to FILE` has all"
    rows = []
    for one in charges[-MOST_ROWS:]:
        round = reader.release(one).removeprefix("round ")
        what = ": ".join(filter(None, [_what(one["event"]), one.get("purpose", "")[:MOST_SHOWN]]))
        rows.append((_time(one, 19), one["client"], one["run"][:8], round, one["unit"], what))
    heads = ("time (UTC)", "client", "run", "round", "per", "for")
    return of_rows(heads, rows, notes=[all_of_them] * (len(charges) > MOST_ROWS))


def _time(entry: dict[str, Any], length: int) -> str:
    return entry["time"][:length].replace("T", " ")


def _what(event: str) -> str:
    """An event in a few letters: noise multiplier z, sampling rate q, steps, and the side of a split that it is about."""
    record = json.loads(event)
    short = {"noise_multiplier": "z", "sampling_rate": "q"}
    words = {key: f"{value:.4g}" if isinstance(value, int | float) else str(value) for key, value in record.items()}
    return ", ".join(
        f"{short.get(key, key)} {word}" for key, word in words.items() if key not in ("event", "of", "split")
    )


def as_csv(path: Path) -> str:
    """Every charge as CSV."""
    return csv_of(reader.entries(reader.find(path)), COLUMNS).decode()


def as_json(path: Path) -> str:
    """Every charge as JSON."""
    return json.dumps(reader.entries(reader.find(path)), indent=1)


def faults(path: Path, *, delta: float | None) -> Iterator[str]:
    """Whatever is wrong: with the file, with the budget, or with an answer that nobody was charged for."""
    file = reader.find(path)
    marks = (file.parent / disk.NAME, file.with_name(f"{file.name}.mark"))
    found = [*reader.faults(file), *(text for mark in marks for text in reader.behind(file, mark))]
    yield from found
    if found:
        return
    charges, limits = reader.entries(file), _limits(file)
    if limits is not None:
        sealed = reader.accounts(file)
        sums = {key: epsilon for key, (epsilon, _) in reader.totals(sealed).items()}
        sums = sums or reader.spent(charges, delta=_delta(file, delta))
        over = {key for key in sums if key[1] == limits.unit and sums[key] > limits.epsilon * (1 + ROUNDING)}
        if not over and sealed:  # the rows of one site, whatever it was called
            sums = {("this site", unit): epsilon for unit, (epsilon, _) in reader.at_one_site(sealed).items()}
        for (client, unit), epsilon in sums.items():
            if unit == limits.unit and epsilon > limits.epsilon * (1 + ROUNDING):
                text = f"the runs of {client} have sealed epsilon {shown(epsilon)} per {unit}, more than the {limits.epsilon:g} of"
                yield f"{text} {BUDGET}: nothing more will be charged"

    from tacit.deploy.site.agreement import in_words, unpaid

    paid = {
        (entry["run"], entry["attempt"].partition(":")[0] if entry["round"] == QUERY else entry["round"])
        for entry in charges
    }
    for run, what in unpaid(file.parent, lambda run, what: (run, what) in paid):
        yield f"{in_words(what)} of run {run} was answered and never charged"


def _limits(file: Path) -> Limits | None:
    return read_limits(file.parent) if (file.parent / BUDGET).exists() else None


def _delta(file: Path, delta: float | None) -> float:
    if delta is not None:
        return delta
    limits = _limits(file)
    if limits is not None:
        return limits.delta
    known = file.parent / "experiment.toml"
    if known.exists():
        from tacit.experiment import Experiment

        return Experiment.load(known).privacy.delta
    sealed = [at for _, at in reader.totals(reader.accounts(file)).values()]
    if sealed:  # what its runs have taken of their clients' delta, each its own share
        return max(sealed)
    raise TacitError("An epsilon needs a delta: give --delta, for this ledger stands alone.")
