"""The noise of public cohorts: each round as it is priced, all rounds together as the factorisation says, and its state."""

import math
from functools import partial

import dp_accounting
import numpy as np
import pytest
import textbook
import torch
from statistical import has_std, is_normal

from tacit.algorithms import finished
from tacit.algorithms.central_dp import CentralDP
from tacit.errors import BadInput
from tacit.privacy.accounting import pld, price
from tacit.privacy.central.banded import BandedGaussian, banded
from tacit.random import seeded
from tacit.training.optimizer import Sgd
from tacit.types import Bounded, Message

Z, CLIP, CYCLE, ROUNDS = 1.5, 0.5, 4, 11
NAMES = [f"c{index}" for index in range(8)]
MECHANISM = BandedGaussian(Z, CLIP, banded(ROUNDS, CYCLE), tuple(index % CYCLE for index in range(8)), CYCLE)


def noises(mechanism, dimension, *, stream=None):
    """The noise of every round, and the standard deviation that each states."""
    state, stream, found, stds = mechanism.init(), stream or seeded(0)("bands"), [], []
    for _ in range(mechanism.strategy.rounds):
        state, noised = mechanism.noise(state, stream, Bounded(torch.zeros(dimension), CLIP))
        found.append(noised.vector.double().numpy())
        stds.append(noised.noise_std)
    return np.array(found), stds


def test_the_stream_of_noise_is_the_dense_inverse_of_the_factorisation_times_independent_normals():
    found, _ = noises(MECHANISM, 500)
    stream = seeded(0)("bands")
    w = np.array([stream.normal(500).double().numpy() for _ in range(ROUNDS)])
    assert np.allclose(found, Z * CLIP * np.linalg.inv(MECHANISM.strategy.dense()) @ w, atol=1e-5)


def test_noise_has_the_stated_std_and_not_two_thirds_or_three_halves_in_every_round():
    found, stds = noises(MECHANISM, 30_000)
    for noise, std in zip(found, stds, strict=True):
        assert has_std(noise, std)
        assert is_normal(noise, std)
        assert not has_std(noise, std * 2 / 3)
        assert not has_std(noise, std * 3 / 2)


def test_what_is_priced_is_independent_noise_on_the_combinations_and_what_is_released_is_correlated_as_designed():
    found, stds = noises(MECHANISM, 30_000)
    priced = MECHANISM.strategy.dense() @ found / (Z * CLIP)
    assert has_std(priced, 1.0)
    assert not has_std(priced, 2 / 3)
    assert not has_std(priced, 3 / 2)
    error = 5 / math.sqrt(30_000)
    assert np.abs(np.corrcoef(priced) - np.eye(ROUNDS)).max() < error
    inverse = np.linalg.inv(MECHANISM.strategy.dense())
    designed = (inverse @ inverse.T) / np.outer(stds, stds) * (Z * CLIP) ** 2
    assert np.abs(np.corrcoef(found) - designed).max() < error
    assert designed[4, 5] < -0.3  # a round takes back some of the one before


def test_prefix_sums_carry_less_noise_than_independent_noise_of_the_same_price():
    found, _ = noises(MECHANISM, 20_000)
    prefix = np.sqrt((np.cumsum(found, axis=0) ** 2).mean())
    assert prefix == pytest.approx(Z * CLIP * textbook.prefix_error(MECHANISM.strategy), rel=0.02)
    assert prefix < 0.8 * Z * CLIP * textbook.prefix_error(banded(ROUNDS, 1))


def test_one_band_is_independent_noise():
    alone = BandedGaussian(Z, CLIP, banded(ROUNDS, 1), MECHANISM.groups, CYCLE)
    found, stds = noises(alone, 2000)
    assert stds == [pytest.approx(Z * CLIP)] * ROUNDS
    stream = seeded(0)("bands")
    assert np.allclose(found[3], Z * CLIP * [stream.normal(2000) for _ in range(4)][3].numpy(), atol=1e-6)


def test_k_turns_cost_one_gaussian_of_the_root_of_k_over_z():
    event = MECHANISM.event()
    assert event == dp_accounting.GaussianDpEvent(Z)
    spent = price.epsilon(((event, MECHANISM.cohorts.slots(0, rounds=ROUNDS)),), delta=1e-5)
    assert spent == pytest.approx(pld.epsilon(math.sqrt(3) / Z, 1e-5))
    assert [MECHANISM.cohorts.slots(index, rounds=ROUNDS) for index in range(CYCLE)] == [3, 3, 3, 2]


