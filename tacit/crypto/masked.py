"""Reports under masks that cancel in the sum, as a seal: what a client sends, what the server adds, and who takes the legs after.

`Legs` are one side's: in a simulation one process deals all masks (`OneProcess`); a site has its own
(`tacit/deploy/site/masks.py`), and the server asks the sites (`tacit/deploy/server/masks.py`). Guarantee: the opened sum is that
of `seal.Plain`, to the bit."""

import hashlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from tacit.crypto.grid import Lanes
from tacit.crypto.masks import SEED_BYTES, WIDTHS, Adding, Mask, hidden, refuse_two_sums
from tacit.crypto.reports import Opened
from tacit.crypto.seal import tensors_of
from tacit.errors import TacitError
from tacit.types import Message, Shared

SETUP = "setup"  # of the next round, which comes with a report


class Legs(Protocol):
    """One side's part in the rounds of a roster."""

    def mask(self, vector: np.ndarray, *, client: str, round: int, bits: int) -> np.ndarray:
        """The client's integers under its masks, in the attempt that it has joined."""
        ...

    def ahead(self, round: int) -> Mapping[str, torch.Tensor]:
        """What travels with a report of the round beside it."""
        ...

    def adding(self, round: int, *, count: int, bits: int) -> Adding:
        """The empty sum of a round's reports."""
        ...

    def heard(self, sender: str, round: int, setup: torch.Tensor | None) -> None:
        """What came with a report of the round."""
        ...

    def open(self, adding: Any) -> tuple[np.ndarray, Opened | None]:
        """The sum, after enough survivors have signed the list and given their shares. Raises: TooFewReports, BadOpening."""
        ...


@dataclass(frozen=True)
class Masked:
    """The seal of one group's reports."""

    lanes: Lanes
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
        masked = self.legs.mask(vector, client=client, round=round, bits=self.bits)
        return {"report": torch.from_numpy(masked.view(f"<i{self.bits // 8}")), **self.legs.ahead(round)}

    def collect(self, *, round: int) -> "MaskedSum":
        return MaskedSum(self, round, self.legs.adding(round, count=self.lanes.count, bits=self.bits))


@dataclass
class MaskedSum:
    """A running sum that nobody can read before the survivors have taken their masks away."""

    seal: Masked
    round: int
    adding: Adding
    opened: Opened | None = None

    @property
    def clients(self) -> list[str]:
        return self.opened.clients if self.opened else list(self.adding.reported)

    def accept(self, message: Message) -> None:
        parts = {name: tensor for name, tensor in message.tensors.items() if name != SETUP}
        (report,) = tensors_of(Message(message.sender, parts, message.facts), 1)
        self.adding.add(message.sender, report.numpy().view(WIDTHS[self.seal.bits]))
        self.seal.legs.heard(message.sender, self.round, message.tensors.get(SETUP))

    def settle(self) -> Mapping[str, TacitError]:
        return {}

    def open(self) -> np.ndarray:
        """The sum. Raises: TooFewReports; GridOverflow for one that honest reports cannot have; as `Legs.open`."""
        total, self.opened = self.seal.legs.open(self.adding)
        self.seal.lanes.refuse_beyond(total, reports=len(self.clients))
        return total


@dataclass(frozen=True)
class OneProcess:
    """All clients and the server in one process, which deals all masks itself: what the members of a deployment do to agree on
    them would hide nothing here."""

    names: Sequence[str]
    at_least: int
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(SEED_BYTES), repr=False)

    def _key(self, round: int, *who: str) -> bytes:
        label = repr((round, *sorted(who))).encode()
        return hashlib.blake2b(label, key=self.secret, digest_size=SEED_BYTES).digest()

    def mask(self, vector: np.ndarray, *, client: str, round: int, bits: int) -> np.ndarray:
        pairs = {other: self._key(round, client, other) for other in self.names if other != client}
        return hidden(vector, client, self._key(round, client), pairs, bits=bits)

    def ahead(self, round: int) -> Mapping[str, torch.Tensor]:
        return {}

    def adding(self, round: int, *, count: int, bits: int) -> "Dealt":
        return Dealt(self.names, self.at_least, count, bits, round)

    def heard(self, sender: str, round: int, setup: torch.Tensor | None) -> None:
        pass

    def open(self, adding: "Dealt") -> tuple[np.ndarray, None]:
        def masks(name: str, survivors: list[str]) -> Iterator[Mask]:
            if name in survivors:
                yield self._key(adding.round, name), True
            else:
                yield from ((self._key(adding.round, name, other), other < name) for other in survivors)

        return adding.without(masks), None


@dataclass
class Dealt(Adding):
    round: int


def one_process(lanes: Lanes, names: Sequence[str], *, at_least: int, colluding: int) -> Masked:
    """The seal of a simulation. Raises: BadInput where two sums of a round could be opened in a deployment of it."""
    refuse_two_sums(of=len(names), at_least=at_least, colluding=colluding)
    return Masked(lanes, OneProcess(names, at_least))
