"""The [data] table: defaults that work, and one sentence for what cannot."""

import pytest
from pydantic import ValidationError

from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.experiment.data import DataSection


def test_every_key_has_a_default():
    section = DataSection()
    assert (section.name, section.clients, section.partition, section.shards_per_client) == ("digits", 20, "iid", 10)


def test_a_section_survives_being_written_and_read_again():
    said = {"name": "csv", "numeric": {"age": [0, 120]}, "missing": 0, "ignore": ("id",), "deep": [[1], ["a"]]}
    section = DataSection.model_validate(said)
    assert DataSection.model_validate_json(section.model_dump_json()) == section
    assert section.options() == {"deep": [[1], ["a"]], "ignore": ["id"], "missing": 0, "numeric": {"age": [0, 120]}}


def test_a_section_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        DataSection().clients = 3  # pyright: ignore


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"partition": "dirichlett"}, r"Expected data.partition to be one of 'iid', .*Did you mean 'dirichlet'\?"),
        ({"clients": 0}, r"Expected data.clients to be a whole number of at least 1, got 0."),
        ({"clients": True}, r"Expected data.clients to be a whole number of at least 1, got true."),
        ({"clients": "many"}, r"Expected data.clients to be a whole number of at least 1, got 'many'."),
        ({"name": 3}, r"Expected data.name to be a text, got 3."),
        ({"alpha": 0}, r"Expected data.alpha to be a number above 0, got 0."),
        ({"alpha": float("nan")}, r"Expected data.alpha to be a number above 0, got nan"),
        ({"min_size": 0}, r"Expected data.min_size to be a whole number of at least 1, got 0"),
        ({"shards_per_client": 0}, r"Expected data.shards_per_client to be a whole number of at least 1, got 0"),
        ({"examples_per_client": 0}, r"Expected data.examples_per_client to be a whole number of at least 1, got 0"),
        (
            {"partition": "dirichlet", "examples_per_client": 5},
            r"Expected data.examples_per_client >= data.min_size = 10, got 5",
        ),
        (
            {"partition": "shards", "examples_per_client": 5},
            r"Expected data.examples_per_client >= data.shards_per_client = 10, got 5",
        ),
        ({"two words": 3}, r"Expected the keys of \[data\] to be names such as learning_rate, got 'two words'."),
        ({"width": object()}, r"Expected data.width to be a text, a number, or a list or table of them."),
        ({"width": [[[[[1]]]]]}, r"Expected data.width to be a text, a number, or a list or table of them."),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(values, sentence):
    with pytest.raises(BadInput, match=sentence) as refusal:
        Experiment(data=values)
    assert "\n" not in str(refusal.value)
