"""The live page: served to this machine alone, and following a run."""

import http.client
import json
import os
import shutil
import signal
import threading
import time

import pytest
import ready
from report_runs import changed

import tacit
from tacit.errors import BadInput
from tacit.report.live import Server, serve
from tacit.report.page import write_page


@pytest.fixture
def served():
    """Serves folders; hands back a function that asks: ask(path, host=...) -> (status, headers, body)."""
    servers = []

    def start(*folders):
        server = Server(folders)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        servers.append((server, thread))

        def ask(path="", host=None, method="GET", token=None):
            line = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
            line.putrequest(
                method,
                (server.url.partition(str(server.server_port))[2] if token is None else token) + path,
                skip_host=True,
            )
            if host != "":
                line.putheader("Host", host or f"127.0.0.1:{server.server_port}")
            line.endheaders()
            answer = line.getresponse()
            found = answer.status, dict(answer.headers), answer.read()
            line.close()
            return found

        ask.port, ask.url = server.server_port, server.url
        return ask

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


def test_whoever_has_no_secret_is_shown_nothing(served, ended):
    ask = served(ended)
    secret = ask.url.split("/")[3]
    for token in ("/", "", f"/{secret[:-1]}/", f"/{secret}x/", "/%00/", "/%C3%A9/", f"/?token={secret}"):
        for path in ("", "data"):
            status, headers, body = ask(path, token=token)
            assert (status, body) == (403, b"Open the address that `tacit report --live` has printed.\n")
            assert "Set-Cookie" not in headers  # a browser would show it to every port of this machine
    assert ask("data")[0] == 200
    with Server([ended]) as other:
        assert other.token != secret


def test_this_machine_alone_gets_the_page_and_its_data_and_nothing_else(served, ended):
    ask = served(ended)
    with Server([ended]) as server:
        assert server.server_address[0] == "127.0.0.1"
    assert ask("data", host=f"localhost:{ask.port}")[0] == 200
    for path in ("ledger.db", "../experiment.toml", "data/..", "/etc/passwd", "report.html"):
        assert ask(path)[0] == 404
    assert ask(method="POST")[0] == 501
    status, headers, body = ask()
    assert status == 200
    assert b"connect-src &#x27;self&#x27;" in body
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "127.0.0.1:1", ""])
def test_another_host_name_gets_nothing(served, ended, host):
    ask = served(ended)
    for path in ("", "data"):
        status, _, body = ask(path, host=host)
        assert status == 403
        assert b"epsilon" not in body


def test_data_is_told_once_and_then_only_what_is_new(served, stopped):
    ask = served(stopped)
    _, headers, body = ask("data?since=0")
    first = json.loads(body)
    assert first["rounds"]["round"] == [1, 2, 3]
    assert ask(f"data?since=3&mark={headers['X-Tacit-Mark']}")[0] == 204
    tacit.run(changed(), out=stopped, resume=True)
    status, _, body = ask(f"data?since=3&mark={headers['X-Tacit-Mark']}")
    more = json.loads(body)
    assert (status, more["since"], more["rounds"]["round"], more["finished"]) == (200, 3, [4, 5, 6], True)


@pytest.mark.parametrize("since", ["-1", "x", "", "9999999", "1e3", "%D9%A3", "9" * 5000])
def test_a_strange_question_is_answered_and_leaves_nothing_on_the_terminal(served, ended, capfd, since):
    ask = served(ended)
    assert ask(f"data?since={since}")[0] == 200
    assert ask("http://[bad/", token="")[0] == 400
    assert "Traceback" not in capfd.readouterr().err


def test_a_folder_that_breaks_while_served_is_said_in_one_sentence(served, ended, tmp_path):
    shutil.copytree(ended, tmp_path / "run")
    ask = served(tmp_path / "run")
    (tmp_path / "run" / "summary.json").write_text("{")
    status, _, body = ask("data")
    assert status == 500
    assert body.decode().strip().count("\n") == 0
    assert b"summary.json is damaged" in body


def test_what_cannot_be_shown_is_refused_before_anything_is_served(tmp_path):
    with pytest.raises(BadInput, match="There is no folder"):
        serve([tmp_path / "nowhere"], port=0, ready=lambda url, page: pytest.fail("served"))


