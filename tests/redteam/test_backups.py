"""A ledger restored from a backup, and the answers beside it that it does not know."""

import shutil

import pytest
from redteam.lying_server import RUN

from tacit.errors import BudgetExhausted, Refused

FILES = ("ledger.db", "ledger.mark")


@pytest.fixture
def restored(server):
    """A site whose ledger and mark went back to the end of round 0 after two more rounds."""
    asking = server()
    asking.agree()
    asking.train(0)
    for name in FILES:
        shutil.copy(asking.folder / name, asking.folder.parent / name)
    last = [asking.train(round) for round in (1, 2)][-1]
    for name in FILES:
        shutil.copy(asking.folder / name, asking.folder.parent / f"newest-{name}")
        shutil.copy(asking.folder.parent / name, asking.folder / name)
    asking.restart()
    return asking, last


@pytest.mark.parametrize("run", [RUN, "1" * 32], ids=["the same run", "another run"])
def test_a_backup_of_ledger_and_mark_lets_no_run_go_on_or_begin_where_answers_are_there_that_it_does_not_know(
    restored, run
):
    """A run that it has forgotten in part would count for less than was released."""
    asking, _ = restored
    assert asking.charges() == [0]
    with pytest.raises(Refused):
        asking.agree(run=run)
    assert "restore" in asking.log()[-1]["text"]


def test_a_kept_answer_that_the_ledger_does_not_know_is_not_sent(restored):
    asking, last = restored
    with pytest.raises(Refused):
        asking.train(2)
    for name in FILES:
        shutil.copy(asking.folder.parent / f"newest-{name}", asking.folder / name)
    asking.restart()
    assert asking.train(2) == last


def test_a_round_that_could_not_be_paid_for_does_not_end_the_sites_other_runs(server):
    """Its question is on disk, and no ledger will ever know it."""
    asking = server()
    other = "1" * 32
    asking.agree()
    asking.agree(run=other)
    asking.train(0)
    with pytest.raises(BudgetExhausted):
        asking.train(0, run=other)
    asking.restart()
    asking.train(1)
    assert asking.charges() == [0, 1]
