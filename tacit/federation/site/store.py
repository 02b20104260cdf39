"""How a site's files are written: for its owner alone, whole or not at all, and by one process at a time.

Folders have mode 0700 and files 0600 whatever the umask: kept answers of central DP carry no noise, and logs name the site's
data. What lies where is `layout`'s.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tacit.federation.site.layout import LOCK
from tacit.machine import locked

FOLDER, FILE = 0o700, 0o600
OTHERS = 0o077


def make_folder(path: Path) -> Path:
    """Makes a folder, and those above it that are missing, for the owner alone, and returns it; one that stands is left as it is.

    Guarantee: on return the new names have reached the disk, so that what is written into the folder cannot be lost with it.

    Raises: OSError.
    """
    for folder in reversed([path, *path.parents]):
        if not folder.exists():
            folder.mkdir(mode=FOLDER, exist_ok=True)
            folder.chmod(FOLDER)
            _sync(folder.parent)
    return path


def write(path: Path, content: bytes) -> None:
    """Writes a file, in the place of one that stands.

    Guarantee: a crash at any moment leaves the old content or the new one, whole; on return the new one and its name have reached
    the disk. Assumes: one writer at a time (`alone`). Raises: OSError, and then the old content stands.
    """
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    with _created(temporary) as file:
        _write(file, content)
    temporary.replace(path)
    _sync(path.parent)


def create(path: Path, content: bytes) -> bool:
    """Writes a file that does not exist yet; False where one stands, which is left as it is.

    Guarantee: of two processes at once one succeeds. A crash leaves the whole file or none; on return it has reached the disk.

    Raises: OSError.
    """
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
    """Adds a line to a file, and makes the file where there is none; on return the line has reached the disk. Raises: OSError."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE)
    with os.fdopen(file, "ab") as stream:
        _write(stream, line.encode("utf-8", "backslashreplace") + b"\n")


def tighten(folder: Path) -> None:
    """Takes from group and others whatever they could do with a site's folder and what lies in it.

    Links are left alone; so is what belongs to another user, without an error.
    """
    for path in (folder, *folder.rglob("*")):
        with contextlib.suppress(OSError):
            mode = path.lstat().st_mode
            if not path.is_symlink() and mode & OTHERS:
                path.chmod(mode & ~OTHERS & 0o7777)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Waits until no other process answers for the folder, and keeps others waiting until it is left.

    Guarantee: between processes and between threads one is inside at a time; the lock of one that was killed is free at once.
    It is advisory (flock): it holds back who asks for it. Raises: OSError where the lock's file cannot be opened.
    """
    file = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, FILE)
    try:
        with locked(file):
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
