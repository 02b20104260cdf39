"""What stands first on a page, in Chromium: whose epsilon is what, seeded noise, settings held against each other, sites."""

import json
import re
import shutil

import pytest
from report_runs import changed

import tacit
from tacit.report.page import collect, write_page

READY = "document.documentElement.dataset.ready === 'yes'"
CUT = """[...document.querySelectorAll('main *')].filter(e => e.checkVisibility()
    && !e.closest('.visually-hidden, .matrix, .stack thead') && getComputedStyle(e).overflowX !== 'visible'
    && e.scrollWidth > e.clientWidth + 1).map(e => e.ariaLabel || e.className || e.tagName)"""


def show(browser, page, **options):
    browser.open(page.resolve().as_uri(), **options)
    browser.wait(READY)
    assert browser.complaints() == []


def cells(browser, table):
    rows = f"[...document.querySelectorAll('{table} tbody tr')].map(r => [...r.cells].map(c => c.innerText.trim()))"
    return [[cell for cell in row if cell] for row in browser.value(rows)]


def test_with_few_clients_each_ones_own_epsilon_stands_on_top(browser, ended):
    show(browser, ended / "report.html")
    first = browser.value("document.querySelector('main h2').textContent")
    assert first == "ε of each client, per record"
    found = cells(browser, ".each")
    spent = collect([ended])["clients"]["spent"]
    assert [row[0] for row in found] == [f"client-{n}" for n in range(5)]
    assert [row[2] for row in found] == ["1", "2", "2", "4", "8"]
    for row, value in zip(found, spent, strict=True):
        assert value <= float(row[1].removeprefix("≤ ")) <= float(row[2])
    tiles = browser.value("document.querySelector('.tiles').innerText")
    assert f"{min(spent):.3f} to " in tiles
    assert "≤ 8" not in tiles


def run_of(clients, limits, place):
    data = {"clients": clients, "examples_per_client": 20}
    tacit.run(changed(data=data, train={"rounds": 1}, privacy={"epsilon": limits}), out=place)
    return collect([place])["clients"]


@pytest.mark.parametrize("width", [360, 1280])
def test_twenty_clients_too_have_their_own_epsilon_each_and_no_number_is_broken(browser, tmp_path, width):
    limits = [2.0916 + 0.371234 * n for n in range(20)]
    clients = run_of(20, limits, tmp_path / "run")
    show(browser, tmp_path / "run" / "report.html", width=width)
    found = cells(browser, ".each")
    assert [row[0] for row in found] == [f"client-{n}" for n in range(20)]
    for row, spent, limit in zip(found, clients["spent"], limits, strict=True):
        assert spent <= float(row[1].removeprefix("≤ ")) <= float(row[2])
        assert limit <= float(row[2]) <= limit * 1.0001
    assert "each client’s own is below" in browser.value("document.querySelector('.tiles').innerText")
    lines = "[...document.querySelectorAll('.each td b')].map(b => b.getClientRects().length)"
    assert set(browser.value(lines)) == {1}
    # decimal points stand below each other, whatever follows them
    points = """[...document.querySelectorAll('.each table')].map(t => [...t.querySelectorAll('td b')].map(b => {
        const r = document.createRange(), at = b.textContent.indexOf('.');
        r.setStart(b.firstChild, at); r.setEnd(b.firstChild, at + 1); return Math.round(r.getBoundingClientRect().x); }))"""
    assert all(len(set(column)) == 1 for column in browser.value(points))
    assert browser.value(CUT) == []


def test_of_many_clients_each_group_has_ends_that_are_right_for_all_of_it(browser, tmp_path):
    limits = [0.5 + 0.37 * n for n in range(46)]
    clients = run_of(46, limits, tmp_path / "run")
    show(browser, tmp_path / "run" / "report.html")
    found = cells(browser, ".each")
    assert 2 < len(found) <= 8
    for _, spent, ends in found:
        low, high = (float(end) for end in (ends.split(" to ") * 2)[:2])
        least, most = (float(end) for end in (spent.removeprefix("≤ ").split(" to ") * 2)[:2])
        members = [i for i, limit in enumerate(limits) if low - 1e-3 <= limit <= high + 1e-3]
        mine = [clients["spent"][i] for i in members]
        assert min(mine) <= least + 1e-9 <= min(mine) + 1.1e-3
        assert max(mine) <= most + 1e-9 <= max(mine) + 1.1e-3
    assert "by groups of clients" in browser.value("document.querySelector('.tiles').innerText")
    assert "each client’s own stands in the table" in browser.value("document.querySelector('.each').innerText")


