"""What is asked beside training: sealed with the run, paid before it is released, answered once."""

import math
import sqlite3

import pytest
import torch

from tacit.errors import LedgerError
from tacit.privacy.accounting import price
from tacit.privacy.accounting.events import RoundedGaussianDpEvent
from tacit.privacy.ledger import reader
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.local import SampledGaussian
from tacit.types import Budget, Client

EVENT = SampledGaussian(noise_multiplier=1.0, clip=1.0, sampling_rate=0.05, steps=10).event()
QUERY = RoundedGaussianDpEvent(5.0)
ASKED = {"ranges": QUERY, "evaluation": RoundedGaussianDpEvent(4.0)}


def client(name="a", epsilon=3.0):
    return Client(0, name, Budget(epsilon, 1e-5), torch.zeros(1), torch.zeros(1))


def ledger(tmp_path, *, run="r", queries=ASKED, **settings):
    whole = {"delta": 2e-5, "queries": lambda name: queries, **settings}
    return Ledger(tmp_path / "ledger.db", population="p", run=run, **whole)


def answer(book, *clients, query="ranges", attempt="1"):
    return book.answer(query, attempt, clients, lambda _: EVENT)


def pay(book, round, *clients):
    book.open_round(round, "1")
    return book.admit(clients, lambda _: EVENT)


def epsilon(rounds, *queries):
    return price.epsilon(price.compose([(EVENT, rounds), *((query, 1) for query in queries)]), delta=1e-5)


def test_the_charge_for_a_query_is_on_disk_when_answer_returns_and_spent_counts_it_once(tmp_path):
    book = ledger(tmp_path)
    assert [c.id for c in answer(book, client(), client("b"))] == ["a", "b"]
    with sqlite3.connect(tmp_path / "ledger.db") as other:
        assert other.execute("SELECT client, round, attempt FROM charges").fetchall() == [
            ("a", -1, f"ranges:{book.keyed('1')}"),
            ("b", -1, f"ranges:{book.keyed('1')}"),
        ]
    assert book.spent(client()) == epsilon(0, QUERY)
    assert book.answered("ranges", book.keyed("1")) == {"a", "b"}
    assert book.answered("ranges", book.keyed("2")) == set()


def test_queries_and_rounds_are_priced_together_and_never_beyond_the_budget(tmp_path):
    budget = epsilon(6, *ASKED.values())
    book, c = ledger(tmp_path), client(epsilon=budget)
    answer(book, c)
    assert [bool(pay(book, r, c)) for r in range(8)] == [True] * 6 + [False] * 2
    assert answer(book, c, query="evaluation") == [c]  # planned, so it is still paid for when all rounds are used
    assert book.spent(c) == epsilon(6, *ASKED.values()) <= budget
    assert budget < epsilon(6) + epsilon(0, QUERY) + epsilon(
        0, ASKED["evaluation"]
    )  # jointly it is cheaper than the sum


def test_the_seal_of_a_run_holds_its_queries_for_other_runs_to_count_whether_they_are_used_or_not(tmp_path):
    first = ledger(tmp_path, run="one", rounds=10)
    pay(first, 0, client(epsilon=9.0))
    first.close()
    second = ledger(tmp_path, run="two", rounds=10)
    assert second.before("a", "record").epsilon == epsilon(13, *ASKED.values())


def test_a_client_that_cannot_pay_for_the_queries_and_one_round_releases_nothing(tmp_path):
    poor = client(epsilon=epsilon(1, *ASKED.values()) * 0.999)
    book = ledger(tmp_path)
    assert answer(book, poor) == []
    assert pay(book, 0, poor) == []
    assert list(book.entries()) == []


def test_the_very_same_answer_is_paid_once_and_any_other_is_refused(tmp_path):
    book = ledger(tmp_path)
    assert len(answer(book, client())) == len(answer(book, client())) == 1
    assert len(list(book.entries())) == 1
    with pytest.raises(LedgerError, match=r"charged a for the query 'ranges' .* answered once"):
        answer(book, client(), attempt="2")
    again = ledger(tmp_path)
    with pytest.raises(LedgerError, match="answered once"):
        answer(again, client(), attempt="2")
    assert len(list(again.entries())) == 1


def test_other_queries_than_were_sealed_are_refused(tmp_path):
    answer(ledger(tmp_path), client())
    for asked in ({}, {"ranges": QUERY}, ASKED | {"ranges": RoundedGaussianDpEvent(4.9)}):
        with pytest.raises(LedgerError, match=r"and the query .* put its budgets and settings back"):
            pay(ledger(tmp_path, queries=asked), 0, client())
    with pytest.raises(KeyError):
        answer(ledger(tmp_path), client(), query="unplanned")


def test_rounds_and_queries_are_counted_apart(tmp_path):
    book, c = ledger(tmp_path, rounds=3), client(epsilon=math.inf)
    answer(book, c)
    book.open_round(0, "1")
    assert book.rounds_left(c, EVENT) == 5  # 3 planned, 2 spare: the query took none of them
    assert book.charged_rounds() == 0
    assert not book.knows(0)
    pay(book, 0, c)
    assert book.rounds_left(c, EVENT) == 4
    assert book.charged_rounds() == 1


def test_a_lowered_budget_counts_for_queries_at_once(tmp_path):
    book = ledger(tmp_path)
    answer(book, client(epsilon=epsilon(9, *ASKED.values())))
    for r in range(4):
        pay(book, r, client(epsilon=epsilon(9, *ASKED.values())))
    lowered = client(epsilon=epsilon(3, *ASKED.values()))
    assert answer(book, lowered, query="evaluation") == []


def test_a_reader_sees_queries_in_charges_accounts_and_no_faults(tmp_path):
    book = ledger(tmp_path, rounds=10)
    answer(book, client(epsilon=9.0))
    pay(book, 0, client(epsilon=9.0))
    (account,) = reader.accounts(tmp_path / "ledger.db")
    assert (account.releases, account.most) == (2, 15)
    assert account.used == epsilon(1, QUERY)
    assert account.sealed == epsilon(13, *ASKED.values())
    assert list(reader.faults(tmp_path / "ledger.db")) == []
    assert [entry["round"] for entry in reader.entries(tmp_path / "ledger.db")] == [-1, 0]
