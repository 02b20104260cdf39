"""Checks the proofs of a round's reports, all by one equation, and one by one only to find out whose does not hold.

    T_i = (1 + n)^(z1_i) h_s^(z2_i) / (A_i prod_j c_ij^(e_ij))        each must be +-1
    w_1 = 1, w_i random in 1 ... 2^128 - 1                         checked: prod T_i^(w_i) = +-1

It is the small exponents test of Bellare, Garay and Rabin (EUROCRYPT 1998). In a group whose order has small factors the test
alone says little (Boyd and Pavlovski, ASIACRYPT 2000: -1 to an even power is 1), so the argument is not about T_i but about
D(T_i), the part that a proof is about (`proofs`): D is a homomorphism onto Z_n, and D(+-1) = 0.

Guarantee: if D(T_i) is not 0 for some i, and the equation is checked with weights drawn after all T_i are fixed, it holds with
probability at most 2^-127. Modulo one of p and q, say p, D(T_i) is not 0. If this is so for i = 1 alone, sum w_i D(T_i) = D(T_1)
is not 0. Else take such an i > 1: whatever the other weights are, one residue of w_i modulo p makes the sum 0, and w_i < 2^128 < p
has at most one value with it, of 2^128 - 1. A T_i of small order other than +-1 can pass here and fail alone. It has D(T_i) = 0, so
its sender knows what it sealed and the sum opens to the same number; and nobody is known to find one without a factor of n.

Only the checker knows the weights, and draws new ones from the operating system each time. Where the common equation fails, each
report is checked alone and refused for its own equation only, whatever the others are; so all that is left has passed an
equation, together or alone. `textbook.proved` is the slow twin.
"""

import hashlib
import secrets
from collections.abc import Mapping, Sequence

import gmpy2
from gmpy2 import mpz

from tacit.errors import BadProof
from tacit.protect.paillier import PublicKey
from tacit.protect.powers import product_of_powers
from tacit.protect.proofs import COEFFICIENT_BITS, REPORT_BITS, Claim, Equation, comb, equation, refusal

TOGETHER = 1 << REPORT_BITS  # reports in one equation
FEW = 4  # ciphertexts of a report up to which one product with exponents of 256 bits is cheaper than two steps of 128
REMEMBERED = 4096  # proofs that held in this process; the same bytes hold again


def unproved(reports: Mapping[str, tuple[Claim, bytes]]) -> dict[str, BadProof]:
    """Whose proof does not hold, with the refusal. Nothing is raised.

    Guarantee: whoever is not named has a proof that held, by its own equation or by one together with others (false with
    probability at most 2^-127), in this call or in an earlier one of this process. Whoever is named fails by itself, so
    nobody is refused for what another sent. One cheat costs a check of each report in its batch.

    Assumes: all claims are under one key, and their ciphertexts are units below n^2.
    """
    refused: dict[str, BadProof] = {}
    pending: dict[str, tuple[bytes, Equation]] = {}
    for name, (claim, proof) in reports.items():
        seed = claim.seed()
        mark = hashlib.sha256(seed + proof).digest()
        if mark not in _HELD:
            try:
                pending[name] = mark, equation(claim, proof, seed=seed)
            except BadProof as error:
                refused[name] = error
    names = list(pending)
    for start in range(0, len(names), TOGETHER):
        some = names[start : start + TOGETHER]
        public = reports[some[0]][0].public
        for name in _failing(public, {name: pending[name][1] for name in some}):
            refused[name] = refusal(reports[name][0])
        _remember([pending[name][0] for name in some if name not in refused])
    return refused


def holds(claim: Claim, proof: bytes) -> bool:
    """Whether a proof is one of this claim: the work itself, nothing remembered, one equation and no batch."""
    try:
        return balanced(claim.public, [equation(claim, proof, seed=claim.seed())], [1])
    except BadProof:
        return False


def hold_together(public: PublicKey, equations: Sequence[Equation]) -> bool:
    """Whether all of them hold, but for probability 2^-127.

    The weights are drawn here, from the operating system, after all equations are fixed: that is what the guarantee rests on.

    Assumes: at least one equation, and no more than TOGETHER, for which the comb has room.
    """
    drawn = [secrets.randbelow((1 << COEFFICIENT_BITS) - 1) + 1 for _ in equations[1:]]
    return balanced(public, equations, [1, *drawn])


def balanced(public: PublicKey, equations: Sequence[Equation], weights: Sequence[int]) -> bool:
    """Whether the product of the equations, each to its weight, holds up to the sign.

    Assumes: weights of at most 128 bits. Weights that a sender could foresee prove nothing; use `hold_together`.
    """
    z1 = sum(w * one.z1 for w, one in zip(weights, equations, strict=True)) % public.n
    left = (1 + z1 * public.n) * _hidden(public, [one.z2 for one in equations], weights) % public.n_squared
    right = _committed(public, equations, weights)
    return left in (right, public.n_squared - right)


def _hidden(public: PublicKey, z2: Sequence[mpz], weights: Sequence[int]) -> mpz:
    """h_s^(sum w_i z2_i), or (prod z2_i^(w_i))^n."""
    if public.h_s is None:
        return gmpy2.powmod(product_of_powers(z2, weights, public.n, bits=COEFFICIENT_BITS), public.n, public.n_squared)
    return comb(public).power(mpz(sum(w * z for w, z in zip(weights, z2, strict=True))))


def _committed(public: PublicKey, equations: Sequence[Equation], weights: Sequence[int]) -> mpz:
    """prod_i (A_i prod_j c_ij^(e_ij))^(w_i): in one step, or report by report first."""
    modulus, bits = public.n_squared, COEFFICIENT_BITS
    if max(len(one.ciphertexts) for one in equations) <= FEW:
        bases = [base for one in equations for base in (one.commitment, *one.ciphertexts)]
        pairs = zip(weights, equations, strict=True)
        return product_of_powers(
            bases, [w * e for w, one in pairs for e in (1, *one.coefficients)], modulus, bits=2 * bits
        )
    inner = (product_of_powers(one.ciphertexts, one.coefficients, modulus, bits=bits) for one in equations)
    bases = [one.commitment * product % modulus for one, product in zip(equations, inner, strict=True)]
    return product_of_powers(bases, weights, modulus, bits=bits)


def _failing(public: PublicKey, equations: Mapping[str, Equation]) -> list[str]:
    """Whose equation does not hold."""
    if hold_together(public, list(equations.values())):
        return []
    return [name for name, one in equations.items() if not balanced(public, [one], [1])]


# hashes of seed and proof, the oldest first: a party checks the same report several times
_HELD: dict[bytes, None] = {}


def _remember(marks: Sequence[bytes]) -> None:
    for mark in marks:
        while len(_HELD) >= REMEMBERED:
            del _HELD[next(iter(_HELD))]
        _HELD[mark] = None
