"""What a sealed update travels in: a header that says where it belongs, and its client's signature.

The signature covers run, round, client, chunk, number of chunks, key id, roster, and the length and SHA-256 of the
ciphertexts, under a fixed prefix; so a message cannot be altered, cut, moved to another round or passed off as another
client's. `roster` is a hash of what the client was told of the run (`common_hash`): reports of sites that were told different
things are not added. Behind the ciphertexts of the last chunk comes the proof that the sender knows what it sealed, all of it
(`proofs`); without one a client does not count. Every refusal has a type of its own and names the sender.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gmpy2 import mpz

from tacit.errors import (
    BadCiphertext,
    BadSignature,
    Duplicate,
    ForeignKey,
    MessageRefused,
    OtherRoster,
    Replayed,
    TooFewReports,
    Truncated,
    UnknownSender,
)
from tacit.parse import json_object
from tacit.protect.paillier import PublicKey
from tacit.protect.proofs import Claim, proof_bytes
from tacit.protect.proved import unproved
from tacit.protect.signing import Members, Signer, verified

PREFIX = b"tacit report 2\n"  # nothing else that is ever signed starts like this
LENGTH_BYTES, SIGNATURE_BYTES = 4, 64
KINDS = (str, int, str, int, int, str, str, int, str)  # of a header's fields
CHUNK = 1024  # ciphertexts in a message: 768 KiB with a key of 3072 bits
MOST_HEADER = 4096  # a header is a few hundred bytes; a longer one is not read


@dataclass(frozen=True)
class Header:
    """Where a chunk of ciphertexts belongs. `run` names one attempt at one run, `key` is the public key's id, `roster` a hash."""

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
        """The bytes that are signed, after PREFIX."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Evidence:
    """A header with its client's signature."""

    header: Header
    signature: bytes = field(repr=False)


@dataclass(frozen=True)
class Place:
    """What a report must be for: one round of one run under one key and roster, with `numbers[i]` ciphertexts in chunk i."""

    run: str
    round: int
    public: PublicKey
    roster: str
    numbers: tuple[int, ...]
    members: Members = field(repr=False)

    def body_bytes(self, chunk: int) -> int:
        """The length of a chunk's body; the last one has the proof behind its ciphertexts."""
        last = chunk + 1 == len(self.numbers)
        return self.numbers[chunk] * self.public.ciphertext_bytes + (proof_bytes(self.public) if last else 0)

    def claim(self, client: str, ciphertexts: Sequence[mpz]) -> Claim:
        """What a client has to prove."""
        return Claim(self.public, self.run, self.round, client, self.roster, ciphertexts)


