"""A deployment's sites for the page, as the server sees them: who answered, who refused, who is out, and why.

Nothing here was computed from rows: names, limits and sizes are what the sites declared, reasons are in their own words, and what
their ledgers say of themselves nobody checks. Under central DP who is drawn is a secret of the server: only absences are named.
"""

import datetime
from typing import Any

from tacit.engine.run_files import RunFiles
from tacit.report.collect import short

MOST_ROUNDS = 60  # of a site's strip: the last ones
MOST_ABSENCES = 200  # named with their reasons: the last ones


def sites_view(files: RunFiles) -> dict[str, Any] | None:
    """What the page shows of a deployment; None for a simulation."""
    status = files.status
    if status is None:
        return None
    known = files.clients or {}
    names = [str(name) for name in known.get("names") or status.get("sites") or []]
    limits = dict(zip(names, known.get("limits") or [], strict=False))  # None: none
    spent = status.get("spent") or (files.summary or {}).get("sites", {}).get("epsilon", {})
    away = [_absent(record) for record in files.rounds]
    asked = status.get("asked")
    absences = [[number + 1, name, why] for number, round in enumerate(away) for name, why in round.items()]
    return {
        "state": status["state"],
        "text": status["text"],
        "time": _clock(status["time"]),
        "round": asked["round"] + 1 if asked else len(files.rounds),
        "first": max(0, len(away) - MOST_ROUNDS) + 1,
        "last": len(away),
        "drawn": bool(known.get("all_pay")),  # chance decides who is asked
        "sites": [
            {
                "name": name,
                **(_joining(name, status) if status["state"] == "waiting" else _state(name, files, asked)),
                "limit": limits.get(name),
                "declared": name in limits,
                "spent": short(spent.get(name), up=True),
                "missed": sum(name in round for round in away),
                "rounds": [int(name not in round) for round in away[-MOST_ROUNDS:]],
            }
            for name in names
        ],
        "absences": {"count": len(absences), "some": absences[-MOST_ABSENCES:]},
    }


def _joining(name: str, status: dict[str, Any]) -> dict[str, str]:
    return {"state": "awaited" if name in status.get("missing", []) else "here", "why": ""}


def _state(name: str, files: RunFiles, asked: dict[str, Any] | None) -> dict[str, str]:
    """A word for a site's state, and why: by the round that goes on, else by the last that ended."""
    last = _absent(files.rounds[-1]) if files.rounds else {}
    for state in ("answered", "refused", "silent") if asked else ():
        if asked and name in asked[state]:
            why = asked[state][name] if state != "answered" else ""
            return {"state": state if state != "silent" else "out" if asked["over"] else "awaited", "why": why}
    ran_out = any(name in (record.get("dropped") or []) for record in files.rounds)
    if ran_out and len(files.rounds) < files.experiment.train.rounds:
        return {"state": "out of budget", "why": last.get(name, "it can pay for no further round")}
    if name in last:
        return {"state": "absent", "why": last[name]}
    taken = "no absence" if (files.clients or {}).get("all_pay") else "has taken part"  # who was drawn stays a secret
    return {"state": "not asked" if asked else taken if files.rounds else "not asked yet", "why": ""}


def _absent(record: dict[str, Any]) -> dict[str, str]:
    found = record.get("absent")
    return {str(name): str(why) for name, why in found.items()} if isinstance(found, dict) else {}


def _clock(seconds: float) -> str:
    """A moment in words that no clock of the reader changes."""
    try:
        return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return "an unknown time"
