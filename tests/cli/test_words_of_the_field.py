"""What others call a thing leads to what it is called here."""

import pytest
from typer.testing import CliRunner

from tacit.cli.app import app
from tacit.experiment import Experiment


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("aggregate.rule=fedavg", "Did you mean 'mean'?"),
        ("aggregate.rule=FedProx", "Here that is train.proximal = 0.1."),
        ("privacy.unit=patient", "Did you mean 'person'?"),
        ("privacy.kind=dp-sgd", "Did you mean 'local'?"),
        ("protect.kind=secagg", "Did you mean 'masks'?"),
        ("model.name=logistic_regression", "Did you mean 'logr'?"),
        ("train.optimizer=adam", "Here that is train.server_optimizer"),
        ("epsilon=3", "Did you mean 'privacy.epsilon=3'?"),
        ("privacy.epsilon=three", "a number, as in 3.0, a list with one for each client"),
    ],
)
def test_a_word_of_the_field_leads_to_ours(setting, hint):
    assert hint in str(CliRunner().invoke(app, ["run", "digits", "--set", setting]).exception)


@pytest.mark.parametrize(
    "rule", ["proximal=0.1", "control=scaffold", "server_optimizer=momentum", "server_optimizer=adam"]
)
def test_every_setting_that_a_hint_names_is_one(rule):
    Experiment.load("digits", (f"train.{rule}", "privacy.kind=none", "train.clients_per_round="))
