"""What an audit found, as a table for a terminal: a row for each number, a column for each trainer and the server."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.measure import Measurement
from rich.table import Table
from scipy import stats

from tacit.engine.assemble import Parts
from tacit.lab.audit.evidence import Audit, Judged, Rate
from tacit.lab.audit.found import RunAudit, at_least
from tacit.lab.audit.mechanism import audit
from tacit.privacy.guarantee import shown

# An audit with many seeds: how often clean code is accused, or a planted bug is found.

DOUBT = 0.01  # how unlikely so many false alarms may be of an auditor that keeps its level
SURE = 0.025  # of each limit


@dataclass(frozen=True)
class Repeated:
    """The audits of one experiment, a seed each."""

    audits: tuple[Audit, ...] = field(repr=False)

    @property
    def alarms(self) -> int:
        """How many of them reject a claim."""
        return sum(bool(one.rejected) for one in self.audits)

    @property
    def limits(self) -> tuple[float, float]:
        """Of the probability of an alarm, at 95 %."""
        return Rate(self.alarms, len(self.audits)).limits(SURE)

    @property
    def reasons(self) -> Counter[tuple[str, str, str]]:
        """How often each check rejected."""
        found = (one.check for run in self.audits for one in run.rejected)
        return Counter((check.where, check.quantity, check.part) for check in found)

    @property
    def alarming(self) -> bool:
        """A planted bug was found; or clean code is accused more often than a true claim may be."""
        if self.audits[0].planted is not None:
            return self.alarms > 0
        return float(stats.binom.sf(self.alarms - 1, len(self.audits), self.audits[0].false_alarm)) < DOUBT

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be tried."""
        return self.audits[0].notes

    @property
    def sentence(self) -> str:
        """What came of it."""
        low, high = self.limits
        share = (
            f"{self.alarms} of {len(self.audits)} audits ({100 * low:.1f} to {100 * high:.1f} % of all there could be)"
        )
        if self.audits[0].planted is not None:
            return f"The planted bug was found in {share}."
        more = "more than" if self.alarming else "no more than"
        return f"A claim was rejected in {share}: {more} the {100 * self.audits[0].false_alarm:.2f} % that true claims may be."

    def record(self) -> dict[str, Any]:
        """Plain values for --json."""
        low, high = self.limits
        reasons = [
            dict(zip(("where", "quantity", "part"), key, strict=True)) | {"alarms": n}
            for key, n in self.reasons.items()
        ]
        return {
            "experiment": self.audits[0].name,
            "planted": self.audits[0].planted,
            "audits": len(self.audits),
            "alarms": self.alarms,
            "low": low,
            "high": high,
            "sentence": self.sentence,
            "reasons": reasons,
        }


def repeated(
    parts: Parts,
    *,
    seeds: Sequence[int],
    plant: str | None = None,
    trainers: Sequence[str] = (),
    observe: Callable[[int], object] = lambda done: None,
) -> Repeated:
    """Audits with every seed. Raises as `audit`."""
    found: list[Audit] = []
    for seed in seeds:
        found.append(audit(parts, seed=seed, plant=plant, trainers=trainers))
        observe(len(found))
    return Repeated(tuple(found))


WIDEST = 1000  # characters
NOTHING = 1e-4  # below it an exact number is rounding


def fitting(found: Audit, *, width: int) -> Table | Group:
    """The table with a column for each trainer where it fits into so many characters, else a table for each of them."""
    whole = audit_show(found)
    wide = Console(width=WIDEST)
    return whole if Measurement.get(wide, wide.options, whole).maximum <= width else Group(*one_by_one(found))


