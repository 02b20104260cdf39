"""Paired differences between cells: what scipy says of them, which cells are paired, and what is said where nothing is known."""

import csv
import io

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from tacit.lab.compare import differences as difference_table
from tacit.lab.compare import table
from tacit.lab.compare.differences import Scored, differences, holm

RULES = {"aggregate.rule": ["mean", "pfa", "weighted"]}


def cells(**scores):
    return [Scored(name, {"aggregate.rule": name}, dict(enumerate(values))) for name, values in scores.items()]


def test_a_difference_is_that_of_a_paired_t_test():
    rng = np.random.default_rng(1)
    common = rng.normal(0.7, 0.2, 6)
    one, other = common + rng.normal(0, 0.01, 6), common + 0.02 + rng.normal(0, 0.01, 6)
    (found,) = differences(cells(mean=one.tolist(), pfa=other.tolist()))
    judged = stats.ttest_rel(other, one)
    ends = judged.confidence_interval(0.95)
    assert found.p == found.p_holm == pytest.approx(judged.pvalue)
    record = found.record()
    assert [record["difference_low"], record["difference_high"]] == pytest.approx([ends.low, ends.high])
    apart = stats.t.ppf(0.975, 5) * stats.sem(one)
    assert found.interval < apart / 5  # what both have in common cancels


def test_p_values_are_corrected_for_all_comparisons():
    found = differences(cells(mean=[0.1, 0.2, 0.3], pfa=[0.2, 0.31, 0.39], weighted=[0.2, 0.1, 0.5]))
    assert [(one.cell, one.than) for one in found] == [("pfa", "mean"), ("weighted", "mean"), ("weighted", "pfa")]
    assert {one.comparisons for one in found} == {3}
    assert [one.p_holm for one in found] == pytest.approx(holm([one.p for one in found]))
    assert found[0].p_holm == pytest.approx(3 * found[0].p)
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_only_seeds_that_both_have_and_that_can_be_counted_are_paired():
    one = Scored("a", {"x.y": 1}, {0: 0.5, 1: 0.6, 2: float("nan"), 5: 0.9})
    other = Scored("b", {"x.y": 2}, {1: 0.7, 0: 0.7, 2: 0.8, 6: 0.1})
    (found,) = differences([one, other])
    assert set(found.seeds) == {0, 1}
    assert found.mean == pytest.approx(0.15)
    assert differences([one, Scored("c", {"x.y": 3}, {9: 0.5})]) == []


def test_fewer_than_three_seeds_and_the_same_difference_in_all_have_neither_interval_nor_p():
    (two,) = differences(cells(mean=[0.5, 0.6], pfa=[0.5, 0.75]))
    assert (two.interval, two.p) == (None, None)  # as of the mean of two
    for scores in ([0.5], [0.5, 0.6, 0.7]):
        (found,) = differences(cells(mean=scores, pfa=[score + 0.1 for score in scores]))
        assert (found.interval, found.p, found.p_holm) == (None, None, None)
        assert found.mean == pytest.approx(0.1)
    (same,) = differences(cells(mean=[0.5, 0.6, 0.7], pfa=[0.5, 0.6, 0.7]))
    assert (same.mean, same.interval, same.p) == (0.0, 0.0, 1.0)


def test_cells_are_paired_that_differ_in_one_key_and_options_of_one_rule_alone_do_not_count():
    grid = [
        Scored(f"{rule} {rank} {rate}", {"aggregate.rule": rule, "aggregate.rank": rank, "train.rate": rate}, {0: 0.1})
        for rule, rank in (("mean", None), ("pfa", 1), ("pfa", 2))
        for rate in (0.1, 0.2)
    ]
    found = differences(grid)
    assert (
        len(found) == 9
    )  # three rates apart; and at each rate: two ranks of pfa against the mean, and against each other
    by_key = [one.key for one in found]
    assert (by_key.count("train.rate"), by_key.count("aggregate.rule"), by_key.count("aggregate.rank")) == (3, 4, 2)


def test_every_table_and_file_has_the_same_differences_with_their_p_values(made, tmp_path):
    rows, file = made(RULES), io.StringIO()
    table.show(rows, Console(file=file, width=200))
    for words in (file.getvalue(), table.markdown(rows)):
        assert "pfa − mean" in words
        assert "corrected for all 3 comparisons" in words
    table.write(tmp_path, rows)
    lines = list(csv.DictReader((tmp_path / "differences.csv").read_text().splitlines()))
    pairs = [("pfa", "mean"), ("weighted", "mean"), ("weighted", "pfa")]
    assert [(line["cell"], line["than"]) for line in lines] == pairs
    mean, pfa, _ = table.record(rows)
    assert [one["than"] for one in pfa["differences"]] == ["mean", "weighted"]
    assert float(lines[0]["difference"]) == pfa["differences"][0]["difference"] == -mean["differences"][0]["difference"]
    assert pfa["differences"][0]["difference_low"] == -mean["differences"][0]["difference_high"]
    (difference, *_) = difference_table.found(rows)
    assert f"{difference.mean:+.4f} ± {difference.interval:.4f}" in file.getvalue()


def test_of_one_seed_or_cell_there_is_no_second_table_and_a_large_grid_says_where_the_others_are(made):
    for rows in (made(RULES, seeds=1), made({}, seeds=3)):
        assert list(difference_table.table(rows).columns) == difference_table.notes(rows) == []
    rows = made({"train.rounds": list(range(1, 9))})
    assert len(difference_table.table(rows).columns[0].values) == 12
    assert "16 more differences are in differences.csv." in difference_table.notes(rows)


def test_what_every_seed_has_in_common_is_said(made):
    rows = made(RULES | {"seed.data": [4]})
    (said,) = difference_table.pinned(rows)
    assert said == "The seeds do not change rows (seed.data): intervals say nothing about others."
    assert difference_table.pinned(made(RULES)) == difference_table.pinned(made({"seed.data": [4]}, seeds=1)) == []
