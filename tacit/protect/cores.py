"""Big integers computed on all cores, now or in the background.

gmpy2 holds the interpreter's lock while it multiplies, so the work goes to forked processes: they inherit tables and
keys without a copy, write integers of a fixed width into shared memory, and end by themselves. No threads and no queue
are left behind, so a process that forks later (as the engine does) is as safe as before. Work that must not repeat
itself has to draw from the operating system (`secrets`), never from a generator whose state the fork would copy.
"""

import contextlib
import mmap
import os
import signal
from collections.abc import Callable, Iterable
from itertools import pairwise

from gmpy2 import mpz

from tacit import machine
from tacit.protect.octets import from_octets

Compute = Callable[[int, int], Iterable[mpz]]  # the integers number start to stop - 1
NO_PROCESS = -1
WORTH_A_FORK = 8  # fewer integers than this are computed in place: a fork costs about as much


class Batch:
    """`count` integers below 256^width that forked processes compute while the caller goes on.

    Guarantee: `result` gives what `compute(0, count)` would, in order. A process that failed, was killed or could not be
    started is no loss: its part is computed again in the caller, where an error can be seen. No process outlives the batch:
    `close`, which is also called when the batch is no longer used, kills and awaits what still runs.

    Assumes: `compute(start, stop)` yields stop - start integers, none negative and none of more than `width` bytes; if it
    draws anything, it draws from the operating system, because a generator's state would be copied by the fork; `workers` is
    at least 1.
    """

    def __init__(self, compute: Compute, count: int, *, width: int, workers: int):
        self._compute, self._width, self._owner = compute, width, os.getpid()
        self._parts: list[tuple[int, int, int]] = []  # process, start, stop
        self._memory = mmap.mmap(-1, max(1, count * width))
        for start, stop in pairwise(count * k // workers for k in range(workers + 1)):
            if stop > start:
                self._parts.append((self._fork(start, stop), start, stop))

    def result(self) -> list[mpz]:
        """The integers, in order, once every process has ended.

        Each part is handed over once, so a second call returns an empty list.

        Raises: what `compute` raises, for a part that had to be computed here.
        """
        values: list[mpz] = []
        while self._parts:
            pid, start, stop = self._parts[0]
            done = _succeeded(pid)
            del self._parts[0]
            values += self._read(start, stop) if done else list(self._compute(start, stop))
        return values

    def close(self) -> None:
        """Ends what still runs. Does nothing in a process that inherited the batch by a fork."""
        if os.getpid() != self._owner:
            return
        while self._parts:
            pid, _, _ = self._parts.pop()
            if pid != NO_PROCESS:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                _succeeded(pid)

    __del__ = close

    def _fork(self, start: int, stop: int) -> int:
        try:
            pid = os.fork()
        except OSError:  # no process or memory to be had: the caller computes this part itself
            return NO_PROCESS
        if pid:
            return pid
        try:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            width = self._width
            for position, value in zip(range(start, stop), self._compute(start, stop), strict=True):
                self._memory[position * width : (position + 1) * width] = int(value).to_bytes(width, "big")
            os._exit(0)
        finally:
            os._exit(1)  # whatever happened: nothing of the parent's may run here

    def _read(self, start: int, stop: int) -> list[mpz]:
        return from_octets(self._memory[start * self._width : stop * self._width], width=self._width)


def _succeeded(pid: int) -> bool:
    """Waits for a process; whether it did its part."""
    try:
        return pid != NO_PROCESS and os.waitpid(pid, 0)[1] == 0
    except ChildProcessError:  # a program that ignores SIGCHLD never hears how its processes ended
        return False


def compute(work: Compute, count: int, *, width: int, workers: int | None = None) -> list[mpz]:
    """`count` integers below 256^width, on `workers` cores (all of them if None).

    Guarantee: the integers of `work(0, count)` in their order, however many cores there are. Few integers, one core, or a
    system without `fork` compute them in this process.

    Assumes: of `work` what `Batch` does of its `compute`.

    Raises: what `work` raises.

    >>> compute(lambda start, stop: (mpz(i * i) for i in range(start, stop)), 4, width=1)
    [mpz(0), mpz(1), mpz(4), mpz(9)]
    """
    workers = min(workers or machine.cores(), count)
    if workers < 2 or count < WORTH_A_FORK or not hasattr(os, "fork"):
        return list(work(0, count))
    return Batch(work, count, width=width, workers=workers).result()
