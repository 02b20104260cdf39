"""The grid: lengths that hold always, rounding that is right on average, rotations that undo themselves."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tacit.crypto import grid as grid_module
from tacit.crypto.grid import Grid
from tacit.errors import BadInput
from tacit.random import seeded

ROTATIONS = ("none", "hadamard")
vectors = hnp.arrays(np.float64, st.integers(1, 70), elements=st.floats(-1e300, 1e300))


@settings(max_examples=150, deadline=None)
@given(vectors, st.sampled_from((8, 12, 16)), st.sampled_from(ROTATIONS), st.floats(1e-6, 1e6), st.integers(0, 2**31))
def test_no_vector_is_placed_longer_than_the_sensitivity(vector, bits, rotation, clip, round):
    grid = Grid(len(vector), clip, bits, rotation)
    quantised = grid.quantise(vector, stream=seeded(round)("rounding"), round=round)
    assert sum(int(v) ** 2 for v in quantised.values) <= grid.l2_squared == quantised.l2_squared
    assert np.abs(quantised.values).max() <= grid.largest
    assert quantised.values.dtype == np.int64


@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("bits", [8, 12, 16])
def test_a_vector_comes_back_within_the_grid(rotation, bits):
    vector = np.random.default_rng(0).normal(size=100) / 20
    grid = Grid(100, 1.0, bits, rotation)
    back = grid.dequantise(grid.quantise(vector, stream=seeded(0)("r"), round=3).values, round=3)
    assert np.linalg.norm(back - vector) <= grid.step * math.sqrt(grid.dimension)
    assert back.shape == (100,)


@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_a_longer_vector_is_clipped_to_its_norm_then_weighed_and_keeps_its_direction(rotation, weight):
    vector = np.random.default_rng(0).normal(size=500)
    grid = Grid(500, 0.5, 16, rotation)
    back = grid.dequantise(grid.quantise(vector, stream=seeded(0)("r"), weight=weight).values)
    assert np.linalg.norm(back) == pytest.approx(0.5 * weight, rel=1e-3)
    assert back @ vector / np.linalg.norm(back) / np.linalg.norm(vector) > 0.9999
    assert not grid.quantise(np.zeros(500), stream=seeded(0)("r")).values.any()  # who stays out
    for wrong in (0.0, 1.01, float("nan")):
        with pytest.raises(BadInput, match="weight"):
            grid.quantise(vector, stream=seeded(0)("r"), weight=wrong)


def test_without_the_clip_a_vector_would_be_too_long(monkeypatch):
    monkeypatch.setattr(grid_module, "SHORTEN", 1.5)
    with pytest.raises(BadInput, match="not clipped"):
        Grid(4, 1.0, 16).quantise(np.ones(4), stream=seeded(0)("r"))


def test_rounding_is_right_on_average():
    grid = Grid(4000, 1.0, 8)
    vector = np.full(4000, 0.3 * grid.step)
    mean = np.mean([grid.quantise(vector, stream=seeded(i)("r")).values.mean() for i in range(50)])
    assert abs(mean - 0.3) < 5 * math.sqrt(0.3 * 0.7 / 200_000)


def test_a_rotation_spreads_one_coordinate_over_all_and_needs_its_own_turn():
    grid = Grid(64, 1.0, 16, "hadamard")
    spike = np.zeros(64)
    spike[5] = 1.0
    quantised = grid.quantise(spike, stream=seeded(0)("r"), round=1)
    assert np.abs(quantised.values).min() > 0
    assert np.allclose(grid.dequantise(quantised.values, round=1), spike, atol=1e-3)
    vector = np.random.default_rng(0).normal(size=64) / 10
    quantised = grid.quantise(vector, stream=seeded(0)("r"), round=1)
    assert not np.allclose(grid.dequantise(quantised.values, round=2), vector, atol=0.05)


def test_the_fast_transform_is_the_hadamard_matrix():
    matrix = np.ones((1, 1))
    for _ in range(5):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    vector = np.random.default_rng(0).normal(size=32)
    assert np.allclose(grid_module._hadamard(vector), matrix @ vector / math.sqrt(32))


def test_the_allowance_for_rounding_is_small_where_the_grid_is_fine():
    assert 1 < Grid(650, 1.0, 16).sensitivity < 1.0002
    assert 1 < Grid(650, 1.0, 8).sensitivity < 1.02
    assert 1 < Grid(10**6, 1.0, 8, "hadamard").sensitivity < 1.001


def test_a_rounding_that_comes_out_too_long_is_drawn_again(monkeypatch):
    grid = Grid(400, 1.0, 8)
    monkeypatch.setattr(grid_module.Grid, "l2_squared", 100)  # below what 400 coordinates of 1/2 round to on average
    quantised = grid.quantise(np.full(400, 0.25 * grid.step), stream=seeded(0)("r"))
    assert int(quantised.values @ quantised.values) <= 100


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bits": 9}, "8, 12 or 16"),
        ({"clip": 0.0}, "clip"),
        ({"clip": float("nan")}, "clip"),
        ({"size": 0}, "size"),
        ({"rotation": "fourier"}, "rotation"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(settings, message):
    with pytest.raises(BadInput, match=message):
        Grid(**{"size": 3, "clip": 1.0} | settings)


@pytest.mark.parametrize(
    ("vector", "message"),
    [*(([0.0, bad, 1.0], "NaN or infinity") for bad in (math.nan, math.inf, -math.inf)), ([0.0] * 4, "3 numbers")],
)
def test_a_vector_of_another_size_or_that_is_not_finite_is_refused(vector, message):
    with pytest.raises(BadInput, match=message):
        Grid(3, 1.0).quantise(np.array(vector), stream=seeded(0)("r"))
