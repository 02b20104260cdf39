"""`tacit deploy server`: the SuperLink on loopback and the gateway before it, with the sites' keys told to it.

`tacit deploy up`: a whole federation on this machine, for a trial, over TLS and with node authentication."""

import ipaddress
import json
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from tacit.deploy.operate.inspect import refuse_wrong
from tacit.deploy.operate.layout import CONNECTION, FEDERATION, Federation, open_federation
from tacit.deploy.operate.processes import OFFLINE, Processes, alive, close, program, reach, taken
from tacit.deploy.operate.remaining import anew, experiment_file, finished, short_sites
from tacit.deploy.operate.site_process import JOINED
from tacit.deploy.site.layout import read_settings
from tacit.errors import BadInput, TacitError, exit_code, stop_on_term
from tacit.experiment import Experiment
from tacit.privacy.guarantee import shown
from tacit.report.closing import facts, say_baseline, say_stats, show_promise
from tacit.report.progress import round_line
from tacit.table import facts_table

START_SECONDS = 300.0  # for a program of Flower's on a busy machine; one that fails is noticed at once
LOOK_SECONDS = 0.25
HERE = "127.0.0.1"
STARTING = 4  # sites that start at the same time
JOIN_SECONDS = 120.0  # for so many of them to join
ASK_SECONDS = 10.0  # between two questions to Flower about a run that has not said anything yet

Tell = Callable[[str], None]
Observed = Callable[[dict[str, Any]], None]


def run_server(folder: Path, *, listen: str | None, tell: Tell) -> None:
    """Serves until SIGTERM or Ctrl-C, and has ended its programs when it returns or raises. Without `listen` the gateway
    listens at all of this machine's addresses, or at loopback where sites reach the server as this machine. Raises: BadInput,
    TacitError.
    """
    federation = open_federation(folder)
    try:
        here = ipaddress.ip_address(federation.host).is_loopback
    except ValueError:
        here = federation.host == "localhost"
    stop_on_term()
    with Processes(home=federation.home) as processes:
        start_server(federation, processes, listen=listen or (HERE if here else "0.0.0.0"))
        register(federation, processes)
        tell(f"The server is up at {federation.address}, for {', '.join(federation.sites)}. Ctrl-C stops it.")
        tell(f"Run the experiment from here: {run_command(federation)}")
        while True:
            processes.refuse_ended()
            time.sleep(LOOK_SECONDS)


def run_command(federation: Federation) -> str:
    words = [f"{name}={value}" for name, value in {"FLWR_HOME": shlex.quote(str(federation.home)), **OFFLINE}.items()]
    return " ".join([*words, "flwr", "run", shlex.quote(str(federation.app)), CONNECTION, "--stream"])


def start_server(federation: Federation, processes: Processes, *, listen: str = HERE) -> None:
    """Starts SuperLink (on loopback only) and gateway, and waits until both listen. Raises: BadInput for a port in use;
    TacitError.
    """
    for port in (federation.inner_port, federation.port):
        if taken(port):
            raise BadInput(
                f"Port {port} is in use: stop what listens there, or change it in federation.toml (sites have `port`, not "
                "`inner_port`, in their site.toml)."
            )
    start_superlink(federation, processes)
    own = ["tacit.deploy.operate.gateway", f"{listen}:{federation.port}", federation.control, str(federation.server)]
    _start("gateway", [*own, *_keys(federation)], federation, processes, federation.port)


def start_superlink(federation: Federation, processes: Processes) -> None:
    """Starts the SuperLink, which only this machine reaches, and waits until it listens. Its folders are closed to others first."""
    server = federation.server
    for folder in (server, federation.home, federation.results):
        close(folder)
    federation.write_flower()
    command = ["tacit.deploy.server.superlink", "--host", HERE, "--port", str(federation.inner_port)]
    command += ["--ssl-ca-certfile", str(server / "ca.crt"), "--ssl-certfile", str(server / "server.pem")]
    command += ["--ssl-keyfile", str(server / "server.key"), "--enable-supernode-auth"]
    command += ["--disable-runtime-dependency-installation", "--database", str(server / "superlink.db")]
    _start("SuperLink", command, federation, processes, federation.inner_port)


def _start(name: str, module: list[str], federation: Federation, processes: Processes, port: int) -> None:
    log, lies = federation.server / f"{name.lower()}.log", {FEDERATION: str(federation.folder)}
    processes.start(name, [sys.executable, "-m", *module], log=log, cwd=federation.server, environment=lies)
    ends = time.monotonic() + START_SECONDS
    while (why := reach(HERE, port, authority=federation.server / "ca.crt")) is not None:
        processes.refuse_ended()
        if time.monotonic() > ends or "certificate" in why:
            raise TacitError(f"The server cannot be reached at {HERE}:{port}: {why}.")
        time.sleep(LOOK_SECONDS)


def register(federation: Federation, processes: Processes) -> None:
    """Tells the SuperLink the sites' keys, each under its site's name; what it knows already stays. May be repeated."""
    command = [sys.executable, "-m", "tacit.deploy.server.superlink", "register", CONNECTION, *_keys(federation)]
    processes.call(command, seconds=START_SECONDS, cwd=federation.folder)


def _keys(federation: Federation) -> list[str]:
    return [f"{name}={federation.key(name)}" for name in federation.sites]


