"""The page as a file: what stands in it, what cannot get into it, and what is refused."""

import html
import json
import re
import shutil
from pathlib import Path

import pytest
from report_runs import EVIL, changed

import tacit
from tacit.engine.run_files import read
from tacit.errors import BadInput
from tacit.report.closing import facts
from tacit.report.collect import short, weights
from tacit.report.page import as_json, asset, collect, render, scripts, write_page

HELD_OUT = {
    "metric": "accuracy",
    "metrics": {"accuracy": {"value": 0.5, "interval": [0.4, 0.6]}},
    "rows": 40,
    "answered": 4,
    "clients": 5,
}


def data_of(page):
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)[1])


def test_every_run_writes_a_page_that_holds_all_of_it(ended):
    data = data_of((ended / "report.html").read_text("utf-8"))
    summary = json.loads((ended / "summary.json").read_text())
    assert data["sentence"] == summary["sentence"]
    assert data["guarantee"] == summary["guarantee"]
    assert data["finished"]
    assert data["rounds"]["round"] == [1, 2, 3, 4, 5, 6]
    assert data["rounds"]["score"][-1] == short(summary["test_accuracy"])
    for key in ("loss", "clipped", "signal_to_noise", "uplink_total", "seconds_train", "seconds_write"):
        assert len(data["rounds"][key]) == 6
    assert set(data["stages"]) == {"admit", "train", "server", "evaluate", "write"}
    assert sum(map(sum, data["labels"]["counts"])) == 5 * 40
    assert ["epsilon", "[1.0, 2.0, 2.0, 4.0, 8.0]", False] in dict(data["settings"])["privacy"]


def test_clients_with_one_limit_are_one_curve_and_no_curve_passes_its_limit(ended):
    data = collect([ended])
    assert [(curve["clients"], curve["limit"]) for curve in data["curves"]] == [(1, 1.0), (2, 2.0), (1, 4.0), (1, 8.0)]
    for curve in data["curves"]:
        assert curve["epsilon"] == sorted(curve["epsilon"])
        assert 0.9 * curve["limit"] < curve["epsilon"][-1] <= curve["limit"] + 1e-4


def test_a_page_asks_no_network_for_anything(ended):
    page = (ended / "report.html").read_text("utf-8")
    policy = html.unescape(re.search(r'http-equiv="Content-Security-Policy" content="(.*?)"', page)[1])
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "connect-src" not in policy
    outside = set(re.findall(r"https?://[^\s\"'`]+", page)) - {"http://www.w3.org/2000/svg"}
    assert not outside
    assert not re.search(r"<(link|img|iframe|script src)", page)


def test_scripts_never_write_markup():
    for name in scripts():
        script = asset(name)
        for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert way not in script


def test_names_of_every_kind_stay_text(evil):
    page = (evil / "report.html").read_text("utf-8")
    data = data_of(page)
    assert data["name"] == EVIL[1]
    assert sorted(data["clients"]["names"]) == sorted(EVIL)
    assert data["labels"]["classes"] == list(EVIL[:2])
    for name in EVIL:
        assert name not in page
    assert page.count("<script") == page.count("</script>") == 2


def test_json_cannot_end_its_element_and_reads_back():
    value = {"</script><b>": ["<!--", "&", "\u2028\u2029", "é"]}
    text = as_json(value)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == value


def test_a_template_mark_in_a_name_is_not_filled_in(ended):
    data = collect([ended]) | {"name": "@@data@@ @@script@@"}
    assert data_of(render(data))["name"] == "@@data@@ @@script@@"


def test_an_unfinished_run_has_a_page_that_says_so(stopped):
    write_page([stopped], stopped / "report.html")
    data = data_of((stopped / "report.html").read_text("utf-8"))
    assert (data["finished"], data["done"], data["planned"]) == (False, 3, 6)
    assert data["sentence"].startswith("So far: For every client, record-level")
    assert 0 < data["guarantee"]["epsilon"]["max"] < 8.0
    assert data["final"] == {}


def test_a_run_before_its_first_round_has_a_page(stopped):
    (stopped / "rounds.jsonl").write_text("")
    assert collect([stopped])["done"] == 0


def test_a_run_without_privacy_promises_nothing(tmp_path):
    tacit.run(changed(privacy={"kind": "none", "epsilon": None}), out=tmp_path / "run")
    data = collect([tmp_path / "run"])
    assert data["guarantee"] is None
    assert data["sentence"].startswith("No privacy is promised")
    assert data["curves"] == []
    assert "signal_to_noise" not in data["rounds"]


