"""Who may answer for a site, by real processes: a lock is a process's own."""

import shutil
import subprocess
import sys

import pytest

from tacit.deploy.operate import processes
from tacit.deploy.operate.processes import LOCK, lock_folder
from tacit.errors import BadInput

STAY = "import sys, time; from pathlib import Path; from tacit.deploy.operate.processes import lock_folder; " \
       "print(lock_folder(Path(sys.argv[1])), flush=True); time.sleep(600)"  # fmt: skip


@pytest.fixture
def earlier(tmp_path):
    """A process that has taken the site's place, and stays."""
    with subprocess.Popen([sys.executable, "-c", STAY, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "False\n"
        yield process
        process.kill()


def test_a_second_process_for_a_site_is_refused_and_a_killed_one_is_known_to_have_been_here(tmp_path, earlier):
    (tmp_path / "copy").mkdir()
    shutil.copy(tmp_path / LOCK, tmp_path / "copy" / LOCK)
    assert not lock_folder(tmp_path / "copy")  # it does not take the other process for dead
    with pytest.raises(BadInput, match=f"Another process answers for the site in {tmp_path}: stop it first"):
        lock_folder(tmp_path)
    earlier.kill()
    earlier.wait()
    assert lock_folder(tmp_path)


def test_a_folder_from_another_machine_or_boot_does_not_take_a_process_for_dead(tmp_path, earlier, monkeypatch):
    earlier.kill()
    earlier.wait()
    (tmp_path / "boot").write_text("another\n")
    monkeypatch.setattr(processes, "BOOT", tmp_path / "boot")
    assert not lock_folder(tmp_path)
