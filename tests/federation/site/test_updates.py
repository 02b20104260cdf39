"""What a site sends in a job of another framework: clipped, noised, charged first, and one answer to one question."""

import json
import re
import sqlite3
import sys
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
import torch
from statistical import has_std, is_normal

import tacit
from tacit.deploy.operate.site_statement import of_site
from tacit.deploy.site import updates
from tacit.deploy.site.updates import pay
from tacit.errors import BudgetExhausted, Refused
from tacit.privacy.ledger import reader as books
from tacit.privacy.ledger.ledger import Ledger
from tacit.report import statement
from tacit.types import Budget, Client

MODEL = {"w": np.zeros((300, 10), np.float32), "b": np.ones(7, np.float64), "seen": np.array([3])}
BUDGET = {"epsilon": 8.0, "delta": 1e-5, "unit": "client"}
UPDATES = {"clip": 0.5, "noise_multiplier": 2.0, "rounds": 5}


@pytest.fixture
def site(tmp_path):
    """A site's folder, whose budget and [updates] a test may change."""

    def made(name="north", *, settings="", updates=None, **budget):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        lines = [f"{key} = {json.dumps(value)}" for key, value in (BUDGET | budget).items() if value != "inf"]
        lines += ["epsilon = inf"] * (budget.get("epsilon") == "inf") + ["[updates]"]
        lines += [f"{key} = {value}" for key, value in (UPDATES | (updates or {})).items()]
        (folder / "site.toml").write_text(f'name = "{name}"\n{settings}')
        (folder / "budget.toml").write_text("\n".join(lines))
        return folder

    return made


def asked(folder, round=0, *, job="a", model=MODEL):
    return pay(folder, job, lambda: (round, model))


def answer(folder, round=0, *, job="a", model=MODEL, moved=0.0, **options):
    trained = {
        name: array + array.dtype.type(moved) if array.dtype.kind == "f" else array for name, array in model.items()
    }
    return asked(folder, round, job=job, model=model).release(lambda: trained, **options)


def charges(folder):
    with sqlite3.connect(folder / "ledger.db") as book:
        return book.execute("SELECT COUNT(*) FROM charges").fetchone()[0]


def log(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


# The mechanism.


def test_an_update_carries_the_noise_that_is_charged_and_not_two_thirds_or_three_halves_of_it(site):
    model = {"w": np.zeros((300, 400), np.float32)}
    sent = answer(site(), model=model)["w"]
    assert has_std(sent, 2.0 * 0.5)
    assert is_normal(sent, 2.0 * 0.5)
    assert not has_std(sent, 2.0 * 0.5 * 2 / 3)
    assert not has_std(sent, 2.0 * 0.5 * 3 / 2)


@pytest.mark.parametrize("by", [1e-3, 1.0, 1e30, 1e38])
def test_an_update_is_clipped_as_a_whole_before_it_is_noised(site, by):
    folder = site(epsilon="inf", updates={"noise_multiplier": 1e-4})
    sent = answer(folder, moved=by, difference=True)
    norm = np.linalg.norm(np.concatenate([sent[name].ravel() for name in ("w", "b")]).astype(np.float64))
    whole = by * np.sqrt(3007)
    assert norm == pytest.approx(min(whole, 0.5), rel=0.01)


def test_the_charge_is_the_price_of_the_noise_that_is_drawn(site):
    folder = site()
    for round in range(3):
        answer(folder, round)
    accountant = dp_accounting.pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(dp_accounting.GaussianDpEvent(2.0), 3)
    ((who, unit), spent), *more = books.spent(books.entries(folder / "ledger.db"), delta=1e-5).items()
    assert (who, unit, more) == ("north", "client", [])
    assert spent == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-2)


def test_noise_is_the_operating_systems_and_no_two_answers_share_it(site):
    folder = site()
    first, second = answer(folder, 0)["w"], answer(folder, 1)["w"]
    assert not np.isclose(first, second).any()


