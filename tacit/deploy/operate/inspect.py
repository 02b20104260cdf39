"""`tacit deploy check`: what is wrong with a federation, or with one site's folder, before anything runs."""

import hashlib
import math
import os
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

import tacit
from tacit import store
from tacit.crypto import keys
from tacit.crypto.reports import Members
from tacit.crypto.threshold import fewest_shares
from tacit.deploy.operate.certificates import days_left, signed_by
from tacit.deploy.operate.layout import Federation, app_digest, open_federation, refuse_keyless
from tacit.deploy.operate.processes import reach, taken
from tacit.deploy.operate.remaining import (
    Short,
    anew,
    experiment_of,
    finished,
    holds_run,
    refuse_unbuildable,
    short_sites,
    unpaid,
)
from tacit.deploy.site.agreement import refuse_charged_copy, refuse_renamed
from tacit.deploy.site.consent import OWN_FILES, absent, digest, everybody, lines_to_list, proposed, refuse_undeployable
from tacit.deploy.site.keys import FOLDER, Held, load_keys, load_members
from tacit.deploy.site.layout import BUDGET, LEDGER, PROPOSAL, SETTINGS, own_path, read_settings, wanted
from tacit.deploy.site.limits import Demand, Limits, hold, read_limits
from tacit.deploy.site.replies import refuse_unpaid
from tacit.deploy.site.rows import own_model, read_rows
from tacit.engine.run_files import read
from tacit.errors import BadInput, BudgetExhausted, LedgerError, RunExists, TacitError
from tacit.experiment import Experiment
from tacit.experiment.extras import PAID, SIDES, WORDS, shares
from tacit.privacy.guarantee import shown
from tacit.privacy.ledger import disk
from tacit.privacy.ledger.disk import EVERYBODY, key_of
from tacit.privacy.ledger.reader import accounts, at_one_site, behind
from tacit.privacy.plan import kind_of

SOON_DAYS = 14.0
REFUSED = (401, 403, 404)
CLOCK_SECONDS = 60.0  # Flower refuses signed requests whose time is further off
ASK_SECONDS = 5.0
HERE = "127.0.0.1"


@dataclass(frozen=True)
class Finding:
    """One line of the check."""

    text: str
    wrong: bool = False
    note: bool = False  # nothing is wrong, and yet it is not what somebody who goes on expects


def findings(folder: Path) -> Iterator[Finding]:
    """Everything that was looked at, of one site's folder or a federation's. Raises: BadInput for no such folder, or a closed one.

    Guarantee: nothing is charged, released or started. A site's rows are read where it accepts the experiment; its server is
    asked, as anybody could ask, for what it must refuse.
    """
    try:
        of_a_site = (folder / SETTINGS).exists()
    except PermissionError:
        text = f"{folder} is closed to user {os.geteuid()}: a federation's files are for their owner, so run this as the owner"
        raise BadInput(f"{text}.") from None
    federation = None if of_a_site else open_federation(folder)
    try:
        from tacit.deploy.server import require_flwr

        yield Finding(f"Tacit {tacit.__version__}, flwr {require_flwr()}")
    except BadInput as error:
        yield _wrong(str(error))
    if federation is None:
        try:
            read_settings(folder)
        except TacitError as error:  # everything below reads it, and would say the same again
            yield _wrong(f"{folder.resolve().name}: {error}")
            return
        path = folder / PROPOSAL
        proposal = Experiment.load(path) if path.is_file() else None
        found = list(site_findings(folder, experiment=proposal))
        yield from found
        yield from own_keys(folder, proposal)
        yield from _caught("", _buildable(found, proposal, proposal.privacy.epsilon if proposal else None))
        yield from _caught("", _server_of(folder))
        return
    experiment = experiment_of(federation)
    yield from _certificates(federation)
    try:
        changed = app_digest(federation.app) != federation.app_sha256
        text = "was changed after it was made: sites would refuse it, so make a new federation"
        yield Finding(f"The app folder {federation.app} {text if changed else 'is as it was made'}.", wrong=changed)
    except (TacitError, OSError) as error:
        yield _wrong(str(error))
    yield from _node_keys(federation)
    yield from who_opens(federation, experiment)
    try:
        epsilons = {name: read_limits(federation.site(name)).epsilon for name in federation.sites}
    except BadInput:
        epsilons = None  # a folder is elsewhere, or damaged: each site says itself what is wrong with its own
    found = list[Finding]()
    for name in federation.sites:
        if federation.site(name).exists():
            found += site_findings(federation.site(name), experiment=experiment, epsilons=epsilons)
        else:
            found.append(Finding(f"{name}: its folder is not here; its own people run `tacit deploy check` on it"))
    yield from found
    yield from _caught("", _buildable(found, experiment, epsilons))
    short = short_sites(federation, experiment)
    for one in short:  # with a run in results/ that is as it should be: it was paid for
        yield Finding(one.text, wrong=not holds_run(federation), note=True)
    yield from _caught("", _results(federation, short))
    yield from _port(federation)


