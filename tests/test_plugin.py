"""Parts that Tacit does not know: one new file each, none edited; and one sentence for whatever is wrong with them."""

import functools
import re
import sys
from dataclasses import dataclass, field
from typing import Literal

import pytest
import ready
import torch

import tacit
from tacit import plugin
from tacit.cli.app import main
from tacit.deploy.operate.site_process import run_site
from tacit.deploy.site.consent import departures, digest
from tacit.engine.ledgers import population_id
from tacit.engine.release import experiment_text
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.lab.grid import compare

TRIMMED = {"rule": "somebody:trimmed_mean", "beta": 0.25}
SMALL = {
    "name": "small",
    "data": {"clients": 4, "examples_per_client": 20},
    "train": {"rounds": 2, "local_steps": 1},
    "run": {"workers": 1},
}


def small(**changes):
    return Experiment(**SMALL | {name: SMALL.get(name, {}) | change for name, change in changes.items()})


# --- each part is one new file ---


def test_somebodys_rule_runs_with_its_option(tmp_path):
    history = tacit.run(small(aggregate=TRIMMED), out=tmp_path / "run", page=False)
    assert [record["cut"] for record in history.rounds] == [1, 1]
    assert Experiment.load(tmp_path / "run" / "experiment.toml").aggregate.options() == {"beta": 0.25}


def test_somebodys_option_can_be_compared(tmp_path):
    vary = {"aggregate.rule": ["mean", TRIMMED["rule"]], "aggregate.beta": [0.1, 0.25]}
    with ready.workers():
        rows = compare({**SMALL, "train": {"rounds": 1, "local_steps": 1}}, vary, seeds=1, out=tmp_path / "out", jobs=1)
    assert [row.cell.varied for row in rows] == [
        {"aggregate.rule": "mean", "aggregate.beta": None},
        {"aggregate.rule": "somebody:trimmed_mean", "aggregate.beta": 0.1},
        {"aggregate.rule": "somebody:trimmed_mean", "aggregate.beta": 0.25},
    ]
    assert all(len(row.runs) == 1 and row.runs[0].summary for row in rows)


def test_somebodys_source_model_and_writer_run_with_their_options(tmp_path):
    mine = {
        "data": {"clients": 3, "name": "somebody:stripes", "rows": 30, "height": 5},
        "model": {"name": "somebody:wide", "width": 5},
        "run": {"workers": 1, "writers": ["somebody:diary"]},
    }
    history = tacit.run(Experiment(**SMALL | mine | {"data": mine["data"]}), out=tmp_path / "run", page=False)
    assert sum(p.numel() for p in history.model.parameters()) == 3 * 5 + 5 + 5 * 3 + 3
    assert len((tmp_path / "run" / "diary.txt").read_text().splitlines()) == 2


def test_options_are_part_of_what_noise_is_keyed_by_and_of_what_a_site_accepts():
    one, other = small(aggregate=TRIMMED), small(aggregate=TRIMMED | {"beta": 0.1})
    assert experiment_text(one) != experiment_text(other)
    assert digest(one) != digest(other)
    assert departures(other)["aggregate.beta"] == 0.1
    data = {"name": "somebody:stripes"}
    assert experiment_text(small(data=data)) != experiment_text(small(data=data | {"height": 2}))
    assert experiment_text(small(data=data)) == experiment_text(small(data=data | {"height": 1}))


def test_an_option_that_says_the_default_leaves_the_population_as_it_is():
    ids = []
    for options in ({}, {"height": 1}, {"height": 2}):
        experiment = Experiment(**SMALL | {"data": {"clients": 3, "name": "somebody:stripes"} | options})
        ids.append(population_id(experiment, tacit.engine.assemble.build(experiment).population))
    assert ids[0] == ids[1] != ids[2]


def test_reading_an_experiment_imports_nothing(tmp_path):
    for section in ("data", "model"):
        Experiment(**{section: {"name": "antigravity:fly", "speed": 3}})
    file = tmp_path / "a.toml"
    file.write_text('[aggregate]\nrule = "antigravity:fly"\nspeed = 3\n')
    assert Experiment.load(file, ("aggregate.speed=4", "run.writers=['antigravity:fly']")).aggregate.options() == {
        "speed": 4
    }
    assert "antigravity" not in sys.modules


