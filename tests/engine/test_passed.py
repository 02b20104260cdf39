"""`tacit.run` with data, a model and a rule from Python: the same run as from files, and never one that is not theirs."""

import json
import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass

import numpy as np
import pytest
import somebody
import torch
from safetensors.torch import load_file
from torch import nn
from typer.testing import CliRunner

import tacit
from tacit.algorithms import Applied, Rule
from tacit.algorithms.rules.mean import mean
from tacit.cli.app import app
from tacit.data.given import digest_of
from tacit.engine.assemble import build, written
from tacit.engine.ledgers import population_id
from tacit.errors import BadInput, LedgerError, NeedsRows, TacitError
from tacit.lab.grid import compare
from tacit.privacy.ledger.disk import key_of, keyed
from tacit.simulation import with_passed
from tacit.wire import state_digest

NAMES = ("north", "coast", "valley")
RNG = np.random.default_rng(7)
X = RNG.normal(size=(180, 4)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] > 0).astype(int)
WHOSE = np.array(NAMES)[np.arange(180) % 3]
TEST = (X[:40] + 0.125, Y[:40])


def rows(**change):
    said = {"x": X, "y": Y, "clients": WHOSE, "classes": ["no", "yes"], "test": TEST} | change
    return tacit.Dataset(said.pop("x"), said.pop("y"), **said)


def net(seed=0, width=5):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))


@dataclass(frozen=True)
class shrunken(Rule):
    """The mean, a little shorter: a rule as a researcher writes one in a notebook."""

    factor: float = 0.9
    sees = "sums"
    needs = ()

    def weight(self, facts):
        return 1.0

    def apply(self, memory, gathered):
        return Applied(self.factor * gathered.mean(), memory)


def experiment(**change):
    said = {
        "name": "passed",
        "train": {"rounds": 3, "local_steps": 2, "sampling_rate": 0.5},
        "privacy": {"kind": "local", "epsilon": {"north": 2.0, "coast": 4.0, "valley": 8.0}, "delta": 1e-4},
        "run": {"workers": 1},
    }
    return tacit.Experiment(
        **{name: said.get(name, {}) | change.get(name, {}) for name in (*said, *change) if name != "name"}
    )


PARTS = {"data": rows(), "model": net(), "rule": shrunken()}


def test_rows_a_model_and_a_rule_from_python_run_and_every_client_pays_its_own(tmp_path):
    seen = []
    history = tacit.run(experiment(), **PARTS, out=tmp_path, observe=seen.append)
    assert [record["round"] for record in seen] == [0, 1, 2]
    assert {entry["client"] for entry in history.ledger.entries()} == set(NAMES)
    assert 1.9 < history.guarantee.epsilon_min <= 2 < 7.6 < history.guarantee.epsilon_max <= 8
    said = tomllib.loads((tmp_path / "experiment.toml").read_text("utf-8"))
    assert (said["data"]["name"], said["model"]["name"], said["aggregate"]["rule"]) == ("python",) * 3
    assert said["data"]["partition"] == "natural"
    assert said["data"]["passed"] == PARTS["data"].passed
    assert said["aggregate"]["passed"].startswith("shrunken, ")
    assert (tmp_path / "report.html").exists()


def test_the_start_is_the_models_own_weights_and_the_model_is_left_as_it_was(tmp_path):
    model = net().eval()
    before = nn.utils.parameters_to_vector(model.parameters()).clone()
    parts = build(with_passed(experiment(), data=rows(), model=model))
    assert torch.equal(parts.params, before.detach())
    assert parts.model.training
    history = tacit.run(experiment(), data=rows(), model=model, out=tmp_path, page=False)
    assert torch.equal(nn.utils.parameters_to_vector(model.parameters()), before)
    assert not model.training
    assert not torch.equal(nn.utils.parameters_to_vector(history.model.parameters()), before)