def _buildable(known: Sequence[Finding], experiment: Experiment | None, epsilons: object) -> Iterator[Finding]:
    # code that the experiment names is imported only where nobody found fault with it
    if experiment is not None and isinstance(epsilons, Mapping) and not any(one.wrong for one in known):
        refuse_unbuildable(experiment, epsilons)
        yield Finding("Server and sites can make their parts of the experiment")


def _wrong(text: str) -> Finding:
    return Finding(text, wrong=True)


def _caught(whose: str, found: Iterator[Finding]) -> Iterator[Finding]:
    # up to the first refusal, which is a finding too
    try:
        yield from found
    except (TacitError, OSError, ValueError) as error:
        yield _wrong(f"{whose}{error}")


def site_findings(
    folder: Path, *, experiment: Experiment | None, epsilons: Mapping[str, float] | None = None
) -> Iterator[Finding]:
    """What a site allows and has spent, whether it accepts and can pay for the experiment, and its rows (a cell may be quoted)."""
    name = folder.resolve().name
    try:
        settings = read_settings(folder)
        name = settings["name"]
        limits, own = read_limits(folder), wanted(settings).kind
        if experiment is not None:
            refuse_undeployable(experiment)
            hold(limits, Demand(experiment=experiment))
            known = epsilons or everybody(experiment, name, limits.epsilon)
            if known and name in known:
                refuse_unpaid(experiment, known, delta=limits.delta, site=name)
        paid = _spent(folder, limits, name)
    except TacitError as error:
        yield _wrong(f"{name}: {error}{_to_list(folder, experiment)}")
        return
    accepted = f", accepts {digest(experiment)[:12]}" if experiment is not None else ""
    budget = f"epsilon {limits.epsilon:g}, delta {limits.delta:g} per {limits.unit}"
    yield Finding(f"{name}: {budget}{paid}{accepted}{_granted(experiment, limits, name)}")
    if own is not None:
        yield Finding(f"{name}: makes its own models by {own} when a run has ended, for itself; no server is told")
    if experiment is None:
        return
    for query, share in shares(experiment).items():
        costs = f"for at most epsilon {shown(share * min(limits.epsilon, proposed(experiment, name)))}, {PAID[SIDES[query]]}"
        how = costs if getattr(kind_of(experiment).plans, "priced", True) else "without noise"
        yield Finding(f"{name}: is asked once, beside training, for {WORDS[query]}, {how}")
    yield from _caught(f"{name}: ", _rows(folder, experiment, settings))


def _granted(experiment: Experiment | None, limits: Limits, name: str) -> str:
    if experiment is None or not experiment.privacy.promises:
        return ""
    asked, privacy = proposed(experiment, name), experiment.privacy
    if not limits.epsilon < asked < math.inf:
        return ""
    own_noise = not kind_of(experiment).plans.traits.summed and privacy.noise_multiplier is None
    follows = f"its noise follows from {limits.epsilon:g}" if own_noise else "no run may cost it more"
    return f"; {asked:g} proposed, {limits.epsilon:g} granted by {BUDGET}: {follows}"


