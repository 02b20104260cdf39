"""Files of ours: whole or not at all, and never open to others."""

import os
import subprocess
import sys

import pytest

from tacit import store
from tacit.errors import BadInput


def test_a_crash_while_writing_leaves_the_old_content(tmp_path, monkeypatch):
    file = tmp_path / "file"
    store.write(file, b"old")

    def fails(_):
        raise OSError

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError):
        store.write(file, b"new")
    with pytest.raises(OSError):
        store.create(tmp_path / "other", b"new")
    assert file.read_bytes() == b"old"
    assert not (tmp_path / "other").exists()


def test_what_a_crash_left_beside_a_file_is_no_obstacle(tmp_path):
    (tmp_path / ".file.new").write_bytes(b"half")
    store.write(tmp_path / "file", b"whole")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("make", [store.write, store.create])
def test_a_secret_has_its_mode_whatever_the_umask(tmp_path, make):
    before = os.umask(0)
    try:
        make(tmp_path / "secret", b"", mode=0o600)
    finally:
        os.umask(before)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def test_a_file_in_a_closed_folder_is_its_owners(tmp_path):
    tmp_path.chmod(0o700)
    store.write(tmp_path / "file", b"")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_a_file_is_created_once(tmp_path):
    assert store.create(tmp_path / "file", b"first")
    assert not store.create(tmp_path / "file", b"second")
    assert (tmp_path / "file").read_bytes() == b"first"


def test_a_folder_in_use_is_not_set_aside(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    held = store.lock_folder(folder)
    code = f"from tacit import store; from pathlib import Path; store.set_aside(Path({str(folder)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "RunExists" in done.stderr
    os.close(held)
    store.set_aside(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["run.1"]


def test_a_foreign_file_is_not_replaced(tmp_path):
    (tmp_path / "ledger.db").write_bytes(b"SQLite")
    with pytest.raises(BadInput, match="another file"):
        store.refuse_foreign(tmp_path / "ledger.db", begins=b"<!doctype")
