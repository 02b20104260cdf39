"""An option that says nothing, or says it in the wrong place, is refused in one sentence before anything is done."""

import pytest
from typer.testing import CliRunner

from tacit.cli.app import app

CENTRAL = ("--set", "privacy.kind=central", "--set", "privacy.epsilon=8", "--set", "train.clients_per_round=5")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tune", "digits", *CENTRAL, "--vary", "train.learning_rate=0.1,0.4", "--runs", "0"), "2 to 1,000,000 runs"),
        (
            ("tune", "digits", *CENTRAL, "--set", "privacy.sampler=cyclic", "--vary", "train.learning_rate=0.1,0.4"),
            "sampler",
        ),
        (("tune", "digits", *CENTRAL, "--vary", "privacy.sampler=poisson,cyclic"), "sampler"),
        (("plan", "digits", "epsilon=3"), "or use --set"),
        (("attack", "inversion", "digits", "--with", "records=0"), "with.records >= 1"),
        (("attack", "inversion", "digits", "--with", "models=3"), "Unknown key 'with.models'"),
    ],
)
def test_what_was_typed_is_named_and_nothing_is_written(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, words)
    assert said in str(done.exception) + done.output
    assert done.exit_code != 0
    assert list(tmp_path.iterdir()) == []