def test_who_ran_out_is_named_with_the_first_round_it_missed(tmp_path):
    experiment = changed(
        train={"rounds": 40, "local_steps": 4},
        privacy={"epsilon": [0.01, 1.0, 2.0, 3.0, 100.0], "strategy": "same-noise", "noise_multiplier": 4.0},
    )
    history = tacit.run(experiment, out=tmp_path / "run")
    data = collect([tmp_path / "run"])
    entries = list(history.ledger.entries())
    for missed, names in data["dropped"]:
        for name in names:
            assert max([e["round"] + 2 for e in entries if e["client"] == name], default=1) == missed
    assert data["dropped"][0] == [1, ["client-0"]]
    assert "client-4" not in {name for _, names in data["dropped"] for name in names}
    assert len(data["dropped"]) >= 3


def test_a_long_run_is_thinned_and_keeps_its_last_round(ended, monkeypatch):
    monkeypatch.setattr("tacit.report.collect.MOST_POINTS", 4)
    data = collect([ended])
    assert (data["thinned"], data["rounds"]["round"]) == (2, [1, 3, 5, 6])
    assert data["rounds"]["uplink_total"][-1] == json.loads((ended / "summary.json").read_text())["uplink_bytes"]


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("summary.json", "{", r"summary\.json is damaged"),
        ("summary.json", "[" * 100_000, r"summary\.json is damaged"),
        ("status.json", "{}", r"status\.json is damaged: it lacks"),
        ("personal.json", "{}", r"personal\.json is damaged: it lacks"),
        ("per_client.json", "{}", r"per_client\.json is damaged: it lacks"),
        ("summary.json", '{"test_accuracy": "high"}', r"summary\.json is damaged: it lacks"),
        ("rounds.jsonl", '{"round": 0}\n', r"Line 1 of .*rounds\.jsonl is not the record of a round"),
        ("rounds.jsonl", "nonsense\n{}\n", r"Line 1 of .*rounds\.jsonl is damaged"),
        ("experiment.toml", "= 3", r"experiment\.toml is damaged"),
        ("experiment.toml", "[train]\nfriends = 3", r"experiment\.toml cannot be used: Unknown key"),
        ("experiment.toml", None, "holds no run and no comparison"),
        ("clients.json", '{"names": []}', r"clients\.json is damaged"),
        ("ledger.db", "not a database, not even a short one" * 10, r"ledger\.db cannot be read"),
        ("ledger.db", None, r"ledger\.db is missing"),
        ("run.json", "[]", r"run\.json is damaged"),
    ],
)
def test_a_broken_folder_is_refused_in_one_sentence(ended, tmp_path, file, content, sentence):
    broken = tmp_path / "broken"
    shutil.copytree(ended, broken)
    (broken / "report.html").unlink()
    if content is None:
        (broken / file).unlink()
    else:
        (broken / file).write_text(content)
    with pytest.raises(BadInput, match=sentence) as refusal:
        write_page([broken], broken / "report.html")
    assert "\n" not in str(refusal.value)
    assert not (broken / "report.html").exists()


@pytest.mark.parametrize(
    "crafted",
    [
        {"test_accuracy": None},
        {"test_accuracy": float("nan")},
        {"metric": "auroc"},
        {"metrics": {"accuracy": 0.9}},
        {"metrics": {"accuracy": {"value": 0.9, "interval": [0.5]}}},
        {"metrics": {"accuracy": {"value": 0.9, "baseline": "high"}}},
        {"confusion": [[1, 2]]},
        {"stopped": "somebody"},
        {"guarantee": {"unit": "record"}},
        {"noise_multiplier": None},
        {"seconds": "long"},
        {"notes": "none"},
        {"at_clients": {}},
        {"at_clients": {"metric": "accuracy", "metrics": {}, "rows": 3, "answered": 1, "clients": 2}},
        {"at_clients": HELD_OUT | {"metrics": {"accuracy": {"value": "high", "interval": None}}}},
        {"at_clients": HELD_OUT | {"metrics": {"accuracy": {"value": None, "interval": None}}}},
        {"at_clients": {key: value for key, value in HELD_OUT.items() if key != "rows"}},
        {"at_clients": {"unknown": "Nobody answered.", "metrics": {"accuracy": 3}}},
        {"queries": {"evaluation": {"share": "all", "answered": 1, "clients": 2, "noise_std": [1.0, 2.0]}}},
        {"queries": {"evaluation": {"share": 0.1, "answered": 1, "clients": 2, "noise_std": [1.0]}}},
    ],
    ids=str,
)
def test_a_summary_that_was_edited_is_refused_before_anything_is_shown(ended, tmp_path, crafted):
    broken = tmp_path / "broken"
    shutil.copytree(ended, broken)
    summary = json.loads((broken / "summary.json").read_text())
    (broken / "summary.json").write_text(json.dumps(summary | crafted))
    with pytest.raises(BadInput, match=r"summary\.json is damaged: it lacks"):
        collect([broken])


