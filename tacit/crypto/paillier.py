"""Paillier's additive encryption (EUROCRYPT 1999) with g = n + 1: the public key seals and adds, the secret key opens.

    seal   c = (1 + mn) rho mod n^2        rho is an n-th residue that is used once
    add    c = c_1 c_2 mod n^2             opens to m_1 + m_2
    open   modulo p^2 and q^2 apart, then joined by the Chinese remainder theorem (Paillier 1999, section 7)

Guarantee: without the secret key a ciphertext says nothing about its message (IND-CPA), by decisional composite residuosity
and, for `ordinary` and `safe-prime`, that h_s^r with |n|/2-bit r looks like a random n-th residue (Damgård, Jurik, Nielsen
2010); for `short-exponent` by the stronger assumption of Ma, Han and Lei (ACSAC 2021), that it does in a secret subgroup of
`short_bits` bits. Ciphertexts are malleable on purpose and whoever opens is an oracle: `reports` and `proofs` settle who
sent what. Nothing here takes constant time."""

import contextlib
import hashlib
import mmap
import os
import secrets
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, reduce
from itertools import pairwise, product
from math import ceil, gcd
from operator import index
from typing import Literal

import gmpy2
from gmpy2 import mpz

from tacit import check, store
from tacit.errors import BadCiphertext, BadInput, KeyRefused, SumOverflow

Shape = Literal["ordinary", "short-exponent", "safe-prime"]
SHAPES: tuple[Shape, ...] = ("ordinary", "short-exponent", "safe-prime")
SIZES = (2048, 3072, 4096)  # 112, 128 and about 150 bits of security (NIST SP 800-57 part 1, table 2)
LEAST_BITS = SIZES[0]
SPARE_BITS = 2  # a plaintext is below n / 2, so a sum that has run over by less than its double is seen

SMALL = 1 << 20  # n has no prime factor below
MOST_BITS = 16_384  # a larger n takes hours to try, and is nothing that Tacit makes
RATIOS = tuple((a, b) for a, b in product(range(1, 9), repeat=2) if gcd(a, b) == 1)
STEPS = 16  # of Fermat's method, for each ratio
CLOSENESS_BITS = 100  # |p - q| > 2^(bits/2 - 100), FIPS 186-5, A.1.1
AGAIN = "make a new key"

TABLE_BYTES = 128 << 20  # the most a table takes: 121 MB for an ordinary key of 3072 bits, 40 for a short-exponent one
MOST_WINDOW = 16

Compute = Callable[[int, int], Iterable[mpz]]  # the integers number start to stop - 1
NO_PROCESS = -1
WORTH_A_FORK = 8  # fewer integers than this are computed in place: a fork costs about as much


def to_octets(numbers: Iterable[int], *, width: int) -> bytes:
    """The integers one after another, `width` bytes each, big-endian (I2OSP, RFC 8017). Raises: OverflowError."""
    return b"".join(int(number).to_bytes(width, "big") for number in numbers)


def from_octets(raw: bytes, *, width: int) -> list[mpz]:
    """What `to_octets` wrote. Assumes: a length that is a multiple of `width`; a rest would be read as one more integer."""
    return [mpz(int.from_bytes(raw[at : at + width], "big")) for at in range(0, len(raw), width)]


