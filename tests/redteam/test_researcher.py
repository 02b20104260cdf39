"""What a careless researcher does to a run and its ledger: each name is an attack that must fail."""

import json
import sys

import numpy as np
import pytest
import torch
from redteam.careless_researcher import EXPERIMENT, Researcher, correlation, csv_rows, natural_rows
from safetensors.torch import load_file, save_file

import tacit
from tacit.algorithms import finished
from tacit.engine.assemble import build
from tacit.engine.run_folder import CHECKPOINT
from tacit.errors import BadInput, LedgerError
from tacit.privacy.accounting import price
from tacit.privacy.ledger import holdings

SHARED_NOISE = 0.25  # 5 standard deviations of the correlation of 650 independent numbers, with room for the gradients


@pytest.fixture
def researcher(tmp_path, monkeypatch):
    return Researcher(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "changes",
    [
        {"train": {"learning_rate": 0.05}},
        {"privacy": {"noise_multiplier": 30.0}},
        {"privacy": {"clip": 0.5}},
        {"train": {"sampling_rate": 0.6}},
        {"name": "another"},
        {"privacy": {"epsilon": 49.0}},
        {"train": {"rounds": 4}},
    ],
)
def test_two_seeded_runs_on_one_ledger_that_differ_in_one_setting_share_no_noise(researcher, changes):
    researcher.run("one", privacy=researcher.shared())
    name = changes.pop("name", None)
    changes["privacy"] = researcher.shared() | changes.get("privacy", {})
    if name:
        changes["privacy"]["delta_share"] = 0.2
    researcher.run("two", **changes)
    for client in ("client-0", "client-1", "client-2"):
        one, two = researcher.update("one", client=client), researcher.update("two", client=client)
        assert abs(correlation(one, two)) < SHARED_NOISE


def test_two_seeded_runs_of_the_very_same_release_give_the_very_same_bits(researcher):
    for name in ("one", "two"):
        researcher.run(name, privacy=researcher.shared())
    for round in range(3):
        assert torch.equal(researcher.update("one", round), researcher.update("two", round))


def natural(researcher, **changes):
    data = {"name": "npz", "path": str(researcher.place / "rows.npz"), "partition": "natural", "classes": 2}
    data |= {"clients": 20, "examples_per_client": None} | changes
    return data


def test_rows_that_change_at_another_client_change_the_noise_of_every_client_that_meets_another_model(researcher):
    arrays = natural_rows(researcher.place / "rows.npz", tests=20)
    settings = {"data": natural(researcher), "model": {"name": "mlp"}, "privacy": researcher.shared()}
    researcher.run("one", **settings)
    arrays["x"][arrays["client"] == 1] += 1.0
    np.savez(researcher.place / "rows.npz", **arrays)
    researcher.run("two", **settings)
    first = [researcher.update(name, 0, "0") for name in ("one", "two")]
    later = [researcher.update(name, 1, "0") for name in ("one", "two")]
    assert torch.equal(*first)  # nothing that this release is a function of has changed
    assert abs(correlation(*later)) < SHARED_NOISE


def test_a_run_resumed_after_the_budget_file_was_raised_is_refused_and_releases_nothing(researcher):
    budgets = researcher.place / "budgets.csv"
    budgets.write_text("client,epsilon\n" + "".join(f"client-{k},0.3\n" for k in range(3)))
    settings = {"privacy": {"epsilon": {"file": str(budgets)}, "noise_multiplier": None}}
    researcher.run(killed_after=0, **settings)
    charged = len(researcher.seen)
    budgets.write_text("client,epsilon\n" + "".join(f"client-{k},20.0\n" for k in range(3)))
    with pytest.raises(LedgerError, match=r"has sealed this run for client-0 .*put its budgets and settings back"):
        researcher.run(resume=True, **settings)
    assert len(researcher.seen) == charged


def test_a_run_resumed_after_the_checkpoint_was_edited_pays_for_the_round_again(researcher):
    whole = researcher.run("whole")
    researcher.run("edited", killed_after=1)
    path = researcher.place / "edited" / CHECKPOINT
    tensors = load_file(path)
    tensors["params"] += 0.01
    tensors["round"] -= 1
    save_file(tensors, path)
    edited = researcher.run("edited", resume=True)
    assert len(list(edited.ledger.entries())) == len(list(whole.ledger.entries())) + 3
    assert edited.guarantee.epsilon_max > whole.guarantee.epsilon_max
    assert abs(correlation(*researcher.seen["edited", 1, "client-0"])) < SHARED_NOISE