def test_everybody_has_a_turn_in_a_cycle_and_nobody_two_within_a_band():
    state, stream, rounds = MECHANISM.init(), seeded(0)("turns"), []
    for _ in range(ROUNDS):
        state, drawn = MECHANISM.sample(state, stream, 8)
        rounds.append(set(drawn.tolist()))
        state, _ = MECHANISM.noise(state, stream, Bounded(torch.zeros(2), CLIP))
    for start in range(ROUNDS - CYCLE + 1):
        window = rounds[start : start + CYCLE]
        assert sum(map(len, window)) == len(set().union(*window)) == 8
    with pytest.raises(BadInput, match="made for 8 clients, got 7"):
        MECHANISM.sample(MECHANISM.init(), stream, 7)


def test_more_bands_than_rounds_between_turns_are_refused():
    with pytest.raises(
        BadInput, match="Noise of 5 bands is for clients that take part once in 5 rounds, and here they do in 4"
    ):
        BandedGaussian(Z, CLIP, banded(ROUNDS, 5), MECHANISM.groups, CYCLE)
    with pytest.raises(BadInput, match="groups from 0 to 1"):
        BandedGaussian(Z, CLIP, banded(ROUNDS, 2), (0, 1, 2), 2)


def test_noise_goes_on_from_a_state_that_was_written_down_as_if_it_had_not_been():
    whole, _ = noises(MECHANISM, 50)
    state, stream = MECHANISM.init(), seeded(0)("bands")
    for t in range(ROUNDS):
        state, noised = MECHANISM.noise(state, stream, Bounded(torch.zeros(50), CLIP))
        assert np.array_equal(noised.vector.double().numpy(), whole[t])
        state = {name: tensor.clone() for name, tensor in state.items()}


def test_the_state_has_one_row_less_than_bands_and_none_after_the_last_round():
    state, stream = MECHANISM.init(), seeded(0)("bands")
    for t in range(ROUNDS):
        state, _ = MECHANISM.noise(state, stream, Bounded(torch.zeros(5), CLIP))
        if t + 1 < ROUNDS:
            assert len(state["past"]) == min(t + 1, CYCLE - 1)
    assert set(state) == {"round", "strategy", "turns"}  # a folder that is passed on afterwards holds no noise
    with pytest.raises(BadInput, match="made for 11 rounds, and all of them have been released"):
        MECHANISM.noise(state, stream, Bounded(torch.zeros(5), CLIP))


def test_a_state_of_another_factorisation_and_one_that_lost_its_noise_are_refused():
    state, _ = MECHANISM.noise(MECHANISM.init(), seeded(0)("bands"), Bounded(torch.zeros(5), CLIP))
    other = BandedGaussian(Z, CLIP, banded(ROUNDS, CYCLE, 0.5), MECHANISM.groups, CYCLE)
    with pytest.raises(BadInput, match="began with another factorisation"):
        other.noise(state, seeded(0)("bands"), Bounded(torch.zeros(5), CLIP))
    lost = {name: tensor for name, tensor in state.items() if name != "past"}
    with pytest.raises(BadInput, match="cannot go on"):
        MECHANISM.noise(lost, seeded(0)("bands"), Bounded(torch.zeros(5), CLIP))
    with pytest.raises(BadInput, match=r"made for sensitivity 0.5, got a sum of 0.7"):
        MECHANISM.noise(state, seeded(0)("bands"), Bounded(torch.zeros(5), 0.7))


def algorithm():
    groups = tuple(frozenset(NAMES[index] for index in MECHANISM.cohorts.scheduled(t)) for t in range(CYCLE))
    return CentralDP(MECHANISM, dict.fromkeys(NAMES, 1.0), 2.0, lambda *_: None, Sgd(), groups=groups)


def served(made, state, round, senders, *, clip=1e9):
    messages = [Message(name, {"update": torch.full((40,), clip)}) for name in senders]
    return finished(made.collect(state, round=round), messages, partial(seeded(0), "server", round))


def test_a_client_that_comes_twice_within_a_band_is_refused_by_name_and_moves_nothing():
    made = algorithm()
    state = made.init(torch.zeros(40))
    state, info = served(made, state, 0, ["c0", "c4"])
    assert info["refused"] == {}
    again, told = served(made, state, 1, ["c0", "c1"])  # the planted bug: c0 was in round 0
    alone, _ = served(made, state, 1, ["c1"])
    assert told["refused"] == {"c0": "it is not its turn in round 2"}
    assert torch.equal(again.params, alone.params)
    for t in (1, 2, 3):
        state, _ = served(made, state, t, [])
    _, info = served(made, state, 4, ["c0"])
    assert info["refused"] == {}


def test_a_stranger_is_refused_as_ever_and_a_round_with_the_noise_of_another_is_none():
    made = algorithm()
    state = made.init(torch.zeros(40))
    _, info = served(made, state, 0, ["nobody"])
    assert info["refused"] == {"nobody": "it is no client of this run"}
    with pytest.raises(BadInput, match="The noise is that of round 1, and this is round 5"):
        made.collect(state, round=4)