def test_the_rule_that_was_passed_is_the_one_that_combines(tmp_path):
    """Halving every update of the mean halves how far the first round moves."""
    first = {}
    for factor in (1.0, 0.5):
        parts = build(with_passed(experiment(), data=rows(), model=net(), rule=shrunken(factor)))
        state = parts.algorithm.init(parts.params)
        applied = parts.algorithm.server.rule.apply(state.memory, _gathered(parts))
        first[factor] = applied.update
    assert torch.allclose(first[0.5], 0.5 * first[1.0])
    assert float(first[1.0].norm()) > 0


def _gathered(parts):
    gathered = parts.algorithm.server.rule.start()
    gathered.add(1.0, torch.ones_like(parts.params))
    return gathered


def test_a_factory_gets_the_shape_and_the_classes_and_takes_the_tables_options(tmp_path):
    def wide(*, input_shape, classes, width: int = 3):
        return nn.Sequential(nn.Linear(input_shape[0], width), nn.ReLU(), nn.Linear(width, classes))

    def parts(factory, seed=0, **model):
        return build(with_passed(experiment(model=model, run={"seed": seed}), data=rows(), model=factory))

    assert parts(wide, width=7).params.numel() == 4 * 7 + 7 + 7 * 2 + 2
    assert torch.equal(parts(wide).params, parts(wide).params)
    assert not torch.equal(parts(wide).params, parts(wide, seed=1).params)
    with pytest.raises(BadInput, match=r"Unknown key 'model.wdth'. Did you mean 'model.width'\?"):
        parts(wide, wdth=7)

    class Own(nn.Module):
        def __init__(self, classes):
            super().__init__()
            self.last = nn.Linear(4, classes)

        def forward(self, x):
            return self.last(x)

    assert parts(Own).params.numel() == 10
    assert parts(lambda: nn.Linear(4, 2)).params.numel() == 10


def test_rows_without_clients_are_dealt_out_as_the_experiment_says(tmp_path):
    data = rows(clients=None)
    asked = experiment(data={"clients": 4, "partition": "dirichlet"}, privacy={"epsilon": 3.0})
    assert len(build(with_passed(asked, data=data)).population) == 4
    with pytest.raises(BadInput, match=r'data.partition = "natural" needs clients: name them in the Dataset'):
        tacit.run(experiment(data={"partition": "natural"}), data=data, out=tmp_path)


@pytest.mark.parametrize("after", [1, 2])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, after):
    def stop(record):
        if record["round"] + 1 == after:
            raise KeyboardInterrupt

    tacit.run(experiment(), **PARTS, out=tmp_path / "whole", page=False)
    with pytest.raises(KeyboardInterrupt):
        tacit.run(experiment(), **PARTS, out=tmp_path / "cut", observe=stop, page=False)
    same = {"data": rows(), "model": net(), "rule": shrunken()}
    tacit.run(experiment(), **same, out=tmp_path / "cut", resume=True, page=False)
    whole, cut = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    # the file of the run is enough to say what was asked: what was passed is passed again
    again = tacit.Experiment.load(tmp_path / "cut" / "experiment.toml")
    tacit.run(again, **same, out=tmp_path / "cut", resume=True, page=False)


OTHERS = {
    "another row": {"data": rows(x=np.where(np.arange(180)[:, None] == 3, X + 1, X))},
    "another label": {"data": rows(y=np.where(np.arange(180) == 3, 1 - Y, Y))},
    "other hands": {"data": rows(clients=np.roll(WHOSE, 1))},
    "other test rows": {"data": rows(test=(X[:41], Y[:41]))},
    "another order": {"data": rows(x=X[::-1], y=Y[::-1], clients=WHOSE[::-1])},
    "other weights": {"model": net(1)},
    "another structure": {"model": nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))},
    "another option of the rule": {"rule": shrunken(0.8)},
    "another rule": {"rule": mean()},
    "no data": {"data": None},
    "no model": {"model": None},
    "no rule": {"rule": None},
}


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    out = tmp_path_factory.mktemp("begun")
    tacit.run(experiment(), **PARTS, out=out, page=False)
    return out


