"""Banded factorisations: columns of norm 1 that do not meet, little noise on prefix sums, and the figures of the design."""

import math

import numpy as np
import pytest
import textbook
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import BadInput
from tacit.privacy.accounting.price import noise_multiplier
from tacit.privacy.central.banded import Banded, banded, momentum_workload

ROUNDS, BANDS = 200, 10


@settings(max_examples=40, deadline=None)
@given(bands=st.integers(1, 8), extra=st.integers(0, 20), momentum=st.sampled_from([0.0, 0.5, 0.9]))
def test_columns_have_norm_one_and_no_row_in_common_with_those_a_band_away(bands, extra, momentum):
    C = banded(bands + extra, bands, momentum).dense()
    assert np.allclose(np.linalg.norm(C, axis=0), 1, rtol=1e-12)
    assert np.array_equal(C, np.tril(C))
    gram = C.T @ C
    apart = np.abs(np.subtract.outer(np.arange(len(C)), np.arange(len(C)))) >= bands
    assert not gram[apart].any()  # exactly: the columns do not meet


@pytest.mark.parametrize(("rounds", "bands", "cycle"), [(12, 3, 3), (13, 3, 4), (20, 20, 20), (7, 1, 2)])
def test_a_client_moves_the_noised_combinations_by_the_root_of_its_turns(rounds, bands, cycle):
    C, rng = banded(rounds, bands).dense(), np.random.default_rng(0)
    for group in range(cycle):
        turns = range(group, rounds, cycle)
        for _ in range(20):
            x = np.zeros((rounds, 5))
            directions = rng.normal(size=(len(turns), 5))
            x[list(turns)] = directions / np.linalg.norm(directions, axis=1, keepdims=True)
            assert np.linalg.norm(C @ x) == pytest.approx(math.sqrt(len(turns)))  # whatever the directions


def test_the_noise_on_prefix_sums_costs_what_the_design_says_against_secret_and_against_independent_cohorts():
    alone, best = textbook.prefix_error(banded(ROUNDS, 1)), textbook.prefix_error(banded(ROUNDS, BANDS))
    found, independent = [], []
    for epsilon in (1.0, 3.0, 8.0):
        budget = {"epsilon": epsilon, "delta": 1e-5}
        secret = noise_multiplier(**budget, sampling_rate=1 / BANDS, steps=ROUNDS)
        public = noise_multiplier(**budget, sampling_rate=1.0, steps=ROUNDS // BANDS)
        found.append(public * best / (secret * alone))
        independent.append(public / secret)
    assert found == pytest.approx([1.17, 1.09, 0.90], abs=0.01)
    assert independent == pytest.approx([3.07, 2.85, 2.37], abs=0.01)


def test_the_bands_are_found_again_to_the_last_bit():
    first = banded(ROUNDS, BANDS)
    banded.cache_clear()
    assert banded(ROUNDS, BANDS) == first


def test_the_stated_deviation_of_every_round_is_that_of_the_dense_inverse():
    for strategy in (banded(30, 7), banded(9, 9), banded(5, 1)):
        assert np.allclose(strategy.stds(), np.linalg.norm(np.linalg.inv(strategy.dense()), axis=1), rtol=1e-12)


def test_momentum_is_what_the_optimiser_makes_of_the_sums():
    import torch

    from tacit.training.optimizer import Momentum

    optimizer, moved = Momentum(1.0, 0.5), []
    params, memory = torch.zeros(1, dtype=torch.float64), {"v": torch.zeros(1, dtype=torch.float64)}
    for update in (1.0, 0.0, 0.0, 0.0):
        params, memory = optimizer.step(params, memory, torch.tensor([update], dtype=torch.float64))
        moved.append(float(params))
    assert moved == momentum_workload(4, 0.5).tolist()


def test_fewer_rounds_than_bands_are_refused_in_a_sentence():
    with pytest.raises(
        BadInput, match=r"Noise of 10 bands takes 10 rounds to be whole, and there are 9: raise train.rounds"
    ):
        banded(9, 10)
    with pytest.raises(BadInput, match=r"privacy.bands"):
        banded(9, 0)
    with pytest.raises(BadInput, match="begin with 1"):
        Banded((0.5, 0.1), 9)
    with pytest.raises(BadInput, match="finite"):
        Banded((1.0, math.nan), 9)
