"""Faults in a real federation on loopback, with TLS and node authentication: SIGKILL, SIGSTOP, full disks, wrong keys.

After each: the run goes on or stops by its rule, no ledger reports less than what was released, and --resume works.
Run them with `make test-faults`.
"""

import os
import resource
import shutil
import signal
import time

import pytest
from conftest_deploy import until

from tacit.deploy.certificates import make_authority, make_node_key

pytestmark = pytest.mark.faults


def test_a_site_that_is_killed_in_mid_round_is_left_out_until_it_is_back(running):
    first, second = running.names
    began = running.submit(seconds=20)
    running.charged(second, 1)
    running.kill(f"site {second}")
    running.start_site(second)  # the SuperLink takes it for online for another minute and refuses it until then
    assert running.finish(began)["state"] == "finished"
    answered = [record["answered"] for record in running.rounds()]
    assert answered[0] == 2
    assert answered[1:] != [2, 2]
    running.never_under_reported()
    assert running.charges(first) == [0, 1, 2]
    assert set(running.charges(second)) >= {0, 1}  # the round it was hit in is spent
    again = running.submit(join=120)
    assert running.finish(again, seconds=240)["state"] == "finished"
    assert [record["answered"] for record in running.rounds()] == [2, 2, 2]


def test_a_late_answer_is_not_used_and_a_double_one_counts_once(running):
    _, second = running.names
    began = running.submit(seconds=30)
    running.charged(second, 0)
    pid = running.processes._running[f"site {second}"].pid
    os.kill(pid, signal.SIGSTOP)
    time.sleep(18)  # longer than half the patience: it is asked again, and will answer twice
    os.kill(pid, signal.SIGCONT)
    assert running.finish(began)["state"] == "finished"
    running.never_under_reported()
    assert running.charges(second) == [0, 1, 2]
    answered = [entry["text"] for entry in running.log(second) if entry["kind"] == "train"]
    assert sum(text.startswith("Trained") for text in answered) == 3
    assert running.rounds()[0]["answered"] in (1, 2)


def test_a_server_that_dies_after_the_charge_goes_on_with_the_same_answers(running):
    first, second = running.names
    began = running.submit()
    running.charged(first, 1)
    os.kill(running.status(began)["pid"], signal.SIGKILL)
    until(lambda: len(running.charges(second)) == 2, what="the other site's charge")
    resumed = running.submit(resume=True)
    assert running.finish(resumed)["state"] == "finished"
    running.never_under_reported()
    for name in running.names:
        assert running.charges(name) == [0, 1, 2]
    assert len(running.rounds()) == 3


def test_a_superlink_that_is_killed_comes_back_and_the_run_is_resumed(running):
    from tacit.deploy.up import start_superlink

    first, _ = running.names
    running.submit()
    running.charged(first, 1)
    running.kill("SuperLink")
    start_superlink(running.federation, running.processes)
    resumed = running.submit(resume=True)
    assert running.finish(resumed)["state"] == "finished"
    running.never_under_reported()
    assert len(running.rounds()) == 3
    for name in running.names:
        assert set(running.charges(name)) == {0, 1, 2}


def test_a_full_disk_releases_nothing_and_the_run_goes_on_when_there_is_room(running):
    _, second = running.names
    began = running.submit(seconds=20)
    running.charged(second, 0)
    until(lambda: any(e["text"].startswith("Trained") for e in running.log(second)), what="the first answer")
    pid = running.processes._running[f"site {second}"].pid
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, before[1]))
    until(lambda: len(running.rounds()) == 2, what="a round without the site")
    assert running.rounds()[1]["answered"] == 1
    assert running.charges(second) == [0]
    resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
    assert running.finish(began)["state"] == "finished"
    assert running.rounds()[2]["answered"] == 2
    running.never_under_reported()


def test_a_site_with_a_wrong_certificate_does_not_connect(running, tmp_path):
    _, second = running.names
    running.processes.stop(f"site {second}")
    folder, kept = running.federation.site(second), tmp_path / "kept.crt"
    shutil.copy(folder / "ca.crt", kept)
    make_authority(tmp_path, name="other")
    shutil.copy(tmp_path / "ca.crt", folder / "ca.crt")
    before = len(running.said(second))
    running.start_site(second)
    until(lambda: running.processes.ended(f"site {second}"), what="the site to give up")
    assert "certificate" in running.said(second)[before:].lower()
    shutil.copy(kept, folder / "ca.crt")
    running.processes.stop(f"site {second}")
    running.start_site(second)


def test_a_node_that_is_not_registered_cannot_join(running, tmp_path):
    first, second = running.names
    running.processes.stop(f"site {second}")
    folder = running.federation.site(second)
    for name in ("node.key", "node.pub"):
        shutil.copy(folder / name, tmp_path / name)
    make_node_key(folder)
    running.start_site(second)
    until(lambda: running.processes.ended(f"site {second}"), what="the site to be refused")
    assert f"The server does not let {second} in: register its node.pub" in running.said(second)
    began = running.submit(join=5)
    status = running.finish(began)
    assert status["state"] == "failed"
    assert f"1 of 2 sites did not join ({second})" in status["text"]
    assert running.charges(first) == []
    for name in ("node.key", "node.pub"):
        shutil.copy(tmp_path / name, folder / name)
    running.processes.stop(f"site {second}")
    running.start_site(second)
    resumed = running.submit(resume=True)
    assert running.finish(resumed)["state"] == "finished"
