"""What a sealed update travels in: a header that says where it belongs, and its client's signature.

The signature covers run, round, client, chunk, number of chunks, key id, roster, and the length and SHA-256 of the
ciphertexts, under a fixed prefix; so a message cannot be altered, cut, moved to another round or passed off as another
client's. `roster` is a hash of what the client was told of the run (`common_hash`): reports of sites that were told different
things are not added. Behind the ciphertexts of the last chunk comes the proof that the sender knows what it sealed, all of it
(`proofs`). Here one message is checked by itself; `inbox` puts a round's reports together and checks the proofs.

A message is 4 bytes of the header's length, the header (JSON), 64 bytes of signature, and the body: ciphertexts, then the
proof in the last chunk. Every refusal has a type of its own and names the sender."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gmpy2 import mpz

from tacit.crypto.paillier import PublicKey
from tacit.crypto.proofs import Claim, proof_bytes
from tacit.crypto.signing import Members, Signer, verified
from tacit.errors import BadCiphertext, BadSignature, ForeignKey, OtherRoster, Replayed, Truncated, UnknownSender
from tacit.wire import json_object

PREFIX = b"tacit report 2\n"  # nothing else that is ever signed starts like this
LENGTH_BYTES, SIGNATURE_BYTES = 4, 64
KINDS = (str, int, str, int, int, str, str, int, str)  # of a header's fields
CHUNK = 1024  # ciphertexts in a message: 768 KiB with a key of 3072 bits
MOST_HEADER = 4096  # a header is a few hundred bytes; a longer one is not read


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
class SignedHeader:
    """A header with its client's signature, as it arrived: nothing has been checked."""

    header: Header
    signature: bytes = field(repr=False)


@dataclass(frozen=True)
class RoundContext:
    """What a report must be for: one round of one run under one key and roster, with `chunk_sizes[i]` ciphertexts in chunk i.

    Whoever checks a report makes this value from its own knowledge, never from the report.
    """

    run: str
    round: int
    public: PublicKey
    roster: str
    chunk_sizes: tuple[int, ...]
    members: Members = field(repr=False)

    def body_bytes(self, chunk: int) -> int:
        """The length of a chunk's body; the last one has the proof behind its ciphertexts."""
        last = chunk + 1 == len(self.chunk_sizes)
        return self.chunk_sizes[chunk] * self.public.ciphertext_bytes + (proof_bytes(self.public) if last else 0)

    def claim(self, client: str, ciphertexts: Sequence[mpz]) -> Claim:
        """What a client has to prove of its ciphertexts, for this run, round and roster and in its own name."""
        return Claim(self.public, self.run, self.round, client, self.roster, ciphertexts)


def common_hash(run: str, experiment: str, roster: Mapping[str, Any]) -> str:
    """A hash of what all sites of a run must have been told alike: its name, the experiment, every site's name, size and epsilon.

    Guarantee: a server that tells two sites different stories gets reports that nobody adds together.
    """
    text = json.dumps([run, experiment, roster], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(b"tacit roster 1\n" + text.encode()).hexdigest()


def chunk_sizes(count: int, *, chunk: int = CHUNK) -> tuple[int, ...]:
    """How many of `count` ciphertexts each message carries.

    >>> chunk_sizes(1000, chunk=400)
    (400, 400, 200)
    """
    return tuple(min(chunk, count - start) for start in range(0, count, chunk))


def write(context: RoundContext, signer: Signer, ciphertexts: Sequence[mpz], proof: bytes) -> Iterator[bytes]:
    """A client's report on a round: one signed message per chunk, the proof behind the last.

    Assumes: as many ciphertexts as the chunks take, and a proof of `proof_bytes`; of others every `check_header` refuses.
    """
    start, chunks = 0, len(context.chunk_sizes)
    for chunk, count in enumerate(context.chunk_sizes):
        body = context.public.to_bytes(ciphertexts[start : start + count]) + (proof if chunk + 1 == chunks else b"")
        start += count
        digest = hashlib.sha256(body).hexdigest()
        where = (context.run, context.round, signer.client, chunk, chunks, context.public.id, context.roster)
        head = Header(*where, len(body), digest).raw()
        yield len(head).to_bytes(LENGTH_BYTES, "big") + head + signer.sign(PREFIX + head) + body


def parse(raw: bytes) -> tuple[SignedHeader, bytes]:
    """Header, signature and body of a message, of which nothing is verified yet. Raises: Truncated, BadSignature.

    Guarantee: the header has our fields, of our types, in our one form (`Header.raw` gives back the bytes that arrived).
    """
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
    return SignedHeader(header, rest[:SIGNATURE_BYTES]), rest[SIGNATURE_BYTES:]


def check_header(context: RoundContext, signed: SignedHeader) -> None:
    """Refuses a header that does not belong to this round. Until its signature holds, only the sender's name is looked at.

    Raises: UnknownSender, BadSignature, Replayed (another run or round), ForeignKey, OtherRoster, or Truncated for a chunk
    that was not agreed: the first that applies, naming the sender.
    """
    header = signed.header
    who = f"The report of {header.client!r}"
    if header.client not in context.members:
        raise UnknownSender(f"{who} is refused: there is no such member.")
    if not verified(context.members, header.client, PREFIX + header.raw(), signed.signature):
        raise BadSignature(f"{who} is refused: it was altered, or signed by somebody else.")
    if (header.run, header.round) != (context.run, context.round):
        there = f"round {header.round + 1} of run {header.run}"
        raise Replayed(f"{who} is refused: it is for {there}, not round {context.round + 1} of run {context.run}.")
    if header.key != context.public.id:
        raise ForeignKey(f"{who} is refused: it is sealed for key {header.key}, not {context.public.id}.")
    if header.roster != context.roster:
        why = "its site was told of another experiment, other sites or other budgets"
        raise OtherRoster(
            f"{who} is refused: {why} ({header.roster[:16]}) than are known here ({context.roster[:16]})."
        )
    right = header.chunks == len(context.chunk_sizes) and 0 <= header.chunk < header.chunks
    if not right or header.size != context.body_bytes(header.chunk):
        raise Truncated(f"{who} is refused: chunk {header.chunk} of {header.chunks} has {header.size} bytes.")


def check_body(context: RoundContext, header: Header, body: bytes) -> tuple[list[mpz], bytes]:
    """The ciphertexts of a chunk, and behind those of the last the proof. Assumes: `check_header` has let the header pass.

    Guarantee: the body is what the header's signature covers, and every ciphertext is a unit modulo n^2.
    Raises: Truncated for another length, BadSignature for another hash, BadCiphertext, all naming the sender.
    """
    who = f"The report of {header.client!r}"
    if len(body) != header.size:
        raise Truncated(f"{who} is refused: {len(body)} of {header.size} bytes arrived.")
    if hashlib.sha256(body).hexdigest() != header.sha256:
        raise BadSignature(f"{who} is refused: its ciphertexts were altered.")
    end = context.chunk_sizes[header.chunk] * context.public.ciphertext_bytes
    try:
        return context.public.from_bytes(body[:end]), body[end:]
    except BadCiphertext as error:
        raise BadCiphertext(f"{who} is refused: {str(error)[0].lower()}{str(error)[1:]}") from error