def test_a_run_resumed_after_its_rows_were_edited_pays_for_the_round_again_with_new_noise(researcher):
    arrays = natural_rows(researcher.place / "rows.npz")
    settings = {"data": natural(researcher), "model": {"name": "mlp"}}
    researcher.run(killed_after=1, **settings)
    (researcher.place / "run" / CHECKPOINT).unlink()
    arrays["x"][arrays["client"] == 0] *= 1.5
    np.savez(researcher.place / "rows.npz", **arrays)
    again = researcher.run(resume=True, **settings)
    assert len([e for e in again.ledger.entries() if e["client"] == "0"]) == 5
    assert abs(correlation(*researcher.seen["run", 0, "0"])) < SHARED_NOISE


def test_a_lost_checkpoint_of_an_unchanged_run_costs_nothing_and_repeats_the_bits(researcher):
    researcher.run(killed_after=1)
    (researcher.place / "run" / CHECKPOINT).unlink()
    again = researcher.run(resume=True)
    assert len(list(again.ledger.entries())) == 9
    assert torch.equal(*researcher.seen["run", 0, "client-0"])


MODEL = """
from torch import nn

class Own(nn.Linear):
    pass

def make(input_shape, classes):
    return nn.Sequential(nn.Flatten(), Own(64, classes))
"""


def test_a_model_whose_code_was_edited_between_two_starts_is_another_attempt(researcher, monkeypatch):
    monkeypatch.syspath_prepend(str(researcher.place))
    digests = []
    texts = (MODEL, MODEL, MODEL.replace("    pass", "    scale = 2.0"), MODEL.replace("Own(64", "nn.Linear(64"))
    for text in texts:
        (researcher.place / "own_model.py").write_text(text)
        sys.modules.pop("own_model", None)
        digests.append(build(researcher.experiment(model={"name": "own_model:make"})).releases.attempt("a state"))
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_a_record_level_run_after_a_client_level_one_says_that_it_is_not_included(researcher):
    client = {"unit": "client", "epsilon": 30.0, "noise_multiplier": None}
    researcher.run("client", privacy=researcher.shared() | client)
    record = researcher.run("record", privacy=researcher.shared() | {"epsilon": 0.5, "noise_multiplier": None})
    assert record.guarantee.epsilon_max <= 0.5
    assert "Together" not in record.sentence
    assert "Not included is 1 run of its ledger that promised per another unit." in record.sentence
    assert (record.summary["other_runs"], record.summary["guarantee"]["others"]["apart"]) == (0, 1)


ROWS = [
    {
        "a": f"{np.sin(7 * i):.6f}",
        "b": f"{np.cos(3 * i):.6f}",
        "ward": f"w{i % 4}",
        "house": f"h{i % 3}",
        "label": i % 2,
    }
    for i in range(60)
]


def hospital(researcher, **changes):
    data = {"name": "csv", "path": str(researcher.place / "rows.csv"), "partition": "natural", "classes": ["0", "1"]}
    data |= {"numeric": "unscaled"}
    data |= {"client_column": "house", "columns": ["a", "b"], "examples_per_client": None}
    return data | {"clients": 20} | changes


@pytest.mark.parametrize(
    ("change", "seed"),
    [
        ({"client_column": "ward"}, 0),
        ({"test_share": 0.4}, 0),
        ({"test_share": 0.1}, 0),
        ({"label": "label", "columns": ["a"]}, 0),
        ({}, 5),  # which holds out other rows
    ],
)
def test_other_clients_or_other_test_rows_on_the_same_ledger_are_refused(researcher, change, seed):
    csv_rows(researcher.place / "rows.csv", ROWS)
    researcher.run("one", data=hospital(researcher), privacy=researcher.shared())
    with pytest.raises(LedgerError, match="belongs to other data or another partition"):
        researcher.run("two", data=hospital(researcher, **change), privacy=researcher.shared(), run={"seed": seed})


def with_tests(researcher, rows, tests):
    csv_rows(researcher.place / "rows.csv", rows)
    csv_rows(researcher.place / "tests.csv", tests)
    return hospital(researcher, test_path=str(researcher.place / "tests.csv"))


