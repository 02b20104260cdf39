import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.experiment.file import dumps, parse_value, shipped

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", shipped())
def test_shipped_experiments_load_and_their_text_reads_back_the_same(name):
    experiment = Experiment.load(name)
    assert Experiment(**tomllib.loads(experiment.toml())) == experiment
    assert experiment.name == name


def test_settings_change_single_keys_and_an_empty_one_takes_it_back():
    changed = Experiment.load(
        "digits", ("train.rounds=3", "privacy.epsilon=[1, 2.5]", "train.sampling_rate=", "name=mine")
    )
    assert changed.train.rounds == 3
    assert changed.privacy.epsilon == (1.0, 2.5)
    assert changed.train.sampling_rate is None
    assert changed.name == "mine"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.round=3", "Unknown key 'train.round'. Did you mean 'train.rounds'"),
        ("tarin.rounds=3", "Did you mean 'train'"),
        ("privacy.epsilon.zurich=0.01", "alone: give the whole of privacy.epsilon, a table as {zurich = ..., ...}."),
        ("train.rounds=0", "train.rounds to be a whole number of at least 1, got 0"),
        ("train.learning_rate=-1", "train.learning_rate to be a number above 0"),
        ("train.learning_rate=nan", "got nan"),
        ("train.learning_rate=1e300", "at most 3.4e+38"),
        ("train.batch_size=10", "say the same thing twice"),
        ("privacy.epsilon=0", "privacy.epsilon > 0"),
        ("privacy.delta=1", "privacy.delta to be a number above 0 and below 1, got 1"),
        ("privacy.clip=0", "privacy.clip to be a number of at least 1e-12"),
        (
            "privacy.kind=locale",
            "one of none, local, central, distributed, package.module:name; got 'locale'. Did you mean 'local'?",
        ),
        ("protect.kind=paillier", "protect.kind"),
        ("rounds", "section.key=value"),
    ],
)
def test_bad_settings_are_refused_in_one_sentence_that_names_the_key(setting, message):
    with pytest.raises(BadInput) as refusal:
        Experiment.load("digits", (setting,))
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_noise_given_against_the_strategy_is_refused():
    with pytest.raises(BadInput, match="spread"):
        Experiment(privacy={"kind": "local", "epsilon": 1, "noise_multiplier": 1, "strategy": "spread"})
    with pytest.raises(BadInput, match=r"privacy\.kind is not"):
        Experiment(privacy={"epsilon": 3.0})
    with pytest.raises(BadInput, match="inf sets no limit"):
        Experiment(privacy={"kind": "local"})


def test_a_missing_or_broken_file_is_refused(tmp_path):
    with pytest.raises(BadInput, match="neither a file nor a shipped experiment"):
        Experiment.load("digit")
    (tmp_path / "hospitals.toml").write_text("")
    with pytest.raises(BadInput, match=r"Did you mean '.*/hospitals\.toml'\?"):
        Experiment.load(tmp_path / "hospital.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[train\nrounds = 3")
    with pytest.raises(BadInput, match="not valid TOML"):
        Experiment.load(broken)


def test_an_experiment_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        Experiment().train.rounds = 3


VALUES = st.recursive(
    st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(min_size=1), VALUES, max_size=4))
def test_every_table_reads_back_as_it_was_written(table):
    assert tomllib.loads(dumps({"table": table}))["table"] == table


def test_words_and_values_on_the_command_line():
    assert parse_value("pfa-plus") == "pfa-plus"
    assert parse_value("1e-5") == 1e-5
    assert parse_value('{file = "a.csv"}') == {"file": "a.csv"}


def test_an_experiment_is_read_and_a_misspelt_key_refused_before_anything_heavy_is_imported():
    """Seconds are this machine's; what they go into is not."""
    code = (
        "import sys\nfrom tacit import Experiment\nfrom tacit.errors import BadInput\n"
        "Experiment.load('digits-encrypted').toml()\n"
        "try:\n    Experiment.load('digits', ('train.rund=3',))\n"
        "except BadInput as refusal: print(refusal)\n"
        "print([name for name in ('torch', 'numpy', 'scipy', 'flwr') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines() == ["Unknown key 'train.rund'. Did you mean 'train.rounds'?", "[]"]