def up(federation: Federation, *, resume: bool, force: bool, tell: Tell, observe: Observed) -> dict[str, Any]:
    """Starts server and sites, runs the experiment and returns its summary. Raises: TacitError where the run fails.

    Guarantee: every process has ended when it returns or raises. What is charged to sites' ledgers is charged in earnest.
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
    for name in federation.sites:  # the quiet in which a site makes its own models does not come here
        folder = federation.site(name)
        if "personal" in read_settings(folder):
            from tacit.deploy.site.models import adapt_due

            for text in adapt_due(folder):
                tell(f"{name}, for itself: {text}")
    return summary


def start_sites(federation: Federation, processes: Processes) -> None:
    """Starts all sites, a few at a time, as forty at once would starve the server. Raises: TacitError where one has ended."""
    starting: list[tuple[Path, int]] = []  # logs, and the length of what each held before
    for name in federation.sites:
        while len(starting) >= STARTING:
            processes.refuse_ended()
            starting = [(log, past) for log, past in starting if JOINED.encode() not in log.read_bytes()[past:]]
            time.sleep(LOOK_SECONDS)
        log = federation.site(name) / "site.log"
        starting.append((log, log.stat().st_size if log.exists() else 0))
        start_site(federation, name, processes)


def start_site(federation: Federation, name: str, processes: Processes) -> int:
    folder = federation.site(name)
    command = [sys.executable, "-m", "tacit", "deploy", "site", folder]
    return processes.start(f"site {name}", command, log=folder / "site.log", cwd=folder)


def submit(federation: Federation, processes: Processes, *, resume: bool, force: bool, **config: float) -> None:
    flags = {"resume": str(resume).lower(), "force": str(force).lower()}
    text = " ".join(f"{key}={value}" for key, value in (flags | config).items())
    command = [program("flwr"), "run", federation.app, CONNECTION, "--run-config", text]
    processes.call(command, seconds=START_SECONDS, cwd=federation.folder)


def follow(federation: Federation, processes: Processes, *, since: float, observe: Observed) -> dict[str, Any]:
    """Tells every finished round to `observe` and returns the summary of a run that began after `since`. Raises: TacitError."""
    results, shown, look = federation.results, 0, time.monotonic() + ASK_SECONDS
    began = time.time() - (time.monotonic() - since)
    while True:
        status = _status(results, began)
        rounds = results / "rounds.jsonl"
        lines = rounds.read_text("utf-8").split("\n") if status and rounds.exists() else []
        for line in lines[shown:-1]:  # the last one may be half written
            observe(json.loads(line))
            shown += 1
        if status.get("state") == "finished":
            return json.loads((results / "summary.json").read_text("utf-8"))
        if status.get("state") == "failed":
            raise TacitError(f"The run stopped: {status['text']} Once that is mended, go on with --resume.")
        if status and not alive(int(status["pid"])):
            raise TacitError("The server's process ended in the middle of the run: go on with --resume.")
        processes.refuse_ended()
        if not status and time.monotonic() > look:
            listing = processes.call([program("flwr"), "list", CONNECTION, "--format", "json"], seconds=START_SECONDS)
            newest = max(json.loads(listing)["runs"], key=lambda run: run["pending-at"], default={"status": ""})
            if newest["status"].startswith("finished") and not _status(results, began):
                why = newest["status-details"]
                raise TacitError(f"The run ended before it began: {why} (more in server/superlink.log).")
            look = time.monotonic() + ASK_SECONDS
        time.sleep(LOOK_SECONDS)


def _status(results: Path, began: float) -> dict[str, Any]:
    path = results / "status.json"
    status = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return status if status.get("began", 0) >= began else {}


def trial(folder: Path, *, resume: bool, force: bool, console: Console) -> None:
    """`tacit deploy up`: checks the federation, runs it on this machine, and prints rounds and summary."""
    if resume and force:
        raise BadInput("--resume goes on with a run and --force starts a new one: use one of them.")
    federation = open_federation(folder)
    done = finished(federation.results) if resume else None
    if done is None:
        refuse_wrong(federation, resume=resume, force=force)
    experiment, started = Experiment.load(experiment_file(federation)), time.monotonic()
    if done is not None:
        more = anew(federation, short_sites(federation, experiment))
        console.print(Text(f"The run is finished, so nothing was started; {more}."), soft_wrap=True)
        closing(done, federation.results, console)
        return

    def tell(text: str) -> None:
        console.print(Text(f"{time.monotonic() - started:5.1f} s", style="dim"), Text(text), sep="  ", highlight=False)

    def observe(record: dict[str, Any]) -> None:
        tell(round_line(record, experiment))

    try:
        summary = up(federation, resume=resume, force=force, tell=tell, observe=observe)
    except KeyboardInterrupt as error:
        typer.echo(f"Stopped. Nothing is lost: go on with `tacit deploy up {folder} --resume`.", err=True)
        raise typer.Exit(exit_code(error)) from None
    closing(summary, federation.results, console)


def closing(summary: dict[str, Any], results: Path, console: Console) -> None:
    """Prints how a run ended. What a site said is text, never markup; where nothing was promised, its ledger is not believed."""
    lines, promise = facts(summary), summary["guarantee"]
    for name, epsilon in summary["sites"]["epsilon"].items() if promise else ():
        lines[f"ledger of {name}"] = f"epsilon per {promise['unit']} {shown(epsilon)} over all runs of this ledger"
    console.print(facts_table(lines.items()))
    show_promise(summary, console, results)
    say_baseline(summary, console)
    console.print(Text(f"Files: {results}"))
    say_stats(results, console)
    page = results / "report.html"
    if page.is_file():
        console.print(Text(f"Report: {page}"))
    sites = Text(f"A site's own page, which stays in its folder: tacit report {results.parent / 'sites' / 'NAME'}")
    console.print(sites, soft_wrap=True)
