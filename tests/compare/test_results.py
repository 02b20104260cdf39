"""Numbers, tables and figures from rows."""

import csv
import json
import math
from dataclasses import replace
from itertools import combinations
from xml.etree import ElementTree

import matplotlib.image
import numpy as np
import pytest
from matplotlib.text import Text
from scipy import stats

from tacit.errors import BadInput
from tacit.lab.compare import differences, figures, table
from tacit.lab.compare.results import estimate, over_rounds
from tacit.parts import metrics

RULES = {"aggregate.rule": ["mean", "pfa"]}
TWELVE = {"aggregate.rule": ["mean", "weighted", "pfa", "pfa-plus"], "privacy.epsilon": [1, 3, 10]}
UNITS = {"unit": lambda number: ("record", "client")[number % 2]}


def test_the_interval_is_students_and_that_of_an_error_is_cut_at_zero_alone():
    sample = np.random.default_rng(5).normal(0.8, 0.05, 5).tolist()
    low, high = stats.ttest_1samp(sample, 0).confidence_interval(0.95)
    found = estimate(sample)
    assert (found.mean, found.interval) == (pytest.approx((low + high) / 2), pytest.approx((high - low) / 2))
    wide = stats.t.ppf(0.975, 2) * stats.sem([1.0, 9.0, 2.0])
    assert estimate([1.0, 9.0, 2.0], metrics.bounds("rmse")).span == (4.0, pytest.approx(wide))


def test_fewer_than_three_seeds_have_no_interval_and_none_no_mean(made):
    assert estimate([0.5]).interval is None
    assert (estimate([0.5, 0.7]).mean, estimate([0.5, 0.7]).interval) == (0.6, None)
    assert estimate([]) is None
    two = made(RULES, seeds=2)
    assert "±" not in table.score(two[0])
    assert "mean over 2 seeds, which are too few for an interval" in table.notes(two)[0]
    assert differences.notes(two)[:2] == [
        "Differences are paired by seed.",
        "–: fewer than 3 seeds, or the very same difference in all, tell nothing about chance.",
    ]
    assert not any("±" in cell for cells in differences.table(two).texts().values() for cell in cells)
    assert "too few for an interval" in figures.by_cell(two).axes[0].get_title("left")
    rows = made(RULES, seeds=1)
    assert "±" not in table.score(rows[0])
    assert "no interval" in table.notes(rows)[0]


def test_the_accuracy_of_a_run_is_the_mean_of_its_last_ten_rounds_and_the_final_one_is_kept(made):
    run = made(RULES, rounds=12)[0].runs[0]
    accuracies = [record["accuracy"] for record in run.rounds]
    assert run.score == pytest.approx(np.mean(accuracies[2:]))
    assert run.final == accuracies[-1]
    short = replace(run, rounds=run.rounds[:4])
    assert short.score == pytest.approx(np.mean(accuracies[:4]))
    assert replace(run, rounds=()).score == run.final


def test_a_run_that_stopped_early_keeps_its_last_value(made):
    row = made(RULES, seeds=2, rounds=3)[0]
    row = replace(row, runs=(row.runs[0], replace(row.runs[1], rounds=row.runs[1].rounds[:1])))
    values = over_rounds(row, "accuracy")
    assert values.shape == (2, 3)
    assert set(values[1]) == {values[1, 0]}
    assert table.troubles(row) == ["2 of 2 runs stopped for want of budget after 1 of 15 rounds"]


def test_one_promise_is_named_once_below_the_table_and_its_epsilon_is_rounded_up(made):
    rows = made({**RULES, "privacy.epsilon": [1, 3]})
    found = table.cells(rows).texts()
    assert found["epsilon spent per record"] == ["0.500 to 1.000", "1.500 to 3.000"] * 2  # from 0.9999 and 2.9999
    assert "guarantee" not in found
    assert sum(note.startswith("Epsilon:") and "against the server" in note for note in table.notes(rows)) == 1


