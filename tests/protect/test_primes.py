"""Primes have the form their keys rely on."""

import gmpy2

from tacit.crypto import keys


def test_primes_have_their_bits_and_the_form_that_their_keys_rely_on():
    for p in (keys.random_prime(128), safe := keys.safe_prime(128)):
        assert p >> 126 == 3
        assert p % 4 == 3
        assert gmpy2.is_prime(p)
    assert gmpy2.is_prime((safe - 1) // 2)
    p, short = keys.structured_prime(256, 64)
    assert p >> 254 == 3
    assert short.bit_length() == 64
    assert (p - 1) % (2 * short) == 0
    assert all(map(gmpy2.is_prime, (p, short, (p - 1) // (2 * short))))


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
