"""The product of many powers, faster than power by power.

Many bases share Pippenger's buckets (SIAM J. Comput. 9(2), 1980), few of them Straus's squarings (Amer. Math. Monthly 71, 1964).
"""

from collections.abc import Sequence

from gmpy2 import mpz, powmod

WIDEST_DIGIT = 12
FEW_DIGIT = 4  # bits of a digit where every base has a table of its own


def product_of_powers(bases: Sequence[mpz], exponents: Sequence[int], modulus: mpz, *, bits: int) -> mpz:
    """prod_i bases[i]^exponents[i] modulo `modulus`, for exponents of at most so many bits.

    >>> product_of_powers([mpz(2), mpz(3)], [5, 2], mpz(1000), bits=3)
    mpz(288)
    """
    few = bits + len(bases) * ((1 << FEW_DIGIT) + -(-bits // FEW_DIGIT))  # multiplications, about
    width = min(range(1, WIDEST_DIGIT), key=lambda w: _cost(len(bases), bits, w))
    if few < _cost(len(bases), bits, width):
        return by_squarings(bases, exponents, modulus, bits=bits)
    return by_buckets(bases, exponents, modulus, bits=bits, width=width)


def by_buckets(bases: Sequence[mpz], exponents: Sequence[int], modulus: mpz, *, bits: int, width: int) -> mpz:
    """Digit by digit from the top: equal digits share a bucket, and the buckets are weighed by running products."""
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
        total = powmod(total, 1 << width, modulus) * weighed % modulus
    return total


def by_squarings(bases: Sequence[mpz], exponents: Sequence[int], modulus: mpz, *, bits: int) -> mpz:
    """Digit by digit from the top, with the powers of every base at hand: all bases share the squarings."""
    tables = []
    for base in bases:
        row = [mpz(1)]
        for _ in range((1 << FEW_DIGIT) - 1):
            row.append(row[-1] * base % modulus)
        tables.append(row)
    total, mask = mpz(1), (1 << FEW_DIGIT) - 1
    for shift in range((bits - 1) // FEW_DIGIT * FEW_DIGIT, -1, -FEW_DIGIT):
        total = powmod(total, 1 << FEW_DIGIT, modulus)
        for row, exponent in zip(tables, exponents, strict=True):
            digit = exponent >> shift & mask
            if digit:
                total = total * row[digit] % modulus
    return total


def _cost(bases: int, bits: int, width: int) -> int:
    """Multiplications of `by_buckets`, about."""
    return -(-bits // width) * (bases + 2 ** (width + 1))
