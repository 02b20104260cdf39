"""The page of a statement: it asks nobody for anything, runs no script, and escapes every text."""

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tacit.check import many, printable
from tacit.privacy.guarantee import shown, shown_delta

MOST_TEXT, MOST_ROWS = 20_000, 40  # characters of one text; rows of a table, of which the file has all
BEGINS = "<!doctype html>"
STYLE = """@page { size: A4; margin: 16mm } body { font: 9.5pt/1.35 sans-serif; max-width: 178mm; margin: 8mm auto; color: #111 }
h1 { font-size: 15pt; margin: 0 } h2 { font-size: 10.5pt; margin: 3.5mm 0 1mm; border-bottom: 1px solid #999 }
table { border-collapse: collapse; width: 100% } th, td { text-align: left; vertical-align: top; padding: .6mm 2mm .6mm 0 }
th { width: 42mm; font-weight: 600 } .number { width: auto } p { margin: 1mm 0 } .no { border: 2px solid #a00; padding: 2mm }
.yes { border: 1px solid #060; padding: 2mm } tr { break-inside: avoid } td { overflow-wrap: anywhere }"""


def page(found: Mapping[str, Any]) -> str:
    """A statement's record as a page."""
    allowed = found["release"]["allowed"]
    verdict = (
        "Nothing that Tacit knows speaks against a release."
        if allowed
        else f"Not for release: {'; '.join(found['release']['why_not'])}."
    )
    clients = [
        (
            one["name"],
            shown(one["epsilon"]),
            shown_delta(one["delta"]),
            "none" if one["limit"] is None else f"{one['limit']:g}",
        )
        for one in found["clients"][:MOST_ROWS]
    ]
    more = len(found["clients"]) - len(clients)
    product = found["registry"]["deployment"]["product"]
    parts = [
        f"<h1>Privacy statement: {_text(found['name'])}</h1><p>{_text(found['of'])}; {_text(found['run'])}</p>",
        f'<p class="{"yes" if allowed else "no"}">{_text(verdict)}</p>',
        _section(
            "To sign", f"<p>{_text(found['sentence'])}</p><p>Name, date: ____________________________________</p>"
        ),
        _section("What is promised", _rows(found["promised"].items())),
        _section("Accounting", _rows(_accounting(found))),
        _section("Each client", _grid(("client", "epsilon", "at delta", "its limit"), clients)) if clients else "",
        f"<p>{more} more clients are in statement.json.</p>" if more > 0 else "",
        _section(
            "Evaluation, after the layers of NIST SP 800-226",
            _rows((o["heading"], o["text"]) for o in found["evaluation"]),
        ),
        _section("For the registry", _rows((key.replace("_", " "), text) for key, text in product.items())),
    ]
    head = f"<meta charset=utf-8><title>Privacy statement: {_text(found['name'])}</title><style>{STYLE}</style>"
    policy = "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    return f"{BEGINS}\n<html lang=en>{policy}{head}\n{''.join(parts)}</html>\n"


def bound(epsilon: float | None, delta: float) -> str:
    """An epsilon with its delta, rounded up."""
    return f"epsilon {shown(epsilon)} at delta {shown_delta(delta)}"


def _accounting(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    versions = ", ".join(f"{name} {number}" for name, number in found["accounting"]["versions"].items())
    yield "accountant", f"{found['accounting']['accountant']} ({versions})"
    yield "composition", found["accounting"]["composition"]
    for one in found["ledger"]:
        limit = one["limit"]
        of = f" of {bound(limit['epsilon'], limit['delta'])}" if limit else ""
        released = f"; other releases: {', '.join(one['releases'][:MOST_ROWS])}" if one["releases"] else ""
        yield (
            f"ledger, per {one['unit']}",
            f"{bound(one['epsilon'], one['delta'])}{of} sealed by {many(one['runs'], 'run')}{released}",
        )
    yield "audit", found["audit"]


def _text(value: object) -> str:
    return html.escape(printable(str(value), MOST_TEXT))


def _section(title: str, inside: str) -> str:
    return f"<h2>{_text(title)}</h2>{inside}\n"


def _rows(rows: Iterable[tuple[str, object]]) -> str:
    return f"<table>{''.join(f'<tr><th>{_text(key)}</th><td>{_text(value)}</td></tr>' for key, value in rows)}</table>"


def _grid(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    top = "".join(f"<th class=number>{_text(head)}</th>" for head in heads)
    body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{top}</tr>{body}</table>"
