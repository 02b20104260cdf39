"""The page of a search: its best, its price, and every run with its score."""

import json
import shutil

import pytest
from report.conftest import browser
from report.test_page import data_of
from tuning.test_tune import RATES, local, settings

from tacit.errors import BadInput
from tacit.lab.tuning.search import tune
from tacit.report.page import collect, write_page

__all__ = ["browser"]


@pytest.fixture(scope="module")
def searches(tmp_path_factory):
    """A search of each kind, with what it found: noise at every client, and at a trusted server."""
    places = {kind: tmp_path_factory.mktemp(kind) / "search" for kind in ("local", "central")}
    return {
        kind: (place, tune(local() if kind == "local" else settings(), RATES, runs=3, out=place))
        for kind, place in places.items()
    }


@pytest.fixture
def copy(searches, tmp_path):
    """A search, to be spoilt."""
    return shutil.copytree(searches["local"][0], tmp_path / "search")


@pytest.mark.parametrize("kind", ["local", "central"])
def test_the_page_of_a_search_has_its_best_its_price_and_every_run_with_its_score(searches, tmp_path, kind):
    folder, found = searches[kind]
    write_page([folder], tmp_path / "report.html")
    data = data_of((tmp_path / "report.html").read_text("utf-8"))
    assert (data["kind"], data["sentence"]) == ("search", found["sentence"])
    assert data["chosen"] == [["train.learning_rate", str(found["settings"]["train.learning_rate"])]]
    assert data["asked"] == [["train.learning_rate", "0.1, 0.5"]]
    assert data["one"] >= found["search"]["epsilon_of_one_run"]
    assert "rounds" not in data
    assert data["seeded"] is ("a seed" in data["guarantee"]["randomness"])
    assert [(run["number"], run["settings"]) for run in data["tried"]] == [(1, ["0.1"]), (2, ["0.5"]), (3, ["0.1"])]
    (best,) = [run for run in data["tried"] if run["best"]]
    assert best["settings"] == [str(found["settings"]["train.learning_rate"])]
    assert best["score"] == max(run["score"] for run in data["tried"]) == data["metric"]["value"]
    assert set(best) == {"number", "settings", "score", "best"}
    alone = collect([folder / "best"])
    assert (alone["metric"], alone["tried"]) == (data["metric"], [])


def test_a_run_that_diverged_has_no_score_and_one_that_is_damaged_is_one_sentence(copy):
    lost = next(run for run in collect([copy])["tried"] if not run["best"])["number"]
    place = copy / "runs" / f"{lost:03d}"
    (place / "summary.json").unlink()
    (place / "model.safetensors").unlink()
    assert [run["number"] for run in collect([copy])["tried"] if run["score"] is None] == [lost]
    (place / "summary.json").write_text("{")
    with pytest.raises(BadInput, match=f"{lost:03d} is damaged"):
        collect([copy])


def test_every_run_is_a_row_of_a_table_and_the_best_is_marked(searches, tmp_path, browser):
    write_page([searches["local"][0]], tmp_path / "report.html")
    browser.open((tmp_path / "report.html").as_uri())
    browser.wait("document.documentElement.dataset.ready === 'yes'")
    assert browser.complaints() == []
    rows = browser.value(
        "[...document.querySelectorAll('[aria-label^=\"Every run\"] tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    )
    assert [row[:2] for row in rows] == [["1", "0.1"], ["2", "0.5"], ["3", "0.1"]]
    assert sorted(row[3] for row in rows) == ["–", "–", "✓ best"]


def test_a_search_that_has_not_ended_or_is_damaged_is_refused_in_one_sentence(copy):
    path = copy / "best" / "summary.json"
    summary = json.loads(path.read_text())
    for crafted in ({"search": {}}, {"metrics": 3}, {"sentence": None}):
        path.write_text(json.dumps(summary | crafted))
        with pytest.raises(BadInput, match="is damaged"):
            collect([copy])
    path.write_text(json.dumps(summary))
    (copy / "tune.toml").write_text("vary = 3")
    with pytest.raises(BadInput, match=r"tune\.toml is damaged"):
        collect([copy])
    path.unlink()
    with pytest.raises(BadInput, match="has not ended: nothing of it is shown"):
        collect([copy])
