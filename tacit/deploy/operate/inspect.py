"""`tacit deploy check`: what is wrong with a federation, or with one site's folder, before anything runs."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import tacit
from tacit.crypto import keys, signing
from tacit.deploy.operate.certificates import signed_by
from tacit.deploy.operate.inspect_site import (
    Finding,
    control_findings,
    lasting,
    proposal,
    server_findings,
    site_findings,
)
from tacit.deploy.operate.layout import Federation, app_digest, open_federation
from tacit.deploy.operate.left import Short, short_sites
from tacit.deploy.operate.processes import reach, taken
from tacit.deploy.site.join import read_settings
from tacit.deploy.site.keys import FOLDER, Held, load_keys
from tacit.deploy.site.layout import SETTINGS
from tacit.deploy.site.limits import read_limits
from tacit.engine.run_files import read
from tacit.engine.run_folder import refuse_taken
from tacit.errors import BadInput, BudgetExhausted, RunExists, TacitError
from tacit.experiment import Experiment

# `tacit deploy check` on encrypted sums: who can open them, and whether everybody has what is theirs, and no more.


def who_opens(federation: Federation, experiment: Experiment | None) -> Iterator[Finding]:
    """What is wrong with the keys of a federation, as far as they are on this machine; else who opens its sums.

    Looked for: keys that are missing, damaged or of another federation, members that differ between folders, a site's secret at
    the server, and the whole key at a site where it should be split. Nothing where sums are not encrypted.
    """
    if experiment is None or experiment.protect.kind != "paillier":
        return
    t, sites = experiment.protect.threshold or 1, federation.sites
    try:
        server = load_keys(federation.server / FOLDER, threshold=t, sites=sites, site=None)
    except TacitError as error:
        yield Finding(f"server: {error}", wrong=True)
        return
    wrong = [*_secrets_at_the_server(federation)]
    for name in sites:
        wrong += _at_a_site(federation.site(name) / FOLDER, name, server, threshold=t, sites=sites)
    yield from wrong
    if not wrong and t > 1:
        yield Finding(f"Sums are opened by {t} of {len(sites)} sites together; no site holds the key")
    elif not wrong:
        yield Finding(f"Sums are opened by one of {len(sites)} sites, by turns; each of them holds the whole key")


def own_keys(folder: Path) -> Iterator[Finding]:
    """The same for one site, which knows only its own folder: whether its keys belong together, and how many sites open."""
    own = folder / FOLDER
    if not own.is_dir():
        return
    try:
        split = any((own / file).exists() for file in (keys.SHARE_FILE, keys.VERIFICATION_FILE))
        t = keys.load_verification(own / keys.VERIFICATION_FILE).threshold if split else 1
        members = signing.load_members(own)
        held = load_keys(own, threshold=t, sites=members, site=str(read_settings(folder)["name"]))
        yield Finding(f"{_words(held)}, key {held.public.id}, {len(members)} members")
    except TacitError as error:
        yield Finding(str(error), wrong=True)


def _raw(held: Held) -> dict[str, bytes]:
    return {name: key.public_bytes_raw() for name, key in held.members.items()}


def _words(held: Held) -> str:
    split = held.verification
    return f"A share of the key: {split.threshold} of {split.of} sites open" if split else "The whole key of all sites"


def _at_a_site(folder: Path, name: str, server: Held, *, threshold: int, sites: tuple[str, ...]) -> Iterator[Finding]:
    try:
        held = load_keys(folder, threshold=threshold, sites=sites, site=name)
    except TacitError as error:
        yield Finding(f"{name}: {error}", wrong=True)
        return
    if (held.public, held.verification) != (server.public, server.verification):
        yield Finding(f"{name}: {folder} holds keys of another federation: ask for your own.", wrong=True)
    if _raw(held) != _raw(server):
        yield Finding(f"{name}: {folder} holds other members' keys than the server's folder: compare them.", wrong=True)
    if threshold > 1 and (folder / keys.SECRET_FILE).exists():
        text = "is the whole key, with which one site opens everything: destroy it"
        yield Finding(f"{name}: {folder / keys.SECRET_FILE} {text}.", wrong=True)


def _secrets_at_the_server(federation: Federation) -> Iterator[Finding]:
    for pattern in (keys.SECRET_FILE, "share*.json", f"*{signing.SIGNING}"):
        for path in sorted((federation.server / FOLDER).glob(pattern)):
            yield Finding(f"{path} belongs to a site: the server must not have it, so make new keys.", wrong=True)


MOST_NAMED = 5  # sites in one sentence


def findings(folder: Path) -> Iterator[Finding]:
    """Everything that was looked at, each as it is found; a folder with `site.toml` is one site's, any other a federation's.

    Guarantee: nothing is charged, released or started. A site's rows are read where it accepts the experiment, and its server
    is asked, as anybody could ask, for what it must refuse.

    Raises: BadInput for a folder that is closed to this user, or is neither a site's nor a federation's, and for a
    proposal.toml that cannot be read; anything else that is wrong is a finding.
    """
    _refuse_closed(folder)
    if (folder / SETTINGS).exists():
        yield from _versions()
        try:
            read_settings(folder)
        except TacitError as error:  # everything below reads it, and would say the same again
            yield Finding(f"{folder.resolve().name}: {error}", wrong=True)
            return
        yield from site_findings(folder, experiment=proposal(folder))
        yield from own_keys(folder)
        yield from server_findings(folder)
        return
    federation = open_federation(folder)
    yield from _versions()
    yield from _certificates(federation)
    yield from _app(federation)
    yield from _keys(federation)
    yield from who_opens(federation, _experiment(federation))
    epsilons = _epsilons(federation)
    for name in federation.sites:
        if federation.site(name).exists():
            yield from site_findings(federation.site(name), experiment=_experiment(federation), epsilons=epsilons)
        else:
            yield Finding(f"{name}: its folder is not here; its own people run `tacit deploy check` on it")
    short = short_sites(federation, _experiment(federation))
    for one in short:  # with a run in results/ that is as it should be: it was paid for
        yield Finding(one.text, wrong=not _holds_run(federation), note=True)
    yield from _results(federation, short)
    yield from _port(federation)


def _refuse_closed(folder: Path) -> None:
    try:
        (folder / SETTINGS).exists()
    except PermissionError:
        text = f"{folder} is closed to user {os.geteuid()}: a federation's files are for their owner, so run this as the owner"
        raise BadInput(f"{text}.") from None


def refuse_wrong(federation: Federation, *, resume: bool, force: bool) -> None:
    """Refuses to start a trial where anything is wrong with the federation, before any process is started.

    Raises: BadInput with the first thing that is wrong, or where its server is running already or a site's folder is not here;
    BudgetExhausted with every site that has nothing left for another run; RunExists where a run stands in results/ and neither
    `resume` nor `force` is given. Nothing is set aside.
    """
    short = [] if resume else short_sites(federation, _experiment(federation))
    if not resume and not force:
        _refuse_finished(federation, short)
    refuse_taken(federation.results, resume=resume, force=force)
    if short:
        kept = f" {federation.results} was left as it is." if _holds_run(federation) else ""
        raise BudgetExhausted(f"Nothing was started: {_unpaid(federation, short)}.{kept}")
    for name in federation.sites:
        if not federation.site(name).exists():
            raise BadInput(
                f"{federation.site(name)} is not here, so `up` cannot start {name}: README.md has the way without it."
            )
    if taken(federation.port) and _running(federation):
        raise BadInput(f"This federation's server is running already at {federation.address}: wait for it, or stop it.")
    for finding in findings(federation.folder):
        if finding.wrong:
            raise BadInput(finding.text)


def _refuse_finished(federation: Federation, short: Sequence[Short]) -> None:
    done = finished(federation.results)
    if done is None:
        return
    text = f"The run is finished ({done['rounds']} rounds), and its results are in {federation.results}; nothing was started"
    raise RunExists(f"{text}; {anew(federation, short)}.")


def anew(federation: Federation, short: Sequence[Short]) -> str:
    """What whoever wants another run is told: how to start one, or who cannot pay for it."""
    again = "`--force` sets it aside and starts anew (what it spent stays spent)"
    return _unpaid(federation, short) if short else again


def _unpaid(federation: Federation, short: Sequence[Short]) -> str:
    names = [one.site for one in short[:MOST_NAMED]] + [f"{len(short) - MOST_NAMED} others"] * (len(short) > MOST_NAMED)
    who = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    says = f"`tacit deploy check {federation.folder}` says for each what would allow one"
    return f"another run is refused while {who} cannot pay for it: {says}"


def finished(results: Path) -> dict[str, Any] | None:
    """The summary of a run that did all its rounds, else None: one that ran out of budget may go on once a site allows more."""
    summary = read(results).summary if (results / "summary.json").exists() else None
    return summary if summary and summary.get("stopped") == "rounds" else None


def _holds_run(federation: Federation) -> bool:
    return (federation.results / "experiment.toml").exists()


def _running(federation: Federation) -> bool:
    return reach("127.0.0.1", federation.port, authority=federation.server / "ca.crt") is None


def _versions() -> Iterator[Finding]:
    try:
        found = version("flwr")
        from tacit.deploy.server import require_flwr

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
        yield lasting(path)
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
        here = federation.site(name).exists()
        path = federation.site(name) / "node.pub" if here else federation.public_key(name)
        if not path.is_file():
            yield Finding(f"{path} is missing: the server cannot know the site.", wrong=True)
            continue
        mark = hashlib.sha256(b" ".join(path.read_bytes().split()[:2])).hexdigest()
        if mark in seen:
            yield Finding(f"The sites {seen[mark]} and {name} have one key: make a key for each.", wrong=True)
        seen.setdefault(mark, name)
    if len(seen) == len(federation.sites):
        yield Finding(f"{len(seen)} sites with a node key each")


def _experiment(federation: Federation) -> Experiment | None:
    path = federation.app / "tacit_app" / "experiment.toml"
    try:
        return Experiment.load(path)
    except TacitError:
        return None  # the app's own line says what is wrong with it


def _epsilons(federation: Federation) -> dict[str, float] | None:
    try:
        return {name: read_limits(federation.site(name)).epsilon for name in federation.sites}
    except BadInput:
        return None


def _results(federation: Federation, short: Sequence[Short]) -> Iterator[Finding]:
    results, anew = federation.results, "`up --force` sets it aside and starts anew (what it spent stays spent)"
    if short:
        anew = f"a new one is refused while {', '.join(one.site for one in short)} cannot pay for it"
    if not _holds_run(federation):
        return
    if (results / "summary.json").exists():
        try:
            rounds = (read(results).summary or {})["rounds"]
            yield Finding(f"{results} holds a run that is finished ({rounds} rounds); {anew}")
        except BadInput as error:
            yield Finding(str(error), wrong=True)
        return
    lines = (results / "rounds.jsonl").read_text("utf-8").count("\n") if (results / "rounds.jsonl").exists() else 0
    yield Finding(f"{results} holds a run that is not finished ({lines} rounds); `up --resume` goes on with it, {anew}")


def _port(federation: Federation) -> Iterator[Finding]:
    if taken(federation.port):
        why = reach("127.0.0.1", federation.port, authority=federation.server / "ca.crt")
        if why is None:
            yield Finding(f"The server is running at {federation.address}")
            yield from control_findings("127.0.0.1", federation.port, authority=federation.server / "ca.crt")
        else:
            yield Finding(f"Port {federation.port} is in use by something else ({why}).", wrong=True)
    else:
        yield Finding(f"Port {federation.port} is free; the server is not running")
