"""Attacks are found by name, keep what they found, and refuse what is no simulation."""

import json
import sys

import pytest
import torch
from typer.testing import CliRunner

from tacit import plugin
from tacit.cli.app import app
from tacit.cli.planning import simulated
from tacit.errors import BadInput, RunExists
from tacit.experiment import Experiment
from tacit.lab import attacks
from tacit.simulation import run

COUNTING = "foreign_attacks:counting"
SMALL = {
    "data": {"clients": 3, "examples_per_client": 20},
    "train": {"rounds": 2, "local_steps": 1},
    "run": {"workers": 1},
}


def test_every_attack_that_ships_is_a_file_of_its_name_with_its_paper_on_top():
    for name in plugin.names(attacks.ROOM):
        made = plugin.find(attacks.ROOM, name, key="the attack")
        assert isinstance(made, type), name
        assert issubclass(made, attacks.Attack), name
        assert "arXiv" in (sys.modules[made.__module__].__doc__ or ""), name


def test_an_unknown_attack_an_unknown_option_and_what_is_no_attack_are_refused():
    with pytest.raises(BadInput, match="Expected the attack to be one of"):
        attacks.load("membresia")
    with pytest.raises(BadInput, match=r"Did you mean 'with.models'"):
        attacks.load(COUNTING, modles=3)
    with pytest.raises(BadInput, match=r"tacit.lab.attacks.Attack, got a object"):
        attacks.load("foreign_attacks:no_attack")


def test_a_finding_is_kept_with_its_plots_and_read_again_without_being_made_again(tmp_path):
    experiment = Experiment(**SMALL)
    first = attacks.attack(COUNTING, experiment, out=tmp_path)
    again = attacks.attack(COUNTING, experiment, out=tmp_path)
    assert again == first
    assert again.number("times", "all").value == 1
    record = json.loads((tmp_path / "attack-foreign_attacks-counting.json").read_text("utf-8"))
    assert record["badge"] == "not covered by ε"
    assert attacks.attack(COUNTING, Experiment(**SMALL | {"run": {"workers": 2}}), out=tmp_path) == first


def test_another_experiment_does_not_get_a_finding_and_force_sets_it_aside(tmp_path):
    attacks.attack(COUNTING, Experiment(**SMALL), out=tmp_path)
    other = Experiment(**SMALL | {"model": {"name": "mlp"}})
    with pytest.raises(RunExists, match="another experiment or other options"):
        attacks.attack(COUNTING, other, out=tmp_path)
    with pytest.raises(RunExists, match="another experiment or other options"):
        attacks.attack(COUNTING, Experiment(**SMALL), out=tmp_path, options={"models": 5})
    assert attacks.attack(COUNTING, other, out=tmp_path, force=True).number("times", "all").value == 2
    assert (tmp_path / "attack-foreign_attacks-counting.1.json").is_file()
    (tmp_path / "attack-foreign_attacks-counting.json").write_text("{", "utf-8")
    with pytest.raises(BadInput, match="is damaged"):
        attacks.attack(COUNTING, other, out=tmp_path)


def test_a_shared_ledger_and_rows_from_python_are_refused(tmp_path):
    privacy = {"kind": "local", "epsilon": 3, "ledger": "all.db", "delta_share": 0.1}
    with pytest.raises(BadInput, match=r"leave it out"):
        attacks.attack(COUNTING, Experiment(**SMALL | {"privacy": privacy}), out=tmp_path)
    with pytest.raises(BadInput, match=r"passed from Python"):
        attacks.attack(COUNTING, Experiment(**SMALL | {"data": {"name": "python"}}), out=tmp_path)


def test_the_command_prints_a_table_with_the_badge(tmp_path):
    words = ["attack", COUNTING, "digits", "--with", "models=3", "--out", str(tmp_path / "here")]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    for words in ("counting", "times", "0 to 9", "not covered by ε", "here", "attack-foreign_attacks-counting.json"):
        assert words in done.output


def test_a_runs_folder_is_its_experiment_and_everything_within_a_deployment_is_refused(tmp_path):
    (tmp_path / "mine" / "results").mkdir(parents=True)
    for place in (tmp_path / "mine", tmp_path / "mine" / "results"):
        (place / "experiment.toml").write_text(Experiment(**SMALL).toml(), "utf-8")
    assert simulated(str(tmp_path / "mine"), ["train.rounds=5"]).train.rounds == 5
    for file in ("federation.toml", "site.toml"):
        (tmp_path / "mine" / file).write_text("", "utf-8")
        for source in ("mine", "mine/results", "mine/results/experiment.toml"):
            with pytest.raises(BadInput, match="belongs to a deployment"):
                simulated(str(tmp_path / source), [])
        (tmp_path / "mine" / file).unlink()


@pytest.mark.parametrize("how", [{"workers": 1}, {"workers": 2}, {"workers": 1, "at_once": True}])
def test_a_run_that_is_heard_is_the_same_run_and_every_message_is_heard(tmp_path, how):
    experiment = Experiment(**SMALL | {"run": how})
    heard = []
    first = run(experiment, out=tmp_path / "a", page=False)
    second = run(experiment, out=tmp_path / "b", page=False, hear=lambda *words: heard.append(words))
    state, other = (dict(history.model.named_parameters()) for history in (first, second))
    if not how.get("at_once"):  # a stack is another release every time
        assert all(torch.equal(state[name], other[name]) for name in state)
    assert [round for round, _, _ in heard] == [0, 1]
    assert [[index for index, _ in answers] for _, _, answers in heard] == [[0, 1, 2]] * 2
    size = sum(parameter.numel() for parameter in state.values())
    assert {message.tensors["update"].numel() for _, _, answers in heard for _, message in answers} == {size}
    assert all(told.tensors["params"].numel() == size for _, told, _ in heard)
