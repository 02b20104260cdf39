import math

import dp_accounting
import numpy as np
import pytest
from scipy.stats import norm
from statistical import has_masses, has_std

from tacit.errors import BadInput
from tacit.privacy import integers as rounded
from tacit.privacy.accounting import price
from tacit.privacy.accounting.events import RoundedGaussianDpEvent
from tacit.privacy.queries.mechanism import Counts, NoisyCounts
from tacit.random import seeded

MECHANISM = NoisyCounts(noise_multiplier=1.5, l2_squared=4, cells=100_000)
STEP = dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(1.0))


def noised(values, stream="noise"):
    return MECHANISM.noise({}, seeded(0)(stream), Counts(values, 4))[1]


def mass(sigma):
    return lambda k: norm.cdf((k + 0.5) / sigma) - norm.cdf((k - 0.5) / sigma)


def test_noise_is_a_rounded_gaussian_of_the_stated_width_and_not_two_thirds_or_three_halves_of_it():
    drawn = noised(np.zeros(100_000, np.int64)).vector.numpy()
    assert drawn.dtype == np.int64
    assert has_masses(drawn, mass(3.0))
    for wrong in (2.0, 4.5):
        assert not has_masses(drawn, mass(wrong))
        assert not has_std(drawn, math.sqrt(wrong**2 + 1 / 12))
    assert has_std(drawn, math.sqrt(3.0**2 + 1 / 12))


def test_noise_is_added_to_the_counts_and_a_record_that_counts_twice_shows():
    counts = np.arange(100_000)
    base, again = noised(np.zeros(100_000, np.int64)), noised(counts)
    assert (again.vector.numpy() - base.vector.numpy() == counts).all()


def test_counts_of_another_sensitivity_or_number_are_refused():
    with pytest.raises(BadInput, match="squared sensitivity 4, got"):
        MECHANISM.noise({}, seeded(0)("noise"), Counts(np.zeros(100_000, np.int64), 1))
    with pytest.raises(BadInput, match="100000 counts"):
        MECHANISM.noise({}, seeded(0)("noise"), Counts(np.zeros(3, np.int64), 4))


@pytest.mark.parametrize("sigma", [0.3, 1.0, 7.7, 1234.5, 3e7])
def test_floats_decide_no_draw_otherwise_than_400_bits_do(sigma):
    words = seeded(1)("words").words(2 * 2000).view(np.uint64)
    fast = rounded.draw_rounded(sigma, seeded(1)("words"), 2000)
    rest = seeded(2)("rest")
    for word, drawn in zip(words.tolist(), fast.tolist(), strict=True):
        upper = word >= 1 << 63
        tail = (1 << 64) - 1 - word if upper else word
        bits = (tail << 192) | int.from_bytes(rest.words(6).tobytes(), "little")
        size = rounded._exact(bits, sigma, start=max(0, abs(drawn) - 2))
        assert (size if upper else -size) == drawn


def test_close_cases_are_decided_by_all_256_bits():
    sigma = 1.0
    edge = int(norm.cdf(-0.5) * 2.0**64) << 192
    assert {rounded._exact(edge + shift, sigma) for shift in (-(1 << 206), 1 << 206)} == {0, 1}

    class Edge:
        def __init__(self):
            self.asked = []

        def words(self, count):
            self.asked.append(count)
            word = np.array([edge >> 192], np.uint64) if len(self.asked) == 1 else np.zeros(count, np.uint32)
            return word.view(np.uint32)

    stream = Edge()
    rounded.draw_rounded(sigma, stream, 1)
    assert stream.asked == [2, 6]


def test_the_noise_is_never_below_what_is_priced():
    for l2_squared in (2, 3, 5, 7, 1000003):
        for z in (0.1, 1.7, 333.3):
            noise = NoisyCounts(z, l2_squared, 1)
            assert noise.noise_std**2 >= z**2 * l2_squared * (1 - 1e-15)
            assert noise.noise_std == pytest.approx(z * math.sqrt(l2_squared), rel=1e-15)


def test_a_query_costs_what_a_gaussian_costs_alone_and_with_training():
    query, gaussian = RoundedGaussianDpEvent(3.0), dp_accounting.GaussianDpEvent(3.0)
    for composition in ([(query, 1)], [(query, 1), (STEP, 100)]):
        plain = [(gaussian if event is query else event, count) for event, count in composition]
        expected = price.epsilon(price.compose(plain), delta=1e-5)
        found = price.epsilon(price.compose(composition), delta=1e-5)
        assert expected <= found <= expected * (1 + 1e-4)
        assert found < 0.95 * price._rdp(price.compose(composition), 1e-5)[0]


def test_a_query_survives_the_ledgers_words_and_no_delta_is_small_enough_to_hide_its_slack():
    event = RoundedGaussianDpEvent(0.1)
    assert price.from_text(price.to_text(event)).event == event
    assert price.epsilon(((event, 1),), delta=1e-60) == math.inf
    with pytest.raises(BadInput):
        price.from_text('{"event": "rounded-gaussian", "noise_multiplier": 0.0, "steps": 1}')


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier > 0"),
        ({"l2_squared": 0}, "l2_squared >= 1"),
        ({"cells": 0}, "cells >= 1"),
        ({"noise_multiplier": 1e10}, "too wide"),
    ],
)
def test_a_mechanism_that_would_break_its_promise_is_refused(change, message):
    with pytest.raises(BadInput, match=message):
        NoisyCounts(**{"noise_multiplier": 1.0, "l2_squared": 1, "cells": 5} | change)
