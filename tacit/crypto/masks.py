"""Sums of integers that nobody can open one by one: secure aggregation against an active server.

Source: Bonawitz et al. 2017 (ePrint 2017/281), Figure 4, the variant with signatures, on a complete graph. Shares go to every
member of the run, so a round's roster may be any part of it; the keys of round r + 1 can travel with the reports of round r.

A round has three legs: each client sends `mask(vector)`, its integers plus a mask of its own, plus or minus one mask per pair;
every survivor signs the list of survivors (`agree`); with enough signatures on one list each gives, for every participant, one
share: of a survivor's own mask or of an absentee's key, never both (`unmask`). The server then takes the masks away (`opened`).

Guarantee: with t > (n + c) / 2 of n members, a server with the help of c of them learns one sum of one attempt, of at least
`at_least` reports, and nothing else of it (under DDH on Curve25519, AES and SHA-256 as random functions), if a client keeps on disk
what it answered. Not given: a proof that a report is in range, or an opening without t answers."""

import hashlib
import hmac
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tacit.crypto.reports import Members, Signer, verified
from tacit.crypto.threshold import fewest_shares
from tacit.errors import BadInput, BadOpening, MessageRefused, Refused, TooFewReports

PRIME = 2**256 + 297  # the least prime above 2^256: every seed of 32 bytes is one field element
SEED_BYTES, SHARE_BYTES = 32, 33  # a field element may need one bit more than 32 bytes
OWN, PAIRS = KINDS = ("own", "key")  # what is shared: the seed of a client's own mask, and of its key for pairs
NONCE = bytes(12)  # every envelope has a key of its own: run, round, attempt, sender and receiver are in it
WIDTHS = {32: np.dtype("<u4"), 64: np.dtype("<u8")}  # sums are modulo 2^32 or 2^64


@dataclass(frozen=True)
class Roster:
    """The members of a run and their keys. Raises: BadInput where `colluding` members and the server could open two sums."""

    run: str
    signing: Members = field(repr=False)
    envelopes: Mapping[str, bytes] = field(repr=False)  # X25519 public keys, 32 bytes each
    at_least: int
    colluding: int = 1

    def __post_init__(self) -> None:
        if sorted(self.signing) != sorted(self.envelopes):
            raise BadInput("Every member needs a signing key and an envelope key.")
        if len({bytes(key) for key in self.envelopes.values()}) < len(self.names):
            raise BadInput("Two members have one envelope key: each needs its own.")
        if not self.threshold <= self.at_least <= len(self.names):
            raise BadInput(
                f"Masks among {len(self.names)} clients, of which {self.colluding} may help the server, open sums of"
                f" {self.threshold} to {len(self.names)} reports: set privacy.fewest_reports there, got {self.at_least}."
            )

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.signing))

    @property
    def threshold(self) -> int:
        """How many signatures and shares an opening takes: c members that sign twice cannot give two lists as many."""
        return fewest_shares(of=len(self.names), colluding=self.colluding)

    @cached_property
    def digest(self) -> str:
        keys = [(name, self.signing[name].public_bytes_raw().hex(), self.envelopes[name].hex()) for name in self.names]
        text = json.dumps([self.run, keys, self.at_least, self.colluding])
        return hashlib.sha256(b"tacit masks roster 1\n" + text.encode()).hexdigest()


@dataclass(frozen=True)
class Attempt:
    """One try at one round's sum. Its label is in every key, envelope and signature, so that nothing of it serves another."""

    roster: Roster = field(repr=False)
    round: int
    attempt: int = 0

    @property
    def label(self) -> tuple[str, ...]:
        return (self.roster.run, self.roster.digest, str(self.round), str(self.attempt))

    def bound(self, *words: object) -> bytes:
        return json.dumps([*self.label, *words]).encode()

    def commitment(self, name: str, kind: str, seed: bytes) -> bytes:
        return hashlib.sha256(b"tacit masks seed 1\n" + self.bound(name, kind) + seed).digest()

    def own_key(self, model: str, name: str, seed: bytes) -> bytes:
        return _derived(seed, "own mask", *self.label, model, name)

    def pair_key(self, model: str, me: str, seed: bytes, other: str, public: bytes) -> bytes:
        """The key of a pair's mask on one model, the same from both sides."""
        common = _private(seed).exchange(X25519PublicKey.from_public_bytes(public))
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


