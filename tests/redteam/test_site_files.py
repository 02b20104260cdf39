"""A site whose files were lost, copied or edited between two starts: what was released stays paid for."""

import re
import shutil
import sqlite3

import pytest
from federation.site.test_own_models import RUN, left, seals

from tacit.cli.ledger import faults
from tacit.deploy.operate.inspect import site_findings
from tacit.deploy.operate.site_page import short_up, site_data, write_site_page
from tacit.deploy.site import agreement, layout
from tacit.deploy.site.agreement import accept
from tacit.deploy.site.limits import allow, read_limits
from tacit.deploy.site.requests import Roster
from tacit.deploy.site.site import UNSAID, Site
from tacit.errors import BadInput, BudgetExhausted, LedgerError, Refused
from tacit.privacy.guarantee import shown


def trained(asking, rounds=1):
    asking.agree()
    for round in range(rounds):
        asking.train(round)
    return asking


@pytest.mark.parametrize("gone", [("ledger.db",), ("ledger.db", "ledger.mark")])
def test_a_site_whose_ledger_was_lost_answers_nothing_more(server, gone):
    asking = trained(server())
    for name in gone:
        (asking.folder / name).unlink()
    for restart in (asking.restart, lambda: (asking.folder / "ledger.db").touch()):
        restart()
        asking.restart()
        with pytest.raises(Refused, match=UNSAID):
            asking.train(1)
        with pytest.raises(Refused, match=UNSAID):
            asking.agree(run="1" * 32)
    assert "restore" in asking.log()[-1]["text"]


def test_an_older_copy_of_a_sites_ledger_is_noticed(server):
    asking = trained(server())
    shutil.copy(asking.folder / "ledger.db", asking.folder / "backup.db")
    asking.train(1)
    shutil.copy(asking.folder / "backup.db", asking.folder / "ledger.db")
    asking.restart()
    with pytest.raises(Refused, match=UNSAID):
        asking.train(2)
    assert "older copy" in asking.log()[-1]["text"]


def test_a_kept_answer_that_was_lost_is_paid_for_again(server):
    asking = trained(server())
    for path in asking.folder.glob("runs/*/round-*.answer"):
        path.unlink()
    asking.restart()
    asking.train(0)
    assert asking.charges() == [0, 0]


def renamed(folder, name):
    path = folder / "site.toml"
    path.write_text(path.read_text().replace('name = "north"', f'name = "{name}"'))


def test_a_site_that_was_given_another_name_does_not_get_its_budget_once_more(tmp_path):
    """The ledger added up what was charged under one name: the same rows, called otherwise, could spend all of it again."""
    folder = left(tmp_path / "north", trained=True)
    paid = seals(folder)
    renamed(folder, "polar")
    known = agreement.read(folder, RUN)
    size = Site(folder).answer({"kind": "hello", "experiment": known.experiment}, b"")[0]["examples"]
    roster = Roster.of(known.roster | {"names": ["polar", "south"], "sizes": [size, 40]})
    with pytest.raises(LedgerError, match=r"calls the site polar: the same rows would have their budget once more"):
        accept(allow(folder, known.experiment, read_limits(folder)), "1" * 32, roster)
    assert any(
        finding.wrong and "calls the site polar" in finding.text for finding in site_findings(folder, experiment=None)
    )
    assert seals(folder) == paid


def test_what_a_site_was_charged_under_two_names_is_told_as_one_sum(tmp_path):
    """Of a folder in which that has happened: the page named the larger of the two, for rows that had spent both."""
    folder = left(tmp_path / "north", trained=True)
    with sqlite3.connect(folder / "ledger.db") as book:
        columns = ", ".join(
            name for _, name, *_ in book.execute("PRAGMA table_info(seals)") if name not in ("client", "run")
        )
        book.execute(f"INSERT INTO seals (client, run, {columns}) SELECT 'polar', ?, {columns} FROM seals", ("1" * 32,))
    sealed = sum(row[1] for row in seals(folder))
    assert len(seals(folder)) == 2
    assert site_data(folder)["sealed"] == short_up(sealed)
    assert any("this site have sealed epsilon" in text for text in faults(folder, delta=None))


