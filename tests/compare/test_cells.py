"""The grid: what is cut, what is combined, what is refused before anything runs."""

import pytest

from tacit.errors import BadInput
from tacit.experiment.file import parse_value
from tacit.lab.compare.differences import holm, probability
from tacit.lab.compare.grid import (
    expand,
    for_some_alone,
    headings,
    label,
    parse_vary,
    size,
    split,
    taken_by,
    text,
    try_out,
)
from tacit.lab.compare.results import last_rounds
from tacit.lab.worker import span

LOCAL = {"privacy": {"kind": "local", "epsilon": 3}}


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ("mean,pfa", ["mean", "pfa"]),
        (" 1 , 3 ", ["1", "3"]),
        ("[1,2],[3,4]", ["[1,2]", "[3,4]"]),
        ('{a = 1, b = [2, 3]},"x,y"', ["{a = 1, b = [2, 3]}", '"x,y"']),
        ('"[",b', ['"["', "b"]),
    ],
)
def test_commas_inside_brackets_and_quotes_do_not_cut(values, parts):
    assert split(values) == parts


@pytest.mark.parametrize("values", ["", "1,", ",1", "1,,2", "[1,2", "1],2", '"a'])
def test_values_that_are_missing_or_not_closed_are_refused(values):
    with pytest.raises(BadInput, match="Expected"):
        split(values)


@pytest.mark.parametrize("value", ["pfa", 3, 2.5, [1, 2.5], {"file": "a.csv"}, float("inf"), [[1], ["a"]]])
def test_the_text_of_a_value_reads_back_as_the_value(value):
    assert parse_value(text(value)) == value


def test_numbers_and_settings_are_said_as_people_say_them():
    assert [size(2_500_000), size(1e13), span(7), span(100), span(8000)] == ["2.5 MB", "10 TB", "7 s", "2 min", "2.2 h"]
    assert [probability(0.0412), probability(0.00003)] == ["0.041", "< 0.001"]
    assert [last_rounds([60, 4]), last_rounds([])] == ["last 10 rounds, or all of a shorter run", "last 10 rounds"]
    assert label({"aggregate.rule": "pfa", "privacy.epsilon": 3, "aggregate.rank": None}) == "pfa, epsilon 3"
    assert holm([0.01, None, 0.04, 0.03]) == [0.04, None, 0.09, 0.09]
    assert parse_vary(["a.rule=mean,pfa", "a.epsilon=[1, 2],3"]) == {
        "a.rule": ["mean", "pfa"],
        "a.epsilon": [[1, 2], 3],
    }


def test_every_combination_has_every_seed_in_the_order_given():
    cells = expand(
        {**LOCAL, "run": {"seed": 7}}, {"aggregate.rule": ["pfa", "mean"], "privacy.epsilon": [3, 1]}, seeds=2
    )
    assert [cell.label for cell in cells] == ["pfa, epsilon 3", "pfa, epsilon 1", "mean, epsilon 3", "mean, epsilon 1"]
    assert cells[0].slug == "aggregate.rule=pfa,privacy.epsilon=3"
    for cell in cells:
        assert [experiment.run.seed for experiment in cell.experiments] == [7, 8]
        assert {experiment.run.workers for experiment in cell.experiments} == {1}
        assert cell.experiments[0].aggregate.rule == cell.varied["aggregate.rule"]
        assert cell.experiments[0].privacy.epsilon == cell.varied["privacy.epsilon"]


def test_an_option_goes_only_to_the_rules_that_take_it_and_equal_cells_are_one():
    cells = expand(LOCAL, {"aggregate.rule": ["mean", "pfa"], "aggregate.rank": [1, 2]}, seeds=1)
    assert [cell.label for cell in cells] == ["mean", "pfa, rank 1", "pfa, rank 2"]
    assert cells[0].varied == {"aggregate.rule": "mean", "aggregate.rank": None}
    assert cells[0].slug == "aggregate.rule=mean"
    assert cells[0].experiments[0].aggregate.options() == {}
    assert taken_by("tacit.algorithms.rules.pfa:pfa") == taken_by("pfa")


@pytest.mark.parametrize(
    ("values", "vary", "sentence"),
    [
        ({"rank": 2}, {"train.rounds": [1, 2]}, r"takes aggregate.rank \(random-effects takes caution, horizon\)"),
        (
            {"rank": 2},
            {"aggregate.rule": ["mean", "weighted"]},
            "or compare pfa, pfa-plus, random-projection, which take",
        ),
        ({"nonsense": 2}, {"aggregate.rule": ["mean", "weighted"]}, r"aggregate.nonsense \(.*\): leave it out\.$"),
    ],
)
def test_an_option_that_no_compared_rule_takes_is_refused_with_the_rules_that_do(values, vary, sentence):
    with pytest.raises(BadInput, match=sentence):
        expand({**LOCAL, "aggregate": values}, vary, seeds=1)