def test_whole_numbers_come_back_as_they_came_and_every_array_keeps_its_kind(site):
    sent = answer(site(), moved=4)
    assert {name: (array.dtype, array.shape) for name, array in sent.items()} == {
        name: (array.dtype, array.shape) for name, array in MODEL.items()
    }
    assert sent["seen"] == 3
    assert answer(site("south"), moved=4, difference=True)["seen"] == 0


# Nothing that the job's training does decides whether, or in what form, something is sent.


def raises():
    raise RuntimeError("a patient is called Ida")


def leaves():
    sys.exit(3)


ODD = {
    "nan": lambda: {name: array * np.float32(np.nan) for name, array in MODEL.items()},
    "inf": lambda: MODEL | {"b": np.full(7, np.inf)},
    "beyond float32": lambda: MODEL | {"b": np.full(7, 1e300)},
    "shapes": lambda: MODEL | {"w": np.zeros(3, np.float32)},
    "kinds": lambda: MODEL | {"w": np.zeros((300, 10), np.int64)},
    "texts": lambda: MODEL | {"w": np.full((300, 10), "flu")},
    "missing": dict,
    "nothing": lambda: None,
    "raises": raises,
    "leaves": leaves,
}


@pytest.mark.parametrize("train", ODD.values(), ids=ODD)
def test_what_is_no_update_counts_as_zero_and_is_sent_with_its_noise(site, train):
    folder = site()
    sent = asked(folder).release(train, difference=True)
    assert {name: array.shape for name, array in sent.items()} == {name: array.shape for name, array in MODEL.items()}
    assert has_std(sent["w"], 2.0 * 0.5)
    assert charges(folder) == 1
    assert [line["verdict"] for line in log(folder)] == ["failed", "answered"]
    assert "Ida" not in (folder / "log.jsonl").read_text()
    assert "flu" not in (folder / "log.jsonl").read_text()


def test_arrays_that_the_model_did_not_have_are_not_sent(site):
    sent = asked(site()).release(lambda: MODEL | {"rows": np.arange(9.0)})
    assert set(sent) == set(MODEL)


def test_an_answer_leaves_answer_seconds_after_its_question(site, monkeypatch):
    from tacit.deploy.site import site as sites

    waited = []
    monkeypatch.setattr(sites.time, "sleep", waited.append)
    answer(site(answer_seconds=30))
    assert len(waited) == 1
    assert 20 < waited[0] <= 30


# The ledger is charged first, and one charge stands for one vector.


def test_the_charge_is_on_disk_before_anything_is_trained(site):
    folder, seen = site(), []
    asked(folder).release(lambda: seen.append(charges(folder)) or MODEL)
    assert seen == [1]


def test_a_repeated_question_gets_the_kept_answer_for_nothing_and_trains_nothing(site):
    folder = site()
    first, trained = answer(folder), []
    again = asked(folder).release(lambda: trained.append(1) or MODEL)
    assert np.array_equal(first["w"], again["w"])
    assert (charges(folder), trained) == (1, [])


def test_what_was_paid_for_once_is_released_once_however_often_it_is_called(site):
    paid = asked(site())
    assert np.array_equal(paid.release(lambda: MODEL)["w"], paid.release(lambda: MODEL)["w"])


def test_of_one_question_that_two_processes_pay_for_one_vector_leaves(site):
    folder = site()
    one, other = asked(folder), asked(folder)
    assert charges(folder) == 2
    assert np.array_equal(one.release(lambda: MODEL)["w"], other.release(lambda: MODEL)["w"])


def test_one_round_is_one_question_and_rounds_only_go_forward(site):
    folder, other = site(), MODEL | {"w": MODEL["w"] + 1}
    answer(folder, 2)
    with pytest.raises(Refused, match="Round 3 was answered already"):
        asked(folder, 2, model=other)
    with pytest.raises(Refused, match="asks for round 1 again"):
        asked(folder, 0)
    assert charges(folder) == 1


