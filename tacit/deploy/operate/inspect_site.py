"""What is wrong with one site: its budget, the experiment it is asked for, its rows, and the way to its server."""

import math
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener

from tacit.deploy.operate.certificates import days_left
from tacit.deploy.operate.processes import reach
from tacit.deploy.site.at_home import wanted
from tacit.deploy.site.consent import absent, digest, lines_to_list, refuse_beyond
from tacit.deploy.site.join import own_path, read_parted
from tacit.deploy.site.layout import BUDGET, LEDGER, PROPOSAL
from tacit.deploy.site.ledger import refuse_charged_twin, refuse_renamed
from tacit.deploy.site.limits import Limits, read_limits
from tacit.deploy.site.rows import OWN_FILES, own_model, refuse_undeployable
from tacit.deploy.site.schedule import everybody, proposed, refuse_unpaid
from tacit.deploy.site.site import Site
from tacit.errors import BadInput, LedgerError, TacitError
from tacit.experiment import Experiment
from tacit.experiment.extras import PAID, SIDES, WORDS, shares
from tacit.privacy.guarantee import shown
from tacit.privacy.kinds import kind_of
from tacit.privacy.ledger import reader
from tacit.privacy.ledger.reader import accounts, at_one_site, marked
from tacit.privacy.ledger.sql import EVERYBODY, key_of

# What `tacit deploy check` says, line by line.


@dataclass(frozen=True)
class Finding:
    """One line of the check: something that is in order, something to know, or something that is wrong and what to do about it."""

    text: str
    wrong: bool = False
    note: bool = False  # nothing is wrong, and yet it is not what somebody who goes on expects


SOON_DAYS = 14.0
REFUSED = (401, 403, 404)
CLOCK_SECONDS = 60.0  # Flower refuses signed requests whose time is further off


def proposal(folder: Path) -> Experiment | None:
    """The experiment that the site was asked for, or None where its folder does not hold it. Raises: BadInput."""
    path = folder / PROPOSAL
    return Experiment.load(path) if path.is_file() else None


def site_findings(
    folder: Path, *, experiment: Experiment | None, epsilons: Mapping[str, float] | None = None
) -> Iterator[Finding]:
    """The site's budget and what is spent of it, whether it accepts the experiment and pays for its turns in it, and whether its
    rows can be read for it. `epsilons` are all sites' budgets, where whoever asks knows them.

    Rows are read only for an experiment that the budget file accepts, and only a file of the site's own. What is wrong with
    them may quote a cell: it is for the site's own people.
    """
    try:
        limits, settings = read_limits(folder), Site(folder).settings
        own = wanted(settings).kind
        if experiment is not None:
            refuse_undeployable(experiment)
            refuse_beyond(limits, experiment)
            _refuse_unpaid(experiment, limits, settings["name"], epsilons)
        paid = _spent(folder, limits, settings["name"])
    except TacitError as error:
        yield Finding(f"{_called(folder)}: {error}{_to_list(folder, experiment)}", wrong=True)
        return
    accepted = f", accepts {digest(experiment)[:12]}" if experiment is not None else ""
    name, budget = settings["name"], f"epsilon {limits.epsilon:g}, delta {limits.delta:g} per {limits.unit}"
    yield Finding(f"{name}: {budget}{paid}{accepted}{_granted(experiment, limits, name)}")
    if own is not None:
        yield Finding(f"{name}: makes its own models by {own} when a run has ended, for itself; no server is told")
    yield from _asked(experiment, limits, name)
    yield from _weights(folder, experiment, settings)
    if experiment is None or experiment.data.name not in OWN_FILES or "examples" in settings:
        return
    try:
        rows, *held = read_parted(folder, experiment, settings, local=None)
    except TacitError as error:
        yield Finding(f"{name}: {error}", wrong=True)
        return
    notes = "".join(f"; {note}" for note in rows.notes)
    out = {whose: len(part.y) for whose, part in zip(("site.toml", "data.held_out"), held, strict=True) if part}
    sides = [*(f"{count} are held out ({whose})" for whose, count in out.items()), f"{len(rows.y)} are trained on"]
    parted = f", of which {', '.join(sides)}" if out else ""
    yield Finding(f"{name}: {len(rows.y) + sum(out.values())} rows in {settings['data']}{parted}{notes}")


def _granted(experiment: Experiment | None, limits: Limits, name: str) -> str:
    if experiment is None or not experiment.privacy.promises:
        return ""
    asked, privacy = proposed(experiment, name), experiment.privacy
    if not limits.epsilon < asked < math.inf:
        return ""
    own_noise = not kind_of(experiment).plans.summed and privacy.noise_multiplier is None
    follows = f"its noise follows from {limits.epsilon:g}" if own_noise else "no run may cost it more"
    return f"; {asked:g} proposed, {limits.epsilon:g} granted by {BUDGET}: {follows}"


def _to_list(folder: Path, experiment: Experiment | None) -> str:
    if experiment is None:
        return ""
    try:
        listed = read_limits(folder).accept.code
        lines, away = lines_to_list(listed, experiment), absent(listed, experiment)
    except (TacitError, OSError):
        return ""
    first = f" Not installed here: {', '.join(away)}; a site does not search the current folder, so install the package first."
    return (first if away else "") + "".join(
        f" Whoever has read {file} and trusts it writes this line below [accept.code] in {folder / BUDGET}: {line}"
        for line, file in lines.items()
    )


