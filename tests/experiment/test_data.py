"""The [data] table: defaults that work, and one sentence for what cannot."""

import pytest
from pydantic import ValidationError

from tacit.experiment.data import DataSection

CSV = {"name": "csv", "path": "records.csv", "classes": ["no", "yes"]}


def test_every_key_has_a_default():
    section = DataSection()
    assert (section.name, section.clients, section.partition, section.shards_per_client) == ("digits", 20, "iid", 10)


def test_a_section_survives_being_written_and_read_again():
    section = DataSection.model_validate(CSV | {"numeric": {"age": [0, 120]}, "missing": 0, "ignore": ["id"]})
    assert DataSection.model_validate_json(section.model_dump_json()) == section
    assert section.missing == 0.0
    assert isinstance(section.missing, float)


def test_a_section_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        DataSection().clients = 3  # pyright: ignore


def test_whole_numbers_may_name_classes_and_categories():
    section = DataSection.model_validate(CSV | {"classes": [0, 1], "categorical": {"ward": [1, 2]}})
    assert (section.classes, section.categorical) == (("0", "1"), {"ward": ("1", "2")})
    assert DataSection.model_validate(CSV | {"classes": 3}).classes == 3


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"name": "mnst"}, r"Expected data.name to be one of .*got 'mnst'. Did you mean 'mnist'\?"),
        ({"partition": "dirichlett"}, r"Did you mean 'dirichlet'\?"),
        ({"clients": 0}, r"Expected data.clients >= 1, got 0."),
        ({"clients": True}, r"Expected data.clients to be a text or a number, got true."),
        ({"client": 3}, r"Extra inputs are not permitted"),
        ({"alpha": 0}, r"Expected data.alpha > 0, got 0.0."),
        ({"alpha": float("nan")}, r"Expected data.alpha to be a finite number"),
        ({"min_size": 0}, r"Expected data.min_size >= 1"),
        ({"shards_per_client": 0}, r"Expected data.shards_per_client >= 1"),
        ({"examples_per_client": 0}, r"Expected data.examples_per_client >= 1"),
        (
            {"partition": "dirichlet", "examples_per_client": 5},
            r"Expected data.examples_per_client >= data.min_size = 10, got 5",
        ),
        (
            {"partition": "shards", "examples_per_client": 5},
            r"Expected data.examples_per_client >= data.shards_per_client = 10, got 5",
        ),
        ({"partition": "natural"}, r"digits names no clients"),
        ({"numeric": {"age": [0, 1]}}, r"data.numeric is only for name = csv, not digits: remove it"),
        ({"classes": ["a", "b"]}, r"data.classes is only for name = csv or npz"),
        (
            {"name": "npz", "path": "a.npz", "classes": 2, "client_column": "who"},
            r"data.client_column is only for name",
        ),
        ({"name": "csv", "classes": 2}, r"Expected data.path to say where the csv data is"),
        ({"name": "csv", "path": "a.csv"}, r"Expected data.classes to declare the labels"),
        (CSV | {"classes": "all"}, r"Expected data.classes to declare the labels"),
        (CSV | {"classes": ["no", "no"]}, r"at least 2 labels, each once"),
        (CSV | {"classes": 1}, r"at least 2 labels"),
        (CSV | {"test_share": 1}, r"Expected 0 < data.test_share < 1"),
        (CSV | {"numeric": {"age": [5, 5]}}, r"data.numeric.age = \[low, high\] with low < high, got \[5.0, 5.0\]"),
        (CSV | {"numeric": {"age": [0, float("inf")]}}, r"data.numeric.age to be a finite number"),
        (CSV | {"categorical": {"sex": []}}, r"data.categorical.sex to list its values"),
        (CSV | {"categorical": {"sex": ["f", "f"]}}, r"data.categorical.sex to list its values, each once"),
        (CSV | {"categorical": {"a": ["x"]}, "numeric": {"a": [0, 1]}}, r"Column 'a' has two roles"),
        (CSV | {"ignore": ["label"]}, r"Column 'label' has two roles"),
        (CSV | {"missing": "skip"}, r'Expected data.missing to be "refuse", "drop" or a number, got \'skip\''),
        (CSV | {"missing": float("nan")}, r"Expected data.missing to be a finite number"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(values, sentence):
    with pytest.raises(ValidationError, match=sentence) as refusal:
        DataSection.model_validate(values)
    assert refusal.value.error_count() == 1
