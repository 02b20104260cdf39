"""Primes have the form their keys rely on."""

import gmpy2

from tacit.crypto import keys


def test_a_random_prime_has_its_bits_and_is_three_modulo_four():
    for _ in range(20):
        p = keys.random_prime(128)
        assert p >> 126 == 3
        assert p % 4 == 3
        assert gmpy2.is_prime(p)


def test_half_of_a_safe_prime_is_prime():
    p = keys.safe_prime(128)
    assert p >> 126 == 3
    assert gmpy2.is_prime(p)
    assert gmpy2.is_prime((p - 1) // 2)


def test_a_structured_prime_has_its_short_prime():
    p, short = keys.structured_prime(256, 64)
    assert p >> 254 == 3
    assert short.bit_length() == 64
    assert gmpy2.is_prime(p)
    assert gmpy2.is_prime(short)
    assert (p - 1) % (2 * short) == 0
    assert gmpy2.is_prime((p - 1) // (2 * short))


def test_the_sieve_keeps_exactly_what_no_small_prime_divides(monkeypatch):
    monkeypatch.setattr(keys, "SIEVE_SPAN", 500)
    monkeypatch.setattr(keys, "_small_primes", lambda: [3, 5, 7, 11, 13])
    start = keys.draw(64)
    kept = set(keys._sieve(start))
    for i in range(500):
        half = start + 2 * i
        assert (i in kept) == all(half % r and (2 * half + 1) % r for r in (3, 5, 7, 11, 13))


def test_primes_come_from_the_operating_system(monkeypatch):
    asked = []
    monkeypatch.setattr(keys.secrets, "randbits", lambda bits: asked.append(bits) or (1 << bits) - 1)
    keys.draw(64)
    assert asked == [64]
