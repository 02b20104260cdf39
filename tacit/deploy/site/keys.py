"""The keys of encrypted sums, each on the machine it belongs to.

Every site has its own signing key and its own share of the clients' key; with `protect.threshold` left out or 1 the whole of
it. The server has the public key, the members' names and, of a split key, what it needs to check answers. The whole of a
split key exists in the memory of whoever makes the keys, and is never written."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from gmpy2 import mpz

from tacit.algorithms.encrypted import Encrypted, Group
from tacit.crypto import keys, signing
from tacit.crypto import keys as files
from tacit.crypto.envelope import common_hash
from tacit.crypto.holder import Opener, Opens, numbers_to_bytes
from tacit.crypto.paillier import PublicKey
from tacit.crypto.randomisers import Randomisers
from tacit.crypto.seal import Sealed, report_bytes
from tacit.crypto.secret_key import SecretKey
from tacit.crypto.signing import Members, Signer
from tacit.crypto.threshold import Share, Verification, deal
from tacit.deploy.site.layout import openings_file
from tacit.engine.assemble import Parts
from tacit.errors import KeyRefused, Refused
from tacit.experiment import Experiment
from tacit.privacy.distributed.kind import DistributedPlan, lanes_of, new_key
from tacit.types import Message

FOLDER = "keys"  # in the server's and in every site's folder


@dataclass(frozen=True)
class Held:
    """What one party holds: everybody the public key and the members' names, a site also its signing key and its key or share.

    `verification` is there where the key is split, and tells a wrong part of an opening from a right one. The server neither
    signs nor opens: its `signer` and `secret` are None. Secrets are not in `repr`.
    """

    public: PublicKey
    verification: Verification | None
    members: Members = field(repr=False)
    signer: Signer | None = field(default=None, repr=False)
    secret: SecretKey | Share | None = field(default=None, repr=False)

    @property
    def answer(self) -> Callable[[list[mpz]], bytes] | None:
        """What turns a sum into this site's part of opening it, as bytes for the wire; None where the party holds no key.

        With a share that is its partial opening and a proof; with the whole key it is the opened numbers themselves. It opens
        whatever it is given: what may be opened is decided before (`tacit.crypto.holder.Opener`).
        """
        secret, public = self.secret, self.public
        if isinstance(secret, Share):
            return lambda total: secret.verification.to_bytes(secret.open(total))
        return None if secret is None else lambda total: numbers_to_bytes(public, secret.open_any(total))


def make_keys(experiment: Experiment, server: Path, sites: dict[str, Path]) -> None:
    """Makes one key pair and a signing key per site, and writes into every folder what is its party's.

    Guarantee: with `protect.threshold` above 1 the whole secret key is never written, only a share to each site; else every
    site has all of it, and the server none. Secret files have mode 0600, and one that stands is never overwritten.

    Assumes: whoever runs this is trusted with all keys, which are in its memory; `sites` are all of the run's.

    Raises: BadInput where a key file stands already or cannot be written.
    """
    key, protect = new_key(experiment), experiment.protect
    shares = deal(key, threshold=protect.threshold or 1, of=len(sites)) if protect.split else []
    signers = {name: signing.new_signer(name) for name in sites}
    for folder in (server, *sites.values()):
        files.write(folder / FOLDER / keys.PUBLIC_FILE, keys.public_record(key.public), mode=files.PUBLIC)
        if shares:
            keys.save_verification(folder / FOLDER, shares[0].verification)
    for name, folder in sites.items():
        if shares:
            keys.save_share(folder / FOLDER / keys.SHARE_FILE, shares[share_number(sites, name) - 1])
        else:
            files.write(folder / FOLDER / keys.SECRET_FILE, keys.secret_record(key), mode=files.SECRET)
        signing.save(folder / FOLDER, signers[name])
    for name in sites:
        member = (sites[name] / FOLDER / f"{name}{signing.MEMBER}").read_bytes()
        for folder in (server, *sites.values()):
            (folder / FOLDER / f"{name}{signing.MEMBER}").write_bytes(member)


def share_number(sites: Iterable[str], name: str) -> int:
    """Which share is a site's: they are counted from 1 in the order of the sites' names.

    >>> share_number(("north", "coast"), "coast")
    1
    """
    return sorted(sites).index(name) + 1


def load_keys(folder: Path, *, threshold: int, sites: Iterable[str], site: str | None) -> Held:
    """What a site, or the server (site None), has in `folder`.

    Guarantee: the members on disk are exactly `sites` (whoever could add or leave out a name would choose whose reports are
    summed); signing key, share or secret key, verification and public key belong together; a split key is for this `threshold`
    of these sites; the share is the one of this site's number.

    Raises: KeyRefused, naming the file, for what is missing, damaged, open to other users, or another's.
    """
    sites = list(sites)
    public, members = keys.load_public(folder / keys.PUBLIC_FILE), signing.load_members(folder)
    if sorted(sites) != sorted(members):
        listed = (
            f"the sites {', '.join(sorted(sites)[:20])} and the members in {folder} {', '.join(sorted(members)[:20])}"
        )
        raise KeyRefused(
            f"Encrypted sums need one list of sites everywhere, and there are {listed}: make them the same."
        )
    verification = _verification(folder, public, threshold=threshold, of=len(sites)) if threshold > 1 else None
    if site is None:
        return Held(public, verification, members)
    signer = _own_signer(folder, site, members)
    if verification is None:
        return Held(public, None, members, signer, _own_secret(folder, public))
    path, number = folder / keys.SHARE_FILE, share_number(sites, site)
    share = keys.load_share(path)
    if share.verification != verification:
        raise KeyRefused(f"{path} is a share of another key than {folder / keys.VERIFICATION_FILE}: ask for your own.")
    if share.index != number:
        raise KeyRefused(f"{path} is share {share.index}, and {site} has share {number}: ask for your own.")
    return Held(public, verification, members, signer, share)


def _own_signer(folder: Path, site: str, members: Members) -> Signer:
    path = folder / f"{site}{signing.SIGNING}"
    signer = signing.load_signer(path)
    known = members.get(site)
    if signer.client != site or known is None or known.public_bytes_raw() != signer.public.public_bytes_raw():
        raise KeyRefused(f"{path} does not belong to {folder / f'{site}{signing.MEMBER}'}: take both from one maker.")
    return signer


def _own_secret(folder: Path, public: PublicKey) -> SecretKey:
    path = folder / keys.SECRET_FILE
    secret = keys.load_secret(path)
    if secret.public != public:
        raise KeyRefused(f"{path} belongs to another key than {folder / keys.PUBLIC_FILE}: take both from one maker.")
    return secret


def _verification(folder: Path, public: PublicKey, *, threshold: int, of: int) -> Verification:
    path = folder / keys.VERIFICATION_FILE
    known = keys.load_verification(path)
    if known.public != public:
        raise KeyRefused(f"{path} belongs to another key than {folder / keys.PUBLIC_FILE}: take both from one maker.")
    if (known.threshold, known.of) != (threshold, of):
        text = f"{path} is for {known.threshold} of {known.of} sites, and the experiment wants {threshold} of {of}"
        raise KeyRefused(f"{text}: make keys for it with `tacit deploy init`.")
    return known


# Encrypted sums across machines: the keys come from disk, and only the sites can open a sum.

Opening = Callable[[str, int, Verification | None], Opens]  # (group, fewest reports, how shares are verified)


@dataclass(frozen=True, eq=False)
class FolderSeals:
    """The seals of one party of a deployment, from its folder: a site can sign and open, the server (site None) neither.

    `text` and `roster` are the experiment and the sites as they were told: their hash with the run's name is signed with every
    report, so that reports are added only where every site was told the same. `opening` is how the server has sums opened.

    Guarantee: at a site nothing is opened but by its `Opener`, which checks and adds the reports itself and writes down, before
    it opens, which sum of the round it is; another one is refused, after a restart as well.
    """

    folder: Path
    run: str
    site: str | None
    threshold: int
    text: str = field(repr=False)
    roster: Mapping[str, Any] = field(repr=False)
    opening: Opening | None = None

    @cached_property
    def held(self) -> Held:
        """The keys of the folder, read once. Raises: KeyRefused where they are not those of the roster's sites (`load_keys`)."""
        return load_keys(self.folder / FOLDER, threshold=self.threshold, sites=self.roster["names"], site=self.site)

    def seal(
        self, plan: DistributedPlan, number: int, word: str, clients: Sequence[str], everybody: Sequence[str]
    ) -> Sealed:
        """The seal of one group's reports, under the key of the folder and this party's own signature.

        `number` and `word` are the group's, `clients` its members, `everybody` all sites of the run: who may open is a question
        of all of them. The group's noise is sized for `fewest` reports, so no sum of fewer is opened.
        """
        held, fewest = self.held, plan.noises[number].fewest
        lanes = lanes_of(plan, number, held.public)
        return Sealed(
            lanes,
            held.public,
            f"{self.run}-{word}",
            common_hash(self.run, self.text, self.roster),
            held.members,
            {held.signer.client: held.signer} if held.signer else {},
            Randomisers(held.public, expected=lanes.numbers if self.site else 1, workers=1),
            verification=held.verification,
            holder=self._holder(word, fewest, everybody),
            opener=self.opening(word, fewest, held.verification) if self.opening else None,
        )

    def _holder(self, word: str, fewest: int, everybody: Sequence[str]) -> Opener[bytes] | None:
        held = self.held
        if held.answer is None or held.signer is None:
            return None
        turns = () if held.verification else sorted(everybody)
        path = openings_file(self.folder, word)
        return Opener(path, held.answer, at_least=fewest, name=held.signer.client, turns=turns)