# --- and one sentence for what is wrong with it ---

WRONG = {
    "aggregate.rule=somebody:trimmed_mean aggregate.bta=0.1": "Unknown key 'aggregate.bta'. Did you mean 'aggregate.beta'?",
    "aggregate.rule=somebody:trimmed_mean aggregate.beta=much": "Expected aggregate.beta to be a number, got 'much'.",
    "aggregate.rule=somebody:trimmed_mean aggregate.beta=true": "Expected aggregate.beta to be a number, got true.",
    "aggregate.rule=somebody:trimmed_mean": "aggregate.beta is missing: trimmed_mean cannot be made without it.",
    "aggregate.rule=somebody:trimmed_mean aggregate.beta=0.7": "Expected 0 <= aggregate.beta < 0.5, got 0.7.",
    "aggregate.rule=somebody:raising": (
        "raising, which [aggregate] names, cannot be made (ZeroDivisionError: by beta)."
    ),
    "aggregate.rule=somebody:no_rule": (
        "Expected aggregate.rule = 'somebody:no_rule' to make a tacit.algorithms.Rule, got a int."
    ),
    "aggregate.rule=nobody:rule": (
        "aggregate.rule = 'nobody:rule' cannot be imported (ModuleNotFoundError: No module named 'nobody'): what is installed was"
        " searched, and then the current folder, HERE."
    ),
    "aggregate.rule=somebody:number": (
        "Expected aggregate.rule = 'somebody:number' to name a class or a function, and somebody has none named 'number'."
    ),
    "aggregate.rule=somebody:": "Expected aggregate.rule to be package.module:name, got 'somebody:'.",
    "aggregate.rule=pfa aggregate.split=kmean": (
        "Expected aggregate.split to be one of 'gmm', 'kmeans' or 'top'; got 'kmean'. Did you mean 'kmeans'?"
    ),
    "model.width=3": "Unknown key 'model.width'. Valid keys: name, lora, seed, start.",
    "model.name=somebody:wide model.width=3.5": "Expected model.width to be a whole number, got 3.5.",
    "model.name=somebody:wide model.classes=3": "Unknown key 'model.classes'. Valid keys: name, lora, seed, start, width.",
    "data.name=somebody:stripes data.hight=3": "Unknown key 'data.hight'. Did you mean 'data.height'?",
    "data.client=3": "Unknown key 'data.client'. Did you mean 'data.clients'?",
    "run.writers=['somebody:chat']": "run.channel is missing: chat cannot be made without it.",
    "metric.choose=lifft": (
        "Expected metric.choose to be one of accuracy, auroc, average-precision, balanced-accuracy, brier, f1, log-loss, mae,"
        " perplexity, r2, rmse or package.module:name; got 'lifft'."
    ),
    "metric.choose=somebody:lift": (
        "Expected metric.choose = 'somebody:lift' to name a class or a function, and somebody has none named 'lift'."
    ),
    "metric.choose=somebody:no_rule": (
        'metric.choose = \'somebody:no_rule\' is no metric: it needs a call and `better`, "higher" or "lower".'
    ),
    "metric.choose=somebody:moody": (
        "metric.choose = 'somebody:moody' cannot be computed on these test rows (RuntimeError: not today)."
    ),
    "run.writers=['tensorbord']": (
        "Expected run.writers to be one of mlflow, prometheus, tensorboard, wandb or package.module:name; got 'tensorbord'."
        " Did you mean 'tensorboard'?"
    ),
}


@pytest.mark.parametrize("settings", WRONG)
def test_bad_input_is_one_sentence_and_exit_code_2_before_anything_is_written(tmp_path, monkeypatch, capsys, settings):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    line = ["tacit", "run", "digits", "--set", "privacy.kind=none", "--set", "privacy.epsilon=", "--out", "here"]
    monkeypatch.setattr(sys, "argv", line + [word for one in settings.split() for word in ("--set", one)])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert (ended.value.code, said.err.strip().replace(str(tmp_path), "HERE")) == (2, WRONG[settings])
    assert not (tmp_path / "here").exists()


