import csv
import io
import json
import shutil
import sqlite3
from dataclasses import replace

import pytest

import tacit
from tacit.cli import ledger
from tacit.errors import LedgerError, TacitError
from tacit.privacy.guarantee import ACCOUNTANT, agreed, sentence
from tacit.privacy.ledger import reader as books
from tacit.privacy.ledger.disk import COLUMNS


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of three clients and two rounds."""
    experiment = tacit.Experiment(
        data={"clients": 3, "examples_per_client": 40},
        train={"rounds": 2, "local_steps": 2, "sampling_rate": 0.5},
        privacy={"kind": "local", "epsilon": [1.0, 2.0, 3.0]},
    )
    return tacit.run(experiment, out=tmp_path_factory.mktemp("ledgers") / "run")


@pytest.fixture
def copy(run, tmp_path):
    (tmp_path / "experiment.toml").write_bytes((run.out / "experiment.toml").read_bytes())
    for name in ("ledger.db", "ledger.db.secret"):
        shutil.copy(run.out / name, tmp_path)
    return tmp_path


def edit(folder, statement):
    with sqlite3.connect(folder / "ledger.db") as book:
        book.execute(statement)


def test_the_table_states_what_the_run_stated(run):
    table = ledger.by_client(run.out, delta=None)
    cells = table.texts()
    assert cells["charges"] == ["2", "2", "2"]
    assert float(cells["epsilon spent"][2]) == pytest.approx(run.guarantee.epsilon_max, abs=1e-3)
    assert "delta 1e-05" in table.notes[0]
    assert len(ledger.by_charge(run.out).texts()["client"]) == 6


def test_a_ledger_of_another_format_is_named(copy, run):
    edit(copy, "UPDATE facts SET value = '1' WHERE name = 'format'")
    assert "it has format 1" in str(list(ledger.faults(copy, delta=None)))


def test_what_everybody_was_charged_for_counts_for_each_client():
    event = '{"event": "sampled-gaussian", "noise_multiplier": 4.0, "sampling_rate": 1.0, "steps": 1}'
    common = {"run": "r", "round": 0, "attempt": "a", "unit": "client", "event": event, "time": "t"}
    alone = books.spent([common | {"client": "north"}], delta=1e-5)["north", "client"]
    both = books.spent([common | {"client": "north"}, common | {"client": "every client"}], delta=1e-5)
    assert both["north", "client"] > alone
    assert both["every client", "client"] == alone


def test_a_ledger_of_integer_noise_is_shown_too(tmp_path):
    experiment = tacit.Experiment(
        data={"clients": 3, "examples_per_client": 40},
        train={"rounds": 2, "local_steps": 2},
        privacy={"kind": "distributed", "epsilon": 8.0, "fewest_reports": 2, "clip": 0.5},
    )
    done = tacit.run(experiment, out=tmp_path / "run", page=False)
    assert len(ledger.by_client(done.out, delta=None).texts()["client"]) == 3
    assert len(ledger.by_charge(done.out).texts()["client"]) == 6
    assert list(ledger.faults(done.out, delta=None)) == []


def test_an_export_holds_every_charge(run):
    rows = list(csv.DictReader(io.StringIO(ledger.as_csv(run.out))))
    kept = [dict(entry, round=str(entry["round"])) for entry in run.ledger.entries()]
    assert rows == [{name: row[name] for name in COLUMNS} for row in kept]
    assert len(json.loads(ledger.as_json(run.out))) == 6


def test_a_sound_ledger_is_verified_and_nothing_is_written(run):
    before = (run.out / "ledger.db").read_bytes()
    assert list(ledger.faults(run.out, delta=None)) == []
    assert (run.out / "ledger.db").read_bytes() == before
    assert ledger.counted(run.out) == "6 charges of 3 clients"


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE facts SET value = '99' WHERE name = 'format'", "format 99"),
        ("UPDATE charges SET unit = 'house' WHERE round = 0", "per 'house', which is no unit"),
        ('UPDATE events SET text = \'{"event": "wish"}\' WHERE id = 1', "something without a price"),
        ("DELETE FROM events WHERE id = 1", "2 charges name an event that is not there"),
    ],
)
def test_a_ledger_that_was_tampered_with_is_told(copy, statement, words):
    edit(copy, statement)
    assert any(words in text for text in ledger.faults(copy, delta=None))


def test_spending_beyond_the_budget_file_is_told(copy):
    (copy / "budget.toml").write_text("epsilon = 1.5\ndelta = 1e-5\n")
    assert sum("more than the 1.5 of budget.toml" in text for text in ledger.faults(copy, delta=None)) == 2


def test_an_answer_without_a_charge_is_told(copy):
    place = copy / "runs" / ("0" * 32)
    place.mkdir(parents=True)
    (place / "round-000004.answer").write_bytes(b"x")
    terms = {"event": "something", "epsilon": 1.0, "rounds": 5, "parameters": 3}
    record = {"run": "0" * 32, "experiment": "", "roster": {}, "terms": terms}
    (place / "agreement.json").write_text(json.dumps(record))
    assert any("round 5 of run 000" in text for text in ledger.faults(copy, delta=None))


def test_an_answer_whose_agreement_is_gone_counts_as_one_to_be_paid_for(copy):
    place = copy / "runs" / ("0" * 32)
    place.mkdir(parents=True)
    (place / "round-0000004.answer").write_bytes(b"x")
    assert any("round 5 of run 000" in text for text in ledger.faults(copy, delta=None))


def test_what_is_no_ledger_is_refused(tmp_path):
    with pytest.raises(LedgerError, match="no ledger"):
        ledger.by_client(tmp_path, delta=1e-5)
    (tmp_path / "ledger.db").write_bytes(b"not a database, whatever its name says" * 10)
    with pytest.raises(LedgerError, match="cannot be read as a ledger"):
        ledger.by_client(tmp_path, delta=1e-5)
    (tmp_path / "ledger.db").write_bytes(b"")
    assert ledger.by_client(tmp_path, delta=1e-5).texts()["client"] == []
    with pytest.raises(TacitError, match="give --delta"):
        ledger.by_client(tmp_path, delta=None)


def test_the_commands_print_and_exit_by_what_they_find(copy, monkeypatch, capsys):
    from typer.testing import CliRunner

    from tacit.cli.app import app

    call = CliRunner().invoke
    assert "epsilon spent" in call(app, ["ledger", str(copy)]).output
    assert call(app, ["ledger", str(copy), "--to", "-"]).output.startswith("run,round,attempt,client")
    assert call(app, ["ledger", str(copy), "--to", str(copy / "all.json")]).exit_code == 0
    assert len(json.loads((copy / "all.json").read_text())) == 6
    assert "exists already" in str(call(app, ["ledger", str(copy), "--to", str(copy / "all.json")]).exception)
    assert "end in .csv or .json" in str(call(app, ["ledger", str(copy), "--to", str(copy / "x")]).exception)
    assert call(app, ["ledger", str(copy), "--verify"]).output.startswith("ok: 6 charges")
    edit(copy, "UPDATE charges SET unit = 'house'")
    assert call(app, ["ledger", str(copy), "--verify"]).exit_code == 2


def test_the_line_under_the_table_says_which_number_to_quote_and_when_the_other_is_valid(run):
    (said,) = ledger.by_client(run.out, delta=None).notes
    assert said.startswith("Quote sealed, at its delta")
    assert "valid only where all runs were settled before the first of them was seen" in said


def test_a_limit_says_that_it_is_one_and_what_was_spent_names_the_bound_that_was_taken(run):
    limit = agreed(replace(run.guarantee, accountant=ACCOUNTANT), client="north", epsilon=1.0)
    assert "at most 1.000 (the limit set before anything is released" in limit
    assert "the one bound that was taken for it), computed by the least of PLD, RDP" in limit
    assert "the limit set" not in sentence(run.guarantee)
    assert run.guarantee.accountant != ACCOUNTANT
