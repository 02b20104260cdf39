"""Encrypted sums across machines: the keys come from disk, and only the sites can open a sum.

In a simulation one process makes a key and is all parties. Here every site has its own signing key and the clients' common
secret key in its folder; the server has the public key and the members' names, so it adds what it cannot read. Which site
opens a round follows from a hash; it opens one sum per round, of reports that it has checked and added itself.
"""

from dataclasses import replace
from pathlib import Path

from gmpy2 import mpz

from tacit.algorithms._groups import Group
from tacit.algorithms.encrypted import Encrypted
from tacit.build import Parts, assemble
from tacit.data.dataset import Dataset
from tacit.engine.wire import pack
from tacit.errors import Refused
from tacit.experiment import Experiment
from tacit.population import Population
from tacit.privacy.distributed_plan import DistributedPlan
from tacit.protect import files, keys, signing
from tacit.protect.lanes import Lanes
from tacit.protect.opener import Opener
from tacit.protect.paillier import PublicKey, SecretKey, generate
from tacit.protect.randomisers import Randomisers
from tacit.protect.seals import Sealed
from tacit.types import Message

FOLDER = "keys"  # in the server's and in every site's folder


def make_keys(experiment: Experiment, server: Path, sites: dict[str, Path]) -> None:
    """Makes one key pair and a signing key per site, and puts to everybody what is theirs."""
    protect = experiment.protect
    key = generate(bits=protect.key_bits or 3072, shape=protect.key_shape or "ordinary")
    signers = {name: signing.new_signer(name) for name in sites}
    files.write(server / FOLDER / keys.PUBLIC_FILE, keys.public_record(key.public), mode=files.PUBLIC)
    for name, folder in sites.items():
        keys.save(folder / FOLDER, key)
        signing.save(folder / FOLDER, signers[name])
    for name in sites:
        member = (sites[name] / FOLDER / f"{name}{signing.MEMBER}").read_bytes()
        for folder in (server, *sites.values()):
            (folder / FOLDER / f"{name}{signing.MEMBER}").write_bytes(member)


def assemble_sealed(
    experiment: Experiment, dataset: Dataset, population: Population, *, folder: Path, run: str, site: str | None
) -> Parts:
    """The parts of a run whose seals come from `folder`; a site can sign and open, the server (site None) neither."""
    if experiment.protect.kind != "paillier":
        return assemble(experiment, dataset, population)
    bare = {"kind": "none", "bits": experiment.protect.bits, "rotation": experiment.protect.rotation}
    open_ = experiment.model_copy(update={"protect": experiment.protect.model_copy(update=bare | {"key_bits": None})})
    parts = assemble(open_, dataset, population)
    return replace(parts, experiment=experiment, algorithm=with_seals(parts, folder / FOLDER, run=run, site=site))


def with_seals(parts: Parts, folder: Path, *, run: str, site: str | None) -> Encrypted:
    """The algorithm with sealed reports in the place of readable ones."""
    algorithm, plan = parts.algorithm, parts.plan
    if not isinstance(algorithm, Encrypted) or not isinstance(plan, DistributedPlan):
        raise TypeError("only distributed DP has seals")
    public = keys.load_public(folder / keys.PUBLIC_FILE)
    secret = keys.load_secret(folder / keys.SECRET_FILE) if site else None
    members = signing.load_members(folder)
    signers = {site: signing.load_signer(folder / f"{site}{signing.SIGNING}")} if site else {}
    groups, made = {}, {}
    for name, group in algorithm.groups.items():
        if group.name not in made:
            lanes = lanes_of(plan, plan.noises.index(group.noise), public)
            opener = _opener(
                folder, secret, site, at_least=group.noise.fewest, turns=sorted(algorithm.groups), name=group.name
            )
            seal = Sealed(
                lanes, public, f"{run}-{group.name}", members, signers, _randomisers(public, lanes, site), opener
            )
            made[group.name] = replace(group, seal=seal)
        groups[name] = made[group.name]
    return replace(algorithm, groups=groups)


def lanes_of(plan: DistributedPlan, number: int, public: PublicKey) -> Lanes:
    """How a group's integers are packed under a key."""
    noise, grid = plan.noises[number], plan.grid
    return Lanes(grid.dimension, grid.largest + noise.tail, noise.most, public.plaintext_bits)


def _randomisers(public: PublicKey, lanes: Lanes, site: str | None) -> Randomisers:
    return Randomisers(public, expected=lanes.numbers if site else 1, workers=1)


def _opener(
    folder: Path, secret: SecretKey | None, site: str | None, *, at_least: int, turns: list[str], name: str
) -> Opener[list[mpz]] | None:
    if secret is None or site is None:
        return None
    return Opener(folder.parent / f"openings-{name}.db", secret.open, at_least=at_least, name=site, turns=turns)


def group_of(parts: Parts, word: str) -> Group:
    """The group of that name. Raises Refused where this run has none, or its sums are not sealed."""
    groups = parts.algorithm.groups.values() if isinstance(parts.algorithm, Encrypted) else ()
    for group in groups:
        if group.name == word and isinstance(group.seal, Sealed):
            return group
    raise Refused(f"The server asks to open a sum of {word!r}, and this run has no such sealed sum.")


def open_reports(parts: Parts, word: str, turn: int, message: Message) -> bytes:
    """Opens the sum of the reports in a message, as bytes for the wire. Raises a TacitError that says why not."""
    seal = group_of(parts, word).seal
    if not isinstance(seal, Sealed) or seal.opener is None:
        raise Refused("This site holds no key.")
    reports = [tensor.numpy().tobytes() for _, tensor in sorted(message.tensors.items())]
    opened, clients = seal.opener.open(seal.place(turn), reports)
    return pack(Message(seal.opener.name, {}, {"numbers": numbers_to_text(opened), "clients": clients}))


def numbers_to_text(numbers: list[mpz]) -> list[str]:
    """Big integers for the wire."""
    return [f"{int(number):x}" for number in numbers]


def numbers_from_text(texts: list[str]) -> list[mpz]:
    """The inverse of `numbers_to_text`."""
    return [mpz(int(text, 16)) for text in texts]
