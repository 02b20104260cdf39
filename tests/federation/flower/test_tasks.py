"""Tasks other than classification between a server and sites with files of their own."""

import numpy as np
import pytest

import tacit
from tacit.deploy.server.client import LocalGrid, client_app
from tacit.deploy.server.server import Call, serve
from tacit.deploy.site.consent import digest, refuse_undeployable
from tacit.deploy.site.limits import Demand, Limits, hold, make_site
from tacit.deploy.site.rows import public_rows
from tacit.errors import BadInput, Refused, TacitError

SITES, ROWS, WIDTH = ("coast", "north", "valley"), 60, 5
TARGETS = {
    "regression": lambda x: x @ np.linspace(-1, 1, WIDTH),
    "multilabel": lambda x: np.stack([x[:, 0] > 0, x[:, 1] > 0], 1).astype(np.float32),
    "binary": lambda x: (x[:, 0] > 0).astype(int),
}


def deployed(folder, kind, privacy, **data):
    rng = np.random.default_rng(1)

    def write(path, rows):
        x = rng.normal(size=(rows, WIDTH)).astype(np.float32)
        np.savez(path, x=x, y=TARGETS[kind](x))

    write(folder / "public.npz", 200)
    classes = ["no", "yes"] if kind == "binary" else "numbers"
    files = {"path": "records.npz"} | (data or {"test_path": str(folder / "public.npz")})
    experiment = tacit.Experiment(
        data={"name": "npz", "classes": classes, "partition": "natural", "clients": 3, **files},
        train={"rounds": 2, "local_steps": 3, "learning_rate": 0.1},
        task={"kind": kind},
        metric={"choose": "accuracy"} if "held_out" in data else {},
        privacy=privacy,
    )
    for name in SITES:
        make_site(folder / name, experiment, name=name, epsilon=8.0)
        write(folder / name / "records.npz", ROWS)
    grid = LocalGrid(client_app(), [folder / name for name in SITES])
    return serve(grid, experiment, Call(out=folder / "out", sites=SITES))


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("privacy", ["local", "central"])
def test_sites_with_their_own_files_train_for_every_kind_of_target(tmp_path, kind, privacy):
    history = deployed(tmp_path, kind, {"kind": privacy, "epsilon": 8.0, "delta": 1e-4})
    assert [record["answered"] for record in history.rounds] == [3, 3]
    name = history.summary["metric"]
    assert history.summary[f"test_{name}"] == pytest.approx(history.rounds[-1][name], rel=1e-6)


@pytest.mark.parametrize("kind", ["binary", "multilabel"])
def test_sites_without_any_public_row_train_on_rows_of_the_declared_shape(tmp_path, kind):
    shapes = {"shape": [WIDTH]} | ({"label_shape": [2]} if kind == "multilabel" else {})
    data = {"test_share": 0, "held_out": 0.3, **shapes}
    history = deployed(tmp_path, kind, {"kind": "local", "epsilon": 8.0, "delta": 1e-4}, **data)
    assert [record["answered"] for record in history.rounds] == [3, 3]
    assert any("there are no public test rows" in note for note in history.summary["notes"])
    assert history.summary["at_clients"]["answered"] == 3
    assert history.summary["at_clients"]["metric"] == "accuracy"
    (model,) = (tmp_path / "coast").glob("runs/*/model-common")
    assert len(tacit.load(model).predict(np.zeros((4, WIDTH), np.float32))) == 4


def test_a_site_whose_rows_have_another_shape_than_the_declared_one_does_not_join(tmp_path):
    with pytest.raises(TacitError, match="the reason is in its log"):
        deployed(tmp_path, "binary", {"kind": "local", "epsilon": 8.0}, test_share=0, shape=[WIDTH + 1])
    assert "data.shape says [6]" in (tmp_path / "coast" / "log.jsonl").read_text()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"test_share": 0}, "say the shape of one in data.shape"),
        ({"test_share": 0, "shape": [WIDTH], "label_shape": [2]}, "with classes every row has one label"),
        ({}, "where nobody has public rows, data.test_share = 0"),
    ],
)
def test_an_experiment_that_does_not_say_what_rows_look_like_is_refused(data, words):
    files = {"name": "npz", "path": "records.npz", "classes": ["no", "yes"], "partition": "natural"}
    experiment = tacit.Experiment(data=files | data)

    def judged():
        refuse_undeployable(experiment)
        return public_rows(experiment)

    with pytest.raises(BadInput, match=words):
        judged()


@pytest.mark.parametrize("key", ["kind", "loss"])
def test_a_site_imports_no_task_and_no_loss_that_it_does_not_list(key):
    experiment = tacit.Experiment(task={key: "os:abort"}, privacy={"kind": "local", "epsilon": 1.0})
    limits = Limits(epsilon=8.0, delta=1e-5, unit="record", trial=True, accept={"experiments": (digest(experiment),)})
    with pytest.raises(Refused, match=r"names code \('os:abort'\) that the site's budget.toml does not list"):
        hold(limits, Demand(experiment=experiment))
