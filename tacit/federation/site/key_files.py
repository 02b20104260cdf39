"""The keys of encrypted sums, each on the machine it belongs to.

Every site has its own signing key and its own share of the clients' key; with `protect.threshold` left out or 1 the whole of
it. The server has the public key, the members' names and, of a split key, what it needs to check answers. The whole of a
split key exists in the memory of whoever makes the keys, and is never written.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from gmpy2 import mpz

from tacit.errors import KeyRefused
from tacit.experiment import Experiment
from tacit.privacy.distributed.groups import new_key
from tacit.protect import keys, signing
from tacit.protect import owner_files as files
from tacit.protect.opening import numbers_to_bytes
from tacit.protect.paillier import PublicKey
from tacit.protect.secret_key import SecretKey
from tacit.protect.signing import Members, Signer
from tacit.protect.threshold import Share, Verification, deal

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
        whatever it is given: what may be opened is decided before (`tacit.protect.holder.Opener`).
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