@pytest.mark.parametrize("other", OTHERS)
def test_a_run_does_not_go_on_with_anything_else(begun, other):
    before = {path.name: path.read_bytes() for path in begun.iterdir() if path.is_file()}
    argument = next(iter(OTHERS[other]))
    with pytest.raises(
        BadInput, match=rf"was started with (an)?other {argument} \(.*\): pass what it began with"
    ) as caught:
        tacit.run(experiment(), **PARTS | OTHERS[other], out=begun, resume=True)
    assert "\n" not in str(caught.value)
    assert before == {path.name: path.read_bytes() for path in begun.iterdir() if path.is_file()}


def test_a_run_from_files_does_not_go_on_with_rows_from_python(tmp_path):
    plain = experiment(privacy={"epsilon": 3.0})
    tacit.run(plain, out=tmp_path, page=False)
    with pytest.raises(BadInput, match=r"was started with no data from Python \(digits; now 180 rows"):
        tacit.run(plain, data=rows(), out=tmp_path, resume=True)


@pytest.mark.parametrize("other", [name for name in OTHERS if not name.startswith("no ")])
def test_noise_is_keyed_by_what_was_passed(other):
    """Two runs that differ in rows, model or rule share no client's noise, nor the name of a release that is paid."""
    one, two = (build(with_passed(experiment(), **PARTS | change)) for change in ({}, OTHERS[other]))
    starts = [state_digest(parts.algorithm.init(parts.params)) for parts in (one, two)]
    keys = [
        [(parts.releases.client(parts.population[k]), start) for k in range(3)]
        for parts, start in zip((one, two), starts, strict=True)
    ]
    assert (keys[0] == keys[1]) == (other == "other test rows")  # nothing that is released depends on those
    if other != "other test rows":
        assert one.releases.attempt(starts[0]) != two.releases.attempt(starts[1])


def test_a_digest_is_the_same_in_every_process_that_runs_the_same_code():
    text = (
        "import tacit, somebody, torch; from torch import nn; from tacit.engine.assemble import build, written;"
        "from tacit.simulation import with_passed; torch.manual_seed(0);"
        "parts = {'model': nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), 'rule': somebody.trimmed_mean(0.1)};"
        "print(written(build(with_passed(tacit.Experiment(privacy={'kind': 'none'}), **parts))).toml())"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7"}
    words = [sys.executable, "-c", text]
    there = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout
    torch.manual_seed(0)
    parts = {"model": nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), "rule": somebody.trimmed_mean(0.1)}
    here = written(build(with_passed(tacit.Experiment(privacy={"kind": "none"}), **parts))).toml()
    assert there.strip() == here.strip()
    assert 'passed = "trimmed_mean, ' in here


def test_a_ledger_is_shared_by_runs_on_the_same_rows_in_the_same_hands(tmp_path):
    shared = {"ledger": str(tmp_path / "ledger.db"), "delta_share": 0.25}
    tacit.run(experiment(privacy=shared | {"noise_multiplier": 8.0}), data=rows(), out=tmp_path / "a", page=False)
    order = RNG.permutation(180)
    again = rows(x=X[order], y=Y[order], clients=WHOSE[order])
    asked = experiment(privacy=shared | {"noise_multiplier": 8.0}, run={"seed": 5})
    history = tacit.run(asked, data=again, out=tmp_path / "b", page=False)
    assert history.guarantee.others.runs == 1
    for other in ("another row", "other hands", "other test rows"):
        with pytest.raises(LedgerError, match="belongs to other data"):
            tacit.run(asked, **OTHERS[other], out=tmp_path / other, page=False)


