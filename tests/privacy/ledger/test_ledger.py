import json
import math
import os
import sqlite3
import textwrap
from pathlib import Path

import pytest
import ready
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import LedgerError
from tacit.privacy.accounting import price
from tacit.privacy.ledger import disk, reader
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.local import SampledGaussian
from tacit.types import Budget, Client

EVENT = SampledGaussian(noise_multiplier=1.0, clip=1.0, sampling_rate=0.05, steps=10).event()
OTHER = SampledGaussian(noise_multiplier=2.0, clip=1.0, sampling_rate=0.1, steps=5).event()


def client(name="a", epsilon=3.0, unit="record"):
    return Client(0, name, Budget(epsilon, 1e-5, unit), torch.zeros(1), torch.zeros(1))


def ledger(tmp_path, *, run="r", population="p", **settings):
    return Ledger(tmp_path / "ledger.db", population=population, run=run, **{"delta": 2e-5, **settings})


def pay(book, round, *clients, event=EVENT, attempt="1"):
    book.open_round(round, attempt)
    return book.admit(clients, lambda _: event)


def pay_all(book, round, *, epsilon=3.0, event=EVENT, unit="client", attempt="1"):
    book.open_round(round, attempt)
    return book.admit_everybody(Budget(epsilon, 1e-5, unit), event)


def pay_alone(book, round, *, epsilon=3.0, attempt="1"):
    return bool(pay(book, round, client(epsilon=epsilon), attempt=attempt))


HOW = pytest.mark.parametrize(
    ("pays", "unit"), [(pay_alone, "record"), (pay_all, "client")], ids=["alone", "everybody"]
)


def left(book, unit, epsilon):
    one = client(epsilon=epsilon, unit=unit)
    return book.rounds_left(one, EVENT) if unit == "record" else book.rounds_left_to_all(one.budget, EVENT)


def epsilon(rounds, event=EVENT):
    return price.epsilon(price.compose([(event, rounds)]), delta=1e-5)


def test_a_charge_is_on_disk_when_admit_returns(tmp_path):
    pay(ledger(tmp_path), 0, client())
    with sqlite3.connect(tmp_path / "ledger.db") as other:
        assert other.execute("SELECT client, round, unit FROM charges").fetchall() == [("a", 0, "record")]


def test_spent_is_the_price_of_everything_charged(tmp_path):
    book = ledger(tmp_path)
    for r in range(4):
        pay(book, r, client())
    assert book.spent(client()) == epsilon(4)
    assert book.spent(client("b")) == 0.0


@HOW
def test_rounds_are_paid_until_the_one_that_would_overspend_and_no_more(tmp_path, pays, unit):
    book, limit = ledger(tmp_path), epsilon(3) + 1e-9
    assert [pays(book, r, epsilon=limit) for r in range(5)] == [True, True, True, False, False]
    assert book.spent(client(unit=unit)) == epsilon(3) <= limit
    assert not pays(ledger(tmp_path, run="two"), 0, epsilon=limit)  # nor by another run


@HOW
def test_rounds_left_count_down_by_one_and_agree_with_a_fresh_ledger(tmp_path, pays, unit):
    book = ledger(tmp_path)
    for r in range(8):
        book.open_round(r, "1")
        fresh = ledger(tmp_path)
        assert left(book, unit, epsilon(7)) == left(fresh, unit, epsilon(7)) == 7 - r
        fresh.close()
        pays(book, r, epsilon=epsilon(7))


