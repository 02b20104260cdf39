"""`run.evaluate_every`: rounds in between have no score, and nothing else is different."""

import io
import json
import shutil

import matplotlib.image
import pytest
import torch
from engine.conftest import SMALL
from rich.console import Console
from trained import Stop, changed, same_model, stop_after

import tacit
from tacit.engine import loop
from tacit.engine.run_files import read
from tacit.errors import BadInput, TrainingDiverged
from tacit.lab.compare import figures, table
from tacit.lab.compare.grid import Cell
from tacit.lab.compare.results import Row, Run
from tacit.report.collect import run_page
from tacit.report.overlay import Entry, several_page
from tacit.report.progress import Display
from tacit.types import State

SEVEN = {"train": {"rounds": 7}}


def scored(history):
    return [record["round"] for record in history.rounds if "accuracy" in record]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run that is tested in every round, and one that is tested after every third."""
    place = tmp_path_factory.mktemp("runs")
    return {
        every: tacit.run(changed(SMALL, SEVEN | {"run": {"evaluate_every": every}}), out=place / f"{every}", page=False)
        for every in (None, 3)
    }


def test_the_model_is_the_same_bit_for_bit_and_the_last_round_is_tested(runs):
    assert same_model(runs[None].out, runs[3].out)
    assert (scored(runs[None]), scored(runs[3])) == (list(range(7)), [2, 5, 6])
    often, rare = runs[None].rounds, runs[3].rounds
    for here, there in zip(often, rare, strict=True):
        for key in {"accuracy", "loss"} & set(there):
            assert here[key] == there[key]
        assert here["update_norm"] == there["update_norm"]
        assert here["epsilon_loosest"] == there["epsilon_loosest"]
    assert runs[3].summary["test_accuracy"] == runs[None].summary["test_accuracy"] == rare[-1]["accuracy"]


def test_it_is_no_part_of_what_a_release_depends_on(runs, small, tmp_path):
    whole = runs[None]
    with pytest.raises(Stop):
        tacit.run(small(**SEVEN, run={"evaluate_every": 5}), out=tmp_path / "here", page=False, observe=stop_after(3))
    other = small(**SEVEN, run={"evaluate_every": 2})
    resumed = tacit.run(other, out=tmp_path / "here", resume=True, page=False)
    assert same_model(whole.out, tmp_path / "here")
    assert scored(resumed) == [5, 6]
    charges = [len(list(one.ledger.entries())) for one in (whole, resumed)]
    assert charges[0] == charges[1]  # what was repeated was the very same release


def test_a_run_whose_budgets_end_between_two_tests_has_a_score_for_its_last_round(small, tmp_path):
    local = {"epsilon": 8.0, "noise_multiplier": 1.5, "strategy": "same-noise"}
    history = tacit.run(
        small(privacy=local, train={"rounds": 60}, run={"evaluate_every": 50}), out=tmp_path / "here", page=False
    )
    assert history.summary["stopped"] == "budget"
    assert 1 < len(history.rounds) < 50
    assert scored(history) == [len(history.rounds) - 1]
    assert history.rounds[-1]["accuracy"] == history.summary["test_accuracy"]
    assert read(tmp_path / "here").rounds[-1]["score"] == history.summary["test_accuracy"]


def test_a_model_that_diverges_in_a_round_without_a_test_ends_the_run():
    with pytest.raises(TrainingDiverged, match=r"The model became nan in round 4: lower train\.learning_rate"):
        loop._finite({}, State(torch.tensor([1.0, float("inf")])), 3)
    loop._finite({}, State(torch.tensor([1.0, 2.0])), 3)


@pytest.mark.parametrize("every", [0, -1, "a", 1.5])
def test_what_is_no_number_of_rounds_is_refused(small, every):
    with pytest.raises(BadInput, match=r"run\.evaluate_every"):
        small(run={"evaluate_every": every})


def test_pages_and_the_terminal_show_the_rounds_that_were_tested(runs, tmp_path):
    rare = shutil.copytree(runs[3].out, tmp_path / "rare")
    page = run_page(read(rare))
    assert [score is None for score in page["rounds"]["score"]] == [True, True, False, True, True, False, False]
    series = several_page([Entry("rare", (read(rare),), 7)], name="some")["entries"][0]["series"]
    assert [value is None for value in series["score"]["mean"]] == [True, True, False, True, True, False, False]
    (rare / "summary.json").unlink()
    (rare / "rounds.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in runs[3].rounds[:5]))
    unfinished = run_page(read(rare))
    assert unfinished["metric"]["value"] == pytest.approx(runs[3].rounds[2]["accuracy"], rel=1e-4)
    display = Display(Console(file=io.StringIO()))
    facts = [display._facts({"round": r} | ({"accuracy": 0.5} if r == 2 else {})) for r in range(4)]
    assert facts == [{}, {}, {"accuracy": "0.500"}, {"accuracy": "0.500 (round 3)"}]


def test_a_comparison_draws_and_counts_the_rounds_that_were_tested(runs, small, tmp_path):
    cell = Cell("rare", "rare", {}, (small(**SEVEN, run={"evaluate_every": 3}),))
    row = Row(cell, (Run(0, runs[3].out, runs[3].summary, tuple(runs[3].rounds)),))
    known = [record["accuracy"] for record in runs[3].rounds if "accuracy" in record]
    assert row.runs[0].score == pytest.approx(sum(known) / 3)
    names = figures.draw(tmp_path, [row])
    for name in names:
        assert matplotlib.image.imread(tmp_path / f"{name}.png")[..., :3].std() > 0.01
    (line,) = (one for one in figures.by_round([row]).axes[0].lines if len(one.get_xdata()) == 3)
    assert list(line.get_xdata()) == [3, 6, 7]
    assert "tested every 3 rounds and after the last" in table.markdown([row])
