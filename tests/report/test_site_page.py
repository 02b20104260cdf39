"""A site's own page: its promises, what it has spent of its limit, what it gets from joining: for its owner alone."""

import json
import shutil

import pytest
from federation.site.test_own_evaluation import holding_out
from redteam.lying_server import RUN
from report.test_top import CUT, cells, show
from report_runs import EVIL
from typer.testing import CliRunner

from tacit.cli.app import app
from tacit.deploy.operate.site_page import site_data, write_site_page
from tacit.deploy.site import models
from tacit.deploy.site.requests import sent
from tacit.errors import BadInput
from tacit.privacy.ledger import reader

ASKS = '0.3\n[personal]\nkind = "mean-regularised"'


def asked(folder, held_out):
    """A site that was asked for all rounds of a run and has been left a model."""
    server = holding_out(folder, held_out)
    for one in (server.hello, server.agree, *(lambda n=n: server.train(n) for n in range(3))):
        one()
    server.ask(sent(server.parts.params), kind="keep", run=RUN)
    return folder


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """A site with own models, and new rows that judged them. Do not change it."""
    folder = asked(tmp_path_factory.mktemp("adapted") / "north", ASKS)
    models.adapt(folder, RUN)
    run = folder / "runs" / RUN
    line = json.loads((run / "comparison.json").read_text()) | {"file": EVIL[0], "seen": 2}
    (run / "evaluated.jsonl").write_text(json.dumps(line) + "\n")
    return folder


@pytest.fixture
def site(tmp_path, adapted):
    """A copy of it."""
    return shutil.copytree(adapted, tmp_path / "north")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1280])
def test_a_sites_page_has_its_promise_its_spending_and_what_it_gets_from_joining(browser, site, width, dark):
    show(browser, write_site_page(site), width=width, dark=dark)
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.value(CUT) == []
    text = browser.value("document.body.innerText")
    assert (site / "runs" / RUN / "promise.txt").read_text().strip() in " ".join(text.split())
    (account,) = reader.accounts(site / "ledger.db")
    (row, total) = cells(browser, ".each")
    assert row[0].startswith(RUN[:8])
    assert account.used <= float(row[1].removeprefix("≤ ")) <= float(row[2].removeprefix("≤ "))
    assert account.sealed <= float(total[-1].removeprefix("≤ ")) <= account.sealed + 1e-3
    told = json.loads((site / "runs" / RUN / "comparison.json").read_text())["metrics"]["accuracy"]
    drawn = browser.value("[...document.querySelectorAll('svg.chart')].map(s => s.getAttribute('aria-label'))")
    assert f"held-out rows: alone {told['alone']['value']:.3f}, global {told['common']['value']:.3f}" in drawn[0]
    assert EVIL[0] in drawn[0]
    assert browser.value("document.querySelectorAll('img, [onload], [onerror]').length") == 0
    for words in ("undefined", "NaN", "[object"):
        assert words not in text


def test_it_is_for_its_owner_alone_and_stays_in_its_folder(site, tmp_path):
    done = CliRunner().invoke(app, ["report", str(site)])
    assert done.exit_code == 0
    assert "for this site alone" in done.stdout
    assert (site / "report.html").stat().st_mode & 0o777 == 0o600
    for words, sentence in (
        (["--out", str(tmp_path / "mine.html")], "stays in the site's folder"),
        ([str(tmp_path)], "shows that site alone"),
        (["--live"], "leave out --live"),
    ):
        failed = CliRunner().invoke(app, ["report", str(site), *words])
        assert isinstance(failed.exception, BadInput)
        assert sentence in str(failed.exception)
    (site / "report.html").unlink()
    (site / "report.html").symlink_to(tmp_path / "elsewhere.html")
    with pytest.raises(BadInput, match="stays in the site's folder"):
        write_site_page(site)
    assert not list(tmp_path.glob("*.html"))


def test_adapting_ends_with_the_page_and_its_log_names_the_command(site):
    (site / "runs" / RUN / "comparison.json").unlink()
    models.adapt_due(site)
    assert "`tacit report`" in json.loads((site / "log.jsonl").read_text().splitlines()[-1])["text"]
    done = CliRunner().invoke(app, ["deploy", "site", str(site), "--adapt"])
    assert f"Report: {(site / 'report.html').resolve()} (for this site alone)" in done.stdout
    assert (site / "report.html").stat().st_mode & 0o777 == 0o600


def test_a_site_without_own_models_is_told_how_it_would_get_them(browser, tmp_path):
    folder = asked(tmp_path / "north", "0.3")
    show(browser, write_site_page(folder))
    text = browser.value("document.body.innerText")
    assert "site.toml asks for no personalised models" in text
    assert "Do not send this file" not in text


def test_a_site_that_nobody_has_asked_has_a_page_too(browser, site):
    shutil.rmtree(site / "runs")
    (site / "ledger.db").unlink()
    show(browser, write_site_page(site))
    text = browser.value("document.body.innerText")
    assert "No run has asked the site for anything yet" in text
    assert "Its ledger holds no charge yet" in text


def edited(path, **more):
    path.write_text(json.dumps(json.loads(path.read_text()) | more))


ACCURACY = {"value": 0.5, "interval": [0.4, 0.6]}
HOMES = dict.fromkeys(("alone", "common", "own", "own_less_alone", "own_less_common"), ACCURACY)


@pytest.mark.parametrize(
    "crafted",
    [
        {"metrics": {"accuracy": HOMES | {"own": {"value": "0.5", "interval": None}}}},
        {"metrics": {"accuracy": HOMES | {"own": {"value": True, "interval": None}}}},
        {"metrics": {"accuracy": HOMES | {"alone": {"value": 0.5, "interval": [0.4]}}}},
        {"metrics": {"accuracy": HOMES | {"common": None}}},
        {"metrics": {str(n): HOMES for n in range(100)}},
        {"metrics": []},
        {"kind": ["mean-regularised"]},
        {"use": "own\u202e"},
        {"use": ["own"]},
        {"because": "x" * 2000},
        {"rows": -1},
        {"trained_on": 1.5},
        {"notes": "none"},
        {"notes": ["x" * 2000]},
    ],
)
def test_a_comparison_that_was_edited_is_refused_in_one_sentence(site, crafted):
    edited(site / "runs" / RUN / "comparison.json", **crafted)
    with pytest.raises(BadInput, match=r"comparison\.json is damaged"):
        write_site_page(site)
    assert not (site / "report.html").exists()


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[1]", b"{}" + b" " * (1 << 20), b'{"metrics": NaN}'])
def test_a_file_that_is_none_is_refused_in_one_sentence(site, content):
    run = site / "runs" / RUN
    kept = (run / "comparison.json").read_bytes()
    (run / "comparison.json").write_bytes(content)
    with pytest.raises(BadInput, match=r"comparison\.json"):
        site_data(site)
    (run / "comparison.json").write_bytes(kept)
    (run / "evaluated.jsonl").write_bytes(content + b"\n")
    with pytest.raises(BadInput, match=r"evaluated\.jsonl"):
        site_data(site)
