"""The key of whatever in a ledger follows from rows, in a file of its own beside it: whoever has the ledger alone can guess rows
and never sees whether a guess was right.

A backup of the ledger without this file can be read and cannot be charged. Guarantee: the key is made once, before the ledger, and
never again; where it is gone, whatever the ledger knows would be of other rows, and its budgets would begin anew, so that is
refused.

Assumes: whoever may read this file is trusted with the rows. Where a system keeps no modes it lies as open as they do; noise that
must be secret is refused there (tacit/engine/run_folder.py).
"""

import hashlib
import secrets
from pathlib import Path

from tacit import machine
from tacit.crypto import keys
from tacit.errors import BadInput, KeyRefused, LedgerError

KEY_BYTES, KEYED_BYTES = 32, 16
SUFFIX = ".secret"


def of(ledger: Path) -> Path:
    """Where a ledger's secret lies.

    >>> of(Path("runs/first/ledger.db")).name
    'ledger.db.secret'
    """
    return ledger.with_name(ledger.name + SUFFIX)


def keyed(key: bytes, text: bytes | str) -> str:
    """What stands in a ledger, or anywhere else, for a text that follows from rows.

    >>> keyed(b"one", "rows") == keyed(b"one", "rows"), keyed(b"one", "rows") == keyed(b"other", "rows")
    (True, False)
    """
    raw = text.encode() if isinstance(text, str) else text
    return hashlib.blake2b(raw, digest_size=KEYED_BYTES, key=key, person=b"tacit-ledger").hexdigest()


def key_of(ledger: Path) -> bytes:
    """The key of a ledger; of one that nobody has begun it is made, by one of all who ask at once.

    Raises: LedgerError where it is gone, damaged, open to others or cannot be written.
    """
    file, begun = of(ledger), begun_at(ledger)  # in this order: a ledger that is there was begun after its secret
    if not file.exists():
        if begun:
            raise LedgerError(lost(ledger))
        _make(file)
    try:
        key = bytes.fromhex(str(keys.read(file, secret=machine.keeps_modes()).get("key")))
    except (KeyRefused, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise LedgerError(
            f"{file} is damaged, or not yours alone (mode 600), and without it {ledger} cannot be charged: put it back;"
            " nothing was released."
        )
    return key


def begun_at(ledger: Path) -> bool:
    """Whether a ledger is there and not empty."""
    return ledger.exists() and ledger.stat().st_size > 0


def lost(ledger: Path) -> str:
    """What is said of a ledger without its secret."""
    return (
        f"{of(ledger)} is gone, without which {ledger} can be read and not be charged (nobody could say whose rows it knows):"
        " restore it with the ledger; nothing was released."
    )


def _make(file: Path) -> None:
    try:
        record = {"key": secrets.token_hex(KEY_BYTES)}
        keys.write(file, record, mode=keys.SECRET if machine.keeps_modes() else keys.PUBLIC)
    except BadInput as error:
        if not file.exists():  # else another process was first
            raise LedgerError(f"{file} cannot be written ({error.__cause__}); nothing was released.") from error