def test_record_and_client_epsilons_share_neither_a_column_nor_an_axis(made, tmp_path):
    rows = made({"privacy.epsilon": [1, 3]}, **UNITS)
    found = table.cells(rows).texts()
    assert found["epsilon spent per record"] == ["0.500 to 1.000", "–"]
    assert found["epsilon spent per client"] == ["–", "1.500 to 3.000"]
    assert found["epsilon"] == ["1 per record", "3 per client"]
    assert found["guarantee"] == ["(1) per record", "(2) per client"]
    assert "accuracy-by-epsilon" not in figures.draw(tmp_path, rows)
    assert any("no figure has an epsilon axis" in note for note in table.notes(rows))
    with pytest.raises(BadInput, match="not one axis"):
        figures.by_epsilon(rows)
    table.write(tmp_path, rows)
    first, second = csv.DictReader((tmp_path / "table.csv").read_text().splitlines())
    assert (first["epsilon_per_client_max"], second["epsilon_per_record_max"]) == ("", "")
    assert first["epsilon_per_record_max"] == repr(1 - 0.0001)


@pytest.mark.parametrize("draw", [figures.by_round, figures.by_cell, figures.by_uplink])
def test_a_figure_of_different_promises_names_unit_and_adversary_of_each(made, draw):
    figure = draw(made({"privacy.epsilon": [1, 3]}, **UNITS))
    said = " ".join(" ".join(text.get_text() for text in figure.findobj(Text)).split())
    for words in (
        "(1) per record",
        "(2) per client",
        "(1) epsilon per record",
        "(2) epsilon per client",
        "against the server",
    ):
        assert words in said
    alone = draw(made({"privacy.epsilon": [1, 3]}))
    assert "epsilon per" not in " ".join(text.get_text() for text in alone.findobj(Text))


def test_no_promise_is_said(made):
    rows = made(RULES, unit=lambda number: None)
    assert "No privacy is promised." in table.notes(rows)
    mixed = made(RULES, unit=lambda number: (None, "record")[number])
    assert table.cells(mixed).texts()["epsilon spent per record"] == ["no promise", "1.500 to 3.000"]
    assert not figures.can_compare_epsilons(mixed)


def test_json_has_no_infinity_and_markdown_no_broken_row(made):
    rows = made({"privacy.epsilon": [math.inf, 1], "privacy.noise_multiplier": [2.0]})
    assert json.loads(json.dumps(table.record(rows), allow_nan=False))[0]["varied"]["privacy.epsilon"] == "inf"
    row = replace(rows[0], runs=(replace(rows[0].runs[0], summary=None, failure="a|b"), *rows[0].runs[1:]))
    assert "seed 0 failed: a\\|b" in table.markdown([row])


@pytest.mark.parametrize(("vary", "seeds", "rounds"), [(TWELVE, 3, 12), (RULES, 1, 1)])
def test_figures_are_drawn(made, tmp_path, vary, seeds, rounds):
    names = figures.draw(tmp_path, made(vary, seeds=seeds, rounds=rounds))
    assert {"accuracy-by-round", "accuracy-by-cell", "accuracy-by-uplink"} <= set(names)
    assert ("accuracy-by-epsilon" in names) == ("privacy.epsilon" in vary)
    for name in names:
        pixels = matplotlib.image.imread(tmp_path / f"{name}.png")[..., :3]
        assert pixels.std() > 0.03
        assert (np.ptp(pixels, axis=-1) > 0.3).mean() > 1e-4  # coloured, so something was drawn
        ElementTree.parse(tmp_path / f"{name}.svg")


