"""Reports under masks that cancel in the sum, as a seal: what a client sends, what the server adds, and who takes the legs after.

`Legs` are one side's: in a simulation one process takes all of them (`OneProcess`); a site has its own
(`tacit/deploy/site/masks.py`), and the server asks the sites (`tacit/deploy/server/masks.py`). Guarantee: the opened sum is that
of `seal.Plain`, to the bit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from tacit.crypto.grid import Lanes
from tacit.crypto.masks import WIDTHS, Attempt, Collecting, Joined, Party, Roster, Setup
from tacit.crypto.reports import Opened
from tacit.crypto.seal import tensors_of
from tacit.errors import TacitError
from tacit.types import Message, Shared

SETUP = "setup"  # of the next round, which comes with a report


class Legs(Protocol):
    """One side's part in the rounds of a roster."""

    def joined(self, client: str, round: int) -> Joined:
        """The attempt that a client has joined."""
        ...

    def ahead(self, round: int) -> Mapping[str, torch.Tensor]:
        """What travels with a report of the round beside it."""
        ...

    def told(self, round: int) -> tuple[str, Mapping[str, Setup]]:
        """The digest of the model, and the setups, that the round's clients were told."""
        ...

    def heard(self, sender: str, round: int, setup: torch.Tensor | None) -> None:
        """What came with a report of the round."""
        ...

    def open(self, collecting: Collecting) -> tuple[np.ndarray, Opened | None]:
        """The sum, after enough survivors have signed the list and given their shares. Raises: TooFewReports, BadOpening."""
        ...


@dataclass(frozen=True)
class Masked:
    """The seal of one group's reports."""

    lanes: Lanes
    roster: Roster
    legs: Legs = field(repr=False)

    @property
    def bits(self) -> int:
        """Of a report's integers: the sum of the most reports does not wrap."""
        return 32 if 2 * self.lanes.reach * self.lanes.reports < 2**32 else 64

    @property
    def report_bytes(self) -> int:
        return self.lanes.count * self.bits // 8

    def report(self, shared: Shared, *, client: str, round: int) -> dict[str, torch.Tensor]:
        """The integers under their masks, and what travels beside them. Raises: GridOverflow."""
        vector = shared.vector.numpy()
        self.lanes.refuse_beyond(vector)
        masked = self.legs.joined(client, round).mask(vector, bits=self.bits)
        return {"report": torch.from_numpy(masked.view(f"<i{self.bits // 8}")), **self.legs.ahead(round)}

    def collect(self, *, round: int) -> "MaskedSum":
        model, setups = self.legs.told(round)
        return MaskedSum(self, Collecting(Attempt(self.roster, round), model, setups, self.lanes.count, self.bits))


@dataclass
class MaskedSum:
    """A running sum that nobody can read before the survivors have taken their masks away."""

    seal: Masked
    collecting: Collecting
    opened: Opened | None = None

    @property
    def clients(self) -> list[str]:
        return self.opened.clients if self.opened else list(self.collecting.reported)

    def accept(self, message: Message) -> None:
        parts = {name: tensor for name, tensor in message.tensors.items() if name != SETUP}
        (report,) = tensors_of(Message(message.sender, parts, message.facts), 1)
        self.collecting.add(message.sender, report.numpy().view(WIDTHS[self.seal.bits]))
        self.seal.legs.heard(message.sender, self.collecting.attempt.round, message.tensors.get(SETUP))

    def settle(self) -> Mapping[str, TacitError]:
        return {}

    def open(self) -> np.ndarray:
        """The sum. Raises: TooFewReports; GridOverflow for one that honest reports cannot have; as `Legs.open`."""
        total, self.opened = self.seal.legs.open(self.collecting)
        self.seal.lanes.refuse_beyond(total, reports=len(self.clients))
        return total


class OneProcess:
    """All legs of all parties, in one process."""

    def __init__(self, parties: Sequence[Party], roster: Roster):
        self.parties, self.roster = {one.name: one for one in parties}, roster
        self._latest: tuple[int, dict[str, Setup]] = (-1, {})  # of one round: every client joins with the same
        self._joined: dict[str, Joined] = {}  # in that round

    def told(self, round: int) -> tuple[str, Mapping[str, Setup]]:
        if self._latest[0] != round:
            attempt = Attempt(self.roster, round)
            self._latest, self._joined = (round, {name: one.setup(attempt) for name, one in self.parties.items()}), {}
        return "", self._latest[1]

    def joined(self, client: str, round: int) -> Joined:
        setups = self.told(round)[1].values()
        if client not in self._joined:
            self._joined[client] = self.parties[client].join(Attempt(self.roster, round), setups, model="")
        return self._joined[client]

    def ahead(self, round: int) -> Mapping[str, torch.Tensor]:
        return {}

    def heard(self, sender: str, round: int, setup: torch.Tensor | None) -> None:
        pass

    def open(self, collecting: Collecting) -> tuple[np.ndarray, None]:
        survivors = collecting.survivors
        joined = {name: self.joined(name, collecting.attempt.round) for name in survivors}
        signatures = {name: mine.agree(survivors) for name, mine in joined.items()}
        return collecting.opened({name: mine.unmask(survivors, signatures) for name, mine in joined.items()}), None


def one_process(lanes: Lanes, parties: Sequence[Party], *, at_least: int, colluding: int) -> Masked:
    """The seal of a simulation. Raises: BadInput where two sums of a round could be opened."""
    roster = Roster("one process", {one.name: one.signer.public for one in parties}, at_least, colluding)
    return Masked(lanes, roster, OneProcess(parties, roster))
