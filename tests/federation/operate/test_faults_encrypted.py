"""Encrypted sums while sites die: the run goes on by its rule or stops in words, and no round has two openings.

Nothing here depends on which sites open a sum. Run with `make test-faults`.
"""

import os
import signal

import pytest
from conftest_deploy import until
from faults_openings import ENCRYPTED, never_opened_twice

pytestmark = pytest.mark.faults


def resumed_until_it_ends(running, began):
    """Resumes a run that stopped, which it must have done in words that say so."""
    status = running.finish(began)
    if status["state"] == "failed":
        assert "opened by" in status["text"]
        assert status["text"].endswith("then go on with --resume.")
        running.finished(running.submit(resume=True))
    running.never_under_reported()
    never_opened_twice(running)
    assert [record["round"] for record in running.rounds()] == [0, 1, 2]


def test_sites_that_are_killed_between_their_report_and_its_opening(federation_of):
    running = federation_of(sites=3, **ENCRYPTED)
    *hit, last = running.names
    began = running.submit(seconds=60)
    running.after_round(began, 0)
    os.kill(running.pid(last), signal.SIGSTOP)  # nothing is opened while a report is missing
    for name in hit:
        until(lambda name=name: sent(running, name, 1), what=f"{name}'s report")
        running.kill(f"site {name}")
    os.kill(running.pid(last), signal.SIGCONT)
    running.has_trained(last, 1)
    for name in hit:
        running.start_site(name)
    resumed_until_it_ends(running, began)
    assert running.rounds()[1]["answered"] == 3


def sent(running, name, round):
    """Whether a site's answer to a round has left it."""
    return f"sent: train, round {round + 1}\n" in running.said(name)