def _to_list(folder: Path, experiment: Experiment | None) -> str:
    # what to paste where the experiment names code that the site has and its budget file does not list as it is
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


def _rows(folder: Path, experiment: Experiment, settings: dict[str, Any]) -> Iterator[Finding]:
    if "path" in experiment.model.options():
        own_model(experiment, path=own_path("model", folder, settings))
        yield Finding(f"{settings['name']}: the model's weights are in {settings['model']}")
    if experiment.data.name not in OWN_FILES or "examples" in settings:
        return
    rows, *held = read_rows(folder, experiment, settings, local=None)
    notes = "".join(f"; {note}" for note in rows.notes)
    out = {whose: len(part.y) for whose, part in zip(("site.toml", "data.held_out"), held, strict=True) if part}
    sides = [*(f"{count} are held out ({whose})" for whose, count in out.items()), f"{len(rows.y)} are trained on"]
    parted = f", of which {', '.join(sides)}" if out else ""
    yield Finding(f"{settings['name']}: {len(rows.y) + sum(out.values())} rows in {settings['data']}{parted}{notes}")


def _spent(folder: Path, limits: Limits, name: str) -> str:
    path = folder / LEDGER
    disk.refuse_lost(path, folder / disk.NAME)
    begun = path.exists() and path.stat().st_size > 0
    refuse_charged_copy(folder, lambda mark: mark.exists() and (not begun or any(behind(path, mark))))
    if not begun:
        return ""
    key_of(path)
    if wrong := next(behind(path, folder / disk.NAME), None):
        raise LedgerError(f"{path}: {wrong}")
    held = accounts(path)
    refuse_renamed(path, {one.client for one in held} - {EVERYBODY}, name)
    sealed, used = (at_one_site(each) for each in (held, [replace(one, sealed=one.used) for one in held]))
    unit = limits.unit
    return f" ({shown(used[unit][0])} spent, {shown(sealed[unit][0])} sealed)" if unit in sealed else ""


def _server_of(folder: Path) -> Iterator[Finding]:
    authority = folder / "ca.crt"
    yield _lasting(authority)
    refuse_keyless(folder)
    address = str(read_settings(folder).get("server", ""))
    host, _, port = address.rpartition(":")
    why = reach(host, int(port), authority=authority) if port.isdecimal() else "site.toml names no server"
    if why is not None:
        yield _wrong(f"The server {address} cannot be reached: {why}.")
        return
    yield from control_findings(host, int(port), authority=authority)
    try:
        with _opened(Request(f"https://{address}/health"), authority) as answer:
            date = answer.headers.get("Date")
    except OSError:
        date = None
    if date is None:
        yield Finding(f"The server {address} is reached; it does not say its time")
        return
    off = abs(parsedate_to_datetime(date).timestamp() - time.time())
    text = f"The server {address} is reached; its clock differs by {off:.0f} s"
    yield _wrong(f"{text}: set the clocks.") if off > CLOCK_SECONDS else Finding(text)


def control_findings(host: str, port: int, *, authority: Path) -> Iterator[Finding]:
    """Asks a server, as anybody could, for the list of its runs: if it answers, whoever reaches it can start programs."""
    address, request = f"{host}:{port}", Request(f"https://{host}:{port}/v1/control/list-runs", data=b"", method="POST")
    request.add_header("Content-Type", "application/protobuf")
    try:
        with _opened(request, authority):
            status = 200
    except HTTPError as error:
        status = error.code
    except (URLError, OSError) as error:
        yield _wrong(f"Whether strangers can control the server {address} could not be seen: {error}.")
        return
    if status in REFUSED:
        yield Finding(f"The server {address} lets nobody but sites in")
        return
    text = "whoever reaches it can start programs on it. Start it with `tacit deploy server`"
    yield _wrong(f"The server {address} answers Flower's Control API ({status}): {text}.")


def _opened(request: Request, authority: Path) -> Any:
    context = ssl.create_default_context(cafile=str(authority))
    return build_opener(ProxyHandler({}), HTTPSHandler(context=context)).open(request, timeout=ASK_SECONDS)


