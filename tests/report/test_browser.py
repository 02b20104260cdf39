"""The page in headless Chromium: it draws, stays within a phone, is used by keyboard, and runs nothing from a name."""

import json
import re

import numpy as np
import pytest
from report_runs import EVIL, changed

import tacit
from tacit.attacks import Estimate, Finding, Line, Plot
from tacit.attacks._strip import strip_of
from tacit.compare.results import Estimate as Estimated
from tacit.report.page import write_matrix, write_page

WIDTHS = (360, 768, 1280)
LABELLED = "svg.chart, canvas, button, a, [role=region], [role=img], output, table, section"
UNNAMED = (
    "e => !(e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.querySelector('title, caption')"
    " || e.textContent.trim())"
)
READY = "document.documentElement.dataset.ready === 'yes'"


@pytest.fixture(scope="module")
def several(ended, tmp_path_factory):
    """A page of two runs with different promises."""
    home = tmp_path_factory.mktemp("several")
    tacit.run(changed(privacy={"kind": "none", "epsilon": None}), out=home / "open", page=False)
    tacit.run(changed(privacy={"epsilon": 3.0}, train={"rounds": 4}), out=home / "three", page=False)
    write_page([ended, home / "open", home / "three"], home / "report.html")
    return home / "report.html"


def show(browser, page, **options):
    browser.open(page.resolve().as_uri(), **options)
    browser.wait(READY)
    assert browser.complaints() == []


@pytest.mark.parametrize("width", WIDTHS)
def test_a_page_fits_its_window_and_every_chart_is_drawn(browser, ended, several, width):
    for page in (ended / "report.html", several):
        show(browser, page, width=width)
        browser.wait("document.querySelectorAll('svg.chart').length >= 5")
        assert browser.value("document.documentElement.scrollWidth") <= width
        assert browser.value("[...document.querySelectorAll('svg.chart')].every(s => s.querySelector('path[stroke]'))")
        drawn = browser.value("[...document.querySelectorAll('svg.chart path')].map(p => p.getAttribute('d')).join()")
        assert not re.search("NaN|Infinity|undefined", drawn)
        assert "undefined" not in browser.value("document.body.innerText")
        assert "[object" not in browser.value("document.body.innerText")


def test_nothing_is_asked_from_a_network(browser, ended):
    show(browser, ended / "report.html")
    asked = [event["request"]["url"] for event in browser.told("Network.requestWillBeSent")]
    assert [url for url in asked if not url.startswith("file:")] == []


def test_light_and_dark_follow_the_system_and_the_button(browser, ended):
    light = "getComputedStyle(document.body).backgroundColor"
    show(browser, ended / "report.html")
    before = browser.value(light)
    show(browser, ended / "report.html", dark=True)
    dark = browser.value(light)
    assert sum(map(int, re.findall(r"\d+", dark))) < 200 < sum(map(int, re.findall(r"\d+", before)))
    browser.value("document.getElementById('theme').click()")
    assert browser.value(light) == before
    browser.value("localStorage.clear()")


def test_a_chart_is_read_out_by_arrow_keys(browser, ended):
    show(browser, ended / "report.html")
    browser.value("document.querySelector('svg.chart').focus()")
    browser.press("Home")
    said = "document.querySelector('figure output').textContent"
    assert browser.value(said).startswith("round 1: test accuracy 0.")
    browser.press("ArrowRight")
    assert browser.value(said).startswith("round 2: test accuracy 0.")
    assert browser.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.value("document.querySelector('canvas').focus()")
    browser.press("ArrowDown")
    read = browser.value("document.querySelector('canvas + output').textContent")
    assert re.match(r"client-0, label 1: \d+ record", read)


def test_drawing_anew_keeps_the_place_of_the_reader(browser, ended):
    show(browser, ended / "report.html")
    browser.value("document.querySelector('svg.chart').focus()")
    browser.press("Home")
    browser.press("ArrowRight")
    old = "window.old = document.querySelector('svg.chart')"
    browser.value(old + "; 0")
    browser.call("Emulation.setDeviceMetricsOverride", width=700, height=900, deviceScaleFactor=1, mobile=False)
    browser.wait("window.old !== document.querySelector('svg.chart')")
    assert browser.value("document.activeElement === document.querySelector('svg.chart')")
    assert browser.value("document.querySelector('figure output').textContent").startswith("round 2:")


