"""Releases of which nothing is known but an (epsilon, delta): what they cost with others, against exact randomised response."""

import itertools
import math
from fractions import Fraction

import dp_accounting
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import BadInput
from tacit.privacy.accounting import price, rdp
from tacit.privacy.accounting.events import EpsilonDeltaDpEvent, response_curve

GAUSSIAN = dp_accounting.GaussianDpEvent(4.0)


def exact_delta(releases, epsilon):
    """delta(epsilon) of the composition of the dominating pairs themselves: each shows all with probability delta, else it is
    randomised response. Every outcome is written out."""
    shown, outcomes = 1.0, [(1.0, 1.0)]
    for one in releases:
        shown *= 1 - one.delta
        truth = 1 / (1 + math.exp(-one.epsilon))
        sides = ((truth, 1 - truth), (1 - truth, truth))
        outcomes = [(p * a, q * b) for (p, q), (a, b) in itertools.product(outcomes, sides)]
    return 1 - shown + shown * math.fsum(max(0.0, p - math.exp(epsilon) * q) for p, q in outcomes)


pairs = st.builds(EpsilonDeltaDpEvent, st.floats(0.01, 3.0), st.sampled_from([0.0, 1e-9, 1e-6, 1e-3]))


@settings(max_examples=150, deadline=None)
@given(st.lists(pairs, min_size=1, max_size=9), st.floats(1e-6, 0.2))
def test_a_price_is_never_below_the_truth_and_never_above_basic_composition(releases, more):
    delta = min(0.9, sum(one.delta for one in releases) * (1 + 1e-12) + more)
    spent = price.epsilon(price.compose((one, 1) for one in releases), delta=delta)
    assert exact_delta(releases, spent) <= delta * (1 + 1e-9)
    assert spent <= sum(one.epsilon for one in releases) * (1 + 1e-12)


def test_one_release_costs_at_its_own_delta_what_it_states_and_says_by_what():
    one = ((EpsilonDeltaDpEvent(0.2, 1e-7), 1),)
    assert price.epsilon(one, delta=1e-7) == 0.2
    assert price.method(one, delta=1e-7) == "basic composition"
    assert price.epsilon(one, delta=0.99e-7) == math.inf
    assert price.epsilon(((EpsilonDeltaDpEvent(0.2, 0.0), 5),), delta=0.0) == pytest.approx(1.0, rel=1e-15)


def test_what_promises_nothing_at_delta_zero_has_no_price_there():
    for composition in (((GAUSSIAN, 1),), ((EpsilonDeltaDpEvent(0.2, 0.0), 1), (GAUSSIAN, 1)), ()):
        with pytest.raises(BadInput, match="0 < delta < 1"):
            price.epsilon(composition, delta=0.0)


def test_many_small_ones_cost_less_together_and_still_no_less_than_the_truth():
    releases = [EpsilonDeltaDpEvent(0.05, 0.0)] * 400
    spent = price.epsilon(price.compose((one, 1) for one in releases), delta=1e-5)
    assert spent < 0.4 * sum(one.epsilon for one in releases)
    truth = 1 / (1 + math.exp(-0.05))
    k = np.arange(401)
    log_p = rdp.log_choose(400, k) + k * math.log(truth) + (400 - k) * math.log1p(-truth)
    exact = sum(
        max(0.0, math.exp(p) * (1 - math.exp(spent - (2 * j - 400) * 0.05))) for j, p in zip(k, log_p, strict=True)
    )
    assert exact <= 1e-5


def test_the_renyi_curve_is_that_of_randomised_response_and_never_below_it():
    for epsilon in (1e-6, 0.01, 0.7, 5.0, 60.0):
        curve = response_curve(EpsilonDeltaDpEvent(epsilon, 0.0))
        log_p, log_q = -np.logaddexp(0, -epsilon), -np.logaddexp(0, epsilon)
        a = rdp.ORDERS
        exact = np.logaddexp(a * log_p + (1 - a) * log_q, a * log_q + (1 - a) * log_p) / (a - 1)
        assert (curve >= np.minimum(exact, epsilon) * (1 - 1e-9) - 1e-13).all()
        assert (curve <= np.minimum(epsilon, exact * (1 + 1e-6) + 1e-9)).all()


def test_a_gaussian_beside_it_is_priced_at_the_delta_that_is_left():
    both = price.compose([(EpsilonDeltaDpEvent(0.2, 4e-6), 1), (GAUSSIAN, 3)])
    alone = price.epsilon(((GAUSSIAN, 3),), delta=float(Fraction(1e-5) - Fraction(4e-6)))
    assert alone < price.epsilon(both, delta=1e-5) <= (0.2 + alone) * (1 + 1e-12)
    assert price.method(both, delta=1e-5) == "GDP (closed form) and basic composition"
    assert price.epsilon(both, delta=4e-6) == math.inf


def test_it_reads_back_from_a_ledger_as_it_was_written():
    event = EpsilonDeltaDpEvent(0.1 + 0.2, 1e-7)
    assert price.from_text(price.to_text(event)) == dp_accounting.SelfComposedDpEvent(event, 1)
    for numbers in (
        '"epsilon": -1, "delta": 0',
        '"epsilon": 1, "delta": 1',
        '"epsilon": 1',
        '"epsilon": 1, "delta": 0, "x": 1',
    ):
        with pytest.raises(BadInput):
            price.from_text(f'{{"event": "epsilon-delta", {numbers}, "steps": 1}}')
