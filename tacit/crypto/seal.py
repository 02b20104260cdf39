"""How integers travel so that they can be added: as they are, encrypted, or under masks that cancel in the sum.

A seal has three sides. A client writes a report; the server collects the reports of a round and adds them; whoever may open
the sum opens it, once it holds enough reports. From the same integers all three seals open the same sum, to the bit. In a
simulation one process holds all sides. Elsewhere a site has one entry in `signers` and is a `holder` of the key or of a share
of it; the server has neither, and `opener` asks the holders."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from tacit.crypto import reports
from tacit.crypto.grid import Lanes
from tacit.crypto.paillier import PublicKey, Randomisers
from tacit.crypto.proofs import prove
from tacit.crypto.threshold import Verification
from tacit.errors import BadInput, Duplicate, MessageRefused, OpeningRefused, TacitError, TooFewReports, Truncated
from tacit.types import Message, Shared


@dataclass(frozen=True)
class Plain:
    """Reports that everybody on the way can read: the same sums as `Sealed`, to measure the others by."""

    lanes: Lanes
    fewest: int

    @property
    def kind(self) -> torch.dtype:
        return torch.int32 if self.lanes.reach < 2**31 else torch.int64

    @property
    def report_bytes(self) -> int:
        return self.lanes.count * self.kind.itemsize

    def report(self, shared: Shared, *, client: str, round: int) -> dict[str, torch.Tensor]:
        return {"report": shared.vector.to(self.kind)}

    def collect(self, *, round: int) -> "PlainSum":
        return PlainSum(self)


@dataclass
class PlainSum:
    """A running sum that the server reads itself."""

    seal: Plain
    clients: list[str] = field(default_factory=list)
    total: np.ndarray | None = None
    opened: None = None  # nobody outside is asked

    def accept(self, message: Message) -> None:
        (report,), lanes = tensors_of(message, 1), self.seal.lanes
        if message.sender in self.clients:
            raise Duplicate("a second report: the first counts")
        if report.shape != (lanes.count,) or report.dtype != self.seal.kind:
            raise BadInput(f"its report is not {lanes.count} integers of {self.seal.kind}")
        values = report.numpy().astype(np.int64)
        lanes.refuse_beyond(values)
        self.total = values if self.total is None else self.total + values
        self.clients.append(message.sender)

    def settle(self) -> Mapping[str, TacitError]:
        return {}

    def open(self) -> np.ndarray:
        if self.total is None or len(self.clients) < self.seal.fewest:
            text = f"{len(self.clients)} reports arrived and {self.seal.fewest} are needed"
            raise TooFewReports(f"{text}: the sum would carry less noise than was promised.")
        return self.total


@dataclass(frozen=True)
class Sealed:
    """Reports under Paillier, signed: the server multiplies what it cannot read.

    Guarantee: a server without a key learns from a report that its sender took part (IND-CPA); a report counts for one round,
    once, and only where its sender proved that it knows what it sealed. What is opened is the holders' decision (`reports.Opener`).
    """

    lanes: Lanes
    public: PublicKey
    run: str
    roster: str  # `common_hash` of what all sites were told
    members: reports.Members = field(repr=False)
    signers: Mapping[str, reports.Signer] = field(repr=False)
    randomisers: Randomisers = field(repr=False)
    verification: Verification | None = field(default=None, repr=False)  # of a split key
    opener: reports.Opens | None = field(default=None, repr=False)
    holder: reports.Opener[bytes] | None = field(default=None, repr=False)

    def context(self, round: int) -> reports.RoundContext:
        return reports.RoundContext(
            self.run, round, self.public, self.roster, reports.chunk_sizes(self.lanes.numbers), self.members
        )

    @property
    def report_bytes(self) -> int:
        context = self.context(0)
        chunks = range(len(context.chunk_sizes))
        return sum(
            context.body_bytes(chunk) + reports.LENGTH_BYTES + reports.MOST_HEADER + reports.SIGNATURE_BYTES
            for chunk in chunks
        )

    def report(self, shared: Shared, *, client: str, round: int) -> dict[str, torch.Tensor]:
        """Packs, seals, proves and signs: one tensor of bytes a chunk, whose length depends on lanes and key alone. Raises:
        GridOverflow.
        """
        numbers, context = self.lanes.pack(shared.vector.numpy()), self.context(round)
        values, exponents = zip(*self.randomisers.take_known(len(numbers)), strict=True)
        sealed = self.public.seal_with(numbers, values)
        parts = reports.write(
            context, self.signers[client], sealed, prove(context.claim(client, sealed), numbers, exponents)
        )
        return {_name(i): torch.frombuffer(bytearray(raw), dtype=torch.uint8) for i, raw in enumerate(parts)}

    def collect(self, *, round: int) -> "SealedSum":
        return SealedSum(self, reports.Inbox(self.context(round)))


@dataclass
class SealedSum:
    seal: Sealed
    inbox: reports.Inbox
    messages: dict[str, list[bytes]] = field(default_factory=dict)
    opened: reports.Opened | None = None

    @property
    def clients(self) -> list[str]:
        return self.opened.clients if self.opened else self.inbox.complete()

    def accept(self, message: Message) -> None:
        parts = [report_bytes(tensor) for tensor in tensors_of(message, len(self.inbox.context.chunk_sizes))]
        self.inbox.accept_report(message.sender, parts)
        self.messages[message.sender] = parts

    def settle(self) -> Mapping[str, TacitError]:
        refused = self.inbox.settle()
        for client in refused:
            del self.messages[client]
        return refused

    def open(self) -> np.ndarray:
        """Has the sum opened, and unpacks it. Raises: OpeningRefused where there is nobody to ask, GridOverflow, as the opener."""
        if self.seal.opener is None:
            raise OpeningRefused("The sum can be opened only where a key is: send the reports to a client.")
        settled = [raw for client in self.inbox.complete() for raw in self.messages[client]]
        self.opened = self.seal.opener.open(self.inbox.context, settled)
        return self.seal.lanes.unpack(self.opened.numbers, reports=len(self.opened.clients))


class Collected(Protocol):
    """The reports of a round so far; nobody counts before `settle`."""

    @property
    def clients(self) -> list[str]: ...
    @property
    def opened(self) -> reports.Opened | None: ...  # what was asked of others, where others opened it

    def accept(self, message: Message) -> None: ...
    def settle(self) -> Mapping[str, TacitError]: ...
    def open(self) -> np.ndarray: ...


class Seal(Protocol):
    """A group's reports: written by a client, collected by the server."""

    @property
    def lanes(self) -> Lanes: ...
    @property
    def report_bytes(self) -> int: ...

    def report(self, shared: Shared, *, client: str, round: int) -> dict[str, torch.Tensor]: ...
    def collect(self, *, round: int) -> Collected: ...


def _name(part: int) -> str:
    return f"report-{part}" if part else "report"


def tensors_of(message: Message, parts: int) -> list[torch.Tensor]:
    """The parts of a report. Raises: MessageRefused for another number of them."""
    names = [_name(part) for part in range(parts)]
    if not message.tensors:
        raise MessageRefused(f"it sent no report: {message.facts.get('failed', 'there was none in its message')}")
    if sorted(message.tensors) != sorted(names):
        raise Truncated(f"its message holds {len(message.tensors)} tensors that are not the {parts} parts of a report")
    return [message.tensors[name] for name in names]


def report_bytes(tensor: torch.Tensor) -> bytes:
    """The bytes of one part of a report. Raises: MessageRefused for a tensor that is not one row of bytes."""
    if tensor.dtype != torch.uint8 or tensor.dim() != 1:
        raise MessageRefused(f"its report is {tensor.dtype} of shape {list(tensor.shape)}, not bytes")
    return tensor.numpy().tobytes()
