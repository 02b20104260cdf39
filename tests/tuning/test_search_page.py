"""The page of a search: its best and its price, and nothing of the others."""

import json

import pytest
from report.test_page import data_of
from tuning.test_tune import RATES, drawn, local, settings

from tacit.errors import BadInput
from tacit.report.page import collect, write_page
from tacit.tuning.search import tune

__all__ = ["drawn"]


def test_the_page_of_a_search_has_its_best_and_its_price_and_nothing_of_the_others(tmp_path, drawn):
    drawn(2)
    found = tune(settings(), RATES, runs=3, out=tmp_path / "search")
    write_page([tmp_path / "search"], tmp_path / "report.html")
    data = data_of((tmp_path / "report.html").read_text("utf-8"))
    assert (data["kind"], data["sentence"]) == ("search", found["sentence"])
    assert data["chosen"] == [["train.learning_rate", str(found["settings"]["train.learning_rate"])]]
    assert data["asked"] == [["train.learning_rate", "0.1, 0.5"]]
    assert data["prices"]["epsilon_of_the_best"] >= found["search"]["epsilon_of_the_best"]
    assert (data["charged"], data["seeded"]) == ("best", False)
    assert collect([tmp_path / "search" / "best"])["metric"] == data["metric"]
    assert "rounds" not in data


def test_a_search_whose_runs_are_all_seen_says_so(tmp_path):
    tune(local(), RATES, runs=2, out=tmp_path / "search")
    data = collect([tmp_path / "search"])
    assert data["charged"] == "composed"
    assert data["seeded"] is ("a seed" in data["guarantee"]["randomness"])


def test_a_search_that_has_not_ended_or_is_damaged_is_refused_in_one_sentence(tmp_path, drawn):
    drawn(1)
    tune(settings(), RATES, runs=3, out=tmp_path / "search")
    path = tmp_path / "search" / "best" / "summary.json"
    summary = json.loads(path.read_text())
    for crafted in ({"confusion": [[1]]}, {"search": {}}, {"metrics": 3}, {"sentence": None}):
        path.write_text(json.dumps(summary | crafted))
        with pytest.raises(BadInput, match="is damaged"):
            collect([tmp_path / "search"])
    path.unlink()
    with pytest.raises(BadInput, match="has not ended: nothing of it is shown"):
        collect([tmp_path / "search"])