def test_clients_with_one_limit_need_no_list(browser, tmp_path):
    tacit.run(changed(privacy={"epsilon": 3.0}), out=tmp_path / "run")
    show(browser, tmp_path / "run" / "report.html")
    assert browser.value("document.querySelector('.each')") is None
    assert "every client" in browser.value("document.querySelector('.tiles').innerText")


def test_seeded_noise_is_a_banner_and_no_row_and_other_noise_is_none(browser, ended, compared, tmp_path):
    for page in (ended / "report.html", compared / "report.html"):
        show(browser, page)
        assert "seeded noise" in browser.value("document.querySelector('.banner').innerText")
        assert "noise drawn from" not in browser.value(
            "[...document.querySelectorAll('dt')].map(e => e.innerText).join()"
        )
    tacit.run(changed(run={"randomness": "os"}, train={"rounds": 1}), out=tmp_path / "run")
    show(browser, tmp_path / "run" / "report.html")
    assert "seed" not in browser.value("[...document.querySelectorAll('.banner')].map(e => e.innerText).join()")
    assert "noise drawn from" in browser.value("[...document.querySelectorAll('dt')].map(e => e.innerText).join()")


def test_a_comparison_shows_paired_differences_own_models_and_equal_lines_once(browser, compared):
    show(browser, compared / "report.html")
    data = collect([compared])
    assert [pair["name"] for pair in data["paired"]["some"]] == [
        "weighted − mean",
        "random-effects − mean",
        "random-effects − weighted",
    ]
    titles = browser.value("[...document.querySelectorAll('h3')].map(h => h.textContent)")
    assert {"Differences in accuracy, seed by seed", "accuracy on clients’ own rows, setting by setting"} <= set(titles)
    names = "[...document.querySelectorAll('figure')].find(f => f.innerText.startsWith('ε of the loosest')).innerText"
    assert "all 3, which are the same" in browser.value(names)
    by = {entry["label"]: entry["score"] for entry in data["entries"]}
    for pair in data["paired"]["some"]:
        one, other = pair["name"].split(" − ")
        assert pair["value"] == pytest.approx(by[one] - by[other], abs=1e-4)
        assert pair["interval"][0] <= pair["value"] <= pair["interval"][1]
        assert sum(pair["each"]) / 3 == pytest.approx(pair["value"], abs=1e-4)


def test_a_comparison_says_what_its_runs_cost_together_with_all_that_qualifies_it(browser, compared):
    show(browser, compared / "report.html")
    (sum_,) = collect([compared])["total"]["sums"]
    each = [
        json.loads(path.read_text())["guarantee"]["epsilon"]["max"] for path in compared.glob("runs/*/*/summary.json")
    ]
    assert len(each) == 9
    assert sum(each) <= float(sum_["epsilon"]) <= sum(each) + 1e-2
    ((*row,),) = cells(browser, ".total")
    assert row == ["record", f"≤ {sum_['epsilon']}", "9e-5", "9", sum_["relation"], sum_["adversary"]]
    assert f"In total these 9 runs spend at most epsilon {sum_['epsilon']}" in browser.value(
        "document.querySelector('.total').innerText"
    )


def test_own_models_of_a_comparison_are_there_client_by_client_for_the_run_that_is_chosen(browser, compared):
    show(browser, compared / "report.html")
    names = browser.value("[...document.querySelectorAll('.chosen option')].map(o => o.textContent)")
    assert names == [f"{rule}, seed {seed}" for rule in ("mean", "weighted", "random-effects") for seed in range(3)]
    assert browser.value("document.querySelector('.chosen select').labels[0].textContent").startswith(
        "Client by client"
    )
    said = "document.querySelector('.chosen svg.chart').getAttribute('aria-label')"
    for number, folder in ((0, "*rule=mean/seed-0"), (8, "*rule=random-effects/seed-2")):
        browser.value(
            f"(() => {{ const s = document.querySelector('.chosen select'); s.value = '{number}';"
            " s.dispatchEvent(new Event('change')); })()"
        )
        browser.wait("document.querySelector('.chosen svg.chart') !== null")
        (path,) = (compared / "runs").glob(f"{folder}/personal.json")
        for one in json.loads(path.read_text())["clients"]:
            own = one["metrics"]["accuracy"]["own"]["value"]
            assert f"{one['client']}, ε {one['epsilon']:g}: " in browser.value(said)
            assert f"personalised {own:.3f}" in browser.value(said)


