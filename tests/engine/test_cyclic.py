"""Central DP with public cohorts in whole runs: who takes part and pays, what is promised, and that noise is never used twice."""

import json
import sqlite3
import stat

import pytest
from safetensors.torch import load_file, save_file
from trained import Stop, changed, same_model, stop_after

import tacit
from tacit.algorithms.central_dp import Summing
from tacit.engine import loop as loop_module
from tacit.engine.assemble import build
from tacit.engine.run_folder import CHECKPOINT, Folder
from tacit.errors import BadInput, LedgerError
from tacit.privacy import samplers
from tacit.privacy.accounting import price
from tacit.privacy.central.banded import banded
from tacit.privacy.central.kind import BandedPlan

CYCLIC = {
    "name": "cyclic",
    "data": {"clients": 10, "examples_per_client": 30},
    "train": {"rounds": 9, "clients_per_round": 3, "local_steps": 2, "batch_size": 10},
    "privacy": {"kind": "central", "epsilon": 6.0, "clip": 0.5, "sampler": "cyclic"},
    "run": {"workers": 1},
}


def cyclic(**changes):
    return changed(CYCLIC, changes)


def charges(out):
    with sqlite3.connect(out / "ledger.db") as book:
        assert book.execute("SELECT COUNT(*) FROM everybody").fetchone() == (0,)
        return book.execute("SELECT round, client FROM charges ORDER BY round").fetchall()


def test_clients_take_turns_pay_for_their_own_and_nobody_is_asked_again_within_a_cycle(tmp_path):
    history = tacit.run(cyclic(), out=tmp_path, page=False)
    paid = charges(tmp_path)
    rounds = [{client for round, client in paid if round == t} for t in range(9)]
    assert [record["cohort"] for record in history.rounds] == [len(group) for group in rounds]
    assert sorted(map(len, rounds[:4])) == [2, 2, 3, 3]  # ten clients in four groups
    for start in range(6):
        window = rounds[start : start + 4]
        assert sum(map(len, window)) == len(set().union(*window)) == 10
    assert [record["out_of_budget"] for record in history.rounds] == [0] * 9  # who has had all turns is not missing
    spent = [record["epsilon_tightest"] for record in history.rounds]
    assert spent == sorted(spent)
    assert spent[0] > 0  # the first group's: it has the most turns
    assert spent[-1] == history.guarantee.epsilon_max


def test_the_promise_says_that_cohorts_are_public_and_is_an_exact_gaussian(tmp_path):
    history = tacit.run(cyclic(), out=tmp_path, page=False)
    found = json.loads((tmp_path / "summary.json").read_text())["guarantee"]
    assert "secret" not in history.sentence
    assert "who took part in which round" in found["adversary"]
    assert found["relation"].startswith("empty one client")
    assert (
        "public cohorts in a cycle of 4 rounds, each of 10 clients once in a cycle and at most 3 times"
        in found["sampler"]
    )
    assert "noise in 4 bands" in found["sampler"]
    assert "closed form" in found["accountant"]
    plan = build(cyclic()).plan
    whole, less = (price.epsilon(((plan.mechanism.event(), turns),), delta=1e-5) for turns in (3, 2))
    assert found["epsilon"]["max"] == pytest.approx(whole)
    assert found["epsilon"]["min"] == pytest.approx(less)  # three groups have two turns
    assert 6.0 * 0.99 < whole <= 6.0


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been_and_pays_nothing_again(tmp_path):
    whole = tacit.run(cyclic(), out=tmp_path / "whole", page=False)
    with pytest.raises(Stop):
        tacit.run(cyclic(), out=tmp_path / "part", observe=stop_after(4), page=False)
    rest = tacit.run(cyclic(), out=tmp_path / "part", resume=True, page=False)
    assert same_model(whole.out, rest.out)
    assert charges(tmp_path / "part") == charges(tmp_path / "whole")
    assert [record["accuracy"] for record in rest.rounds] == [record["accuracy"] for record in whole.rounds]


@pytest.mark.parametrize("place", ["evaluate", "log"])
def test_what_a_round_released_is_on_disk_and_closed_to_others_before_anybody_is_told_of_it(
    tmp_path, monkeypatch, place
):
    whole = tacit.run(cyclic(), out=tmp_path / "whole", page=False)
    seen = []

    def crash(*_, **__):
        tensors = load_file(tmp_path / "part" / CHECKPOINT) if (tmp_path / "part" / CHECKPOINT).exists() else {}
        seen.append(int(tensors.get("round", 0)))
        if seen[-1] == 3:
            assert tensors["memory.past"].shape == (3, 650)
            raise Stop
        return real(*_, **__)

    owner, name = (loop_module, "evaluating") if place == "evaluate" else (Folder, "log")
    real = getattr(owner, name)
    monkeypatch.setattr(owner, name, crash)
    with pytest.raises(Stop):
        tacit.run(cyclic(), out=tmp_path / "part", page=False)
    assert seen[-1] == 3  # the third round was on disk when it was first looked at
    monkeypatch.undo()
    assert stat.S_IMODE((tmp_path / "part" / CHECKPOINT).stat().st_mode) == 0o600
    rest = tacit.run(
        cyclic(), out=tmp_path / "part", resume=True
    )  # with its page, also where a line of the log was lost
    assert same_model(whole.out, rest.out)


