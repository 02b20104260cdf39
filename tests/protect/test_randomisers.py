"""Randomisers: right, and never used twice."""

import copy
import os
import pickle
import signal
import threading

import gmpy2
import pytest

from tacit.crypto import powers
from tacit.crypto.paillier import TABLE_BYTES, PublicKey, Randomisers, best_window
from tacit.crypto.secret_key import generate
from tacit.errors import BadInput, KeyRefused


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

    monkeypatch.setattr("tacit.crypto.paillier.secrets.randbits", randbits)
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
        monkeypatch.setattr("tacit.crypto.paillier.secrets.randbits", lambda bits, draws=draws: next(draws))
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