def test_a_row_that_changes_its_client_is_refused_at_once_and_in_two_steps(researcher):
    privacy = researcher.shared()
    researcher.run("one", data=with_tests(researcher, ROWS[:50], ROWS[50:]), privacy=privacy)
    moved = [*ROWS[1:50], ROWS[0] | {"house": "h1"}]
    with pytest.raises(LedgerError, match="a row of client h0 is now with client h1"):
        researcher.run("two", data=with_tests(researcher, moved, ROWS[50:]), privacy=privacy)
    assert researcher.run("three", data=with_tests(researcher, ROWS[1:50], ROWS[50:]), privacy=privacy).rounds
    with pytest.raises(LedgerError, match="a row of client h0 is now with client h1"):
        researcher.run("four", data=with_tests(researcher, moved, ROWS[50:]), privacy=privacy)
    both = [*ROWS[:50], ROWS[0] | {"house": "h1"}]  # a new row that happens to be equal is no move
    assert researcher.run("five", data=with_tests(researcher, both, ROWS[50:]), privacy=privacy).rounds
    with pytest.raises(LedgerError, match="a row of client h0 is now with client h1"):  # until the first one goes
        researcher.run("six", data=with_tests(researcher, moved, ROWS[50:]), privacy=privacy)


def test_of_very_many_rows_a_ledger_is_for_these_very_rows_and_no_others(researcher, monkeypatch):
    privacy, known = researcher.shared(), with_tests(researcher, ROWS[:50], ROWS[50:])
    one_by_one = privacy | {"ledger": str(researcher.place / "other.db")}
    researcher.run("few", data=known, privacy=one_by_one)
    monkeypatch.setattr(holdings, "MOST_ROWS", 40)
    researcher.run("one", data=known, privacy=privacy)
    assert researcher.run("two", data=known, privacy=privacy, train={"learning_rate": 0.05}).rounds
    moved = [*ROWS[1:50], ROWS[0] | {"house": "h1"}]
    for name, rows, tests in (("a", moved, ROWS[50:]), ("b", ROWS[1:50], ROWS[50:]), ("c", ROWS[:50], ROWS[49:])):
        with pytest.raises(LedgerError, match="it knows all together, and they are not the same"):
            researcher.run(name, data=with_tests(researcher, rows, tests), privacy=privacy)
    with pytest.raises(
        LedgerError, match="belongs to other data"
    ):  # few enough to be known one by one, but it knows none
        researcher.run("four", data=with_tests(researcher, ROWS[:30], ROWS[50:]), privacy=privacy)
    with pytest.raises(LedgerError, match="belongs to other data"):  # which knows few rows one by one
        researcher.run("five", data=with_tests(researcher, ROWS[:50], ROWS[50:]), privacy=one_by_one)


def test_a_protected_row_that_becomes_a_test_row_is_refused(researcher):
    researcher.run("one", data=with_tests(researcher, ROWS[:50], ROWS[50:]), privacy=researcher.shared())
    for name, rows in (("moved", ROWS[1:50]), ("copied", ROWS[:50])):
        with pytest.raises(LedgerError, match="is now among the test rows, which are public"):
            researcher.run(name, data=with_tests(researcher, rows, [*ROWS[50:], ROWS[0]]), privacy=researcher.shared())


def test_clients_that_only_changed_their_names_are_refused(researcher):
    researcher.run("one", data=with_tests(researcher, ROWS[:50], ROWS[50:]), privacy=researcher.shared())
    renamed = [row | {"house": f"new-{row['house']}"} for row in ROWS[:50]]
    with pytest.raises(LedgerError, match="is now with client new-h"):
        researcher.run("two", data=with_tests(researcher, renamed, ROWS[50:]), privacy=researcher.shared())


def test_rows_may_come_and_go_and_files_may_move_and_the_charges_carry_over(researcher):
    twice = [*ROWS[:50], ROWS[0] | {"house": "h1"}]  # equal rows at two clients from the first
    privacy = researcher.shared()
    first = researcher.run("one", data=with_tests(researcher, twice, ROWS[50:]), privacy=privacy)
    data = with_tests(researcher, [*twice[5:], ROWS[0]], ROWS[50:])
    (researcher.place / "rows.csv").rename(researcher.place / "moved.csv")
    second = researcher.run("two", data=data | {"path": str(researcher.place / "moved.csv")}, privacy=privacy)
    assert second.guarantee.others.runs == 1
    assert second.guarantee.others.epsilon > second.guarantee.epsilon_max + first.guarantee.epsilon_max * 0.99


def test_dealt_out_rows_that_were_edited_are_other_data_for_a_ledger(researcher):
    arrays = natural_rows(researcher.place / "rows.npz")
    data = natural(researcher, partition="iid", clients=3)
    researcher.run("one", data=data, privacy=researcher.shared())
    arrays["x"][0] += 1
    np.savez(researcher.place / "rows.npz", **arrays)
    with pytest.raises(LedgerError, match="belongs to other data"):
        researcher.run("two", data=data, privacy=researcher.shared())


