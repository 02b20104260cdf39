"""Key files: JSON that only its owner can read.

A secret file is created with mode 0600, appears whole or not at all, and is never overwritten unless that is asked for.
One that others can read is refused: it may have been copied already. Where a system has no modes, secrets are neither written
nor read: nobody could say who reads them.
"""

import contextlib
import json
import os
import secrets
from base64 import b64decode, urlsafe_b64encode
from pathlib import Path
from typing import Any

from gmpy2 import mpz

from tacit import machine
from tacit.errors import BadInput, KeyRefused
from tacit.parse import json_object

SECRET, PUBLIC = 0o600, 0o644
MOST_BYTES = 1 << 20  # the verification keys of 100 shares of 4096 bits take 140 kB


def to_text(number: int) -> str:
    """A number as JSON web keys have it: base64url of its big-endian bytes, without padding (RFC 7518, section 2).

    Raises: OverflowError for a negative number.

    >>> to_text(65537), from_text("AQAB")
    ('AQAB', mpz(65537))
    """
    number = int(number)
    return bytes_to_text(number.to_bytes((number.bit_length() + 7) // 8, "big"))


def from_text(text: str) -> mpz:
    """The number that `to_text` wrote.

    Raises: ValueError or TypeError for what is no base64url, as `bytes_from_text`.
    """
    return mpz(int.from_bytes(bytes_from_text(text), "big"))


def bytes_to_text(raw: bytes) -> str:
    """base64url without padding."""
    return urlsafe_b64encode(raw).decode().rstrip("=")


def bytes_from_text(text: str) -> bytes:
    r"""What `bytes_to_text` wrote, with or without padding.

    Raises: ValueError for a character outside the alphabet or a length that no bytes have, TypeError for what is no text.

    >>> bytes_from_text("AQAB")
    b'\x01\x00\x01'
    """
    if not isinstance(text, str):
        raise TypeError(f"{type(text).__name__} in the place of base64url")
    return b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def write(path: Path, record: dict[str, Any], *, mode: int, force: bool = False) -> None:
    """Writes a record as JSON into a file of exactly this mode.

    Guarantee: the file is there complete, and forced to the disk, or not at all; a secret is never readable by others, not
    for a moment, because the temporary file is created with its mode. Without `force` an existing file is left as it is.

    Raises: BadInput if the file exists and `force` is not given, or if it cannot be written; KeyRefused for a secret on a system
    without modes.
    """
    if mode == SECRET:
        _refuse_open(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(file, "w", encoding="utf-8") as stream:
            stream.write(json.dumps(record, indent=1) + "\n")
            stream.flush()
            machine.set_mode(stream.fileno(), mode)  # the umask may have taken bits of a public file
            os.fsync(stream.fileno())
        if force:
            temporary.replace(path)
        else:
            os.link(temporary, path)  # unlike a rename, it fails where a file stands
    except FileExistsError as error:
        raise BadInput(f"{path} exists: choose another folder, or overwrite it with --force.") from error
    except OSError as error:
        raise BadInput(f"{path} could not be written ({error.strerror}): choose another folder.") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def read(path: Path, *, secret: bool) -> dict[str, Any]:
    """The JSON object in a key file.

    Guarantee: with `secret`, the mode and the owner are those of the very file that is read.

    Raises: KeyRefused if the file is missing, unreadable, longer than MOST_BYTES or no JSON object; with `secret` also if
    group or others have any right to it, if it belongs to another user than this one or root, or if the system cannot tell.
    """
    if secret:
        _refuse_open(path)
    try:
        with path.open("rb") as stream:
            state = os.fstat(stream.fileno())
            if secret and state.st_mode & 0o077:
                raise KeyRefused(f"{path} can be read by others: make a new key, or `chmod 600` it if nobody else did.")
            if secret and not machine.trusted(state.st_uid):
                raise KeyRefused(f"{path} belongs to another user: make a key of your own.")
            return json_object(stream.read(MOST_BYTES + 1).decode("utf-8"), most=MOST_BYTES, finite=True)
    except IsADirectoryError as error:
        raise KeyRefused(f"{path} is a folder: name a key file in it, such as {path / 'public.json'}.") from error
    except FileNotFoundError as error:
        raise KeyRefused(f"{path} is missing: get it from whoever made the keys, or make new ones.") from error
    except OSError as error:
        raise KeyRefused(f"{path} cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise KeyRefused(f"{path} is not a key file: it is not a JSON object such as Tacit writes.") from error


def _refuse_open(path: Path) -> None:
    if not machine.keeps_modes():
        raise KeyRefused(
            f"{path} is a secret, and this system has no file modes that keep it from other users: use Linux or macOS."
        )
