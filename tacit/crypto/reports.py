"""The reports of one round: what a sealed update travels in, who counts, and who opens the sum. A message is 4 bytes of the
header's length, the header (JSON), 64 bytes of signature, and the body: ciphertexts, and in the last chunk the proof. The
signature covers the header, and by its SHA-256 the body, under a fixed prefix. Every refusal names the sender.

A secret key opens single updates as well as sums, so `Opener` checks the reports itself, multiplies their ciphertexts
itself, and writes to disk which sum of the round is opened. Of several who hold the whole key, one may open in a round
(`opener_of`)."""

import datetime
import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from gmpy2 import mpz

from tacit import check
from tacit.crypto.paillier import PublicKey, from_octets, to_octets
from tacit.crypto.proofs import Claim, proof_bytes, unproved
from tacit.crypto.threshold import Partial, Verification, combine
from tacit.errors import (
    BadCiphertext,
    BadInput,
    BadSignature,
    Duplicate,
    ForeignKey,
    MessageRefused,
    OpeningRefused,
    OtherRoster,
    Replayed,
    TooFewReports,
    Truncated,
    UnknownSender,
)
from tacit.wire import json_object

PREFIX = b"tacit report 2\n"  # nothing else that is ever signed starts like this
LENGTH_BYTES, SIGNATURE_BYTES = 4, 64
KINDS = (str, int, str, int, int, str, str, int, str)  # of a header's fields
CHUNK = 1024  # ciphertexts in a message: 768 KiB with a key of 3072 bits
MOST_HEADER = 4096  # a header is a few hundred bytes; a longer one is not read


Members = Mapping[str, Ed25519PublicKey]


@dataclass(frozen=True)
class Signer:
    """A client and the key it signs with, which is never printed."""

    client: str
    key: Ed25519PrivateKey = field(repr=False)

    def sign(self, content: bytes) -> bytes:
        """A signature of 64 bytes (Ed25519, deterministic). Assumes: content with a prefix of its own use, such as `PREFIX`."""
        return self.key.sign(content)

    @property
    def public(self) -> Ed25519PublicKey:
        return self.key.public_key()


def verified(members: Members, client: str, content: bytes, signature: bytes) -> bool:
    """Whether a member signed the content. Raises: KeyError for somebody who is no member."""
    try:
        members[client].verify(signature, content)
    except InvalidSignature:
        return False
    return True


@dataclass(frozen=True)
class Header:
    """Where a chunk of ciphertexts belongs. `run` names one attempt at one run; `size` and `sha256` are those of the body."""

    run: str
    round: int
    client: str
    chunk: int
    chunks: int
    key: str
    roster: str
    size: int
    sha256: str

    def raw(self) -> bytes:
        """The bytes that are signed, after PREFIX: JSON with sorted keys and no spaces, so that one header has one form."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()


@dataclass(frozen=True)
class RoundContext:
    """What a report must be for, by the checker's own knowledge, with `chunk_sizes[i]` ciphertexts in chunk i."""

    run: str
    round: int
    public: PublicKey
    roster: str
    chunk_sizes: tuple[int, ...]
    members: Members = field(repr=False)

    def body_bytes(self, chunk: int) -> int:
        last = chunk + 1 == len(self.chunk_sizes)
        return self.chunk_sizes[chunk] * self.public.ciphertext_bytes + (proof_bytes(self.public) if last else 0)

    def claim(self, client: str, ciphertexts: Sequence[mpz]) -> Claim:
        return Claim(self.public, self.run, self.round, client, self.roster, ciphertexts)