def test_the_population_of_dealt_rows_is_theirs_too():
    asked = experiment(data={"clients": 4}, privacy={"epsilon": 3.0})
    ids = []
    for data in (rows(clients=None), rows(clients=None), rows(clients=None, x=X + 1)):
        parts = build(with_passed(asked, data=data))
        ids.append(population_id(parts.experiment, parts.population))
    assert ids[0] == ids[1] != ids[2]


def stored():
    said = {"classes": ["no", "yes"], "test": TEST}
    return tacit.Dataset.from_loader(lambda name: (X[name == WHOSE], Y[name == WHOSE]), NAMES, **said)


def test_rows_that_stay_in_a_file_are_trained_on_from_there(tmp_path):
    """The clients' rows are views of the mapped file: nothing was copied, and the run goes on with the same rows only."""
    data = stored()
    parts = build(with_passed(experiment(), data=data, model=net()))
    assert parts.population.x.data_ptr() == data.rows.x.data_ptr() == parts.dataset.x.data_ptr()
    assert torch.equal(parts.population[1].x, torch.from_numpy(X[WHOSE == "coast"]))
    tacit.run(experiment(run={"workers": 2}), data=data, model=net(), out=tmp_path, page=False)
    tacit.run(experiment(run={"workers": 2}), data=stored(), model=net(), out=tmp_path, resume=True, page=False)
    with pytest.raises(BadInput, match="was started with other data"):
        tacit.run(experiment(run={"workers": 2}), data=rows(), model=net(), out=tmp_path, resume=True, page=False)


def test_rows_that_stay_in_a_file_are_not_cut_to_a_number(tmp_path):
    with pytest.raises(BadInput, match=r"data\.examples_per_client is for rows that Tacit deals out"):
        tacit.run(experiment(data={"examples_per_client": 5}), data=stored(), out=tmp_path)


@pytest.mark.parametrize("kind", ["central", "distributed"])
def test_other_kinds_of_privacy_take_rows_and_models_from_python_too(tmp_path, kind):
    privacy = {"kind": kind, "epsilon": 5.0, "delta": 1e-4}
    rule = {"rule": shrunken()} if kind == "distributed" else {}
    history = tacit.run(experiment(privacy=privacy), data=rows(), model=net(), **rule, out=tmp_path, page=False)
    assert history.guarantee.unit == "client"


def test_a_rule_that_the_kind_of_privacy_cannot_serve_is_refused(tmp_path):
    class rowwise(shrunken):
        sees = "rows"

    refused = (
        ("distributed", rowwise(), NeedsRows, "must see single updates"),
        ("central", shrunken(), BadInput, r"aggregate\.rule must be mean, got 'python'"),
    )
    for kind, rule, error, words in refused:
        privacy = {"kind": kind, "epsilon": 5.0, "delta": 1e-4}
        with pytest.raises(error, match=words):
            tacit.run(experiment(privacy=privacy), data=rows(), rule=rule, out=tmp_path)


