"""Several runs, and clients of any name, on one ledger."""

import io
import json
import multiprocessing
import sqlite3
import sys
from contextlib import closing

import numpy as np
import pytest
from redteam.careless_researcher import Researcher, natural_rows
from rich.console import Console

import tacit
from tacit.cli.app import main
from tacit.errors import BadData, BudgetExhausted, LedgerError
from tacit.privacy.ledger import disk
from tacit.report import plan
from tacit.report.progress import Display

WRITERS, TIMES = 4, 150


@pytest.fixture
def researcher(tmp_path, monkeypatch):
    return Researcher(tmp_path, monkeypatch)


def wrote_all(path, found):
    try:
        for number in range(TIMES):
            disk.write_watermark(path, number, str(number))
            known = disk.read_watermark(path)
            assert known is not None
            assert known[0] >= number
        found.put("all")
    except Exception as error:  # noqa: BLE001 - whatever it was, the test shows it
        found.put(repr(error))


def test_runs_that_charge_one_ledger_at_once_do_not_break_or_set_back_its_mark(tmp_path):
    """Two of them wrote into one new file: the mark could not be read, and who came second heard that nothing was charged."""
    context = multiprocessing.get_context("fork")
    found = context.Queue()
    writers = [context.Process(target=wrote_all, args=(tmp_path / "shared.mark", found)) for _ in range(WRITERS)]
    for writer in writers:
        writer.start()
    assert [found.get() for _ in writers] == ["all"] * WRITERS
    for writer in writers:
        writer.join()
    assert disk.read_watermark(tmp_path / "shared.mark") == (TIMES - 1, str(TIMES - 1))


@pytest.mark.parametrize("name", ["", "every client"])
def test_a_client_whose_name_means_everybody_or_the_test_rows_is_refused(researcher, name):
    """Rows of a client without a name could become test rows, and its releases were never counted against its budget."""
    place = researcher.place / "rows.npz"
    arrays = natural_rows(place)
    np.savez(place, **arrays | {"client": np.array([name] * len(arrays["y"]))})
    data = {"name": "npz", "path": str(place), "partition": "natural", "classes": 2, "examples_per_client": None}
    with pytest.raises(BadData, match="name of its own"):
        researcher.run("one", data=data | {"clients": 20}, model={"name": "mlp"}, privacy=researcher.shared())
    assert not (researcher.place / "shared.db").exists()


FIRST = {"epsilon": 6.0, "noise_multiplier": 3.0}
FOLLOWING = {
    "given noise": {"epsilon": 6.0, "noise_multiplier": 2.0},
    "less noise": {"epsilon": 6.0, "noise_multiplier": 1.2},
    "spread": {"epsilon": 6.0, "noise_multiplier": None},
    "client level, which the first was not": {"epsilon": 6.0, "noise_multiplier": None, "unit": "client"},
}


@pytest.mark.parametrize("following", FOLLOWING.values(), ids=FOLLOWING)
def test_a_plan_counts_what_other_runs_have_sealed_and_the_run_does_what_was_planned(researcher, following):
    """`tacit plan` said 50 rounds, and the run that followed did none: its ledger was not looked at."""
    researcher.run("one", privacy=researcher.shared() | FIRST)
    (row,) = plan.of_experiment(researcher.experiment(privacy=researcher.shared() | following, train={"rounds": 6}))
    second = researcher.run("two", privacy=researcher.shared() | following, train={"rounds": 6})
    assert row["affordable_rounds"] == [len(second.rounds)] * 2
    assert len(second.rounds) > 0
    assert row["noise_multiplier"] == [second.summary["noise_multiplier"]["min"]] * 2
    if "unit" in following:
        assert "ledger" not in row
        assert len(second.rounds) == 6
    else:
        assert (
            row["epsilon_sealed"] == [pytest.approx(second.guarantee.others.epsilon - second.guarantee.epsilon_max)] * 2
        )
        assert (row["ledger_runs"], row["ledger_delta"]) == (1, pytest.approx(1e-6))
        assert second.guarantee.others.epsilon <= 6.0


