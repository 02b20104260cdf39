"""The starts of a search in its ledger: of copies of its folder, and of older ones that were put back, one alone has each.

A search is paid for once. Where its runs would not give the same bits again (noise of the operating system, a GPU), a second copy
that went on would show a second draw for that one charge, if only by whether its best is the first one's too. So every start has a
name, which lies in the folder and is noted in the ledger under its number; who finds another one there is not who went on. A start
is in the folder before it is in the ledger: whoever is killed in between goes on.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tacit.build.parts import Parts
from tacit.errors import LedgerError
from tacit.privacy.ledger.ledger import Ledger
from tacit.tuning import folder as folders
from tacit.tuning import secret

SEARCH = "search"  # under which name the ledger knows what was found
NOTHING = "nothing was found"


def begin_hidden(path: Path, state: secret.State, ledger: Ledger, start: str) -> secret.State:
    """Notes a start of a search of which only the best is seen. Returns its state, which is on disk.

    Raises: LedgerError where a copy has gone on, or has published what it found before this one knew; then nothing may be run.
    """
    if ledger.released(SEARCH) and state.done < len(state.picks):
        raise LedgerError(
            f"The ledger {ledger.path} knows that this search was released, as something else than the runs left here would give:"
            " a copy of the folder has ended before. Nothing was released."
        )
    state = replace(state, starts=(*state.starts, start))
    secret.write(path, state)
    _note(ledger, SEARCH, state.starts)
    return state


def begin_seen(path: Path, number: int, ledger: Ledger, parts: Parts) -> None:
    """Notes that a run which is seen may release from now on; in the ledger too where its noise will not come again.

    Raises: LedgerError where another folder had this start; then nothing may be released.
    """
    known = folders.starts(path, number)
    known = [*known, parts.nonce] if parts.nonce else known
    folders.note_begun(path, number, *known)
    _note(ledger, f"run {number}", known)


def release(ledger: Ledger, found: str, state: secret.State | None) -> None:
    """Notes what a search is about to publish: one thing for its charge, and nothing once a copy has gone on after this start.

    Raises: LedgerError; then nothing may be published.
    """
    if state and state.starts and ledger.released(_named(SEARCH, len(state.starts))):
        raise LedgerError(
            f"The ledger {ledger.path} knows a later start of this search: a copy of its folder went on, and what that one finds"
            " stands for the charge. Nothing was released."
        )
    ledger.release(SEARCH, found)


def _note(ledger: Ledger, what: str, known: Sequence[str]) -> None:
    for place, start in enumerate(known):  # those before too: a folder that made some up is not the one that had them
        ledger.release(_named(what, place), start)


def _named(what: str, place: int) -> str:
    return f"{what}, start {place}"
