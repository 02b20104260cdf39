"""Rounding a sum of gradients: fair on average, and one record moves it no further than its price says."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.crypto.grid import SumGrid
from tacit.errors import BadInput
from tacit.random import seeded


def rounded(grid, x, key=0):
    return grid.quantise(x, stream=seeded(key)("rounding")).values


@given(
    size=st.integers(1, 400),
    key=st.integers(0, 10**6),
    axis=st.booleans(),
    scale=st.sampled_from([1e-6, 0.3, 1.0, 40.0]),
)
def test_one_record_moves_the_integers_by_no_more_than_the_bound_whatever_the_rest(size, key, axis, scale):
    grid, rng = SumGrid(size=size, clip=1.0, batch=30.0), np.random.default_rng(key)
    rest = rng.normal(size=size) * scale
    mine = np.eye(size)[0] if axis else rng.normal(size=size)
    mine = mine / np.linalg.norm(mine)
    moved = rounded(grid, rest + mine, key) - rounded(grid, rest, key)
    assert int(moved @ moved) <= grid.l2_squared


@pytest.mark.parametrize("size", [50, 8_000])
def test_the_bound_is_close_and_rounding_to_the_nearest_would_need_a_larger_one(size):
    grid = SumGrid(size=size, clip=1.0, batch=30.0)
    assert math.sqrt(grid.l2_squared) * grid.step < (1.03 if size > 1000 else 1.4) * grid.clip
    mine = np.full(size, 0.5000001 * grid.step)  # every coordinate jumps where rounding is to the nearest
    mine_fits = np.linalg.norm(mine) <= grid.clip
    nearest = np.rint(mine / grid.step) - np.rint(np.zeros(size))
    fair = [rounded(grid, mine, key) - rounded(grid, np.zeros(size), key) for key in range(20)]
    assert mine_fits
    assert np.linalg.norm(nearest) > 1.3 * np.mean([np.linalg.norm(one) for one in fair])


def test_the_mean_of_the_moved_integers_is_what_was_moved_and_their_squares_what_hoeffding_bounds():
    grid, rng = SumGrid(size=300, clip=1.0, batch=30.0), np.random.default_rng(0)
    mine = rng.normal(size=300)
    mine *= grid.clip / np.linalg.norm(mine)
    moved = np.array([rounded(grid, mine, key) - rounded(grid, np.zeros(300), key) for key in range(2_000)])
    assert np.abs(moved.mean(0) - mine / grid.step).max() < 6 * 0.5 / math.sqrt(2_000)
    squares = (moved**2).sum(1)
    parts = mine / grid.step - np.floor(mine / grid.step)
    expected = float((mine**2).sum()) / grid.step**2 + float((parts * (1 - parts)).sum())
    assert squares.mean() == pytest.approx(expected, rel=0.02)
    assert squares.max() < grid.l2_squared
    assert squares.std() < (grid.l2_squared - expected) / 5


def test_a_sum_that_is_unlikely_long_or_not_finite_stays_on_the_grid_and_uses_the_same_randomness():
    grid = SumGrid(size=4, clip=1.0, batch=10.0)
    values = rounded(grid, np.array([1e30, -1e30, np.nan, np.inf]))
    assert abs(values).max() <= grid.largest
    assert abs(values[2:]).max() <= 1
    streams = [seeded(3)("rounding") for _ in range(2)]
    grid.quantise(np.zeros(4), stream=streams[0])
    grid.quantise(np.full(4, np.nan), stream=streams[1])
    assert streams[0].uniform(1) == streams[1].uniform(1)


def test_integers_stand_for_what_was_rounded():
    grid, x = SumGrid(size=50, clip=2.0, batch=20.0), np.linspace(-3, 3, 50)
    assert np.abs(grid.dequantise(rounded(grid, x)) - x).max() <= grid.step
    with pytest.raises(BadInput, match="50 numbers"):
        rounded(grid, x[1:])


def test_the_bound_has_room_for_what_rounding_adds_to_a_record_that_lies_between_grid_points():
    """Half a step off everywhere, a million coordinates: rounding adds a quarter of them to the square, far beyond chance."""
    grid = SumGrid(size=10**6, clip=1.0, batch=10.0)
    steps = np.where(np.arange(grid.size) < 0.475 * grid.size, 5.5, 4.5)
    assert np.linalg.norm(steps) * grid.step <= grid.clip * (1 + 1e-9)
    moved = rounded(grid, steps * grid.step) - rounded(grid, np.zeros(grid.size))
    square, length = int(moved @ moved), (grid.clip / grid.step) ** 2
    assert length * 1.009 < square <= grid.l2_squared < length * 1.014


@pytest.mark.parametrize("size", [1, 650, 10**6])
def test_the_bound_is_that_of_two_hoeffding_inequalities_which_fail_as_rarely_as_is_said(size):
    grid = SumGrid(size=size, clip=3.0, batch=10.0)
    length, log = grid.clip / grid.step, -math.log(grid.failure / 2)
    crossed, squares = length * math.sqrt(2 * log), math.sqrt(size * log / 2)
    surely = (length + math.sqrt(size)) ** 2  # whatever the rounding
    assert grid.failure <= 2 * 2.0**-100
    assert grid.l2_squared >= min(length**2 + size / 4 + crossed + squares, surely) * (1 - 1e-12)
