"""A claim is rejected if it fails in two looks, each independent of the other: clean code is accused in 1 of 400 audits at most."""

import numpy as np
import pytest
from audit.conftest import parts_of
from scipy import stats

from tacit.lab.audit import mechanism
from tacit.lab.audit.evidence import AGAIN, LEVEL, Audit, Check, Exact, Noise, confirmed, judge, unsure
from tacit.lab.audit.mechanism import audit

PARTS, COUNT, AUDITS = 8, 2000, 2000


def look(rng, *, std=1.0):
    """What an audit sees of noise of this standard deviation, in several parts, where 1 is claimed."""
    squares = std**2 * rng.chisquare(COUNT, size=PARTS)
    return [
        Check("server", "noise", 1.0, Noise(float(s), COUNT), "less noise", part=str(k)) for k, s in enumerate(squares)
    ]


def test_clean_code_fails_a_first_look_as_often_as_its_level_and_is_rejected_as_often_as_both_together():
    rng, once, twice = np.random.default_rng(3), 0, 0
    for _ in range(AUDITS):
        first = judge(look(rng))
        once += unsure(first)
        twice += any(one.rejected for one in confirmed(first, look(rng))) if unsure(first) else 0
    assert stats.binom.cdf(once, AUDITS, LEVEL) > 1e-4  # the level is used, so that what is wrong is found
    assert stats.binom.sf(once - 1, AUDITS, LEVEL) > 1e-4
    assert stats.binom.sf(twice - 1, AUDITS, LEVEL * AGAIN) > 1e-4
    assert stats.binom.sf(round(LEVEL * AUDITS) - 1, AUDITS, LEVEL * AGAIN) < 1e-9  # one look would be found out here


def test_what_is_wrong_fails_the_second_look_at_least_as_surely_as_the_first():
    rng, once, twice = np.random.default_rng(4), 0, 0
    for _ in range(400):
        first = judge(look(rng, std=0.96))
        once += unsure(first)
        twice += any(one.rejected for one in confirmed(first, look(rng, std=0.96))) if unsure(first) else 0
    assert once > 200
    assert twice / once > once / 400 - 0.05


def test_a_second_look_takes_back_what_it_does_not_see_and_nothing_else():
    low, right = Noise(0.5 * COUNT, COUNT), Noise(1.0 * COUNT, COUNT)
    both = [Check("server", "noise", 1.0, low, "less", part=part) for part in ("a", "b")]
    seen = confirmed(judge(both), [Check("server", "noise", 1.0, right, "less", part="a"), both[1]])
    assert [one.rejected for one in seen] == [False, True]
    assert all(one.rejected for one in confirmed(judge(both), []))  # what was not measured again is not taken back
    fine = judge([Check("server", "noise", 1.0, right, "less")])
    assert not confirmed(fine, [Check("server", "noise", 1.0, low, "less")])[
        0
    ].rejected  # only what failed is looked at


def test_what_has_no_chance_in_it_is_not_looked_at_again(monkeypatch):
    assert not unsure(judge([Check("stacked", "clip", 1.0, Exact(2.0), "more")]))
    looks = counted(monkeypatch)
    assert audit(parts_of("client"), plant="clip", trainers=["one by one"]).rejected
    assert len(looks) == 1


def counted(monkeypatch):
    looks, real = [], mechanism._look
    monkeypatch.setattr(mechanism, "_look", lambda *how, **named: looks.append(how[2]) or real(*how, **named))
    return looks


def test_a_bug_in_the_noise_is_found_by_two_looks_of_other_randomness(monkeypatch):
    looks = counted(monkeypatch)
    found = audit(parts_of("cyclic"), plant="noise=0.95", trainers=["one by one"])
    assert {one.check.where for one in found.rejected} == {"server"}
    first, second = looks
    assert noise_of(first) != noise_of(second)


def noise_of(nonce):
    checks, _ = mechanism._look(parts_of("cyclic"), lambda parts: parts, nonce, ["one by one"])
    return next(check.evidence.value for check in checks if check.quantity == "noise multiplier")


def test_what_failed_once_is_told_and_no_alarm(monkeypatch):
    fails = [Check("server", "noise", 1.0, Noise(0.5 * COUNT, COUNT), "less noise than is priced")]
    stands = [Check("server", "noise", 1.0, Noise(1.0 * COUNT, COUNT), "less noise than is priced")]
    given = iter([fails, stands])
    monkeypatch.setattr(mechanism, "_look", lambda *_, **__: (next(given), []))
    found = audit(parts_of("client"))
    assert (found.alarming, len(found.withdrawn)) == (False, 1)
    assert "failed at a first look" in found.notes[0]
    assert "The claim stands: 1 checks, none rejected" in found.sentence
    assert found.record()["false_alarm"] == pytest.approx(0.0025)


def test_the_probability_of_a_false_alarm_is_that_of_both_looks():
    assert Audit("clean", (), level=1e-3).false_alarm == pytest.approx(1e-3 * AGAIN)
