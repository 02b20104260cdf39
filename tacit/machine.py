"""What differs from one operating system to the next: locks on files, and how many cores there are."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl: Any = None

_THREADS = threading.Lock()  # one for all files: where locks are a process's, its threads wait for each other here


def lock(descriptor: int, *, wait: bool = False) -> None:
    """Locks an open file for this process until it is closed or the process ends, however that ends.

    Guarantee: one process at a time; forked children do not inherit it. Raises: OSError while another process holds it, unless
    it is waited for.
    """
    if hasattr(os, "lockf"):
        os.lockf(descriptor, os.F_LOCK if wait else os.F_TLOCK, 0)
    else:  # on Windows, which nobody has tried: the first byte stands for the file
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]


@contextmanager
def locked(descriptor: int) -> Iterator[None]:
    """Waits until no other process and no other thread is inside, and keeps others waiting until it is left.

    Assumes: the file was opened for this, and is closed right after.
    """
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        return
    with _THREADS:
        lock(descriptor, wait=True)
        yield


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
