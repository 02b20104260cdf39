"""Opening by t of n (the threshold variant of Damgård and Jurik, PKC 2001, s = 1). A dealer, who is trusted and must forget
the secret key, shares d (d = 0 mod p'q', d = 1 mod n) by a polynomial modulo n p'q'. Share i answers c with c^(2 Delta s_i),
and one proof (Chaum and Pedersen, hashed) for the product of its ciphertexts with random exponents, sound because the squares
modulo n^2 have an order without small factors: hence safe primes. Guarantee: t - 1 shares say nothing about d, a wrong answer
is named, and 2t > n, so that no two groups open two sums of one round."""

import hashlib
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import factorial, prod

import gmpy2
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from gmpy2 import mpz

from tacit.crypto.paillier import PublicKey, SecretKey, compute, refuse_overflow
from tacit.crypto.proofs import product_of_powers, small_exponents
from tacit.errors import BadInput, KeyRefused, WrongShare

MOST_SHARES = 100
BATCH_BYTES = 16  # a wrong answer passes the batch with probability 2^-128
CHALLENGE_BITS = 256
HIDING_BITS = 128  # the proof's response is within 2^-128 of saying nothing about the share
PRIME = 2**256 + 297  # the least prime above 2^256: every seed of 32 bytes is one field element
SEED_BYTES, SHARE_BYTES = 32, 33  # a field element may need one bit more than 32 bytes


@dataclass(frozen=True)
class Verification:
    """What everybody may know of a split key: v, and v_i = v^(Delta s_i) for every share. Raises: KeyRefused, BadInput."""

    public: PublicKey
    threshold: int
    v: mpz = field(repr=False)
    keys: tuple[mpz, ...] = field(repr=False)

    def __post_init__(self) -> None:
        _check_numbers(self.threshold, self.of)
        n = self.public.n
        units = all(1 < x < self.public.n_squared and gmpy2.gcd(x, n) == 1 for x in (self.v, *self.keys))
        if not units or gmpy2.jacobi(self.v, n) != 1:
            text = "The verification key is not one of a split key: take the file that was made with the shares."
            raise KeyRefused(text)

    @property
    def of(self) -> int:
        return len(self.keys)

    @property
    def delta(self) -> int:
        return factorial(self.of)

    @property
    def response_bits(self) -> int:
        """The bits of a proof's z: it hides e Delta s_i, which is below 2^CHALLENGE_BITS Delta n^2, by HIDING_BITS more."""
        return 2 * self.public.bits + int(self.delta).bit_length() + CHALLENGE_BITS + HIDING_BITS + 1

    def to_bytes(self, partial: "Partial") -> bytes:
        """An answer for the wire, of a length that says only how many ciphertexts it is for."""
        numbers = zip((partial.index, partial.e, partial.z), self._head, strict=True)
        return b"".join(int(x).to_bytes(width, "big") for x, width in numbers) + self.public.to_bytes(partial.values)

    def from_bytes(self, raw: bytes) -> "Partial":
        offsets = list(accumulate(self._head, initial=0))
        index, e, z = (mpz(int.from_bytes(raw[start:stop], "big")) for start, stop in pairwise(offsets))
        return Partial(int(index), tuple(self.public.from_bytes(raw[offsets[-1] :])), e, z)

    @property
    def _head(self) -> tuple[int, int, int]:
        return 2, CHALLENGE_BITS // 8, (self.response_bits + 7) // 8


@dataclass(frozen=True)
class Partial:
    """One share's answer to a list of ciphertexts, and the proof (e, z) that it is the right one."""

    index: int
    values: tuple[mpz, ...] = field(repr=False)
    e: mpz = field(repr=False)
    z: mpz = field(repr=False)


@dataclass(frozen=True)
class Share:
    """A share of a secret key: s_i = f(i). Never printed. Guarantee: alone it opens nothing, and with t - 2 others neither."""

    verification: Verification
    index: int
    value: mpz = field(repr=False)

    def genuine(self) -> bool:
        """Whether it is what its verification key was made from: v^(Delta s_i) = v_i."""
        verification = self.verification
        if not 0 <= self.value < verification.public.n_squared:  # it is below n p'q'
            return False
        raised = gmpy2.powmod(verification.v, verification.delta * self.value, verification.public.n_squared)
        return 1 <= self.index <= verification.of and raised == verification.keys[self.index - 1]

    def open(self, ciphertexts: Sequence[mpz], *, workers: int | None = None) -> Partial:
        """This share's part of opening, c^(2 Delta s_i) for every ciphertext, with one proof for all, which says nothing
        about the share beyond its verification key (within 2^-128). Raises: BadCiphertext."""
        public, hidden = self.verification.public, self.verification.delta * self.value
        public.validate(ciphertexts)

        def powers(start: int, stop: int) -> Iterator[mpz]:
            return (gmpy2.powmod(c, 2 * hidden, public.n_squared) for c in ciphertexts[start:stop])

        values = compute(powers, len(ciphertexts), width=public.ciphertext_bytes, workers=workers)
        base, image, seed = _batch(self.verification, self.index, ciphertexts, values)
        r = mpz(secrets.randbits(self.verification.response_bits - 1))
        first = (gmpy2.powmod(x, r, public.n_squared) for x in (base, self.verification.v))
        e = _challenge(public, seed, base, image, *first)
        return Partial(self.index, tuple(values), e, r + e * hidden)


