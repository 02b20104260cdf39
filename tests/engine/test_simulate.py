import json
import re
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import torch
from engine.conftest import SMALL
from safetensors.torch import load_file
from trained import Stop, same_model, stop_after, weights

import tacit
from tacit.engine import evaluate as evaluate_module
from tacit.engine import loop as loop_module
from tacit.engine import trainers
from tacit.engine.ledgers import open_ledger
from tacit.engine.run_folder import CHECKPOINT, open_folder
from tacit.errors import BadInput, BudgetExhausted, LedgerError, RunExists, TrainingDiverged
from tacit.privacy.accounting import price
from tacit.random import seeded
from tacit.wire import pack

FILES = (
    "experiment.toml", "rounds.jsonl", "rounds.csv", "ledger.db", "clients.json", "model.safetensors",
    "encoder.json", "summary.json", "report.html",
)  # fmt: skip
ROWS = {"sampling_rate": None, "batch_size": 20}
CENTRAL = {"kind": "central", "epsilon": 6.0, "clip": 0.5}
KINDS = {
    "record": {},
    "client": {"privacy": {"unit": "client"}, "train": ROWS},
    "running mean": {"train": {"averaging": 0.8}},
    "control variates": {"train": {"control": "scaffold", "schedule": "cosine", "clients_per_round": 3}},
    "pfa-plus": {
        "privacy": {"epsilon": [0.5, 0.5, 0.5, 0.5, 9.0, 10.0]},
        "aggregate": {"rule": "pfa-plus", "split": "kmeans"},
    },
    "own models": {
        "data": {"own_share": 0.2},
        "train": {"clients_per_round": 3},
        "personal": {"kind": "mean-regularised", "strength": 0.3, "when": "during"},
    },
    "frozen body": {"model": {"name": "tuned:head"}},
    "none": {"privacy": {"kind": "none", "epsilon": None}, "train": ROWS | {"control": "scaffold"}},
    "central": {"privacy": CENTRAL, "train": ROWS | {"clients_per_round": 3}},
    "central, frozen body": {"privacy": CENTRAL, "train": ROWS, "model": {"name": "tuned:head"}},
    "adaptive clip": {
        "privacy": CENTRAL | {"clip": 0.1, "adaptive_clip": {"quantile": 0.5, "count_noise": 2.0}},
        "train": ROWS,
    },
    "Adam": {"privacy": CENTRAL, "train": ROWS | {"server_optimizer": "adam"}},
    "sums of records": {
        "privacy": CENTRAL | {"unit": "record", "epsilon": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]},
        "train": {"local_steps": 1, "sampling_rate": None},
    },
    "sealed sums": {
        "privacy": {"kind": "distributed", "epsilon": 8.0, "rotation": "hadamard", "bits": 12},
        "protect": {"kind": "paillier", "key": {"bits": 2048}},
    },
}
ENDS = {"client-0": "epsilon_tightest", "client-5": "epsilon_loosest"}


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A run that has ended, for whoever only looks."""
    return tacit.run(tacit.Experiment(**SMALL), out=tmp_path_factory.mktemp("ended") / "run")


def test_a_run_leaves_its_files_all_of_them_named_and_a_complete_summary(ended):
    assert all((ended.out / name).is_file() for name in FILES)
    page = (Path(__file__).parents[2] / "docs" / "formats.md").read_text("utf-8")
    listed = page.partition("## A run's folder")[2].partition("\n## ")[0]
    assert all(path.name.startswith(".") or f"`{path.name}`" in listed for path in ended.out.iterdir())
    summary = json.loads((ended.out / "summary.json").read_text())
    assert (summary["stopped"], summary["rounds"], summary["clients"], len(ended.rounds)) == ("rounds", 4, 6, 4)
    assert 0 <= summary["test_accuracy"] <= 1
    assert set(summary["guarantee"]["epsilon"]) == {"min", "median", "max"}
    assert {"unit", "adversary", "relation", "delta"} <= set(summary["guarantee"])
    assert summary["guarantee"]["unit"] == "record"
    assert "add or remove one record of one client" in ended.sentence


def test_every_client_spends_at_most_its_budget_and_almost_all_of_it_and_nobody_is_out_of_it(ended):
    for index, limit in enumerate([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]):
        budget = tacit.Budget(limit, 1e-5)
        client = tacit.types.Client(index, f"client-{index}", budget, torch.zeros(1), torch.zeros(1))
        assert limit * 0.98 < ended.ledger.spent(client) <= limit
    assert ended.guarantee.epsilon_max <= 6.0  # every budget is spread over exactly these rounds
    assert [(record["out_of_budget"], record["dropped"]) for record in ended.rounds] == [(0, [])] * 4
    assert ended.summary["out_of_budget"] == 0


def test_the_seconds_of_a_round_are_those_of_its_stages(ended):
    for record in ended.rounds:
        stages = [record[f"seconds_{stage}"] for stage in ("admit", "train", "server", "evaluate", "write")]
        assert sum(stages) == pytest.approx(record["seconds"])
        assert record["seconds_train"] > 0
    assert ended.rounds[0]["seconds_write"] == 0 < ended.rounds[1]["seconds_write"]  # that of the round before


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_stopped_equals_one_that_was_not_and_one_in_three_processes(small, tmp_path, kind):
    experiment = small(**KINDS[kind])
    whole = tacit.run(experiment, out=tmp_path / "whole", page=False)
    with pytest.raises(Stop):
        tacit.run(experiment, out=tmp_path / "parts", observe=stop_after(1), page=False)
    resumed = tacit.run(experiment, out=tmp_path / "parts", resume=True, page=False)
    side_by_side = tacit.run(
        experiment.model_copy(update={"run": small(run={"workers": 3}).run}), out=tmp_path / "three", page=False
    )
    first = load_file(tmp_path / "whole" / CHECKPOINT)
    for other in (resumed, side_by_side):
        assert same_model(whole.out, other.out)
        tensors = load_file(other.out / CHECKPOINT)
        assert tensors.keys() == first.keys()
        assert all(torch.equal(tensors[name], first[name]) for name in first)
        assert untimed(other) == untimed(whole)
        assert other.guarantee == whole.guarantee
    if "train" in KINDS[kind] and "control" in KINDS[kind]["train"]:
        assert bool((first["control.clients"] != 0).any())


def untimed(history):
    bytes_of_keys = ("uplink_bytes", "downlink_bytes")  # a start has its own keys, and proofs of other lengths
    return [
        {key: value for key, value in record.items() if not key.startswith("seconds") and key not in bytes_of_keys}
        for record in history.rounds
    ]


@pytest.mark.parametrize("kind", ["record", "central", "sealed sums"])
def test_noise_from_the_operating_system_differs_from_run_to_run_is_named_and_paid_again(small, tmp_path, kind):
    settings = {name: dict(table) for name, table in KINDS[kind].items()} | {"run": {"randomness": "os"}}
    settings["privacy"] = settings.get("privacy", {}) | {"epsilon": float("inf"), "noise_multiplier": 1.0}
    whole = tacit.run(small(**settings), out=tmp_path / "whole", page=False)
    assert "operating system" in whole.guarantee.randomness
    with pytest.raises(Stop):
        tacit.run(small(**settings), out=tmp_path / "parts", observe=stop_after(1), page=False)
    (tmp_path / "parts" / CHECKPOINT).unlink()  # as if the crash had come before the first checkpoint
    again = tacit.run(small(**settings), out=tmp_path / "parts", resume=True, page=False)
    assert not same_model(whole.out, again.out)
    assert again.guarantee.epsilon_min > whole.guarantee.epsilon_max
    assert 4 * len(list(again.ledger.entries())) == 6 * len(list(whole.ledger.entries()))  # rounds that were paid


def test_the_epsilon_of_every_round_is_what_the_ledger_holds_after_it(small, tmp_path):
    history = tacit.run(small(train={"clients_per_round": 5}), out=tmp_path, page=False)
    taken = {name: [e["round"] for e in history.ledger.entries() if e["client"] == name] for name in ENDS}
    for record in history.rounds:
        for name, told in ENDS.items():
            ((step, steps),) = history.ledger.composition(name, "record")
            rounds = sum(round <= record["round"] for round in taken[name])
            spent = price.epsilon(((step, steps // len(taken[name]) * rounds),), delta=1e-5) if rounds else 0.0
            assert record[told] == pytest.approx(spent, rel=1e-9)
    spent = [price.epsilon(history.ledger.composition(name, "record"), delta=1e-5) for name in taken]
    assert history.rounds[-1]["epsilon_loosest"] == pytest.approx(
        spent[list(ENDS.values()).index("epsilon_loosest")], rel=1e-9
    )
    assert history.guarantee.epsilon_max >= max(spent) * (1 - 1e-9)  # another may have been drawn more often


def test_the_epsilon_of_a_long_run_is_rounded_up_to_the_next_mark(small, tmp_path):
    """While 130 rounds go on, epsilon is that of the next ninth round: never less than was spent."""
    found = []
    parts = tacit.engine.assemble.build(small(train={"rounds": 130}))
    folder = open_folder(tmp_path, parts.experiment, resume=False, force=False)
    ledger = open_ledger(parts, folder)
    budgets, client = loop_module.BudgetTracker(parts, ledger), parts.population[0]
    for round in range(11):
        ledger.open_round(round, str(round))
        ledger.admit([client], parts.cost, hint=parts.plan.participations)
        found.append(budgets.after(round, [client])["epsilon_tightest"])
    folder.close()
    ((step, each),) = price.compose([(parts.cost(client), 1)])
    marks = {count: price.epsilon(((step, each * count),), delta=1e-5) for count in (9, 18)}
    assert found == pytest.approx([marks[9]] * 9 + [marks[18]] * 2, rel=1e-9)


def test_who_runs_out_of_budget_is_named_once_also_after_a_resume(small, tmp_path):
    values = {"strategy": "same-noise", "noise_multiplier": 5.0}
    experiment = small(train={"rounds": 80, "local_steps": 4}, privacy=values)
    whole = tacit.run(experiment, out=tmp_path / "whole", page=False)
    with pytest.raises(Stop):
        tacit.run(experiment, out=tmp_path / "parts", observe=stop_after(30))
    resumed = tacit.run(experiment, out=tmp_path / "parts", resume=True, page=False)
    dropped = [record["dropped"] for record in whole.rounds]
    assert dropped == [record["dropped"] for record in resumed.rounds]
    names = [name for round in dropped for name in round]
    assert sorted(names) == [f"client-{i}" for i in range(6)]
    last = {entry["client"]: entry["round"] for entry in whole.ledger.entries()}
    cohorts = [record["cohort"] for record in whole.rounds]
    assert (cohorts[0], cohorts[-1], whole.rounds[-1]["out_of_budget"]) == (6, 1, 6)
    assert cohorts == sorted(cohorts, reverse=True)
    assert whole.summary["stopped"] == "budget"
    assert whole.guarantee.epsilon_max <= 6.0
    assert all(last[name] == number for number, round in enumerate(dropped) for name in round)


def test_the_charge_is_on_disk_before_anybody_trains(small, tmp_path, monkeypatch):
    seen, real = [], trainers.OneByOne.__call__

    def watched(self, received, round, cohort):
        with sqlite3.connect(tmp_path / "ledger.db") as other:
            rows = other.execute("SELECT client FROM charges WHERE round = ?", (round,)).fetchall()
        seen.append(sorted(name for (name,) in rows) == sorted(f"client-{i}" for i in cohort))
        return real(self, received, round, cohort)

    monkeypatch.setattr(trainers.OneByOne, "__call__", watched)
    tacit.run(small(run={"workers": 1}), out=tmp_path)
    assert seen == [True] * 4


@pytest.mark.parametrize(("kind", "step"), [("record", "_charge"), ("central", "_link"), ("sealed sums", "_charge")])
def test_a_charge_that_cannot_be_written_releases_nothing(small, tmp_path, monkeypatch, kind, step):
    read = []
    monkeypatch.setattr(loop_module.Traffic, "receive", lambda *told, **how: read.append(told))

    def full(self, *batch):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(f"tacit.privacy.ledger.ledger.Ledger.{step}", full)
    with pytest.raises(LedgerError, match="nothing was released"):
        tacit.run(small(**KINDS[kind]), out=tmp_path)
    assert read == []
    assert not (tmp_path / CHECKPOINT).exists()


@pytest.mark.parametrize(
    ("privacy", "batches", "apart"),
    [
        ({"clip": 1e4, "noise_multiplier": 1e-9}, {"sampling_rate": 1.0}, 1e-4),
        ({"kind": "central", "clip": 1e2, "noise_multiplier": 1e-12}, {"sampling_rate": None, "batch_size": 40}, 1e-5),
        ({"kind": "distributed", "clip": 50.0, "noise_multiplier": 1e-8}, {"sampling_rate": 1.0}, 2e-2),
    ],
)
def test_without_noise_or_clipping_every_kind_is_fedavg_on_full_batches(small, tmp_path, privacy, batches, apart):
    common = {"rounds": 3, "local_steps": 2, "learning_rate": 0.1} | batches
    tacit.run(small(train=common, privacy={"epsilon": float("inf")} | privacy), out=tmp_path / "private", page=False)
    tacit.run(small(train=common, privacy={"kind": "none", "epsilon": None}), out=tmp_path / "plain", page=False)
    a, b = weights(tmp_path / "private"), weights(tmp_path / "plain")
    assert all(torch.allclose(a[name], b[name], atol=apart) for name in a)


def test_the_run_stops_before_fewer_than_the_fewest_clients_take_part(small, tmp_path):
    train = {"rounds": 60, "min_clients": 4}
    history = tacit.run(small(train=train, privacy={"noise_multiplier": 2.0}), out=tmp_path)
    assert history.summary["stopped"] == "budget"
    assert min(record["cohort"] for record in history.rounds) >= 4
    charged = {entry["round"] for entry in history.ledger.entries()}
    assert charged == set(range(len(history.rounds)))


def test_a_budget_too_small_for_one_round_is_told_what_would_be_enough_before_anything_is_written(small, tmp_path):
    privacy = {"noise_multiplier": 0.5}
    with pytest.raises(BudgetExhausted, match=r"privacy.epsilon = [\d.]+ would be enough") as caught:
        tacit.run(small(privacy=privacy | {"epsilon": 1.0}), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    enough = float(re.search(r"epsilon = ([\d.]+) would", str(caught.value)).group(1))
    with pytest.raises(BudgetExhausted):
        tacit.run(small(privacy=privacy | {"epsilon": 0.98 * enough}), out=tmp_path / "run")
    history = tacit.run(small(privacy=privacy | {"epsilon": enough}), out=tmp_path / "run", page=False)
    assert len(history.rounds) >= 1
    assert history.guarantee.epsilon_max <= enough


def test_two_runs_in_one_ledger_share_one_budget(small, tmp_path):
    shared = {"ledger": str(tmp_path / "shared.db"), "delta_share": 0.5}
    tacit.run(small(privacy=shared), out=tmp_path / "a")
    with pytest.raises(BudgetExhausted, match="Nothing is left of any client's epsilon"):
        tacit.run(small(privacy=shared), out=tmp_path / "b")
    with pytest.raises(LedgerError, match="other data"):  # another partition
        tacit.run(small(privacy=shared, run={"seed": 9}), out=tmp_path / "other")
    assert not (tmp_path / "b").exists()
    assert tacit.run(small(), out=tmp_path / "c").rounds


def test_without_privacy_no_ledger_is_kept_and_nothing_is_promised(small, tmp_path):
    history = tacit.run(small(privacy={"kind": "none"}), out=tmp_path)
    assert history.guarantee is None
    assert history.summary["guarantee"] is None
    assert history.sentence.startswith("No privacy is promised")
    assert not (tmp_path / "ledger.db").exists()


def test_a_loss_that_is_not_finite_stops_the_run_by_client_and_round_and_keeps_the_checkpoint(small, tmp_path):
    tacit.run(small(), out=tmp_path / "good")
    experiment = small(train={"learning_rate": 1e38}, privacy={"kind": "none"})
    with pytest.raises(TrainingDiverged, match=r"client client-\d in round 1"):
        tacit.run(experiment, out=tmp_path / "bad")
    with pytest.raises(TrainingDiverged, match=r"in round \d"):
        tacit.run(small(train={"learning_rate": 1e38}), out=tmp_path / "private")


def test_divergence_in_a_later_round_keeps_the_last_good_checkpoint(small, tmp_path, monkeypatch):
    real = evaluate_module.receive

    def poisoned(raw, *, round):
        message = real(raw, round=round)
        if round == 2:
            message.tensors["update"][0] = float("nan")
        return real(pack(message), round=round)

    monkeypatch.setattr(evaluate_module, "receive", poisoned)
    with pytest.raises(TrainingDiverged, match=r"Client client-0 sent a update that is not finite in round 3"):
        tacit.run(small(), out=tmp_path)
    kept = load_file(tmp_path / CHECKPOINT)
    assert int(kept["round"]) == 2
    assert torch.isfinite(kept["params"]).all()


def test_a_second_run_in_the_same_folder_is_refused_unless_it_resumes_or_is_forced(small, tmp_path):
    tacit.run(small(), out=tmp_path / "run")
    with pytest.raises(RunExists, match=r"--resume .* --force"):
        tacit.run(small(), out=tmp_path / "run")
    tacit.run(small(), out=tmp_path / "run", force=True)
    assert (tmp_path / "run.1" / "ledger.db").is_file()
    finished = tacit.run(small(), out=tmp_path / "run", resume=True)
    assert len(finished.rounds) == 4


def test_resuming_with_other_settings_or_nothing_to_resume_is_refused(small, tmp_path):
    with pytest.raises(BadInput, match="no run to resume"):
        tacit.run(small(), out=tmp_path / "none", resume=True)
    tacit.run(small(), out=tmp_path / "run")
    with pytest.raises(BadInput, match="other settings"):
        tacit.run(small(train={"rounds": 9}), out=tmp_path / "run", resume=True)


@pytest.mark.parametrize("how", ["resume", "force"])
def test_two_processes_cannot_run_in_one_folder(small, tmp_path, how):
    import multiprocessing

    def inside(answer):
        try:
            tacit.run(small(), out=tmp_path, **{how: True})
            answer.put("ran")
        except RunExists as error:
            answer.put(str(error))

    def ready(parts, past):
        answer = multiprocessing.get_context("fork").Queue()
        other = multiprocessing.get_context("fork").Process(target=inside, args=(answer,))
        other.start()
        answers.append(answer.get(timeout=60))
        other.join()

    answers = []
    tacit.run(small(), out=tmp_path, ready=ready)
    assert "Another process is running" in answers[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": {"clients_per_round": 7}}, "clients_per_round <= 6"),
        ({"privacy": {"epsilon": [1.0, 2.0]}}, "2"),
        ({"privacy": {"epsilon": float("inf")}}, "opts a client out"),
        ({"run": {"device": "warp"}}, "run.device"),
        ({"aggregate": {"rule": "men"}}, "'mean'"),
        ({"model": {"name": "log"}}, "logr"),
        ({"data": {"clients": 2000, "examples_per_client": None}}, "2000|2,000"),
    ],
)
def test_what_cannot_be_built_is_refused_in_a_sentence(small, tmp_path, change, message):
    with pytest.raises(tacit.errors.TacitError, match=message):
        tacit.run(small(**change), out=tmp_path)


def test_cohorts_are_uniform_over_the_clients_that_can_pay(small, tmp_path):
    experiment = small(train={"rounds": 300, "clients_per_round": 2, "local_steps": 1}, privacy={"kind": "none"})
    parts = tacit.engine.assemble.build(experiment)
    budgets = loop_module.BudgetTracker(parts, None)
    counts = np.zeros(6)
    for r in range(3000):
        for client in budgets.sample(r, seeded(1)):
            counts[client.index] += 1
    assert counts.sum() == 6000
    assert abs(counts - 1000).max() < 5 * np.sqrt(3000 * (1 / 3) * (2 / 3))


def test_a_natural_partition_with_another_test_split_is_other_data_for_a_ledger(tmp_path):
    rows = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", x=rows.normal(size=(90, 4)), y=rows.integers(0, 2, 90), client=np.arange(90) % 3)
    values = {
        "data": {"name": "npz", "path": str(tmp_path / "a.npz"), "partition": "natural", "classes": 2},
        "train": {"rounds": 2},
        "privacy": {"kind": "local", "epsilon": 3.0, "ledger": str(tmp_path / "shared.db"), "delta_share": 0.1},
    }
    tacit.run(tacit.Experiment(**values), out=tmp_path / "one")
    with pytest.raises(LedgerError, match="other data"):
        tacit.run(tacit.Experiment(**values, run={"seed": 1}), out=tmp_path / "two")


def test_a_resumed_run_that_can_pay_nothing_any_more_ends_and_says_whose_spending_it_reports(small, tmp_path):
    def stop(parts, past):
        raise InterruptedError

    shared = {"ledger": str(tmp_path / "shared.db"), "delta_share": 0.5}
    with pytest.raises(InterruptedError):
        tacit.run(small(privacy=shared), out=tmp_path / "b", ready=stop)
    first = tacit.run(small(privacy=shared), out=tmp_path / "a")
    second = tacit.run(small(privacy=shared), out=tmp_path / "b", resume=True)
    assert (second.rounds, second.summary["stopped"]) == ([], "budget")
    assert second.guarantee.others.epsilon == pytest.approx(first.guarantee.epsilon_max)
    assert second.guarantee.epsilon_max == 0
    assert "the epsilon spent in this run is at most 0.000" in second.sentence
    assert "Together with the 1 other run of its ledger that promises this per record" in second.sentence


@pytest.mark.parametrize(
    ("privacy", "rule"),
    [
        ({}, "random-effects"),
        ({"epsilon": 3.0}, "mean"),
        ({"epsilon": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "noise_multiplier": 1.0}, "mean"),
        ({"kind": "none", "epsilon": None}, "mean"),
    ],
)
def test_without_a_rule_clients_are_combined_by_random_effects_where_their_noise_differs(
    small, tmp_path, privacy, rule
):
    history = tacit.run(small(privacy=privacy, train={"rounds": 1}), out=tmp_path / "a")
    assert history.summary["rule"] == rule
    said = tacit.run(small(privacy=privacy, train={"rounds": 1}, aggregate={"rule": rule}), out=tmp_path / "b")
    assert same_model(tmp_path / "a", tmp_path / "b")
    assert said.summary["rule"] == rule


def test_the_file_of_a_run_names_the_rule_that_ran_and_a_run_without_it_goes_on(small, tmp_path):
    with pytest.raises(Stop):
        tacit.run(small(), out=tmp_path, observe=stop_after(1))
    path = tmp_path / "experiment.toml"
    assert tacit.Experiment.load(path) == small(aggregate={"rule": "random-effects"})
    with pytest.raises(BadInput, match="started with other settings"):
        tacit.run(small(aggregate={"rule": "mean"}), out=tmp_path, resume=True)
    path.write_text(small().toml())  # as it was written before
    with pytest.raises(BadInput, match="started with other settings"):
        tacit.run(small(aggregate={"rule": "random-effects"}), out=tmp_path, resume=True)
    assert len(tacit.run(small(), out=tmp_path, resume=True, page=False).rounds) == 4


@pytest.mark.parametrize(
    "privacy", [{"kind": "none"}, {"kind": "local", "epsilon": 8.0}, {"kind": "central", "epsilon": 8.0}]
)
def test_clients_that_train_at_once_on_a_cpu_learn_and_a_run_that_goes_on_is_another_release(small, tmp_path, privacy):
    asked = small(run={"at_once": True}, privacy=privacy, train={"rounds": 3})
    seen = []

    def stop(record):
        seen.append(record)
        if record["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tacit.run(asked, out=tmp_path / "run", observe=stop, page=False)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["clients_at_once"] >= 1
    history = tacit.run(asked, out=tmp_path / "run", resume=True, page=False)
    assert [record["round"] for record in history.rounds] == [0, 1, 2]
    first, second = (tacit.run(asked, out=tmp_path / name, page=False) for name in ("one", "two"))
    if privacy["kind"] != "none":  # no two starts share their noise
        assert not same_model(tmp_path / "one", tmp_path / "two")
    assert first.rounds[0]["uplink_bytes"] == second.rounds[0]["uplink_bytes"] == history.rounds[0]["uplink_bytes"]


def test_clients_that_cannot_train_at_once_are_told_why_before_anybody_pays(small, tmp_path):
    asked = small(run={"at_once": True}, model={"name": "stacks:mixing"}, privacy={"kind": "central", "epsilon": 8.0})
    with pytest.raises(BadInput, match="cannot be trained at once: A layer mixes"):
        tacit.run(asked, out=tmp_path / "run", page=False)
    assert not (tmp_path / "run" / "ledger.db").exists()
