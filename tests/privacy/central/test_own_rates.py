"""Whole clients under a trusted server, each drawn at the rate that its own epsilon pays for and charged its own event."""

import json
import math
import sqlite3
import time

import numpy as np
import pytest
from trained import Stop, changed, same_model, stop_after

import tacit
from tacit.engine.assemble import build
from tacit.errors import BadInput, BudgetExhausted
from tacit.experiment import Experiment
from tacit.lab.audit.mechanism import audit
from tacit.lab.tuning.price import refuse_unsearchable
from tacit.privacy import samplers
from tacit.privacy.accounting import price
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.rates import choose, sampled
from tacit.random import seeded
from tacit.report import plan as plans

BUDGETS = [1.0] * 10 + [4.0] * 8 + [12.0] * 2
OWN = {
    "name": "own",
    "data": {"clients": 20, "examples_per_client": 20},
    "train": {"rounds": 4, "local_steps": 1, "batch_size": 10},
    "privacy": {"kind": "central", "epsilon": BUDGETS, "delta": 1e-3, "clip": 0.5},
    "run": {"workers": 1},
}


def own(**changes):
    return changed(OWN, changes)


def paid(out):
    """Each client's charged events with their counts, from the ledger's own rows; nobody is charged for everybody."""
    with sqlite3.connect(out / "ledger.db") as book:
        assert book.execute("SELECT COUNT(*) FROM everybody").fetchone() == (0,)
        rows = "SELECT client, text, COUNT(*) FROM charges JOIN events ON events.id = event GROUP BY 1, 2"
        return {client: (price.from_text(text), count) for client, text, count in book.execute(rows)}


def test_every_client_is_charged_what_it_is_drawn_at_in_every_round_and_no_budget_is_passed(tmp_path):
    history = tacit.run(own(), out=tmp_path, page=False)
    sampler, z = build(own()).plan.sampler, build(own()).plan.mechanism.noise_multiplier
    events = paid(tmp_path)
    assert len(events) == 20
    for index, epsilon in enumerate(BUDGETS):
        event, count = events[f"client-{index}"]
        assert count == 4
        assert price.compose([(event, 1)]) == price.compose([(price.sampled_gaussian(z, sampler.rates[index]), 1)])
        assert 0 < price.epsilon(((event, count),), delta=1e-3) <= epsilon
    assert sampler.rates[-1] > sampler.rates[0]
    assert "each of 20 clients at a rate of its own in every round" in history.sentence
    known = json.loads((tmp_path / "clients.json").read_text())
    assert math.isclose(sum(known["batch_shares"]), 1.0)


def test_the_same_rates_draw_that_are_priced_and_the_sum_is_divided_by_their_sum():
    plan = build(own(privacy={"noise_multiplier": 2.0, "rate_cap": 100.0})).plan
    rates = np.array(plan.sampler.rates)
    drawn = [plan.sampler.draw(seeded(5)(r, "cohort"), r) for r in range(3000)]
    times = np.bincount(np.concatenate(drawn), minlength=20) / 3000
    assert np.all(np.abs(times - rates) < 5 * np.sqrt(rates * (1 - rates) / 3000) + 1e-9)
    assert plan.expected_weight == pytest.approx(rates.sum())
    assert plan.sampler.cohort == math.ceil(rates.sum())
    weighed = build(own(privacy={"weight_cap": 10})).plan
    assert weighed.expected_weight == pytest.approx(np.array(weighed.sampler.rates) @ weighed.weights)


def test_a_cap_bounds_how_much_more_often_the_loose_are_drawn():
    for cap in (1.0, 1.5):
        rates = build(own(privacy={"rate_cap": cap, "noise_multiplier": 2.0})).plan.sampler.rates
        assert max(rates) == pytest.approx(cap * min(rates))


@pytest.mark.parametrize("cohort", [3, 8, 15])
def test_clients_per_round_is_the_expected_cohort(cohort):
    plan = build(own(train={"clients_per_round": cohort})).plan
    assert sum(plan.sampler.rates) == pytest.approx(cohort, rel=0.05)


def test_another_rate_is_another_key_of_the_noise():
    keys = {build(own(privacy={"rate_cap": cap})).plan.key(None) for cap in (1.0, 1.2)}
    assert len(keys) == 2
    one, other = (samplers.OwnRates(2, 1, rates) for rates in ((0.5, 0.4), (0.5, 0.4 + 1e-12)))
    assert repr(one) != repr(other)


