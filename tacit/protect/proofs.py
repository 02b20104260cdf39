"""A proof that the sender of a report knows what it sealed, one for all its ciphertexts.

Without it a ciphertext can be borrowed: c_A^k Enc(offset), signed by B, puts A's report into a later sum as often as B likes.

    c_j = (1 + n)^(m_j) rho_j, rho_j = h_s^(r_j)       seed = H(run, round, client, roster, key, all c_j)
    e_j = 128 bits each, from XOF(seed)                 C = prod c_j^(e_j), M = sum e_j m_j mod n, R = sum e_j r_j
    x random mod n, s random and 128 bits longer than fR    A = (1 + n)^x h_s^s, f = H(seed, A)
    sent: f, z1 = x + fM mod n, z2 = s + fR             held: f = H(seed, (1 + n)^(z1) h_s^(z2) C^(-f))

It is Schnorr's protocol (J. Cryptology 4, 1991) for the opening of a Paillier ciphertext (Damgård and Jurik, PKC 2001, section
4.2), batched by small exponents (Bellare, Garay and Rabin, EUROCRYPT 1998) and made non-interactive by a hash of the whole
statement (Fiat and Shamir 1986; the statement must be in it: Bernhard, Pereira and Warinschi, ASIACRYPT 2012).

Guarantee: a sender that convinces can be made to tell all m_j mod n (in the random oracle model, by rewinding). Two answers to
one A with challenges f and f' give (1 + n)^(dz1) h_s^(dz2) = C^(df). Decryption is a homomorphism onto Z_n that sends 1 + n to
1 and h_s, an n-th residue, to 0; 0 < |df| < 2^256 < p, q is invertible modulo n; so D(C) = dz1 / df mod n. No assumption on the
order of anything is used. D(C) = sum e_j D(c_j) for as many independent draws of e (by rewinding to the hash that made them)
as there are ciphertexts is a linear system with a determinant that is invertible modulo n but for probability N 2^-127
(Schwartz and Zippel), and its solution is all D(c_j). A proof says nothing about the m_j: z1 is uniform, z2 within 2^-128 of
a number that does not depend on R. It does not bound the m_j either: a sum out of range is seen when it is opened.

A key without h_s has rho_j = r_j^n: then P = prod r_j^(e_j), s is a random unit, A = (1 + n)^x s^n, z2 = s P^f mod n.
"""

import hashlib
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd

import gmpy2
from gmpy2 import mpz

from tacit.errors import BadInput, BadProof
from tacit.protect.paillier import PublicKey
from tacit.protect.powers import product_of_powers
from tacit.protect.randomisers import FixedBase

DOMAIN = b"tacit proof 1\n"
BATCH_BYTES = 16  # of an e_j
CHALLENGE_BITS = 256
HIDING_BITS = 128
COUNT_BITS = 24  # a report has fewer than 2^24 ciphertexts
WINDOW = 5  # of the table for h_s^z2: as dear as six exponentiations, then each costs a sixth of one
REMEMBERED = 4096  # proofs that held in this process; the same bytes hold again


@dataclass(frozen=True)
class Claim:
    """Who says to know what: the proof is for this and nothing else."""

    public: PublicKey
    run: str
    round: int
    client: str
    roster: str
    ciphertexts: Sequence[mpz] = field(repr=False)

    def seed(self) -> bytes:
        """A hash of all of it."""
        words = json.dumps([self.run, self.round, self.client, self.roster, self.public.shape, len(self.ciphertexts)])
        hashed = hashlib.sha256(DOMAIN + words.encode() + b"\n")
        hashed.update(self.public.to_bytes([self.public.n, self.public.h_s or mpz(0)]))
        hashed.update(self.public.to_bytes(self.ciphertexts))
        return hashed.digest()


def proof_bytes(public: PublicKey) -> int:
    """The length of a proof: the key's, whatever is proved."""
    return sum(_widths(public))


def prove(claim: Claim, messages: Sequence[int], secret: Sequence[mpz]) -> bytes:
    """The proof of who sealed `messages` with randomisers made from the numbers in `secret`."""
    public, seed, count = claim.public, claim.seed(), len(claim.ciphertexts)
    if not 0 < count == len(messages) == len(secret) < 1 << COUNT_BITS:
        raise BadInput(f"Expected a message and a secret number for each of {count} ciphertexts.")
    n, e = public.n, _coefficients(seed, count)
    m = sum(a * b for a, b in zip(e, messages, strict=True)) % n  # M
    x = mpz(secrets.randbelow(int(n)))
    if public.h_s is None:
        p = product_of_powers(secret, e, n, bits=8 * BATCH_BYTES)
        s = mpz(secrets.randbelow(int(n) - 1) + 1)
    else:
        p = sum(a * b for a, b in zip(e, secret, strict=True))  # R
        s = mpz(secrets.randbits(_response_bits(public) - 1))
    f = _challenge(public, seed, _commitment(public, x, s))
    z2 = s * gmpy2.powmod(p, f, n) % n if public.h_s is None else s + f * p
    numbers = zip((f, (x + f * m) % n, z2), _widths(public), strict=True)
    return b"".join(int(number).to_bytes(width, "big") for number, width in numbers)


