"""Every part of a federation is killed once in one run, under each kind of privacy. Run with `make test-faults`."""

import os
import signal

import pytest
from conftest_deploy import until
from faults_openings import ENCRYPTED, never_opened_twice

from tacit.deploy.serve import start_superlink

pytestmark = pytest.mark.faults

KINDS = {
    "local": {},
    "central": {"privacy": {"kind": "central", "epsilon": 50.0, "noise_multiplier": 1.0}},
    "encrypted": ENCRYPTED,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_outlives_the_kill_of_every_one_of_its_parts(federation_of, kind):
    changes = KINDS[kind] | {"train": {"rounds": 5, "local_steps": 30}}
    running = federation_of(sites=3, supernodes=1, **changes)
    first, second, third = running.names
    began = running.submit(seconds=300)
    running.charged(third, 0)
    running.kill(f"SuperNode {third}")
    running.supernode_again(third)
    running.charged(second, 1)
    running.kill(f"site {second}")
    running.start_site(second)
    running.charged(first, 2)
    os.kill(running.status(began)["pid"], signal.SIGKILL)
    began = running.submit(resume=True, seconds=300)
    until(lambda: len(running.rounds()) > 2, what="the end of round 2")
    running.charged(first, 3)
    running.kill("SuperLink")
    start_superlink(running.federation, running.processes)
    running.finished(running.submit(resume=True, seconds=300))
    assert [(record["round"], record["answered"]) for record in running.rounds()] == [(round, 3) for round in range(5)]
    running.never_under_reported()
    for name in running.names:
        assert set(running.charges(name)) >= set(range(5))
    if kind == "local":
        assert [running.charges(name) for name in running.names] == [[*range(5)]] * 3
    if kind == "encrypted":
        never_opened_twice(running)
    assert (
        "Deactivated node" in (running.federation.server / "superlink.log").read_text()
    )  # the new site signed the dead off