def audit_show(found: Audit) -> Table:
    """Every check in one table; those that reject say so, and are in red."""
    places = list(dict.fromkeys(one.check.where for one in found.judged))
    table = Table("as run", title=_title(found), caption=_level(found))
    for name in ("claimed", *places):
        table.add_column(name, justify="right")
    rows: dict[tuple[str, str, str], dict[str, Judged]] = {}
    for one in found.judged:
        check = one.check
        rows.setdefault((check.quantity, check.part, _number(check.claimed * check.unit)), {})[check.where] = one
    for (quantity, part, claimed), cells in rows.items():
        shown = (_cell(cells[place]) if place in cells else "" for place in places)
        table.add_row(f"{quantity}\n  {part}" if part else quantity, claimed, *shown)
    return table


def one_by_one(found: Audit) -> list[Table]:
    """A table for each trainer: a line for each check, with its verdict."""
    places = list(dict.fromkeys(one.check.where for one in found.judged))
    tables = []
    for place in places:
        last = place == places[-1]
        table = Table("as run", title=f"{_title(found)}: {place}", caption=_level(found) if last else None)
        for name in ("claimed", "seen", "limits", "verdict"):
            table.add_column(name, justify="left" if name == "verdict" else "right", no_wrap=True)
        for one in (one for one in found.judged if one.check.where == place):
            check, red = one.check, "[bold red]" if one.rejected else ""
            name = f"{check.quantity}, {check.part}" if check.part else check.quantity
            numbers = (_number(value * check.unit) for value in (check.claimed, check.evidence.value))
            table.add_row(name, *numbers, _limits(one), f"{red}{one.verdict}")
        tables.append(table)
    return tables


def _title(found: Audit) -> str:
    return f"{found.name}: the mechanism as run" + (f", with the bug {found.planted} planted" if found.planted else "")


def _level(found: Audit) -> str:
    return f"a true claim is rejected, by any of the checks, with probability at most {found.false_alarm:.2g}"


def _limits(one: Judged) -> str:
    """The limits of what was measured, or what it is held against: every number says one of the two."""
    return one.against or f"{one.low * one.check.unit:.3g}–{one.high * one.check.unit:.3g}"


def _cell(one: Judged) -> str:
    value, limits = _number(one.check.evidence.value * one.check.unit), _limits(one)
    lines = "\n".join(line for line in (value, limits, "rejected") if line)
    return f"[bold red]{lines}[/]" if one.rejected else f"{value}[dim]{limits and chr(10)}{limits}[/]"


def _number(value: float) -> str:
    """Four digits; what is rounding is nothing.

    >>> _number(0.99731), _number(9e-7)
    ('0.9973', '0')
    """
    return "0" if abs(value) < NOTHING else f"{value:.4g}"


def repeated_show(found: Repeated) -> Table:
    """A row for each check that ever rejected."""
    first = found.audits[0]
    told = f"{first.name}: {len(found.audits)} audits" + (
        f" with the bug {first.planted} planted" if first.planted else ""
    )
    table = Table("where", "what", "in", "rejected in", title=told)
    for (where, quantity, part), count in found.reasons.most_common():
        table.add_row(where, quantity, part, str(count))
    return table


def of_run(found: RunAudit) -> Table:
    """A row for each group of clients that were charged alike: promised, shown and measured stand side by side."""
    who = "record" if found.unit == "record" else "client"
    title = f"{found.name}: epsilon by {who} at delta = {found.delta:g}, for clients charged alike"
    level = "shown and measured: 95 % over all rows"
    if found.place is not None:
        level += f" and all runs of the ledger, of which this is number {found.place}"
    level = f"{found.against}\n{level}"
    table = Table("clients", "canaries", title=title, caption=level)
    for name in (
        "promised",
        "shown, no\nassumption",
        "shown,\nfamily",
        "measured\nas run",
        "measured\nat least",
    ):
        table.add_column(name, justify="right")
    for group in found.groups:
        red = "[bold red]" if group.rejected else ""
        numbers = (group.no_assumption, group.within_family)
        bounds = [f"≥ {at_least(value)}" for value in numbers]
        measured = [f"{group.measured.epsilon:.3g}", f"{red}{at_least(group.measured.low)}"]
        table.add_row(str(group.clients), f"{group.canaries:,}", f"≤ {shown(group.promised)}", *bounds, *measured)
    return table
