"""Faults in a real federation on loopback, with TLS and node authentication: SIGKILL, SIGSTOP, full disks, wrong keys.

After each: the run goes on or stops by its rule, no ledger reports less than what was released, and --resume works.
Run them with `make test-faults`.
"""

import os
import resource
import shutil
import signal
import sqlite3
import time

import pytest
from conftest_deploy import until

from tacit.deploy.operate.certificates import make_authority, make_node_key
from tacit.deploy.server.gather import ASK_SECONDS
from tacit.deploy.server.superlink import HOLD_SECONDS
from tacit.errors import TacitError

pytestmark = pytest.mark.faults


def test_a_site_that_is_killed_in_mid_round_is_left_out_until_it_is_back(running):
    first, second = running.names
    began = running.submit(seconds=20)
    running.charged(second, 1)
    running.kill(f"site {second}")
    running.start_site(second)
    running.finished(began)
    assert running.rounds()[0]["answered"] == 2
    running.never_under_reported()
    assert running.charges(first) == [0, 1, 2]
    assert set(running.charges(second)) >= {0, 1}  # the round it was hit in is spent
    running.finished(running.submit())
    assert (
        "Deactivated node" in (running.federation.server / "superlink.log").read_text()
    )  # the new one signed the dead off
    assert [record["answered"] for record in running.rounds()] == [2, 2, 2]


def test_a_late_answer_is_not_used(running):
    _, second = running.names
    began = running.submit(seconds=15)
    running.charged(second, 0)
    os.kill(running.pid(second), signal.SIGSTOP)
    running.after_round(began, 0)
    os.kill(running.pid(second), signal.SIGCONT)
    running.finished(began)
    assert running.rounds()[0]["answered"] == 1
    running.never_under_reported()


def test_an_answer_to_a_question_that_came_twice_counts_once(running):
    _, second = running.names
    began = running.submit(seconds=3 * ASK_SECONDS)
    running.charged(second, 0)
    os.kill(running.pid(second), signal.SIGSTOP)
    time.sleep(ASK_SECONDS + 2 * HOLD_SECONDS)  # then the silent are asked again, once the server's look has come back
    os.kill(running.pid(second), signal.SIGCONT)
    running.finished(began)
    running.never_under_reported()
    assert running.charges(second) == [0, 1, 2]
    assert running.trained(second) == [0, 1, 2]
    assert "Sent the kept answer again." in [entry["text"] for entry in running.log(second)]
    assert [record["answered"] for record in running.rounds()] == [2, 2, 2]


def test_a_database_that_is_locked_for_a_while_ends_no_site(running):
    first, _ = running.names
    began = running.submit()
    running.charged(first, 0)
    book = sqlite3.connect(running.federation.server / "superlink.db", isolation_level=None, timeout=60)
    book.execute("BEGIN EXCLUSIVE")  # nobody writes: after 5 s Flower answers 500, at which its own nodes end
    time.sleep(8)
    book.execute("ROLLBACK")
    book.close()
    running.finished(began)
    assert [record["answered"] for record in running.rounds()] == [2, 2, 2]
    running.never_under_reported()
    running.processes.refuse_ended()


def test_a_full_disk_releases_nothing_and_the_run_goes_on_when_there_is_room(federation_of):
    running = federation_of(train={"rounds": 6})
    _, second = running.names
    began = running.submit(seconds=20)
    running.has_trained(second, 0)
    before = resource.prlimit(running.pid(second), resource.RLIMIT_FSIZE)
    resource.prlimit(running.pid(second), resource.RLIMIT_FSIZE, (0, before[1]))
    until(lambda: any(record["answered"] == 1 for record in running.rounds()), what="a round without the site")
    without = {f"round-{record['round']:06d}" for record in running.rounds() if record["answered"] == 1}
    kept = {path.stem for path in (running.federation.site(second) / "runs" / running.run()).glob("*.answer")}
    assert kept
    assert not kept & without
    resource.prlimit(running.pid(second), resource.RLIMIT_FSIZE, before)
    running.finished(began)
    assert running.rounds()[-1]["answered"] == 2
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
    until(lambda: running.processes.running[f"site {second}"].poll() is not None, what="the site to give up")
    assert "certificate" in running.said(second)[before:].lower()
    shutil.copy(kept, folder / "ca.crt")
    running.processes.stop(f"site {second}")
    running.start_site(second)
    running.finished(running.submit())


def test_a_node_that_is_not_registered_cannot_join(running, tmp_path):
    first, second = running.names
    running.processes.stop(f"site {second}")
    folder = running.federation.site(second)
    for name in ("node.key", "node.pub"):
        shutil.copy(folder / name, tmp_path / name)
    make_node_key(folder)
    running.start_impatient(second)
    until(lambda: running.processes.running[f"site {second}"].poll() is not None, what="the site to be refused")
    assert f"The server does not let {second} in: register its node.pub" in running.said(second)
    status = running.finish(running.submit(join=15))
    assert status["state"] == "failed"
    assert f"1 of 2 sites did not join ({second})" in status["text"]
    assert running.charges(first) == []
    for name in ("node.key", "node.pub"):
        shutil.copy(tmp_path / name, folder / name)
    running.processes.stop(f"site {second}")
    running.start_site(second)
    running.finished(running.submit(resume=True))


def test_a_server_that_fails_before_it_says_anything_is_told_with_its_reason(running):
    from tacit.deploy.operate.serve import follow, submit

    app = running.federation.app / "tacit_app" / "server_app.py"
    app.write_text(
        "from flwr.serverapp import ServerApp\napp = ServerApp()\n\n@app.main()\ndef main(grid, context):\n"
        "    raise RuntimeError('no such thing')\n"
    )
    began = time.monotonic()
    submit(running.federation, running.processes, resume=False, force=False)
    with pytest.raises(TacitError, match=r"ended before it began: .*no such thing"):
        follow(running.federation, running.processes, since=began, observe=lambda record: None)
