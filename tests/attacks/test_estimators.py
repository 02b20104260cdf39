"""The estimators against known answers: Gaussian scores, binomial tables, models that remember and models that do not."""

import numpy as np
import pytest
from scipy import stats

from tacit.errors import BadInput
from tacit.lab.attacks import _roc as roc
from tacit.lab.attacks.membership import fedmia, lira, rmia


def gaussian(rng, d, n, groups=None):
    """n members with scores N(d, 1) and n others with N(0, 1)."""
    scores = np.concatenate([rng.normal(d, 1, n), rng.normal(0, 1, n)])
    return roc.Scored.of(scores, np.arange(2 * n) < n, groups)


@pytest.mark.parametrize("d", [0.0, 1.0, 2.0])
def test_auc_and_found_members_of_gaussian_scores_are_the_known_ones(d):
    scored = gaussian(np.random.default_rng(1), d, 100_000)
    auc = roc.auc(scored)
    assert auc.value == pytest.approx(stats.norm.cdf(d / 2**0.5), abs=0.005)
    assert auc.low < stats.norm.cdf(d / 2**0.5) < auc.high or abs(auc.value - 0.5) < 0.005
    for rate in (0.001, 0.01):
        found = roc.tpr_at(scored, rate)
        assert found.value == pytest.approx(stats.norm.cdf(d - stats.norm.ppf(1 - rate)), abs=0.01)


def test_the_interval_of_an_auc_covers_the_truth_nineteen_times_in_twenty():
    rng, truth = np.random.default_rng(2), stats.norm.cdf(1 / 2**0.5)
    intervals = [roc.auc(gaussian(rng, 1.0, 60)) for _ in range(400)]
    covered = np.mean([one.low <= truth <= one.high for one in intervals])
    assert 0.92 <= covered <= 0.98
    assert np.mean([one.low <= 0.5 <= one.high for one in intervals]) < 0.1  # and it is no wider than it must be


def test_an_answer_that_is_repeated_is_still_one_answer():
    once = gaussian(np.random.default_rng(3), 1.0, 100)
    often = roc.Scored.of(np.tile(once.scores, 10), np.tile(once.member, 10), np.tile(np.arange(200), 10))
    one, ten = roc.auc(once), roc.auc(often)
    assert (ten.value, ten.low, ten.high) == pytest.approx((one.value, one.low, one.high), abs=1e-3)
    blind = roc.auc(roc.Scored.of(often.scores, often.member))
    assert blind.high - blind.low < 0.5 * (ten.high - ten.low)
    first, again = roc.tpr_at(once, 0.1), roc.tpr_at(often, 0.1)
    assert (again.low, again.high) == pytest.approx((first.low, first.high), abs=0.02)


def test_what_all_answers_of_a_model_have_in_common_widens_the_interval():
    rng, truth, covered, blind = np.random.default_rng(7), stats.norm.cdf(0.5 / 2.5**0.5), [], []
    for _ in range(100):  # in each of ten models, members and others score higher together or apart
        apart = rng.normal(0, 0.5**0.5, (10, 2))
        member = np.arange(200) % 2 == 1
        scores = rng.normal(0, 1, (10, 200)) + np.where(member, 0.5 + apart[:, :1], apart[:, 1:])
        models = np.arange(10)[:, None]
        told = roc.auc(roc.Scored.of(scores, np.broadcast_to(member, scores.shape), None, models))
        plain = roc.auc(roc.Scored.of(scores, np.broadcast_to(member, scores.shape)))
        covered.append(told.low <= truth <= told.high)
        blind.append(plain.low <= truth <= plain.high)
    assert np.mean(covered) > 0.8
    assert np.mean(blind) < 0.5


def test_no_more_others_pass_a_threshold_than_the_rate_allows_and_ties_pass_none():
    scores = np.array([5.0, 4, 3, 3, *range(100)][::-1])
    member = np.array([True] * 4 + [False] * 100)[::-1]
    assert roc.tpr_at(roc.Scored.of(scores, member), 0.01).value == 0  # one may pass: 99; nobody found is above 98
    same = roc.Scored.of(np.ones(20), np.arange(20) < 10)
    assert roc.tpr_at(same, 0.1).value == 0
    assert roc.auc(same).value == 0.5


def test_a_curve_of_perfect_scores_is_at_one_and_only_members_are_refused():
    scored = roc.Scored.of(np.arange(100.0), np.arange(100) >= 50)
    assert set(roc.line(scored, "perfect").y) == {1.0}
    assert roc.auc(scored).high == 1.0
    assert roc.auc(scored).low > 0.9
    with pytest.raises(BadInput, match="members and others"):
        roc.Scored.of(np.arange(3.0), np.ones(3))


def models(rng, *, gap, pairs=6, records=3000):
    """phi of models in mirrored pairs: each record has a level of its own, and is `gap` higher where it was trained on."""
    half = rng.random((pairs, records)) < 0.5
    member = np.stack([half, ~half], axis=1).reshape(2 * pairs, records)
    return rng.normal(0, 3, records) + gap * member + rng.normal(0, 1, member.shape), member


def test_lira_and_rmia_find_what_models_remember_nearly_as_well_as_can_be():
    rng = np.random.default_rng(4)
    phi, member = models(rng, gap=1.0, pairs=16)
    best, rows = stats.norm.cdf(1 / 2**0.5), np.arange(phi.shape[1])
    assert roc.auc(roc.Scored.of(lira(phi, member), member, rows)).value == pytest.approx(best, abs=0.03)
    log_p, log_z = -np.log1p(np.exp(-phi)), -np.log1p(np.exp(-models(rng, gap=0.0, pairs=16)[0]))
    assert roc.auc(roc.Scored.of(rmia(log_p, member, log_z), member, rows)).value > 0.65


@pytest.mark.parametrize("pairs", [3, 6])
def test_models_that_remember_nothing_are_at_chance_however_few_there_are(pairs):
    rng = np.random.default_rng(5)
    phi, member = models(rng, gap=0.0, pairs=pairs)
    log_p, log_z = -np.log1p(np.exp(-phi)), -np.log1p(np.exp(-models(rng, gap=0.0, pairs=pairs)[0]))
    for scores in (lira(phi, member), rmia(log_p, member, log_z)):
        auc = roc.auc(roc.Scored.of(scores, member, np.arange(phi.shape[1])))
        assert auc.value == pytest.approx(0.5, abs=0.015)


def test_the_servers_score_is_uniform_for_others_and_high_for_members():
    rng = np.random.default_rng(6)
    others = rng.normal(0, 2, (20_000, 4))
    null = fedmia(rng.normal(0, 2, 20_000), others)
    assert stats.kstest(null, "uniform").pvalue > 1e-3
    assert fedmia(rng.normal(6, 2, 20_000), others).mean() > 0.85
