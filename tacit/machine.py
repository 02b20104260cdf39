"""What differs from one operating system to the next: locks on files, who may read a file, forks, and how many cores there are."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
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


def keeps_modes() -> bool:
    """Whether files have an owner and a mode here that keep them from other users; Windows has neither in this sense."""
    return hasattr(os, "getuid") and hasattr(os, "fchmod")


def set_mode(descriptor: int, mode: int) -> None:
    """Gives an open file exactly this mode, whatever the umask; does nothing where `keeps_modes` is false."""
    if keeps_modes():
        os.fchmod(descriptor, mode)


def closed_to_others(folder: Path) -> bool:
    """Whether nobody but its owner may look into a folder; false where `keeps_modes` is false."""
    return keeps_modes() and not folder.stat().st_mode & 0o077


def trusted(owner: int) -> bool:
    """Whether a file of this owner is this user's own or root's; false where nobody can tell."""
    return keeps_modes() and owner in (os.getuid(), 0)


def forks() -> bool:
    """Whether clients may be trained in forked processes: under Linux. macOS forks, but its libraries may end the child."""
    return sys.platform == "linux" and hasattr(os, "fork")


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Being stopped: SIGTERM ends a command as Ctrl-C does, with one sentence, and the exit code says which it was.

INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM  # as a shell counts


class Terminated(KeyboardInterrupt):
    """SIGTERM came: what Ctrl-C would have closed is closed."""


def stop_on_term() -> None:
    """Lets SIGTERM end this process as Ctrl-C does, so that what it started ends with it; a second one changes nothing."""

    def stop(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    signal.signal(signal.SIGTERM, stop)


def exit_code(error: KeyboardInterrupt) -> int:
    """What a command that was stopped returns.

    >>> exit_code(KeyboardInterrupt()), exit_code(Terminated())
    (130, 143)
    """
    return int(TERMINATED if isinstance(error, Terminated) else INTERRUPTED)
