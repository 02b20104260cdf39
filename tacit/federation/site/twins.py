"""Copies of a site: two folders that both answer are two ledgers on one budget, of which neither can know the other's charges.

A copy has the site's own node key. It is looked for beside the site, and beside its federation, whenever a run is agreed to or a
round paid for; one that lies elsewhere, or on another machine, tells nothing (docs/how-to-move-a-site.md). A copy that is behind,
or as far, is an old folder or a backup, and harmless as long as it stays behind.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from tacit.errors import LedgerError
from tacit.privacy.ledger import witness

KEY, SITES = "node.pub", "sites"
SAME_PLACE, FEDERATIONS = f"*/{KEY}", f"*/{SITES}/*/{KEY}"


def refuse_charged_twin(folder: Path, lacks: Callable[[Path], bool]) -> None:
    """Refuses a site of which a copy was charged for what its own ledger does not know; `lacks` says so of the copy's mark.

    Raises: LedgerError, naming the copy.
    """
    for twin in twins(folder):
        if lacks(twin / witness.NAME):
            raise LedgerError(
                f"{twin} has this site's node key, so one of the two is a copy, and it was charged for what this ledger does not"
                " know: both together would spend one budget twice. Go on with that one, or delete it if it never answered"
                " anybody. Nothing was released."
            )


def twins(folder: Path) -> Iterator[Path]:
    """The folders of the same owner, beside a site or its federation, that have its node key; those in no particular order."""
    mine, here = _read(folder / KEY), folder.resolve()
    if not mine:
        return
    places = [here.parent, here.parents[2]] if here.parent.name == SITES and len(here.parents) > 2 else [here.parent]
    found = {path.parent.resolve() for place in places for way in (SAME_PLACE, FEDERATIONS) for path in place.glob(way)}
    for other in sorted(found - {here}):
        # whoever else has a folder there knows the public half of a key, and may not keep the site from answering
        if _read(other / KEY) == mine and other.stat().st_uid == here.stat().st_uid == os.getuid():
            yield other


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