def test_central_runs_are_planned_with_what_is_left_to_everybody(researcher):
    central = {"kind": "central", "epsilon": 4.0, "noise_multiplier": 5.0}
    researcher.run("one", privacy=researcher.shared() | central)
    following = researcher.shared() | central | {"noise_multiplier": None}
    (row,) = plan.of_experiment(researcher.experiment(privacy=following))
    second = researcher.run("two", privacy=following)
    assert row["affordable_rounds"] == [3, 3]
    assert len(second.rounds) == 3
    assert second.guarantee.others.epsilon <= 4.0


@pytest.mark.parametrize(
    ("share", "following", "sentence"),
    [
        (
            0.1,
            {"epsilon": 1.0, "noise_multiplier": None},
            "Nothing is left of any client's epsilon: the 1 run of the ledger",
        ),
        (
            0.1,
            {"epsilon": 6.0, "noise_multiplier": 0.5},
            "What is left of epsilon pays for no round of enough clients: the 1 run",
        ),
        (0.95, {"epsilon": 60.0, "noise_multiplier": 9.0}, "Too little of delta is left for another run: the 1 run"),
    ],
)
def test_a_plan_that_a_run_could_not_begin_is_refused_in_a_sentence(researcher, share, following, sentence):
    researcher.run("one", privacy=researcher.shared() | FIRST)
    privacy = researcher.shared(share) | following
    with pytest.raises(BudgetExhausted) as said:
        plan.of_experiment(researcher.experiment(privacy=privacy))
    assert str(said.value).startswith(sentence)
    assert str(researcher.place / "shared.db") in str(said.value)
    kept = (researcher.place / "shared.db").read_bytes()
    with pytest.raises(BudgetExhausted) as refused:
        researcher.run("two", privacy=privacy)
    assert str(refused.value) == str(said.value)
    assert not (researcher.place / "two").exists()
    assert (researcher.place / "shared.db").read_bytes() == kept


def test_a_plan_writes_nothing_into_a_ledger_and_makes_none(researcher):
    plan.of_experiment(researcher.experiment(privacy=researcher.shared() | FIRST))
    assert list(researcher.place.iterdir()) == []
    researcher.run("one", privacy=researcher.shared() | FIRST)
    kept = {path: path.read_bytes() for path in researcher.place.iterdir() if path.is_file()}
    plan.of_experiment(researcher.experiment(privacy=researcher.shared() | FIRST))
    assert {path: path.read_bytes() for path in researcher.place.iterdir() if path.is_file()} == kept


def test_a_plan_is_refused_for_a_ledger_that_would_refuse_its_run(researcher):
    """Another seed shares the rows out otherwise; a ledger that is gone or went back knows too little."""
    privacy = researcher.shared() | FIRST
    researcher.run("one", privacy=privacy)
    with pytest.raises(LedgerError, match="other data"):
        plan.of_experiment(researcher.experiment(privacy=privacy, run={"seed": 3}))
    ledger = researcher.place / "shared.db"
    older = ledger.read_bytes()
    researcher.run("two", privacy=privacy)
    ledger.write_bytes(older)
    with pytest.raises(LedgerError, match="older copy"):
        plan.of_experiment(researcher.experiment(privacy=privacy))
    ledger.unlink()
    with pytest.raises(LedgerError, match="restore the ledger"):
        plan.of_experiment(researcher.experiment(privacy=privacy))


