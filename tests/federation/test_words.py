"""A wrong value for any key of a site's or a federation's file is refused in one sentence, in words of Tacit's own."""

import pytest
from wrong_values import WRONG, foreign_words

from tacit.deploy.operate.layout import open_federation
from tacit.deploy.site import layout
from tacit.deploy.site.consent import Accept
from tacit.deploy.site.layout import wanted
from tacit.deploy.site.limits import Limits, make_site, read_limits
from tacit.deploy.site.rows import parted, read_rows
from tacit.errors import BadInput, TacitError
from tacit.experiment import Experiment
from tacit.experiment.extras import PersonalSection
from tacit.experiment.file import dumps

BUDGET = {"epsilon": 1.0, "delta": 1e-5}
DECLARED = Experiment(data={"name": "csv", "path": "records.csv", "classes": 2, "label": "ill"})


def hold(sentence, key):
    assert key in sentence, sentence
    assert not foreign_words(sentence), sentence
    assert "\n" not in sentence


def refusals(read, key):
    """How many of the wrong values are refused; each in our words, and nothing else is raised."""
    count = 0
    for value in WRONG:
        try:
            read(value)
        except TacitError as refusal:
            hold(str(refusal), key)
            count += 1
    return count


def limits(folder, values):
    (folder / "budget.toml").write_text(dumps(values), "utf-8")
    return read_limits(folder)


@pytest.mark.parametrize("key", [name for name in Limits.model_fields if name != "accept"])
def test_a_wrong_value_for_a_key_of_budget_toml_is_refused_in_our_words(tmp_path, key):
    assert refusals(lambda value: limits(tmp_path, BUDGET | {key: value}), key) > 5


@pytest.mark.parametrize("key", list(Accept.model_fields))
def test_a_wrong_value_for_what_a_budget_accepts_is_refused_in_our_words(tmp_path, key):
    assert refusals(lambda value: limits(tmp_path, BUDGET | {"accept": {key: value}}), f"accept.{key}") > 5


def test_a_budget_without_its_epsilon_says_which_line_to_add(tmp_path):
    with pytest.raises(BadInput, match=r"budget\.toml: epsilon is missing: add a line epsilon = \.\.\.$"):
        limits(tmp_path, {"delta": 1e-5})


def settings(folder, values):
    (folder / "site.toml").write_text(dumps(values), "utf-8")
    return layout.read_settings(folder)


@pytest.mark.parametrize("key", layout.TEXTS)
def test_a_wrong_value_for_a_text_of_site_toml_is_refused_in_our_words(tmp_path, key):
    assert refusals(lambda value: settings(tmp_path, {"name": "north"} | {key: value}), key) == len(WRONG) - 1


@pytest.mark.parametrize("key", list(PersonalSection.model_fields))
def test_a_wrong_value_for_own_models_is_refused_in_our_words(tmp_path, key):
    about = {"name": "north", "held_out": 0.2}
    kind = {"kind": "mean-regularised"}
    assert refusals(lambda value: wanted(settings(tmp_path, about | {"personal": kind | {key: value}})), key) > 5


def test_own_models_that_are_no_table_are_refused_in_our_words(tmp_path):
    assert refusals(lambda value: wanted(settings(tmp_path, {"name": "north", "personal": value})), "personal") > 5


@pytest.mark.parametrize("key", ["examples", "shape", "held_out"])
def test_a_wrong_value_for_a_number_of_site_toml_is_refused_in_our_words(tmp_path, key):
    make_site(tmp_path / "north", DECLARED, name="north", epsilon=1.0)
    declared = {"name": "north", "examples": 10, "shape": [2]}

    def read(value):
        found = settings(tmp_path / "north", declared | {key: value})
        if key == "held_out":
            return parted(None, found)  # type: ignore[arg-type]  # it never comes to the rows
        return read_rows(tmp_path / "north", DECLARED, found, local=lambda *_: None)  # type: ignore[arg-type]

    assert refusals(read, key) > 5


@pytest.mark.parametrize("key", ["name", "host", "port", "inner_port", "sites", "app_sha256"])
def test_a_wrong_value_for_a_key_of_federation_toml_is_refused_in_our_words(tmp_path, key):
    made = {"name": "trial", "host": "localhost", "port": 9000, "inner_port": 9001, "sites": ["a"], "app_sha256": "0"}

    def read(value):
        (tmp_path / "federation.toml").write_text(dumps(made | {key: value}), "utf-8")
        return open_federation(tmp_path)

    assert refusals(read, key) > 5
    assert read(made[key]).sites == ("a",)
