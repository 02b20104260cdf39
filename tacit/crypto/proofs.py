"""A proof that the sender of a report knows what it sealed, one for all its ciphertexts; `unproved` checks those of a round.

    c_j = (1 + n)^(m_j) rho_j, rho_j = h_s^(r_j)            seed = H(run, round, client, roster, key, all c_j)
    A = (1 + n)^x h_s^s, x random mod n, s random           e_j = 128 bits each, from XOF(seed, A)
    sent: A, z1 = x + sum e_j m_j mod n, z2 = s + sum e_j r_j; s is 128 bits longer than the sum
    checked: (1 + n)^(z1) h_s^(z2) = +-A prod c_j^(e_j)

Source: Schnorr 1991 for a Paillier ciphertext (Damgård and Jurik, PKC 2001, section 4.2). Guarantee (docs/derivations.md):
a forger with Q hashes succeeds with probability about Q 2^-127, and a proof says nothing about the m_j. It does not bound
them."""

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import gmpy2
from gmpy2 import mpz

from tacit.crypto.paillier import Comb, PublicKey, from_octets
from tacit.errors import BadInput, BadProof

DOMAIN = b"tacit proof 2\n"
COEFFICIENT_BITS = 128  # of an e_j, and of a checker's weight
HIDING_BITS = 128
COUNT_BITS = 24  # a report has fewer than 2^24 ciphertexts
REPORT_BITS = 12  # 2^12 reports may be checked by one equation
TEETH, BLOCKS = 11, 4  # of the comb for h_s: 6 MB, as dear as five exponentiations, then each costs a tenth of one
WIDEST_DIGIT = 12
TOGETHER = 1 << REPORT_BITS  # reports in one equation
FEW = 4  # ciphertexts of a report up to which one product with exponents of 256 bits is cheaper than two steps of 128
REMEMBERED = 4096  # proofs that held in this process; the same bytes hold again
_HELD: dict[
    bytes, None
] = {}  # hashes of seed and proof, the oldest first: a party checks the same report several times


