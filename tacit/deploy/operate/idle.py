"""When a site makes its own models: in the quiet after the server's last word, in a process that no answer waits for.

Guarantee: while a question is answered no such process runs. It is ended, with all that it had begun, before the question is looked
at, and started again once nothing has come for `QUIET_SECONDS`. It has the lowest priority, holds no lock of answers, and opens no
ledger. So neither whether a site makes own models nor how long its rows take it shows in an answer."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tacit.deploy.operate.processes import MASK, end_with_parent
from tacit.deploy.site.at_home import due
from tacit.errors import TacitError

QUIET_SECONDS = 10.0
LOWEST = 19  # of priorities
COMMAND = "from tacit.deploy.operate.idle import main; main()"

T = TypeVar("T")


class Quiet:
    """The quiet at one site. Used as a context: whatever happens inside, no process is left over."""

    def __init__(self, folder: Path):
        self.folder, self._child = folder, None
        self._last, self._looked = time.monotonic(), False

    _child: "subprocess.Popen[bytes] | None"

    def __enter__(self) -> "Quiet":
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def broken(self, answer: Callable[[], T]) -> T:
        """Ends what is being made, and then answers."""
        self._end()
        try:
            return answer()
        finally:
            self._last, self._looked = time.monotonic(), False

    def look(self) -> None:
        """Starts to make what is due, where nothing has come for long enough; at most once until something comes."""
        if self._looked or time.monotonic() - self._last < QUIET_SECONDS:
            return
        self._looked = True
        with contextlib.suppress(TacitError, OSError):  # the process itself says in the log what is wrong
            if not due(self.folder):
                return
        self._end()
        with contextlib.suppress(OSError):
            self._child = subprocess.Popen(
                [sys.executable, "-c", COMMAND, str(self.folder), str(os.getpid())], umask=MASK,
                env=dict(os.environ) | {"OMP_NUM_THREADS": "1"}, cwd="/", start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip

    def _end(self) -> None:
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(
                    self._child.pid, signal.SIGKILL
                )  # a model's code may have begun others: all are in its session
            self._child.wait()
            self._child = None


def main() -> None:
    """What such a process does: `python -c ... FOLDER PARENT`."""
    from tacit import plugin
    from tacit.deploy.site.models import adapt_due  # what a site's own process never loads

    plugin.only_installed()
    os.nice(LOWEST)
    end_with_parent()
    if os.getppid() == int(sys.argv[2]):  # else it is gone already
        adapt_due(Path(sys.argv[1]))
