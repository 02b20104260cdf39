"""Randomisers: right, and never used twice."""

import copy
import os
import pickle
import signal
import threading

import gmpy2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.crypto import powers
from tacit.crypto.paillier import PublicKey
from tacit.crypto.randomisers import TABLE_BYTES, FixedBase, Randomisers, best_window
from tacit.crypto.secret_key import generate
from tacit.errors import BadInput, KeyRefused


@settings(max_examples=60, deadline=None)
@given(
    base=st.integers(2, 10**30),
    modulus=st.integers(10**30, 10**31),
    exponent=st.integers(0, 2**61 - 1),
    window=st.integers(1, 9),
)
def test_the_table_agrees_with_pow(base, modulus, exponent, window):
    table = FixedBase(gmpy2.mpz(base), gmpy2.mpz(modulus), bits=61, window=window)
    assert table.power(exponent) == pow(base, exponent, modulus)


def test_an_exponent_beyond_the_table_is_an_error():
    table = FixedBase(gmpy2.mpz(3), gmpy2.mpz(1009), bits=8, window=4)
    with pytest.raises(ValueError, match="longer"):
        table.power(256)


@pytest.mark.parametrize("bits", [2048, 3072, 4096])
def test_a_table_stays_within_its_memory(bits):
    for exponent in (bits // 2, 512):
        window = best_window(exponent, count=10**9, element_bytes=bits // 4)
        assert -(-exponent // window) * (bits // 4) << window <= TABLE_BYTES


def test_every_randomiser_is_an_nth_residue(key, stock):
    public = key.public
    for rho in stock(key).take(20):
        assert gmpy2.powmod(rho, (key.p - 1) * (key.q - 1), public.n_squared) == 1
        assert rho != 1


def test_exponents_have_all_their_bits_and_come_from_the_operating_system(key, stock, monkeypatch):
    asked = []

    def randbits(bits):
        asked.append(bits)
        return (1 << bits) - 1

    monkeypatch.setattr("tacit.crypto.randomisers.secrets.randbits", randbits)
    (rho,) = stock(key).take(1)
    assert asked == [key.public.exponent_bits] == [128 if key.short else 256]
    assert rho == gmpy2.powmod(key.public.h_s, (1 << asked[0]) - 1, key.public.n_squared)


def test_who_has_the_secret_key_makes_the_same_randomisers(key, stock, monkeypatch):
    other = generate(bits=512, least_bits=512)
    with pytest.raises(KeyRefused, match="does not belong"):
        Randomisers(key.public, secret=other)
    drawn = [0, 1, 2, 12345, (1 << key.public.exponent_bits) - 1]
    for source in (stock(key), stock(key, secret=key)):
        draws = iter(drawn)
        monkeypatch.setattr("tacit.crypto.randomisers.secrets.randbits", lambda bits, draws=draws: next(draws))
        expected = [gmpy2.powmod(key.public.h_s, r, key.public.n_squared) for r in drawn]
        assert source.take(len(drawn)) == expected


def test_a_key_from_elsewhere_gets_the_textbooks_randomisers(ordinary, stock):
    plain = PublicKey(ordinary.public.n, least_bits=512)
    rho = Randomisers(plain, workers=1).take(3)
    assert len(set(rho)) == 3
    order = (ordinary.p - 1) * (ordinary.q - 1)
    assert all(gmpy2.powmod(x, order, plain.n_squared) == 1 for x in rho)


def test_what_was_prepared_is_handed_out_once(ordinary, stock):
    stock = stock(ordinary, workers=2)
    stock.prepare(30)
    stock.prepare(10)
    taken = stock.take(25) + stock.take(25)
    assert len(set(taken)) == 50


def test_a_fork_never_has_what_its_parent_has(ordinary, stock):
    stock = stock(ordinary, workers=2)
    stock.prepare(20)
    taken = stock.take(5)  # 15 are in stock, and another batch is under way
    stock.prepare(20)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, ordinary.public.to_bytes(stock.take(30)))
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writing)
    raw = b""
    while part := os.read(reading, 1 << 16):
        raw += part
    os.close(reading)
    assert os.waitpid(pid, 0)[1] == 0
    theirs = ordinary.public.from_bytes(raw)
    ours = taken + stock.take(35)
    assert len(theirs) == 30
    assert len(set(ours)) == 40
    assert not set(theirs) & set(ours)


def test_a_stock_cannot_be_copied_or_pickled(ordinary, stock):
    stock = stock(ordinary)
    for way in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="never copied"):
            way(stock)


def test_threads_never_share_one(ordinary, stock):
    stock, taken = stock(ordinary), []
    stock.warm()
    threads = [threading.Thread(target=lambda: [taken.extend(stock.take(3)) for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(taken)) == len(taken) == 240


def test_a_process_that_dies_is_made_up_for(ordinary, stock):
    stock = stock(ordinary, workers=2)
    stock.prepare(400)
    os.kill(stock._batches[0][0]._parts[0][0], 9)
    assert len(set(stock.take(400))) == 400


def test_closing_ends_background_work(ordinary, stock):
    stock = stock(ordinary, workers=2)
    stock.prepare(200_000)
    pids = [pid for pid, _, _ in stock._batches[0][0]._parts]
    stock.close()
    for pid in pids:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, 0)
    assert len(stock.take(2)) == 2


def test_numbers_that_make_no_sense_are_refused(ordinary):
    with pytest.raises(BadInput, match="expected"):
        Randomisers(ordinary.public, expected=0)


def test_work_on_many_cores_is_in_order():
    found = powers.compute(lambda start, stop: map(gmpy2.mpz, range(start, stop)), 101, width=2, workers=4)
    assert found == list(range(101))


def test_work_is_done_where_no_process_can_be_had(monkeypatch):
    def refuse():
        raise BlockingIOError

    monkeypatch.setattr(powers.os, "fork", refuse)
    found = powers.compute(lambda start, stop: map(gmpy2.mpz, range(start, stop)), 20, width=2, workers=4)
    assert found == list(range(20))


def test_work_is_done_in_a_program_that_ignores_its_children():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        found = powers.compute(lambda start, stop: map(gmpy2.mpz, range(start, stop)), 20, width=2, workers=2)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert found == list(range(20))
