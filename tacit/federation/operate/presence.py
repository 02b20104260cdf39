"""One process answers for a site. It knows whether the one before it died without leaving."""

import os
from pathlib import Path

from tacit.errors import BadInput
from tacit.machine import lock

LOCK = ".site.lock"
BOOT = Path("/proc/sys/kernel/random/boot_id")


def lock_folder(folder: Path) -> bool:
    """Locks a site's folder until this process ends. Returns whether an earlier one ran here, in this very folder, and is dead.

    Guarantee: one process at a time holds a folder; the lock ends with the process, however that ends. The lock's file holds
    its own inode and the machine's boot, so a copied folder, or one on another machine, never takes a process that may be alive
    for a dead one. Where the machine does not tell its boot, the answer is False.

    Raises: BadInput while another process holds the lock.
    """
    file = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o600)  # stays open: closing it would free the lock
    try:
        lock(file)
    except OSError:
        os.close(file)
        raise BadInput(f"Another process answers for the site in {folder}: stop it first.") from None
    boot = BOOT.read_bytes() if BOOT.exists() else os.urandom(16)
    mark = boot + str(os.fstat(file).st_ino).encode()
    known = os.pread(file, len(mark) + 1, 0) == mark
    os.ftruncate(file, 0)
    os.pwrite(file, mark, 0)
    return known
