"""What a summary says of code and machine, and what it must not say."""

import getpass
import json
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
import torch

import tacit
from tacit.engine.assemble import build
from tacit.engine.history import commit, provenance


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_checkout_is_named_by_its_commit_and_whether_it_was_changed_and_nothing_else_is(tmp_path, monkeypatch):
    home = tmp_path / "here"
    home.mkdir()

    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", *who, *words], cwd=home, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def known(folder=home):
        commit.cache_clear()
        return commit(folder)

    assert known() is None
    (home / "secret_name.py").write_text("one = 1\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    head = git("rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))  # another checkout's variables are no excuse
    assert known() == head
    (home / "secret_name.py").write_text("one = 2\n")
    assert known() == f"{head}-dirty"
    (home / "venv").mkdir()
    assert known(home / "venv") is None  # installed inside somebody else's checkout
    (home / ".git" / "HEAD").write_text("nonsense\n")
    assert known() is None
    monkeypatch.setenv("PATH", "")
    assert known() is None
    commit.cache_clear()


def test_a_summary_names_versions_and_machine_and_neither_host_nor_person_nor_path(small, tmp_path):
    history = tacit.run(small(train={"rounds": 1}), out=tmp_path / "here", page=False)
    found = json.loads((tmp_path / "here" / "summary.json").read_text())["provenance"]
    assert found == history.summary["provenance"]
    assert (found["tacit"], found["torch"]) == (tacit.__version__, torch.__version__)
    assert found["workers"] == 1
    assert found["gpus"] == []
    text = json.dumps(found)
    assert socket.gethostname() not in text.split('"')
    for secret in (str(Path.home()), str(Path(tacit.__file__).parent), str(tmp_path)):
        assert secret not in text
    assert getpass.getuser() not in text.split('"')
    assert "/" not in text.replace(found["processor"], "")


def test_workers_are_as_many_as_there_will_be(small):
    found = provenance(build(small(run={"workers": 0})))
    assert found["workers"] == found["cores"] >= 1
