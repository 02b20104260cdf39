"""Integers as octet strings of one width, big-endian: I2OSP and OS2IP of RFC 8017, section 4, for many at once.

Everything that is sealed, proved or opened crosses the wire in this form: its length says how many integers there are and
nothing about them.
"""

from collections.abc import Iterable

from gmpy2 import mpz


def to_octets(numbers: Iterable[int], *, width: int) -> bytes:
    """The integers one after another, `width` bytes each.

    Raises: OverflowError for one that is negative or needs more bytes.

    >>> to_octets([1, 258], width=2).hex()
    '00010102'
    """
    return b"".join(int(number).to_bytes(width, "big") for number in numbers)


def from_octets(raw: bytes, *, width: int) -> list[mpz]:
    """What `to_octets` wrote.

    Assumes: a length that is a multiple of `width`, which callers check where the bytes came from outside: what is left over
    at the end would be read as one more integer.

    >>> from_octets(bytes([0, 1, 1, 2]), width=2)
    [mpz(1), mpz(258)]
    """
    return [mpz(int.from_bytes(raw[at : at + width], "big")) for at in range(0, len(raw), width)]
