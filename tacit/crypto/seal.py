"""How integers travel so that they can be added: as they are, or sealed so that whoever adds them cannot read them.

A seal has three sides. A client writes a report; the server collects the reports of a round and adds them; whoever may open
the sum opens it, once it holds enough reports. `Plain` is the slow twin of `Sealed`: from the same integers both open the
same sum. In a simulation one process holds all sides. Elsewhere a site has one entry in `signers` and is a `holder` of the key
or of a share of it; the server has neither, and `opener` asks the holders."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from tacit.crypto.envelope import LENGTH_BYTES, MOST_HEADER, SIGNATURE_BYTES, RoundContext, chunk_sizes, write
from tacit.crypto.grid import Lanes
from tacit.crypto.holder import Inbox, Opened, Opener, Opens
from tacit.crypto.masks import Masked, MaskedSum
from tacit.crypto.paillier import PublicKey, Source
from tacit.crypto.proofs import prove
from tacit.crypto.signing import Members, Signer
from tacit.crypto.threshold import Verification
from tacit.errors import (
    BadInput,
    Duplicate,
    GridOverflow,
    MessageRefused,
    OpeningRefused,
    TacitError,
    TooFewReports,
    Truncated,
)
from tacit.types import Message, Shared


@dataclass(frozen=True)
class Plain:
    """Reports that everybody on the way can read: for a server that is trusted to add, and to measure `Sealed` by.

    Guarantee: the same sums as `Sealed`, of at least `fewest` reports. Nothing is hidden, signed or proved.
    """

    lanes: Lanes
    fewest: int

    @property
    def kind(self) -> torch.dtype:
        """The smallest integer type that holds the lanes' reach."""
        return torch.int32 if self.lanes.reach < 2**31 else torch.int64

    @property
    def report_bytes(self) -> int:
        """No honest report is longer."""
        return self.lanes.count * self.kind.itemsize

    def report(self, shared: Shared, *, client: str, round: int) -> dict[str, torch.Tensor]:
        """What a client sends: integers that carry their share of the noise. Here nothing checks before the server does."""
        return {"report": shared.vector.to(self.kind)}

    def collect(self, *, round: int) -> "PlainSum":
        return PlainSum(self)


@dataclass
class PlainSum:
    """A running sum that the server reads itself."""

    seal: Plain
    clients: list[str] = field(default_factory=list)
    total: np.ndarray | None = None
    opened: Opened | None = None  # the server reads it itself

    def accept(self, message: Message) -> None:
        """Adds one client's integers. Raises: MessageRefused, Duplicate, BadInput, GridOverflow; the sum is then as it was."""
        (report,), lanes = _tensors(message, 1), self.seal.lanes
        if message.sender in self.clients:
            raise Duplicate("a second report: the first counts")
        if report.shape != (lanes.count,) or report.dtype != self.seal.kind:
            raise BadInput(f"its report is not {lanes.count} integers of {self.seal.kind}")
        values = report.numpy().astype(np.int64)
        if values.max() > lanes.reach or values.min() < -lanes.reach:
            raise GridOverflow("its report is beyond the grid")
        self.total = values if self.total is None else self.total + values
        self.clients.append(message.sender)

    def settle(self) -> Mapping[str, TacitError]:
        return {}

    def open(self) -> np.ndarray:
        """The sum, of no fewer reports than the noise was shared for. Raises: TooFewReports."""
        if self.total is None or len(self.clients) < self.seal.fewest:
            text = f"{len(self.clients)} reports arrived and {self.seal.fewest} are needed"
            raise TooFewReports(f"{text}: the sum would carry less noise than was promised.")
        return self.total


