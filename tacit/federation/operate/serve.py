"""`tacit deploy server`: the SuperLink on loopback and the gateway before it, with the sites' keys told to it."""

import ipaddress
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tacit.errors import BadInput, TacitError
from tacit.federation.operate.layout import CONNECTION, Federation, open_federation
from tacit.federation.operate.private import close
from tacit.federation.operate.processes import QUIET, Processes, reach, taken
from tacit.stopping import stop_on_term

START_SECONDS = 300.0  # for a program of Flower's on a busy machine; one that fails is noticed at once
LOOK_SECONDS = 0.25
HERE = "127.0.0.1"
FEDERATION = "TACIT_FEDERATION"  # tells the ServerApp, which runs below the SuperLink, where this federation lies


def run_server(folder: Path, *, listen: str | None, tell: Callable[[str], None]) -> None:
    """Serves until SIGTERM or Ctrl-C, and has ended its programs when it returns or raises.

    `listen` is the address of the gateway; left out, all of this machine's, or loopback where sites reach the server as this
    machine. `tell` is called with what an operator should know.

    Raises: BadInput for a folder that is no federation's or a port that is in use; TacitError with the reason where one of its
    programs ends, or does not start in `START_SECONDS`; KeyboardInterrupt when it is stopped.
    """
    federation = open_federation(folder)
    stop_on_term()
    with Processes(home=federation.home) as processes:
        start_server(federation, processes, listen=listen or _listen(federation))
        register(federation, processes)
        tell(f"The server is up at {federation.address}, for {', '.join(federation.sites)}. Ctrl-C stops it.")
        tell(f"Run the experiment from here: {run_command(federation)}")
        while True:
            processes.refuse_ended()
            time.sleep(LOOK_SECONDS)


def run_command(federation: Federation) -> str:
    """The command that starts a run from a terminal on the server, quoted for a shell, with Flower's calls to the network off."""
    offline = {name: QUIET[name] for name in ("FLWR_TELEMETRY_ENABLED", "FLWR_DISABLE_UPDATE_CHECK")}
    words = [f"{name}={value}" for name, value in {"FLWR_HOME": shlex.quote(str(federation.home)), **offline}.items()]
    return " ".join([*words, "flwr", "run", shlex.quote(str(federation.app)), CONNECTION, "--stream"])


def start_server(federation: Federation, processes: Processes, *, listen: str = HERE) -> None:
    """Starts SuperLink and gateway, and waits until both listen.

    Guarantee: the SuperLink listens on loopback only; what sites reach at `listen` is the gateway.

    Raises: BadInput for a port that is in use, before anything is started; TacitError with the last words of a program that
    ended.
    """
    for port in (federation.inner, federation.port):
        if taken(port):
            raise BadInput(
                f"Port {port} is in use: stop what listens there, or change it in federation.toml (sites have `port`, not "
                "`inner_port`, in their site.toml)."
            )
    start_superlink(federation, processes)
    start_gateway(federation, processes, listen=listen)


def start_superlink(federation: Federation, processes: Processes) -> None:
    """Starts the SuperLink, which only this machine reaches, and waits until it listens over TLS.

    Its folders are closed to other users first, and Flower's configuration is written anew, so that a federation may be moved.
    """
    server = federation.server
    for folder in (server, federation.home, federation.results):
        close(folder)
    federation.write_flower()
    command = [
        sys.executable,
        "-m",
        "tacit.federation.flower.superlink",
        "--host",
        HERE,
        "--port",
        str(federation.inner),
    ]
    command += ["--ssl-ca-certfile", str(server / "ca.crt"), "--ssl-certfile", str(server / "server.pem")]
    command += ["--ssl-keyfile", str(server / "server.key"), "--enable-supernode-auth"]
    command += ["--disable-runtime-dependency-installation", "--database", str(server / "superlink.db")]
    lies = {FEDERATION: str(federation.folder)}
    processes.start("SuperLink", command, log=server / "superlink.log", cwd=server, environment=lies)
    _wait(federation, processes, federation.inner)


def start_gateway(federation: Federation, processes: Processes, *, listen: str = HERE) -> None:
    """Starts the gateway that sites reach, and waits until it is open."""
    command = [
        sys.executable,
        "-m",
        "tacit.federation.operate.gateway",
        f"{listen}:{federation.port}",
        federation.control,
    ]
    server = federation.server
    processes.start("gateway", [*command, server], log=server / "gateway.log", cwd=server)
    _wait(federation, processes, federation.port)


def register(federation: Federation, processes: Processes) -> None:
    """Tells the SuperLink the sites' keys, each under its site's name; what it knows already stays. May be repeated."""
    keys = [f"{name}={federation.key(name)}" for name in federation.sites]
    command = [sys.executable, "-m", "tacit.federation.flower.register", CONNECTION, *keys]
    processes.call(command, seconds=START_SECONDS, cwd=federation.folder)


def _wait(federation: Federation, processes: Processes, port: int) -> None:
    ends = time.monotonic() + START_SECONDS
    while (why := reach(HERE, port, authority=federation.server / "ca.crt")) is not None:
        processes.refuse_ended()
        if time.monotonic() > ends or "certificate" in why:
            raise TacitError(f"The server cannot be reached at {HERE}:{port}: {why}.")
        time.sleep(LOOK_SECONDS)


def _listen(federation: Federation) -> str:
    """All addresses of this machine, unless sites reach it as this very machine."""
    try:
        here = ipaddress.ip_address(federation.host).is_loopback
    except ValueError:
        here = federation.host == "localhost"
    return HERE if here else "0.0.0.0"
