"""Encrypted sums across machines: the keys come from disk, and only the sites can open a sum.

In a simulation one process makes a key and is all parties. Here every site has its own signing key and its share of the
clients' key (or all of it) in its folder, and the server has neither, so it adds what it cannot read. A site has a part in
opening one sum per round, of reports that it has checked and added itself. With shares every site answers; where each has the
whole key, only the one whose turn it is by a hash.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tacit.algorithms._groups import Group
from tacit.algorithms.encrypted import Encrypted
from tacit.build.parts import Parts
from tacit.errors import Refused
from tacit.experiment import Experiment
from tacit.federation.site.key_files import FOLDER, Held, load_keys
from tacit.federation.site.layout import openings_file
from tacit.privacy.distributed.groups import lanes_of
from tacit.privacy.distributed.plan import DistributedPlan
from tacit.protect.envelope import common_hash
from tacit.protect.holder import Opener
from tacit.protect.opening import Opens
from tacit.protect.randomisers import Randomisers
from tacit.protect.seal import Sealed, report_bytes
from tacit.protect.threshold import Verification
from tacit.types import Message

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
