import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.algorithms.rules.pfa import threshold
from tacit.data.budgets import draw

HOW = ("gmm", "kmeans", "top")


@pytest.mark.parametrize("how", ["gmm", "kmeans"])
@pytest.mark.parametrize("name", ["mixgauss1", "mixgauss2", "mixgauss3", "mixgauss4"])
def test_the_mixtures_of_the_paper_are_split_at_their_public_component(how, name):
    for seed in range(5):
        epsilons = draw(name, clients=30, rng=np.random.default_rng(seed))
        assert 3 < threshold(epsilons, how=how, share=0.1) < 13


def test_top_takes_the_share_with_the_largest_budgets():
    epsilons = np.arange(1.0, 31.0)
    assert threshold(epsilons, how="top", share=0.1) == 28.0
    assert threshold(epsilons[:3], how="top", share=0.1) == 3.0


@pytest.mark.parametrize("how", HOW)
def test_equal_budgets_make_everybody_public(how):
    assert threshold(np.full(10, 2.0), how=how, share=0.1) == 2.0


@pytest.mark.parametrize("how", HOW)
def test_a_client_without_a_limit_is_public_and_those_with_one_are_not(how):
    assert threshold(np.array([1.0, 2.0, np.inf]), how=how, share=0.1) == np.inf


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=30), st.sampled_from(HOW))
def test_somebody_is_always_public(values, how):
    epsilons = np.array(values)
    assert (epsilons >= threshold(epsilons, how=how, share=0.1)).any()


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=12, unique=True))
def test_two_means_is_the_best_of_all_cuts(values):
    x = np.sort(np.array(values, dtype=float))
    errors = [x[:k].var() * k + x[k:].var() * (len(x) - k) for k in range(1, len(x))]
    cut = np.searchsorted(x, threshold(x, how="kmeans", share=0.1))
    assert errors[cut - 1] == pytest.approx(min(errors), rel=1e-6, abs=1e-6)
