"""Randomisers: right, and never used twice."""

import os
import signal
import threading

import gmpy2
import pytest

from tacit.crypto import paillier
from tacit.crypto.keys import generate
from tacit.crypto.paillier import TABLE_BYTES, PublicKey, Randomisers, best_window
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


def test_no_randomiser_is_made_twice_by_threads_or_by_a_fork(ordinary, stock):
    stock, taken = stock(ordinary), []
    stock.warm()
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(writing, ordinary.public.to_bytes(stock.take(30)))
        os._exit(0)
    threads = [threading.Thread(target=lambda: [taken.extend(stock.take(3)) for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken += ordinary.public.from_bytes(os.read(reading, 1 << 16))
    assert os.waitpid(pid, 0)[1] == 0
    assert len(set(taken)) == len(taken) == 270


def test_numbers_that_make_no_sense_are_refused(ordinary):
    with pytest.raises(BadInput, match="expected"):
        Randomisers(ordinary.public, expected=0)


def test_work_on_many_cores_is_in_order():
    found = paillier.compute(lambda start, stop: map(gmpy2.mpz, range(start, stop)), 101, width=2, workers=4)
    assert found == list(range(101))


def test_a_process_that_dies_is_made_up_for_and_none_outlives_an_error():
    parent = os.getpid()

    def dying(start, stop):
        if start == 0 and os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return map(gmpy2.mpz, range(start, stop))

    def failing(start, stop):
        if os.getpid() != parent and start:
            signal.pause()
        raise KeyError("here")

    assert paillier.compute(dying, 400, width=2, workers=2) == list(range(400))
    with pytest.raises(KeyError, match="here"):
        paillier.compute(failing, 400, width=2, workers=2)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_work_is_done_where_no_process_can_be_had(monkeypatch):
    def refuse():
        raise BlockingIOError

    monkeypatch.setattr(paillier.os, "fork", refuse)
    found = paillier.compute(lambda start, stop: map(gmpy2.mpz, range(start, stop)), 20, width=2, workers=4)
    assert found == list(range(20))


def test_work_is_done_in_a_program_that_ignores_its_children():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        found = paillier.compute(lambda start, stop: map(gmpy2.mpz, range(start, stop)), 20, width=2, workers=2)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert found == list(range(20))
