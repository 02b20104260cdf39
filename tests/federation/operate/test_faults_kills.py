"""Every part of a federation is killed once in one run, under each kind of privacy. Run with `make test-faults`."""

import os
import signal

import pytest
from conftest_deploy import until
from faults_openings import ENCRYPTED, never_opened_twice

from tacit.deploy.operate.serve import start_superlink

pytestmark = pytest.mark.faults

KINDS = {
    "local": {},
    "central": {"privacy": {"kind": "central", "epsilon": 50.0, "noise_multiplier": 1.0}},
    "encrypted": ENCRYPTED,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_outlives_the_kill_of_a_supernode_a_site_the_serverapp_and_the_superlink(federation_of, kind):
    changes = KINDS[kind] | {"train": {"rounds": 3, "local_steps": 30}}
    running = federation_of(sites=3, supernodes=1, **changes)
    first, second, third = running.names
    # a site that dies between its charge and its answer pays twice, for which only the local budget has room
    in_mid_round = running.charged if kind == "local" else running.has_trained
    began = running.submit(seconds=200)
    in_mid_round(second, 0)
    running.kill(f"site {second}")
    running.start_site(second)
    in_mid_round(third, 0)
    running.kill(f"SuperNode {third}")
    running.start_site(third)  # from here on it is a node of its own: same folder, same key, same ledger
    in_mid_round(first, 1)
    os.kill(running.status(began)["pid"], signal.SIGKILL)
    began = running.submit(resume=True, seconds=200)
    until(lambda: len(running.rounds()) > 1, what="the end of round 1")
    in_mid_round(first, 2)
    running.kill("SuperLink")
    start_superlink(running.federation, running.processes)
    running.finished(running.submit(resume=True, seconds=200))
    assert [(record["round"], record["answered"]) for record in running.rounds()] == [(round, 3) for round in range(3)]
    running.never_under_reported()
    for name in running.names:
        assert set(running.charges(name)) >= set(range(3))
    if kind != "central":  # whose server draws its noise again, and pays for it
        assert running.charges(first) == [*range(3)]
    if kind == "encrypted":
        never_opened_twice(running)
    assert (
        "Deactivated node" in (running.federation.server / "superlink.log").read_text()
    )  # the new site signed the dead off