@dataclass(frozen=True)
class Party:
    """A member's side. All secrets of an attempt follow from `secret` and the attempt; what it answered, its caller keeps on
    disk.
    """

    signer: Signer
    secret: bytes = field(repr=False)

    @property
    def name(self) -> str:
        return self.signer.client

    @cached_property
    def _envelope(self) -> X25519PrivateKey:
        return _private(_derived(self.secret, "envelope"))

    @property
    def envelope_key(self) -> bytes:
        return self._envelope.public_key().public_bytes_raw()

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

    def _box(self, attempt: Attempt, sender: str, receiver: str) -> ChaCha20Poly1305:
        other = attempt.roster.envelopes[receiver if sender == self.name else sender]
        common = self._envelope.exchange(X25519PublicKey.from_public_bytes(other))
        return ChaCha20Poly1305(_derived(common, "box", *attempt.label, sender, receiver))

    def setup(self, attempt: Attempt) -> Setup:
        """The client's part of an attempt: the same bytes whenever it is asked. Raises: BadInput for no member under this key."""
        roster, envelopes = attempt.roster, {}
        if roster.envelopes.get(self.name) != self.envelope_key:
            raise BadInput(f"The members of the run have another envelope key of {self.name!r} than its own.")
        for receiver, pair in zip(roster.names, self._shares(attempt), strict=True):
            if receiver != self.name:
                content, where = b"".join(one.to_bytes(SHARE_BYTES, "big") for one in pair), (self.name, receiver)
                envelopes[receiver] = self._box(attempt, *where).encrypt(NONCE, content, attempt.bound(*where))
        own, key = (attempt.commitment(self.name, kind, self._seed(attempt, kind)) for kind in KINDS)
        unsigned = Setup(self.name, self._pair_public(attempt), (own, key), b"", envelopes)
        return replace(unsigned, signature=self.signer.sign(unsigned.content(attempt)))

    def join(self, attempt: Attempt, setups: Iterable[Setup], *, model: str) -> "Joined":
        """The attempt as this client was told it. Raises: MessageRefused for a setup that is none; TooFewReports for a short list.

        Guarantee: every participant is a member that signed its key for this attempt, and sent this client shares that it can read.
        """
        roster, found, shares = attempt.roster, dict[str, Setup](), {}
        for one in setups:
            if one.sender not in roster.signing:
                raise MessageRefused(f"{one.sender!r} is no member of this run.")
            if not verified(roster.signing, one.sender, one.content(attempt), one.signature):
                raise MessageRefused(f"The setup of {one.sender!r} was altered, or signed for another attempt.")
            if one.sender in found:
                raise MessageRefused(f"Two setups of {one.sender!r} were told for one attempt.")
            found[one.sender] = one
            if one.sender == self.name:
                shares[self.name] = self._shares(attempt)[roster.names.index(self.name)]
            else:
                shares[one.sender] = self._opened(attempt, one)
        if self.name not in found or found[self.name].key != self._pair_public(attempt):
            raise MessageRefused("The attempt was told without this client's own setup.")
        if len(found) < roster.at_least:
            raise TooFewReports(f"{len(found)} clients are to take part, and a sum needs {roster.at_least} reports.")
        return Joined(self, attempt, model, found, shares)

    def _opened(self, attempt: Attempt, one: Setup) -> tuple[int, int]:
        where = (one.sender, self.name)
        try:
            content = self._box(attempt, *where).decrypt(NONCE, one.envelopes[self.name], attempt.bound(*where))
        except (InvalidTag, KeyError) as error:
            why = "cannot be read: they were altered or are for another attempt"
            raise MessageRefused(f"The shares that {one.sender!r} sent {why}.") from error
        if len(content) != 2 * SHARE_BYTES:
            raise MessageRefused(f"The shares that {one.sender!r} sent have another length.")
        own, key = (int.from_bytes(part, "big") % PRIME for part in (content[:SHARE_BYTES], content[SHARE_BYTES:]))
        return own, key


@dataclass(frozen=True)
class Joined:
    party: Party = field(repr=False)
    attempt: Attempt
    model: str
    setups: Mapping[str, Setup] = field(repr=False)
    shares: Mapping[str, tuple[int, int]] = field(repr=False)

    def mask(self, vector: np.ndarray, *, bits: int) -> np.ndarray:
        """The integers modulo 2^bits under this client's own mask and one mask a pair: uniform to whoever lacks the seeds."""
        party, me, attempt = self.party, self.party.name, self.attempt
        masked = np.asarray(vector, dtype=np.int64).astype(WIDTHS[bits])
        _add(masked, attempt.own_key(self.model, me, party._seed(attempt, OWN)), plus=True)
        mine = party._seed(attempt, PAIRS)
        for other, setup in self.setups.items():
            if other != me:
                _add(masked, attempt.pair_key(self.model, me, mine, other, setup.key), plus=me < other)
        return masked

    def _list(self, survivors: Sequence[str]) -> bytes:
        fewest = self.attempt.roster.at_least
        if list(survivors) != sorted(set(survivors)) or not set(survivors) <= set(self.setups):
            raise Refused("The list of survivors names a client twice, or one that does not take part in this attempt.")
        if self.party.name not in survivors:
            why = "it helps to open no sum that lacks its report"
            raise Refused(f"The list of survivors does not name this client: {why}.")
        if len(survivors) < fewest:
            why = "it would carry too little noise"
            raise Refused(f"The list has {len(survivors)} survivors, and a sum needs {fewest}: {why}.")
        return self.attempt.survivors(self.model, self.setups, survivors)

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
        return {name: self.shares[name][0 if name in survivors else 1] for name in self.setups}


