"""`tacit deploy site`: one site. Joins its server as a node and answers until it is stopped.

In the quiet after the server's last word it makes the site's own models, where its site.toml asks for some, in a process that no
answer waits for: ended before a question is looked at, of the lowest priority, without a ledger or a lock of answers. So neither
whether a site makes own models nor how long its rows take it shows in an answer."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tacit import plugin
from tacit.deploy.operate.layout import refuse_keyless
from tacit.deploy.operate.processes import MASK, close, end_with_parent, lock_folder
from tacit.deploy.site.layout import LOG, SPOKEN, Plain, compared, due, read_settings, wanted
from tacit.deploy.site.limits import read_limits
from tacit.deploy.site.site import Site
from tacit.errors import TacitError, stop_on_term

FORGET_SECONDS = 90.0  # a SuperLink takes a killed node for online until two heartbeats, of every 30 s, are missed
AGAIN_SECONDS = 3.0
JOINED = "joined the server"
QUIET_SECONDS = 10.0
LOWEST = 19  # of priorities
COMMAND = "from tacit.deploy.operate.site_process import make_own_models; make_own_models()"

T = TypeVar("T")


def run_site(folder: Path) -> None:
    """Joins the server that `site.toml` names, and answers until SIGTERM or Ctrl-C. Raises: BadInput, TacitError.

    Guarantee: it answers by the code that is installed here; modules beside the folder it was started in are not imported. Its
    files are for their owner only, one process answers for a folder, and nothing that a message holds ends it.
    """
    plugin.only_installed()
    folder = folder.resolve()
    settings = read_settings(folder)
    read_limits(folder)
    wanted(settings)  # now, because nothing that is wrong with it may be seen in an answer
    refuse_keyless(folder)
    os.umask(MASK)
    close(folder)
    stop_on_term()
    died, server = lock_folder(folder), str(settings["server"])
    voice = logging.StreamHandler(sys.stdout)
    voice.setFormatter(Plain("%(asctime)s  %(message)s", "%H:%M:%S"))
    SPOKEN.handlers, SPOKEN.propagate = [voice], False
    SPOKEN.setLevel(logging.INFO)
    SPOKEN.info(f"{settings['name']} joins {server}; everything is in {folder / LOG}, Ctrl-C stops it.")
    try:
        _serve(folder, str(settings["name"]), server, died=died)
    finally:  # said, not made: a process that answers loads and reads nothing that it does not answer with
        SPOKEN.info("left; `tacit report %s` makes the site's own page: what it was promised and has spent", folder)


def _serve(folder: Path, name: str, server: str, *, died: bool) -> None:
    import httpx

    from tacit.deploy.server.client import respond
    from tacit.deploy.server.node import FleetNode, NotLetIn, answer, passing

    node, site, refused = FleetNode(folder, server=server), Site(folder), None
    with OwnModels(folder) as models:
        try:
            while True:
                try:
                    node.join(died=died)
                    died, refused = True, None  # from here on, the node that the server knows is this one
                    SPOKEN.info(JOINED)
                    answer(node, lambda message: models.broken(lambda: respond(site, message)), idle=models.look)
                except NotLetIn:
                    refused = refused or time.monotonic()
                    if time.monotonic() - refused > FORGET_SECONDS:
                        raise TacitError(
                            f"The server does not let {name} in: register its node.pub there, or stop the other process "
                            "that uses its key."
                        ) from None
                except httpx.HTTPError as error:
                    if not passing(error):
                        raise TacitError(f"Site {name} left: {error}") from None
                    SPOKEN.info("the server %s cannot be reached (%s); trying again", server, error)
                time.sleep(AGAIN_SECONDS)
        finally:
            node.leave()


class OwnModels:
    """Makes a site's own models while nothing is asked. Used as a context: whatever happens inside, no process is left over."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._child: subprocess.Popen[bytes] | None = None
        self._due: list[str] = []  # the runs that it makes them of
        self._last, self._looked = time.monotonic(), False

    def __enter__(self) -> "OwnModels":
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def broken(self, answer: Callable[[], T]) -> T:
        self._end()
        try:
            return answer()
        finally:
            self._last, self._looked = time.monotonic(), False

    def look(self) -> None:
        """Starts to make what is due, where nothing has come for `QUIET_SECONDS`, at most once until something comes; says when
        it is made."""
        if self._child is not None and self._child.poll() is not None:
            self._child = None
            self._tell()
        if self._looked or time.monotonic() - self._last < QUIET_SECONDS:
            return
        self._looked = True
        with contextlib.suppress(TacitError, OSError):  # the process itself says in the log what is wrong
            self._due = due(self.folder)
            if not self._due:
                return
        self._end()
        with contextlib.suppress(OSError):
            self._child = subprocess.Popen(
                [sys.executable, "-c", COMMAND, str(self.folder), str(os.getpid())], umask=MASK,
                env=dict(os.environ) | {"OMP_NUM_THREADS": "1"}, cwd="/", start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip

    def _tell(self) -> None:
        for run in self._due:
            with contextlib.suppress(TacitError, OSError):
                told = compared(self.folder, run)
                SPOKEN.info("own models of run %s: %s", run, told["because"] if told else "none; the log says why")

    def _end(self) -> None:
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(
                    self._child.pid, signal.SIGKILL
                )  # a model's code may have begun others: all are in its session
            self._child.wait()
            self._child = None


def make_own_models() -> None:
    """What such a process does: `python -c COMMAND FOLDER PARENT`."""
    from tacit.deploy.site.models import adapt_due  # what a site's own process never loads

    plugin.only_installed()
    os.nice(LOWEST)
    end_with_parent()
    if os.getppid() == int(sys.argv[2]):  # else it is gone already
        adapt_due(Path(sys.argv[1]))