def test_a_run_chosen_after_seeing_another_cannot_use_what_only_a_joint_price_would_leave(researcher, monkeypatch):
    """Joint composition is no filter for runs that are chosen adaptively: sealed prices are added instead.

    Such a run is refused before it begins; this one passes over that, and meets the ledger itself.
    """
    privacy = researcher.shared(0.4) | {"epsilon": 6.0}
    monkeypatch.setattr("tacit.simulation.refuse_spent", lambda parts: None)
    first = researcher.run("one", privacy=privacy | {"noise_multiplier": 3.0})
    assert first.guarantee.delta == pytest.approx(4e-6)
    sealed = first.ledger._db.execute("SELECT most, epsilon FROM seals").fetchall()
    assert {most for most, _ in sealed} == {5}  # 3 planned rounds and 2 more
    greedy = researcher.run("greedy", privacy=privacy | {"noise_multiplier": 0.8})
    assert greedy.rounds == []  # one round of it fits a joint price, and not beside the sealed one
    second = researcher.run("two", privacy=privacy | {"noise_multiplier": 2.0})
    events = [
        (price.from_text(entry["event"]), 1) for entry in second.ledger.entries() if entry["client"] == "client-0"
    ]
    together, joint = second.guarantee.others, price.epsilon(price.compose(events), delta=8e-6)
    assert len(second.rounds) == 3
    assert joint < together.epsilon <= 6.0
    assert together.delta == pytest.approx(8e-6)
    assert "arXiv:1605.08294" in second.sentence
    third = researcher.run("three", privacy=privacy | {"noise_multiplier": 50.0})
    assert third.rounds == []  # 0.4 + 0.4 + 0.4 of delta is more than all of it, whatever the epsilon
    assert not [entry for entry in third.ledger.entries() if entry["run"] == third.summary["run"]]


def test_a_shared_ledger_without_a_share_of_delta_said_beforehand_is_refused(researcher):
    with pytest.raises(BadInput, match=r"set privacy\.delta_share, for instance 0\.1"):
        researcher.run(privacy={"ledger": str(researcher.place / "shared.db")})


def test_a_run_whose_ledger_was_lost_refuses_to_go_on(researcher):
    researcher.run(killed_after=0)
    ledger = researcher.place / "run" / "ledger.db"
    kept = ledger.read_bytes()
    ledger.unlink()
    with pytest.raises(LedgerError, match="restore the ledger"):
        researcher.run(resume=True)
    assert not ledger.exists()
    (researcher.place / "run" / "ledger.mark").unlink()  # and without the mark the rounds themselves tell
    with pytest.raises(LedgerError, match="knows no charge for it: restore the ledger"):
        researcher.run(resume=True)
    ledger.write_bytes(kept)
    assert len(researcher.run(resume=True).rounds) == 3


@pytest.mark.parametrize("shared", [False, True])
def test_an_older_copy_of_the_ledger_is_noticed(researcher, shared):
    privacy = researcher.shared() if shared else {}
    ledger = researcher.place / ("shared.db" if shared else "run/ledger.db")
    researcher.run(killed_after=0, privacy=privacy)
    older = ledger.read_bytes()
    researcher.run(killed_after=1, resume=True, privacy=privacy)
    newer = ledger.read_bytes()
    ledger.write_bytes(older)
    with pytest.raises(LedgerError, match="older copy"):
        researcher.run(resume=True, privacy=privacy)
    if shared:  # nor does another run take it
        with pytest.raises(LedgerError, match="older copy"):
            researcher.run("another", privacy=privacy)
    ledger.write_bytes(newer)
    assert len(researcher.run(resume=True, privacy=privacy).rounds) == 3


@pytest.mark.parametrize("also", ["ledger.mark", None])
@pytest.mark.parametrize("force", [True, False])
def test_a_shared_ledger_that_was_deleted_with_its_mark_is_missed_by_the_runs_it_paid_for(researcher, force, also):
    privacy, ledger = researcher.shared(), researcher.place / "shared.db"
    researcher.run(killed_after=1, privacy=privacy)
    kept = {path.name: path.read_bytes() for path in researcher.place.glob("shared.db*")}
    assert {"shared.db", "shared.db.mark"} <= set(kept)
    for name in kept:
        (researcher.place / name).unlink()
    if also:  # without its mark, the run's rounds tell
        (researcher.place / "run" / also).unlink()
    with pytest.raises(LedgerError, match="restore the ledger"):
        researcher.run("run" if force else "another", privacy=privacy, force=force)
    assert researcher.seen.keys() & {("another", 0, "client-0")} == set()
    for name, content in kept.items():
        (researcher.place / name).write_bytes(content)
        (researcher.place / name).chmod(0o600)
    assert ledger.exists()
    assert len(researcher.run("third", privacy=privacy).rounds) == 3


