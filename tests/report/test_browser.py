"""The page in headless Chromium: it draws, stays within a phone, is used by keyboard, and runs nothing from a name."""

import json
import re

import pytest
from report.test_top import show
from report_runs import EVIL, changed

import tacit
from tacit.privacy.guarantee import shown, shown_delta
from tacit.report.collect import short
from tacit.report.page import write_matrix, write_page
from tacit.table import Estimate as Estimated

WIDTHS = (360, 768, 1280)
LABELLED = "svg.chart, canvas, button, a, [role=region], [role=img], output, table, section"
UNNAMED = (
    "e => !(e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.querySelector('title, caption')"
    " || e.textContent.trim())"
)


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


def test_a_line_goes_on_over_rounds_that_were_not_tested(browser, tmp_path):
    for seed in (0, 1):
        rare = changed(run={"evaluate_every": 2, "seed": seed}, privacy={"kind": "none", "epsilon": None})
        tacit.run(rare, out=tmp_path / str(seed), page=False)
    write_page([tmp_path / "0"], tmp_path / "one.html")
    write_page([tmp_path / "0", tmp_path / "1"], tmp_path / "both.html")
    for page in ("one.html", "both.html"):
        show(browser, tmp_path / page)
        browser.wait("document.querySelectorAll('svg.chart').length >= 3")
        first = "[...document.querySelectorAll('svg.chart')[0].querySelectorAll('path[stroke]')].map(p => p.getAttribute('d'))"
        drawn = browser.value(first)
        assert any(path.count("L") == 2 and path.count("M") == 1 for path in drawn)  # rounds 2, 4 and 6 of 6
        assert not re.search("NaN|undefined|null", ",".join(drawn))


def test_a_delta_is_shown_as_in_sentences_rounded_up_and_without_the_dust_of_binary_fractions(browser, ended):
    show(browser, ended / "report.html")
    for delta in (15 * 1e-5, 1e-5 * 0.1, 1e-5 / 3, 1e-5, 0.0, 9.999999e-6, 0.0012345678, 1e-300):
        shown = browser.value(f"delta({delta!r})")
        assert float(shown) == float(shown_delta(delta)), delta
        assert float(shown) >= delta * (1 - 1e-11)
        assert len(shown) <= 12


def test_an_epsilon_is_shown_as_in_sentences_and_a_small_one_keeps_three_digits_that_count(browser, ended):
    show(browser, ended / "report.html")
    small = (0.0001, 0.00012341, 0.05, 0.0999, 0.09991, 0.0012345678, 9.999e-5, 1e-15, 3e-300)
    for spent in (*small, 0.0, 0.1, 0.87213, 2.0921, 12.0):
        said = browser.value(f"epsilon({short(spent, up=True)!r})")
        assert float(said) == float(shown(spent)), spent
        assert spent <= float(said) <= max(spent * 1.01, spent + (spent >= 0.1) * 1e-3), spent
        assert ("e" in said) == ("e" in shown(spent))
    assert browser.value("limitText(0.0001)") == "0.0001"
    assert browser.value("boundText(0.001, 0.0001)") == "0.001"  # spent tenfold is never shown as the limit


def test_the_page_of_a_stopped_run_sets_commands_as_code_and_ends_each_sentence_once(browser, stopped):
    crafted = "Too few sites answered: go on with `tacit deploy up trial --resume`."
    names = json.loads((stopped / "clients.json").read_text())["names"]
    asked = {
        "round": 2,
        "over": True,
        "answered": [],
        "refused": {names[0]: "`<b>x</b>` and one ` alone", names[1]: "`<b>x</b>`"},
    }
    status = {
        "state": "failed",
        "text": crafted,
        "time": 1.7e9,
        "sites": names,
        "spent": {},
        "asked": asked | {"silent": {}},
    }
    (stopped / "status.json").write_text(json.dumps(status))
    write_page([stopped], stopped / "report.html")
    show(browser, stopped / "report.html")
    banners = browser.value("[...document.querySelectorAll('.banner')].map(b => b.innerText).join('\\n')")
    assert "`" not in banners
    assert ".." not in banners.replace(str(stopped), "")
    assert "go on with tacit deploy up trial --resume. The server said so" in banners
    code = browser.value("[...document.querySelectorAll('code')].map(c => c.textContent)")
    assert "tacit deploy up trial --resume" in code
    assert "<b>x</b>" in code
    assert browser.value("document.querySelectorAll('.why b').length") == 0
    assert "`<b>x</b>` and one ` alone" in browser.value("document.querySelector('.sites').innerText")


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
    names = browser.value(f"[...{chart}.querySelectorAll('.legend button')].map(b => b.textContent.trim())")
    assert [*names, len(names)] == ["test loss", "train loss (raw)", "majority-class baseline", browser.value(lines)]
    browser.value(f"{chart}.querySelector('.legend button').click()")
    assert browser.value(lines) == 2
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


def test_a_figure_is_one_script_that_enters_itself(browser, ended):
    show(browser, ended / "report.html")
    mine = (
        "figure({ page: 'run', section: 'noise', order: 9, when: (d) => has(d, 'seconds_write'),"
        " chart: (d) => ({ title: 'Mine', format: digits, series: [line(d, 'seconds_write', 'write', 0)] }) })"
    )
    browser.value(f"{mine}; 0")
    browser.value("runPage(JSON.parse(document.getElementById('data').textContent)); letGo()")
    assert browser.value("[...document.querySelectorAll('#noise h3')].map(h => h.textContent)")[-1] == "Mine"


def test_a_page_that_is_drawn_again_holds_on_to_nothing_of_before(browser, ended, compared):
    show(browser, ended / "report.html")
    data = "window.d = JSON.parse(document.getElementById('data').textContent)"
    first = browser.value(f"{data}; window.update = runPage(d); letGo(); followed.size")
    assert first > 5
    assert browser.value("for (let i = 0; i < 20; i++) { update(d); letGo(); } followed.size") == first
    assert browser.value("for (let i = 0; i < 20; i++) { runPage(d); letGo(); } followed.size") == first
    show(browser, compared / "report.html")
    held = browser.value("followed.size")
    change = "for (let i = 0; i < 9; i++) { const s = document.querySelector('select'); s.value = String(i % 3);"
    assert browser.value(f"{change} s.dispatchEvent(new Event('change')); }} followed.size") == held
