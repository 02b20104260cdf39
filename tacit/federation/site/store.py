"""A site's files: for its owner alone, whole or not at all, and one process at a time.

Folders have mode 0700 and files 0600 whatever the umask: kept answers of central DP carry no noise, and logs name the site's data.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

FOLDER, FILE = 0o700, 0o600
OTHERS = 0o077


def make_folder(path: Path) -> Path:
    """Makes a folder, and those above it that are missing, for the owner alone."""
    for place in reversed([path, *path.parents]):
        if not place.exists():
            place.mkdir(mode=FOLDER, exist_ok=True)
            place.chmod(FOLDER)
    return path


def write(path: Path, content: bytes) -> None:
    """Replaces a file; a crash leaves the old content or the new one. On return it has reached the disk."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    with _created(temporary) as file:
        _write(file, content)
    temporary.replace(path)
    _sync(path.parent)


def create(path: Path, content: bytes) -> bool:
    """Writes a file that does not exist yet; False where one stands, which is left as it is. Of two at once one succeeds."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    temporary.unlink(missing_ok=True)
    with _created(temporary) as file:
        _write(file, content)
    try:
        os.link(temporary, path)  # unlike a rename, it fails where a file stands
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    _sync(path.parent)
    return True


def append(path: Path, line: str) -> None:
    """Adds a line to a file; on return it has reached the disk."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE)
    with os.fdopen(file, "ab") as stream:
        _write(stream, line.encode("utf-8", "backslashreplace") + b"\n")


def tighten(folder: Path) -> None:
    """Takes from others whatever they could do with a site's folder and what lies in it."""
    for place in (folder, *folder.rglob("*")):
        with contextlib.suppress(OSError):
            mode = place.lstat().st_mode
            if not place.is_symlink() and mode & OTHERS:
                place.chmod(mode & ~OTHERS & 0o7777)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Waits until no other process answers for the folder, and keeps others waiting until it is left."""
    file = os.open(folder / ".answer.lock", os.O_CREAT | os.O_RDWR, FILE)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _created(path: Path):
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE), "wb")


def _write(file, content: bytes) -> None:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """A new name reaches the disk with its folder."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
