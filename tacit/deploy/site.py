"""`tacit deploy site`: one site. Starts its SuperNode and answers for it until it is stopped."""

import signal
import time
from pathlib import Path
from typing import Any

from tacit.deploy.processes import Processes, free_port, program
from tacit.errors import BadInput, TacitError
from tacit.site.limits import read_limits
from tacit.site.site import Site

START_SECONDS = 60.0


def run_site(folder: Path) -> None:
    """Joins the server that `site.toml` names. Ends when the SuperNode ends, or on SIGTERM or Ctrl-C."""
    from tacit.engine.flower.executor import answer_for

    folder = folder.resolve()
    settings = Site(folder).settings()
    read_limits(folder)
    for name in ("node.key", "ca.crt"):
        if not (folder / name).is_file():
            raise BadInput(f"{folder / name} is missing: the site cannot prove who it is, or who the server is.")
    signal.signal(signal.SIGTERM, _stop)
    port = free_port()
    with Processes(home=folder / "flwr") as processes:
        command = _supernode(folder, str(settings["server"]), port)
        processes.start("SuperNode", command, log=folder / "supernode.log", cwd=folder)
        answer_for(folder, address=f"127.0.0.1:{port}", alive=lambda: not processes.ended("SuperNode"))
        try:
            processes.refuse_ended()
        except TacitError as error:
            raise TacitError(f"Site {settings['name']} left: {error}") from None


def _supernode(folder: Path, server: str, port: int) -> list[str | Path]:
    command: list[str | Path] = [program("flower-supernode"), "--root-certificates", folder / "ca.crt"]
    command += ["--superlink", server, "--auth-supernode-private-key", folder / "node.key"]
    return [*command, "--isolation", "process", "--host", "127.0.0.1", "--port", str(port)]


def _stop(*_: Any) -> None:
    time.sleep(0)
    raise KeyboardInterrupt
