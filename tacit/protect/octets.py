"""Integers as octet strings of one width, big-endian: I2OSP and OS2IP of RFC 8017, section 4."""

from collections.abc import Iterable

from gmpy2 import mpz


def to_octets(numbers: Iterable[int], *, width: int) -> bytes:
    """Writes."""
    return b"".join(int(number).to_bytes(width, "big") for number in numbers)


def from_octets(raw: bytes, *, width: int) -> list[mpz]:
    """Reads."""
    return [mpz(int.from_bytes(raw[at : at + width], "big")) for at in range(0, len(raw), width)]
