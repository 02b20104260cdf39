"""Primes have the form their keys rely on."""

import gmpy2

from tacit.crypto import secret_key


def test_a_random_prime_has_its_bits_and_is_three_modulo_four():
    for _ in range(20):
        p = secret_key.random_prime(128)
        assert p >> 126 == 3
        assert p % 4 == 3
        assert gmpy2.is_prime(p)


def test_half_of_a_safe_prime_is_prime():
    p = secret_key.safe_prime(128)
    assert p >> 126 == 3
    assert gmpy2.is_prime(p)
    assert gmpy2.is_prime((p - 1) // 2)


def test_a_structured_prime_has_its_short_prime():
    p, short = secret_key.structured_prime(256, 64)
    assert p >> 254 == 3
    assert short.bit_length() == 64
    assert gmpy2.is_prime(p)
    assert gmpy2.is_prime(short)
    assert (p - 1) % (2 * short) == 0
    assert gmpy2.is_prime((p - 1) // (2 * short))


def test_the_sieve_keeps_exactly_what_no_small_prime_divides(monkeypatch):
    monkeypatch.setattr(secret_key, "SIEVE_SPAN", 500)
    monkeypatch.setattr(secret_key, "_small_primes", lambda: [3, 5, 7, 11, 13])
    start = secret_key.draw(64)
    kept = set(secret_key._sieve(start))
    for i in range(500):
        half = start + 2 * i
        assert (i in kept) == all(half % r and (2 * half + 1) % r for r in (3, 5, 7, 11, 13))


def test_primes_come_from_the_operating_system(monkeypatch):
    asked = []
    monkeypatch.setattr(secret_key.secrets, "randbits", lambda bits: asked.append(bits) or (1 << bits) - 1)
    secret_key.draw(64)
    assert asked == [64]