def _lasting(path: Path) -> Finding:
    try:
        left = days_left(path)
    except BadInput as error:
        return _wrong(str(error))
    if left < 0:
        return _wrong(f"{path} expired {-left:.1f} days ago: make a new certificate.")
    return Finding(f"{path.name} is valid for {left:.0f} days{': renew it soon' if left < SOON_DAYS else ''}")


def who_opens(federation: Federation, experiment: Experiment | None) -> Iterator[Finding]:
    """What is wrong with the keys of a federation, as far as they are on this machine; else who opens its encrypted sums."""
    if experiment is None or experiment.protect.kind == "none":
        return
    t, sites, own = experiment.protect.threshold or 1, federation.sites, federation.server / FOLDER
    masks = experiment.protect.kind == "masks"
    try:
        members, _ = load_members(own, sites=sites, site=None)
        server = None if masks else load_keys(own, threshold=t, sites=sites, site=None)
    except TacitError as error:
        yield _wrong(f"server: {error}")
        return
    secrets = [
        path for name in (keys.SECRET_FILE, "share*.json", f"*{keys.SIGNING}") for path in sorted(own.glob(name))
    ]
    wrong = [_wrong(f"{path} belongs to a site: the server must not have it, so make new keys.") for path in secrets]
    for name in sites:
        folder = federation.site(name) / FOLDER
        wrong += _caught(f"{name}: ", _members_of(folder, name, members))
        if server is not None:
            wrong += _caught(f"{name}: ", _keys_of(folder, name, server, threshold=t, sites=sites))
    yield from wrong
    if masks and not wrong:
        t = fewest_shares(of=len(sites), colluding=experiment.privacy.known_shares)
        yield Finding(f"Sums are unmasked by {t} of {len(sites)} sites together; each has its own signing key")
    elif not wrong and t > 1:
        yield Finding(f"Sums are opened by {t} of {len(sites)} sites together; no site holds the key")
    elif not wrong:
        yield Finding(f"Sums are opened by one of {len(sites)} sites, by turns; each of them holds the whole key")


def own_keys(folder: Path, experiment: Experiment | None = None) -> Iterator[Finding]:
    """The same for one site, which knows only its own folder: whether its keys belong together, and how many sites open."""
    own = folder / FOLDER
    if not own.is_dir():
        return
    try:
        if (
            not (own / keys.PUBLIC_FILE).exists() and not (own / keys.SECRET_FILE).exists()
        ):  # under masks there is no other key
            members, _ = load_members(own, sites=keys.load_members(own), site=str(read_settings(folder)["name"]))
            yield Finding(f"A signing key of its own, {len(members)} members")
            return
        split = any((own / file).exists() for file in (keys.SHARE_FILE, keys.VERIFICATION_FILE))
        t = keys.load_as(keys.Verification, own / keys.VERIFICATION_FILE).threshold if split else 1
        members = keys.load_members(own)
        held = load_keys(own, threshold=t, sites=members, site=str(read_settings(folder)["name"]))
    except (TacitError, OSError, ValueError) as error:
        yield _wrong(f"{error}")
        return
    share = f"A share of the key: {t} of {held.verification.of} sites open" if held.verification else ""
    yield Finding(f"{share or 'The whole key of all sites'}, key {held.public.id}, {len(members)} members")


def _members_of(folder: Path, name: str, known: Members) -> Iterator[Finding]:
    own, _ = load_members(folder, sites=known, site=name)
    ours, theirs = ({who: key.public_bytes_raw() for who, key in each.items()} for each in (own, known))
    if ours != theirs:
        yield _wrong(f"{name}: {folder} holds other members' keys than the server's folder: compare them.")


def _keys_of(folder: Path, name: str, server: Held, *, threshold: int, sites: tuple[str, ...]) -> Iterator[Finding]:
    held = load_keys(folder, threshold=threshold, sites=sites, site=name)
    if (held.public, held.verification) != (server.public, server.verification):
        yield _wrong(f"{name}: {folder} holds keys of another federation: ask for your own.")
    if threshold > 1 and (folder / keys.SECRET_FILE).exists():
        text = "is the whole key, with which one site opens everything: destroy it"
        yield _wrong(f"{name}: {folder / keys.SECRET_FILE} {text}.")