def test_tab_reaches_the_skip_link_first_and_then_every_control(browser, ended):
    show(browser, ended / "report.html")
    browser.press("Tab")
    assert browser.value("document.activeElement.className") == "skip"
    seen = []
    for _ in range(80):
        browser.press("Tab")
        seen.append(
            browser.value("document.activeElement.getAttribute('data-chart') || document.activeElement.textContent")
        )
    charts = browser.value("[...document.querySelectorAll('[data-chart]')].map(e => e.getAttribute('data-chart'))")
    assert set(charts) <= set(seen)


def test_the_legend_turns_a_line_off_and_says_so(browser, ended):
    show(browser, ended / "report.html")
    chart = "[...document.querySelectorAll('figure')].find(f => f.querySelector('h3').textContent.startsWith('Loss'))"
    lines = f"{chart}.querySelectorAll('svg.chart > path[fill=none]').length"
    assert browser.value(lines) == 2
    browser.value(f"{chart}.querySelector('.legend button').click()")
    assert browser.value(lines) == 1
    assert browser.value(f"{chart}.querySelector('.legend button').getAttribute('aria-pressed')") == "false"


def test_no_element_is_without_a_label(browser, ended, several):
    for page in (ended / "report.html", several):
        show(browser, page)
        assert browser.value(f"[...document.querySelectorAll('{LABELLED}')].filter({UNNAMED}).length") == 0
        ids = browser.value(
            "[...document.querySelectorAll('[aria-labelledby]')].map(e => e.getAttribute('aria-labelledby')).join(' ')"
        )
        assert all(browser.value(f"document.getElementById('{one}') !== null") for one in set(ids.split()))
        tables = browser.value("document.querySelectorAll('figure details table').length")
        assert tables == browser.value("document.querySelectorAll('figure').length") > 5


