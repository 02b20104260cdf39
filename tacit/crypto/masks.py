"""Sums of integers that nobody can open one by one: secure aggregation against an active server.

Source: Bonawitz et al. 2017 (ePrint 2017/281), Figure 4, the variant with signatures, on a complete graph. Shares go to every
member of the run, so a round's roster may be any part of it; the keys of round r + 1 can travel with the reports of round r.
A member is known by its pinned signing key, whose X25519 form (RFC 7748, section 4.1) opens the envelopes that shares come in.

A round has three legs: each client sends `mask(vector)`, its integers plus a mask of its own, plus or minus one mask per pair;
every survivor signs the list of survivors (`agree`); with enough signatures on one list each gives, for every participant, one
share: of a survivor's own mask or of an absentee's key, never both (`unmask`). The server then takes the masks away (`opened`).

Guarantee: with t > (n + c) / 2 of n members, a server with the help of c of them learns one sum of one attempt, of at least
`at_least` reports, and nothing else of it (under DDH on Curve25519, AES and SHA-256 as random functions), if a client keeps on disk
what it answered. Not given: a proof that a report is in range, or an opening without t answers."""

import hashlib
import hmac
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, combinations
from random import SystemRandom
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tacit.crypto.reports import Members, Signer, verified
from tacit.crypto.threshold import PRIME, SEED_BYTES, SHARE_BYTES, fewest_shares, joined, shared
from tacit.errors import BadInput, BadOpening, MessageRefused, Refused, TooFewReports

ENVELOPE_BYTES = 2 * SHARE_BYTES + 16  # two shares under ChaCha20-Poly1305
CURVE = 2**255 - 19
MOST_TRIED = 1_000  # choices of t shares among which false ones are looked past
OWN, PAIRS = KINDS = ("own", "key")  # what is shared: the seed of a client's own mask, and of its key for pairs
Mask = tuple[bytes, bool]
NONCE = bytes(
    12
)  # every envelope has a key of its own: run, round, sender, receiver and the sender's key for pairs are in it
WIDTHS = {32: np.dtype("<u4"), 64: np.dtype("<u8")}  # sums are modulo 2^32 or 2^64


@dataclass(frozen=True)
class Roster:
    """The members of a run and their keys. Raises: BadInput where `colluding` members and the server could open two sums."""

    run: str
    signing: Members = field(repr=False)
    at_least: int
    colluding: int = 1

    def __post_init__(self) -> None:
        refuse_two_sums(of=len(self.signing), at_least=self.at_least, colluding=self.colluding)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.signing))

    @property
    def threshold(self) -> int:
        """How many signatures and shares an opening takes: c members that sign twice cannot give two lists as many."""
        return fewest_shares(of=len(self.names), colluding=self.colluding)

    @cached_property
    def boxes(self) -> Mapping[str, X25519PublicKey]:
        """What envelopes to each member are closed with. Raises: BadInput for what is no key."""
        return {name: box_key(self.signing[name]) for name in self.names}

    @cached_property
    def digest(self) -> str:
        keys = [(name, self.signing[name].public_bytes_raw().hex()) for name in self.names]
        text = json.dumps([self.run, keys, self.at_least, self.colluding])
        return hashlib.sha256(b"tacit masks roster 1\n" + text.encode()).hexdigest()


def refuse_two_sums(*, of: int, at_least: int, colluding: int) -> None:
    """Refuses a run in which two sums of one attempt could be opened, or none of so few reports. Raises: BadInput."""
    threshold = fewest_shares(of=of, colluding=colluding)
    if threshold > of:
        raise BadInput("Masks need at least 2 clients, and privacy.colluding below their number.")
    if not threshold <= at_least <= of:
        raise BadInput(
            f"Masks among {of} clients, of which {colluding} may help the server, open sums of {threshold} to {of} reports: set"
            f" privacy.fewest_reports there, got {at_least}."
        )