def common_hash(run: str, experiment: str, roster: Mapping[str, Any]) -> str:
    """A hash of what all sites of a run must have been told alike: its name, the experiment's text, and every site's name,
    size and epsilon.

    >>> common_hash("r", "", {"names": ["a"]}) == common_hash("r", "", {"names": ["b"]})
    False
    """
    text = json.dumps([run, experiment, roster], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(b"tacit roster 1\n" + text.encode()).hexdigest()


def sizes(count: int, *, chunk: int = CHUNK) -> tuple[int, ...]:
    """How many of `count` ciphertexts each message carries.

    >>> sizes(1000, chunk=400)
    (400, 400, 200)
    """
    return tuple(min(chunk, count - start) for start in range(0, count, chunk))


def write(place: Place, signer: Signer, ciphertexts: Sequence[mpz], proof: bytes) -> Iterator[bytes]:
    """A client's report on a round: one signed message per chunk, the proof behind the last."""
    start, chunks = 0, len(place.numbers)
    for chunk, count in enumerate(place.numbers):
        body = place.public.to_bytes(ciphertexts[start : start + count]) + (proof if chunk + 1 == chunks else b"")
        start += count
        digest = hashlib.sha256(body).hexdigest()
        where = (place.run, place.round, signer.client, chunk, chunks, place.public.id, place.roster)
        head = Header(*where, len(body), digest).raw()
        yield len(head).to_bytes(LENGTH_BYTES, "big") + head + signer.sign(PREFIX + head) + body


def parse(raw: bytes) -> tuple[Evidence, bytes]:
    """Header, signature and the ciphertexts' bytes, nothing checked yet. Raises Truncated if there are none."""
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
    if header.roster != place.roster:
        raise OtherRoster(
            f"{who} is refused: its site was told of another experiment, other sites or other budgets ({header.roster[:16]}) than"
            f" are known here ({place.roster[:16]})."
        )
    right = header.chunks == len(place.numbers) and 0 <= header.chunk < header.chunks
    if not right or header.size != place.body_bytes(header.chunk):
        raise Truncated(f"{who} is refused: chunk {header.chunk} of {header.chunks} has {header.size} bytes.")


def check_body(place: Place, header: Header, body: bytes) -> tuple[list[mpz], bytes]:
    """The ciphertexts, and behind those of the last chunk the proof. Raises Truncated, BadSignature or BadCiphertext."""
    who = f"The report of {header.client!r}"
    if len(body) != header.size:
        raise Truncated(f"{who} is refused: {len(body)} of {header.size} bytes arrived.")
    if hashlib.sha256(body).hexdigest() != header.sha256:
        raise BadSignature(f"{who} is refused: its ciphertexts were altered.")
    end = place.numbers[header.chunk] * place.public.ciphertext_bytes
    try:
        return place.public.from_bytes(body[:end]), body[end:]
    except BadCiphertext as error:
        raise BadCiphertext(f"{who} is refused: {str(error)[0].lower()}{str(error)[1:]}") from error


class Inbox:
    """The reports of one round, each checked when it comes in, and the proofs of all that are whole when they are counted.

    Guarantee: whoever counts, and whose ciphertexts are in `total`, has sent all its chunks and a proof that held.
    """

    def __init__(self, place: Place):
        self.place = place
        self._chunks: dict[str, dict[int, list[mpz]]] = {}
        self._proofs: dict[str, bytes] = {}
        self._proved: set[str] = set()

    def accept(self, raw: bytes) -> Evidence:
        """Takes one message. Raises a MessageRefused; the messages taken before stay. Its proof is checked by `settle`."""
        evidence, body = parse(raw)
        header = evidence.header
        check_header(self.place, evidence)
        if header.chunk in self._chunks.get(header.client, {}):
            raise Duplicate(f"The report of {header.client!r} is refused: chunk {header.chunk} has been received.")
        ciphertexts, proof = check_body(self.place, header, body)
        self._chunks.setdefault(header.client, {})[header.chunk] = ciphertexts
        if proof:
            self._proofs[header.client] = proof
        return evidence

    def accept_report(self, client: str, messages: Sequence[bytes]) -> None:
        """Takes the whole report of a client, or nothing of it. Raises a MessageRefused."""
        if client in self._chunks:
            raise Duplicate(f"The report of {client!r} is refused: one has been received.")
        for raw in messages:
            signed = parse(raw)[0].header.client
            if signed != client:
                raise BadSignature(f"The report of {client!r} is refused: it is written in the name of {signed!r}.")
        try:
            for raw in messages:
                self.accept(raw)
        except MessageRefused:
            self._forget(client)
            raise

    def settle(self) -> dict[str, MessageRefused]:
        """Checks the proofs of all whole reports that are new, together. Forgets who has none that holds, and says why."""
        whole = [name for name, chunks in self._chunks.items() if len(chunks) == len(self.place.numbers)]
        new = [name for name in whole if name not in self._proved]
        refused = unproved(
            {name: (self.place.claim(name, self._row(name)), self._proofs.pop(name, b"")) for name in new}
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
        """The clients whose whole report was there, with a proof that held, at the last `settle`, in order of their names."""
        return sorted(self._proved)

    def total(self, *, at_least: int) -> list[mpz]:
        """Ciphertexts of the sum of all reports that `complete` names. Raises TooFewReports."""
        clients = self.complete()
        refuse_few(clients, at_least=at_least)
        return self.place.public.add(map(self._row, clients))


def refuse_few(clients: Sequence[str], *, at_least: int) -> None:
    """Raises TooFewReports."""
    if len(clients) < at_least:
        raise TooFewReports(f"{len(clients)} whole reports arrived and {at_least} are needed: the round is not opened.")


def taken(place: Place, messages: Sequence[bytes]) -> Inbox:
    """The reports, all of them in order and proved. Raises MessageRefused, for the first that is not."""
    inbox = Inbox(place)
    for raw in messages:
        inbox.accept(raw)
    for error in inbox.settle().values():
        raise error
    return inbox


def take_all(inbox: Inbox, messages: Sequence[bytes]) -> list[MessageRefused]:
    """Takes what can be taken and returns the refusals: by rule the round goes on without them."""
    refused = []
    for raw in messages:
        try:
            inbox.accept(raw)
        except MessageRefused as error:
            refused.append(error)
    return [*refused, *inbox.settle().values()]