def test_a_table_stands_behind_every_picture(browser, ended):
    show(browser, ended / "report.html")
    browser.value("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    browser.wait("[...document.querySelectorAll('figure tbody')].every(b => b.rows.length > 0)")
    rows = browser.value("document.querySelector('figure tbody').rows.length")
    assert rows == 6


def test_a_name_never_becomes_an_element(browser, evil):
    show(browser, evil / "report.html")
    browser.value("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    browser.wait("[...document.querySelectorAll('tbody')].every(b => b.rows.length > 0)")
    assert browser.value("document.querySelectorAll('img, b[onmouseover], [onload], [onerror]').length") == 0
    assert browser.value("document.scripts.length") == 2
    assert "<script>alert(1)</script>" in browser.value("document.body.textContent")
    assert browser.complaints() == []


def test_different_promises_have_different_pictures(browser, several, ended, tmp_path):
    data = (several).read_text("utf-8")
    page = tmp_path / "mixed.html"
    # the third run's promise as a client-level one, as central DP makes it
    first, mark, rest = data.partition('"label":"three"')
    rest = rest.replace('"promise":0,"unit":"record"', '"promise":1,"unit":"client"', 1)
    promise = first[first.index('"promises":[') + len('"promises":[') : first.index('],"entries"')]
    other = promise.replace('"unit":"record"', '"unit":"client"').replace("per record", "per client")
    page.write_text((first + mark + rest).replace(promise, f"{promise},{other}", 1), "utf-8")
    show(browser, page)
    titles = browser.value("[...document.querySelectorAll('figure h3')].map(h => h.textContent)")
    spent = [title for title in titles if "loosest client" in title]
    assert spent == [
        "ε of the loosest client by round, per record, promise (1)",
        "ε of the loosest client by round, per client, promise (2)",
    ]
    for number, unit in enumerate(("record", "client")):
        figure = f"[...document.querySelectorAll('figure')].find(f => f.innerText.startsWith({spent[number]!r}))"
        names = browser.value(f"[...{figure}.querySelectorAll('[data-series]')].map(e => e.dataset.series)")
        assert names == [["run"], ["three"]][number], unit
    assert "They measure different things" in browser.value("document.body.innerText")


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """The page of an inversion and of an attack whose words try to become markup."""
    place = tmp_path_factory.mktemp("attacked")
    pictures = {"records": np.tile(np.linspace(0, 1, 64), (12, 1)), "ε = ∞": np.zeros((12, 64))}
    estimates = (Estimate("recovered, of 12", 10.0, 6.2, 11.7, of="ε = ∞"), Estimate("PSNR (dB)", 85.0, of="ε = ∞"))
    lines = (Line("ε = ∞", (1.0, 2.0), (100.0, 11.0)), Line("chance", (1.0, 2.0), (10.0, 10.0)))
    plot = Plot("psnr", "Nearness", "records", "PSNR (dB)", lines)
    strip = strip_of(pictures, (1, 8, 8), low=0.0, high=1.0)
    found = [Finding("inversion", "digits", "12 records", estimates, (plot,), ("A note.",), strip=strip)]
    false = (0.0, 0.01, 1.0)
    roc = Plot(
        "roc", EVIL[1], EVIL[0], "true", (Line(EVIL[2], false, false), Line("all", false, (0.0, 0.1, 1.0))), log=True
    )
    found.append(Finding("evil", EVIL[0], EVIL[1], (Estimate(EVIL[2], 1.0, of=EVIL[3]),), (roc,), (EVIL[1],)))
    for one in found:
        (place / f"attack-{one.attack}.json").write_text(json.dumps(one.record()), "utf-8")
    write_page([place], place / "report.html")
    return place / "report.html"


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_of_an_attack_has_its_numbers_pictures_and_badge(browser, attacked, width):
    show(browser, attacked, width=width)
    browser.wait("document.querySelectorAll('svg.chart path[stroke]').length >= 4")
    assert browser.value("document.documentElement.scrollWidth") <= width
    text = browser.value("document.body.innerText")
    for words in ("12 records", "recovered, of 12", "6.2 to 11.7", "not covered by ε", "A note.", EVIL[1]):
        assert words in text
    assert "undefined" not in text
    assert "NaN" not in text
    pixel = (
        "(n, x) => [...document.querySelectorAll('.pictures canvas')[n].getContext('2d').getImageData(x, 7, 1, 1).data]"
    )
    assert browser.value(f"({pixel})(0, 7)") == [0, 0, 0, 255]  # the last pixel of the first record
    assert browser.value(f"({pixel})(1, 7)") == [255, 255, 255, 255]
    assert browser.value("[...document.querySelectorAll('canvas')].map(c => c.width)") == [98, 98]


@pytest.mark.parametrize("dark", [False, True])
def test_a_matrix_is_tinted_by_how_far_beyond_guessing_an_attack_came(browser, tmp_path, dark):
    known = {"membership LiRA AUC": Estimated(0.5, 0.02), "dba backdoor": Estimated(1.0, None)}
    rows = [("none", Estimated(0.9, 0.01), known), (EVIL[0], None, {"dba backdoor": Estimated(0.0, 0.1, (0.0, 1.0))})]
    said = {"name": "Study", "metric": "accuracy", "words": "Three seeds.", "notes": [EVIL[1]]}
    write_matrix(tmp_path / "table.html", rows=rows, **said)
    show(browser, tmp_path / "table.html", width=360, dark=dark)
    assert browser.value("document.documentElement.scrollWidth") <= 360
    cells = browser.value("[...document.querySelectorAll('.matrix td')].map(c => c.innerText.split('\\n').join(' '))")
    assert cells == ["0.900 0.890 to 0.910", "0.500 0.480 to 0.520", "1.000", "–", "–", "0.000 0.000 to 0.100"]
    alpha = "c => Number((getComputedStyle(c).backgroundColor.match(/, ([\\d.]+)\\)$/) || [0, 1])[1])"
    tints = browser.value(f"[...document.querySelectorAll('.matrix td')].map({alpha})")
    assert (tints[1], tints[2], tints[5]) == (0, 0.45, 0)