@dataclass(frozen=True)
class Attempt:
    """One try at a sum, which is one round of a run. Its label is in every key, envelope and signature: nothing serves another."""

    roster: Roster = field(repr=False)
    round: int

    @property
    def label(self) -> tuple[str, ...]:
        return (self.roster.run, self.roster.digest, str(self.round))

    def bound(self, *words: object) -> bytes:
        return json.dumps([*self.label, *words]).encode()

    def commitment(self, name: str, kind: str, seed: bytes) -> bytes:
        return hashlib.sha256(b"tacit masks seed 1\n" + self.bound(name, kind) + seed).digest()

    def own_key(self, model: str, name: str, seed: bytes) -> bytes:
        return _derived(seed, "own mask", *self.label, model, name)

    def pair_key(self, model: str, me: str, mine: X25519PrivateKey, other: str, public: X25519PublicKey) -> bytes:
        """The key of a pair's mask on one model, the same from both sides."""
        common = mine.exchange(public)
        return _derived(common, "pair mask", *self.label, model, *sorted((me, other)))

    def survivors(self, model: str, setups: Collection[str], survivors: Sequence[str]) -> bytes:
        return b"tacit masks survivors 1\n" + self.bound(model, sorted(setups), list(survivors))


@dataclass(frozen=True)
class Setup:
    """What a client sends before a round: its key for pairs, commitments to both seeds, and a share of each for every member."""

    sender: str
    key: bytes
    commitments: tuple[bytes, bytes]  # in the order of KINDS
    signature: bytes = field(repr=False)
    envelopes: Mapping[str, bytes] = field(repr=False)

    def content(self, attempt: Attempt) -> bytes:
        return b"tacit masks setup 1\n" + attempt.bound(
            self.sender, self.key.hex(), *(one.hex() for one in self.commitments)
        )

    def checked(self, attempt: Attempt) -> X25519PublicKey:
        """Its key for pairs. Raises: MessageRefused for what no member signed for this attempt, or is no key."""
        if self.sender not in attempt.roster.signing:
            raise MessageRefused(f"{self.sender!r} is no member of this run.")
        if not verified(attempt.roster.signing, self.sender, self.content(attempt), self.signature):
            raise MessageRefused(f"The setup of {self.sender!r} was altered, or signed for another attempt.")
        try:
            return _usable(self.key)
        except ValueError as error:
            raise MessageRefused(f"The setup of {self.sender!r} holds what is no key.") from error

    def row(self, roster: Roster) -> bytes:
        """The setup as bytes, of one length in a run: an envelope for every member in the order of names, zeros for its own."""
        envelopes = (self.envelopes.get(name, bytes(ENVELOPE_BYTES)) for name in roster.names)
        return b"".join((self.key, *self.commitments, self.signature, *envelopes))

    @classmethod
    def of(cls, sender: str, row: bytes, roster: Roster) -> "Setup":
        """What `row` made, of which nothing is verified yet. Raises: MessageRefused for bytes of another length."""
        if len(row) != setup_bytes(len(roster.names)):
            raise MessageRefused(f"The setup of {sender!r} has {len(row)} bytes.")
        key, own, pairs, signature, rest = row[:32], row[32:64], row[64:96], row[96:160], row[160:]
        places = enumerate(roster.names)
        envelopes = {name: rest[k * ENVELOPE_BYTES :][:ENVELOPE_BYTES] for k, name in places if name != sender}
        return cls(sender, key, (own, pairs), signature, envelopes)


def setup_bytes(members: int) -> int:
    return 160 + ENVELOPE_BYTES * members  # a key, two commitments and a signature