@dataclass
class Collecting:
    """The server's side of an attempt: it adds what it cannot read. Nothing here is trusted by a client, which checks itself."""

    attempt: Attempt
    model: str
    setups: Mapping[str, Setup] = field(repr=False)
    count: int
    bits: int
    total: np.ndarray | None = field(default=None, repr=False)
    reported: list[str] = field(default_factory=list)

    def add(self, name: str, masked: np.ndarray) -> None:
        if name not in self.setups:
            raise MessageRefused("it takes no part in this attempt")
        if name in self.reported:
            raise MessageRefused("a second report: the first counts")
        if masked.shape != (self.count,) or masked.dtype != WIDTHS[self.bits]:
            raise MessageRefused(f"its report is not {self.count} integers of {self.bits} bits")
        self.total = masked.copy() if self.total is None else np.add(self.total, masked, out=self.total)
        self.reported.append(name)

    @property
    def survivors(self) -> list[str]:
        if len(self.reported) < self.attempt.roster.at_least:
            raise TooFewReports(
                f"{len(self.reported)} reports arrived and {self.attempt.roster.at_least} are needed: the sum would carry less"
                " noise than was promised."
            )
        return sorted(self.reported)

    def opened(self, answers: Mapping[str, Mapping[str, int]]) -> np.ndarray:
        """The sum of the survivors' integers, from the shares that at least t of them gave. Raises: TooFewReports, BadOpening."""
        attempt, survivors, total = self.attempt, self.survivors, np.array(self.total, copy=True)
        if len(answers) < attempt.roster.threshold:
            raise TooFewReports(f"{len(answers)} clients gave their shares and {attempt.roster.threshold} are needed.")
        for name in self.setups:
            if name in survivors:
                _add(total, attempt.own_key(self.model, name, self._seed(name, OWN, answers)), plus=False)
                continue
            seed = self._seed(name, PAIRS, answers)
            for other in survivors:  # what each survivor has added for the absentee
                _add(total, attempt.pair_key(self.model, name, seed, other, self.setups[other].key), plus=name < other)
        return total.view(f"<i{self.bits // 8}").astype(np.int64)

    def _seed(self, name: str, kind: str, answers: Mapping[str, Mapping[str, int]]) -> bytes:
        roster, wanted = self.attempt.roster, self.setups[name].commitments[KINDS.index(kind)]
        known = [(roster.names.index(giver) + 1, shares[name]) for giver, shares in answers.items() if name in shares]
        for start in range(len(known) - roster.threshold + 1):
            seed = joined(known[start : start + roster.threshold])
            if seed is not None and hmac.compare_digest(self.attempt.commitment(name, kind, seed), wanted):
                return seed
        raise BadOpening(
            f"The shares of {name!r} do not lead to the seed that it committed to: the sum of this attempt is lost."
        )


def _derived(secret: bytes, *info: str) -> bytes:
    text = json.dumps(info, separators=(",", ":")).encode()
    return HKDF(hashes.SHA256(), SEED_BYTES, salt=None, info=b"tacit masks 1\n" + text).derive(secret)


def _private(seed: bytes) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(seed)


def expand(key: bytes, count: int, *, bits: int) -> np.ndarray:
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(count * bits // 8)), dtype=WIDTHS[bits])


def _add(total: np.ndarray, key: bytes, *, plus: bool) -> None:
    mask = expand(key, len(total), bits=8 * total.itemsize)
    (np.add if plus else np.subtract)(total, mask, out=total)


def shared(seed: bytes, *, of: int, threshold: int, secret: bytes) -> list[int]:
    """Shamir's shares 1 ... `of` of a seed; the polynomial follows from `secret`, so that a restart deals the same ones."""
    stream = Cipher(algorithms.AES(secret), modes.CTR(bytes(16))).encryptor().update(bytes(40 * (threshold - 1)))
    # 320 bits modulo the prime: 2^-63 from uniform
    rest = [int.from_bytes(stream[k : k + 40], "big") % PRIME for k in range(0, len(stream), 40)]
    shares = []
    for index in range(1, of + 1):
        value = 0
        for coefficient in reversed([int.from_bytes(seed, "big"), *rest]):
            value = (value * index + coefficient) % PRIME
        shares.append(value)
    return shares


def joined(shares: Sequence[tuple[int, int]]) -> bytes | None:
    """The seed of (index, share) pairs by Lagrange's formula at 0; None for what is no seed of 32 bytes."""
    value = 0
    for i, share in shares:
        up = down = 1
        for j, _ in shares:
            if j != i:
                up, down = up * j % PRIME, down * (j - i) % PRIME
        value = (value + share * up * pow(down, -1, PRIME)) % PRIME
    return value.to_bytes(SEED_BYTES, "big") if value < 2**256 else None
