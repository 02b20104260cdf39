"""A site's folder that was copied: two that both answer would spend one budget twice, and neither ledger can know."""

import contextlib
import copy
import os
import shutil
import threading
from functools import partial

import pytest
from redteam.lying_server import RUN

from tacit.deploy.operate.inspect import site_findings
from tacit.deploy.site.agreement import copies
from tacit.deploy.site.site import UNSAID
from tacit.errors import LedgerError, Refused
from tacit.privacy.ledger.ledger import Ledger

OTHER = "1" * 32


@pytest.fixture
def pair(copied):
    """A site in a federation, and the same server's other end of a copy of it in another one, before anybody was asked."""
    return copied()


@pytest.fixture
def copied(server, tmp_path):
    return lambda **changes: _copied(server(**changes), tmp_path)


def _copied(asking, tmp_path):
    (asking.folder / "node.pub").write_text("ssh-ed25519 the-key-of-client-0\n")
    first, second = (tmp_path / name / "sites" / "client-0" for name in ("trial", "copied"))
    for place in (first, second):
        shutil.copytree(asking.folder, place)
    shutil.rmtree(asking.folder)
    both = [copy.copy(asking), copy.copy(asking)]
    for one, place in zip(both, (first, second), strict=True):
        one.folder = place
        one.restart()
    return both


@pytest.fixture
def same_second(monkeypatch):
    """Asks both at once, such that each has passed whatever is looked at before a charge when the other charges."""
    both, write, seen = threading.Barrier(2, timeout=30), Ledger._charge, set()

    def waiting(self, paying):
        if threading.get_ident() not in seen:  # before its first charge
            seen.add(threading.get_ident())
            both.wait()
        return write(self, paying)

    def run(*calls):
        monkeypatch.setattr(Ledger, "_charge", waiting)
        gained, refused = [], []

        def one(asking, call):
            asking.restart()  # a ledger belongs to the thread that has opened it
            try:
                gained.append(call(asking))
            except (Refused, LedgerError) as error:
                refused.append(error)

        threads = [threading.Thread(target=one, args=call) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(seen) == len(gained) + len(refused) == 2
        for asking, _ in calls:
            asking.restart()
        return gained

    return run


def test_of_two_copies_of_a_site_that_was_never_asked_one_alone_answers(pair):
    first, second = pair
    first.agree()
    first.train(0)
    with pytest.raises((Refused, LedgerError)):
        second.agree(run="1" * 32)
    assert second.charges() == []
    assert "one budget twice" in second.log()[-1]["text"]
    first.restart()
    first.train(1)
    assert first.charges() == [0, 1]


def test_of_two_copies_that_agreed_at_the_same_time_the_second_to_be_asked_pays_and_answers_nothing(pair):
    first, second = pair
    first.agree()
    second.agree(run="1" * 32)
    first.train(0)
    with pytest.raises((Refused, LedgerError)):
        second.train(0, run="1" * 32)
    assert second.charges() == []
    assert "one budget twice" in second.log()[-1]["text"]
    first.train(1)
    assert first.charges() == [0, 1]


def test_of_two_copies_that_are_asked_in_the_same_second_at_most_one_answers(pair, same_second):
    first, second = pair
    first.agree()
    second.agree(run=OTHER)
    assert len(same_second((first, lambda one: one.train(0)), (second, lambda one: one.train(0, run=OTHER)))) <= 1
    assert first.charges() == second.charges() == [0], "what was charged stays spent"


def test_of_two_copies_that_are_asked_for_counts_in_the_same_second_at_most_one_answers(copied, same_second):
    pair = copied(data={"held_out": 0.3})
    pair[0].agree()
    pair[1].agree(run=OTHER)
    assert len(same_second((pair[0], counts), (pair[1], partial(counts, run=OTHER)))) <= 1


def counts(asking, *, run=RUN):
    return asking.ask(asking.parameters(asking.parts.params), kind="count", run=run, query="evaluation")


def test_a_copy_that_agreed_early_answers_no_query_after_the_other_was_charged(copied):
    first, second = copied(data={"held_out": 0.3})
    first.agree()
    second.agree(run=OTHER)
    first.train(0)
    with pytest.raises((Refused, LedgerError)):
        counts(second, run=OTHER)
    assert second.charges() == []
    assert "one budget twice" in second.log()[-1]["text"]


def test_a_site_that_paid_in_advance_trains_no_round_once_a_copy_of_it_was_charged(copied):
    """Its ledger is not charged for the round, so nothing else looks for a copy; the run is in memory, with its ledger open."""
    first, second = copied(privacy={"kind": "central", "epsilon": 1.0, "delta_share": 0.1})
    first.agree(releases=3)
    first.train(0)
    key = first.folder / "node.pub"
    key.rename(first.folder / "elsewhere")  # while the copy agrees, it does not see the first
    second.agree(releases=3, run=OTHER)
    (first.folder / "elsewhere").rename(key)
    with pytest.raises(Refused, match=UNSAID):
        first.train(1)
    assert "one budget twice" in first.log()[-1]["text"]


def test_of_two_copies_that_agree_to_central_dp_in_the_same_second_at_most_one_answers(copied, same_second):
    first, second = copied(privacy={"kind": "central", "epsilon": 1.0})
    assert len(same_second((first, lambda one: one.agree()), (second, lambda one: one.agree(run=OTHER)))) <= 1
    answered = []
    for asking, run in ((first, RUN), (second, OTHER)):
        with contextlib.suppress(Refused, LedgerError):
            answered.append(asking.train(0, run=run))
    assert len(answered) <= 1


def test_a_copy_that_stayed_behind_keeps_nobody_from_answering_and_answers_nothing_itself(pair, tmp_path):
    first, second = pair
    first.agree()
    first.train(0)
    shutil.rmtree(second.folder)
    shutil.copytree(first.folder, second.folder)  # a backup
    first.train(1)
    first.restart()
    first.train(2)
    second.restart()
    with pytest.raises((Refused, LedgerError), match=f"{UNSAID}|budget twice"):
        second.train(1)
    assert second.charges() == [0]


def test_a_check_names_the_copy_that_was_charged(pair):
    first, second = pair
    first.agree()
    first.train(0)
    wrong = [finding.text for finding in site_findings(second.folder, experiment=None) if finding.wrong]
    assert len(wrong) == 1
    assert str(first.folder) in wrong[0]
    assert not [finding for finding in site_findings(first.folder, experiment=None) if finding.wrong]


def test_a_site_of_another_key_or_of_another_owner_is_no_copy(pair, monkeypatch):
    first, second = pair
    assert list(copies(first.folder)) == [second.folder]
    monkeypatch.setattr(os, "getuid", lambda: first.folder.stat().st_uid + 1)
    assert list(copies(first.folder)) == []
    monkeypatch.undo()
    (second.folder / "node.pub").write_text("ssh-ed25519 another\n")
    assert list(copies(first.folder)) == []
    (first.folder / "node.pub").unlink()
    assert list(copies(first.folder)) == []