@dataclass(frozen=True)
class Party:
    """A member's side. All seeds of an attempt follow from `secret` and the attempt; what it answered, its caller keeps on disk."""

    signer: Signer
    secret: bytes = field(repr=False)

    @property
    def name(self) -> str:
        return self.signer.client

    @cached_property
    def _opens(self) -> X25519PrivateKey:
        return _private(hashlib.sha512(self.signer.key.private_bytes_raw()).digest()[:SEED_BYTES])  # RFC 8032, 5.1.5

    @cached_property
    def _common(self) -> dict[bytes, bytes]:
        return {}  # with each member, by its key: the same in all attempts

    def _seed(self, attempt: Attempt, kind: str) -> bytes:
        return _derived(self.secret, "seed", kind, *attempt.label)

    def _pair_public(self, attempt: Attempt) -> bytes:
        return _private(self._seed(attempt, PAIRS)).public_key().public_bytes_raw()

    def _shares(self, attempt: Attempt) -> list[tuple[int, int]]:
        numbers = {"of": len(attempt.roster.names), "threshold": attempt.roster.threshold}
        polynomials = (_derived(self.secret, "polynomial", kind, *attempt.label) for kind in KINDS)
        seeds = (self._seed(attempt, kind) for kind in KINDS)
        own, key = (shared(seed, secret=secret, **numbers) for seed, secret in zip(seeds, polynomials, strict=True))
        return list(zip(own, key, strict=True))

    def _box(self, attempt: Attempt, sender: str, receiver: str, pairs: bytes) -> ChaCha20Poly1305:
        key = attempt.roster.boxes[receiver if sender == self.name else sender]
        if (known := key.public_bytes_raw()) not in self._common:
            self._common[known] = self._opens.exchange(key)
        return ChaCha20Poly1305(_derived(self._common[known], "box", *attempt.label, sender, receiver, pairs.hex()))

    def setup(self, attempt: Attempt) -> Setup:
        """The client's part of an attempt: the same bytes whenever it is asked. Raises: BadInput for no member under this key."""
        roster, envelopes, pairs = attempt.roster, {}, self._pair_public(attempt)
        known = roster.signing.get(self.name)
        if known is None or known.public_bytes_raw() != self.signer.public.public_bytes_raw():
            raise BadInput(f"The members of the run have another key of {self.name!r} than its own.")
        for receiver, pair in zip(roster.names, self._shares(attempt), strict=True):
            if receiver != self.name:
                content, where = b"".join(one.to_bytes(SHARE_BYTES, "big") for one in pair), (self.name, receiver)
                envelopes[receiver] = self._box(attempt, *where, pairs).encrypt(NONCE, content, attempt.bound(*where))
        own, key = (attempt.commitment(self.name, kind, self._seed(attempt, kind)) for kind in KINDS)
        unsigned = Setup(self.name, pairs, (own, key), b"", envelopes)
        return replace(unsigned, signature=self.signer.sign(unsigned.content(attempt)))

    def join(self, attempt: Attempt, setups: Iterable[Setup], *, model: str) -> "Joined":
        """The attempt as this client was told it. Raises: MessageRefused for a setup that is none; TooFewReports for a short list.

        Guarantee: every participant is a member that signed its key for this attempt, and sent this client shares that it can read.
        """
        roster, keys, shares, pairs = (
            attempt.roster,
            dict[str, bytes](),
            dict[str, tuple[int, int]](),
            dict[str, bytes](),
        )
        mine = _private(self._seed(attempt, PAIRS))
        for one in setups:
            key = one.checked(attempt)
            if one.sender in keys:
                raise MessageRefused(f"Two setups of {one.sender!r} were told for one attempt.")
            keys[one.sender] = one.key
            if one.sender == self.name:
                shares[self.name] = self._shares(attempt)[roster.names.index(self.name)]
            else:
                shares[one.sender] = self._opened(attempt, one)
                pairs[one.sender] = attempt.pair_key(model, self.name, mine, one.sender, key)
        if keys.get(self.name) != self._pair_public(attempt):
            raise MessageRefused("The attempt was told without this client's own setup.")
        if len(keys) < roster.at_least:
            raise TooFewReports(f"{len(keys)} clients are to take part, and a sum needs {roster.at_least} reports.")
        return Joined(self, attempt, model, shares, pairs)

    def _opened(self, attempt: Attempt, one: Setup) -> tuple[int, int]:
        where = (one.sender, self.name)
        try:
            content = self._box(attempt, *where, one.key).decrypt(
                NONCE, one.envelopes[self.name], attempt.bound(*where)
            )
        except (InvalidTag, KeyError) as error:
            why = "cannot be read: they were altered or are for another attempt"
            raise MessageRefused(f"The shares that {one.sender!r} sent {why}.") from error
        if len(content) != 2 * SHARE_BYTES:
            raise MessageRefused(f"The shares that {one.sender!r} sent have another length.")
        own, key = (int.from_bytes(part, "big") % PRIME for part in (content[:SHARE_BYTES], content[SHARE_BYTES:]))
        return own, key