@pytest.mark.parametrize("file", ["ledger.db", "ledger.mark", "budget.toml", f"runs/{RUN}/agreement.json"])
def test_no_page_and_no_numbers_are_written_over_a_file_that_a_site_lives_by(tmp_path, file):
    """`--out` named the ledger, and every charge was gone."""
    folder = left(tmp_path / "north", trained=True)
    before = (folder / file).read_bytes()
    with pytest.raises(BadInput, match="is another file, which would be lost"):
        write_site_page(folder, folder / file)
    assert (folder / file).read_bytes() == before
    for _ in range(2):  # a page may be written again
        assert write_site_page(folder, folder / "page.html").is_file()


def test_a_promise_that_is_written_again_after_the_budget_was_lowered_names_no_less_than_was_spent(server):
    """A server that comes back has its run agreed again: what another run had sealed was taken off an epsilon that was gone."""
    asking, other = trained(server(), rounds=3), "1" * 32
    promise = asking.folder / "runs" / RUN / "promise.txt"
    spent = sum(row[1] for row in seals(asking.folder))
    asking.budget("epsilon = 1.0", "epsilon = 2.0")
    asking.budget("delta = 1e-05", "delta = 2e-05")
    asking.agree(run=other)
    asking.train(0, run=other)
    asking.budget("epsilon = 2.0", "epsilon = 1.0")
    asking.restart()
    asking.agree()
    (found,) = re.findall(r"the epsilon of the whole run is at most ([0-9.]+)", promise.read_text())
    assert 0.9 < float(found) <= 1.0
    sealed = sum(row[1] for row in seals(asking.folder))
    assert sealed > 1.5 * spent
    assert "stay within" not in promise.read_text()
    assert (
        f"together they come to {shown(float(found) + sealed - spent)}, more than the epsilon 1 of its budget.toml"
        in " ".join(promise.read_text().split())
    )


def test_a_promise_beside_runs_of_the_other_unit_says_that_they_are_not_in_it(server):
    asking = trained(server())
    with sqlite3.connect(asking.folder / "ledger.db") as book:
        columns = [name for _, name, *_ in book.execute("PRAGMA table_info(seals)") if name not in ("run", "unit")]
        kept = ", ".join(columns)
        for run, unit in (("1" * 32, "client"), ("2" * 32, "record")):
            book.execute(
                f"INSERT INTO seals (run, unit, {kept}) SELECT ?, ?, {kept} FROM seals WHERE run = ?", (run, unit, RUN)
            )
    asking.budget("epsilon = 1.0", "epsilon = 3.0")
    asking.restart()
    asking.agree()
    text = (asking.folder / "runs" / RUN / "promise.txt").read_text()
    assert "all its runs per record together stay within epsilon 3 of its budget.toml" in text
    assert "Not included is 1 run of its ledger that promised per another unit." in text


def test_runs_of_one_site_share_its_delta_and_not_only_its_epsilon(server):
    asking = server(privacy={"noise_multiplier": 30.0})
    asking.agree()
    asking.train(0)
    other = "1" * 32
    with pytest.raises(BudgetExhausted, match="used up"):
        asking.agree(run=other)
    asking.budget("delta = 1e-05", "delta = 2e-05")
    asking.agree(run=other)
    asking.train(0, run=other)
    assert asking.charges() == [0, 0]


def test_an_agreement_that_was_edited_between_two_starts_gets_no_answer_beyond_it(server):
    asking = trained(server())
    path = next(asking.folder.glob("runs/*/agreement.json"))
    text = path.read_text()
    for old, new in (('"rounds": 3', '"rounds": 300'), ('"event":', '"other":'), ("{", "[")):
        path.write_text(text.replace(old, new))
        asking.restart()
        with pytest.raises(Refused):
            asking.train(3)
    assert asking.charges() == [0]


def test_a_ledger_that_knows_what_was_released_goes_on_without_its_mark(server):
    asking = trained(server())
    (asking.folder / "ledger.mark").unlink()
    asking.restart()
    asking.train(1)
    assert asking.charges() == [0, 1]


def test_the_name_of_a_new_folder_is_on_disk_before_anything_is_written_into_it(tmp_path, monkeypatch):
    """Else a power cut could take a bound question away together with its folder."""
    synced = []
    monkeypatch.setattr(layout.store, "sync", synced.append)
    layout.make_folder(tmp_path / "runs" / "one")
    layout.make_folder(tmp_path / "runs" / "one")
    assert synced == [tmp_path, tmp_path / "runs"]