@pytest.mark.parametrize(
    ("said", "passed", "sentence"),
    [
        ({}, {"data": X}, r"^Expected data to be a tacit.Dataset, got a ndarray: pass tacit.Dataset\(x, y"),
        ({}, {"model": "mlp"}, r"^Expected model to be a torch module or a function.*model.name"),
        ({}, {"rule": "mean"}, r"^Expected rule to be a tacit.Rule, got 'mean'.*aggregate.rule"),
        ({}, {"rule": mean}, r"^rule=mean is the class: pass a rule, as in rule=mean\(\)"),
        (
            {"data": {"name": "csv", "path": "a.csv"}},
            {"data": rows()},
            r"^data.path is an option of 'csv'.*leave it out",
        ),
        ({"model": {"name": "mlp", "width": 3}}, {"model": net()}, r"^model.width is an option of 'mlp'"),
        ({"aggregate": {"rule": "pfa", "rank": 2}}, {"rule": mean()}, r"^aggregate.rank is an option of 'pfa'"),
        (
            {"data": {"partition": "iid"}},
            {"data": rows()},
            r"^The data names its clients, and data.partition = \"iid\"",
        ),
        ({}, {"data": rows(), "model": lambda: 3}, r"return a torch module, got int"),
        ({}, {"data": rows(), "model": lambda: 1 / 0}, r"ZeroDivisionError"),
        ({}, {"data": rows(), "model": nn.Linear(3, 2)}, r"^The model cannot read inputs of shape \(4,\)"),
        ({}, {"data": rows(), "model": nn.Linear(4, 3)}, r"^Expected answers of shape \(2, 2\)"),
    ],
)
def test_what_is_no_such_part_is_refused_before_anything_is_written(tmp_path, said, passed, sentence):
    with pytest.raises(TacitError, match=sentence) as caught:
        tacit.run(experiment(**said), **passed, out=tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_model_that_cannot_be_copied_is_refused(tmp_path):
    model = net()
    model.file = sys.stderr  # nobody can copy a stream
    with pytest.raises(BadInput, match=r"^model= cannot be copied"):
        tacit.run(experiment(), data=rows(), model=model, out=tmp_path / "run")


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--resume", "--out", "{run}"],
        ["run", "{run}/experiment.toml", "--out", "{new}"],
        ["compare", "{run}/experiment.toml", "--vary", "train.rounds=1,2", "--out", "{new}"],
        ["plan", "{run}/experiment.toml"],
        ["data", "{run}/experiment.toml"],
        ["deploy", "init", "{new}", "--sites", "3", "--experiment", "{run}/experiment.toml"],
        ["deploy", "init", "{new}", "--sites", "a,b,c", "--experiment", "{run}/experiment.toml"],
    ],
)
@pytest.mark.parametrize("part", ["data", "model", "rule"])
def test_no_command_runs_what_only_a_program_had(tmp_path, monkeypatch, words, part):
    """Each of the three parts alone keeps the file from being run again without it."""
    monkeypatch.chdir(tmp_path)
    asked = experiment(privacy={"epsilon": 3.0}, train={"rounds": 1}, data={"clients": 3})
    section = with_passed(asked, **{part: PARTS[part]})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "experiment.toml").write_text(section.toml(), "utf-8")
    (tmp_path / "run" / "run.json").write_text(json.dumps({"run": "0"}), "utf-8")
    done = CliRunner().invoke(app, [word.format(run=tmp_path / "run", new=tmp_path / "new") for word in words])
    if (part == "rule" and words[0] in ("plan", "data")) or (part == "model" and words[0] == "data"):
        return  # these do not ask for the part
    assert isinstance(done.exception, BadInput)
    assert f"was passed from Python, and no file holds it: only tacit.run(..., {part}=...)" in str(done.exception)
    assert not (tmp_path / "new").exists()


def test_a_comparison_in_python_refuses_it_before_anything_runs(begun, tmp_path):
    asked = tacit.Experiment.load(begun / "experiment.toml")
    with pytest.raises(BadInput, match="was passed from Python"):
        compare(asked, {"train.rounds": [1, 2]}, seeds=1, out=tmp_path / "new")


def test_the_report_of_such_a_run_is_made_again_from_its_folder(begun, tmp_path):
    done = CliRunner().invoke(app, ["report", str(begun), "--out", str(tmp_path / "page.html")])
    assert done.exit_code == 0
    page = (tmp_path / "page.html").read_text("utf-8")
    assert PARTS["data"].passed in page
    assert "shrunken" in page


def test_a_file_of_another_run_says_nothing_about_the_rows_of_a_new_one(begun, tmp_path):
    """Copied settings say how many rows the first run had; a new run writes down its own."""
    asked = tacit.Experiment.load(begun / "experiment.toml")
    other = OTHERS["another row"]
    tacit.run(asked, **PARTS | other, out=tmp_path, page=False)
    key = key_of(tmp_path / "ledger.db")
    assert json.loads((tmp_path / "run.json").read_text("utf-8"))["rows"] == keyed(key, digest_of(other["data"]))
