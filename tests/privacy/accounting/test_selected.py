"""The price of the best of a random number of runs, and the number that is drawn: one object."""

import json
import logging
import math
import random

import dp_accounting
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SampledWithoutReplacementDpEvent, SelfComposedDpEvent
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant
from statistical import has_masses

from tacit.errors import BadInput
from tacit.privacy.accounting import price, rdp
from tacit.privacy.accounting.events import BestOfDpEvent, Repetitions, about, best_of, curve

logging.getLogger("absl").setLevel(logging.ERROR)
DELTA = 1e-5
ROUND = PoissonSampledDpEvent(0.1, GaussianDpEvent(2.18))  # 200 of these are a run
SHAPES = (0.0, 0.5, 1.0, 2.5)


def theirs(event):
    return float(RdpAccountant().compose(event).get_epsilon(DELTA))


def ours(law, *runs):
    return price.epsilon(((best_of(law, list(runs)), 1),), delta=DELTA)


def test_one_run_at_3_28_costs_6_17_for_the_best_of_about_ten_and_11_98_composed():
    one, ten = (price._rdp(((ROUND, rounds),), DELTA)[0] for rounds in (200, 2000))
    assert round(one, 2) == 3.28
    assert round(ours(about(10), (ROUND, 200)), 2) == 6.17
    assert round(ten, 2) == 11.98


@pytest.mark.parametrize("shape", SHAPES)
def test_the_price_is_dp_accountings_own_and_never_below_it(shape):
    found = ours(about(10, shape=shape), (ROUND, 200))
    known = theirs(RepeatAndSelectDpEvent(SelfComposedDpEvent(ROUND, 200), 10, shape))
    assert known <= found < known + 1e-5


@pytest.mark.parametrize("shape", SHAPES)
def test_the_curve_is_theorem_2_written_out(shape):
    law = about(7, shape=shape)
    run = [200 * e for e in rdp.poisson(0.1, 2.18)]
    orders = rdp.ORDERS
    least = min((1 - 1 / b) * f + math.log(1 / law.gamma) / b for b, f in zip(orders, run, strict=True))
    bounds = [e + (1 + shape) * least + math.log(law.mean) / (a - 1) for a, e in zip(orders, run, strict=True)]
    found = curve(best_of(law, [(ROUND, 200)]))
    for place in range(len(orders)):  # a bound at a higher order holds at a lower one
        assert found[place] == pytest.approx(min(bounds[place:]), rel=1e-9)
        assert found[place] >= min(bounds[place:])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mean", [1.5, 10, 300])
def test_the_mean_of_the_law_is_the_one_that_was_asked_for(mean, shape):
    law = about(mean, shape=shape)
    assert law.mean == pytest.approx(mean, rel=1e-9)
    assert _mass(law, np.arange(1, 100 * int(mean) + 200)).sum() == pytest.approx(1, abs=1e-6)


def _mass(law, k):
    """Definition 1 of arXiv:2110.03620."""
    log = [0.0 if law.shape == 0 else math.log(law.shape)]
    for n in range(1, int(k.max())):
        log.append(log[-1] + math.log((n + law.shape) / (n + 1)))
    first = -1 / math.log(law.gamma) if law.shape == 0 else 1 / (law.gamma**-law.shape - 1)
    masses = first * np.exp(np.array([0.0, *log])[np.clip(k, 0, None)] + k * math.log1p(-law.gamma))
    return np.where(k >= 1, masses, 0.0)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_number_of_runs_follows_its_law_and_not_a_near_one(shape):
    law = about(6, shape=shape)
    bits = random.Random(3).getrandbits
    drawn = [law.draw(bits) for _ in range(4000)]
    assert min(drawn) == 1
    assert has_masses(drawn, lambda k: _mass(law, k))
    assert not has_masses(drawn, lambda k: _mass(about(8, shape=shape), k))
    assert not has_masses(drawn, lambda k: _mass(about(6, shape=2 * shape + 1), k))


def test_there_is_always_a_run_and_always_an_end():
    assert Repetitions(0.1).draw(lambda _: 0) == 1
    assert Repetitions(0.1).draw(lambda bits: 2**bits - 1) < 10_000


def test_a_pick_among_candidates_costs_what_the_dearest_costs_at_every_order():
    law, cheap = about(10), PoissonSampledDpEvent(0.1, GaussianDpEvent(4.0))
    other = PoissonSampledDpEvent(0.01, GaussianDpEvent(0.6))  # dear at high orders, cheap at low ones
    assert ours(law, (ROUND, 200), (cheap, 200)) == ours(law, (ROUND, 200))
    both = ours(law, (ROUND, 200), (other, 100))
    assert both >= max(ours(law, (ROUND, 200)), ours(law, (other, 100)))


def test_a_search_that_is_dearer_says_so():
    assert ours(about(3), (ROUND, 200)) < ours(about(10), (ROUND, 200)) < ours(about(10), (ROUND, 210))


def test_a_ledgers_line_reads_back_and_has_the_price():
    event = best_of(about(10, shape=0.5), [(ROUND, 200), (SelfComposedDpEvent(GaussianDpEvent(3.0), 2), 5)])
    text = price.to_text(event)
    again, times = price.from_text(text).event, price.from_text(text).count
    assert (again, times) == (event, 1)
    assert json.loads(text)["event"] == "best-of-runs"
    assert price.method(((event, 1),), delta=DELTA).startswith("RDP of the best")


@pytest.mark.parametrize(
    "change",
    [{"gamma": 0}, {"gamma": 1}, {"gamma": "x"}, {"shape": -1}, {"runs": []}, {"runs": [{"rounds": 1}]}, {"runs": 3}],
)
def test_a_line_that_was_changed_is_refused(change):
    line = json.loads(price.to_text(best_of(about(10), [(ROUND, 200)])))
    with pytest.raises(BadInput):
        price.epsilon(((price.from_text(json.dumps(line | change)), 1),), delta=DELTA)


@pytest.mark.parametrize("count", [0, -1, 1.5])
def test_a_run_of_no_rounds_is_no_run(count):
    with pytest.raises(BadInput):
        BestOfDpEvent(about(10), ((ROUND, count),))


def test_runs_that_promise_something_else_have_no_such_price():
    fixed = SampledWithoutReplacementDpEvent(50, 10, dp_accounting.GaussianDpEvent(1.0))
    with pytest.raises(BadInput, match="No price"):
        best_of(about(10), [(fixed, 5)])
    with pytest.raises(BadInput, match="candidates"):
        best_of(about(10), [])


@pytest.mark.parametrize(("mean", "shape"), [(1, 1), (0.5, 1), (math.nan, 1), (1e9, 1), (10, -0.1), (10, math.inf)])
def test_a_law_that_there_is_not_is_refused(mean, shape):
    with pytest.raises(BadInput):
        about(mean, shape=shape)
