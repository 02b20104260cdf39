"""The keys of encrypted sums, each on the machine it belongs to.

Every site has its own signing key; under masks it needs no other. Under Paillier it has its share of the clients' key (with
`protect.threshold` left out or 1 the whole of it), the server the public key, the members' names and what checks the answers. The
whole of a split key is never written."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from gmpy2 import mpz

from tacit.algorithms.encrypted import Encrypted
from tacit.crypto import keys
from tacit.crypto.masked import Legs, Masked
from tacit.crypto.masks import Roster
from tacit.crypto.paillier import PublicKey, Randomisers, SecretKey
from tacit.crypto.reports import Members, Opener, Opens, Signer, common_hash, numbers_to_bytes
from tacit.crypto.seal import Sealed
from tacit.crypto.threshold import Share, Verification, deal
from tacit.deploy.site.layout import run_folder
from tacit.deploy.site.masks import AtSite
from tacit.engine.assemble import Parts
from tacit.errors import KeyRefused, Refused
from tacit.experiment import Experiment
from tacit.privacy.distributed.kind import DistributedPlan, lanes_of, new_key

FOLDER = "keys"  # in the server's and in every site's folder


@dataclass(frozen=True)
class Held:
    """What one party holds: everybody the public key and the members' names, a site also its signing key and its key or share."""

    public: PublicKey
    verification: Verification | None  # where the key is split: tells a wrong part of an opening from a right one
    members: Members = field(repr=False)
    signer: Signer | None = field(default=None, repr=False)
    secret: SecretKey | Share | None = field(default=None, repr=False)

    @property
    def answer(self) -> Callable[[list[mpz]], bytes] | None:
        """What turns any sum into this site's part of opening it; what may be opened decides `crypto.reports.Opener`."""
        secret, public = self.secret, self.public
        if isinstance(secret, Share):
            return lambda total: secret.verification.to_bytes(secret.open(total))
        return None if secret is None else lambda total: numbers_to_bytes(public, secret.open_any(total))


def make_keys(experiment: Experiment, server: Path, sites: dict[str, Path]) -> None:
    """Makes a signing key for each of the run's sites, under Paillier also one key pair, and writes into every folder what is its
    party's.

    Assumes: whoever runs this is trusted with all keys. Raises: BadInput for a file that stands.
    """
    signers = {name: keys.new_signer(name) for name in sites}
    for name, folder in sites.items():
        keys.save_signer(folder / FOLDER, signers[name])
    for name in sites:
        member = (sites[name] / FOLDER / f"{name}{keys.MEMBER}").read_bytes()
        for folder in (server, *sites.values()):
            (folder / FOLDER).mkdir(parents=True, exist_ok=True)
            (folder / FOLDER / f"{name}{keys.MEMBER}").write_bytes(member)
    if experiment.protect.kind == "masks":
        return
    key, protect = new_key(experiment), experiment.protect
    shares = deal(key, threshold=protect.threshold or 1, of=len(sites)) if protect.split else []
    for folder in (server, *sites.values()):
        keys.write(folder / FOLDER / keys.PUBLIC_FILE, keys.public_record(key.public), mode=keys.PUBLIC)
        if shares:
            public = keys.verification_record(shares[0].verification)
            keys.write(folder / FOLDER / keys.VERIFICATION_FILE, public, mode=keys.PUBLIC)
    for name, folder in sites.items():
        if shares:
            keys.save_share(folder / FOLDER / keys.SHARE_FILE, shares[share_number(sites, name) - 1])
        else:
            keys.write(folder / FOLDER / keys.SECRET_FILE, keys.secret_record(key), mode=keys.SECRET)


def share_number(sites: Iterable[str], name: str) -> int:
    """Which share is a site's, counted from 1 in the order of their names."""
    return sorted(sites).index(name) + 1


def load_members(folder: Path, *, sites: Iterable[str], site: str | None) -> tuple[Members, Signer | None]:
    """The members in `folder`, which are exactly `sites`, and a site's own signing key. Raises: KeyRefused, naming the file."""
    sites, members = list(sites), keys.load_members(folder)
    if sorted(sites) != sorted(members):
        listed = f"sites {', '.join(sorted(sites)[:20])} and the members in {folder} {', '.join(sorted(members)[:20])}"
        raise KeyRefused(f"Encrypted sums need one list of sites everywhere, not the {listed}: make them the same.")
    if site is None:
        return members, None
    path = folder / f"{site}{keys.SIGNING}"
    signer, member = keys.load_signer(path), members.get(site)
    if signer.client != site or member is None or member.public_bytes_raw() != signer.public.public_bytes_raw():
        raise KeyRefused(f"{path} does not belong to {folder / f'{site}{keys.MEMBER}'}: take both from one maker.")
    return members, signer


