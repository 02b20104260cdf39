"""The list of events: closed to files, open to code, and asked by everything that prices or writes."""

import json
import sys
from dataclasses import dataclass, replace

import dp_accounting
import numpy as np
import pytest
from dp_accounting import DpEvent

from tacit.errors import BadInput
from tacit.privacy.accounting import events, price, rdp
from tacit.privacy.accounting.events import SUMS, IntegerSumDpEvent

GAUSSIAN = dp_accounting.GaussianDpEvent(2.0)
SAMPLED = dp_accounting.PoissonSampledDpEvent(0.1, GAUSSIAN)
INTEGERS = IntegerSumDpEvent("skellam", 900.0, 4, 9, 20, slack=1e-12, cut=2.0**-80)
WIDE = IntegerSumDpEvent("skellam", 0.1 + 0.2, 1, 2**70 + 1, 650, slack=2.0**-200)
SUMMED = [kind(100.5, 5, 900, 50, 0.25, 1e-40) for kind in SUMS.values()]
ODD = dp_accounting.PoissonSampledDpEvent(1 / 3, dp_accounting.GaussianDpEvent(0.1 + 0.2))
ALL = [GAUSSIAN, SAMPLED, ODD, INTEGERS, WIDE, *SUMMED]


@dataclass(frozen=True)
class Toy(DpEvent):
    """A release that has a Rényi curve and nothing else."""

    level: float


TOY = events.Kind(
    "toy",
    (Toy,),
    to_record=lambda event: {"level": event.level},
    from_record=lambda record: Toy(**record),
    curve=lambda event: event.level * rdp.ORDERS / 2,
    bound="RDP (toy)",
)


@pytest.fixture(autouse=True)
def own_list(monkeypatch):
    monkeypatch.setattr(events, "_KINDS", dict(events._KINDS))


@pytest.mark.parametrize("event", ALL, ids=lambda event: type(event).__name__)
def test_every_event_on_the_list_reads_back_and_costs_what_it_cost(event):
    for written in (event, dp_accounting.SelfComposedDpEvent(event, 7)):
        back = price.from_text(price.to_text(written))
        assert price.compose([(back, 1)]) == price.compose([(written, 1)])


def test_the_words_of_ledgers_that_are_on_disk_stay():
    assert price.to_text(SAMPLED) == json.dumps(
        {"event": "sampled-gaussian", "noise_multiplier": 2.0, "sampling_rate": 0.1, "steps": 1}
    )
    first = '{"event": "integer-sum", "law": "skellam", "share_variance": 900.0, "shares": 4, "l2_squared": 9, "dimension": 20'
    assert price.to_text(INTEGERS) == f'{first}, "slack": 1e-12, "cut": {2.0**-80}, "steps": 1}}'


def test_a_kind_that_code_adds_is_priced_written_and_read():
    events.register(TOY)
    both = price.compose([(Toy(0.25), 3), (GAUSSIAN, 1)])
    expected = price._rdp(((GAUSSIAN, 4),), 1e-5)[0]  # 1/4 is what a multiplier of 2 costs
    assert price.epsilon(both, delta=1e-5) == pytest.approx(expected)
    assert price.method(both, delta=1e-5) == "RDP (rounded up) and RDP (toy)"
    assert price.from_text(price.to_text(Toy(0.25))) == dp_accounting.SelfComposedDpEvent(Toy(0.25), 1)


def test_the_price_of_integer_sums_names_the_papers_it_is_from():
    assert price.method(((INTEGERS, 1),), delta=1e-5) == "RDP (arXiv:2110.04995, arXiv:2102.06387)"


def test_slack_of_a_kind_is_taken_out_of_delta():
    events.register(replace(TOY, slack=lambda event: 1e-10))
    plain = rdp.epsilon(rdp.ORDERS, 3 * 0.25 * rdp.ORDERS / 2, 1e-5)
    assert plain < price.epsilon(((Toy(0.25), 3),), delta=1e-5) < np.inf
    assert price.epsilon(((Toy(0.25), 3),), delta=1e-9) == np.inf


def test_without_a_place_on_the_list_there_is_no_price_and_no_text():
    for use in (price.to_text, price.alone, lambda event: price.epsilon(((event, 1),), delta=1e-5)):
        with pytest.raises(BadInput, match="No price is known here for the event Toy"):
            use(Toy(1.0))


@pytest.mark.parametrize("kind", ["antigravity:fly", "antigravity.fly", "this", "Toy", "GaussianDpEvent", None, 7, {}])
def test_a_name_that_is_not_on_the_list_is_refused_and_imports_nothing(kind):
    before = set(sys.modules)
    with pytest.raises(BadInput, match="that this version cannot price"):
        price.from_text(json.dumps({"event": kind, "level": 1.0, "steps": 1}))
    assert set(sys.modules) == before


@pytest.mark.parametrize(
    ("event", "change"),
    [
        (SAMPLED, {"sampling_rate": 1.5}),
        (SAMPLED, {"sampling_rate": 0.0}),
        (SAMPLED, {"noise_multiplier": -1.0}),
        (SAMPLED, {"noise_multiplier": float("nan")}),
        (SAMPLED, {"noise_multiplier": 0.0}),
        (INTEGERS, {"more": 1}),
        *(
            (event, change)
            for event in (INTEGERS, *SUMMED)
            for change in ({"shares": 0}, {"share_variance": 0.0}, {"l2_squared": 0}, {"dimension": 0}, {"slack": -1.0})
        ),
        *((event, {"sampling_rate": rate}) for event in SUMMED for rate in (0.0, 1.5)),
    ],
)
def test_a_line_that_has_no_price_is_refused_when_it_is_read(event, change):
    with pytest.raises(BadInput):
        price.from_text(json.dumps(json.loads(price.to_text(event)) | change))


def test_slack_counts_for_every_release_of_every_event():
    events.register(replace(TOY, slack=lambda event: 1e-7))
    once, often = (price.epsilon(((Toy(1e-12), 1), (Toy(2e-12), count)), delta=1e-5) for count in (1, 100))
    assert once < 1
    assert often == np.inf  # 100 (1 + e^epsilon) 1e-7 > delta


def test_a_name_or_a_type_is_given_once():
    events.register(TOY)
    for again in (TOY, replace(TOY, name="other"), replace(TOY, name="sampled-gaussian", types=())):
        with pytest.raises(BadInput, match="already"):
            events.register(again)
    assert events.kind_of(GAUSSIAN).name == "sampled-gaussian"


def test_a_kind_without_a_price_is_refused():
    with pytest.raises(BadInput, match="'toy' has no price"):
        replace(TOY, curve=None)


def test_a_kind_that_writes_the_ledgers_own_words_is_refused():
    events.register(replace(TOY, to_record=lambda event: {"level": event.level, "steps": 5}))
    with pytest.raises(BadInput, match="use other words"):
        price.to_text(Toy(1.0))


def test_whoever_sees_one_report_sees_one_share_however_often_it_is_counted():
    for written in (INTEGERS, dp_accounting.SelfComposedDpEvent(INTEGERS, 5), price.from_text(price.to_text(INTEGERS))):
        _, times = price.counted(written)
        assert price.counted(price.alone(written)) == (INTEGERS.alone(), times)
    assert price.compose([(price.alone(SAMPLED), 4)]) == ((SAMPLED, 4),)
