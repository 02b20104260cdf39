"""Central DP in whole runs: small, real, on scikit-learn's digits."""

import json
import math
import sqlite3

import numpy as np
import pytest
import torch
from statistical import has_std, is_poisson_sampling
from torch import nn
from trained import changed, same_model, weights

import tacit
from tacit.engine import evaluate as evaluate_module
from tacit.engine import trainers
from tacit.engine.loop import BudgetTracker
from tacit.errors import BadInput
from tacit.privacy.accounting import price
from tacit.types import Message

CENTRAL = {
    "name": "central",
    "data": {"clients": 30, "examples_per_client": 30},
    "train": {"rounds": 5, "clients_per_round": 6, "local_steps": 2, "batch_size": 10, "learning_rate": 0.2},
    "privacy": {"kind": "central", "epsilon": 6.0, "clip": 0.5},
    "run": {"workers": 1},
}
ADAPTIVE = {"adaptive_clip": {"quantile": 0.5, "count_noise": 2.0}}


def central(**changes):
    return changed(CENTRAL, changes)


def test_a_run_spends_its_budget_and_says_for_whom_and_against_whom(tmp_path):
    history = tacit.run(central(), out=tmp_path)
    found = json.loads((tmp_path / "summary.json").read_text())["guarantee"]
    assert found["unit"] == "client"
    assert found["relation"] == "add or remove one client"
    assert "everybody who sees the models (the server is trusted" in found["adversary"]
    assert "stays secret" in found["adversary"]
    assert "Poisson cohorts" in found["sampler"]
    assert 6.0 * 0.98 < found["epsilon"]["max"] <= 6.0
    assert found["epsilon"]["min"] == found["epsilon"]["max"]  # drawn or not, everybody has paid
    assert history.summary["noise_multiplier"]["min"] == history.summary["noise_multiplier"]["max"]
    assert history.sentence.startswith("For every client, client-level")


def test_the_price_is_that_of_the_rounds_that_were_run(tmp_path):
    history = tacit.run(central(privacy={"epsilon": math.inf, "noise_multiplier": 1.2}), out=tmp_path)
    import dp_accounting

    event = dp_accounting.PoissonSampledDpEvent(6 / 30, dp_accounting.GaussianDpEvent(1.2))
    assert history.guarantee.epsilon_max == price.epsilon(((event, 5),), delta=1e-5)


def test_the_cohorts_of_a_run_are_the_poisson_samples_that_were_priced():
    parts = tacit.engine.assemble.build(central(train={"rounds": 2000}))

    class Paid:
        def admit_everybody(self, *_, **__):
            return True

    budgets = BudgetTracker(parts, None)
    budgets._ledger, budgets._ends = Paid(), (parts.population[0],)
    derive = parts.releases.server("a state")
    cohorts = [[client.index for client in budgets.charge(budgets.draw(r, derive))] for r in range(2000)]
    assert is_poisson_sampling(cohorts, size=30, rate=0.2)


def test_a_round_without_clients_is_a_round(tmp_path):
    experiment = central(train={"clients_per_round": 1, "rounds": 40})  # none of them empty: once in 10^7 codes
    history = tacit.run(experiment, out=tmp_path, page=False)
    cohorts = [record["cohort"] for record in history.rounds]
    assert 0 in cohorts
    assert len(cohorts) == 40
    empty = cohorts.index(0)
    assert history.rounds[empty]["uplink_bytes"] == 0
    assert history.rounds[empty]["loss"] != history.rounds[empty - 1]["loss"] or empty == 0  # noise was released


def test_every_client_is_charged_before_anybody_is_drawn_and_in_one_row(tmp_path, monkeypatch):
    seen, real = [], trainers.OneByOne.__call__

    def watched(self, received, round, cohort):
        with sqlite3.connect(tmp_path / "ledger.db") as other:
            seen.append(other.execute("SELECT COUNT(*) FROM everybody WHERE round = ?", (round,)).fetchone()[0])
            assert other.execute("SELECT COUNT(*) FROM charges").fetchone()[0] == 0
        return real(self, received, round, cohort)

    monkeypatch.setattr(trainers.OneByOne, "__call__", watched)
    tacit.run(central(run={"workers": 1}), out=tmp_path)
    assert seen == [1] * 5


def test_the_run_stops_before_the_round_that_would_overspend(tmp_path):
    history = tacit.run(central(train={"rounds": 40}, privacy={"noise_multiplier": 1.0, "epsilon": 4.0}), out=tmp_path)
    assert history.summary["stopped"] == "budget"
    assert 0 < len(history.rounds) < 40
    assert history.guarantee.epsilon_max <= 4.0
    assert len(list(history.ledger.entries())) == len(history.rounds)
    assert history.rounds[-1]["out_of_budget"] == 30


