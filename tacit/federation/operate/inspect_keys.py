"""`tacit deploy check` on encrypted sums: who can open them, and whether everybody has what is theirs, and no more."""

from collections.abc import Iterator
from pathlib import Path

from tacit.errors import TacitError
from tacit.experiment import Experiment
from tacit.federation.operate.finding import Finding
from tacit.federation.operate.layout import Federation
from tacit.federation.site.join import read_settings
from tacit.federation.site.key_files import FOLDER, Held, load_keys
from tacit.protect import keys, signing


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