def test_the_line_of_no_difference_crosses_no_name_on_a_phone(browser, compared):
    show(browser, compared / "report.html", width=360)
    browser.wait("document.querySelector('#differences svg.chart .zero') !== null")
    boxes = """[...document.querySelectorAll('#differences svg.chart text.over')].map(t => t.getBBox())
        .map(b => [b.y, b.y + b.height])"""
    dashes = "document.querySelector('#differences svg.chart .zero').getAttribute('d')"
    pieces = [tuple(map(float, piece.split(",")[1].split("v"))) for piece in browser.value(dashes).split("M")[1:]]
    assert len(pieces) == 3
    for top, bottom in browser.value(boxes):
        assert all(start >= bottom - 1 or start + length <= top + 1 for start, length in pieces)


def test_own_models_of_a_comparison_are_those_of_its_runs(compared):
    homes = collect([compared])["homes"]
    assert homes["names"] == ["mean", "weighted", "random-effects"]
    found = [json.loads(path.read_text()) for path in sorted((compared / "runs").glob("*rule=mean/*/summary.json"))]
    alone = [one["personal"]["metrics"]["accuracy"]["alone"]["value"] for one in found]
    assert len(alone) == 3
    assert homes["models"][0][0][0] == pytest.approx(sum(alone) / 3, abs=1e-4)


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("which", ["run", "comparison", "deployment"])
def test_nothing_is_cut_off_on_a_phone_or_a_desk(browser, ended, compared, deployed, which, width):
    page = {"run": ended, "comparison": compared, "deployment": deployed}[which] / "report.html"
    show(browser, page, width=width)
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.value(CUT) == []


def test_labels_by_clients_have_names_counts_and_a_scale(browser, ended):
    show(browser, ended / "report.html", width=1280)
    most = max(map(max, collect([ended])["labels"]["counts"]))
    assert re.search(rf"\b{most} records", browser.value("document.querySelector('.scale').innerText"))
    drawn = (
        "(() => { const said = [], kept = CanvasRenderingContext2D.prototype.fillText;"
        "CanvasRenderingContext2D.prototype.fillText = function (text, ...more)"
        " { said.push(text); kept.call(this, text, ...more); };"
        "redraw(); CanvasRenderingContext2D.prototype.fillText = kept; return said; })()"
    )
    said = browser.value(drawn)
    assert {f"client-{n}" for n in range(5)} <= set(said)
    assert str(most) in said


def test_a_run_of_noise_once_shows_each_clients_share_of_the_batch(browser, tmp_path):
    privacy = {"kind": "central", "unit": "record", "epsilon": (0.3, 0.3, 0.3, 0.3, 9.0), "rate_cap": 2.0}
    tacit.run(
        changed(privacy=privacy, train={"rounds": 2, "local_steps": 1, "sampling_rate": None}), out=tmp_path / "run"
    )
    show(browser, tmp_path / "run" / "report.html", width=1280)
    words = browser.value("document.body.innerText")
    assert "Share of the batch, client by client" in words
    assert "share of all records" in words


def test_a_deployment_names_its_sites_with_their_states_and_reasons(browser, deployed):
    show(browser, deployed / "report.html")
    states = [row[1] for row in cells(browser, ".sites")]
    assert [state.split(" ", 1)[1] for state in states] == ["answered", "answered", "answered", "refused", "out"]
    assert "is not connected" in browser.value("document.querySelector('.sites').innerText")
    assert browser.value("document.querySelectorAll('img').length") == 0


@pytest.mark.parametrize("crafted", [{"state": "well"}, {"asked": {"round": 1}}, {"sites": [1]}, {"spent": {"a": "b"}}])
def test_a_status_that_was_edited_is_refused_in_one_sentence(deployed, tmp_path, crafted):
    shutil.copytree(deployed, tmp_path / "run")
    known = json.loads((deployed / "status.json").read_text())
    (tmp_path / "run" / "status.json").write_text(json.dumps(known | crafted))
    with pytest.raises(tacit.errors.BadInput, match=r"status\.json is damaged"):
        write_page([tmp_path / "run"], tmp_path / "report.html")
