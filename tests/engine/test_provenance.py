"""What a summary says of code and machine, and what it must not say."""

import getpass
import json
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
import torch

import tacit
from tacit.engine import history as module
from tacit.engine.assemble import build
from tacit.engine.history import provenance


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A git checkout with a package in it, as `_checkout` sees it; other variables of git are no excuse."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    home = tmp_path / "here" / "tacit"
    home.mkdir(parents=True)
    (home / "secret_name.py").write_text("one = 1\n")
    (home.parent / "notes.txt").write_text("mine\n")

    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", *who, *words], cwd=home.parent, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    module._checkout.cache_clear()
    yield (
        home,
        lambda: subprocess.run(
            ["git", "-C", str(home), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
            env={key: value for key, value in os.environ.items() if key != "GIT_DIR"},
        ).stdout.strip(),
    )
    module._checkout.cache_clear()


def asked(home):
    module._checkout.cache_clear()
    return module._checkout(home)


def test_a_checkout_is_named_by_its_commit_and_whether_the_package_was_changed_but_not_where(checkout):
    home, head = checkout
    assert asked(home) == {"commit": head(), "dirty": False}
    (home.parent / "notes.txt").write_text("no file of the package\n")
    assert asked(home)["dirty"] is False
    (home / "secret_name.py").write_text("one = 2\n")
    found = asked(home)
    assert found == {"commit": head(), "dirty": True}
    assert "secret" not in json.dumps(found)


def test_a_new_file_of_the_package_counts_as_a_change(checkout):
    home, _ = checkout
    (home / "more.py").write_text("two = 2\n")
    assert asked(home)["dirty"] is True


def test_a_package_that_is_installed_inside_somebody_elses_checkout_has_no_commit(checkout):
    home, _ = checkout
    installed = home.parent / "venv" / "site-packages" / "tacit"
    installed.mkdir(parents=True)
    assert asked(installed) == {"commit": None, "dirty": None}


def test_without_git_or_with_a_broken_checkout_nothing_is_known_and_nothing_fails(checkout, monkeypatch):
    home, _ = checkout
    (home.parent / ".git" / "HEAD").write_text("nonsense\n")
    assert asked(home) == {"commit": None, "dirty": None}
    monkeypatch.setenv("PATH", "")
    assert asked(home) == {"commit": None, "dirty": None}


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


def test_a_file_whose_name_is_no_text_ends_no_run(checkout):
    home, head = checkout
    Path(os.fsdecode(os.fsencode(home) + b"/caf\xe9.py")).write_text("two = 2\n")
    config = home.parent / ".git" / "config"
    config.write_text(config.read_text() + "[core]\n\tquotepath = false\n")
    assert asked(home) == {"commit": head(), "dirty": True}