def test_an_answer_that_was_lost_is_charged_again_and_is_another(site, monkeypatch):
    folder = site()
    with monkeypatch.context() as patch:
        patch.setattr(updates, "keep", lambda *about: (_ for _ in ()).throw(OSError("the disk is full")))
        with pytest.raises(Refused, match=r"the reason is in its log\.jsonl"):
            answer(folder)
    assert charges(folder) == 1
    answer(folder)
    assert charges(folder) == 2


def test_a_lost_ledger_beside_a_kept_answer_is_refused(site):
    folder = site()
    answer(folder)
    (folder / "ledger.db").unlink()
    with pytest.raises(Refused, match=r"the reason is in its log\.jsonl"):
        asked(folder, 1)
    assert "is gone, but" in log(folder)[-1]["text"]


# Budgets.


def test_a_job_has_as_many_rounds_as_the_site_allows_and_no_more(site):
    folder, trained = site(updates={"rounds": 2}), []
    answer(folder, 0)
    answer(folder, 1)
    with pytest.raises(BudgetExhausted, match=r"epsilon 8, .* may have 2 rounds .* does not pay for round 3"):
        asked(folder, 2).release(lambda: trained.append(1) or MODEL)
    assert (charges(folder), trained) == (2, [])


def test_a_budget_that_pays_for_less_ends_the_job_earlier(site):
    folder = site(epsilon=2.5)
    answer(folder, 0)
    with pytest.raises(BudgetExhausted, match="does not pay for round 2"):
        asked(folder, 1)
    assert charges(folder) == 1


def test_jobs_add_up_in_one_ledger_and_each_has_its_share_of_delta(site):
    folder = site(epsilon=12.0, updates={"delta_share": 0.5})
    answer(folder, job="a")
    answer(folder, job="b")
    with pytest.raises(BudgetExhausted, match="does not pay for round 1"):
        asked(folder, job="c")
    whole = site("south", epsilon=100.0)
    answer(whole, job="a")
    with pytest.raises(BudgetExhausted, match="1 of delta"):
        asked(whole, job="b")


def test_a_budget_that_is_lowered_counts_at_once(site):
    folder = site()
    answer(folder)
    site(epsilon=1.0)
    with pytest.raises(BudgetExhausted):
        asked(folder, 1)


def test_less_noise_in_the_middle_of_a_job_is_refused(site):
    folder = site()
    answer(folder)
    site(updates={"noise_multiplier": 1.0})
    with pytest.raises(Refused, match=r"the reason is in its log\.jsonl"):
        asked(folder, 1)
    assert "start another run" in log(folder)[-1]["text"]
    assert charges(folder) == 1


def test_a_run_of_tacit_on_the_same_file_is_added_and_one_per_record_is_not(site):
    folder = site(settings='data = "records.csv"\n')
    for unit, epsilon in (("client", 6.0), ("record", 8.0)):
        client = Client(0, "north", Budget(epsilon, 1e-6, unit), torch.empty(0), torch.empty(0))
        ledger = Ledger(folder / "ledger.db", population="csv:records.csv", run=unit, rounds=1, spare=False)
        ledger.open_round(0, "a run of Tacit's own")
        assert ledger.admit([client], lambda _: dp_accounting.GaussianDpEvent(1.0))
        ledger.close()
    site(settings='data = "records.csv"\n', delta=2e-5, updates={"delta_share": 0.5})
    answer(folder)
    sealed = {(run[:6], unit): epsilon for run, unit, epsilon in rows(folder, "run, unit, epsilon")}
    assert len(sealed) == 3
    own = next(epsilon for (run, unit), epsilon in sealed.items() if run not in ("client", "record"))
    assert own + sealed["client", "client"] <= 8.0
    assert own + sealed["client", "client"] + sealed["record", "record"] > 8.0