def gone_back(out, experiment):
    """A run that has come to round 6, with the checkpoint of round 3."""
    with pytest.raises(Stop):
        tacit.run(experiment, out=out, observe=stop_after(2), page=False)
    old = (out / CHECKPOINT).read_bytes()
    with pytest.raises(Stop):
        tacit.run(experiment, out=out, resume=True, observe=stop_after(5), page=False)
    newest = (out / CHECKPOINT).read_bytes()
    (out / CHECKPOINT).write_bytes(old)
    return newest


def test_a_checkpoint_that_went_back_is_refused_where_its_noise_would_be_used_for_another_release(tmp_path):
    real = cyclic(run={"randomness": "os"})
    newest = gone_back(tmp_path / "run", real)
    before = charges(tmp_path / "run")
    with pytest.raises(LedgerError, match=r"charged for rounds after round 4, .* its noise has been used since"):
        tacit.run(real, out=tmp_path / "run", resume=True, page=False)
    assert charges(tmp_path / "run") == before
    (tmp_path / "run" / CHECKPOINT).write_bytes(newest)
    history = tacit.run(real, out=tmp_path / "run", resume=True, page=False)
    assert history.rounds[-1]["round"] == 8


@pytest.mark.parametrize("log_too", [False, True])
def test_a_checkpoint_that_went_back_by_the_last_round_alone_is_refused_too(tmp_path, log_too):
    real, run = cyclic(run={"randomness": "os"}), tmp_path / "run"
    with pytest.raises(Stop):
        tacit.run(real, out=run, observe=stop_after(2), page=False)
    old, log = (run / CHECKPOINT).read_bytes(), (run / "rounds.jsonl").read_bytes()
    with pytest.raises(Stop):
        tacit.run(real, out=run, resume=True, observe=stop_after(3), page=False)
    (run / CHECKPOINT).write_bytes(old)  # round 3 is the last that was charged, and was released
    if log_too:
        (run / "rounds.jsonl").write_bytes(log)
    before, lines = charges(run), (run / "rounds.jsonl").read_bytes()
    with pytest.raises(LedgerError, match=r"Round 4 was released, .* its noise has been used since"):
        tacit.run(real, out=run, resume=True, page=False)
    assert charges(run) == before
    assert (run / "rounds.jsonl").read_bytes() == lines


def test_what_a_repeated_turn_cost_is_in_the_epsilon_that_rounds_show(tmp_path, monkeypatch):
    """Of two turns each, the second group had paid three, and the rounds showed what the first had."""
    real = cyclic(train={"rounds": 8}, privacy={"noise_multiplier": 2.0, "epsilon": 50.0}, run={"randomness": "os"})
    finish, calls = Summing.finish, []

    def crash(self, derive):
        calls.append(1)
        if len(calls) == 2:  # paid, and not released
            raise Stop
        return finish(self, derive)

    monkeypatch.setattr(Summing, "finish", crash)
    with pytest.raises(Stop):
        tacit.run(real, out=tmp_path, page=False)
    history = tacit.run(real, out=tmp_path, resume=True, page=False)
    event = build(real).plan.mechanism.event()
    assert history.guarantee.epsilon_max == pytest.approx(price.epsilon(((event, 3),), delta=1e-5))
    assert history.rounds[-1]["epsilon_tightest"] == pytest.approx(history.guarantee.epsilon_max)
    assert history.rounds[1]["epsilon_tightest"] >= price.epsilon(((event, 2),), delta=1e-5) * (1 - 1e-9)


@pytest.mark.parametrize(
    "damage",
    [
        lambda kept: kept | {"memory.past": kept["memory.past"][:1]},  # of three rows
        lambda kept: kept | {"memory.past": kept["memory.past"] * float("nan")},
        lambda kept: {name: tensor for name, tensor in kept.items() if name != "memory.round"},
    ],
)
def test_a_checkpoint_that_lacks_some_of_its_noise_is_refused_in_a_sentence_and_nobody_pays(tmp_path, damage):
    with pytest.raises(Stop):
        tacit.run(cyclic(), out=tmp_path, observe=stop_after(4), page=False)
    before = charges(tmp_path)
    save_file(damage(load_file(tmp_path / CHECKPOINT)), tmp_path / CHECKPOINT)
    with pytest.raises(BadInput, match="missing or damaged"):
        tacit.run(cyclic(), out=tmp_path, resume=True, page=False)
    assert charges(tmp_path) == before


@pytest.mark.parametrize("change", [{"clients_per_round": 2}, {"rounds": 11}])
def test_a_run_whose_turns_were_edited_between_two_starts_is_refused(tmp_path, change):
    fixed = {"privacy": {"noise_multiplier": 2.0, "bands": 3}}
    with pytest.raises(Stop):
        tacit.run(cyclic(**fixed), out=tmp_path, observe=stop_after(4), page=False)
    before, edited = charges(tmp_path), cyclic(train=change, **fixed)
    (tmp_path / "experiment.toml").write_text(edited.toml(), "utf-8")
    with pytest.raises(BadInput, match=r"began with other turns|another factorisation"):
        tacit.run(edited, out=tmp_path, resume=True, page=False)
    assert charges(tmp_path) == before