def seals_of(
    experiment: Experiment,
    folder: Path,
    *,
    run: str,
    site: str | None,
    text: str,
    roster: Mapping[str, Any],
    opening: Opening | None = None,
) -> FolderSeals | None:
    """Where the seals of a deployed run come from; None where nothing is sealed. No key is read before a seal is made.

    `text` and `roster` are what this party was told, or tells: two that were told differently cannot add up each other's reports.
    """
    if experiment.protect.kind != "paillier":
        return None
    return FolderSeals(folder, run, site, experiment.protect.threshold or 1, text, roster, opening)


def refuse_other_turn(parts: Parts, received: Message, round: int) -> None:
    """Refuses a message whose `turn`, under which a report is sealed and rotated, is not the round that was asked.

    Otherwise the site would pay for one round and sign a report for another. Where reports are not encrypted there is no turn.

    Raises: Refused.
    """
    turn = received.facts.get("turn")
    if isinstance(parts.algorithm, Encrypted) and (type(turn) is not int or turn != round):
        raise Refused(f"The server asks for round {round + 1} and sent the turn of another: they must be the same.")


def group_of(parts: Parts, word: str) -> Group:
    """The group of that name among those of the run as the site itself has built it.

    Raises: Refused where this run has none, or its sums are not sealed.
    """
    groups = parts.algorithm.groups.values() if isinstance(parts.algorithm, Encrypted) else ()
    for group in groups:
        if group.name == word and isinstance(group.seal, Sealed):
            return group
    raise Refused(f"The server asks to open a sum of {word!r}, and this run has no such sealed sum.")


def open_reports(parts: Parts, word: str, turn: int, message: Message) -> bytes:
    """This site's part of opening the sum of the reports in a message, as bytes for the wire.

    Guarantee: the site checks every report's signature, roster and proof and adds them up itself; it takes no sum from the
    server, and has a part in one sum of a round only, of at least as many reports as the noise was sized for.

    Raises: Refused where the site holds no key; TooFewReports; OpeningRefused for another sum of the round, or another site's
    turn; and a MessageRefused for a report that is not in order.
    """
    seal = group_of(parts, word).seal
    if not isinstance(seal, Sealed) or seal.holder is None:
        raise Refused("This site holds no key.")
    reports = [report_bytes(tensor) for _, tensor in sorted(message.tensors.items())]
    answer, _ = seal.holder.open(seal.context(turn), reports)
    return answer