@dataclass(frozen=True)
class Joined:
    """An attempt that a client takes part in: `shares` are those that it holds of every participant, `pairs` the keys of masks."""

    party: Party = field(repr=False)
    attempt: Attempt
    model: str
    shares: Mapping[str, tuple[int, int]] = field(repr=False)
    pairs: Mapping[str, bytes] = field(repr=False)

    def record(self) -> dict[str, Any]:
        """What the later legs need of it, for the client's own disk; `of` reads it back."""
        return {
            "model": self.model,
            "shares": {name: [hex(each) for each in pair] for name, pair in self.shares.items()},
        }

    @classmethod
    def of(cls, party: Party, attempt: Attempt, record: Mapping[str, Any]) -> "Joined":
        """A client that was restarted after its report. Assumes: its own record. It masks nothing more."""
        shares = {name: (int(own, 16), int(key, 16)) for name, (own, key) in record["shares"].items()}
        return cls(party, attempt, record["model"], shares, {})

    def mask(self, vector: np.ndarray, *, bits: int) -> np.ndarray:
        """The integers modulo 2^bits under this client's own mask and one mask a pair: uniform to whoever lacks the seeds."""
        me = self.party.name
        own = self.attempt.own_key(self.model, me, self.party._seed(self.attempt, OWN))
        return hidden(vector, me, own, {other: self.pairs[other] for other in self.shares if other != me}, bits=bits)

    def _list(self, survivors: Sequence[str]) -> bytes:
        fewest = self.attempt.roster.at_least
        if list(survivors) != sorted(set(survivors)) or not set(survivors) <= set(self.shares):
            raise Refused("The list of survivors names a client twice, or one that does not take part in this attempt.")
        if self.party.name not in survivors:
            why = "it helps to open no sum that lacks its report"
            raise Refused(f"The list of survivors does not name this client: {why}.")
        if len(survivors) < fewest:
            why = "it would carry too little noise"
            raise Refused(f"The list has {len(survivors)} survivors, and a sum needs {fewest}: {why}.")
        return self.attempt.survivors(self.model, self.shares, survivors)

    def agree(self, survivors: Sequence[str]) -> bytes:
        return self.party.signer.sign(self._list(survivors))

    def unmask(self, survivors: Sequence[str], signatures: Mapping[str, bytes]) -> dict[str, int]:
        """One share for every participant: of its own mask if it survived, else of its key for pairs. Raises: Refused.

        Guarantee: given only where t distinct survivors signed this very list, so no other list of the attempt can have as many.
        """
        content, roster = self._list(survivors), self.attempt.roster
        signed = [name for name in survivors if name in signatures]
        good = sum(verified(roster.signing, name, content, signatures[name]) for name in signed)
        if good < roster.threshold:
            need = f"{roster.threshold} must before anything is unmasked"
            raise Refused(f"{good} survivors signed this list, and {need}.")
        return {name: pair[0 if name in survivors else 1] for name, pair in self.shares.items()}


@dataclass
class Adding:
    """Masked reports as they are added up: nobody can read them here. A mask is a key, and whether it was added."""

    members: Collection[str] = field(repr=False)
    at_least: int
    count: int
    bits: int
    total: np.ndarray | None = field(default=None, repr=False, kw_only=True)
    reported: list[str] = field(default_factory=list, kw_only=True)

    def add(self, name: str, masked: np.ndarray) -> None:
        if name not in self.members:
            raise MessageRefused("it takes no part in this attempt")
        if name in self.reported:
            raise MessageRefused("a second report: the first counts")
        if masked.shape != (self.count,) or masked.dtype != WIDTHS[self.bits]:
            raise MessageRefused(f"its report is not {self.count} integers of {self.bits} bits")
        self.total = masked.copy() if self.total is None else np.add(self.total, masked, out=self.total)
        self.reported.append(name)

    @property
    def survivors(self) -> list[str]:
        if len(self.reported) < self.at_least:
            few = f"{len(self.reported)} reports arrived and {self.at_least} are needed"
            raise TooFewReports(f"{few}: the sum would carry less noise than was promised.")
        return sorted(self.reported)

    def without(self, masks: Callable[[str, list[str]], Iterable[Mask]]) -> np.ndarray:
        """The sum of the survivors' integers, without what `masks` says that each member has left in it."""
        survivors, total = self.survivors, np.array(self.total, copy=True)
        for name in self.members:
            for key, added in masks(name, survivors):
                _add(total, key, plus=not added)
        return total.view(f"<i{self.bits // 8}").astype(np.int64)


