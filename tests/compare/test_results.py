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
from tacit.lab.compare import figures as plot
from tacit.lab.compare.ledger import together
from tacit.lab.compare.results import estimate, over_rounds
from tacit.parts import metrics

RULES = {"aggregate.rule": ["mean", "pfa"]}
TWELVE = {"aggregate.rule": ["mean", "weighted", "pfa", "pfa-plus"], "privacy.epsilon": [1, 3, 10]}
UNITS = {"unit": lambda number: ("record", "client")[number % 2]}


@pytest.mark.parametrize("count", [3, 5, 30])
def test_the_interval_is_students(count):
    sample = np.random.default_rng(count).normal(0.8, 0.05, count).tolist()
    low, high = stats.ttest_1samp(sample, 0).confidence_interval(0.95)
    found = estimate(sample)
    assert found.mean == pytest.approx((low + high) / 2)
    assert found.interval == pytest.approx((high - low) / 2)


def test_the_interval_holds_95_times_in_100_and_not_90_or_99():
    rng = np.random.default_rng(1)
    found = [estimate(sample) for sample in rng.normal(0.5, 0.1, (4000, 4)).tolist()]
    held = sum(abs(one.mean - 0.5) <= one.interval for one in found) / len(found)
    assert 0.935 < held < 0.965


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


def test_the_table_says_to_which_rules_an_option_went(small, made, monkeypatch):
    monkeypatch.setitem(small, "aggregate", {"rank": 2})
    assert "aggregate.rank went to pfa alone: mean ran without it." in table.notes(made(RULES))


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


def test_json_has_no_infinity(made):
    rows = made({"privacy.epsilon": [math.inf, 1]})
    assert json.loads(json.dumps(table.record(rows), allow_nan=False))[0]["varied"] == {"privacy.epsilon": "inf"}


def test_markdown_escapes_what_would_break_a_row(made):
    row = made(RULES)[0]
    row = replace(row, runs=(replace(row.runs[0], summary=None, failure="a|b"), *row.runs[1:]))
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


def test_a_figure_is_the_same_file_each_time(made, tmp_path):
    for name in ("a", "b"):
        plot.save(figures.by_round(made(TWELVE)), tmp_path / name)
    assert (tmp_path / "a.svg").read_text() == (tmp_path / "b.svg").read_text()


def test_twelve_cells_look_different():
    assert len({(one["color"], str(one["linestyle"])) for one in plot.styles(12)}) == 12


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


def test_an_interval_of_an_error_is_cut_at_zero_alone():
    values = [1.0, 9.0, 2.0]
    wide = stats.t.ppf(0.975, 2) * stats.sem(values)
    assert wide > 4.0
    assert estimate(values, metrics.bounds("rmse")).span == (4.0, pytest.approx(wide))


@pytest.mark.parametrize(("rounds", "words"), [(12, "last 10 rounds"), (4, "last 4 rounds"), (1, "last round")])
def test_short_runs_say_over_which_rounds_the_mean_goes(made, rounds, words):
    rows = made({"privacy.epsilon": [3, 5]}, rounds=rounds)
    assert f"accuracy ({words})" in table.cells(rows).texts()
    assert figures.by_cell(rows).axes[0].get_xlabel() == f"test accuracy, mean of the {words}"


def at_home(value, width=0.01):
    """What a run's summary says of own models."""

    def one(of):
        return {"value": of, "interval": [of - width, of + width]}

    models = {"alone": one(value - 0.02), "common": one(value - 0.1), "own": one(value)}
    by = {**models, "own_less_alone": one(0.02), "own_less_common": one(0.1), "rows": 30, "clients": 4}
    return {"metric": "accuracy", "metrics": {"accuracy": by, "log_loss": {}}}


def with_own_models(rows, *values):
    """The rows with own models in every run of the first cell."""
    first = rows[0]
    runs = tuple(
        replace(run, summary=run.summary | {"personal": at_home(value)})
        for run, value in zip(first.runs, values, strict=True)
    )
    return [replace(first, runs=runs), *rows[1:]]