@dataclass(frozen=True)
class Sealed:
    """Reports under Paillier, signed: the server multiplies what it cannot read.

    Guarantee: a server without a key learns from a report that its sender took part, and nothing of its integers (IND-CPA); a
    report counts for one round, once, and only where its sender proved that it knows what it sealed. What is opened is the
    holders' decision (`holder`). A site has its own entry in `signers` and its `holder`; the server an `opener` that asks.
    """

    lanes: Lanes
    public: PublicKey
    run: str
    roster: str  # `common_hash` of what all sites were told
    members: Members = field(repr=False)
    signers: Mapping[str, Signer] = field(repr=False)
    randomisers: Source = field(repr=False)
    verification: Verification | None = field(default=None, repr=False)  # of a split key
    opener: Opens | None = field(default=None, repr=False)
    holder: Opener[bytes] | None = field(default=None, repr=False)

    def context(self, round: int) -> RoundContext:
        """What a report of this round is bound to."""
        return RoundContext(self.run, round, self.public, self.roster, chunk_sizes(self.lanes.numbers), self.members)

    @property
    def report_bytes(self) -> int:
        """Ciphertexts, the proof, and a header to every chunk."""
        context = self.context(0)
        chunks = range(len(context.chunk_sizes))
        return sum(context.body_bytes(chunk) + LENGTH_BYTES + MOST_HEADER + SIGNATURE_BYTES for chunk in chunks)

    def report(self, shared: Shared, *, client: str, round: int) -> dict[str, torch.Tensor]:
        """Packs and seals the integers, proves that the sender knows them, and signs: one tensor of bytes a chunk.

        Guarantee: its length depends on lanes and key alone. Calling it twice makes two reports that share no randomiser.
        Raises: GridOverflow, BadInput for another number of integers, KeyError for a client without a signer.
        """
        numbers, context = self.lanes.pack(shared.vector.numpy()), self.context(round)
        values, exponents = zip(*self.randomisers.take_known(len(numbers)), strict=True)
        sealed = self.public.seal_with(numbers, values)
        parts = write(context, self.signers[client], sealed, prove(context.claim(client, sealed), numbers, exponents))
        return {_name(i): torch.frombuffer(bytearray(raw), dtype=torch.uint8) for i, raw in enumerate(parts)}

    def collect(self, *, round: int) -> "SealedSum":
        return SealedSum(self, Inbox(self.context(round)))


@dataclass
class SealedSum:
    """Signed ciphertexts, checked as they come and their proofs together. The opener is shown all messages that hold."""

    seal: Sealed
    inbox: Inbox
    messages: dict[str, list[bytes]] = field(default_factory=dict)
    opened: Opened | None = None

    @property
    def clients(self) -> list[str]:
        return self.opened.clients if self.opened else self.inbox.complete()

    def accept(self, message: Message) -> None:
        """Takes a client's report, all of it or nothing. Raises: MessageRefused."""
        parts = [report_bytes(tensor) for tensor in _tensors(message, len(self.inbox.context.chunk_sizes))]
        self.inbox.accept_report(message.sender, parts)
        self.messages[message.sender] = parts

    def settle(self) -> Mapping[str, TacitError]:
        """Checks the proofs, and drops the messages of whoever has none that holds."""
        refused = self.inbox.settle()
        for client in refused:
            del self.messages[client]
        return refused

    def open(self) -> np.ndarray:
        """Has the sum opened, and unpacks it for as many reports as the opener says are in it.

        Raises: OpeningRefused where there is nobody to ask, GridOverflow for a sum out of range, and what the opener raises.
        """
        if self.seal.opener is None:
            raise OpeningRefused("The sum can be opened only where a key is: send the reports to a client.")
        settled = [raw for client in self.inbox.complete() for raw in self.messages[client]]
        self.opened = self.seal.opener.open(self.inbox.context, settled)
        return self.seal.lanes.unpack(self.opened.numbers, reports=len(self.opened.clients))


Seal = Plain | Sealed | Masked  # from the same integers both open the same sum, to the bit
Collected = PlainSum | SealedSum | MaskedSum  # the reports of a round so far; nobody counts before `settle`


def _name(part: int) -> str:
    return f"report-{part}" if part else "report"


def _tensors(message: Message, parts: int) -> list[torch.Tensor]:
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