def test_an_option_said_for_all_goes_to_the_rules_that_take_it_and_a_sentence_says_so():
    cells = expand({**LOCAL, "aggregate": {"rank": 2}}, {"aggregate.rule": ["mean", "pfa", "weighted"]}, seeds=1)
    assert [cell.experiments[0].aggregate.options() for cell in cells] == [{}, {"rank": 2}, {}]
    assert ["rank" in cell.experiments[0].toml() for cell in cells] == [False, True, False]
    assert for_some_alone(cells) == ["aggregate.rank went to pfa alone: mean, weighted ran without it."]
    shown = expand(LOCAL, {"aggregate.rule": ["mean", "pfa"], "aggregate.rank": [1, 2]}, seeds=1)
    for_all = expand({**LOCAL, "aggregate": {"rank": 2}}, {"aggregate.rule": ["pfa", "pfa-plus"]}, seeds=1)
    assert for_some_alone(shown) == for_some_alone(for_all) == []


def test_a_grid_without_variation_is_one_cell():
    (cell,) = expand({"name": "mine"}, {}, seeds=3)
    assert (cell.label, cell.slug, len(cell.experiments)) == ("mine", "as-given", 3)


def test_labels_and_folders_stay_apart_where_values_look_alike():
    long = [[1.0] * 30 + [end] + [1.0] * 30 for end in (2.0, 3.0)]
    cells = expand(LOCAL | {"data": {"clients": 61}}, {"privacy.epsilon": long}, seeds=1)
    assert len({cell.label for cell in cells}) == len({cell.slug for cell in cells}) == 2
    assert all(len(cell.slug) < 140 and "/" not in cell.slug for cell in cells)
    (odd,) = expand({}, {"model.name": ["a/b c:d"]}, seeds=1)
    assert "/" not in odd.slug
    assert label({"a.x": "same", "b.x": "same"}, every_key=True) == "a.x same, b.x same"
    assert headings(["a.x", "b.x", "c.y"]) == ["a.x", "b.x", "y"]


@pytest.mark.parametrize(
    ("vary", "sentence"),
    [
        ({"train.rond": [1]}, "Did you mean 'train.rounds'"),
        ({"rounds": [1]}, "Expected what varies as section.key"),
        ({"privacy.epsilon": [1, -1]}, "privacy.epsilon > 0"),
        ({"privacy.epsilon": [1, 1]}, "each value of privacy.epsilon once"),
        ({"privacy.epsilon": []}, "at least one value"),
        ({"run.seed": [1, 2]}, "--seeds"),
        ({"run.workers": [1, 2]}, "--jobs"),
        ({"privacy.ledger": ["a.db"]}, "set it once"),
        ({"aggregate.rule": ["men"], "aggregate.rank": [1]}, "Did you mean 'mean'"),
        ({}, "seeds >= 1"),
    ],
)
def test_bad_grids_are_refused_in_one_sentence(vary, sentence):
    with pytest.raises(BadInput, match=sentence) as refusal:
        expand(LOCAL, vary, seeds=2 if vary else 0)
    assert "\n" not in str(refusal.value)


def test_what_only_the_data_can_tell_is_refused_with_its_cell():
    few, many = expand({"data": {"clients": 4}}, {"train.clients_per_round": [4, 50]}, seeds=1)
    try_out(few)
    with pytest.raises(BadInput, match=r"clients per round 50: Expected train.clients_per_round <= 4 clients, got 50"):
        try_out(many)


@pytest.mark.parametrize("lines", [["a.b"], ["=1"], ["a.b=1", "a.b=2"]])
def test_bad_vary_lines_are_refused(lines):
    with pytest.raises(BadInput, match=r"Expected --vary|varied twice"):
        parse_vary(lines)


def test_every_kind_keeps_the_unit_that_is_said():
    vary = {"privacy.kind": ["local", "central", "distributed"], "privacy.unit": ["record", "client"]}
    cells = expand({"privacy": {"epsilon": 3, "kind": "local"}, "train": {"local_steps": 1}}, vary, seeds=1)
    assert [cell.label for cell in cells][:3] == ["local, record", "local, client", "central, record"]
    assert [cell.experiments[0].privacy.unit_kept for cell in cells] == ["record", "client"] * 3