def common_hash(run: str, experiment: str, roster: Mapping[str, Any]) -> str:
    """A hash of what all sites must have been told alike: nobody adds reports of sites that were told otherwise."""
    text = json.dumps([run, experiment, roster], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(b"tacit roster 1\n" + text.encode()).hexdigest()


def chunk_sizes(count: int, *, chunk: int = CHUNK) -> tuple[int, ...]:
    """How many of `count` ciphertexts each message carries."""
    return tuple(min(chunk, count - start) for start in range(0, count, chunk))


def write(context: RoundContext, signer: Signer, ciphertexts: Sequence[mpz], proof: bytes) -> Iterator[bytes]:
    """A client's report on a round: one signed message per chunk, the proof behind the last."""
    start, chunks = 0, len(context.chunk_sizes)
    for chunk, count in enumerate(context.chunk_sizes):
        body = context.public.to_bytes(ciphertexts[start : start + count]) + (proof if chunk + 1 == chunks else b"")
        start += count
        digest = hashlib.sha256(body).hexdigest()
        where = (context.run, context.round, signer.client, chunk, chunks, context.public.id, context.roster)
        head = Header(*where, len(body), digest).raw()
        yield len(head).to_bytes(LENGTH_BYTES, "big") + head + signer.sign(PREFIX + head) + body


def parse(raw: bytes) -> tuple[Header, bytes, bytes]:
    """Header, signature and body; nothing is verified but that the header has our one form. Raises: Truncated, BadSignature."""
    length = int.from_bytes(raw[:LENGTH_BYTES], "big")
    head, rest = raw[LENGTH_BYTES : LENGTH_BYTES + length], raw[LENGTH_BYTES + length :]
    if length > MOST_HEADER or len(head) < length or len(rest) < SIGNATURE_BYTES:
        raise Truncated(f"A message of {len(raw)} bytes ends before its signature: ask its sender for it again.")
    try:
        header = Header(**json_object(head.decode("utf-8"), most=MOST_HEADER, finite=True))
        good = all(type(value) is kind for value, kind in zip(asdict(header).values(), KINDS, strict=True))
    except (ValueError, TypeError) as error:
        raise BadSignature("A message has no readable header: it was altered, or it is not a report.") from error
    if not good or header.raw() != head:
        raise BadSignature("A message has a header in another form than ours: it was altered, or it is not a report.")
    return header, rest[:SIGNATURE_BYTES], rest[SIGNATURE_BYTES:]


def check_header(context: RoundContext, header: Header, signature: bytes) -> None:
    """Refuses a header that does not belong to this round, naming the sender. Before its signature, only the name is looked at."""
    who = f"The report of {header.client!r} is refused"
    if header.client not in context.members:
        raise UnknownSender(f"{who}: there is no such member.")
    if not verified(context.members, header.client, PREFIX + header.raw(), signature):
        raise BadSignature(f"{who}: it was altered, or signed by somebody else.")
    if (header.run, header.round) != (context.run, context.round):
        there = f"round {header.round + 1} of run {header.run}"
        raise Replayed(f"{who}: it is for {there}, not round {context.round + 1} of run {context.run}.")
    if header.key != context.public.id:
        raise ForeignKey(f"{who}: it is sealed for key {header.key}, not {context.public.id}.")
    if header.roster != context.roster:
        why = "its site was told of another experiment, other sites or other budgets"
        raise OtherRoster(f"{who}: {why} ({header.roster[:16]}) than are known here ({context.roster[:16]}).")
    right = header.chunks == len(context.chunk_sizes) and 0 <= header.chunk < header.chunks
    if not right or header.size != context.body_bytes(header.chunk):
        raise Truncated(f"{who}: chunk {header.chunk} of {header.chunks} has {header.size} bytes.")


class Inbox:
    """The reports of one round as they come in; a refused message leaves the others as they are. Guarantee: whoever counts
    (`complete`), and whose ciphertexts are in `total`, is a member, has sent all its chunks, signed and for this round, and a
    proof that held."""

    def __init__(self, context: RoundContext):
        self.context = context
        self._chunks: dict[str, dict[int, list[mpz]]] = {}
        self._proofs: dict[str, bytes] = {}
        self._proved: set[str] = set()

    def accept(self, raw: bytes) -> None:
        """Takes one message, in any order; `settle` checks its proof. Raises: MessageRefused, also for a chunk that is there."""
        context, (header, signature, body) = self.context, parse(raw)
        check_header(context, header, signature)
        who, own = f"The report of {header.client!r} is refused", self._chunks.get(header.client, {})
        if header.chunk in own:
            raise Duplicate(f"{who}: chunk {header.chunk} has been received.")
        if len(body) != header.size:
            raise Truncated(f"{who}: {len(body)} of {header.size} bytes arrived.")
        if hashlib.sha256(body).hexdigest() != header.sha256:
            raise BadSignature(f"{who}: its ciphertexts were altered.")
        end = context.chunk_sizes[header.chunk] * context.public.ciphertext_bytes
        try:
            own[header.chunk] = context.public.from_bytes(body[:end])
        except BadCiphertext as error:
            raise BadCiphertext(f"{who}: {str(error)[0].lower()}{str(error)[1:]}") from error
        self._chunks[header.client] = own
        if body[end:]:
            self._proofs[header.client] = body[end:]

    def accept_report(self, client: str, messages: Sequence[bytes]) -> None:
        """Takes the messages of one client's report, all or none. Raises: Duplicate, BadSignature, and as `accept`."""
        if client in self._chunks:
            raise Duplicate(f"The report of {client!r} is refused: one has been received.")
        for raw in messages:
            signed = parse(raw)[0].client
            if signed != client:
                raise BadSignature(f"The report of {client!r} is refused: it is written in the name of {signed!r}.")
        try:
            for raw in messages:
                self.accept(raw)
        except MessageRefused:
            self._forget(client)
            raise

    def settle(self) -> dict[str, MessageRefused]:
        """Checks the new proofs of complete reports, and forgets whoever's does not hold: returns their refusals."""
        whole = [name for name, chunks in self._chunks.items() if len(chunks) == len(self.context.chunk_sizes)]
        new = [name for name in whole if name not in self._proved]
        refused = unproved(
            {name: (self.context.claim(name, self._row(name)), self._proofs.pop(name, b"")) for name in new}
        )
        for name in refused:
            self._forget(name)
        self._proved.update(name for name in new if name not in refused)
        return dict(refused)

    def _forget(self, client: str) -> None:
        self._chunks.pop(client, None)
        self._proofs.pop(client, None)
        self._proved.discard(client)

    def _row(self, client: str) -> list[mpz]:
        parts = self._chunks[client]
        return [c for chunk in sorted(parts) for c in parts[chunk]]

    def complete(self) -> list[str]:
        """The clients that counted at the last `settle`, in order of their names."""
        return sorted(self._proved)

    def total(self, *, at_least: int) -> list[mpz]:
        clients = self.complete()
        refuse_few(clients, at_least=at_least)
        return self.context.public.add(map(self._row, clients))


def refuse_few(clients: Sequence[str], *, at_least: int) -> None:
    if len(clients) < at_least:
        raise TooFewReports(f"{len(clients)} whole reports arrived and {at_least} are needed: the round is not opened.")


def inbox_of(context: RoundContext, messages: Sequence[bytes]) -> Inbox:
    """The inbox of reports that must all be in order and proved; one that lacks chunks does not count. Raises: MessageRefused."""
    inbox = Inbox(context)
    for raw in messages:
        inbox.accept(raw)
    for error in inbox.settle().values():
        raise error
    return inbox


T = TypeVar("T")
SCHEMA = """
CREATE TABLE IF NOT EXISTS openings (
    run TEXT NOT NULL, round INTEGER NOT NULL, key TEXT NOT NULL, clients INTEGER NOT NULL, sha256 TEXT NOT NULL,
    time TEXT NOT NULL, PRIMARY KEY (run, round)
);
"""
BUSY_SECONDS = 30  # how long a second opener on the same file waits


def opener_of(openers: Sequence[str], *, run: str, round: int) -> str:
    """The member that opens this round, which everybody computes alike: never two holders for one round."""
    digest = hashlib.sha256(f"tacit turn {run} {round}".encode()).digest()
    return sorted(openers)[int.from_bytes(digest, "big") % len(openers)]


class Opener(Generic[T]):
    """Opens at most one sum of a round, of at least `at_least` reports, with `open_with` (a secret key's or a share's).
    Guarantee: before that is called, run, round, key and a hash of the sum are on disk (SQLite, synchronous=FULL); from then
    on another sum of the round is refused by every process that uses the file, which nobody deletes or replaces."""

    def __init__(
        self,
        path: Path | str,
        open_with: Callable[[list[mpz]], T],
        *,
        at_least: int,
        name: str = "",
        openers: Sequence[str] = (),
    ):
        check.at_least(2, at_least=at_least)
        if openers and name not in openers:
            raise BadInput(f"{name!r} is not among the openers {', '.join(sorted(openers))}.")
        self.path, self.at_least, self.name, self.openers = Path(path), at_least, name, tuple(openers)
        self._open_with = open_with
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path, isolation_level=None, timeout=BUSY_SECONDS)
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(SCHEMA)
        except (sqlite3.Error, OSError) as error:
            raise self._unkept(error) from error

    def open(self, context: RoundContext, messages: Sequence[bytes]) -> tuple[T, list[str]]:
        """Opens the sum of the reports it is shown, and says whose they are. Withstands a server that lies, if `context` is
        its own knowledge. Raises: MessageRefused, TooFewReports, or OpeningRefused (another sum, another's turn, no disk)."""
        inbox = inbox_of(context, messages)
        total, clients = inbox.total(at_least=self.at_least), inbox.complete()
        opener = opener_of(self.openers, run=context.run, round=context.round) if self.openers else self.name
        if opener != self.name:
            raise OpeningRefused(f"Round {context.round + 1} is opened by {opener!r}, not by {self.name!r}: ask there.")
        self._record(context, total, clients)
        return self._open_with(total), clients

    def _record(self, context: RoundContext, total: list[mpz], clients: list[str]) -> None:
        digest = hashlib.sha256(context.public.to_bytes(total)).hexdigest()
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        row = (context.run, context.round, context.public.id, len(clients), digest, now)
        try:
            self._db.execute("INSERT INTO openings VALUES (?, ?, ?, ?, ?, ?)", row)
        except sqlite3.IntegrityError as error:
            query = "SELECT key, sha256 FROM openings WHERE run = ? AND round = ?"
            if self._db.execute(query, (context.run, context.round)).fetchone() == (context.public.id, digest):
                return
            text = f"Another sum of round {context.round + 1} of run {context.run} has been opened"
            raise OpeningRefused(f"{text}: a second could give away a single update, so start a new round.") from error
        except sqlite3.Error as error:
            raise self._unkept(error) from error

    def _unkept(self, error: Exception) -> OpeningRefused:
        return OpeningRefused(f"The openings {self.path} cannot be kept ({error}); nothing was opened.")