def test_a_checkpoint_that_went_back_repeats_the_very_same_bits_for_nothing_or_is_refused(tmp_path, monkeypatch):
    gone_back(tmp_path / "same", cyclic())
    gone_back(tmp_path / "other", cyclic())
    same = tacit.run(cyclic(), out=tmp_path / "same", resume=True, page=False)
    assert same_model(tacit.run(cyclic(), out=tmp_path / "whole", page=False).out, same.out)
    assert charges(tmp_path / "same") == charges(tmp_path / "whole")
    monkeypatch.setattr("tacit.engine.release.package", lambda: "edited code")
    with pytest.raises(LedgerError, match="its noise has been used since"):
        tacit.run(cyclic(), out=tmp_path / "other", resume=True, page=False)


def test_noise_that_began_with_another_factorisation_is_refused_before_anybody_pays(tmp_path, monkeypatch):
    with pytest.raises(Stop):
        tacit.run(cyclic(), out=tmp_path, observe=stop_after(2), page=False)
    before = charges(tmp_path)
    monkeypatch.setattr("tacit.privacy.central.kind.banded", lambda rounds, bands, momentum: banded(rounds, bands, 0.5))
    with pytest.raises(BadInput, match="began with another factorisation"):
        tacit.run(cyclic(), out=tmp_path, resume=True, page=False)
    assert charges(tmp_path) == before


def test_a_finished_run_keeps_no_noise(tmp_path):
    tacit.run(cyclic(), out=tmp_path, page=False)
    assert "memory.past" not in load_file(tmp_path / CHECKPOINT)


def test_a_multiplier_that_the_budget_does_not_pay_for_ends_the_run_before_the_turn_that_overspends(tmp_path):
    history = tacit.run(cyclic(privacy={"noise_multiplier": 1.2}), out=tmp_path, page=False)
    assert history.summary["stopped"] == "budget"
    assert history.summary["rounds"] == 8  # every group had two turns
    assert history.guarantee.epsilon_max <= 6.0


def test_sampler_says_which_noise_and_bands_how_far_it_reaches():
    plan = build(cyclic()).plan
    assert isinstance(plan, BandedPlan)
    assert (plan.mechanism.strategy.bands, plan.mechanism.cycle, plan.participations) == (4, 4, 3)
    assert build(cyclic(privacy={"bands": 1})).plan.mechanism.strategy.bands == 1
    moved = build(cyclic(train={"server_optimizer": "momentum"})).plan.mechanism.strategy
    assert (
        moved.coefficients != plan.mechanism.strategy.coefficients
    )  # noise is spread for what the optimiser makes of it
    assert (
        moved
        == build(cyclic(train={"server_optimizer": {"kind": "momentum", "momentum": 0.9}})).plan.mechanism.strategy
    )


def test_another_seed_deals_other_groups_and_everything_of_the_plan_is_in_its_digest():
    assert samplers.cyclic(10, 3, seed=0) != samplers.cyclic(10, 3, seed=1)
    plans = [build(cyclic(**change)).plan for change in ({}, {"privacy": {"bands": 2}}, {"run": {"seed": 1}})]
    assert len({plan.digest() for plan in plans}) == len({plan.key(None) for plan in plans}) == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"train": {"clients_per_round": None}},
            "deals the clients into groups that take turns: set train.clients_per_round",
        ),
        ({"train": {"rounds": 3}}, "take turns in a cycle of 4 rounds, and there are 3: raise train.rounds"),
        ({"privacy": {"bands": 10}}, "Noise of 10 bands takes as many rounds to be whole, and there are 9"),
        (
            {"privacy": {"bands": 5}},
            "Noise of 5 bands is for clients that take part once in 5 rounds, and here they do in 4",
        ),
        ({"privacy": {"bands": 0}}, "privacy.bands"),
        ({"privacy": {"adaptive_clip": {"quantile": 0.5}}}, "it is a key of kind"),
        ({"privacy": {"epsilon": [1.0] * 9 + [2.0]}}, "their epsilons differ"),
        ({"privacy": {"rate_cap": 2.0}}, "is a key of kind"),
        ({"privacy": {"epsilon": float("inf")}}, "set privacy.noise_multiplier"),
        ({"train": {"min_clients": 2}}, "leave out train.min_clients"),
        ({"audit": {"canaries": 10}}, "use `tacit audit EXPERIMENT`, which covers it"),
        ({"privacy": {"bands": 3, "sampler": "poisson"}}, 'is a key of kind = "central", sampler = "cyclic"'),
        ({"privacy": {"kind": "local"}}, 'it is a key of kind = "central"'),
    ],
)
def test_what_cannot_be_kept_is_refused_in_a_sentence(change, words):
    with pytest.raises(BadInput, match=words.replace("(", r"\(")):
        build(cyclic(**change))