def _refuse_unpaid(experiment: Experiment, limits: Limits, name: str, epsilons: Mapping[str, float] | None) -> None:
    known = epsilons or everybody(experiment, name, limits.epsilon)
    if known and name in known:
        refuse_unpaid(experiment, known, delta=limits.delta, site=name)


def _asked(experiment: Experiment | None, limits: Limits, name: str) -> Iterator[Finding]:
    if experiment is None:
        return
    for query, share in shares(experiment).items():
        most = min(limits.epsilon, proposed(experiment, name))
        costs = f"for at most epsilon {shown(share * most)}, {PAID[SIDES[query]]}"
        how = costs if getattr(kind_of(experiment).plans, "priced", True) else "without noise"
        yield Finding(f"{name}: is asked once, beside training, for {WORDS[query]}, {how}")


def _weights(folder: Path, experiment: Experiment | None, settings: dict[str, Any]) -> Iterator[Finding]:
    if experiment is None or "path" not in experiment.model.options():
        return
    try:
        own_model(experiment, path=own_path("model", folder, settings))
        yield Finding(f"{settings['name']}: the model's weights are in {settings['model']}")
    except TacitError as error:
        yield Finding(f"{settings['name']}: {error}", wrong=True)


def _spent(folder: Path, limits: Limits, name: str) -> str:
    path = folder / LEDGER
    reader.refuse_lost(path, folder / reader.NAME)
    begun = path.exists() and path.stat().st_size > 0
    refuse_charged_twin(folder, lambda mark: mark.exists() and (not begun or any(marked(path, mark))))
    if not begun:
        return ""
    key_of(path)
    wrong = next(marked(path, folder / reader.NAME), None)
    if wrong:
        raise LedgerError(f"{path}: {wrong}")
    held = accounts(path)
    refuse_renamed(path, {one.client for one in held} - {EVERYBODY}, name)
    sealed, used = (at_one_site(each) for each in (held, [replace(one, sealed=one.used) for one in held]))
    unit = limits.unit
    return f" ({shown(used[unit][0])} spent, {shown(sealed[unit][0])} sealed)" if unit in sealed else ""


def server_findings(folder: Path) -> Iterator[Finding]:
    """What a site can see of its server: its certificate, whether it is reached under it, what strangers may do there, its clock.

    Flower refuses signed requests whose time is more than `CLOCK_SECONDS` off.
    """
    yield lasting(folder / "ca.crt")
    address = str(Site(folder).settings.get("server", ""))
    host, _, port = address.rpartition(":")
    why = reach(host, int(port), authority=folder / "ca.crt") if port.isdecimal() else "site.toml names no server"
    if why is not None:
        yield Finding(f"The server {address} cannot be reached: {why}.", wrong=True)
        return
    yield from control_findings(host, int(port), authority=folder / "ca.crt")
    off = clock_offset(f"https://{address}/health", folder / "ca.crt")
    if off is None:
        yield Finding(f"The server {address} is reached; it does not say its time")
    else:
        text = f"The server {address} is reached; its clock differs by {abs(off):.0f} s"
        yield Finding(f"{text}: set the clocks." if abs(off) > CLOCK_SECONDS else text, wrong=abs(off) > CLOCK_SECONDS)


def _called(folder: Path) -> str:
    try:
        return str(Site(folder).settings["name"])
    except TacitError:
        return folder.resolve().name


def control_findings(host: str, port: int, *, authority: Path) -> Iterator[Finding]:
    """Asks a server, as anybody could, for the list of its runs, which it must refuse.

    A server that answers is one where whoever reaches the port can start programs. The request has no body and changes nothing.
    """
    address, request = f"{host}:{port}", Request(f"https://{host}:{port}/v1/control/list-runs", data=b"", method="POST")
    request.add_header("Content-Type", "application/protobuf")
    try:
        with _opener(authority).open(request, timeout=5):
            status = 200
    except HTTPError as error:
        status = error.code
    except (URLError, OSError) as error:
        yield Finding(f"Whether strangers can control the server {address} could not be seen: {error}.", wrong=True)
        return
    if status in REFUSED:
        yield Finding(f"The server {address} lets nobody but sites in")
        return
    text = "whoever reaches it can start programs on it. Start it with `tacit deploy server`"
    yield Finding(f"The server {address} answers Flower's Control API ({status}): {text}.", wrong=True)


def lasting(path: Path) -> Finding:
    """How long a certificate is still valid; wrong where it has expired, is not valid yet, or is none."""
    try:
        left = days_left(path)
    except BadInput as error:
        return Finding(str(error), wrong=True)
    if left < 0:
        return Finding(f"{path} expired {-left:.1f} days ago: make a new certificate.", wrong=True)
    return Finding(f"{path.name} is valid for {left:.0f} days{': renew it soon' if left < SOON_DAYS else ''}")


def clock_offset(url: str, authority: Path) -> float | None:
    """Seconds by which a server's clock is ahead of ours, from the Date of its answer; None where it does not say it."""
    try:
        with _opener(authority).open(url, timeout=5) as answer:
            date = answer.headers.get("Date")
    except (URLError, OSError):
        return None
    return None if date is None else parsedate_to_datetime(date).timestamp() - time.time()


def _opener(authority: Path) -> OpenerDirector:
    return build_opener(ProxyHandler({}), HTTPSHandler(context=ssl.create_default_context(cafile=str(authority))))