def test_own_models_have_columns_with_their_paired_differences_and_say_whose_numbers_they_are(made):
    rows = with_own_models(made({"aggregate.rule": ["mean", "pfa"]}), 0.9, 0.92, 0.94)
    found = table.cells(rows).texts()
    wide = estimate([0.9, 0.92, 0.94]).interval
    assert found["own†"] == [f"0.9200 ± {wide:.4f}", "–"]
    assert found["own − alone†"] == ["+0.0200 ± 0.0000", "–"]
    assert list(found).index("own − common†") < list(found).index("up")
    assert any("paired" in note and "not covered by epsilon" in note for note in table.notes(rows))
    cell = table.record(rows)[0]
    assert cell["accuracy_at_home_own"] == pytest.approx(0.92)
    assert cell["accuracy_at_home_own_less_common"] == pytest.approx(0.1)
    assert cell["seeds"][1]["accuracy_at_home_own_low"] == pytest.approx(0.91)
    assert "accuracy_at_home_own" not in table.record(rows)[1]


def test_one_seed_has_the_interval_over_its_kept_rows_and_without_own_models_there_are_no_columns(made):
    rows = with_own_models(made({"aggregate.rule": ["mean"]}, seeds=1), 0.9)
    assert table.cells(rows).texts()["own − common†"] == ["+0.1000 ± 0.0100"]
    assert any("interval over kept rows" in note for note in table.notes(rows))
    plain = made({"aggregate.rule": ["mean"]})
    assert not [name for name in table.cells(plain).texts() if "†" in name]
    assert not [note for note in table.notes(plain) if "†" in note]


def test_what_the_runs_cost_together_is_the_sum_over_runs_of_the_client_that_spent_most(made, tmp_path):
    rows = made({"privacy.epsilon": [1, 3]})
    (sums,) = together(rows)
    assert (sums.runs, sums.left_out) == (6, 0)
    assert sums.epsilon == pytest.approx(3 * 0.9999 + 3 * 2.9999)
    assert sums.delta == pytest.approx(6e-5)
    said = table.notes(rows)[-1]
    assert said.startswith(
        "Together these 6 runs spend at most epsilon 12.000 at delta 6e-05 per record (add or remove one)"
    )
    assert "against the server" in said
    table.write(tmp_path, rows)
    (found,) = json.loads((tmp_path / "together.json").read_text())
    assert found["epsilon"] == sums.epsilon


def test_epsilons_of_two_units_are_not_added(made):
    rows = made({"privacy.epsilon": [1, 3], "seed.data": [0]}, **UNITS)
    sums = together(rows)
    assert [(one.unit, round(one.epsilon, 3)) for one in sums] == [("record", 3.0), ("client", 9.0)]
    assert "more than any one" in table.notes(rows)[-1]


def test_an_epsilon_without_bound_makes_a_sum_without_bound(made):
    row = made({"privacy.epsilon": [1]})[0]
    endless = {**row.runs[0].guarantee, "epsilon": {"min": 1.0, "median": 1.0, "max": math.inf}}
    runs = (replace(row.runs[0], summary=row.runs[0].summary | {"guarantee": endless}), *row.runs[1:])
    (sums,) = together([replace(row, runs=runs)])
    assert math.isinf(sums.epsilon)
    assert "epsilon inf" in sums.sentence
    assert sums.record()["epsilon"] is None


def test_runs_that_deal_rows_out_anew_are_not_added_up_per_client_because_they_have_no_client_in_common(made):
    (sums,) = together(made({"privacy.epsilon": [1, 3]}, unit=lambda number: "client"))
    assert (sums.runs, sums.ways) == (6, 3)
    assert sums.epsilon == pytest.approx(0.9999 + 2.9999)  # of the two cells of one seed
    assert sums.delta == pytest.approx(2e-5)
    assert "in 3 ways" in sums.sentence
    assert "if those of one way, and no others, are seen" in sums.sentence
    varied = made({"seed.data": [0], "data.clients": [4, 5]}, unit=lambda number: "client")
    assert together(varied)[0].ways == 2
    (sums,) = together(made({"privacy.epsilon": [1, 3], "seed.data": [0]}, unit=lambda number: "client"))
    assert (sums.ways, sums.epsilon) == (1, pytest.approx(3 * 0.9999 + 3 * 2.9999))
    assert sums.sentence.startswith("Together these 6 runs spend")


def test_runs_without_privacy_beside_others_are_said_to_be_in_no_sum(made):
    rows = made({"privacy.kind": ["local", "none"]}, unit=lambda number: "record" if number == 0 else None)
    assert table.notes(rows)[-1].startswith("In no sum: 3 runs without privacy. Whoever sees one")
    assert not any("without privacy" in note for note in table.notes(made(RULES)))
