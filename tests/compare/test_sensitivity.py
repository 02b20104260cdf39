"""The metric over a varied number: which keys have a figure, and what is on it."""

import numpy as np
import pytest

from tacit.lab.compare import figures

RATES = {"train.learning_rate": [0.5, 0.05, 5.0], "aggregate.rule": ["mean", "pfa"]}


def test_a_number_that_is_varied_has_a_figure_and_texts_budgets_and_seeds_have_none(made):
    assert figures.keys(made(RATES | {"privacy.epsilon": [3, 8]})) == ["train.learning_rate"]
    assert figures.keys(made({"seed.data": [1, 2], "aggregate.rule": ["mean", "pfa"]})) == []
    assert figures.keys(made({"train.rounds": [4]})) == []
    assert figures.keys(made({})) == []


def test_lines_join_cells_that_differ_in_nothing_else_in_the_order_of_their_values(made, tmp_path):
    rows = made(RATES)
    assert "accuracy-by-train-learning-rate" in figures.draw(tmp_path, rows)
    assert {path.suffix for path in tmp_path.glob("accuracy-by-train-learning-rate.*")} == {".png", ".svg", ".pdf"}
    axes = figures.by_value(rows, "train.learning_rate").axes[0]
    lines = [container.lines[0] for container in axes.containers]
    assert [container.get_label() for container in axes.containers] == ["mean", "pfa"]
    for line, rule in zip(lines, ("mean", "pfa"), strict=True):
        assert list(line.get_xdata()) == [0.05, 0.5, 5.0]
        score = {
            row.cell.varied["train.learning_rate"]: row.score.mean
            for row in rows
            if row.cell.varied["aggregate.rule"] == rule
        }
        assert list(line.get_ydata()) == pytest.approx([score[rate] for rate in (0.05, 0.5, 5.0)])
    assert axes.get_xscale() == "log"
    assert "log scale" in axes.get_xlabel()


def test_an_option_that_some_rules_do_not_take_is_drawn_for_those_that_do(made):
    rows = made({"aggregate.rule": ["mean", "pfa"], "aggregate.rank": [1, 2, 3]})
    (key,) = figures.keys(rows)
    axes = figures.by_value(rows, key).axes[0]
    assert [container.get_label() for container in axes.containers] == ["pfa"]
    assert axes.get_xscale() == "linear"


def test_a_cell_that_never_ended_is_left_out(made):
    rows = made({"train.rounds": [2, 3, 4]})
    for run in rows[1].runs:
        object.__setattr__(run, "summary", None)
    line = figures.by_value(rows, "train.rounds").axes[0].containers[0].lines[0]
    assert np.array_equal(line.get_xdata(), [2, 4])