def test_a_module_that_breaks_while_it_is_imported_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "breaks.py").write_text("raise RuntimeError('a first line\\nand a second')\n")
    (tmp_path / "garbled.py").write_text("def (\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BadInput, match=r"cannot be imported \(RuntimeError: a first line and a second\)"):
        plugin.find("tacit.algorithms.rules", "breaks:rule", key="aggregate.rule")
    with pytest.raises(BadInput, match=r"cannot be imported \(SyntaxError"):
        plugin.find("tacit.algorithms.rules", "garbled:rule", key="aggregate.rule")


# --- where modules are searched ---


def test_a_module_that_is_nowhere_says_which_folder_was_searched(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(
        BadInput, match=r"No module named 'nobody'\): what is installed .*, and not the current folder\.$"
    ):
        plugin.find("tacit.algorithms.rules", "nobody:rule", key="aggregate.rule")
    plugin.search_here()
    (tmp_path / "wanting.py").write_text("import a_package_that_is_not_there")
    with pytest.raises(BadInput, match=rf"'mypackage'\): what is installed .*, {re.escape(str(tmp_path))}\.$"):
        plugin.find("tacit.algorithms.rules", "mypackage.rules:rule", key="aggregate.rule")
    with pytest.raises(BadInput, match=r"No module named 'a_package_that_is_not_there'\)\.$"):
        plugin.find("tacit.algorithms.rules", "wanting:rule", key="aggregate.rule")


def test_the_current_folder_is_searched_last_and_only_where_it_is_asked_for(tmp_path, monkeypatch):
    (tmp_path / "beside.py").write_text("def net(): ...\n")
    (tmp_path / "json.py").write_text("def net(): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])  # as `python -m` has it
    plugin.only_installed()
    with pytest.raises(BadInput, match="No module named 'beside'"):
        plugin.find("tacit.parts.models", "beside:net", key="model.name")
    plugin.search_here()
    plugin.search_here()
    assert sys.path.count(str(tmp_path)) == 1
    assert sys.path[-1] == str(tmp_path)
    assert plugin.find("tacit.parts.models", "beside:net", key="model.name").__name__ == "net"
    monkeypatch.delitem(sys.modules, "beside")


def test_a_site_never_searches_the_folder_that_it_is_started_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])  # as `python -m` has it
    with pytest.raises(BadInput, match=r"holds no site\.toml"):
        run_site(tmp_path)
    assert str(tmp_path) not in sys.path


def test_a_folder_that_pythonpath_names_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    plugin.search_here()
    assert sys.path[0] == str(tmp_path)


# --- options ---


@dataclass(frozen=True)
class Part:
    names: tuple[str, ...] = ()
    limits: dict[str, tuple[float, float]] = field(default_factory=dict)
    how: Literal["fast", "slow"] | None = None
    whole: bool = False


def test_values_get_the_types_of_a_dataclass():
    said = {"names": ["a"], "limits": {"x": [0, 1]}, "whole": True}
    assert plugin.make(Part, said, table="part") == Part(("a",), {"x": (0.0, 1.0)}, whole=True)


def test_options_without_types_and_of_any_name_are_taken_as_they_are():
    def untyped(size, **others):
        return size, others

    assert plugin.make(untyped, {"size": "3", "colour": [1]}, table="part") == ("3", {"colour": [1]})
    assert plugin.make(functools.partial(untyped, 3), {"colour": 1}, table="part") == (3, {"colour": 1})


def test_what_the_caller_gives_is_no_option():
    def part(*, seed: int, size: int = 1):
        return seed, size

    assert plugin.make(part, {"size": 2}, table="part", given={"seed": 7, "unused": 0}) == (7, 2)
    with pytest.raises(BadInput, match=r"Unknown key 'part\.seed'"):
        plugin.make(part, {"seed": 8}, table="part", given={"seed": 7})


def test_a_type_that_no_text_says_is_refused():
    def part(*, weights: torch.Tensor | None = None):
        return weights

    assert plugin.make(part, {}, table="part") is None
    with pytest.raises(BadInput, match=r"part\.weights cannot be set"):
        plugin.make(part, {"weights": 3}, table="part")
