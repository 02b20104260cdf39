"""Opening by t of n: any t open, fewer do not, a wrong answer is named."""

import itertools
import secrets
from dataclasses import replace

import pytest
from gmpy2 import mpz

from tacit.crypto.threshold import combine, deal, refuse_wrong
from tacit.errors import BadCiphertext, BadInput, KeyRefused, WrongShare

THRESHOLD, OF = 3, 5


@pytest.fixture(scope="module")
def shares(safe):
    return deal(safe, threshold=THRESHOLD, of=OF)


@pytest.fixture
def whole(shares):
    return shares[0].verification


@pytest.fixture
def messages():
    return [0, 1, secrets.randbits(500), (1 << 509) - 1]


@pytest.fixture
def sums(safe, stock, messages):
    rows = [safe.public.seal(row, stock(safe)) for row in (messages, [1] * len(messages))]
    return safe.public.add(rows)


def test_any_t_shares_open_what_the_secret_key_opens_and_fewer_are_refused(safe, shares, whole, sums, messages):
    partials = [share.open(sums, workers=1) for share in shares]
    for some in (*itertools.combinations(partials, THRESHOLD), partials):
        assert combine(whole, sums, some) == [m + 1 for m in messages] == safe.open(sums)
    with pytest.raises(BadInput, match="2 shares answered, 3 are needed"):
        combine(whole, sums, [*partials[: THRESHOLD - 1], partials[0]])


def test_fewer_than_t_do_not_open_even_by_force(shares, whole, sums, messages, monkeypatch):
    """Whoever ignores the threshold and the proofs, which bind it, gets nothing."""
    partials = [share.open(sums) for share in shares[: THRESHOLD - 1]]
    lower = replace(whole)
    object.__setattr__(lower, "threshold", THRESHOLD - 1)
    monkeypatch.setattr("tacit.crypto.threshold.refuse_wrong", lambda *_: None)
    monkeypatch.setattr("tacit.crypto.threshold.refuse_overflow", lambda *_: None)
    opened = combine(lower, sums, partials)
    assert not set(opened) & {m + 1 for m in messages}
    assert combine(whole, sums, [*partials, shares[-1].open(sums)]) == [m + 1 for m in messages]


def test_a_wrong_answer_is_named(shares, whole, sums, messages):
    good = [share.open(sums) for share in shares]
    n_squared = whole.public.n_squared
    values = list(good[1].values)
    values[2] = values[2] * (1 + whole.public.n) % n_squared  # would shift the sum
    liars = [
        replace(good[1], values=tuple(values)),
        replace(good[1], z=good[1].z + 1),
        replace(good[1], e=good[1].e ^ 1),
        replace(good[1], values=good[1].values[:-1]),
        replace(good[1], values=good[2].values),
        replace(good[1], index=4),
        replace(good[1], index=0),
        replace(good[1], index=OF + 1),
        replace(good[1], z=-good[1].z),
        replace(good[1], z=good[1].z + (mpz(1) << whole.response_bits)),
        replace(shares[1], value=shares[1].value + 1).open(sums),
    ]
    for liar in liars:
        with pytest.raises(WrongShare, match=f"Share {liar.index} answered"):
            refuse_wrong(whole, sums, liar)
    with pytest.raises(WrongShare, match="Share 2 "):
        combine(whole, sums, [good[0], liars[0], good[2], good[3]])
    assert combine(whole, sums, [good[0], good[2], good[3]]) == [m + 1 for m in messages]


def test_an_answer_to_another_sum_or_that_is_no_ciphertext_is_refused(safe, shares, whole, sums, stock):
    other, good = safe.public.seal([7] * len(sums), stock(safe)), shares[0].open(sums)
    with pytest.raises(WrongShare):
        refuse_wrong(whole, sums, shares[0].open(other))
    with pytest.raises(BadCiphertext):
        refuse_wrong(whole, sums, replace(good, values=(mpz(0), *good.values[1:])))
    with pytest.raises(BadCiphertext):
        shares[0].open([mpz(0)])


def test_an_answer_travels_as_bytes_of_one_length(shares, whole, sums):
    answers = [share.open(sums) for share in shares]
    raws = [whole.to_bytes(answer) for answer in answers]
    assert len({len(raw) for raw in raws}) == 1
    assert [whole.from_bytes(raw) for raw in raws] == answers
    for raw in (raws[0][:-1], b""):
        with pytest.raises(BadCiphertext):
            whole.from_bytes(raw)


@pytest.mark.parametrize(("threshold", "of"), [(1, 1), (1, 2), (2, 4), (0, 3), (4, 3), (60, 101)])
def test_numbers_that_would_open_two_sums_are_refused(safe, threshold, of):
    with pytest.raises(BadInput, match="more than half"):
        deal(safe, threshold=threshold, of=of)


def test_only_safe_primes_are_split_and_a_share_is_never_printed(ordinary, shares):
    with pytest.raises(KeyRefused, match="safe-prime"):
        deal(ordinary, threshold=2, of=3)
    assert str(shares[0].value) not in repr(shares[0])
