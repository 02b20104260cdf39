"""A server of central DP that dies when its sites have paid: the noise it draws again is another release, and is charged.

Run with `make test-faults`.
"""

import json
import os
import signal

import pytest

from tacit.privacy.ledger import reader as books

pytestmark = pytest.mark.faults

CENTRAL = {"kind": "central", "noise_multiplier": None}


def killed_before_it_adds(running):
    """Kills the server of a run in round 1, when both answers are there or on their way and none is added."""
    first, second = running.names
    began = running.submit()
    running.after_round(began, 0)
    os.kill(running.pid(second), signal.SIGSTOP)  # the server cannot add while an answer is missing
    running.has_trained(first, 1)
    server = running.status(began)["pid"]
    os.kill(server, signal.SIGSTOP)
    os.kill(running.pid(second), signal.SIGCONT)
    running.has_trained(second, 1)
    os.kill(server, signal.SIGKILL)
    assert len(running.rounds()) == 1


def released(running):
    """The rounds that the server's ledger holds, one for every noise that was drawn."""
    entries = books.entries(running.federation.results / "ledger.db")
    return sorted(round for _, round in {(entry["attempt"], entry["round"]) for entry in entries})


def never_less_at_the_sites(running):
    """No site's own ledger holds less than the server's."""
    delta = 1e-5
    server = max(books.spent(books.entries(running.federation.results / "ledger.db"), delta=delta).values())
    for name in running.names:
        (site,) = books.spent(books.entries(running.federation.site(name) / "ledger.db"), delta=delta).values()
        assert server <= site <= running.epsilon


def test_a_server_that_dies_before_it_adds_pays_again_for_the_noise_it_draws_again(federation_of):
    running = federation_of(privacy=CENTRAL | {"epsilon": 50.0, "noise_multiplier": 1.0})
    killed_before_it_adds(running)
    running.finished(running.submit(resume=True))
    assert [record["answered"] for record in running.rounds()] == [2, 2, 2]
    assert released(running) == [0, 1, 1, 2]
    for name in running.names:
        assert running.charges(name) == [0, 1, 2, 3]
        assert running.trained(name) == [0, 1, 2]
    never_less_at_the_sites(running)


def test_a_budget_that_does_not_pay_for_noise_twice_ends_the_run_a_round_early(federation_of):
    running = federation_of(privacy=CENTRAL | {"epsilon": 9.0})
    killed_before_it_adds(running)
    running.finished(running.submit(resume=True))
    summary = json.loads((running.federation.results / "summary.json").read_text())
    assert (summary["stopped"], summary["rounds"]) == ("budget", 2)
    assert released(running) == [0, 1, 1]
    for name in running.names:
        assert running.charges(name) == [0, 1, 2]
    never_less_at_the_sites(running)