def refuse_unproved(claim: Claim, proof: bytes) -> None:
    """Raises BadProof unless the claim's client has shown that it knows its messages. The ciphertexts are units below n^2."""
    seed = claim.seed()
    if not _held_before(seed, proof):
        if not holds(claim, proof, seed=seed):
            raise BadProof(
                f"The report of {claim.client!r} is refused: nothing shows that it knows what it sealed, so the ciphertexts may"
                " be another's."
            )
        _remember(seed, proof)


def holds(claim: Claim, proof: bytes, *, seed: bytes | None = None) -> bool:
    """Whether a proof is one of this claim: the work itself."""
    public, seed = claim.public, seed or claim.seed()
    if len(proof) != proof_bytes(public) or not 0 < len(claim.ciphertexts) < 1 << COUNT_BITS:
        return False
    a, b, _ = _widths(public)
    f, z1, z2 = (mpz(int.from_bytes(part, "big")) for part in (proof[:a], proof[a : a + b], proof[a + b :]))
    if z1 >= public.n or not _sized(public, z2):
        return False
    e = _coefficients(seed, len(claim.ciphertexts))
    c = product_of_powers(claim.ciphertexts, e, public.n_squared, bits=8 * BATCH_BYTES)
    if gcd(c, public.n) != 1:
        return False
    back = gmpy2.powmod(c, -f, public.n_squared)
    return _challenge(public, seed, _commitment(public, z1, z2) * back % public.n_squared) == f


def warm(public: PublicKey) -> None:
    """Makes the table of h_s now, for instance before a fork, so that all processes share it."""
    if public.h_s is not None:
        _table(public)


@lru_cache(maxsize=2)
def _table(public: PublicKey) -> FixedBase:
    if public.h_s is None:
        raise TypeError("a key without h_s has no powers of it")
    return FixedBase(public.h_s, public.n_squared, bits=_response_bits(public), window=WINDOW)


def _commitment(public: PublicKey, x: mpz, s: mpz) -> mpz:
    """(1 + n)^x h_s^s, or (1 + n)^x s^n."""
    hidden = _table(public).power(s) if public.h_s is not None else gmpy2.powmod(s, public.n, public.n_squared)
    return (1 + x * public.n) * hidden % public.n_squared


def _coefficients(seed: bytes, count: int) -> list[int]:
    raw = hashlib.shake_256(b"batch" + seed).digest(BATCH_BYTES * count)
    return [int.from_bytes(raw[at : at + BATCH_BYTES], "big") for at in range(0, len(raw), BATCH_BYTES)]


def _challenge(public: PublicKey, seed: bytes, commitment: mpz) -> mpz:
    raw = hashlib.sha256(b"challenge" + seed + public.to_bytes([commitment])).digest()
    return mpz(int.from_bytes(raw, "big"))


def _response_bits(public: PublicKey) -> int:
    """The bits of z2 = s + fR: s hides fR, which is below 2^(256 + 128 + 24) times a randomiser's exponent."""
    return CHALLENGE_BITS + 8 * BATCH_BYTES + COUNT_BITS + public.exponent_bits + HIDING_BITS + 1


def _sized(public: PublicKey, z2: mpz) -> bool:
    if public.h_s is None:
        return 0 < z2 < public.n and gcd(z2, public.n) == 1
    return z2.bit_length() <= _response_bits(public)


def _widths(public: PublicKey) -> tuple[int, int, int]:
    last = public.bits if public.h_s is None else _response_bits(public)
    return CHALLENGE_BITS // 8, (public.bits + 7) // 8, (last + 7) // 8


_HELD: dict[
    bytes, None
] = {}  # hashes of seed and proof, the oldest first: a party checks the same report several times


def _held_before(seed: bytes, proof: bytes) -> bool:
    return hashlib.sha256(seed + proof).digest() in _HELD


def _remember(seed: bytes, proof: bytes) -> None:
    while len(_HELD) >= REMEMBERED:
        del _HELD[next(iter(_HELD))]
    _HELD[hashlib.sha256(seed + proof).digest()] = None
