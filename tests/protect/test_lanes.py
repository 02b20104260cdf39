"""Lanes: sums come back exactly, nothing carries, what is out of range raises."""

import gmpy2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.crypto.grid import Lanes
from tacit.errors import BadInput, GridOverflow


def pack_slowly(lanes, values):
    """The slow twin of `Lanes.pack`, by shifts."""
    numbers = []
    for start in range(0, lanes.count, lanes.per_number):
        number = 0
        for i, value in enumerate(values[start : start + lanes.per_number]):
            number |= (int(value) + lanes.reach) << (i * lanes.width)
        numbers.append(number)
    return numbers


@st.composite
def federations(draw):
    reach, reports = draw(st.integers(1, 10**6)), draw(st.integers(1, 300))
    width = (2 * reach * reports).bit_length()
    lanes = Lanes(draw(st.integers(1, 40)), reach, reports, draw(st.integers(width, 400)))
    rows = draw(st.integers(1, min(reports, 5)))
    value = st.one_of(st.integers(-reach, reach), st.sampled_from((-reach, reach)))  # edges often
    return lanes, [draw(st.lists(value, min_size=lanes.count, max_size=lanes.count)) for _ in range(rows)]


@settings(max_examples=300, deadline=None)
@given(federations())
def test_sums_of_packed_vectors_are_packed_sums_and_the_twins_agree(federation):
    lanes, rows = federation
    packed = [lanes.pack(row) for row in rows]
    assert packed == [pack_slowly(lanes, row) for row in rows]
    assert all(0 <= number < 2**lanes.plaintext_bits for row in packed for number in row)
    total = [sum(column) for column in zip(*packed, strict=True)]
    assert lanes.unpack(total, reports=len(rows)).tolist() == np.sum(rows, axis=0).tolist()


@pytest.mark.parametrize("edge", [-1, 1])
def test_a_full_sum_at_the_edge_of_its_lanes_neither_carries_nor_overflows(edge):
    lanes = Lanes(count=7, reach=255, reports=128, plaintext_bits=64)
    total = [128 * number for number in lanes.pack([edge * 255] * 7)]
    assert lanes.unpack(total, reports=128).tolist() == [edge * 255 * 128] * 7


@pytest.mark.parametrize(
    ("lanes", "values", "error", "message"),
    [
        ((2, 10, 4, 64), [0, 11], GridOverflow, "ends at 10"),
        ((2, 10, 4, 64), [0, -11], GridOverflow, "ends at 10"),
        ((3, 10, 4, 14), [1, 2], BadInput, "3 integers"),
        ((3, 10**6, 100, 20), [0, 0, 0], BadInput, "do not fit"),
    ],
)
def test_what_does_not_fit_its_lanes_is_refused_before_it_is_sent(lanes, values, error, message):
    with pytest.raises(error, match=message):
        Lanes(*lanes).pack(values)


def test_a_sum_that_no_reports_have_is_refused_after_opening():
    lanes = Lanes(count=3, reach=10, reports=4, plaintext_bits=64)
    (number,) = lanes.pack([0, 0, 0])
    for opened, reports, message in (
        ([number + (11 << lanes.width)], 1, "out of its range"),  # 21 > 2 * 10
        ([number + (1 << 3 * lanes.width)], 1, "out of its range"),  # beyond the last value
        ([1 << 64], 1, "larger than its lanes"),
        ([-1], 1, "larger than its lanes"),
        ([number], 0, "at most 4"),
        ([number], 5, "at most 4"),
    ):
        with pytest.raises(GridOverflow, match=message):
            lanes.unpack(opened, reports=reports)
    with pytest.raises(BadInput, match="1 numbers"):
        lanes.unpack([number, number], reports=1)
    assert lanes.unpack([gmpy2.mpz(n) for n in lanes.pack([1, 2, -3])], reports=1).tolist() == [1, 2, -3]
