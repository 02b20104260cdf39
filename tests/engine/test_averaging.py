"""The running mean of the models over rounds."""

import pytest
import torch

import tacit
from tacit.engine.loop import averaged
from tacit.errors import BadInput
from tacit.types import State


def test_without_averaging_the_result_is_the_last_model():
    state = State(torch.ones(3))
    assert averaged(state, State(torch.zeros(3)), rate=0.0, round=5) is state
    assert torch.equal(state.result, torch.ones(3))


def test_the_mean_keeps_at_most_the_rate_and_nothing_of_the_start():
    first = averaged(State(torch.ones(2)), State(torch.zeros(2)), rate=0.9, round=0)
    assert torch.equal(first.result, torch.ones(2))
    late = averaged(State(torch.zeros(2)), State(torch.zeros(2), average=torch.ones(2)), rate=0.9, round=1000)
    assert torch.allclose(late.result, torch.full((2,), 0.9))
    early = averaged(State(torch.zeros(2)), State(torch.zeros(2), average=torch.ones(2)), rate=0.9, round=10)
    assert torch.allclose(early.result, torch.full((2,), 0.5))


def test_averaging_shrinks_the_noise_of_a_random_walk_around_a_point():
    generator = torch.Generator().manual_seed(0)
    state = State(torch.zeros(1000))
    for r in range(200):
        moved = State(torch.randn(1000, generator=generator))
        state = averaged(moved, state, rate=0.9, round=r)
    assert 0.15 < float(state.result.std()) < 0.32  # sqrt((1 - .9)/(1 + .9)) = .23


def test_the_average_does_not_change_the_training(small, tmp_path):
    whole = {"privacy": {"kind": "none", "epsilon": None}}  # whole batches: nothing is left to chance
    plain, smooth = (
        tacit.run(small(**whole, train={"averaging": rate, "sampling_rate": 1.0}), out=tmp_path / str(rate)).rounds
        for rate in (0.0, 0.8)
    )
    assert [r["train_loss"] for r in plain] == pytest.approx([r["train_loss"] for r in smooth], rel=1e-4)
    assert [r["loss"] for r in plain] != pytest.approx([r["loss"] for r in smooth], rel=1e-4)


@pytest.mark.parametrize("rate", [1.0, -0.1, 2.0, float("nan")])
def test_a_rate_outside_zero_and_one_is_refused(rate):
    with pytest.raises(BadInput, match=r"train\.averaging"):
        tacit.Experiment(train={"averaging": rate})
