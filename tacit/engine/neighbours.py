"""Run folders that say they were paid from one ledger: a shared ledger that does not know their releases is not theirs.

A shared ledger and its mark may both be deleted, or both go back to an older copy. The runs that were paid from it, also those
that `--force` set aside, each keep how far it had come. They are looked for beside the run and beside the ledger, and within the
comparisons that lie there; a run of a comparison looks beside that, too. A run folder that was moved elsewhere, or deleted, tells
nothing (docs/sharp-edges.md).
"""

import json
from collections.abc import Iterator
from pathlib import Path

from tacit.engine.folder import logged_rounds
from tacit.errors import LedgerError
from tacit.privacy.ledger import witness
from tacit.privacy.ledger.ledger import Ledger

COMPARISON, CELLS = "compare.toml", "runs/*/seed-*/"  # what a comparison was asked for, and where its runs lie
OUTSIDE = 3  # folders from a run of a comparison to where that lies
SEARCH = "search.json"  # what a search (tacit/tuning) is called by its ledger, and which one that is


def refuse_lost(path: Path, run: Path) -> None:
    """Refuses to begin an empty ledger where a run beside it was paid from one. Raises LedgerError."""
    for folder in paid_from(path, run):
        witness.refuse_lost(path, folder / witness.NAME)


def refuse_older(ledger: Ledger, run: Path) -> None:
    """Refuses a ledger that lacks the charges of a run beside it. Raises LedgerError."""
    for folder in paid_from(ledger.path, run):
        witness.refuse_older(ledger, folder / witness.NAME)
        name = _record(folder / "run.json").get("run")
        for round in sorted(logged_rounds(folder))[-1:]:
            if not ledger.knows(round, run=str(name)):
                raise LedgerError(
                    f"{folder} holds round {round + 1} of a run that was paid from {ledger.path}, and the ledger knows no charge"
                    f" for it: restore the ledger, or move the folder away if its rows are others; {witness.UNRELEASED}"
                )


def paid_from(ledger: Path, run: Path) -> Iterator[Path]:
    """The other runs' folders, beside a run and beside the ledger, whose own record names this ledger."""
    wanted = ledger.resolve()
    folders = {folder.resolve(): folder for parent in _places(ledger, run) for folder in _runs(parent)}
    for folder in sorted(set(folders) - {run.resolve()}):
        way = _record(folder / "clients.json").get("ledger") or _record(folder / SEARCH).get("ledger")
        if isinstance(way, str) and (folder / way).resolve() == wanted:
            yield folder


def _places(ledger: Path, run: Path) -> Iterator[Path]:
    """Where runs are looked for: beside the run, or the comparison that it belongs to, and beside the ledger."""
    yield from (run.parent, ledger.parent)
    above = run.absolute().parents
    if len(above) > OUTSIDE and (above[OUTSIDE - 1] / COMPARISON).exists():
        yield above[OUTSIDE]


def _runs(place: Path) -> Iterator[Path]:
    """The folders in a place, and those of the runs of the comparisons among them."""
    for folder in place.glob("*/"):
        yield folder
        yield from folder.glob(CELLS) if (folder / COMPARISON).exists() else ()


def _record(path: Path) -> dict[str, object]:
    """A run's record; nothing where it has none, or none that can be read."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
