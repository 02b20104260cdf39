"""A mark beside a run or a site that says how far its ledger had come: a lost or older ledger is then noticed.

The mark is written after every charge and before anything is released: the number of the last batch of charges, and a hash
that chains all batches until then. A ledger that lacks that batch, or has another under that number, is not the one that was
charged. Restoring a backup: see docs/how-to-deploy.md.

Guarantee: whoever puts back an older copy of a ledger, to spend a budget twice, is refused as long as a mark is left. Who
replaces the ledger and all its marks is not noticed.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.errors import LedgerError
from tacit.machine import locked

if TYPE_CHECKING:
    from tacit.privacy.ledger.view import RunView

NAME = "ledger.mark"
CHAIN_BYTES = 16
UNRELEASED = "nothing was released."


def chain(before: str, *parts: object) -> str:
    """The hash of a batch of charges (its run, round, attempt and clients) and of all before it, whose link is `before`.

    >>> chain("", "run", 0, "attempt", "north") == chain("", "run", 0, "attempt", "south")
    False
    """
    text = json.dumps([before, *map(str, parts)])
    return hashlib.blake2b(text.encode(), digest_size=CHAIN_BYTES).hexdigest()


def write(path: Path, number: int, link: str) -> None:
    """Notes how far a ledger has come; a mark that is further stays.

    Guarantee: a kill or a power cut leaves the old mark or the new one. Runs that share a ledger take turns by a lock beside
    the mark: one that overtook another would set the mark back, or write into the other's file.

    Raises: OSError where it cannot be written, LedgerError where the mark that is there cannot be read.
    """
    lock = os.open(path.with_name(f".{path.name}.lock"), os.O_WRONLY | os.O_CREAT, 0o600)
    with os.fdopen(lock, "w") as turn, locked(turn.fileno()):
        known = read(path)
        if known is not None and known[0] > number:
            return
        temporary = path.with_name(f".{path.name}.new")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"batch": number, "chain": link}, file)
            file.flush()
            os.fsync(file.fileno())  # a power cut after the renaming must not leave an empty mark
        temporary.replace(path)


def read(path: Path) -> tuple[int, str] | None:
    """The mark as (number of the last batch, its hash), or None where there is none.

    Raises: LedgerError for one that cannot be read.
    """
    try:
        record = json.loads(path.read_text("utf-8"))
        return int(record["batch"]), str(record["chain"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        raise LedgerError(f"{path} says how far the ledger had come, and cannot be read: put it back.") from None


def refuse_lost(ledger: Path, mark: Path) -> None:
    """Refuses to begin an empty ledger where one was charged before. Raises LedgerError."""
    if read(mark) is not None and (not ledger.exists() or not ledger.stat().st_size):
        raise LedgerError(f"{ledger} is gone, but {mark} says that it was charged: restore the ledger; {UNRELEASED}")


def refuse_older(ledger: "RunView", mark: Path) -> None:
    """Refuses a ledger that lacks charges which the mark knows, or has others under their number. Raises LedgerError."""
    batch = lacking(ledger, mark)
    if batch is not None:
        raise LedgerError(
            f"{ledger.path} is an older copy, or another ledger, than the one charged here (it lacks batch {batch} of"
            f" {mark}): restore the newest copy of the ledger; {UNRELEASED}"
        )


def lacking(ledger: "RunView", mark: Path) -> int | None:
    """The batch that a mark knows and a ledger lacks, or has otherwise; None where it lacks none. Raises LedgerError, as `read`."""
    known = read(mark)
    return None if known is None or ledger.link(known[0]) == known[1] else known[0]
