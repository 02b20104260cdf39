"""Encrypted sums across machines: the keys come from disk, and only the sites can open a sum.

In a simulation one process makes a key and is all parties. Here every site has its own signing key and its share of the
clients' key (or all of it) in its folder, and the server has neither, so it adds what it cannot read. A site has a part in
opening one sum per round, of reports that it has checked and added itself. With shares every site answers; where each has the
whole key, only the one whose turn it is by a hash.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tacit.algorithms._groups import Group
from tacit.algorithms.encrypted import Encrypted
from tacit.build.parts import Parts, assemble
from tacit.data.dataset import Dataset
from tacit.data.population import Population
from tacit.errors import Refused
from tacit.experiment import Experiment
from tacit.federation.site.key_files import FOLDER, Held, load_keys
from tacit.privacy.distributed.plan import DistributedPlan
from tacit.protect.envelope import common_hash
from tacit.protect.holder import Opener
from tacit.protect.lanes import Lanes
from tacit.protect.paillier import PublicKey
from tacit.protect.randomisers import Randomisers
from tacit.protect.seal import Sealed, report_bytes
from tacit.types import Message


def assemble_sealed(
    experiment: Experiment,
    dataset: Dataset,
    population: Population,
    *,
    folder: Path,
    run: str,
    site: str | None,
    text: str,
    roster: Mapping[str, Any],
) -> Parts:
    """The parts of a run whose seals come from `folder`; a site can sign and open, the server (site None) neither.

    `text` and `roster` are the experiment and the sites as they were told: their hash with the run's name is signed with every
    report, so that reports are added only where every site was told the same.
    """
    if experiment.protect.kind != "paillier":
        return assemble(experiment, dataset, population, own=population.names.index(site) if site else None)
    bare = {"kind": "none", "bits": experiment.protect.bits, "rotation": experiment.protect.rotation}
    open_ = experiment.model_copy(update={"protect": experiment.protect.model_copy(update=bare | {"key_bits": None})})
    parts = assemble(open_, dataset, population)
    parts, told = replace(parts, experiment=experiment), common_hash(run, text, roster)
    algorithm = with_seals(parts, folder / FOLDER, run=run, site=site, sites=roster["names"], told=told)
    return replace(parts, algorithm=algorithm)


def with_seals(parts: Parts, folder: Path, *, run: str, site: str | None, sites: Sequence[str], told: str) -> Encrypted:
    """The algorithm with sealed reports in the place of readable ones. Raises KeyRefused where `sites` are not the members."""
    algorithm, plan = parts.algorithm, parts.plan
    if not isinstance(algorithm, Encrypted) or not isinstance(plan, DistributedPlan):
        raise TypeError("only distributed DP has seals")
    held = load_keys(folder, threshold=parts.experiment.protect.threshold or 1, sites=sites, site=site)
    signers = {held.signer.client: held.signer} if held.signer else {}
    made: dict[str, Group] = {}
    for group in {group.name: group for group in algorithm.groups.values()}.values():
        lanes = lanes_of(plan, plan.noises.index(group.noise), held.public)
        seal = Sealed(
            lanes,
            held.public,
            f"{run}-{group.name}",
            told,
            held.members,
            signers,
            _randomisers(held.public, lanes, site),
            verification=held.verification,
            holder=_holder(folder, held, group, algorithm.groups),
        )
        made[group.name] = replace(group, seal=seal)
    return replace(algorithm, groups={name: made[group.name] for name, group in algorithm.groups.items()})


def lanes_of(plan: DistributedPlan, number: int, public: PublicKey) -> Lanes:
    """How a group's integers are packed under a key."""
    noise, grid = plan.noises[number], plan.grid
    return Lanes(grid.dimension, grid.largest + noise.tail, noise.most, public.plaintext_bits)


def _randomisers(public: PublicKey, lanes: Lanes, site: str | None) -> Randomisers:
    return Randomisers(public, expected=lanes.numbers if site else 1, workers=1)


def _holder(folder: Path, held: Held, group: Group, groups: Mapping[str, Group]) -> Opener[bytes] | None:
    if held.answer is None or held.signer is None:
        return None
    path = folder.parent / f"openings-{group.name}.db"
    turns = () if held.verification else sorted(groups)
    return Opener(path, held.answer, at_least=group.noise.fewest, name=held.signer.client, turns=turns)


def refuse_other_turn(parts: Parts, received: Message, round: int) -> None:
    """Refuses a message whose `turn`, under which a report is sealed, is not the round that was asked. Raises Refused."""
    turn = received.facts.get("turn")
    if isinstance(parts.algorithm, Encrypted) and (type(turn) is not int or turn != round):
        raise Refused(f"The server asks for round {round} and sent the turn {turn!r:.40}: they must be the same.")


def group_of(parts: Parts, word: str) -> Group:
    """The group of that name. Raises Refused where this run has none, or its sums are not sealed."""
    groups = parts.algorithm.groups.values() if isinstance(parts.algorithm, Encrypted) else ()
    for group in groups:
        if group.name == word and isinstance(group.seal, Sealed):
            return group
    raise Refused(f"The server asks to open a sum of {word!r}, and this run has no such sealed sum.")


def open_reports(parts: Parts, word: str, turn: int, message: Message) -> bytes:
    """This site's part of opening the sum of the reports in a message. Raises a TacitError that says why not."""
    seal = group_of(parts, word).seal
    if not isinstance(seal, Sealed) or seal.holder is None:
        raise Refused("This site holds no key.")
    reports = [report_bytes(tensor) for _, tensor in sorted(message.tensors.items())]
    answer, _ = seal.holder.open(seal.place(turn), reports)
    return answer
