"""A site's folder that was copied: two that both answer would spend one budget twice, and neither ledger can know."""

import copy
import os
import shutil

import pytest

from tacit.errors import LedgerError, Refused
from tacit.federation.operate.inspect_site import site_findings
from tacit.federation.site.site import UNSAID
from tacit.federation.site.twins import twins


@pytest.fixture
def pair(server, tmp_path):
    """A site in a federation, and the same server's other end of a copy of it in another one, before anybody was asked."""
    asking = server()
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
    assert list(twins(first.folder)) == [second.folder]
    monkeypatch.setattr(os, "getuid", lambda: first.folder.stat().st_uid + 1)
    assert list(twins(first.folder)) == []
    monkeypatch.undo()
    (second.folder / "node.pub").write_text("ssh-ed25519 another\n")
    assert list(twins(first.folder)) == []
    (first.folder / "node.pub").unlink()
    assert list(twins(first.folder)) == []
