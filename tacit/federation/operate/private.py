"""A federation's files are for their owner: folders 0700, files 0600, whatever the umask. They hold keys, rows and updates."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tacit.errors import BadInput

MASK = 0o077
FOLDER, FILE = 0o700, 0o600


@contextlib.contextmanager
def closed() -> Iterator[None]:
    """Has what is made meanwhile, by the whole process, be for its owner only; then the umask is again what it was."""
    before = os.umask(MASK)
    try:
        yield
    finally:
        os.umask(before)


def close(folder: Path) -> None:
    """Takes a folder, and all that is in it, from everybody but its owner. Links are left alone, and not followed.

    Guarantee: on return nothing in it that was there all the time can be read, written or entered by group or others. What is
    closed already is not touched, nor is a folder that does not exist.

    Raises: BadInput for what is open and belongs to another user.
    """
    for root, folders, files in os.walk(folder):
        for path, mode in ((Path(root), FOLDER), *((Path(root, name), FILE) for name in files)):
            if not path.is_symlink():
                _chmod(path, mode)
        folders[:] = [name for name in folders if not Path(root, name).is_symlink()]


def _chmod(path: Path, mode: int) -> None:
    try:
        now = path.stat().st_mode & 0o777
        if now & MASK:
            path.chmod(now & mode)
    except FileNotFoundError:
        return  # gone in between, as SQLite's journals are
    except PermissionError:
        raise BadInput(
            f"{path} is open to others and belongs to another user: give it to the one who runs this."
        ) from None