def test_an_older_copy_of_a_shared_ledger_and_of_its_mark_is_missed_by_the_runs_it_paid_for(researcher):
    privacy = researcher.shared()
    researcher.run(killed_after=0, privacy=privacy)
    older = {path: path.read_bytes() for path in researcher.place.glob("shared.db*")}
    researcher.run(resume=True, privacy=privacy)
    for path, content in older.items():
        path.write_bytes(content)
    with pytest.raises(LedgerError, match="older copy"):
        researcher.run("another", privacy=privacy)


def test_runs_of_other_ledgers_beside_a_new_one_are_no_reason_to_refuse_it(researcher):
    researcher.run("alone")
    researcher.run("shared", privacy=researcher.shared())
    other = {"ledger": str(researcher.place / "other.db"), "delta_share": 0.1}
    assert len(researcher.run("new", privacy=other).rounds) == 3


def test_the_same_seed_does_not_draw_the_same_secret_cohorts_for_other_rows(researcher):
    arrays = natural_rows(researcher.place / "rows.npz", clients=6, tests=20)
    central = {"kind": "central", "noise_multiplier": 4.0}
    settings = {
        "data": natural(researcher),
        "train": {"clients_per_round": 2},
        "privacy": researcher.shared() | central,
    }
    researcher.run("one", **settings)
    researcher.run("two", **settings)  # the very same run may be repeated: it gives the very same bits
    arrays["x"][arrays["client"] == 1] += 1.0
    np.savez(researcher.place / "rows.npz", **arrays)
    with pytest.raises(LedgerError, match=r"the same seed would draw the same cohorts: change run\.seed"):
        researcher.run("three", **settings)


def test_the_noise_on_a_central_sum_is_another_where_the_sum_is(researcher):
    parts = build(researcher.experiment(privacy={"kind": "central", "noise_multiplier": 5.0}))
    state, names = parts.algorithm.init(parts.params), parts.population.names
    moved = []
    for scale in (0.1, 0.1, 0.2):
        messages = [tacit.types.Message(name, {"update": torch.full_like(parts.params, scale / 30)}) for name in names]
        after, _ = finished(parts.algorithm.collect(state, round=0), messages, parts.releases.server("a state"))
        moved.append(after.params - state.params)
    assert torch.equal(moved[0], moved[1])
    assert abs(correlation(moved[0], moved[2])) < SHARED_NOISE


def test_noise_from_the_operating_system_is_another_attempt_at_every_start(researcher):
    how = {"randomness": "os", "workers": 1, "at_once": False}  # by itself, where its noise is overheard
    researcher.run(killed_after=1, run=how)
    (researcher.place / "run" / CHECKPOINT).unlink()
    again = researcher.run(resume=True, run=how)
    assert len(list(again.ledger.entries())) == 3 * (2 + 3)
    assert abs(correlation(*researcher.seen["run", 0, "client-0"])) < SHARED_NOISE


def test_a_device_that_does_not_repeat_its_sums_makes_every_start_another_release(researcher):
    one, two = (build(researcher.experiment(run={"device": "cpu:0"})) for _ in range(2))
    assert one.releases.attempt("a state") != two.releases.attempt("a state")
    client = one.population[0]
    assert one.releases.client(client) != two.releases.client(client)


def test_a_summary_says_what_every_run_of_the_ledger_sealed(researcher):
    for name in ("one", "two"):
        researcher.run(name, privacy=researcher.shared())
    said = json.loads((researcher.place / "two" / "summary.json").read_text())
    assert said["other_runs"] == 1
    assert set(said["guarantee"]["others"]) == {"runs", "apart", "epsilon", "delta", "rule", "releases"}
    assert EXPERIMENT["train"]["rounds"] == said["rounds"]


def test_runs_that_promise_against_different_people_are_not_said_to_promise_the_same(researcher):
    """A run that hides updates from the server, after one that trusts it: their sum does not hold against the server."""
    train = {"rounds": 1, "sampling_rate": None, "batch_size": 20}
    central = {"kind": "central", "epsilon": 50.0, "noise_multiplier": 5.0}
    researcher.run("trusting", train=train, privacy=central | researcher.shared())
    local = {"kind": "local", "unit": "client", "epsilon": 50.0, "noise_multiplier": 5.0}
    said = researcher.run("local", train=train, privacy=local | researcher.shared()).sentence
    assert "promises something per client" in said
    assert "for whoever sees of each no more than its own promise allows" in said
