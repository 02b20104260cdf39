"""`tacit deploy check`: what is wrong with a federation, or with one site's folder, before anything runs."""

import hashlib
import ssl
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.error import URLError
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

import tacit
from tacit.deploy.certificates import days_left, signed_by
from tacit.deploy.check_keys import own_keys, who_opens
from tacit.deploy.finding import Finding
from tacit.deploy.layout import Federation, app_digest, open_federation
from tacit.deploy.processes import reach, taken
from tacit.engine.folder import refuse_taken
from tacit.errors import BadInput, TacitError
from tacit.experiment import Experiment
from tacit.site.limits import digest, read_limits, refuse_beyond
from tacit.site.site import Site

SOON_DAYS = 14.0
CLOCK_SECONDS = 60.0  # Flower refuses signed requests whose time is further off


def findings(folder: Path) -> Iterator[Finding]:
    """Everything that was looked at; a folder with `site.toml` is one site's."""
    if (folder / "site.toml").exists():
        yield from _versions()
        yield from _site(folder)
        yield from own_keys(folder)
        yield from _server(folder)
        return
    federation = open_federation(folder)
    yield from _versions()
    yield from _certificates(federation)
    yield from _app(federation)
    yield from _keys(federation)
    yield from who_opens(federation, _experiment(federation))
    for name in federation.sites:
        yield from _site(federation.site(name), experiment=_experiment(federation))
    yield from _port(federation)


def refuse_wrong(federation: Federation, *, resume: bool, force: bool) -> None:
    """Raises BadInput with the first thing that is wrong, before any process is started."""
    refuse_taken(federation.results, resume=resume, force=force)
    for finding in findings(federation.folder):
        if finding.wrong:
            raise BadInput(finding.text)
    if taken(federation.port):
        raise BadInput(
            f"Port {federation.port} is in use: stop what listens there, or change port in federation.toml, "
            "flwr/config.toml and the sites' site.toml."
        )


def _versions() -> Iterator[Finding]:
    try:
        found = version("flwr")
        from tacit.engine.flower import require_flwr

        require_flwr()
    except PackageNotFoundError:
        yield Finding('Flower is not installed: pip install "tacit[flower]"', wrong=True)
    except BadInput as error:
        yield Finding(str(error), wrong=True)
    else:
        yield Finding(f"Tacit {tacit.__version__}, flwr {found}")


def _certificates(federation: Federation) -> Iterator[Finding]:
    authority = federation.server / "ca.crt"
    for path in (authority, federation.server / "server.pem"):
        yield _lasting(path)
    try:
        if not signed_by(federation.server / "server.pem", authority):
            yield Finding(f"{federation.server / 'server.pem'} was not signed by {authority}.", wrong=True)
    except (OSError, ValueError) as error:
        yield Finding(f"The certificates cannot be read ({error}).", wrong=True)
    for name in federation.sites:
        copy = federation.site(name) / "ca.crt"
        if copy.exists() and authority.exists() and copy.read_bytes() != authority.read_bytes():
            yield Finding(
                f"{copy} is not the certificate of this federation's authority: copy server/ca.crt.", wrong=True
            )


def _lasting(path: Path) -> Finding:
    try:
        left = days_left(path)
    except BadInput as error:
        return Finding(str(error), wrong=True)
    if left < 0:
        return Finding(f"{path} expired {-left:.1f} days ago: make a new certificate.", wrong=True)
    return Finding(f"{path.name} is valid for {left:.0f} days{': renew it soon' if left < SOON_DAYS else ''}")


def _app(federation: Federation) -> Iterator[Finding]:
    try:
        changed = app_digest(federation.app) != federation.digest
    except (BadInput, OSError) as error:
        yield Finding(str(error), wrong=True)
        return
    text = "was changed after it was made: sites would refuse it, so make a new federation"
    yield Finding(f"The app folder {federation.app} {text if changed else 'is as it was made'}.", wrong=changed)


def _keys(federation: Federation) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    for name in federation.sites:
        path = federation.site(name) / "node.pub"
        if not path.is_file():
            yield Finding(f"{path} is missing: the server cannot know the site.", wrong=True)
            continue
        mark = hashlib.sha256(b" ".join(path.read_bytes().split()[:2])).hexdigest()
        if mark in seen:
            yield Finding(f"The sites {seen[mark]} and {name} have one key: make a key for each.", wrong=True)
        seen.setdefault(mark, name)
    if len(seen) == len(federation.sites):
        yield Finding(f"{len(seen)} sites with a key each")


def _site(folder: Path, *, experiment: Experiment | None = None) -> Iterator[Finding]:
    try:
        limits, name = read_limits(folder), Site(folder).settings["name"]
        if experiment is not None:
            refuse_beyond(limits, experiment)
    except TacitError as error:
        yield Finding(f"{folder.name}: {error}", wrong=True)
        return
    accepted = f", accepts {digest(experiment)[:12]}" if experiment is not None else ""
    yield Finding(f"{name}: epsilon {limits.epsilon:g}, delta {limits.delta:g} per {limits.unit}{accepted}")


def _experiment(federation: Federation) -> Experiment | None:
    path = federation.app / "tacit_app" / "experiment.toml"
    try:
        return Experiment.load(path)
    except TacitError:
        return None  # the app's own line says what is wrong with it


def _port(federation: Federation) -> Iterator[Finding]:
    if taken(federation.port):
        why = reach("127.0.0.1", federation.port, authority=federation.server / "ca.crt")
        if why is None:
            yield Finding(f"The server is up at {federation.address}")
        else:
            yield Finding(f"Port {federation.port} is in use by something else ({why}).", wrong=True)
    else:
        yield Finding(f"Port {federation.port} is free; the server is not running")


def _server(folder: Path) -> Iterator[Finding]:
    """What a site can see of its server: certificate, reachability, clock."""
    yield _lasting(folder / "ca.crt")
    address = str(Site(folder).settings.get("server", ""))
    host, _, port = address.rpartition(":")
    why = reach(host, int(port), authority=folder / "ca.crt") if port.isdecimal() else "site.toml names no server"
    if why is not None:
        yield Finding(f"The server {address} cannot be reached: {why}.", wrong=True)
        return
    off = clock_offset(f"https://{address}/health", folder / "ca.crt")
    if off is None:
        yield Finding(f"The server {address} is reached; it does not say its time")
    else:
        text = f"The server {address} is reached; its clock differs by {abs(off):.0f} s"
        yield Finding(f"{text}: set the clocks." if abs(off) > CLOCK_SECONDS else text, wrong=abs(off) > CLOCK_SECONDS)


def clock_offset(url: str, authority: Path) -> float | None:
    """Seconds by which a server's clock is ahead of ours, from the Date of its answer."""
    opener = build_opener(ProxyHandler({}), HTTPSHandler(context=ssl.create_default_context(cafile=str(authority))))
    try:
        with opener.open(url, timeout=5) as answer:
            said = answer.headers.get("Date")
    except (URLError, OSError):
        return None
    return None if said is None else parsedate_to_datetime(said).timestamp() - time.time()
