"""Every task under every kind of privacy, its loss by every path, and what is refused before anything is paid."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

import tacit
from tacit import plugin
from tacit.engine.assemble import build
from tacit.errors import BadData, BadInput, TrainingDiverged
from tacit.parts import losses, tasks
from tacit.training.sgd import Clipper, clipped_sum_slow

ROWS, WIDTH, VOCABULARY, TIME = 240, 6, 5, 4
PATHS = ("book-keeping", "vmap", "loop")


class Reader(nn.Module):
    """The smallest language model: what follows a token depends on that token."""

    def __init__(self, classes):
        super().__init__()
        self.table, self.out = nn.Embedding(classes, 8), nn.Linear(8, classes)

    def forward(self, x):
        return self.out(self.table(x))


def reader(*, classes):
    return Reader(classes)


def write(path, kind):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
    slope = x @ np.linspace(-1, 1, WIDTH)
    y = {
        "classification": np.digitize(slope, [-1, 1]),
        "binary": (slope > 0).astype(int),
        "multilabel": np.stack([slope > 0, x[:, 0] > 0, x[:, 1] > 0.5], 1).astype(np.float32),
        "regression": slope.astype(np.float32),
    }
    if kind == "tokens":
        x = (np.arange(TIME) + rng.integers(0, VOCABULARY, (ROWS, 1))) % VOCABULARY
        y = {"tokens": (x + 1) % VOCABULARY}
    client = np.arange(ROWS) % 6
    np.savez(path, x=x, y=y[kind], client=client)
    return str(path)


CLASSES = {"classification": 3, "binary": 2, "multilabel": "numbers", "regression": "numbers", "tokens": VOCABULARY}
PRIVACY = {
    "none": {"kind": "none"},
    "local": {"kind": "local", "epsilon": 50.0},
    "client": {"kind": "local", "unit": "client", "epsilon": 500.0},
    "central": {"kind": "central", "epsilon": 50.0},
    "distributed": {"kind": "distributed", "epsilon": 50.0},
}


def experiment(tmp_path, kind, privacy="none", **more):
    data = {"name": "npz", "path": write(tmp_path / "rows.npz", kind), "classes": CLASSES[kind], "partition": "natural"}
    model = {"name": "tasks.test_tasks:reader"} if kind == "tokens" else {"name": "logr"}
    train = {"rounds": 3, "local_steps": 5, "batch_size": 20, "learning_rate": 0.2}
    whole = {"data": data, "model": model, "train": train, "privacy": PRIVACY[privacy], "task": {"kind": kind}}
    for key, values in more.items():
        whole[key] = whole.get(key, {}) | values
    return tacit.Experiment(run={"workers": 1}, **whole)


@pytest.mark.parametrize("kind", plugin.names(tasks.ROOM))
@pytest.mark.parametrize("privacy", PRIVACY)
def test_every_task_learns_under_every_kind_of_privacy_and_its_metric_stands_for_it(tmp_path, kind, privacy):
    asked = experiment(tmp_path, kind, privacy, train={"rounds": 8 if privacy == "none" else 3})
    history = tacit.run(asked, out=tmp_path / "run")
    name = tasks.headline(asked)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["metric"] == name
    measured = summary["metrics"][name]
    assert summary[f"test_{name}"] == measured["value"] == pytest.approx(history.rounds[-1][name], rel=1e-6)
    assert measured["interval"][0] <= measured["value"] <= measured["interval"][1]
    better = (
        measured["value"] > measured["baseline"]
        if measured["better"] == "higher"
        else measured["value"] < measured["baseline"]
    )
    assert better or privacy != "none"
    assert name.replace("_", " ") in (tmp_path / "run" / "report.html").read_text().lower()


MODELS = {
    "cross-entropy": (lambda: nn.Linear(WIDTH, 3), torch.arange(7) % 3),
    "binary-cross-entropy": (lambda: nn.Linear(WIDTH, 1), torch.arange(7) % 2),
    "squared": (lambda: nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, 1)), torch.linspace(-3, 3, 7)),
    "huber": (lambda: nn.Linear(WIDTH, 2), torch.linspace(-5, 5, 14).view(7, 2)),
    "next-token": (lambda: Reader(VOCABULARY), (torch.arange(7 * TIME) % VOCABULARY).view(7, TIME)),
    "foreign_losses:focal": (lambda: nn.Linear(WIDTH, 3), torch.arange(7) % 3),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("path", PATHS)
def test_the_clipped_sum_of_every_loss_is_that_of_the_slow_twin(name, path):
    torch.manual_seed(0)
    make, y = MODELS[name]
    model = make()
    x = torch.randint(0, VOCABULARY, (7, TIME)) if name == "next-token" else torch.randn(7, WIDTH)
    loss = losses.load(name, {}, outputs=model(x[:5]).detach(), targets=y[:5])
    clip = 0.3
    bounded, seen = Clipper(model, clip=clip, path=path, losses=loss)(x.clone(), y)
    torch.testing.assert_close(
        bounded.vector, clipped_sum_slow(model, x, y, clip=clip, losses=loss), rtol=1e-4, atol=1e-6
    )
    assert float(seen.norms.max()) > clip  # clipping had something to do
    torch.testing.assert_close(seen.losses, loss(model(x), y).detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("averaged", "one number per example, shape [5] here, got shape []"),
        ("mixing", "looks at other examples of its batch"),
        ("remembering", "(looks at other examples|remembers the examples before)"),
        ("branching", "cannot be computed for single examples"),
        ("nobody", "has none named 'nobody'"),
    ],
)
def test_what_is_no_loss_per_example_is_refused_before_anything_is_paid(tmp_path, name, why):
    asked = experiment(tmp_path, "classification", "local", task={"loss": f"foreign_losses:{name}"})
    with pytest.raises(BadInput, match=why.replace("[", r"\[").replace("]", r"\]")):
        tacit.run(asked, out=tmp_path / "run")
    assert not (tmp_path / "run" / "ledger.db").exists()


def test_a_loss_of_ones_own_takes_its_options_from_the_task_table(tmp_path):
    asked = experiment(tmp_path, "classification", "local", task={"loss": "foreign_losses:focal", "gamma": 1.0})
    assert tacit.run(asked, out=tmp_path / "run").rounds
    with pytest.raises(BadInput, match=r"Unknown key 'task.gama'. Did you mean 'task.gamma'\?"):
        build(experiment(tmp_path, "classification", task={"loss": "foreign_losses:focal", "gama": 1.0}))


def test_another_loss_or_other_weights_have_other_noise(tmp_path):
    def digest(**task):
        return build(experiment(tmp_path, "classification", "local", task=task)).releases.digest

    found = {digest(), digest(loss="foreign_losses:focal"), digest(class_weights=[1.0, 1.0, 2.0])}
    assert len(found) == 3


def test_class_weights_by_name_are_those_by_position_and_must_name_every_class(tmp_path):
    def weights(given):
        return build(experiment(tmp_path, "binary", task={"class_weights": given})).losses.keywords["class_weights"]

    assert weights({"1": 3.0, "0": 1.0}) == weights([1.0, 3.0]) == (1.0, 3.0)
    for wrong in ({"0": 1.0}, [1.0], [1.0, -1.0], [1.0, math.inf], "heavy"):
        with pytest.raises(BadInput, match=r"task\.class_weights"):
            weights(wrong)


@pytest.mark.parametrize(
    ("task", "data", "why"),
    [
        ("regression", "classification", "needs numbers as targets, and npz has 3 classes"),
        ("classification", "regression", "needs one class per row .*, and npz has numbers"),
        ("binary", "classification", "needs two classes, and npz has 3 classes"),
        ("multilabel", "regression", "needs a row of 0 and 1"),
        ("tokens", "binary", "needs rows of token numbers"),
    ],
)
def test_targets_of_another_kind_are_refused_in_one_sentence(tmp_path, task, data, why):
    with pytest.raises(BadData, match=why):
        build(experiment(tmp_path, data, task={"kind": task}))


def test_a_metric_that_the_test_rows_cannot_tell_is_refused_before_round_0(tmp_path):
    asked = experiment(tmp_path, "binary")
    rows = dict(np.load(asked.data.options()["path"]))
    np.savez(asked.data.options()["path"], **rows, x_test=rows["x"][:9], y_test=np.zeros(9, int))
    with pytest.raises(BadInput, match="cannot be computed on these test rows"):
        tacit.run(asked, out=tmp_path / "run")
    assert not (tmp_path / "run" / "rounds.jsonl").exists() or not (tmp_path / "run" / "rounds.jsonl").read_text()


def test_a_metric_of_ones_own_stands_for_a_run(tmp_path):
    asked = experiment(tmp_path, "classification", metric={"choose": "foreign_losses:lift"})
    history = tacit.run(asked, out=tmp_path / "run")
    assert history.summary["metric"] == "lift"
    assert history.summary["test_lift"] == pytest.approx(10 * history.summary["metrics"]["accuracy"]["value"])
    with pytest.raises(BadInput, match=r"Expected metric\.choose to be one of accuracy"):
        tacit.run(experiment(tmp_path, "classification", "local", metric={"choose": "auc"}), out=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_rows_without_classes_are_not_dealt_out_by_class(tmp_path):
    asked = experiment(tmp_path, "regression", data={"partition": "dirichlet", "clients": 4})
    with pytest.raises(BadInput, match='deals rows out by their class, and npz has numbers: use "iid" or "natural"'):
        build(asked)


@pytest.mark.parametrize("name", ["raising", "nowhere"])
def test_a_metric_that_raises_or_is_not_finite_is_refused_before_anybody_pays(tmp_path, name):
    asked = experiment(tmp_path, "classification", "local", metric={"choose": f"foreign_losses:{name}"})
    with pytest.raises(BadInput, match=rf"metric\.choose = 'foreign_losses:{name}'"):
        tacit.run(asked, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_metric_that_fails_on_some_rows_only_loses_nothing_of_a_run_that_was_paid_for(tmp_path):
    asked = experiment(tmp_path, "classification", "local", metric={"choose": "foreign_losses:picky"})
    history = tacit.run(asked, out=tmp_path / "run")
    assert history.summary["metrics"]["picky"]["baseline"] is None
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["test_picky"] == 1.0


def test_a_regression_that_diverges_is_called_divergence_and_not_a_wrong_metric(tmp_path):
    asked = experiment(tmp_path, "regression", train={"learning_rate": 1e30})
    with pytest.raises(TrainingDiverged):
        tacit.run(asked, out=tmp_path / "run")
