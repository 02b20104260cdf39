"""`tacit deploy site`: one site. Starts its SuperNode and answers for it until it is stopped."""

import logging
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tacit.deploy.presence import take_place
from tacit.deploy.processes import Processes, free_port, program
from tacit.errors import BadInput, TacitError
from tacit.site.limits import read_limits
from tacit.site.log import NAME, SPOKEN
from tacit.site.site import Site

STILL_ONLINE = (
    "Failed to activate SuperNode"  # a SuperLink takes a killed node for online until its heartbeats are missed
)
FORGET_SECONDS = 90.0  # Flower's heartbeats: every 30 s, two may be missed
AGAIN_SECONDS = 3.0
STEADY_SECONDS = 60.0  # who was connected for so long was not refused


def run_site(folder: Path) -> None:
    """Joins the server that `site.toml` names. Ends when the SuperNode ends, or on SIGTERM or Ctrl-C."""
    from tacit.engine.flower.sign_off import sign_off

    folder = folder.resolve()
    settings = Site(folder).settings
    read_limits(folder)
    for name in ("node.key", "ca.crt"):
        if not (folder / name).is_file():
            raise BadInput(f"{folder / name} is missing: the site cannot prove who it is, or who the server is.")
    signal.signal(signal.SIGTERM, _stop)
    died, deadline, server = take_place(folder), None, str(settings["server"])
    _speak(f"{settings['name']} joins {server}; everything is in {folder / NAME}, Ctrl-C stops it.")
    while True:
        began = time.monotonic()
        why = _serve(folder, server)
        deadline = began + FORGET_SECONDS if deadline is None or time.monotonic() - began > STEADY_SECONDS else deadline
        if STILL_ONLINE not in why:
            raise TacitError(f"Site {settings['name']} left: {why}")
        if time.monotonic() > deadline:
            raise TacitError(
                f"The server does not let {settings['name']} in: register its node.pub there, or stop the other process "
                "that uses its key."
            )
        if died:  # this folder's earlier process: it cannot sign off itself
            sign_off(folder, server=server)
        died = False
        time.sleep(AGAIN_SECONDS)


def _serve(folder: Path, server: str) -> str:
    """Answers for the site until its SuperNode ends, and returns why it did."""
    from tacit.engine.flower.executor import answer_for

    port = free_port()
    with Processes(home=folder / "flwr") as processes:
        log = folder / "supernode.log"
        processes.start("SuperNode", _supernode(folder, server, port), log=log, cwd=folder, session=False)
        answer_for(folder, address=f"127.0.0.1:{port}", alive=lambda: not processes.ended("SuperNode"))
        try:
            processes.refuse_ended(lines=12)
        except TacitError as error:
            return str(error)
    return "its SuperNode ended"


def _supernode(folder: Path, server: str, port: int) -> list[str | Path]:
    command: list[str | Path] = [program("flower-supernode"), "--root-certificates", folder / "ca.crt"]
    command += ["--superlink", server, "--auth-supernode-private-key", folder / "node.key"]
    return [*command, "--isolation", "process", "--host", "127.0.0.1", "--port", str(port)]


def _speak(first: str) -> None:
    """Says on standard output what the site is asked and answers, for whoever started it."""
    voice = logging.StreamHandler(sys.stdout)
    voice.setFormatter(logging.Formatter("%(asctime)s  %(message)s", "%H:%M:%S"))
    SPOKEN.handlers, SPOKEN.propagate = [voice], False
    SPOKEN.setLevel(logging.INFO)
    SPOKEN.info(first)


def _stop(*_: Any) -> None:
    raise KeyboardInterrupt