def test_the_noise_that_reaches_the_model_is_the_noise_that_was_priced(tmp_path):
    """Clients that learn next to nothing: what moves the model is the server's noise, z C / (q N) a round."""
    quiet = {"learning_rate": 1e-12, "rounds": 30}
    experiment = central(train=quiet, model={"name": "mlp"}, privacy={"epsilon": math.inf, "noise_multiplier": 2.0})
    parts = tacit.engine.assemble.build(experiment)
    history = tacit.run(experiment, out=tmp_path)
    moved = torch.cat([p.detach().reshape(-1) for p in history.model.parameters()]) - parts.params
    expected = 2.0 * 0.5 / 6 * math.sqrt(30)
    assert has_std(moved, expected)
    assert not has_std(moved, expected * 2 / 3)
    assert history.rounds[0]["noise_std"] == pytest.approx(2.0 * 0.5 / 6)


def test_broken_and_missing_answers_leave_the_guarantee_and_the_divisor_as_they_are(tmp_path, monkeypatch):
    real = evaluate_module.receive_any

    def poisoned(raw):
        message = real(raw)
        if int(message.sender.split("-")[1]) % 2:
            return Message(message.sender, {"update": torch.full_like(message.tensors["update"], math.nan)})
        return message

    whole = tacit.run(central(), out=tmp_path / "whole")
    monkeypatch.setattr(evaluate_module, "receive_any", poisoned)
    history = tacit.run(central(), out=tmp_path / "poisoned")
    refused = [name for record in history.rounds for name in record["refused"]]
    assert refused
    assert all(int(name.split("-")[1]) % 2 for name in refused)
    assert history.guarantee == whole.guarantee
    assert history.summary["stopped"] == "rounds"
    assert all(torch.isfinite(value).all() for value in weights(tmp_path / "poisoned").values())