def test_a_resumed_run_keeps_the_noise_it_began_with_although_others_have_sealed_meanwhile(researcher):
    """The noise of a spread budget is sized for what was left when the run began: other noise would be another price."""
    researcher.run("one", privacy=researcher.shared() | FIRST)
    spread = researcher.shared() | {"epsilon": 6.0, "noise_multiplier": None}
    (row,) = plan.of_experiment(researcher.experiment(privacy=spread))
    researcher.run("two", privacy=spread, killed_after=0)
    researcher.run("three", privacy=researcher.shared() | {"epsilon": 60.0, "noise_multiplier": 3.0})
    resumed = researcher.run("two", privacy=spread, resume=True)
    assert resumed.summary["noise_multiplier"]["max"] == row["noise_multiplier"][1]
    assert len(resumed.rounds) == 1  # the others have sealed more than its clients allow, so it ends


def test_what_a_shared_ledger_held_is_said_before_the_first_round(researcher):
    screen = io.StringIO()
    for name in ("one", "two"):
        experiment = researcher.experiment(privacy=researcher.shared() | FIRST)
        with Display(Console(file=screen, width=300)) as display:
            tacit.run(experiment, out=researcher.place / name, ready=display.ready, page=False)
    assert screen.getvalue().count("held 1 other run when this one began: up to epsilon") == 1
    assert "per record was sealed and counts as spent; rounds are paid from what is left." in screen.getvalue()


def test_a_run_after_a_spread_one_is_not_given_noise_for_the_crumb_that_rounding_left(researcher):
    spread = researcher.shared() | {"epsilon": 6.0, "noise_multiplier": None}
    first = researcher.run("one", privacy=spread)
    assert 0 < 6.0 - first.guarantee.epsilon_max < 0.06
    with pytest.raises(BudgetExhausted, match="Nothing is left"):
        plan.of_experiment(researcher.experiment(privacy=spread))
    with pytest.raises(BudgetExhausted, match="Nothing is left"):
        researcher.run("two", privacy=spread)


def test_a_spent_budget_is_said_before_a_run_with_exit_code_2_and_a_run_that_it_ends_is_no_failure(
    researcher, monkeypatch, capsys
):
    """A second run trained nothing, left a model without training, and said that all was well."""
    file = researcher.place / "experiment.toml"
    privacy = researcher.shared() | {"epsilon": 6.0, "noise_multiplier": 1.2}
    file.write_text(researcher.experiment(privacy=privacy, train={"rounds": 40}).toml())
    codes = []
    for name in ("one", "two"):
        monkeypatch.setattr(sys, "argv", ["tacit", "run", str(file), "--out", str(researcher.place / name), "--json"])
        with pytest.raises(SystemExit) as ended:
            main()
        codes.append(ended.value.code)
    said = capsys.readouterr()
    assert codes == [0, 2]
    assert 0 < json.loads(said.out)["rounds"] < 40
    assert said.err.startswith("What is left of epsilon pays for no round of enough clients: the 1 run of the ledger")
    assert said.err.count("\n") == 1
    assert not (researcher.place / "two").exists()


def test_a_ledger_that_a_kill_left_in_the_middle_of_a_charge_is_planned_with_and_not_touched(researcher):
    """Its journal waits to be rolled back, which a reader who may not write cannot do: neither plan nor run would begin."""
    privacy = researcher.shared() | FIRST
    researcher.run("one", privacy=privacy)
    ledger, journal = researcher.place / "shared.db", researcher.place / "shared.db-journal"
    (before,) = plan.of_experiment(researcher.experiment(privacy=privacy))
    with closing(sqlite3.connect(ledger, isolation_level=None)) as book:
        book.execute("PRAGMA cache_size=1")
        book.execute("BEGIN IMMEDIATE")
        book.executemany("INSERT INTO facts VALUES (?, ?)", [(f"{n}", "x" * 500) for n in range(500)])
        torn, waiting = ledger.read_bytes(), journal.read_bytes()
        book.execute("ROLLBACK")
    ledger.write_bytes(torn)
    journal.write_bytes(waiting)
    assert plan.of_experiment(researcher.experiment(privacy=privacy)) == [before]
    assert (ledger.read_bytes(), journal.read_bytes()) == (torn, waiting)
    assert len(researcher.run("two", privacy=privacy).rounds) == 3