class Comb:
    """Powers of one base: Lim and Lee's comb (CRYPTO 1994), `teeth` rows of bits in `blocks` with a table of 2^teeth numbers
    each."""

    def __init__(self, base: mpz, modulus: mpz, *, bits: int, teeth: int, blocks: int):
        self.modulus, self.squarings = modulus, -(-bits // (teeth * blocks))
        self.columns = self.squarings * blocks
        self.bits = self.columns * teeth
        powers = [base]  # base^(2^(k squarings))
        for _ in range(teeth * blocks - 1):
            powers.append(gmpy2.powmod(powers[-1], 1 << self.squarings, modulus))
        self.tables: list[list[mpz]] = []
        for block in range(blocks):
            table = [mpz(1)]
            for tooth in range(teeth):
                table += [entry * powers[tooth * blocks + block] % modulus for entry in table]
            self.tables.append(table)

    def power(self, exponent: int | mpz) -> mpz:
        """base^exponent. Raises: ValueError for an exponent that is negative or longer than `bits`: never a wrong power."""
        if exponent < 0 or exponent.bit_length() > self.bits:
            raise ValueError("an exponent is longer than its comb")
        digits, total = format(int(exponent), f"0{self.bits}b"), mpz(1)
        for row in range(self.squarings):  # from the top
            total = total * total % self.modulus
            for block, table in enumerate(reversed(self.tables)):
                total = total * table[int(digits[block * self.squarings + row :: self.columns], 2)] % self.modulus
        return total


def compute(work: Compute, count: int, *, width: int, workers: int | None = None) -> list[mpz]:
    """The integers of `work(0, count)` in order, each below 256^width, by forked processes on `workers` cores (all if None).
    A process that fails or cannot be started is no loss: its part is computed again here; none outlives the call. Assumes:
    what `work` draws, it draws from the operating system: a fork copies a generator."""
    workers = min(workers or store.cores(), count)
    if workers < 2 or count < WORTH_A_FORK:
        return list(work(0, count))
    memory, values = mmap.mmap(-1, count * width), list[mpz]()
    ranges = list(pairwise(count * k // workers for k in range(workers + 1)))
    children: list[int] = []
    try:
        children += (_fork(work, start, stop, memory, width) for start, stop in ranges)
        for start, stop in ranges:
            done = _succeeded(children[0])
            del children[0]
            raw = memory[start * width : stop * width]
            values += from_octets(raw, width=width) if done else list(work(start, stop))
        return values
    finally:
        for pid in children:
            if pid != NO_PROCESS:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                _succeeded(pid)


def _fork(work: Compute, start: int, stop: int, memory: mmap.mmap, width: int) -> int:
    try:
        pid = os.fork()
    except OSError:  # no process or memory to be had: the caller computes this part itself
        return NO_PROCESS
    if pid:
        return pid
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for position, value in zip(range(start, stop), work(start, stop), strict=True):
            memory[position * width : (position + 1) * width] = int(value).to_bytes(width, "big")
        os._exit(0)
    finally:
        os._exit(1)  # whatever happened: nothing of the parent's may run here


def _succeeded(pid: int) -> bool:
    try:
        return pid != NO_PROCESS and os.waitpid(pid, 0)[1] == 0
    except ChildProcessError:  # a program that ignores SIGCHLD never hears how its processes ended
        return False


def short_bits(bits: int) -> int:
    """The bits of r under a `short-exponent` key: at least four times the security of n, as one of the two short primes is
    found in the square root of its size (Ma, Han and Lei, ACSAC 2021)."""
    return {2048: 448, 3072: 512, 4096: 640}.get(bits, bits // 4)


@dataclass(frozen=True)
class PublicKey:
    """n, and h_s for fast randomisers: all that is needed to seal and to add; without `h_s` (a key made elsewhere)
    randomisers are r^n. That n is a product of two random primes which nobody kept is the maker's word. Raises: KeyRefused
    for a weak key; BadInput."""

    n: mpz = field(repr=False)
    shape: Shape = "ordinary"
    h_s: mpz | None = field(default=None, repr=False)
    least_bits: int = field(default=LEAST_BITS, repr=False, compare=False)  # for tests alone

    def __post_init__(self) -> None:
        n, h_s = self.n, self.h_s
        check.one_of(SHAPES, shape=self.shape)
        if self.bits < self.least_bits:
            raise KeyRefused(f"A key of {self.bits} bits can be broken: make one of at least {self.least_bits} bits.")
        if self.bits > MOST_BITS:
            raise KeyRefused(f"A key of {self.bits} bits is too large to use: make one of 3072 bits.")
        if n % 2 == 0 or gmpy2.is_prime(n) or gmpy2.is_power(n):
            raise KeyRefused(f"The key's n is not a product of two odd primes: {AGAIN}.")
        if gcd(_primorial() % n, n) != 1:
            raise KeyRefused(f"The key's n has a factor below 2^20, so it can be factored: {AGAIN}.")
        # 4abn is a difference of two squares that is found in a few steps where n has factors in a ratio near a/b
        tries = ((4 * a * b * n, gmpy2.isqrt(4 * a * b * n) + step) for a, b in RATIOS for step in range(1, STEPS + 1))
        if any(gmpy2.is_square(root**2 - target) for target, root in tries):
            raise KeyRefused(f"The key's n was made of primes that are close to each other or to a fraction: {AGAIN}.")
        if h_s is None:
            if self.shape == "short-exponent":
                raise KeyRefused("A short-exponent key needs its h_s: take the public key file that was made with it.")
            return
        residue = 12 if self.shape == "safe-prime" else 4  # p = q = 3 modulo 4; a safe prime is 2 modulo 3 as well
        if n % residue != 1:
            raise KeyRefused(f"The key's n does not have the shape {self.shape!r}: {AGAIN}.")
        hides = 1 < h_s < n * n - 1 and gcd(h_s, n) == 1 and h_s % n not in (1, n - 1)
        if not hides or gmpy2.jacobi(h_s, n) != 1:  # h_s = (-x^2)^n, and -1 has Jacobi symbol 1
            raise KeyRefused(f"The key's h_s cannot hide a message: {AGAIN}.")

    @property
    def bits(self) -> int:
        return self.n.bit_length()

    @property
    def plaintext_bits(self) -> int:
        return self.bits - SPARE_BITS

    @property
    def exponent_bits(self) -> int:
        return short_bits(self.bits) if self.shape == "short-exponent" else (self.bits + 1) // 2

    @property
    def ciphertext_bytes(self) -> int:
        return (2 * self.bits + 7) // 8

    @cached_property
    def n_squared(self) -> mpz:
        return self.n * self.n

    @cached_property
    def id(self) -> str:
        """A fingerprint of shape, n and h_s: 128 bits of SHA-256, in hexadecimal. Every report's signature covers it."""
        text = f"tacit paillier {self.shape} {self.n:x} {self.h_s or 0:x}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def seal(self, messages: Sequence[int], randomisers: "Randomisers") -> list[mpz]:
        return self.seal_with(messages, randomisers.take(len(messages)))

    def seal_with(self, messages: Sequence[int], values: Sequence[mpz]) -> list[mpz]:
        """A ciphertext per message, under randomisers that are used nowhere else. Raises: BadInput for what is no integer in
        range."""
        n, n_squared, limit = self.n, self.n_squared, 1 << self.plaintext_bits
        try:
            numbers = [mpz(index(m)) for m in messages]  # a float, even a whole one, is not a message
        except TypeError as error:
            raise BadInput(f"Expected whole numbers to seal ({error}).") from error
        if any(not 0 <= m < limit for m in numbers):
            raise BadInput(f"A message is outside 0 to 2^{self.plaintext_bits} - 1: pack it for this key.")
        return [(1 + m * n) * rho % n_squared for m, rho in zip(numbers, values, strict=True)]

    def add(self, rows: Iterable[Sequence[mpz]]) -> list[mpz]:
        """Ciphertexts of the sums modulo n of rows that `validate` let pass, by position. Raises: BadInput for no or unequal
        rows."""
        rows = list(rows)
        if not rows or any(len(row) != len(rows[0]) for row in rows):
            raise BadInput(f"Expected rows of one length to add, got lengths {sorted({len(row) for row in rows})}.")
        return [reduce(lambda a, b: a * b % self.n_squared, column) for column in zip(*rows, strict=True)]

    def to_bytes(self, ciphertexts: Iterable[mpz]) -> bytes:
        """Ciphertexts as big-endian numbers of one width: the length says how many there are. Raises: OverflowError."""
        return to_octets(ciphertexts, width=self.ciphertext_bytes)

    def from_bytes(self, raw: bytes) -> list[mpz]:
        """What `to_bytes` wrote, checked by `validate`. Raises: BadCiphertext, also for no bytes or too few."""
        width = self.ciphertext_bytes
        if not raw or len(raw) % width:
            raise BadCiphertext(f"{len(raw)} bytes are not a number of whole ciphertexts of {width} bytes.")
        ciphertexts = from_octets(raw, width=width)
        self.validate(ciphertexts)
        return ciphertexts

    def validate(self, ciphertexts: Sequence[mpz]) -> None:
        """Refuses what is not a unit modulo n^2, so that all that passes opens. Raises: BadCiphertext, naming the first."""
        for position, c in enumerate(ciphertexts):
            if not 0 < c < self.n_squared:
                raise BadCiphertext(f"Ciphertext {position} is outside 0 < c < n^2: refuse its sender.")
        product = reduce(lambda a, b: a * b % self.n, ciphertexts, mpz(1))  # one gcd instead of one for each
        if gcd(product, self.n) != 1:
            position = next(position for position, c in enumerate(ciphertexts) if gcd(c, self.n) != 1)
            raise BadCiphertext(f"Ciphertext {position} has a factor in common with n: refuse its sender.")


@cache
def _primorial() -> mpz:
    return gmpy2.primorial(SMALL)


def best_window(bits: int, *, count: int, element_bytes: int) -> int:
    """The window with the fewest multiplications for a table and `count` powers, within TABLE_BYTES."""
    allowed = [w for w in range(1, MOST_WINDOW) if ceil(bits / w) * element_bytes << w <= TABLE_BYTES] or [1]
    return min(allowed, key=lambda w: ceil(bits / w) * ((1 << w) + count))


class Randomisers:
    """n-th residues modulo n^2 for one public key, each drawn when it is taken, so that none is handed out twice. rho = h_s^r
    by a table whose size follows from how many are `expected`; without h_s r^n. With the `secret` key they take three
    quarters of the time. Raises: BadInput, KeyRefused."""

    def __init__(
        self,
        public: PublicKey,
        *,
        secret: "SecretKey | None" = None,
        expected: int = 10_000,
        workers: int | None = None,
    ):
        check.at_least(1, expected=expected)
        if secret is not None and secret.public != public:
            raise KeyRefused("The secret key does not belong to the public key: take both from the same folder.")
        self.public, self.workers, self._expected = public, workers or store.cores(), expected
        self._moduli: tuple[mpz, ...] = (secret.p**2, secret.q**2) if secret else (public.n_squared,)
        self._inverse = gmpy2.invert(*self._moduli) if secret else mpz(0)
        self._tables: list[Comb] = []

    def warm(self) -> None:
        """Makes the tables now, for instance before a fork, so that all processes share them."""
        if self._tables or self.public.h_s is None:
            return
        bits, width = self.public.exponent_bits, self.public.ciphertext_bytes
        window = best_window(bits, count=self._expected, element_bytes=width)
        size = {"bits": bits, "teeth": window, "blocks": ceil(bits / window)}  # so many blocks that nothing is squared
        self._tables = [Comb(self.public.h_s % modulus, modulus, **size) for modulus in self._moduli]

    def take(self, count: int) -> list[mpz]:
        return [value for value, _ in self.take_known(count)]

    def take_known(self, count: int) -> list[tuple[mpz, mpz]]:
        """New randomisers, each with the r it was made from: forget r after the proof, as who has it reads the message."""
        self.warm()
        if self.public.h_s is not None:
            exponents = [mpz(secrets.randbits(self.public.exponent_bits)) for _ in range(count)]
        else:
            exponents = [mpz(secrets.randbelow(int(self.public.n) - 1) + 1) for _ in range(count)]
        values = compute(
            lambda start, stop: map(self._power, exponents[start:stop]),
            count,
            width=self.public.ciphertext_bytes,
            workers=self.workers,
        )
        return list(zip(values, exponents, strict=True))

    def _power(self, exponent: mpz) -> mpz:
        if not self._tables:
            return gmpy2.powmod(exponent, self.public.n, self.public.n_squared)
        value, *rest = (table.power(exponent) for table in self._tables)
        if not rest:
            return value
        p_squared, q_squared = self._moduli
        return value + p_squared * ((rest[0] - value) * self._inverse % q_squared)


@dataclass(frozen=True)
class SecretKey:
    """The primes of a public key, and the short ones behind them. `reports.Opener` bounds what a holder opens. Raises:
    KeyRefused."""

    public: PublicKey
    p: mpz = field(repr=False)
    q: mpz = field(repr=False)
    short: tuple[mpz, mpz] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        n, p, q, h_s, short = self.public.n, self.p, self.q, self.public.h_s, self.short
        shape, half = self.public.shape, (n.bit_length() + 1) // 2
        if p * q != n or p == q or not (_prime(p) and _prime(q)):
            raise KeyRefused("The secret key does not belong to its public key: take both from the same file.")
        if (short is not None) != (shape == "short-exponent"):
            raise KeyRefused(f"The secret key does not have the shape {shape!r} of its public key.")
        pairs = zip((p, q), short or (), strict=bool(short))
        if not all(s > 2 and (prime - 1) % (2 * s) == 0 and _prime(s) for prime, s in pairs):
            raise KeyRefused("The short primes do not belong to the secret key: take both from the same file.")
        if p.bit_length() != q.bit_length() or p.bit_length() != half:
            raise KeyRefused(f"The secret key's primes have {p.bit_length()} and {q.bit_length()} bits: {AGAIN}.")
        if any(abs(a * p - b * q).bit_length() <= half - CLOSENESS_BITS for a, b in RATIOS):
            raise KeyRefused(f"The secret key's primes are close to each other or to a fraction: {AGAIN}.")
        if gcd(n, (p - 1) * (q - 1)) != 1:
            raise KeyRefused(f"The secret key's n has a factor in common with (p - 1)(q - 1): {AGAIN}.")
        if h_s is None:
            return
        right = p % 4 == q % 4 == 3 and gcd(p - 1, q - 1) == 2
        if not right or (shape == "safe-prime" and not (_prime(p >> 1) and _prime(q >> 1))):
            raise KeyRefused(f"The secret key's primes do not have the shape {shape!r}: {AGAIN}.")
        for prime, order in zip((p, q), self._orders, strict=True):
            residue = gmpy2.powmod(h_s, order, prime * prime) == 1  # n-th residues are those without a part of order p
            if not residue or h_s % prime in (1, prime - 1):
                raise KeyRefused(f"The key's h_s is not the n-th power of a hidden number: {AGAIN}.")

    @property
    def _orders(self) -> tuple[mpz, mpz]:
        """Exponents that remove every randomiser modulo p and modulo q."""
        return (2 * self.short[0], 2 * self.short[1]) if self.short else (self.p - 1, self.q - 1)

    @cached_property
    def _halves(self) -> tuple[tuple[mpz, mpz, mpz, mpz], ...]:
        # for each prime: the prime, its square, its exponent, and 1 / L((1 + n)^exponent)
        pairs = ((self.p, self.q), (self.q, self.p))
        # (1 + n)^e = 1 + epq modulo p^2, so L is eq
        return tuple((p, p * p, e, gmpy2.invert(e * q, p)) for (p, q), e in zip(pairs, self._orders, strict=True))

    def decrypt(self, c: mpz) -> mpz:
        """The message modulo n of a unit modulo n^2. Raises: BadCiphertext where a short-exponent key's own h_s did not seal it."""
        parts = []
        for p, p_squared, exponent, inverse in self._halves:
            u, rest = divmod(gmpy2.powmod(c, exponent, p_squared) - 1, p)
            if rest:  # only a short exponent can fail to remove what it was not made for
                why = "use the public key file as it is"
                raise BadCiphertext(f"A ciphertext was not sealed with this key's h_s: {why}.")
            parts.append(u * inverse % p)
        m_p, m_q = parts
        return m_p + self.p * ((m_q - m_p) * gmpy2.invert(self.p, self.q) % self.q)

    def open(self, ciphertexts: Sequence[mpz], *, workers: int | None = None) -> list[mpz]:
        """The messages, in order, on all cores unless `workers` says how many. Raises: BadCiphertext, SumOverflow."""
        messages = self._messages(self.decrypt, ciphertexts, workers)
        refuse_overflow(self.public, messages)
        return messages

    def open_any(self, ciphertexts: Sequence[mpz]) -> list[mpz]:
        """The messages modulo n, and n where there is none: a holder answers alike whatever the sum is. Raises: BadCiphertext."""

        def decrypt(c: mpz) -> mpz:
            try:
                return self.decrypt(c)
            except BadCiphertext:
                return self.public.n

        return self._messages(decrypt, ciphertexts, None)

    def _messages(self, decrypt: Callable[[mpz], mpz], ciphertexts: Sequence[mpz], workers: int | None) -> list[mpz]:
        self.public.validate(ciphertexts)
        width = (self.public.bits + 7) // 8
        return compute(lambda a, b: map(decrypt, ciphertexts[a:b]), len(ciphertexts), width=width, workers=workers)


def _prime(number: mpz) -> bool:
    return number > 2 and gmpy2.is_prime(number)


def refuse_overflow(public: PublicKey, opened: Sequence[mpz]) -> None:
    """Refuses sums from 2^plaintext_bits up; one of n or more can fall back below, so `Lanes` looks again. Raises: SumOverflow."""
    if any(m.bit_length() > public.plaintext_bits for m in opened):
        raise SumOverflow(f"A sum is not below 2^{public.plaintext_bits}: fewer reports or more headroom are needed.")
