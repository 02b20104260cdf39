"""Sums under masks while real processes are killed: the run goes on, and nobody reports or signs twice (`make test-faults`)."""

import json
import os
import signal

import pytest
from conftest_deploy import until

pytestmark = pytest.mark.faults

MASKED = {
    "data": {"examples_per_client": 300},
    "train": {"rounds": 4, "local_steps": 1, "sampling_rate": None, "learning_rate": 0.5},
    "privacy": {
        "kind": "distributed", "unit": "record", "epsilon": 50.0, "noise_multiplier": None, "delta_share": None,
        "fewest_reports": 3, "colluding": 1,
    },
    "protect": {"kind": "masks"},
}  # fmt: skip


def said(running, name, kind, round):
    """How often a site's log has an answer of this kind to a round that was not one it had kept."""
    wanted = (kind, round, "answered")
    lines = [line for line in running.log(name) if tuple(map(line.get, ("kind", "round", "verdict"))) == wanted]
    return [line["text"] for line in lines if "again" not in line["text"]]


def test_sites_and_the_server_are_killed_at_every_leg_and_the_run_ends_with_every_sum_opened_once(federation_of):
    running = federation_of(sites=4, **MASKED)
    first, second, third, _ = running.names
    began = running.submit(seconds=60)

    def killed(name, kind, round):
        until(lambda: said(running, name, kind, round), what=f"{name} to {kind} in round {round}")
        running.kill(f"site {name}")
        running.start_site(name)

    killed(first, "train", 0)  # after its report
    running.after_round(began, 0)
    killed(second, "sign", 1)
    running.after_round(began, 1)
    running.charged(third, 2)  # between its charge and its report, or just after
    running.kill(f"site {third}")
    running.start_site(third)
    until(lambda: said(running, first, "sign", 2), what="a list to be signed in round 2")
    os.kill(running.status(began)["pid"], signal.SIGKILL)  # the server, before or after anything is unmasked
    began = running.submit(resume=True, seconds=60)
    status = running.finish(began)
    if status["state"] == "failed":
        assert status["text"].endswith("then go on with --resume.")
        running.finished(running.submit(resume=True))
    running.never_under_reported()
    rounds = running.rounds()
    assert [record["round"] for record in rounds] == [0, 1, 2, 3]
    assert rounds[-1]["opened"] == 1
    for name in running.names:
        for round in range(4):
            assert len(said(running, name, "sign", round)) <= 1
            assert len(said(running, name, "unmask", round)) <= 1
            lists = running.federation.site(name) / "runs" / running.run() / "signed-all"
            assert len(list(lists.glob("round-*.question"))) <= 1
    summary = json.loads((running.federation.results / "summary.json").read_text())
    assert summary["stopped"] == "rounds"
