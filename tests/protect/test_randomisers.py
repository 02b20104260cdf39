"""Randomisers: right, and never used twice."""

import os
import signal
import threading
from pathlib import Path

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


def test_every_randomiser_is_an_nth_residue_also_of_a_key_from_elsewhere(key, stock):
    plain, order = PublicKey(key.public.n, least_bits=512), (key.p - 1) * (key.q - 1)
    for rhos in (stock(key).take(20), Randomisers(plain, workers=1).take(3)):
        assert all(gmpy2.powmod(rho, order, plain.n_squared) == 1 != rho for rho in rhos)
        assert len(set(rhos)) == len(rhos)


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
    with pytest.raises(BadInput, match="expected"):
        Randomisers(key.public, expected=0)
    drawn = [0, 1, 2, 12345, (1 << key.public.exponent_bits) - 1]
    for source in (stock(key), stock(key, secret=key)):
        draws = iter(drawn)
        monkeypatch.setattr("tacit.crypto.paillier.secrets.randbits", lambda bits, draws=draws: next(draws))
        expected = [gmpy2.powmod(key.public.h_s, r, key.public.n_squared) for r in drawn]
        assert source.take(len(drawn)) == expected


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


def _children():
    """Of this thread; other tests of the process may have left some."""
    return Path("/proc/thread-self/children").read_text().split()


def test_a_process_that_dies_is_made_up_for_and_none_outlives_an_error():
    parent, before = os.getpid(), _children()

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
    assert _children() == before


def test_work_on_many_cores_is_in_order_also_where_no_process_can_be_had_or_heard_of(monkeypatch):
    def work(start, stop):
        return map(gmpy2.mpz, range(start, stop))

    def refuse():
        raise BlockingIOError

    assert paillier.compute(work, 101, width=2, workers=4) == list(range(101))
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert paillier.compute(work, 20, width=2, workers=2) == list(range(20))
    finally:
        signal.signal(signal.SIGCHLD, before)
    monkeypatch.setattr(paillier.os, "fork", refuse)
    assert paillier.compute(work, 20, width=2, workers=4) == list(range(20))