def load_keys(folder: Path, *, threshold: int, sites: Iterable[str], site: str | None) -> Held:
    """What a site, or the server (site None), has in `folder`. Raises: KeyRefused, naming the file.

    Guarantee: the members on disk are exactly `sites` (whoever could add or leave out a name would choose whose reports are
    summed); all keys belong together; a split key is for this `threshold` of these sites; the share is this site's own.
    """
    sites = list(sites)
    public = keys.load_as(PublicKey, folder / keys.PUBLIC_FILE)
    other = f"belongs to another key than {folder / keys.PUBLIC_FILE}: take both from one maker."
    members, signer = load_members(folder, sites=sites, site=site)
    verification = None
    if threshold > 1:
        path = folder / keys.VERIFICATION_FILE
        verification = keys.load_as(keys.Verification, path)
        if verification.public != public:
            raise KeyRefused(f"{path} {other}")
        if (verification.threshold, verification.of) != (threshold, len(sites)):
            known, wanted = f"{verification.threshold} of {verification.of}", f"{threshold} of {len(sites)}"
            raise KeyRefused(
                f"{path} is for {known} sites, and the experiment wants {wanted}: make keys for it with `tacit deploy init`."
            )
    if site is None:
        return Held(public, verification, members)
    if verification is None:
        path = folder / keys.SECRET_FILE
        secret = keys.load_as(SecretKey, path)
        if secret.public != public:
            raise KeyRefused(f"{path} {other}")
        return Held(public, None, members, signer, secret)
    path, number = folder / keys.SHARE_FILE, share_number(sites, site)
    share = keys.load_as(keys.Share, path)
    if share.verification != verification:
        raise KeyRefused(f"{path} is a share of another key than {folder / keys.VERIFICATION_FILE}: ask for your own.")
    if share.index != number:
        raise KeyRefused(f"{path} is share {share.index}, and {site} has share {number}: ask for your own.")
    return Held(public, verification, members, signer, share)


# Encrypted sums across machines: the keys come from disk, and only the sites can open a sum.

Opening = Callable[[str, int, Verification | None], Opens]  # (group, fewest reports, how shares are verified)


@dataclass(frozen=True, eq=False)
class FolderSeals:
    """The keys of one party of a deployment, from its folder: a site can sign and open, the server (site None) neither.

    The hash of the run's name, `text` (the experiment) and `roster` is signed with every report, so that reports are added only
    where every site was told the same. Guarantee: at a site nothing is opened but by its `Opener`, which checks and adds the
    reports itself and writes down, before it opens, which sum of the round it is.
    """

    folder: Path
    run: str
    site: str | None
    threshold: int
    text: str = field(repr=False)
    roster: Mapping[str, Any] = field(repr=False)
    rounds: int
    masks: bool
    opening: Opening | None = None  # how the server has sums opened
    legs: Callable[[str, Roster], Legs] | None = None  # the same, under masks

    @cached_property
    def held(self) -> Held:
        return load_keys(self.folder / FOLDER, threshold=self.threshold, sites=self.roster["names"], site=self.site)

    @cached_property
    def members(self) -> tuple[Members, Signer | None]:
        return load_members(self.folder / FOLDER, sites=self.roster["names"], site=self.site)

    def seal(
        self, plan: DistributedPlan, number: int, word: str, clients: Sequence[str], everybody: Sequence[str]
    ) -> Sealed | Masked:
        """How one group's reports are encrypted and signed, and their sum opened: of no fewer than its noise is sized for."""
        if self.masks:
            return self._masked(plan, number, word, clients)
        held, fewest = self.held, plan.noises[number].fewest
        lanes, holder = lanes_of(plan, number, held.public), None
        if held.answer is not None and held.signer is not None:
            openers, path = () if held.verification else sorted(everybody), self.folder / f"openings-{word}.db"
            holder = Opener(path, held.answer, at_least=fewest, name=held.signer.client, openers=openers)
        return Sealed(
            lanes,
            held.public,
            f"{self.run}-{word}",
            common_hash(self.run, self.text, self.roster),
            held.members,
            {held.signer.client: held.signer} if held.signer else {},
            Randomisers(held.public, expected=lanes.numbers if self.site else 1, workers=1),
            verification=held.verification,
            holder=holder,
            opener=self.opening(word, fewest, held.verification) if self.opening else None,
        )

    def _masked(self, plan: DistributedPlan, number: int, word: str, clients: Sequence[str]) -> Masked:
        members, signer = self.members
        noise, common = plan.noises[number], common_hash(self.run, self.text, self.roster)
        signing = {name: members[name] for name in clients}
        roster = Roster(f"{self.run}-{word}-{common}", signing, noise.fewest, noise.colluding)
        legs = self.legs(word, roster) if self.legs else None
        if legs is None and signer is not None:
            legs = AtSite(signer, roster, run_folder(self.folder, self.run), self.rounds)
        return Masked(lanes_of(plan, number, None), cast(Legs, legs))  # without any only terms are computed


def seals_of(
    experiment: Experiment,
    folder: Path,
    *,
    run: str,
    site: str | None,
    text: str,
    roster: Mapping[str, Any],
    opening: Opening | None = None,
    legs: Callable[[str, Roster], Legs] | None = None,
) -> FolderSeals | None:
    """Where the keys of a deployed run come from; None where no report is hidden. No key is read before it is needed."""
    protect, rounds = experiment.protect, experiment.train.rounds
    if protect.kind == "none":
        return None
    masks = protect.kind == "masks"
    return FolderSeals(folder, run, site, protect.threshold or 1, text, roster, rounds, masks, opening, legs)


def seal_of(parts: Parts, word: str) -> Sealed:
    """The seal of the group of that name among those of the run as the site itself has built it. Raises: Refused."""
    groups = parts.algorithm.groups.values() if isinstance(parts.algorithm, Encrypted) else ()
    for group in groups:
        if group.name == word and isinstance(group.seal, Sealed):
            return group.seal
    raise Refused(f"The server asks to open a sum of {word!r}, and this run has no such sealed sum.")
