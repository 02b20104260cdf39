"""Files of ours on disk: written whole or not at all, created once, locked by one process, set aside but never deleted.

What differs between Linux and macOS is here too."""

import csv
import io
import os
import secrets
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tacit.errors import BadInput, RunExists

OWNER = 0o600  # the mode of a file that nobody but its owner may read


def refuse_taken(path: Path, *, resume: bool, force: bool) -> None:
    """Raises RunExists where a run would be overwritten, or BadInput where there is none to resume."""
    known = path / "experiment.toml"
    if known.exists() and not resume and not force:
        raise RunExists(
            f"{path} already holds a run: use --resume to go on with it, or --force to set it aside and start anew."
        )
    if resume and not known.exists():
        raise BadInput(f"There is no run to resume in {path}.")


def write(path: Path, content: bytes, *, mode: int | None = None, sync_name: bool = False) -> None:
    """Writes a file, in the place of one that stands. Assumes one writer at a time. Raises: OSError. Guarantee: a crash leaves
    the old content or the new one, whole; with a `mode` nobody else can read it at any moment, whatever the umask. Without one,
    a file in a folder that is closed to others is its owner's. `sync_name` has its name reach the disk too."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    closed = not path.parent.stat().st_mode & 0o077
    _fill(temporary, content, mode or (OWNER if closed else None))
    temporary.replace(path)
    if sync_name:
        sync(path.parent)


def create(path: Path, content: bytes, *, mode: int = OWNER) -> bool:
    """Writes a file that does not exist yet; False where one stands, which is left as it is, and is not opened. Raises:
    OSError. Guarantee: of two processes at once one succeeds; a crash leaves the whole file or none; on return it has reached
    the disk."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        _fill(temporary, content, mode)
        os.link(temporary, path)  # unlike a rename, it fails where a file stands
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)
    return True


def append(path: Path, line: str, *, mode: int = OWNER) -> None:
    """Adds a line to a file, and makes the file where there is none; on return the line has reached the disk. Raises: OSError."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, mode), "ab") as file:
        file.write(line.encode("utf-8", "backslashreplace") + b"\n")
        file.flush()
        os.fsync(file.fileno())


def sync(folder: Path) -> None:
    """Has the names in a folder reach the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def lock_folder(path: Path) -> int:
    """Takes a folder for this process; close the descriptor to give it free. Raises RunExists where another process has it."""
    held = os.open(path / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
    try:
        os.lockf(held, os.F_TLOCK, 0)  # not inherited by worker processes, so a kill frees it at once
    except OSError as error:
        os.close(held)
        raise RunExists(f"Another process is running in {path}: wait for it, or choose another --out.") from error
    return held


def set_aside(path: Path) -> None:
    """Moves a folder to `path.1`, `path.2`, ... Raises RunExists while a process runs in it, which would go on writing."""
    os.close(lock_folder(path))
    path.rename(first_free(path.with_name(f"{path.name}.{number}") for number in range(1, 10**6)))


def first_free(paths: Iterable[Path]) -> Path:
    """The first of the paths that does not exist."""
    return next(path for path in paths if not path.exists())


def refuse_foreign(path: Path, *, begins: bytes) -> None:
    """Raises BadInput where writing would replace a file that does not begin like ours, such as a ledger; an empty one may go."""
    try:
        with path.open("rb") as file:
            found = file.read(len(begins))
    except OSError:
        return  # there is none, or writing says why not
    if found and found.lower() != begins:
        raise BadInput(f"{path} is another file, which would be lost: name one that is not there yet.")


def _fill(path: Path, content: bytes, mode: int | None) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode)
    with os.fdopen(handle, "wb") as file:
        if mode is not None:
            os.fchmod(file.fileno(), mode)  # the umask may have taken bits
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def csv_of(records: Sequence[Mapping[str, Any]], keys: Iterable[str] = ()) -> bytes:
    """Records as a CSV file, with every key that any of them has; `keys` are the heading where there are none."""
    file = io.StringIO(newline="")
    found = list(dict.fromkeys(key for record in records for key in record)) or list(keys)
    writer = csv.DictWriter(file, found, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return file.getvalue().encode()


def forks() -> bool:
    """Whether clients may be trained in forked processes: under Linux. macOS forks, but its libraries may end the child."""
    return sys.platform == "linux"


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
