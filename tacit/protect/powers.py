"""The product of many powers, faster than power by power: Pippenger's buckets (SIAM J. Comput. 9(2), 1980)."""

from collections.abc import Sequence

from gmpy2 import mpz, powmod

WIDEST_DIGIT = 12


def product_of_powers(bases: Sequence[mpz], exponents: Sequence[int], modulus: mpz, *, bits: int) -> mpz:
    """prod_i bases[i]^exponents[i] modulo `modulus`, for exponents of at most so many bits.

    Digit by digit from the top: equal digits share a bucket, and the buckets are weighed by their digit with running products.

    >>> product_of_powers([mpz(2), mpz(3)], [5, 2], mpz(1000), bits=3)
    mpz(288)
    """
    width = min(range(1, WIDEST_DIGIT), key=lambda w: -(-bits // w) * (len(bases) + 2 ** (w + 1)))
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
