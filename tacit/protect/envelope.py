"""What a sealed update travels in: a header that says where it belongs, and its client's signature.

The signature covers run, round, client, chunk, number of chunks, key id, and the length and SHA-256 of the ciphertexts,
under a fixed prefix; so a message cannot be altered, cut, moved to another round or passed off as another client's. The
header and its signature can be shown without the ciphertexts. Every refusal has a type of its own and names the sender.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field

from gmpy2 import mpz

from tacit.errors import (
    BadCiphertext,
    BadSignature,
    Duplicate,
    ForeignKey,
    MessageRefused,
    Replayed,
    TooFewReports,
    Truncated,
    UnknownSender,
)
from tacit.protect.paillier import PublicKey
from tacit.protect.signing import Members, Signer, verified

PREFIX = b"tacit report 1\n"  # nothing else that is ever signed starts like this
LENGTH_BYTES, SIGNATURE_BYTES = 4, 64
KINDS = (str, int, str, int, int, str, int, str)  # of a header's fields
CHUNK = 1024  # ciphertexts in a message: 768 KiB with a key of 3072 bits
MOST_HEADER = 4096  # a header is a few hundred bytes; a longer one is not read


@dataclass(frozen=True)
class Header:
    """Where a chunk of ciphertexts belongs. `run` names one attempt at one run; `key` is the public key's id."""

    run: str
    round: int
    client: str
    chunk: int
    chunks: int
    key: str
    size: int
    sha256: str

    def raw(self) -> bytes:
        """The bytes that are signed, after PREFIX."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Evidence:
    """A header with its client's signature."""

    header: Header
    signature: bytes = field(repr=False)


@dataclass(frozen=True)
class Place:
    """What a report must be for: one round of one run under one key, with `numbers[i]` ciphertexts in chunk i."""

    run: str
    round: int
    public: PublicKey
    numbers: tuple[int, ...]
    members: Members = field(repr=False)


def sizes(count: int, *, chunk: int = CHUNK) -> tuple[int, ...]:
    """How many of `count` ciphertexts each message carries.

    >>> sizes(1000, chunk=400)
    (400, 400, 200)
    """
    return tuple(min(chunk, count - start) for start in range(0, count, chunk))


def write(place: Place, signer: Signer, ciphertexts: Sequence[mpz]) -> Iterator[bytes]:
    """A client's report on a round: one signed message per chunk."""
    start = 0
    for chunk, count in enumerate(place.numbers):
        body = place.public.to_bytes(ciphertexts[start : start + count])
        start += count
        digest = hashlib.sha256(body).hexdigest()
        words = (place.run, place.round, signer.client, chunk, len(place.numbers), place.public.id, len(body), digest)
        head = Header(*words).raw()
        yield len(head).to_bytes(LENGTH_BYTES, "big") + head + signer.sign(PREFIX + head) + body


def parse(raw: bytes) -> tuple[Evidence, bytes]:
    """Header, signature and the ciphertexts' bytes, nothing checked yet. Raises Truncated if there are none."""
    length = int.from_bytes(raw[:LENGTH_BYTES], "big")
    head, rest = raw[LENGTH_BYTES : LENGTH_BYTES + length], raw[LENGTH_BYTES + length :]
    if length > MOST_HEADER or len(head) < length or len(rest) < SIGNATURE_BYTES:
        raise Truncated(f"A message of {len(raw)} bytes ends before its signature: ask its sender for it again.")
    try:
        header = Header(**json.loads(head))
        good = all(type(value) is kind for value, kind in zip(asdict(header).values(), KINDS, strict=True))
    except (ValueError, TypeError) as error:
        raise BadSignature("A message has no readable header: it was altered, or it is not a report.") from error
    if not good or header.raw() != head:
        raise BadSignature("A message has a header in another form than ours: it was altered, or it is not a report.")
    return Evidence(header, rest[:SIGNATURE_BYTES]), rest[SIGNATURE_BYTES:]


def check_header(place: Place, evidence: Evidence) -> None:
    """Raises the MessageRefused that says why a header does not belong here."""
    header = evidence.header
    who = f"The report of {header.client!r}"
    if header.client not in place.members:
        raise UnknownSender(f"{who} is refused: there is no such member.")
    if not verified(place.members, header.client, PREFIX + header.raw(), evidence.signature):
        raise BadSignature(f"{who} is refused: it was altered, or signed by somebody else.")
    if (header.run, header.round) != (place.run, place.round):
        there = f"round {header.round} of run {header.run}"
        raise Replayed(f"{who} is refused: it is for {there}, not round {place.round} of run {place.run}.")
    if header.key != place.public.id:
        raise ForeignKey(f"{who} is refused: it is sealed for key {header.key}, not {place.public.id}.")
    right = header.chunks == len(place.numbers) and 0 <= header.chunk < header.chunks
    if not right or header.size != place.numbers[header.chunk] * place.public.ciphertext_bytes:
        raise Truncated(f"{who} is refused: chunk {header.chunk} of {header.chunks} has {header.size} bytes.")


def check_body(place: Place, header: Header, body: bytes) -> list[mpz]:
    """The ciphertexts. Raises Truncated, BadSignature or BadCiphertext."""
    who = f"The report of {header.client!r}"
    if len(body) != header.size:
        raise Truncated(f"{who} is refused: {len(body)} of {header.size} bytes arrived.")
    if hashlib.sha256(body).hexdigest() != header.sha256:
        raise BadSignature(f"{who} is refused: its ciphertexts were altered.")
    try:
        return place.public.from_bytes(body)
    except BadCiphertext as error:
        raise BadCiphertext(f"{who} is refused: {str(error)[0].lower()}{str(error)[1:]}") from error


class Inbox:
    """The reports of one round, each checked when it comes in. A client counts when all its chunks are there."""

    def __init__(self, place: Place):
        self.place = place
        self._chunks: dict[str, dict[int, list[mpz]]] = {}

    def accept(self, raw: bytes) -> Evidence:
        """Takes one message. Raises a MessageRefused; the messages taken before stay."""
        evidence, body = parse(raw)
        header = evidence.header
        check_header(self.place, evidence)
        if header.chunk in self._chunks.get(header.client, {}):
            raise Duplicate(f"The report of {header.client!r} is refused: chunk {header.chunk} has been received.")
        ciphertexts = check_body(self.place, header, body)
        self._chunks.setdefault(header.client, {})[header.chunk] = ciphertexts
        return evidence

    def complete(self) -> list[str]:
        """The clients whose whole report is there, in order of their names."""
        return sorted(client for client, chunks in self._chunks.items() if len(chunks) == len(self.place.numbers))

    def total(self, *, at_least: int) -> list[mpz]:
        """Ciphertexts of the sum of all complete reports. Raises TooFewReports."""
        clients = self.complete()
        refuse_few(clients, at_least=at_least)
        rows = (
            [c for chunk in sorted(parts) for c in parts[chunk]] for parts in map(self._chunks.get, clients) if parts
        )
        return self.place.public.add(rows)


def refuse_few(clients: Sequence[str], *, at_least: int) -> None:
    """Raises TooFewReports."""
    if len(clients) < at_least:
        raise TooFewReports(f"{len(clients)} whole reports arrived and {at_least} are needed: the round is not opened.")


def take_all(inbox: Inbox, messages: Sequence[bytes]) -> list[MessageRefused]:
    """Takes what can be taken and returns the refusals: by rule the round goes on without them."""
    refused = []
    for raw in messages:
        try:
            inbox.accept(raw)
        except MessageRefused as error:
            refused.append(error)
    return refused