@HOW
def test_two_runs_at_once_never_overspend_in_total(tmp_path, pays, unit):
    books = [ledger(tmp_path, run="one"), ledger(tmp_path, run="two")]
    assert sum(pays(books[r % 2], r // 2, epsilon=epsilon(5)) for r in range(12)) == 5
    assert books[0].spent(client(unit=unit)) <= epsilon(5)
    assert books[1].other_runs(unit) == 1


@HOW
def test_a_resumed_round_is_paid_once_by_the_same_attempt_and_again_by_another(tmp_path, pays, unit):
    limit = epsilon(3)
    for r in range(3):
        assert pays(ledger(tmp_path), r, epsilon=limit)  # the crash came before the checkpoint of round 2
    again = ledger(tmp_path)
    again.open_round(2, "1")
    assert again.spent(client(unit=unit)) == limit  # counted before it is resumed
    assert pays(again, 2, epsilon=limit)
    assert not pays(again, 3, epsilon=limit)
    assert again.spent(client(unit=unit)) == limit
    assert not pays(again, 2, epsilon=limit, attempt="other randomness")
    for book in (ledger(tmp_path, run="two", delta=1.0), ledger(tmp_path, run="two", delta=1.0)):
        assert pays(book, 0, epsilon=99.0, attempt=str(id(book)))
    assert book.composition("a", unit) == price.compose([(EVENT, 2)])


@HOW
def test_entries_say_who_was_charged_what_and_when(tmp_path, pays, unit):
    book = ledger(tmp_path)
    assert pays(book, 0, epsilon=math.inf)
    (entry,) = book.entries()
    assert (entry["client"], entry["round"]) == ("a" if unit == "record" else "every client", 0)
    assert (entry["unit"], price.from_text(entry["event"])) == (unit, EVENT)
    assert entry["time"].startswith("20")
    assert "1 charges" in repr(book)
    assert book.spent(client(unit=unit)) == epsilon(1)


def test_who_cannot_pay_stays_out_and_the_others_go_on(tmp_path):
    poor, rich = client("poor", epsilon=epsilon(1)), client("rich", epsilon=10.0)
    book = ledger(tmp_path)
    assert [c.id for c in pay(book, 0, poor, rich)] == ["poor", "rich"]
    assert [c.id for c in pay(book, 1, poor, rich)] == ["rich"]


def test_a_round_that_is_opened_again_is_still_to_come_once_and_not_twice(tmp_path):
    book, c = ledger(tmp_path), client(epsilon=epsilon(7))
    for r in range(3):
        pay(book, r, c)
    again = ledger(tmp_path)
    again.open_round(2, "1")
    assert again.rounds_left(c, EVENT) == 5
    assert [len(pay(again, r, c)) for r in range(2, 8)] == [1] * 5 + [0]


def test_sealed_prices_of_other_runs_and_charges_of_this_one_add_up(tmp_path):
    first = ledger(tmp_path, run="one", rounds=10)  # 3 more are sealed, for rounds that must be repeated
    pay(first, 0, client(epsilon=9.0))
    first.close()
    second = ledger(tmp_path, run="two", rounds=10)
    pay(second, 0, client(epsilon=9.0), event=OTHER)
    assert second.spent(client(epsilon=9.0)) == epsilon(13) + epsilon(1, OTHER)
    assert second.alone(client()) == epsilon(1, OTHER)
    assert second.other_runs("record") == 1
    assert second.compositions("record") == {"a": second.composition("a", "record")}


def test_a_run_may_release_no_more_than_was_sealed_when_it_began(tmp_path):
    book, c = ledger(tmp_path, rounds=3), client(epsilon=math.inf)
    assert [bool(pay(book, r, c)) for r in range(7)] == [True] * 5 + [False] * 2  # 3 planned, 2 spare


def test_a_run_without_a_share_of_delta_left_pays_nothing(tmp_path):
    rich = client(epsilon=100.0)
    books = [ledger(tmp_path, run=str(number), rounds=1) for number in range(3)]
    assert [bool(pay(book, 0, rich)) for book in books] == [True, True, False]  # 1e-5 each, and 2e-5 in all


def test_another_event_or_unit_for_a_client_of_the_same_run_is_refused_and_not_ignored(tmp_path):
    book = ledger(tmp_path)
    pay(book, 0, client(epsilon=9.0))
    for round, attempt, event, who in (
        (0, "1", OTHER, client(epsilon=9.0)),
        (0, "2", OTHER, client(epsilon=9.0)),
        (1, "1", OTHER, client(epsilon=9.0)),
        (1, "1", EVENT, client(epsilon=9.0, unit="client")),
    ):
        with pytest.raises(LedgerError, match=r"has sealed this run for a with .* put its budgets and settings back"):
            pay(book, round, who, event=event, attempt=attempt)
    assert len(list(book.entries())) == 1


def test_a_lowered_budget_counts_at_once_and_a_raised_one_from_the_next_run_on(tmp_path):
    book = ledger(tmp_path)
    pay(book, 0, client(epsilon=epsilon(5)))
    assert book.rounds_left(client(epsilon=epsilon(3)), EVENT) == 2
    assert book.rounds_left(client(epsilon=epsilon(9)), EVENT) == 4


def test_what_another_run_seals_just_after_a_charge_is_known_to_the_next_one(tmp_path):
    """The state of the file was taken for known after the commit, with what somebody else had written by then."""
    one, other = ledger(tmp_path, run="one", delta=1e-5), ledger(tmp_path, run="other", delta=1e-5)
    assert one.before("b", "record").delta == 0  # b has all of its budget

    class Between(list):
        def clear(self):  # what the ledger does first of all when the charge is on disk
            assert pay(other, 0, client("b"))
            super().clear()

    one._conditions = Between()
    assert pay(one, 0, client("a"))
    one._conditions = []
    assert not pay(one, 1, client("b"))  # its delta is spent
    assert one.before("b", "record").delta == 1e-5


def test_what_another_run_seals_between_the_opening_of_a_round_and_its_charge_counts(tmp_path):
    one, other = ledger(tmp_path, run="one", delta=1e-5), ledger(tmp_path, run="other", delta=1e-5)
    assert one.before("b", "record").delta == 0
    one.open_round(0, "1")
    assert pay(other, 0, client("b"))
    assert one.admit([client("b")], lambda client: EVENT) == []  # its delta is spent


def test_record_and_client_charges_are_never_added_or_counted_together(tmp_path):
    record, whole = ledger(tmp_path, run="one"), ledger(tmp_path, run="two")
    pay(record, 0, client(unit="record"))
    pay(whole, 0, client(unit="client"))
    assert record.spent(client(unit="record")) == whole.spent(client(unit="client")) == epsilon(1)
    assert (whole.other_runs("client"), whole.other_runs("client", apart=True)) == (0, 1)


def test_a_ledger_of_other_data_is_refused(tmp_path):
    ledger(tmp_path).close()
    with pytest.raises(LedgerError, match="belongs to other data"):
        ledger(tmp_path, population="q")


def test_a_file_that_is_no_ledger_is_refused_in_one_sentence(tmp_path):
    ledger(tmp_path).close()
    (tmp_path / "ledger.db").write_text("this is not a database, whatever its name says" * 100)
    with pytest.raises(LedgerError, match="cannot be opened"):
        ledger(tmp_path)


def test_a_charge_to_everybody_is_one_row_on_disk_that_every_client_has_spent(tmp_path):
    book = ledger(tmp_path)
    assert pay_all(book, 0)
    with sqlite3.connect(tmp_path / "ledger.db") as other:
        assert other.execute("SELECT round, unit FROM everybody").fetchall() == [(0, "client")]
    for name in ("a", "whoever"):
        assert book.spent(client(name, unit="client")) == epsilon(1)
        assert book.spent(client(name, unit="record")) == 0.0
    assert book.composition(None, "client") == price.compose([(EVENT, 1)])


def test_what_one_client_was_charged_alone_adds_to_what_everybody_was(tmp_path):
    c, limit = client(unit="client", epsilon=9.0), {"epsilon": 9.0}
    first, book = ledger(tmp_path, run="one", rounds=1), ledger(tmp_path, run="two", rounds=1)
    pay(first, 0, c)
    assert pay_all(book, 0, **limit)
    assert book.spent(c) == epsilon(3) + epsilon(1)
    assert book.spent(client("b", unit="client")) == epsilon(1)
    with pytest.raises(LedgerError, match="either all clients pay together or each for itself"):
        pay(book, 1, c)
    third = ledger(tmp_path, run="three", rounds=1)
    assert not pay_all(third, 0, **limit)  # "a" has no delta left, so nobody pays
    assert third.spent(client("b", unit="client")) == epsilon(3)


@pytest.mark.parametrize("format", ["3", "5"])
def test_a_ledger_of_another_format_is_refused_and_stays_as_it_is(tmp_path, format):
    book = ledger(tmp_path)
    pay(book, 0, client())
    book._db.execute("DROP TABLE seals")
    book._db.execute("UPDATE facts SET value = ? WHERE name = 'format'", (format,))
    book.close()
    before = (tmp_path / "ledger.db").read_bytes()
    with pytest.raises(LedgerError, match="another version"):
        ledger(tmp_path)
    assert (tmp_path / "ledger.db").read_bytes() == before


def test_a_refusal_in_the_middle_of_a_charge_leaves_the_ledger_usable(tmp_path):
    book = ledger(tmp_path)
    book.open_round(0, "1")
    with pytest.raises(ZeroDivisionError):
        book.admit([client()], lambda _: 1 / 0)
    assert pay(book, 0, client())


def test_a_charge_that_sqlite_takes_back_by_itself_is_sealed_and_charged_anew(tmp_path):
    """As on a full disk: no transaction is open any more when the error arrives."""
    book = ledger(tmp_path, run="one")
    book._db.execute("CREATE TRIGGER full BEFORE INSERT ON charges BEGIN SELECT RAISE(ROLLBACK, 'disk is full'); END")
    with pytest.raises(LedgerError, match="disk is full"):
        pay(book, 0, client())
    book._db.execute("DROP TRIGGER full")
    assert pay(book, 0, client())
    assert ledger(tmp_path, run="two").before("a", "record").epsilon > 0
    assert list(reader.faults(tmp_path / "ledger.db")) == []


@HOW
def test_a_charge_whose_watermark_cannot_be_written_counts_like_any_other(tmp_path, pays, unit):
    """The charge has reached the disk, nothing is released, and the round that is asked for again is paid once."""
    folder = tmp_path / "marks"
    folder.mkdir()
    book = ledger(tmp_path, rounds=10, watermarks=[folder / "mark"])
    for round in (0, 1):
        pays(book, round)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    with pytest.raises(LedgerError, match="could not be charged for round 3"):
        pays(book, 2)
    folder.mkdir()
    fresh = ledger(tmp_path, rounds=10)
    for asked in (book, fresh):
        asked.open_round(2, "1")
    assert left(book, unit, 3.0) == left(fresh, unit, 3.0)


def test_synchronous_is_full(tmp_path):
    assert ledger(tmp_path)._db.execute("PRAGMA synchronous").fetchone() == (2,)


FULL_DISK = """
    import os, resource, sys
    sys.path.insert(0, {tests!r})
    from test_ledger import *
    book = Ledger({path!r}, population="p", run="r")
    size = os.path.getsize({path!r})
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))  # the file can grow no further, as on a full disk
    try:
        for r in range(10_000):
            book.open_round(r, "1")
            if not book.admit([client(str(i), epsilon=math.inf) for i in range(50)], lambda _: EVENT):
                sys.exit("nobody was admitted")
            print("released", r, flush=True)
    except LedgerError as error:
        print("refused", error)
"""


def test_a_full_disk_refuses_the_charge_and_releases_nothing(tmp_path, request):
    path = str(tmp_path / "ledger.db")
    (tmp_path / "full.py").write_text(textwrap.dedent(FULL_DISK.format(tests=str(request.path.parent), path=path)))
    done = ready.script(tmp_path / "full.py", cwd=tmp_path).wait()
    *released, last = done.stdout.splitlines()
    assert last.startswith("refused"), done.stderr
    assert "nothing was released" in last
    charged = {e["round"] for e in ledger(tmp_path).entries()}
    assert charged == set(range(len(released)))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=12))
