"""What an audit found, as a table for a terminal: a row for each number, a column for each trainer and the server."""

from rich.table import Table

from tacit.audit.found import RunAudit, at_least
from tacit.audit.repeat import Repeated
from tacit.audit.verdict import Audit, Judged
from tacit.privacy.guarantee import shown

NOTHING = 1e-4  # below it an exact number is rounding


def audit(found: Audit) -> Table:
    """Every check; those that reject are in red."""
    told = f"{found.name}: the mechanism as run" + (f", with the bug {found.planted} planted" if found.planted else "")
    level = f"a true claim is rejected, by any of the checks, with probability at most {found.level:.2g}"
    places = list(dict.fromkeys(one.check.where for one in found.judged))
    table = Table("as run", title=told, caption=level)
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


def _cell(one: Judged) -> str:
    check = one.check
    value = _number(check.evidence.value * check.unit)
    limits = "" if one.low == one.high else f"\n{one.low * check.unit:.3g}–{one.high * check.unit:.3g}"
    return (
        f"[bold red]{value}\nrejected[/]"
        if one.rejected and not limits
        else (f"[bold red]{value}{limits}[/]" if one.rejected else f"{value}[dim]{limits}[/]")
    )


def _number(value: float) -> str:
    """Four digits; what is rounding is nothing.

    >>> _number(0.99731), _number(9e-7)
    ('0.9973', '0')
    """
    return "0" if abs(value) < NOTHING else f"{value:.4g}"


def repeated(found: Repeated) -> Table:
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
    level = "shown and measured: 95 % over all rows" + (
        f" and {found.runs} runs of the ledger" if found.runs > 1 else ""
    )
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