def out_of_view(axes):
    """Labels of ticks beyond the ends of an axis: they exist, but are not drawn."""
    for number, axis in enumerate((axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        yield from (
            text for text in axis.get_ticklabels(which="both") if not low <= text.get_position()[number] <= high
        )


@pytest.mark.parametrize("draw", [figures.by_round, figures.by_cell, figures.by_uplink, figures.by_epsilon])
@pytest.mark.parametrize("vary", [TWELVE, {"privacy.epsilon": [1 + 0.1 * n for n in range(12)]}])
@pytest.mark.parametrize("units", [{}, UNITS])
def test_no_text_of_a_figure_overlaps_another_or_leaves_the_figure(made, draw, vary, units):
    if units and draw is figures.by_epsilon:
        pytest.skip("epsilons of different units have no such figure")
    figure = draw(made(vary, **units))
    figure.draw_without_rendering()
    unseen = {id(text) for text in out_of_view(figure.axes[0])}
    texts = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible() and id(text) not in unseen]
    boxes = [text.get_window_extent() for text in texts]
    assert len(boxes) > 12
    for one, other in combinations(boxes, 2):
        assert not one.padded(-1).overlaps(other.padded(-1))
    for box in boxes:
        assert figure.bbox.padded(1).x0 <= box.x0
        assert box.x1 <= figure.bbox.padded(1).x1


def test_an_interval_is_not_drawn_where_no_accuracy_can_be(made):
    (row,) = made({"privacy.epsilon": [3]}, seeds=3)
    values = zip(row.runs, (0.05, 0.99, 0.99), strict=True)
    runs = tuple(replace(run, rounds=({"accuracy": value},)) for run, value in values)
    row = replace(row, runs=runs)
    assert row.score.interval > 1
    (low, high) = row.score.span
    assert row.score.mean - low == 0.0
    assert row.score.mean + high == 1.0
    assert table.score(row) == f"{row.score.mean:.4f} ± {low:.4f}"
    left, right = figures.by_cell([row]).axes[0].get_xlim()
    assert -0.1 < left < right < 1.1


@pytest.mark.parametrize(("rounds", "words"), [(12, "last 10 rounds"), (4, "last 4 rounds"), (1, "last round")])
def test_short_runs_say_over_which_rounds_the_mean_goes(made, rounds, words):
    rows = made({"privacy.epsilon": [3, 5]}, rounds=rounds)
    assert f"accuracy ({words})" in table.cells(rows).texts()
    assert figures.by_cell(rows).axes[0].get_xlabel() == f"test accuracy, mean of the {words}"


def with_own_models(rows, *values):
    """The rows with own models in every run of the first cell."""

    def one(of):
        return {"value": of, "interval": [of - 0.01, of + 0.01]}

    def personal(value):
        models = {"alone": one(value - 0.02), "common": one(value - 0.1), "own": one(value)}
        by = {**models, "own_less_alone": one(0.02), "own_less_common": one(0.1), "rows": 30, "clients": 4}
        return {"personal": {"metric": "accuracy", "metrics": {"accuracy": by, "log_loss": {}}}}

    pairs = zip(rows[0].runs, values, strict=True)
    runs = tuple(replace(run, summary=run.summary | personal(value)) for run, value in pairs)
    return [replace(rows[0], runs=runs), *rows[1:]]


def test_own_models_have_columns_with_their_paired_differences_and_say_whose_numbers_they_are(made):
    rows = with_own_models(made(RULES), 0.9, 0.92, 0.94)
    found = table.cells(rows).texts()
    assert found["own†"] == [f"0.9200 ± {estimate([0.9, 0.92, 0.94]).interval:.4f}", "–"]
    assert found["own − alone†"] == ["+0.0200 ± 0.0000", "–"]
    assert list(found).index("own − common†") < list(found).index("up")
    assert any("paired" in note and "not covered by epsilon" in note for note in table.notes(rows))
    cell, other = table.record(rows)
    assert (cell["accuracy_on_client_own"], cell["accuracy_on_client_own_less_common"]) == pytest.approx((0.92, 0.1))
    assert cell["seeds"][1]["accuracy_on_client_own_low"] == pytest.approx(0.91)
    assert "accuracy_on_client_own" not in other
    once = with_own_models(made({"aggregate.rule": ["mean"]}, seeds=1), 0.9)  # with its interval over kept rows
    assert table.cells(once).texts()["own − common†"] == ["+0.1000 ± 0.0100"]
    assert any("interval over kept rows" in note for note in table.notes(once))
    plain = made({"aggregate.rule": ["mean"]})
    assert not [words for words in (*table.cells(plain).texts(), *table.notes(plain)) if "†" in words]