def rows(folder, columns):
    with sqlite3.connect(folder / "ledger.db") as book:
        return book.execute(f"SELECT {columns} FROM seals").fetchall()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"unit": "person"}, 'add unit = "client", and \\[updates\\]'),
        ({"unit": "record"}, 'add unit = "client", and \\[updates\\]'),
        ({"updates": {"clip": 0.0}}, "clip"),
        ({"updates": {"clip": "nan"}}, "clip"),
        ({"updates": {"noise_multiplier": "-1.0"}}, "noise_multiplier"),
        ({"updates": {"noise_multiplier": "inf"}}, "noise_multiplier"),
        ({"updates": {"rounds": 0}}, "rounds"),
        ({"updates": {"delta_share": 1.5}}, "delta_share"),
        ({"updates": {"seed": 7}}, "seed"),
        ({"epsilon": -1.0}, "epsilon"),
    ],
)
def test_a_file_that_says_nothing_that_can_be_kept_is_refused_in_one_sentence_and_charges_nothing(site, changes, words):
    folder = site(**changes)
    with pytest.raises(Refused, match=r"the reason is in its log\.jsonl"):
        asked(folder)
    assert not (folder / "ledger.db").exists()
    (line,) = log(folder)
    assert re.search(words, line["text"]), line


@pytest.mark.parametrize(
    ("round", "model", "words"),
    [
        (True, MODEL, "its round"),
        (-1, MODEL, "its round"),
        ("3", MODEL, "its round"),
        (None, MODEL, "its round"),
        (0, {"seen": np.array([3])}, "16- to 64-bit"),
        (0, MODEL | {"who": np.array(["Ida"])}, "16- to 64-bit"),
        (0, MODEL | {"w": np.array([np.nan])}, "not finite"),
        (0, MODEL | {"w": np.zeros(30_000, np.float32)}, "parameters; the site allows 20000"),
    ],
)
def test_a_job_that_asks_with_anything_else_is_refused_before_anything_is_charged(site, round, model, words):
    folder = site(most_parameters=20_000)
    with pytest.raises(Refused, match=words):
        asked(folder, round, model=model)
    assert not (folder / "ledger.db").exists()


# What the site's people read.


def test_the_budget_file_of_the_page_is_one_that_works_and_seals_what_the_page_says(site):
    page = (Path(__file__).parents[3] / "docs" / "how-to-beside-other-frameworks.md").read_text("utf-8")
    (text,) = re.findall(r"^```toml\n(.*?)^```", page, re.M | re.S)
    folder = site()
    (folder / "budget.toml").write_text(text)
    answer(folder)
    assert f"(here epsilon {np.ceil(100 * rows(folder, 'epsilon')[0][0]) / 100})" in text


def test_the_promise_names_the_unit_the_adversary_the_limit_and_what_the_job_decides(site):
    folder = site()
    answer(folder)
    (path,) = folder.glob("runs/*/promise.txt")
    text = path.read_text()
    for words in (
        "For north, client-level differential privacy: to empty one client",
        "everybody who sees updates or models",
        "delta = 1e-05",
        "at most 4.984",
        "the operating system's entropy",
        "sends nothing of the rows by any other way",
        "The job decides the model, the local steps, the weights",
        "at most 5 are answered",
    ):
        assert words in text
    assert rows(folder, "most, epsilon")[0][0] == 5
    assert rows(folder, "most, epsilon")[0][1] == pytest.approx(4.984, abs=1e-3)


def test_its_charge_and_its_promise_are_in_the_sites_statement_beside_other_releases(site):
    folder = site()
    answer(folder)
    tacit.Ledger(folder).charge(epsilon=0.2, unit="client", purpose="table 3")
    found = statement.record(of_site(folder))
    assert found["release"]["allowed"]
    assert "The job decides the model" in found["sentence"]
    assert set(updates.ASSUMES) < set(found["assumptions"])
    (row,) = found["ledger"]
    assert (row["unit"], row["runs"], row["releases"]) == ("client", 1, ["table 3"])
    assert row["epsilon"] == found["guarantee"]["epsilon"]["max"] == pytest.approx(tacit.Ledger(folder).spent().epsilon)
