"""Opening an encrypted sum from the server's side: it has no key, so it asks the site whose turn it is.

It sends that site the signed reports themselves, not their product: the site checks and adds them, so a server that lies
about the sum gains nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from gmpy2 import mpz

from tacit.algorithms._groups import Group
from tacit.algorithms.encrypted import Encrypted
from tacit.build import Parts
from tacit.engine.flower.gather import gather
from tacit.engine.flower.trainer import OverGrid
from tacit.engine.wire import pack, unpack
from tacit.errors import TacitError
from tacit.protect.envelope import Inbox, Place, refuse_few
from tacit.protect.opener import whose_turn
from tacit.protect.seals import Sealed
from tacit.site.sealed import numbers_from_text
from tacit.types import Message


@dataclass(frozen=True)
class AtSite:
    """An opener at a site. It stands where the simulator's own opener stands."""

    trainer: OverGrid
    group: str
    at_least: int

    def open(self, place: Place, messages: Sequence[bytes]) -> tuple[list[mpz], list[str]]:
        """Asks for the sum of the reports that were accepted. Raises TooFewReports, or TacitError with the site's reason."""
        inbox, trainer = Inbox(place), self.trainer
        for raw in messages:
            inbox.accept(raw)
        refuse_few(
            inbox.complete(), at_least=self.at_least
        )  # then the round goes on without a step, and nobody is asked
        who = whose_turn(trainer.names, run=place.run, round=place.round)
        node = trainer.nodes.get(list(trainer.names).index(who))
        again = "bring it back, then go on with --resume"
        if node is None:
            raise TacitError(f"Round {place.round} is opened by {who}, which is not connected: {again}.")
        ask = {"kind": "open", "run": trainer.folder.run, "round": place.round, "group": self.group}
        reports = {f"{i:06d}": torch.frombuffer(bytearray(raw), dtype=torch.uint8) for i, raw in enumerate(messages)}
        heard = gather(trainer.grid, {node: ask}, pack(Message("server", reports)), seconds=trainer.seconds)
        if node not in heard.answers:
            why = heard.refusals.get(node) or heard.lost.get(node) or f"no answer in {trainer.seconds:g} s"
            raise TacitError(f"Round {place.round} could not be opened by {who} ({why}): {again}.")
        facts = unpack(heard.answers[node][1]).facts
        return numbers_from_text(facts["numbers"]), facts["clients"]


def opened_by_sites(parts: Parts, trainer: OverGrid) -> Parts:
    """The parts with sums that are opened at the sites, where they are sealed."""
    algorithm = parts.algorithm
    if not isinstance(algorithm, Encrypted):
        return parts
    made: dict[str, Group] = {}
    for group in algorithm.groups.values():
        if group.name not in made and isinstance(group.seal, Sealed):
            opener = AtSite(trainer, group.name, group.noise.fewest)
            made[group.name] = replace(group, seal=replace(group.seal, opener=opener))  # pyright: ignore[reportArgumentType]
    groups = {name: made.get(group.name, group) for name, group in algorithm.groups.items()}
    return replace(parts, algorithm=replace(algorithm, groups=groups))
