"""`tacit deploy site`: one site. Joins its server as a node and answers until it is stopped."""

import logging
import os
import sys
import time
from pathlib import Path

from tacit import plugin
from tacit.deploy.operate.processes import MASK, close, lock_folder
from tacit.deploy.site.at_home import wanted
from tacit.deploy.site.layout import LOG
from tacit.deploy.site.limits import read_limits
from tacit.deploy.site.log import SPOKEN, Plain
from tacit.deploy.site.site import Site
from tacit.errors import BadInput, TacitError
from tacit.machine import stop_on_term

FORGET_SECONDS = (
    90.0  # a SuperLink takes a killed node for online until its heartbeats are missed: every 30 s, two may be
)
AGAIN_SECONDS = 3.0
JOINED = "joined the server"


def run_site(folder: Path) -> None:
    """Joins the server that `site.toml` names, and answers until SIGTERM or Ctrl-C, or until the server does not let it in.

    Guarantee: it answers by the code that is installed here; modules beside the folder it was started in are not imported. Its
    files are for their owner only, one process answers for a folder, and nothing that a message holds ends it.

    Raises: BadInput for files that are missing or cannot be read, and while another process answers for the folder; TacitError
    where the server has not let it in for `FORGET_SECONDS`, or its certificate is not accepted.
    """
    plugin.only_installed()
    folder = folder.resolve()
    settings = Site(folder).settings
    read_limits(folder)
    wanted(settings)  # now, because nothing that is wrong with it may be seen in an answer
    for name in ("node.key", "ca.crt"):
        if not (folder / name).is_file():
            raise BadInput(f"{folder / name} is missing: the site cannot prove who it is, or who the server is.")
    os.umask(MASK)
    close(folder)
    stop_on_term()
    died, server = lock_folder(folder), str(settings["server"])
    _speak(f"{settings['name']} joins {server}; everything is in {folder / LOG}, Ctrl-C stops it.")
    try:
        _serve(folder, str(settings["name"]), server, died=died)
    finally:  # said, not made: a process that answers loads and reads nothing that it does not answer with
        SPOKEN.info("left; `tacit report %s` makes the site's own page: what it was promised and has spent", folder)


def _serve(folder: Path, name: str, server: str, *, died: bool) -> None:
    import httpx

    from tacit.deploy.server.executor import answer_for
    from tacit.deploy.server.node import FleetNode, NotLetIn, passing

    node, refused = FleetNode(folder, server=server), None
    try:
        while True:
            try:
                node.join(died=died)
                died, refused = True, None  # from here on, the node that the server knows is this one
                SPOKEN.info(JOINED)
                answer_for(folder, node)
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


def _speak(first: str) -> None:
    voice = logging.StreamHandler(sys.stdout)
    voice.setFormatter(Plain("%(asctime)s  %(message)s", "%H:%M:%S"))
    SPOKEN.handlers, SPOKEN.propagate = [voice], False
    SPOKEN.setLevel(logging.INFO)
    SPOKEN.info(first)