def deal(secret: SecretKey, *, threshold: int, of: int) -> list[Share]:
    """Splits a safe-prime key into `of` shares of which `threshold` open; fewer say nothing. Raises: KeyRefused, BadInput."""
    _check_numbers(threshold, of)
    public = secret.public
    if public.shape != "safe-prime":
        text = f"Only a key of shape safe-prime can be split, this one is {public.shape}"
        raise KeyRefused(f"{text}: make one with `tacit keys DIR --new safe-prime`.")
    m = (secret.p - 1) // 2 * ((secret.q - 1) // 2)
    order = public.n * m
    d = m * gmpy2.invert(m, public.n)
    coefficients = [d, *(mpz(secrets.randbelow(int(order))) for _ in range(threshold - 1))]
    values = [sum(a * mpz(i) ** k for k, a in enumerate(coefficients)) % order for i in range(1, of + 1)]
    v = gmpy2.powmod(secrets.randbelow(int(public.n_squared) - 2) + 2, 2, public.n_squared)
    keys = tuple(gmpy2.powmod(v, factorial(of) * value, public.n_squared) for value in values)
    verification = Verification(public, threshold, v, keys)
    return [Share(verification, i + 1, value) for i, value in enumerate(values)]


def refuse_wrong(verification: Verification, ciphertexts: Sequence[mpz], partial: Partial) -> None:
    """Refuses an answer that is not its share's for these ciphertexts: a wrong one passes with probability about 2^-128 for
    each hash that its maker tries. Wrong is meant up to a factor of order two, such as -1, which changes no message: `join`
    takes even powers. Raises: WrongShare, naming the share; BadCiphertext."""
    public, i = verification.public, partial.index
    wrong = WrongShare(f"Share {i} answered with something else than its part of this sum: leave it out.")
    sized = 0 <= partial.e < 1 << CHALLENGE_BITS and 0 <= partial.z < 1 << verification.response_bits
    if not sized or not 1 <= i <= verification.of or len(partial.values) != len(ciphertexts):
        raise wrong
    public.validate(partial.values)
    base, image, seed = _batch(verification, i, ciphertexts, partial.values)
    pairs = ((base, image), (verification.v, verification.keys[i - 1]))
    modulus = public.n_squared
    first = [gmpy2.powmod(x, partial.z, modulus) * gmpy2.powmod(y, -partial.e, modulus) % modulus for x, y in pairs]
    if _challenge(public, seed, base, image, *first) != partial.e:
        raise wrong


def combine(verification: Verification, ciphertexts: Sequence[mpz], partials: Iterable[Partial]) -> list[mpz]:
    """The messages, from `threshold` answers, each of which is checked. Raises: BadInput, WrongShare, BadCiphertext,
    SumOverflow."""
    answers = {partial.index: partial for partial in partials}
    if len(answers) < verification.threshold:
        raise BadInput(f"{len(answers)} shares answered, {verification.threshold} are needed to open.")
    for partial in answers.values():
        refuse_wrong(verification, ciphertexts, partial)
    return join(verification, answers.values())


def join(verification: Verification, partials: Iterable[Partial]) -> list[mpz]:
    """The messages, from the first `threshold` answers by index. Raises: SumOverflow. Assumes: `refuse_wrong` let every
    answer pass, as one wrong answer makes every message wrong, and nothing shows it."""
    answers = {partial.index: partial for partial in partials}
    public, delta = verification.public, verification.delta
    chosen = sorted(answers)[: verification.threshold]
    powers = {i: 2 * delta * prod(j for j in chosen if j != i) // prod(j - i for j in chosen if j != i) for i in chosen}
    inverse = gmpy2.invert(mpz(4 * delta**2), public.n)
    opened = []
    for position in range(len(answers[chosen[0]].values)):
        joined = mpz(1)
        for i in chosen:
            joined = joined * gmpy2.powmod(answers[i].values[position], powers[i], public.n_squared) % public.n_squared
        opened.append((joined - 1) // public.n * inverse % public.n)  # c^(4 Delta^2 d) = 1 + 4 Delta^2 m n
    refuse_overflow(public, opened)
    return opened


def _batch(
    verification: Verification, index: int, ciphertexts: Sequence[mpz], values: Sequence[mpz]
) -> tuple[mpz, mpz, bytes]:
    # the products of c^(4 rho) and of c_i^(2 rho), the second the first to the power Delta s_i; and a hash of it all
    public = verification.public
    n_squared, sizes = public.n_squared, f"{verification.threshold} {verification.of} {index} {len(ciphertexts)}"
    hashed = hashlib.sha256(f"tacit threshold {public.id} {sizes}\n".encode())
    hashed.update(public.to_bytes([verification.v, verification.keys[index - 1], *ciphertexts, *values]))
    seed = hashed.digest()
    rho = small_exponents(seed, len(ciphertexts), bits=8 * BATCH_BYTES)
    base, image = (product_of_powers(one, rho, n_squared, bits=8 * BATCH_BYTES) for one in (ciphertexts, values))
    return gmpy2.powmod(base, 4, n_squared), gmpy2.powmod(image, 2, n_squared), seed


def _challenge(public: PublicKey, seed: bytes, *numbers: mpz) -> mpz:
    return mpz(int.from_bytes(hashlib.sha256(b"proof" + seed + public.to_bytes(numbers)).digest(), "big"))


def fewest_shares(*, of: int, colluding: int) -> int:
    """The smallest threshold t with 2t > n + c: two sums of one round need a common holder who is not among c colluders."""
    return (of + colluding) // 2 + 1


def _check_numbers(threshold: int, of: int) -> None:
    if not 2 <= of <= MOST_SHARES or not of < 2 * threshold <= 2 * of:
        raise BadInput(
            f"Expected 2 to {MOST_SHARES} shares and a threshold of more than half of them (two groups without a common "
            f"member could open two sums of one round), got {threshold} of {of}."
        )


# Shamir's shares of a seed of 32 bytes, for masks.


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
