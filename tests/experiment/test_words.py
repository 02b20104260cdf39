"""A wrong value for any key is refused in one sentence that names the key as it was written, in words of Tacit's own."""

import contextlib

import pytest
from wrong_values import WRONG, foreign_words

from tacit import plugin
from tacit.data.sources import source
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.experiment.data import DataSection
from tacit.experiment.file import keys, sections

BESIDE = {  # what keys of one kind need
    "privacy": [
        {"kind": kind, "epsilon": 1.0, **more}
        for kind, more in (("local", {}), ("central", {}), ("central", {"sampler": "cyclic"}), ("distributed", {}))
    ],
    "protect": [{"kind": "paillier"}],
}


NESTED = (
    "train.schedule",
    "train.local_steps",
    "train.server_optimizer",
    "privacy.query_shares",
    "privacy.adaptive_clip",
    "protect.key",
)  # tables with keys of their own
TABLES, KEYS = list(sections()), keys()


def refused(make):
    """The sentence, or nothing where the value can stand."""
    with contextlib.suppress(BadInput):
        make()
        return None
    with pytest.raises(BadInput) as refusal:
        make()
    return str(refusal.value)


def hold(sentence, key):
    assert key in sentence, sentence
    assert key in NESTED or f"{key}." not in sentence.removesuffix("."), sentence
    assert not foreign_words(sentence), sentence
    assert "\n" not in sentence
    assert sentence.endswith((".", "?", ")")), sentence


def test_the_keys_are_found():
    assert len(KEYS) > 80
    assert {"data.clients", "privacy.epsilon", "train.rounds", "attack.target", "run.seed"} <= set(KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_a_wrong_value_for_a_key_of_the_experiment_is_refused_in_our_words(key):
    table, _, name = key.partition(".")
    sentences = []
    for value in WRONG:
        for beside in ({}, *BESIDE.get(table, [])):
            around = {"train": {"clients_per_round": 1}} if table == "privacy" else {}
            around |= {"privacy": BESIDE["privacy"][-1]} if "paillier" in beside.values() else {}
            sentence = refused(lambda: Experiment(**around | {table: {**beside, name: value}}))  # noqa: B023 - called here
            if sentence is not None:
                hold(sentence, key)
                sentences.append(sentence)
    assert sentences  # no key takes everything


@pytest.mark.parametrize("table", ["name", *TABLES])
@pytest.mark.parametrize("value", [3, True, [1], 2.5])
def test_what_is_no_table_is_refused_in_our_words(table, value):
    sentence = refused(lambda: Experiment(**{table: value}))
    assert sentence is not None
    hold(sentence, table)


def test_a_setting_for_a_table_that_is_none_is_refused(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("train = 3\n", "utf-8")
    with pytest.raises(BadInput, match=r"^Expected train to be a table, got 3\.$"):
        Experiment.load(file, ("train.rounds=3",))


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (
            "privacy.epsilon=[1, 'x']",
            "Expected privacy.epsilon to be a number, a list of numbers, a text, a table of numbers or a table of texts, got 'x' as"
            " item 2.",
        ),
        (
            "privacy.epsilon=[1,x]",
            "Expected privacy.epsilon to be a number, a list of numbers, a text, a table of numbers or a table of texts, got 'x' as"
            " item 2.",
        ),
        ("privacy.epsilon={zurich = [1]}", "got [1] under zurich."),
        ("train.rounds=nan", "Expected train.rounds to be a whole number of at least 1, got nan."),
        ("run.seed=-1", "Expected run.seed to be a whole number of at least 0, got -1."),
        ("attack.target=2.5", "Expected attack.target to be a text or a whole number, got 2.5."),
        ("train.lr=0.1", "Unknown key 'train.lr'. Did you mean 'train.learning_rate'?"),
        ("train.bs=10", "Unknown key 'train.bs'. Did you mean 'train.batch_size'?"),
        ("train.rounds=true", "Expected train.rounds to be a whole number of at least 1, got true."),
    ],
)
def test_the_sentence_says_what_may_stand_there(setting, words):
    with pytest.raises(BadInput) as refusal:
        Experiment.load("digits", (setting,))
    assert words in str(refusal.value)


ROOMS = {
    "tacit.data.sources": "data",
    "tacit.algorithms.rules": "aggregate",
    "tacit.parts.models": "model",
    "tacit.engine.malicious": "attack",
}
GIVEN = ("input_shape", "classes", "population", "seed", "rounds")


def parts():
    for room, table in ROOMS.items():
        for name in plugin.names(room):
            with contextlib.suppress(BadInput):
                factory = plugin.find(room, name, key=table)
                for option, each in plugin.options(factory, given=GIVEN).items():
                    yield pytest.param(f"{table}.{option}", each.hint, id=f"{name}-{table}.{option}")


@pytest.mark.parametrize(("key", "hint"), list(parts()))
def test_a_wrong_value_for_an_option_of_a_part_is_refused_in_our_words(key, hint):
    for value in WRONG:
        sentence = refused(lambda: plugin._value(key, value, hint))  # noqa: B023 - called here
        if sentence is not None:
            hold(sentence, key)


def test_an_option_of_a_table_of_values_names_the_column_that_is_wrong():
    said = DataSection.model_validate(
        {"name": "csv", "path": "records.csv", "classes": ["no", "yes"], "missing": {"age": [1]}}
    )
    with pytest.raises(BadInput) as refusal:
        source(said)
    hold(str(refusal.value), "data.missing")
    assert "under age" in str(refusal.value)


def test_a_range_that_is_none_is_answered_with_the_form_of_one():
    said = {"name": "csv", "path": "records.csv", "classes": ["no", "yes"], "numeric": {"crp": "0-80"}}
    with pytest.raises(BadInput, match=r"data.numeric to be a table of \[low, high\], .*, got '0-80' under crp\.$"):
        source(DataSection.model_validate(said))


def test_a_misspelt_column_of_missing_is_named():
    said = {"name": "csv", "path": "records.csv", "classes": ["no", "yes"], "numeric": {"crp": [0, 80]}}
    with pytest.raises(BadInput, match=r"data.missing names 'crpp', which no other key .* Did you mean 'crp'\?"):
        source(DataSection.model_validate(said | {"missing": {"crpp": 10}}))
