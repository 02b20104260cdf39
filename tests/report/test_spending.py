"""Epsilon by round: exact where it is marked, never below what was spent, and cheap for many."""

import math

import pytest
import torch
from report_runs import changed

import tacit
from tacit.errors import BadInput
from tacit.privacy.accounting import price
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.local import SampledGaussian
from tacit.report import spending
from tacit.types import Budget, Client

ROUNDS = 200  # planned, and 22 more are sealed
PROMISE = {"delta": 1e-5}


def client(name, limit):
    return Client(0, name, Budget(limit, 1e-5), torch.zeros(1), torch.zeros(1))


def ledger(path, run="mine"):
    return Ledger(path, population="p", run=run, delta=1.0, rounds=ROUNDS)


def charged(book, plan, *, z=2.0, attempt="a"):
    """Charges who is named in each round: plan = [["a", "b"], ["a"]]."""
    event = SampledGaussian(z, 1.0, 0.1).event()
    for number, names in enumerate(plan):
        book.open_round(number, attempt)
        book.admit([client(name, 100.0) for name in names], lambda _: event)


def slow(book, name, before_round):
    """The slow twin: every charge until a round, one by one, priced."""
    events = [e for e in book.entries() if e["client"] == name and e["run"] == book.run and e["round"] < before_round]
    composition = price.compose((price.from_text(e["event"]), 1) for e in events)
    return book.before(name, "record").epsilon + price.epsilon(composition, delta=1e-5)


def test_a_curve_equals_the_slow_twin_at_every_mark(tmp_path):
    book = ledger(tmp_path / "l.db")
    charged(book, [["a"], [], ["a"], ["a"], [], ["a"]])
    charges = spending.read(tmp_path / "l.db", run="mine", unit="record", planned=6, **PROMISE)
    (curve,) = spending.groups(charges, ["a"], [3.0], planned=6, done=6)
    assert curve["rounds"] == [1, 2, 3, 4, 5, 6]
    assert curve["epsilon"] == [slow(book, "a", r) for r in curve["rounds"]]
    assert spending.spent_by_all(charges, ["a"]) == [book.spent(client("a", 3.0))]


@pytest.mark.parametrize("rounds", [7, 130, 200])
def test_between_marks_a_curve_is_never_below_what_was_spent(tmp_path, rounds):
    book = ledger(tmp_path / "l.db")
    charged(book, [["a", "b"] if r % 3 else ["a"] for r in range(rounds)])
    charges = spending.read(tmp_path / "l.db", run="mine", unit="record", planned=rounds, **PROMISE)
    (curve,) = spending.groups(charges, ["a", "b"], [9.0, 9.0], planned=rounds, done=rounds)
    assert curve["clients"] == 2
    assert curve["rounds"][-1] == rounds
    assert len(curve["rounds"]) <= spending.MOST_MARKS
    for name in ("a", "b"):
        for r in range(1, rounds + 1, 5):
            mark = next(i for i, at in enumerate(curve["rounds"]) if at >= r)
            assert curve["epsilon"][mark] >= slow(book, name, r) - 1e-12


