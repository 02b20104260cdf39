"""The page of a search: its best, its price, and every run with its score."""

import json

import pytest
from report.conftest import browser
from report.test_page import data_of
from tuning.test_tune import RATES, local, settings

from tacit.errors import BadInput
from tacit.lab.tuning.search import tune
from tacit.report.page import collect, write_page

__all__ = ["browser"]


def test_the_page_of_a_search_has_its_best_and_its_price(tmp_path):
    found = tune(settings(), RATES, runs=3, out=tmp_path / "search")
    write_page([tmp_path / "search"], tmp_path / "report.html")
    data = data_of((tmp_path / "report.html").read_text("utf-8"))
    assert (data["kind"], data["sentence"]) == ("search", found["sentence"])
    assert data["chosen"] == [["train.learning_rate", str(found["settings"]["train.learning_rate"])]]
    assert data["asked"] == [["train.learning_rate", "0.1, 0.5"]]
    assert data["one"] >= found["search"]["epsilon_of_one_run"]
    assert collect([tmp_path / "search" / "best"])["metric"] == data["metric"]
    assert "rounds" not in data


@pytest.mark.parametrize("values", [local(), settings()])
def test_the_page_of_a_search_has_every_run_with_its_score(tmp_path, values):
    found = tune(values, RATES, runs=3, out=tmp_path / "search")
    data = collect([tmp_path / "search"])
    assert data["seeded"] is ("a seed" in data["guarantee"]["randomness"])
    assert [(run["number"], run["settings"]) for run in data["tried"]] == [(1, ["0.1"]), (2, ["0.5"]), (3, ["0.1"])]
    (best,) = [run for run in data["tried"] if run["best"]]
    assert best["settings"] == [str(found["settings"]["train.learning_rate"])]
    assert best["score"] == max(run["score"] for run in data["tried"]) == data["metric"]["value"]
    assert set(best) == {"number", "settings", "score", "best"}
    assert collect([tmp_path / "search" / "best"])["tried"] == []


def test_a_run_that_diverged_has_no_score_and_one_that_is_damaged_is_one_sentence(tmp_path):
    tune(local(), RATES, runs=2, out=tmp_path / "search")
    lost = next(run for run in collect([tmp_path / "search"])["tried"] if not run["best"])["number"]
    place = tmp_path / "search" / "runs" / f"{lost:03d}"
    (place / "summary.json").unlink()
    (place / "model.safetensors").unlink()
    assert [run["score"] is None for run in collect([tmp_path / "search"])["tried"]] == [lost == 1, lost == 2]
    (place / "summary.json").write_text("{")
    with pytest.raises(BadInput, match=f"{lost:03d} is damaged"):
        collect([tmp_path / "search"])


def test_every_run_is_a_row_of_a_table_and_the_best_is_marked(tmp_path, browser):
    tune(local(), RATES, runs=2, out=tmp_path / "search")
    write_page([tmp_path / "search"], tmp_path / "report.html")
    browser.open((tmp_path / "report.html").as_uri())
    browser.wait("document.documentElement.dataset.ready === 'yes'")
    assert browser.complaints() == []
    rows = browser.value(
        "[...document.querySelectorAll('[aria-label^=\"Every run\"] tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    )
    assert [row[:2] for row in rows] == [["1", "0.1"], ["2", "0.5"]]
    assert sorted(row[3] for row in rows) == ["–", "✓ best"]


def test_a_search_that_has_not_ended_or_is_damaged_is_refused_in_one_sentence(tmp_path):
    tune(settings(), RATES, runs=3, out=tmp_path / "search")
    path = tmp_path / "search" / "best" / "summary.json"
    summary = json.loads(path.read_text())
    for crafted in ({"search": {}}, {"metrics": 3}, {"sentence": None}):
        path.write_text(json.dumps(summary | crafted))
        with pytest.raises(BadInput, match="is damaged"):
            collect([tmp_path / "search"])
    path.unlink()
    with pytest.raises(BadInput, match="has not ended: nothing of it is shown"):
        collect([tmp_path / "search"])
