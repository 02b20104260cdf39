"""Another user of the machine, who reaches every port of 127.0.0.1, and the page that `tacit report --live` serves there."""

import contextlib
import http.client
import os
import signal
import stat
import tempfile
import time
from pathlib import Path

import pytest
import ready
from report_runs import changed

import tacit


@pytest.fixture
def page():
    """A live page of a run in a folder that everybody may enter: its address, and the folder."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)  # pytest's own folders are closed
        yield from served(Path(place) / "run")


def served(folder):
    before = os.umask(0)
    try:
        tacit.run(changed(), out=folder)
        process = ready.tacit("report", "--live", folder, cwd=folder.parent)
        until = time.monotonic() + 120
        while not process.said().endswith("\n") and time.monotonic() < until:
            time.sleep(0.02)
        yield next(word for word in process.said().split() if word.startswith("http://")), folder
    finally:
        os.umask(before)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(60).returncode == 0
    assert not list(folder.glob("live.*"))


def get(port, path):
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    line.request("GET", path)
    answer = line.getresponse()
    found = answer.status, answer.read()
    line.close()
    return found


def as_nobody(what):
    """Whether something is true for another user of this machine."""
    pid = os.fork()
    if not pid:  # pragma: no cover - another user
        told = 1
        with contextlib.suppress(BaseException):
            os.setuid(65534)
            told = 0 if what() else 1
        os._exit(told)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_another_user_of_the_machine_does_not_see_the_live_page_of_a_run(page):
    url, folder = page
    port, secret = int(url.split(":")[2].split("/")[0]), "/" + url.split("/", 3)[3]
    assert len(secret) > 20
    for path in ("/", "/data", "/live.url", secret[:-2] + "x/", "/?token=" + secret[1:-1]):
        status, body = get(port, path)
        assert status == 403
        assert b"epsilon" not in body
    assert get(port, secret)[0] == get(port, secret + "data")[0] == 200
    files = sorted(folder.glob("live.*"))
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600, 0o600]
    assert (folder / "live.url").read_text() == url + "\n"
    assert f'url={url}"' in (folder / "live.html").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_nor_does_it_find_the_address_in_a_file_or_on_a_command_line(page):
    url, folder = page
    secret = url.split("/")[3].encode()

    def lines():
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
                yield file.read()

    assert not as_nobody(lambda: any(secret in line for line in lines()))
    assert as_nobody(lambda: (folder / "run.json").read_bytes())  # it may read what is open,
    assert not as_nobody(lambda: (folder / "live.url").read_bytes() or (folder / "live.html").read_bytes())