@pytest.mark.parametrize(
    "told", [HELD_OUT, {"unknown": "Nobody answered."}, HELD_OUT | {"unknown": "Too few."}], ids=str
)
def test_a_summary_of_held_out_rows_is_read_as_it_was_written(ended, tmp_path, told):
    shutil.copytree(ended, tmp_path / "run")
    asked = {"evaluation": {"share": None, "answered": 4, "clients": 5, "noise_std": [0.0, 2.5]}}
    summary = json.loads((ended / "summary.json").read_text()) | {"at_clients": told, "queries": asked}
    (tmp_path / "run" / "summary.json").write_text(json.dumps(summary))
    assert read(tmp_path / "run").summary == summary
    assert facts(summary)["accuracy at the clients, on held-out rows"]


def test_a_folder_that_is_not_there_or_holds_nothing_is_refused(tmp_path):
    with pytest.raises(BadInput, match="There is no folder"):
        collect([tmp_path / "nowhere"])
    with pytest.raises(BadInput, match="holds no run and no comparison"):
        collect([tmp_path])


def test_a_line_that_is_being_written_is_not_an_error(stopped):
    with (stopped / "rounds.jsonl").open("a") as file:
        file.write('{"round": 3, "accu')
    assert collect([stopped])["done"] == 3


def test_central_dp_is_shown_per_client_and_marks_what_only_the_server_knows(tmp_path):
    privacy = {"kind": "central", "epsilon": 8.0}
    train = {"clients_per_round": 3, "sampling_rate": None, "rounds": 4}
    history = tacit.run(changed(privacy=privacy, train=train, aggregate={"rule": "mean"}), out=tmp_path / "run")
    data = collect([tmp_path / "run"])
    assert (data["guarantee"]["unit"], data["central"]) == ("client", True)
    (curve,) = data["curves"]
    assert curve["clients"] == 5
    assert curve["epsilon"][-1] == short(history.guarantee.epsilon_max, up=True)
    assert data["clients"]["taken"] == [4] * 5
    assert len(data["rounds"]["signal_to_noise"]) == 4
    assert "epsilon_per_client_loosest" in history.records()[0]


@pytest.mark.parametrize("noise", [{"epsilon": 8.0}, {"epsilon": float("inf"), "noise_multiplier": 0.01}])
def test_distributed_dp_is_shown_with_both_promises_even_where_one_is_no_bound(tmp_path, noise):
    tacit.run(changed(privacy={"kind": "distributed"} | noise, aggregate={"rule": "mean"}), out=tmp_path / "run")
    data = data_of((tmp_path / "run" / "report.html").read_text("utf-8"))
    (other,) = data["guarantee"]["also"]
    assert "single reports" in other["adversary"]
    spent, alone = data["guarantee"]["epsilon"]["max"], other["epsilon"]["max"]
    assert (spent is None) is (noise["epsilon"] == float("inf"))
    assert alone is None or alone > spent


def test_every_figure_stands_in_a_section_that_its_page_has():
    folder = Path(tacit.__file__).parent / "report" / "html"
    base = (folder / "base.js").read_text("utf-8").replace("\n//", "")
    assert {path.name for path in (folder / "figures").iterdir()} == {
        path.name
        for path in (folder / "figures").glob("*.js")
        if re.search(r"^figure\(", path.read_text("utf-8"), re.MULTILINE)
    }
    for page in ("run", "several"):
        grids = re.findall(r'grid\("(\w+)"', (folder / f"{page}.js").read_text("utf-8"))
        named = re.search(rf"of `{page}`: ([\w, ]+)[;.]", base)[1].split(", ")
        assert sorted(grids) == sorted(named)
    for path in (folder / "figures").glob("*.js"):
        text = path.read_text("utf-8")
        stands = re.findall(r'figure\(\{ page: "(\w+)", section: "(\w+)"', text)
        assert len(stands) == text.count("figure({"), path.name
        for page, section in stands:
            assert f'grid("{section}"' in (folder / f"{page}.js").read_text("utf-8"), (path.name, page, section)


def test_whose_records_count_how_much_is_shown_by_name_from_who_is_drawn_least_often():
    known = {"names": ["loose", "tight"], "records": [100, 300], "batch_shares": [0.5, 0.5]}
    assert weights(known) == {"rows": [0.75, 0.25], "batch": [0.5, 0.5], "names": ("tight", "loose")}
    assert weights(known | {"batch_shares": []}) is None