def test_whatever_the_order_of_charges_nobody_passes_its_budget(tmp_path_factory, charges):
    place = tmp_path_factory.mktemp("ledger")
    books = {kind: ledger(place, run=str(kind)) for kind in (True, False)}
    clients = [client(str(i), epsilon=epsilon(1 + i)) for i in range(4)]
    for r, (i, kind) in enumerate(charges):
        pay(books[kind], r, clients[i], event=EVENT if kind else OTHER)
    assert all(book.spent(c) <= c.budget.epsilon for c in clients for book in books.values())


def test_many_clients_are_read_with_one_look_at_the_file_and_cost_what_each_costs(tmp_path):
    book, clients, looks = ledger(tmp_path), [client(f"c{k}") for k in range(40)], []
    book._db.set_trace_callback(
        lambda text: looks.append(text) if "FROM seals" in text or "FROM queries" in text else None
    )
    assert len(pay(book, 0, *clients)) == 40
    assert len(looks) < 10  # and not some for each
    again = ledger(tmp_path)
    assert [again.rounds_left(one, EVENT) for one in clients] == [book.rounds_left(clients[0], EVENT)] * 40
    assert len(pay(again, 1, *clients)) == 40
    assert {book.spent(one) for one in clients} == {epsilon(2)}


def test_a_mark_is_on_disk_before_it_takes_its_name(tmp_path, monkeypatch):
    """A power cut after the renaming would leave an empty mark, and nothing would run on the ledger any more."""
    mark, order = tmp_path / "ledger.mark", []
    flush, rename = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda number: (order.append("disk"), flush(number)))
    monkeypatch.setattr(Path, "replace", lambda self, to: (order.append("name"), rename(self, to)))
    disk.write_watermark(mark, 3, "link")
    assert order == ["disk", "name"]
    assert json.loads(mark.read_text()) == {"batch": 3, "chain": "link"}


def test_a_mark_never_goes_back(tmp_path):
    mark = tmp_path / "ledger.mark"
    disk.write_watermark(mark, 3, "later")
    disk.write_watermark(mark, 2, "earlier")
    assert disk.read_watermark(mark) == (3, "later")