def test_bytes_that_are_no_message_are_refused_and_the_run_goes_on(tmp_path, monkeypatch):
    real = evaluate_module.receive_any
    monkeypatch.setattr(evaluate_module, "receive_any", lambda raw: real(raw[: len(raw) // 2]))
    history = tacit.run(central(), out=tmp_path)
    assert all(set(record["refused"]) <= {"unreadable"} for record in history.rounds)
    assert history.summary["rounds"] == 5


def test_a_learning_rate_that_diverges_ends_no_run(tmp_path):
    history = tacit.run(central(train={"learning_rate": 1e38}), out=tmp_path)
    assert history.summary["stopped"] == "rounds"
    assert any(record.get("diverged") for record in history.rounds)
    assert not any(record["refused"] for record in history.rounds)  # a zero update like any other


def test_capped_weights_are_divided_by_their_expectation_and_priced_alike(tmp_path):
    sizes = {"data": {"partition": "dirichlet", "alpha": 0.5, "examples_per_client": None, "min_size": 2}}
    capped = central(**sizes, privacy={"weight_cap": 40}, aggregate={"weights": "examples"})
    parts = tacit.engine.assemble.build(capped)
    expected = np.minimum(parts.population.sizes, 40) / 40
    assert parts.plan.weights == pytest.approx(expected)
    assert parts.plan.weights.max() == 1.0
    assert parts.plan.expected_weight == pytest.approx(expected.sum() * 6 / 30)
    assert parts.plan.mechanism == tacit.engine.assemble.build(central(**sizes)).plan.mechanism
    assert tacit.run(capped, out=tmp_path).guarantee.epsilon_max <= 6.0


def test_an_adaptive_clip_starts_at_a_tenth_moves_and_is_told(tmp_path):
    train = CENTRAL["train"] | {"rounds": 24}  # by chance alone it falls over a few
    experiment = tacit.Experiment(
        data=CENTRAL["data"], train=train, privacy={"kind": "central", "epsilon": 8.0, **ADAPTIVE}
    )
    assert experiment.privacy.clip == 0.1
    history = tacit.run(experiment, out=tmp_path)
    clips = [record["clip"] for record in history.rounds]
    assert clips[0] == 0.1
    assert len(set(clips)) == 24
    assert clips[-1] > clips[0]  # norms here are well above 0.1
    z = history.summary["noise_multiplier"]["max"]
    for record in history.rounds:
        assert record["noise_std"] == pytest.approx((z**-2 - 4.0**-2) ** -0.5 * record["clip"] / 6)


def test_client_level_charges_of_other_runs_count_and_record_level_ones_do_not(tmp_path):
    shared = {"ledger": str(tmp_path / "shared.db"), "delta_share": 0.3}
    local = {"kind": "local", "unit": "client", **shared, "noise_multiplier": 12.0, "epsilon": math.inf}
    first = tacit.run(central(privacy=local, train={"rounds": 1}), out=tmp_path / "local")
    same = {"noise_multiplier": 2.0, "epsilon": 3.0}
    alone = tacit.run(central(privacy=same, train={"rounds": 40}), out=tmp_path / "alone")
    after = tacit.run(central(privacy=same | shared, train={"rounds": 40}), out=tmp_path / "after")
    assert 0 < len(after.rounds) < len(alone.rounds)  # those who took part in the local run have less left
    assert after.guarantee.epsilon_max < after.guarantee.others.epsilon <= 3.0
    assert (after.guarantee.others.runs, after.guarantee.others.apart) == (1, 0)
    assert first.guarantee.epsilon_min == 0.0
    record = {"kind": "local", "noise_multiplier": 1.0, "epsilon": math.inf, **shared}
    other = tacit.run(central(privacy=record, train={"rounds": 1}), out=tmp_path / "record")
    assert other.guarantee.unit == "record"
    assert other.guarantee.epsilon_min == 0.0  # nothing of the client-level charges is added
    assert (other.guarantee.others.runs, other.guarantee.others.apart) == (0, 2)
    assert other.guarantee.others.epsilon == other.guarantee.epsilon_max
    assert "Not included are 2 runs of its ledger that promised per another unit." in other.sentence


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": {"clients_per_round": 31}}, "clients_per_round <= 30"),
        ({"train": {"min_clients": 2}}, "leave out train.min_clients"),
        ({"privacy": {"sampler": "fixed"}}, "privacy.sampler"),
        ({"privacy": {"noise_multiplier": 0}}, "privacy.noise_multiplier to be a number above 0"),
        ({"privacy": {"epsilon": math.inf}}, "set privacy.noise_multiplier"),
        ({"privacy": {"unit": "record"}}, "set train.local_steps = 1"),
        ({"privacy": {"adaptive_clip": {"count_noise": 1.0}}}, "privacy.adaptive_clip.quantile is missing"),
        (
            {"privacy": {"adaptive_clip": {"quantile": 1.5}}},
            "adaptive_clip.quantile to be a number above 0 and below 1",
        ),
        ({"privacy": {"adaptive_clip": {"quantile": 0.5}}}, "privacy.adaptive_clip.count_noise higher"),
        ({"privacy": {"weight_cap": 0}}, "privacy.weight_cap to be a whole number of at least 1"),
        ({"aggregate": {"weights": "examples"}}, "set privacy.weight_cap"),
        ({"aggregate": {"weights": "epsilon"}}, "no effect"),
        ({"aggregate": {"rule": "pfa"}}, "must be mean"),
        ({"aggregate": {"rank": 2}}, "no effect"),
        ({"privacy": {"kind": "local", "adaptive_clip": {"quantile": 0.5}}}, 'it is a key of kind = "central"'),
        ({"privacy": {"kind": "local", "weight_cap": 5}}, 'it is a key of kind = "central"'),
        ({"privacy": {"kind": "local", "sampler": "poisson"}}, "Unknown key 'privacy.sampler' for kind = \"local\""),
    ],
)
def test_what_would_break_the_guarantee_is_refused_in_one_sentence(tmp_path, changes, message):
    with pytest.raises(BadInput) as refusal:
        tacit.run(central(**changes), out=tmp_path / "run")
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "run").exists()


def test_the_smallest_of_different_budgets_is_kept_where_that_is_said(tmp_path):
    experiment = central(privacy={"epsilon": "uniform", "level": "minimum"})
    spent = tacit.run(experiment, out=tmp_path, page=False).guarantee.epsilon_max
    assert spent <= tacit.engine.assemble.build(experiment).population.epsilons.min()


class Counting(nn.Module):
    """A model that remembers, in a buffer, what it has seen, and lets it into its output."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 10)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.seen += x.abs().sum()
        return self.linear(x.flatten(1)) * (1 + self.seen / 1000)


def counting(*, input_shape, classes):
    return Counting()


def test_no_client_meets_what_another_left_in_the_model(tmp_path, monkeypatch):
    """Otherwise one client would move the updates of others, and no clip would bound that."""
    monkeypatch.setattr("tacit.parts.models.mlp", counting)
    for workers in (1, 3):
        experiment = central(model={"name": "mlp"}, run={"workers": workers}, train={"clients_per_round": 20})
        tacit.run(experiment, out=tmp_path / str(workers))
    assert same_model(tmp_path / "1", tmp_path / "3")