@dataclass
class Collecting(Adding):
    """The server's side of an attempt. Nothing here is trusted by a client, which checks itself."""

    setups: Mapping[str, Setup] = field(repr=False)
    attempt: Attempt
    model: str
    true: tuple[str, ...] = ()  # whose shares led to the last seed: they are tried first for the next one

    @classmethod
    def of(cls, attempt: Attempt, model: str, setups: Mapping[str, Setup], count: int, bits: int) -> "Collecting":
        return cls(setups, attempt.roster.at_least, count, bits, setups, attempt, model)

    def opened(self, answers: Mapping[str, Mapping[str, int]]) -> np.ndarray:
        """The sum of the survivors' integers, from the shares that at least t of them gave. Raises: TooFewReports, BadOpening."""
        attempt, setups = self.attempt, self.setups

        def masks(name: str, survivors: list[str]) -> Iterator[Mask]:
            if name in survivors:
                yield attempt.own_key(self.model, name, self._seed(name, OWN, answers)), True
                return
            mine = _private(self._seed(name, PAIRS, answers))
            for other in survivors:  # what each survivor has added for the absentee
                key = X25519PublicKey.from_public_bytes(setups[other].key)
                yield attempt.pair_key(self.model, name, mine, other, key), other < name

        self.survivors  # noqa: B018 - too few reports come first
        if len(answers) < attempt.roster.threshold:
            raise TooFewReports(f"{len(answers)} clients gave their shares and {attempt.roster.threshold} are needed.")
        return self.without(masks)

    def _seed(self, name: str, kind: str, answers: Mapping[str, Mapping[str, int]]) -> bytes:
        roster, wanted = self.attempt.roster, self.setups[name].commitments[KINDS.index(kind)]
        givers = sorted((one for one in answers if name in answers[one]), key=lambda one: one not in self.true)
        for some in _choices(givers, roster.threshold):
            seed = joined([(roster.names.index(giver) + 1, answers[giver][name]) for giver in some])
            if seed is not None and hmac.compare_digest(self.attempt.commitment(name, kind, seed), wanted):
                self.true = some
                return seed
        raise BadOpening(
            f"The shares of {name!r} do not lead to the seed that it committed to: it dealt false ones, or too many of"
            f" {', '.join(sorted(givers))} gave such. The sum is lost."
        )


def hidden(vector: np.ndarray, me: str, own: bytes, pairs: Mapping[str, bytes], *, bits: int) -> np.ndarray:
    """The integers modulo 2^bits, plus a mask of one's own, plus the masks of pairs with later names, less those with earlier."""
    masked = np.asarray(vector, dtype=np.int64).astype(WIDTHS[bits])
    _add(masked, own, plus=True)
    for other, key in pairs.items():
        _add(masked, key, plus=me < other)
    return masked


def _choices(givers: Sequence[str], threshold: int) -> Iterator[tuple[str, ...]]:
    """Choices of so many givers: all, or the first and then random ones, as in order most of 1,000 would have the first giver."""
    if math.comb(len(givers), threshold) <= MOST_TRIED:
        return combinations(givers, threshold)
    some = (tuple(SystemRandom().sample(givers, threshold)) for _ in range(MOST_TRIED - 1))
    return chain([tuple(givers[:threshold])], some)


def _derived(secret: bytes, *info: str) -> bytes:
    text = json.dumps(info, separators=(",", ":")).encode()
    return HKDF(hashes.SHA256(), SEED_BYTES, salt=None, info=b"tacit masks 1\n" + text).derive(secret)


def _private(seed: bytes) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(seed)


def _usable(raw: bytes) -> X25519PublicKey:
    key = X25519PublicKey.from_public_bytes(raw)
    _private(bytes(SEED_BYTES)).exchange(key)  # ValueError for a point of small order, whose every secret is known
    return key


def box_key(signing: Ed25519PublicKey) -> X25519PublicKey:
    """The X25519 form of an Ed25519 key: u = (1 + y) / (1 - y), RFC 7748, section 4.1. One key for both uses: ePrint 2021/509.

    Raises: BadInput for a point of small order.
    """
    y = int.from_bytes(signing.public_bytes_raw(), "little") & (2**255 - 1)
    try:
        return _usable(((1 + y) * pow(1 - y, -1, CURVE) % CURVE).to_bytes(32, "little"))
    except ValueError as error:
        raise BadInput("A member's signing key is no key: ask for its own.") from error


def expand(key: bytes, count: int, *, bits: int) -> np.ndarray:
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(count * bits // 8)), dtype=WIDTHS[bits])


def _add(total: np.ndarray, key: bytes, *, plus: bool) -> None:
    mask = expand(key, len(total), bits=8 * total.itemsize)
    (np.add if plus else np.subtract)(total, mask, out=total)