def refuse_wrong(federation: Federation, *, resume: bool, force: bool) -> None:
    """Refuses to start a trial where anything is wrong with the federation. Raises: BadInput; BudgetExhausted naming every
    site that cannot pay for another run; RunExists where a run stands in results/ and neither `resume` nor `force` is given.
    """
    results, short = federation.results, [] if resume else short_sites(federation, experiment_of(federation))
    done = finished(results) if not resume and not force else None
    if done is not None:  # the results that were wanted, not something in the way
        text = f"The run is finished ({done['rounds']} rounds), and its results are in {results}; nothing was started"
        raise RunExists(f"{text}; {anew(federation, short)}.")
    store.refuse_taken(results, resume=resume, force=force)
    if short:
        kept = f" {results} was left as it is." if holds_run(federation) else ""
        raise BudgetExhausted(f"Nothing was started: {unpaid(federation, short)}.{kept}")
    for name in federation.sites:
        if not federation.site(name).exists():
            raise BadInput(
                f"{federation.site(name)} is not here, so `up` cannot start {name}: README.md has the way without it."
            )
    if taken(federation.port) and reach(HERE, federation.port, authority=federation.server / "ca.crt") is None:
        raise BadInput(f"This federation's server is running already at {federation.address}: wait for it, or stop it.")
    for finding in findings(federation.folder):
        if finding.wrong:
            raise BadInput(finding.text)


def _certificates(federation: Federation) -> Iterator[Finding]:
    authority, own = federation.server / "ca.crt", federation.server / "server.pem"
    for path in (authority, own):
        yield _lasting(path)
    try:
        if not signed_by(own, authority):
            yield _wrong(f"{own} was not signed by {authority}.")
    except (OSError, ValueError) as error:
        yield _wrong(f"The certificates cannot be read ({error}).")
    for name in federation.sites:
        copy = federation.site(name) / "ca.crt"
        if copy.exists() and authority.exists() and copy.read_bytes() != authority.read_bytes():
            yield _wrong(f"{copy} is not the certificate of this federation's authority: copy server/ca.crt.")


def _node_keys(federation: Federation) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    for name in federation.sites:
        here = federation.site(name).exists()
        path = federation.site(name) / "node.pub" if here else federation.public_key(name)
        if not path.is_file():
            yield _wrong(f"{path} is missing: the server cannot know the site.")
            continue
        key = hashlib.sha256(b" ".join(path.read_bytes().split()[:2])).hexdigest()
        if key in seen:
            yield _wrong(f"The sites {seen[key]} and {name} have one key: make a key for each.")
        seen.setdefault(key, name)
    if len(seen) == len(federation.sites):
        yield Finding(f"{len(seen)} sites with a node key each")


def _results(federation: Federation, short: Sequence[Short]) -> Iterator[Finding]:
    results, other = federation.results, "`up --force` sets it aside and starts anew (what it spent stays spent)"
    if short:
        other = f"a new one is refused while {', '.join(one.site for one in short)} cannot pay for it"
    if not holds_run(federation):
        return
    if (results / "summary.json").exists():
        rounds = (read(results).summary or {})["rounds"]
        yield Finding(f"{results} holds a run that is finished ({rounds} rounds); {other}")
        return
    lines = (results / "rounds.jsonl").read_text("utf-8").count("\n") if (results / "rounds.jsonl").exists() else 0
    yield Finding(
        f"{results} holds a run that is not finished ({lines} rounds); `up --resume` goes on with it, {other}"
    )


def _port(federation: Federation) -> Iterator[Finding]:
    port, authority = federation.port, federation.server / "ca.crt"
    if not taken(port):
        yield Finding(f"Port {port} is free; the server is not running")
    elif (why := reach(HERE, port, authority=authority)) is not None:
        yield _wrong(f"Port {port} is in use by something else ({why}).")
    else:
        yield Finding(f"The server is running at {federation.address}")
        yield from control_findings(HERE, port, authority=authority)