def test_other_runs_in_the_ledger_count_from_the_start(tmp_path):
    charged(ledger(tmp_path / "l.db", run="earlier"), [["a"]] * 3)
    book = ledger(tmp_path / "l.db")
    charged(book, [["a"]] * 2)
    charges = spending.read(tmp_path / "l.db", run="mine", unit="record", planned=2, **PROMISE)
    (curve,) = spending.groups(charges, ["a"], [None], planned=2, done=2)
    assert curve["epsilon"] == [slow(book, "a", 1), slow(book, "a", 2)]
    assert charges.rounds("a") == 2
    sealed = price.epsilon(
        price.compose([(SampledGaussian(2.0, 1.0, 0.1).event(), ROUNDS + ROUNDS // 10 + 2)]), delta=1e-5
    )
    assert charges.before("a") == sealed < curve["epsilon"][0]


def test_a_round_paid_twice_counts_twice(tmp_path):
    charged(ledger(tmp_path / "l.db"), [["a"]] * 2)
    charged(ledger(tmp_path / "l.db"), [["a"]] * 2, attempt="b")
    charges = spending.read(tmp_path / "l.db", run="mine", unit="record", planned=2, **PROMISE)
    (curve,) = spending.groups(charges, ["a"], [None], planned=2, done=2)
    assert charges.rounds("a") == 4
    assert curve["epsilon"][0] == slow(ledger(tmp_path / "l.db"), "a", 1)


def test_units_are_never_added(tmp_path):
    book = ledger(tmp_path / "l.db")
    charged(book, [["a"]] * 2)
    charges = spending.read(tmp_path / "l.db", run="mine", unit="client", planned=2, **PROMISE)
    assert spending.spent_by_all(charges, ["a"]) == [0.0]


def test_many_limits_become_few_curves_that_stand_for_everybody(tmp_path):
    names = [f"c{i}" for i in range(60)]
    limits = [0.1 + i / 1000 for i in range(50)] + [9.0 + i / 10 for i in range(9)] + [None]
    charged(ledger(tmp_path / "l.db"), [names] * 3)
    charges = spending.read(tmp_path / "l.db", run="mine", unit="record", planned=3, **PROMISE)
    curves = spending.groups(charges, names, limits, planned=3, done=3)
    assert len(curves) == spending.MOST_GROUPS
    assert sum(curve["clients"] for curve in curves) == 60
    assert curves[0]["limit"] == 0.1
    assert curves[-1]["limit"] is None
    assert all(c["limits"] is None or c["limits"][1] / c["limits"][0] < 2 for c in curves)


def test_the_number_of_prices_does_not_grow_with_clients_or_rounds():
    for planned in (1, 10, 64, 65, 500, 10_000):
        for curves in (1, 3, spending.MOST_GROUPS):
            marks = math.ceil(planned / spending.stride(planned, curves))
            assert marks * curves <= max(spending.MOST_PRICES, planned * curves if planned < 13 else 0)


def test_a_run_with_thousands_of_prices_notes_them_for_the_next_page(tmp_path, monkeypatch):
    monkeypatch.setattr("tacit.report.collect.LIVE_PRICES", 2)
    from tacit.report.page import collect

    tacit.run(changed(), out=tmp_path / "run")
    first = collect([tmp_path / "run"])
    assert (tmp_path / "run" / "spent.json").exists()
    monkeypatch.setattr(spending, "spent_by_all", lambda *_, **__: pytest.fail("priced again"))
    assert collect([tmp_path / "run"]) == first
    (tmp_path / "run" / "spent.json").write_text("garbled")
    with pytest.raises(pytest.fail.Exception, match="priced again"):
        collect([tmp_path / "run"])


def test_what_is_no_ledger_is_refused(tmp_path):
    (tmp_path / "l.db").write_text("")
    with pytest.raises(BadInput, match="cannot be read"):
        spending.read(tmp_path / "l.db", run="mine", unit="record", planned=2, **PROMISE)


def test_what_everybody_was_charged_for_counts_for_each(tmp_path):
    event = SampledGaussian(3.0, 1.0, 0.2).event()
    charged(ledger(tmp_path / "l.db", run="earlier"), [["a"]] * 2)
    book = ledger(tmp_path / "l.db")
    for number in range(4):
        book.open_round(number, "a")
        assert book.admit_everybody(Budget(100.0, 1e-5), event)
    charges = spending.read(tmp_path / "l.db", run="mine", unit="record", planned=4, **PROMISE)
    alone, other = spending.groups(charges, ["a", "b"], [9.0, 9.5], planned=4, done=4)
    spent = [book.spent(client("a", 9.0)), book.spent(client("b", 9.5))]
    assert [alone["epsilon"][-1], other["epsilon"][-1]] == spent == spending.spent_by_all(charges, ["a", "b"])
    assert alone["epsilon"][0] > other["epsilon"][0] > 0
    assert (charges.rounds("b"), charges.last_round("b")) == (4, 3)
