"""Sealing, adding, opening: exact, equal to the textbook, and refusing what is not in order."""

import json
import math
import secrets
from dataclasses import replace

import gmpy2
import numpy as np
import pytest
import textbook
from gmpy2 import mpz
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tacit.crypto.keys import generate
from tacit.crypto.paillier import PublicKey, Randomisers, SecretKey, short_bits
from tacit.errors import BadCiphertext, BadInput, KeyRefused, SumOverflow

MESSAGES, EXAMPLES = 100_000, 100


def test_a_key_has_the_form_its_shape_promises(key):
    p, q, public = key.p, key.q, key.public
    assert public.bits == 512
    assert p % 4 == q % 4 == 3
    assert math.gcd(p - 1, q - 1) == 2
    assert math.gcd(public.n, (p - 1) * (q - 1)) == 1
    assert public.h_s != 1
    assert [short_bits(bits) for bits in (2048, 3072)] == [448, 512]  # as published
    order = 2 * key.short[0] * key.short[1] if key.short else (p - 1) * (q - 1) // 2
    assert gmpy2.powmod(public.h_s, order, public.n_squared) == 1  # an n-th residue of this order and no more
    assert gmpy2.powmod(public.h_s, order // 2, public.n_squared) != 1
    if public.shape == "safe-prime":
        assert gmpy2.is_prime((p - 1) // 2)
        assert gmpy2.is_prime((q - 1) // 2)


def test_sealing_and_opening_agree_with_the_textbook(key, stock):
    public, n = key.public, int(key.public.n)
    for m in (0, 1, 2**500 + 7, (1 << public.plaintext_bits) - 1):
        (c,) = public.seal([m], stock(key))
        assert textbook.opened(int(key.p), int(key.q), int(c)) == m == key.open([c])[0]
    theirs = mpz(textbook.seal(n, 12345, secrets.randbelow(n - 1) + 1))
    if key.short is None:
        assert key.decrypt(theirs) == 12345
    else:  # it opens only what was sealed with its own h_s, and an error in a process of its own reaches the caller
        with pytest.raises(BadCiphertext, match="h_s"):
            key.open([*public.seal([1] * 19, stock(key)), theirs], workers=2)
    assert public.seal_with([99], [mpz(pow(5, n, n * n))]) == [textbook.seal(n, 99, 5)]


@pytest.mark.parametrize(("shape", "share"), [("ordinary", 0.2), ("short", 0.8)])
def test_a_hundred_thousand_messages_add_up_exactly(shape, share, request):
    key = request.getfixturevalue(shape)
    public, length, sealed_in_all = key.public, round(MESSAGES * share) // 2 // EXAMPLES, []
    randomisers = Randomisers(public, expected=MESSAGES, workers=1)
    half = (1 << public.plaintext_bits - 1) - 1
    sizes = st.lists(st.integers(0, half.bit_length()), min_size=1, max_size=8)

    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(sizes=sizes, edge=st.sampled_from([0, 1, half - 1, half]), data=st.randoms(use_true_random=False))
    def sums(sizes, edge, data):
        a, b = ([edge, *(data.getrandbits(sizes[k % len(sizes)]) for k in range(length - 1))] for _ in range(2))
        rows = [public.to_bytes(public.seal(row, randomisers)) for row in (a, b)]
        assert {len(raw) for raw in rows} == {length * public.ciphertext_bytes}
        opened = key.open(public.add(map(public.from_bytes, rows)), workers=1)
        assert opened == [x + y for x, y in zip(a, b, strict=True)]
        sealed_in_all.append(2 * length)

    sums()
    assert sum(sealed_in_all) >= MESSAGES * share


def test_neither_the_length_nor_the_look_of_a_ciphertext_says_anything_of_its_message(key, stock):
    public = key.public
    lengths = {len(public.to_bytes(public.seal([m], stock(key)))) for m in (0, 1, 2**100, 2**509)}
    assert lengths == {public.ciphertext_bytes} == {128}
    assert len(set(public.seal([5] * 200, stock(key)))) == 200


def test_adding_needs_rows_of_one_length(ordinary):
    with pytest.raises(BadInput, match="one length"):
        ordinary.public.add([[mpz(2)], [mpz(2), mpz(3)]])
    with pytest.raises(BadInput, match="one length"):
        ordinary.public.add([])


@pytest.mark.parametrize(
    ("message", "words"),
    [*((m, "2\\^510") for m in (-1, 1 << 510)), *((m, "whole numbers") for m in (1.0, float("nan"), "1", None))],
)
def test_only_whole_numbers_within_their_range_are_sealed(ordinary, stock, message, words):
    with pytest.raises(BadInput, match=words):
        ordinary.public.seal([message], stock(ordinary))
    large = np.int64(2**62)
    assert ordinary.open(ordinary.public.seal([large], stock(ordinary))) == [2**62]


def test_bad_ciphertexts_are_refused_by_place(ordinary, stock):
    public, good = ordinary.public, ordinary.public.seal([1], stock(ordinary))[0]
    for bad, words in ((mpz(0), "0 < c"), (public.n_squared, "0 < c"), (ordinary.p * 5, "factor"), (mpz(-1), "0 < c")):
        with pytest.raises(BadCiphertext, match=f"Ciphertext 1 .*{words}"):
            ordinary.open([good, bad])
    with pytest.raises(BadCiphertext, match="Ciphertext 0"):
        public.from_bytes(bytes(public.ciphertext_bytes))
    with pytest.raises(BadCiphertext, match="whole ciphertexts"):
        public.from_bytes(public.to_bytes([good])[:-1])
    with pytest.raises(BadCiphertext, match="whole ciphertexts"):
        public.from_bytes(b"")


def test_a_sum_that_runs_over_is_seen(ordinary, stock):
    largest = (1 << ordinary.public.plaintext_bits) - 1
    rows = [ordinary.public.seal([largest], stock(ordinary)) for _ in range(2)]
    with pytest.raises(SumOverflow, match="headroom"):
        ordinary.open(ordinary.public.add(rows))


def test_all_cores_open_what_one_opens(key, stock):
    messages = [secrets.randbits(500) for _ in range(37)]
    sealed = key.public.seal(messages, stock(key))
    assert key.open(sealed, workers=3) == key.open(sealed, workers=1) == messages


@pytest.mark.parametrize("bits", [512, 1024, 2047, 3000, 1 << 20])
def test_sizes_beyond_the_three_are_refused(bits):
    with pytest.raises(BadInput, match="2048, 3072, 4096"):
        generate(bits=bits)


def test_weak_and_damaged_keys_are_refused(ordinary, short):
    n, h_s = ordinary.public.n, ordinary.public.h_s
    with pytest.raises(KeyRefused, match="at least 2048"):
        PublicKey(n, "ordinary", h_s)
    prime = mpz(2) ** 521 - 1
    for bad in (prime, prime * 2, prime**2):
        with pytest.raises(KeyRefused, match="two odd primes"):
            PublicKey(bad, least_bits=512)
    with pytest.raises(KeyRefused, match="needs its h_s"):
        PublicKey(short.public.n, "short-exponent", None, 512)
    with pytest.raises(KeyRefused, match="belong"):
        SecretKey(ordinary.public, short.p, short.q)
    with pytest.raises(KeyRefused, match="shape"):
        replace(short, short=None)
    with pytest.raises(KeyRefused, match="short primes"):
        replace(short, short=(mpz(7919), mpz(7919)))


def test_a_key_never_prints_its_secrets(key):
    said = f"{key!r} {key}" + json.dumps(str(key.__dict__.get("public")))
    for secret in (key.p, key.q, *(key.short or ())):
        assert str(secret) not in said
