"""`tacit deploy up`: a whole federation on this machine, for a trial, over TLS and with node authentication."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tacit.errors import TacitError
from tacit.federation.operate.layout import CONNECTION, Federation
from tacit.federation.operate.processes import Processes, alive, program
from tacit.federation.operate.serve import LOOK_SECONDS, START_SECONDS, register, start_server
from tacit.federation.operate.site_process import JOINED
from tacit.federation.site.join import read_settings

STARTING = 4  # sites that start at the same time
JOIN_SECONDS = 120.0  # for so many of them to join
ASK_SECONDS = 10.0  # between two questions to Flower about a run that has not said anything yet

Tell = Callable[[str], None]
Observed = Callable[[dict[str, Any]], None]


def up(federation: Federation, *, resume: bool, force: bool, tell: Tell, observe: Observed) -> dict[str, Any]:
    """Starts server and sites, runs the experiment and returns its summary.

    Guarantee: every process has ended when it returns or raises. The way is that of a deployment: TLS, node keys, the gateway, a
    process for each site; only the network is this machine's. What is charged to the sites' ledgers is charged in earnest.

    Assumes: nothing is wrong with the federation (`inspect.refuse_wrong`).

    Raises: TacitError with the reason where the run fails; `resume` goes on with it.
    """
    with Processes(home=federation.home) as processes:
        started = time.monotonic()
        start_server(federation, processes)
        tell(f"server at {federation.address} (TLS, node authentication)")
        register(federation, processes)
        start_sites(federation, processes)
        tell(f"{len(federation.sites)} sites start: {', '.join(federation.sites)}")
        patience = JOIN_SECONDS * max(1.0, len(federation.sites) / STARTING)
        submit(federation, processes, resume=resume, force=force, **{"join-seconds": patience})
        tell("the run is submitted; waiting for the sites to join")
        summary = follow(federation, processes, since=started, observe=observe)
    _adapt(federation, tell)
    return summary


def _adapt(federation: Federation, tell: Tell) -> None:
    """Has every site make its own models where its site.toml asks for some: here the quiet that they wait for does not come."""
    from tacit.federation.site.own_models import adapt_due  # only where a site wants it

    for name in federation.sites:
        folder = federation.site(name)
        if "personal" in read_settings(folder):
            adapt_due(folder)
            tell(f"{name} has made its own models, for itself: tacit deploy site {folder} --adapt says what they give")


def start_sites(federation: Federation, processes: Processes) -> None:
    """Starts all sites, a few at a time: each needs seconds of a core to start, and forty at once would starve the server.

    Raises: TacitError with the last words of one that has ended.
    """
    starting: list[tuple[str, int]] = []  # and the length of what its log held before
    for name in federation.sites:
        while len(starting) >= STARTING:
            processes.refuse_ended()
            starting = [(other, past) for other, past in starting if not _joined(federation.site(other), past)]
            time.sleep(LOOK_SECONDS)
        log = federation.site(name) / "site.log"
        starting.append((name, log.stat().st_size if log.exists() else 0))
        start_site(federation, name, processes)


def _joined(folder: Path, past: int) -> bool:
    """Whether a site has said so, after what its log held before."""
    with (folder / "site.log").open("rb") as file:
        file.seek(past)
        return JOINED.encode() in file.read()


def start_site(federation: Federation, name: str, processes: Processes) -> int:
    """Starts one site as its own people would, and returns its process; what it says is in its `site.log`."""
    folder = federation.site(name)
    command = [sys.executable, "-m", "tacit", "deploy", "site", folder]
    return processes.start(f"site {name}", command, log=folder / "site.log", cwd=folder)


def submit(federation: Federation, processes: Processes, *, resume: bool, force: bool, **config: float) -> None:
    """Hands the run to the SuperLink by `flwr run`; `config` is added to the run config. Raises: TacitError where that fails."""
    flags = {"resume": str(resume).lower(), "force": str(force).lower()}
    text = " ".join(f"{key}={value}" for key, value in (flags | config).items())
    command = [program("flwr"), "run", federation.app, CONNECTION, "--run-config", text]
    processes.call(command, seconds=START_SECONDS, cwd=federation.folder)


def follow(federation: Federation, processes: Processes, *, since: float, observe: Observed) -> dict[str, Any]:
    """Tells every finished round to `observe` and returns the summary.

    `since` is when this server was started: what an earlier one has left in results/ is not its word.

    Raises: TacitError with the reason where the run fails, the server's process is gone, or a program has ended.
    """
    shown, began, look = 0, time.time() - (time.monotonic() - since), time.monotonic() + ASK_SECONDS
    while True:
        status = _status(federation.results, began)
        if status:
            rounds = _rounds(federation.results)
            for record in rounds[shown:]:
                observe(record)
            shown = max(shown, len(rounds))
        if status.get("state") == "finished":
            return json.loads((federation.results / "summary.json").read_text("utf-8"))
        if status.get("state") == "failed":
            raise TacitError(f"The run stopped: {status['text']} Once that is mended, go on with --resume.")
        if status and not alive(int(status["pid"])):
            raise TacitError("The server's process ended in the middle of the run: go on with --resume.")
        processes.refuse_ended()
        if not status and time.monotonic() > look:
            _refuse_failed(processes, unless=lambda: bool(_status(federation.results, began)))
            look = time.monotonic() + ASK_SECONDS
        time.sleep(LOOK_SECONDS)


def _refuse_failed(processes: Processes, *, unless: Callable[[], bool]) -> None:
    """Raises TacitError where Flower says that the newest run is over, and it has left no word of its own."""
    listing = json.loads(
        processes.call([program("flwr"), "list", CONNECTION, "--format", "json"], seconds=START_SECONDS)
    )
    newest = max(listing["runs"], key=lambda run: run["pending-at"], default={"status": ""})
    if newest["status"].startswith("finished") and not unless():
        raise TacitError(f"The run ended before it began: {newest['status-details']} (more in server/superlink.log).")


def _status(results: Path, began: float) -> dict[str, Any]:
    path = results / "status.json"
    status = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return status if status.get("began", 0) >= began else {}


def _rounds(results: Path) -> list[dict[str, Any]]:
    path = results / "rounds.jsonl"
    lines = path.read_text("utf-8").split("\n") if path.exists() else []
    return [json.loads(line) for line in lines[:-1]]  # the last one may be half written
