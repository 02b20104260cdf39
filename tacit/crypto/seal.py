"""How integers travel so that they can be added: as they are, encrypted, or under masks that cancel in the sum.

A seal has three sides. A client writes a report; the server collects the reports of a round and adds them; whoever may open
the sum opens it, once it holds enough reports. From the same integers all three seals open the same sum, to the bit. In a
simulation one process holds all sides. Elsewhere a site has one entry in `signers` and is a `holder` of the key or of a share
of it; the server has neither, and `opener` asks the holders."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from tacit.crypto.grid import Lanes
from tacit.crypto.masks import WIDTHS, Attempt, Collecting, Joined, Party, Roster, Setup
from tacit.crypto.paillier import PublicKey, Randomisers
from tacit.crypto.proofs import prove
from tacit.crypto.reports import (
    LENGTH_BYTES,
    MOST_HEADER,
    SIGNATURE_BYTES,
    Inbox,
    Members,
    Opened,
    Opener,
    Opens,
    RoundContext,
    Signer,
    chunk_sizes,
    write,
)
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
        (report,), lanes = _tensors(message, 1), self.seal.lanes
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
    members: Members = field(repr=False)
    signers: Mapping[str, Signer] = field(repr=False)
    randomisers: Randomisers = field(repr=False)
    verification: Verification | None = field(default=None, repr=False)  # of a split key
    opener: Opens | None = field(default=None, repr=False)
    holder: Opener[bytes] | None = field(default=None, repr=False)

    def context(self, round: int) -> RoundContext:
        return RoundContext(self.run, round, self.public, self.roster, chunk_sizes(self.lanes.numbers), self.members)

    @property
    def report_bytes(self) -> int:
        context = self.context(0)
        chunks = range(len(context.chunk_sizes))
        return sum(context.body_bytes(chunk) + LENGTH_BYTES + MOST_HEADER + SIGNATURE_BYTES for chunk in chunks)

    def report(self, shared: Shared, *, client: str, round: int) -> dict[str, torch.Tensor]:
        """Packs, seals, proves and signs: one tensor of bytes a chunk, whose length depends on lanes and key alone. Raises:
        GridOverflow.
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
    seal: Sealed
    inbox: Inbox
    messages: dict[str, list[bytes]] = field(default_factory=dict)
    opened: Opened | None = None

    @property
    def clients(self) -> list[str]:
        return self.opened.clients if self.opened else self.inbox.complete()

    def accept(self, message: Message) -> None:
        parts = [report_bytes(tensor) for tensor in _tensors(message, len(self.inbox.context.chunk_sizes))]
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


class Masked:
    """Reports under masks, all of whose legs one process takes. Guarantee: the opened sum is that of `Plain`, to the bit."""

    def __init__(self, lanes: Lanes, parties: Sequence[Party], *, at_least: int, colluding: int):
        signing = {one.name: one.signer.public for one in parties}
        envelopes = {one.name: one.envelope_key for one in parties}
        self.lanes, self.parties = lanes, {one.name: one for one in parties}
        self.roster = Roster("one process", signing, envelopes, at_least, colluding)
        # of a report's integers: the sum of the most reports does not wrap
        self.bits = 32 if 2 * lanes.reach * lanes.reports < 2**32 else 64
        self.report_bytes = lanes.count * self.bits // 8
        self._latest: tuple[int, dict[str, Setup]] = (
            -1,
            {},
        )  # of one round at a time: every client joins with the same

    def setups(self, round: int) -> dict[str, Setup]:
        if self._latest[0] != round:
            attempt = Attempt(self.roster, round)
            self._latest = (round, {name: party.setup(attempt) for name, party in self.parties.items()})
        return self._latest[1]

    def joined(self, client: str, round: int) -> Joined:
        return self.parties[client].join(Attempt(self.roster, round), self.setups(round).values(), model="")

    def report(self, shared: Shared, *, client: str, round: int) -> dict[str, torch.Tensor]:
        vector = shared.vector.numpy()
        self.lanes.refuse_beyond(vector)
        masked = self.joined(client, round).mask(vector, bits=self.bits)
        return {"report": torch.from_numpy(masked.view(f"<i{self.bits // 8}"))}

    def collect(self, *, round: int) -> "MaskedSum":
        attempt = Attempt(self.roster, round)
        return MaskedSum(self, round, Collecting(attempt, "", self.setups(round), self.lanes.count, self.bits))


@dataclass
class MaskedSum:
    seal: Masked
    round: int
    collecting: Collecting
    opened: None = None  # nobody outside is asked

    @property
    def clients(self) -> list[str]:
        return list(self.collecting.reported)

    def accept(self, message: Message) -> None:
        (report,) = _tensors(message, 1)
        self.collecting.add(message.sender, report.numpy().view(WIDTHS[self.seal.bits]))

    def settle(self) -> Mapping[str, TacitError]:
        return {}

    def open(self) -> np.ndarray:
        """The sum, after every survivor has signed the list and given its shares. Raises: TooFewReports; GridOverflow."""
        survivors = self.collecting.survivors
        joined = {name: self.seal.joined(name, self.round) for name in survivors}
        signatures = {name: mine.agree(survivors) for name, mine in joined.items()}
        total = self.collecting.opened({name: mine.unmask(survivors, signatures) for name, mine in joined.items()})
        self.seal.lanes.refuse_beyond(total, reports=len(survivors))
        return total


Seal = Plain | Sealed | Masked
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