def test_a_port_in_use_is_refused_in_one_sentence(ended):
    with Server([ended]) as server, pytest.raises(BadInput, match="cannot be used"):
        Server([ended], port=server.server_port)
    with pytest.raises(BadInput, match="Port 70000 cannot be used"):
        Server([ended], port=70000)


def test_ctrl_c_ends_it_cleanly(ended):
    process = ready.tacit("report", "--live", ended, cwd=ended.parent)
    for _ in range(3000):
        if process.said().endswith("\n"):
            break
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    done = process.wait(60)
    first, second = done.stdout.splitlines()
    assert "http://127.0.0.1:" in first
    assert (done.returncode, second.strip(), done.stderr) == (0, "Stopped.", "")


@pytest.fixture
def federation(deployed, tmp_path):
    """A federation's folder whose results are those of a deployment that goes on."""
    shutil.copytree(deployed, tmp_path / "federation" / "results")
    (tmp_path / "federation" / "results" / "summary.json").unlink()
    (tmp_path / "federation" / "federation.toml").write_text("")
    return tmp_path / "federation"


def test_a_federation_is_served_by_its_results_and_one_that_has_not_run_is_refused(served, federation):
    _, _, body = served(federation)("data")
    assert [site["state"] for site in json.loads(body)["sites"]["sites"]][-2:] == ["refused", "out"]
    shutil.rmtree(federation / "results")
    with pytest.raises(BadInput, match="has not run yet"):
        serve([federation], port=0, ready=lambda url, page: pytest.fail("served"))


def test_whatever_a_page_writes_into_a_federation_is_for_its_owner_whatever_the_umask(
    deployed, federation, monkeypatch
):
    monkeypatch.setattr("tacit.report.collect.LIVE_PRICES", 0)
    shutil.copy(deployed / "summary.json", federation / "results")  # prices are noted of a run that has ended
    elsewhere = federation.parent / "open" / "page.html"
    elsewhere.parent.mkdir()
    for place, mode in ((federation, 0o700), (federation / "results", 0o700), (elsewhere.parent, 0o755)):
        place.chmod(mode)
    before = os.umask(0)
    try:
        write_page([federation], federation / "report.html")
        write_page([federation / "results"], federation / "results" / "report.html")
        write_page([federation], elsewhere)
    finally:
        os.umask(before)
    made = ("report.html", "results/report.html", "results/spent.json")
    modes = {name: (federation / name).stat().st_mode & 0o777 for name in made}
    assert modes == dict.fromkeys(made, 0o600)
    assert elsewhere.stat().st_mode & 0o077  # a place that somebody chose is theirs to close


def test_the_page_follows_the_sites_of_a_federation_in_a_browser(browser, served, federation):
    states = "[...document.querySelectorAll('.sites .badge')].map(b => b.innerText.split(' ').slice(1).join(' '))"
    browser.open(served(federation).url)
    browser.wait(f"{states}.join() === 'answered,answered,answered,refused,out'")
    path = federation / "results" / "status.json"
    status = json.loads(path.read_text())
    path.write_text(json.dumps(status | {"asked": status["asked"] | {"round": 6, "over": False}}))
    browser.wait(f"{states}.join() === 'answered,answered,answered,refused,awaited'")
    path.write_text(json.dumps(status | {"state": "failed", "text": "Round 7 got 0 answers."}))
    browser.wait("document.querySelector('h1 .badge').textContent === 'stopped'")
    assert "Round 7 got 0 answers." in browser.value("document.querySelector('#sites .banner').innerText")
    assert browser.complaints() == []
    browser.open("about:blank")  # or it goes on asking


def test_the_page_follows_a_run_in_a_browser(browser, served, stopped):
    browser.open(served(stopped).url)
    browser.wait("document.querySelector('.badge')?.textContent === 'running'")
    time.sleep(0.1)
    tacit.run(changed(), out=stopped, resume=True)
    browser.wait("document.documentElement.dataset.live === 'ended'")
    assert browser.value("document.querySelector('.badge').textContent") == "finished"
    browser.value("document.querySelector('svg.chart').focus()")
    browser.press("End")
    assert browser.value("document.querySelector('figure output').textContent").startswith("round 6:")
    assert browser.complaints() == []