def product_of_powers(bases: Sequence[mpz], exponents: Sequence[int], modulus: mpz, *, bits: int) -> mpz:
    """prod_i bases[i]^exponents[i] modulo `modulus`, by Pippenger's buckets (SIAM J. Comput. 9(2), 1980), digit by digit from
    the top. Assumes: 0 <= exponent < 2^bits, and public exponents: the time depends on them."""
    costs = {width: -(-bits // width) * (len(bases) + 2 ** (width + 1)) for width in range(1, WIDEST_DIGIT)}
    width = min(costs, key=lambda width: costs[width])
    total, mask = mpz(1), (1 << width) - 1
    for shift in range((bits - 1) // width * width, -1, -width):
        buckets: dict[int, mpz] = {}
        for base, exponent in zip(bases, exponents, strict=True):
            digit = exponent >> shift & mask
            if digit:
                buckets[digit] = buckets[digit] * base % modulus if digit in buckets else base
        running = weighed = mpz(1)
        for digit in range(max(buckets, default=0), 0, -1):
            running = running * buckets.get(digit, 1) % modulus
            weighed = weighed * running % modulus
        for _ in range(width):
            total = total * total % modulus
        total = total * weighed % modulus
    return total


def small_exponents(seed: bytes, count: int, *, bits: int) -> list[int]:
    """`count` numbers of `bits` bits, as a random oracle's, by which a batch stands for its members (the small exponents test
    of Bellare, Garay and Rabin, EUROCRYPT 1998). Assumes: the seed is a hash of all that is batched."""
    width = bits // 8
    return [int(e) for e in from_octets(hashlib.shake_256(b"batch" + seed).digest(width * count), width=width)]


@dataclass(frozen=True)
class Claim:
    """Who says to know what. Where it is checked, all but the ciphertexts is the checker's own knowledge."""

    public: PublicKey
    run: str
    round: int
    client: str
    roster: str
    ciphertexts: Sequence[mpz] = field(repr=False)

    def seed(self) -> bytes:
        """A hash of all of it, with fixed widths and the count before them: a proof cannot be carried to another claim."""
        words = json.dumps([self.run, self.round, self.client, self.roster, self.public.shape, len(self.ciphertexts)])
        hashed = hashlib.sha256(DOMAIN + words.encode() + b"\n")
        hashed.update(self.public.to_bytes([self.public.n, self.public.h_s or mpz(0)]))
        hashed.update(self.public.to_bytes(self.ciphertexts))
        return hashed.digest()


@dataclass(frozen=True, eq=False)
class Equation:
    """(1 + n)^z1 h_s^z2 = +-A prod c_j^(e_j) modulo n^2, which holds where a claim is proved; A is the commitment."""

    commitment: mpz
    ciphertexts: Sequence[mpz]
    coefficients: Sequence[int]
    z1: mpz
    z2: mpz


def proof_bytes(public: PublicKey) -> int:
    return sum(_widths(public))


def prove(claim: Claim, messages: Sequence[int], exponents: Sequence[mpz]) -> bytes:
    """The proof of who sealed `messages` with randomisers made from `exponents` (`Randomisers.take_known`). Guarantee: it
    says nothing about either (within 2^-128), and does not hold of others than the claim's. Raises: BadInput for another
    number of messages or exponents than ciphertexts, for none, and for 2^24 or more."""
    public, count = claim.public, len(claim.ciphertexts)
    if not 0 < count == len(messages) == len(exponents) < 1 << COUNT_BITS:
        raise BadInput(f"Expected a message and a secret number for each of {count} ciphertexts.")
    n, x = public.n, mpz(secrets.randbelow(int(public.n)))
    if public.h_s is None:
        s = mpz(secrets.randbelow(int(n) - 1) + 1)
        hidden = gmpy2.powmod(s, n, public.n_squared)
    else:
        s = mpz(secrets.randbits(response_bits(public) - 1))
        hidden = comb(public).power(s)
    commitment = (1 + x * n) * hidden % public.n_squared  # A
    e = coefficients(public, claim.seed(), commitment, count)
    z1 = (x + sum(a * b for a, b in zip(e, messages, strict=True))) % n
    if public.h_s is None:
        z2 = s * product_of_powers(exponents, e, n, bits=COEFFICIENT_BITS) % n
    else:
        z2 = s + sum(a * b for a, b in zip(e, exponents, strict=True))
    return proof_to_bytes(public, commitment, z1, z2)


def proof_to_bytes(public: PublicKey, commitment: mpz, z1: mpz, z2: mpz) -> bytes:
    numbers = zip((commitment, z1, z2), _widths(public), strict=True)
    return b"".join(int(number).to_bytes(width, "big") for number, width in numbers)


def equation(claim: Claim, proof: bytes, *, seed: bytes) -> Equation:
    """What has to hold for this claim, whose `seed` is known. Raises: BadProof for a number out of its range, or another length."""
    public, count, (a, b, _) = claim.public, len(claim.ciphertexts), _widths(claim.public)
    parts = proof[:a], proof[a : a + b], proof[a + b :]
    commitment, z1, z2 = (mpz(int.from_bytes(part, "big")) for part in parts)
    sized = len(proof) == proof_bytes(public) and 0 < count < 1 << COUNT_BITS
    if public.h_s is None:
        in_range = 0 < z2 < public.n and gmpy2.gcd(z2, public.n) == 1
    else:
        in_range = z2.bit_length() <= response_bits(public)
    if not sized or not 0 < commitment < public.n_squared or z1 >= public.n or not in_range:
        raise refusal(claim)
    return Equation(commitment, claim.ciphertexts, coefficients(public, seed, commitment, count), z1, z2)


def refusal(claim: Claim) -> BadProof:
    why = "nothing shows that it knows what it sealed, so the ciphertexts may be another's."
    return BadProof(f"The report of {claim.client!r} is refused: {why}")


@lru_cache(maxsize=2)
def comb(public: PublicKey) -> Comb:
    """Powers of h_s, with room for the weighted sum of the z2 of 2^REPORT_BITS reports. Raises: TypeError for a key without h_s."""
    if public.h_s is None:
        raise TypeError("a key without h_s has no powers of it")
    bits = response_bits(public) + COEFFICIENT_BITS + REPORT_BITS
    return Comb(public.h_s, public.n_squared, bits=bits, teeth=TEETH, blocks=BLOCKS)


def coefficients(public: PublicKey, seed: bytes, commitment: mpz, count: int) -> list[int]:
    return small_exponents(seed + public.to_bytes([commitment]), count, bits=COEFFICIENT_BITS)


def response_bits(public: PublicKey) -> int:
    """The bits of z2 = s + sum e_j r_j: the sum is below 2^(128 + 24) exponents, and s, which hides it, has HIDING_BITS more."""
    return COEFFICIENT_BITS + COUNT_BITS + public.exponent_bits + HIDING_BITS + 1


def _widths(public: PublicKey) -> tuple[int, int, int]:
    last = public.bits if public.h_s is None else response_bits(public)
    return public.ciphertext_bytes, (public.bits + 7) // 8, (last + 7) // 8


def unproved(reports: Mapping[str, tuple[Claim, bytes]]) -> dict[str, BadProof]:
    """Whose proof does not hold, with the refusal; nobody is refused for what another sent. Guarantee: whoever is not named
    has a proof that held, by its own equation or with others (false with probability at most 2^-127), in this call or an
    earlier one. Assumes: all claims are under one key, and their ciphertexts are units below n^2."""
    refused: dict[str, BadProof] = {}
    pending: dict[str, tuple[bytes, Equation]] = {}
    for name, (claim, proof) in reports.items():
        seed = claim.seed()
        digest = hashlib.sha256(seed + proof).digest()
        if digest not in _HELD:
            try:
                pending[name] = digest, equation(claim, proof, seed=seed)
            except BadProof as error:
                refused[name] = error
    names = list(pending)
    for start in range(0, len(names), TOGETHER):
        some = names[start : start + TOGETHER]
        public = reports[some[0]][0].public
        if not hold_together(public, [pending[name][1] for name in some]):
            failing = (name for name in some if not balanced(public, [pending[name][1]], [1]))
            refused |= {name: refusal(reports[name][0]) for name in failing}
        for digest in (pending[name][0] for name in some if name not in refused):
            while len(_HELD) >= REMEMBERED:
                del _HELD[next(iter(_HELD))]
            _HELD[digest] = None
    return refused


def hold_together(public: PublicKey, equations: Sequence[Equation]) -> bool:
    """Whether all of them hold, but for probability 2^-127, which rests on weights drawn here after all equations are fixed."""
    drawn = [secrets.randbelow((1 << COEFFICIENT_BITS) - 1) + 1 for _ in equations[1:]]
    return balanced(public, equations, [1, *drawn])


def balanced(public: PublicKey, equations: Sequence[Equation], weights: Sequence[int]) -> bool:
    """Whether the product of the equations, each to its weight, holds up to the sign. Foreseen weights prove nothing."""
    z1 = sum(w * one.z1 for w, one in zip(weights, equations, strict=True)) % public.n
    z2 = [one.z2 for one in equations]
    if public.h_s is None:  # (prod z2_i^(w_i))^n stands for h_s^(sum w_i z2_i)
        hidden = product_of_powers(z2, weights, public.n, bits=COEFFICIENT_BITS)
        hidden = gmpy2.powmod(hidden, public.n, public.n_squared)
    else:
        hidden = comb(public).power(mpz(sum(w * z for w, z in zip(weights, z2, strict=True))))
    left = (1 + z1 * public.n) * hidden % public.n_squared
    modulus, bits = public.n_squared, COEFFICIENT_BITS  # right = prod_i (A_i prod_j c_ij^(e_ij))^(w_i)
    if max(len(one.ciphertexts) for one in equations) <= FEW:
        bases = [base for one in equations for base in (one.commitment, *one.ciphertexts)]
        exponents = [w * e for w, one in zip(weights, equations, strict=True) for e in (1, *one.coefficients)]
        right = product_of_powers(bases, exponents, modulus, bits=2 * bits)
    else:
        inner = (product_of_powers(one.ciphertexts, one.coefficients, modulus, bits=bits) for one in equations)
        bases = [one.commitment * product % modulus for one, product in zip(equations, inner, strict=True)]
        right = product_of_powers(bases, weights, modulus, bits=bits)
    return left in (right, modulus - right)