@dataclass(frozen=True)
class Opened:
    """An opened sum, whose reports are in it, what question and answers weigh, and which holders answered wrongly."""

    numbers: list[mpz] = field(repr=False)
    clients: list[str]
    asked_bytes: int
    answered_bytes: int
    left_out: Mapping[str, str] = field(default_factory=dict)


class Opens(Protocol):
    def open(self, context: RoundContext, messages: Sequence[bytes]) -> Opened: ...


@dataclass(frozen=True)
class Alone:
    holder: Opener[list[mpz]]

    def open(self, context: RoundContext, messages: Sequence[bytes]) -> Opened:
        numbers, clients = self.holder.open(context, messages)
        return Opened(numbers, clients, sum(map(len, messages)), len(numbers_to_bytes(context.public, numbers)))


@dataclass(frozen=True)
class Together:
    verification: Verification
    holders: Sequence[Opener[Partial]]

    def open(self, context: RoundContext, messages: Sequence[bytes]) -> Opened:
        inbox = inbox_of(context, messages)
        total = inbox.total(at_least=min(holder.at_least for holder in self.holders))
        partials = [holder.open(context, messages)[0] for holder in self.holders]
        answered = sum(len(self.verification.to_bytes(partial)) for partial in partials)
        numbers = combine(self.verification, total, partials)
        return Opened(numbers, inbox.complete(), sum(map(len, messages)) * len(self.holders), answered)


def numbers_to_bytes(public: PublicKey, numbers: Sequence[mpz]) -> bytes:
    """Opened numbers for the wire, with room for n, which stands for what opens to nothing (`SecretKey.open_any`)."""
    return to_octets(numbers, width=(public.bits + 7) // 8)


def numbers_from_bytes(public: PublicKey, raw: bytes, *, count: int) -> list[mpz]:
    """What `numbers_to_bytes` wrote; who asked refuses what is out of range (`Lanes.unpack`). Raises: BadCiphertext."""
    width = (public.bits + 7) // 8
    if len(raw) != count * width:
        raise BadCiphertext(f"{len(raw)} bytes came where {count} opened numbers of {width} bytes belong.")
    return from_octets(raw, width=width)