def test_a_resumed_run_draws_the_same_cohorts_and_pays_no_round_twice(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    tacit.run(own(), out=whole, page=False)
    with pytest.raises(Stop):
        tacit.run(own(), out=parts, observe=stop_after(2), page=False)
    tacit.run(own(), out=parts, resume=True, page=False)
    assert same_model(whole, parts)
    assert paid(whole) == paid(parts)


def test_a_client_with_less_left_is_drawn_more_rarely(tmp_path):
    ledger = {"ledger": str(tmp_path / "ledger.db"), "delta_share": 0.4}
    noise = {"rate_cap": 1e9, "noise_multiplier": 1.5}
    first = {"privacy": ledger | noise | {"epsilon": [0.4] * 19 + [6.0]}}
    tacit.run(own(**first), out=tmp_path / "first", page=False)
    second = own(privacy=ledger | noise | {"epsilon": [4.0] * 19 + [8.0]})
    rates = {name: row["sampling_rate"][1] for row in plans.of_experiment(second) for name in row["names"]}
    assert rates["client-19"] < rates["client-0"]  # 8 less about 6 is less than 4 less .4
    tacit.run(second, out=tmp_path / "second", page=False)


def test_whoever_cannot_pay_stops_the_run_for_all_before_anything_is_released(tmp_path):
    parts = build(own())
    ledger = Ledger(tmp_path / "ledger.db", population="p", run="r", rounds=4, spare=False)
    everybody = [parts.population[k] for k in range(20)]
    for round in range(4):
        ledger.open_round(round, str(round))
        assert ledger.admit_all(everybody, parts.algorithm.cost)
    ledger.open_round(4, "4")
    assert not ledger.admit_all(everybody, parts.algorithm.cost)
    assert ledger.charged_rounds() == 4
    assert len([*ledger.entries()]) == 80


def test_an_adaptive_clip_counts_within_the_same_price():
    plan = build(own(privacy={"adaptive_clip": {"quantile": 0.5, "count_noise": 4.0}})).plan
    m = plan.mechanism
    assert m.update_multiplier > m.noise_multiplier  # the count has its part of what both cost
    assert (m.update_multiplier**-2 + (2 * m.count_std) ** -2) == pytest.approx(m.noise_multiplier**-2)
    for index, epsilon in enumerate(BUDGETS):
        assert price.epsilon(((m.event(index), 4),), delta=1e-3) <= epsilon


@pytest.mark.parametrize(("plant", "found"), [(None, False), ("noise=0.67", True), ("clip", True), ("sampling", True)])
def test_an_audit_finds_less_noise_no_clip_and_other_rates(plant, found):
    report = audit(build(own(privacy={"noise_multiplier": 2.0})), seed=0, plant=plant, trainers=["one by one"])
    assert report.alarming is found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"privacy": {"rate_cap": 0.5}}, "privacy.rate_cap"),
        ({"privacy": {"epsilon": 3.0, "rate_cap": 2.0}}, "all have one: leave it out"),
        ({"privacy": {"noise_multiplier": 2.0}, "train": {"clients_per_round": 5}}, "from which the noise follows"),
        ({"privacy": {"epsilon": [*BUDGETS[:-1], math.inf]}}, "sets no limit"),
        ({"audit": {"canaries": 4}}, "use `tacit audit EXPERIMENT`, which covers it"),
        ({"privacy": {"sampler": "cyclic"}, "train": {"clients_per_round": 5}}, "with secret cohorts, list each"),
        ({"train": {"clients_per_round": 21}}, "clients_per_round <= 20"),
        ({"train": {"min_clients": 2}}, "leave out train.min_clients"),
        ({"privacy": {"epsilon": [1e-6, *BUDGETS[1:]], "noise_multiplier": 0.5, "delta": 1e-7}}, "client-0"),
    ],
)
def test_what_has_no_own_rate_is_refused_in_a_sentence(change, words):
    with pytest.raises((BadInput, BudgetExhausted), match=words.replace("(", r"\(")) as refusal:
        build(own(**change))
    assert "\n" not in str(refusal.value)


def test_a_search_has_no_price_at_rates_of_ones_own():
    with pytest.raises(BadInput, match="drawn at a rate of its own: give one epsilon"):
        refuse_unsearchable(own())


def test_equal_budgets_however_they_are_written_are_one_budget():
    for epsilon in (3.0, [3.0] * 20, {f"client-{k}": 3.0 for k in range(20)}):
        assert type(build(own(privacy={"epsilon": epsilon})).plan.sampler) is samplers.Poisson
    assert not own(privacy={"level": "minimum"}).privacy.own_rates
    assert Experiment(**OWN | {"privacy": OWN["privacy"] | {"epsilon": "uniform"}}).privacy.own_rates


def test_ten_thousand_distinct_budgets_are_chosen_for_in_seconds_and_none_is_passed():
    epsilons = np.exp(np.random.default_rng(0).normal(0.5, 1, 10_000))
    limits = {"rounds": 100, "delta": 1e-5}
    start = time.process_time()
    chosen = choose(epsilons, np.ones(10_000), cost=sampled(**limits), parameters=7850, **limits)
    assert time.process_time() - start < 10  # 1.2 s on a quiet machine
    cost = sampled(**limits)
    for index in np.random.default_rng(1).choice(10_000, 40, replace=False).tolist():
        assert cost(chosen.multiplier, float(chosen.rates[index])) <= epsilons[index]
    order = np.argsort(epsilons)
    assert np.all(np.diff(chosen.rates[order]) >= 0)
