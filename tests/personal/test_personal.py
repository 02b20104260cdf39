"""Own models: what a client makes on the client of the common model, judged on rows it kept, and sent to nobody."""

import copy
import json
import math
import pickle
import runpy
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from report_runs import changed
from safetensors.torch import load_file
from torch import nn

import tacit
from tacit.data.given import Dataset
from tacit.data.population import coins
from tacit.deploy.operate.init import deployable
from tacit.deploy.site.consent import read_experiment
from tacit.engine.assemble import PERSONAL, build
from tacit.engine.ledgers import population_id
from tacit.errors import BadData, BadInput, Refused
from tacit.parts.losses import binary_cross_entropy, cross_entropy, squared
from tacit.parts.metrics import Answers
from tacit.personal import home as last
from tacit.personal import ways
from tacit.personal.home import Home
from tacit.personal.one import Personal, in_words, judged, together, trained_on
from tacit.personal.ways import Ridges
from tacit.report.page import collect
from tacit.simulation import with_passed
from tacit.training.flat import flatten
from tacit.types import Message
from tacit.wire import pack, size_of

KEPT = {"clients": 5, "examples_per_client": 60, "own_share": 0.3}
QUICK = {"rounds": 2, "local_steps": 2, "sampling_rate": 0.3}


def asked(kind="mean-regularised", **changes):
    return changed(**{"data": KEPT, "train": QUICK, "personal": {"kind": kind}} | changes)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own") / "run"
    return folder, tacit.run(asked(), out=folder)


def home(*, rows=200, features=5, seed=0, truth=None, task="regression", model=None, losses=squared):
    """A client whose numbers are a linear function of its features, plus noise of standard deviation 1."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, features, generator=rng)
    truth = torch.randn(features, generator=rng) if truth is None else truth
    y = x @ truth + torch.randn(rows, generator=rng)
    model = nn.Linear(features, 1) if model is None else model
    y = (y > 0).long() if task == "classification" else y
    return Home(model, flatten(model), losses, x, y, seed=seed, task=task)


# the rows that a client keeps


def test_rows_a_client_keeps_are_trained_on_never_and_every_row_is_on_one_side():
    whole, parts = build(changed(data=KEPT | {"own_share": None})).population, build(asked()).population
    for index in range(5):
        rows = [{row.numpy().tobytes() for row in part[index].x} for part in (whole, parts, parts.held)]
        assert rows[1] | rows[2] == rows[0]
        assert not rows[1] & rows[2]
    assert (parts.sizes + parts.held.sizes == whole.sizes).all()
    assert parts.held.sizes.sum() > 0


def test_rows_kept_at_home_and_rows_asked_about_are_chosen_by_different_coins():
    kept = build(changed(data=KEPT)).population.mask
    held = build(changed(data=KEPT | {"own_share": None, "held_out": 0.3})).population.mask
    assert not np.array_equal(kept, held)


def test_a_ledger_is_of_one_share():
    names = {
        population_id(experiment, build(experiment).population)
        for experiment in (changed(data=KEPT | {"own_share": share}) for share in (None, 0.2, 0.3))
    }
    assert len(names) == 3


def test_a_ledger_of_rows_passed_from_python_is_of_one_share_too():
    rows = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    passed = Dataset(rows, (rows[:, 0] > 0).astype(int), clients=np.repeat(["a", "b"], 30), classes=2, test_share=0)
    shares = [{}, {"own_share": 0.2}, {"own_share": 0.3}, {"held_out": 0.3}]
    whole = {"examples_per_client": None}
    made = [with_passed(changed(data=whole | share, privacy={"epsilon": 5.0}), data=passed) for share in shares]
    names = [population_id(experiment, build(experiment).population) for experiment in made]
    assert len(set(names)) == 4
    assert names[0].count(":") == 2  # as ledgers of earlier versions have it


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"data": {"own_share": 0.0}}, r"Expected data.own_share to be a number above 0 and at most 0.9, got 0.0"),
        ({"data": {"own_share": 0.95}}, r"Expected data.own_share to be a number above 0 and at most 0.9, got 0.95"),
        ({"data": {"own_share": 0.2, "held_out": 0.2}}, r"a client is divided once: set one of them"),
        ({"personal": {"kind": "head"}}, r"set data.own_share, such as 0.2, or leave out \[personal\]"),
        (
            {"data": {"own_share": 0.2}, "personal": {"kind": "mean-regularised", "strength": -1.0}},
            r"personal.strength to be a number of at least 0",
        ),
        (
            {"data": {"own_share": 0.2}, "personal": {"kind": "head", "strength": 1.0}},
            r'"mean-regularised": leave it out',
        ),
        ({"data": {"own_share": 0.2}, "personal": {"kind": "ridge"}}, r"personal.kind"),
        ({"data": {"own_share": 0.2}, "personal": {"strength": 1.0}}, r'"mean-regularised": leave it out'),
    ],
)
def test_what_cannot_be_is_one_sentence(changes, sentence):
    with pytest.raises(BadInput, match=sentence):
        changed(**changes)


def test_a_client_left_without_rows_to_train_on_is_named():
    with pytest.raises(BadData, match=r"data.own_share leaves client .* no row to train on: lower it"):
        build(changed(data={"clients": 20, "examples_per_client": 2, "own_share": 0.9}, privacy={"epsilon": 5.0}))


@pytest.mark.parametrize("changes", [{}, {"personal": {}}], ids=["adapted", "kept only"])
def test_a_server_can_neither_ask_for_own_models_nor_forbid_them(changes):
    with pytest.raises(
        BadInput, match=r"each site's own choice: leave them out, and set \[personal\] in the site.toml"
    ):
        deployable(asked(**changes), "5", trial=True)  # before a folder is made
    with pytest.raises(Refused, match="each site's own choice"):
        read_experiment(asked(**changes).toml())


# a run


def test_own_models_change_no_bit_of_what_is_released(tmp_path, ended):
    with_them, without = asked(), changed(data=KEPT, train=QUICK)
    assert build(with_them).releases.digest == build(without).releases.digest
    bare = tacit.run(without, out=tmp_path / "bare", page=False)
    models = [(folder / "model.safetensors").read_bytes() for folder in (ended[0], tmp_path / "bare")]
    assert models[0] == models[1]
    assert "personal" not in bare.summary
    assert not (tmp_path / "bare" / "personal.json").exists()
    assert "[personal]" in (ended[0] / "experiment.toml").read_text()
    assert "[personal]" not in (tmp_path / "bare" / "experiment.toml").read_text()


def test_a_run_says_what_every_client_gets_and_the_page_shows_it(ended):
    folder, history = ended
    found, short = json.loads((folder / "personal.json").read_text()), history.summary["personal"]
    assert found["note"].startswith("From raw data: not covered by epsilon")
    assert set(short["metrics"]) == {"accuracy", "auroc", "log_loss"}
    assert sum(short["use"].values()) == len(found["clients"]) == len([one["because"] for one in found["clients"]])
    parts = build(asked())
    for index, one in enumerate(found["clients"]):
        kept = parts.population.held[index]
        with torch.inference_mode():
            right = float((history.model(kept.x).argmax(1) == kept.y).float().mean())
        assert one["metrics"]["accuracy"]["common"]["value"] == pytest.approx(right)
        assert (one["rows"], one["trained_on"]) == (kept.size, parts.population[index].size)
    mean = short["metrics"]["log_loss"]
    gap = mean["own"]["value"] - mean["common"]["value"]
    assert mean["own_less_common"]["value"] == pytest.approx(gap)
    assert mean["own_less_common"]["interval"][0] <= gap <= mean["own_less_common"]["interval"][1]
    assert short["stay_alone"] == sum(one["from"] == "alone" for one in found["clients"])
    assert "they have none and must not be published" in history.sentence
    page = collect([folder])["personal"]
    assert [epsilon for _, epsilon, *_ in page["told"][0]["clients"]] == [1.0, 2.0, 2.0, 4.0, 8.0]
    assert "personalBlock" in (folder / "report.html").read_text("utf-8")
    name, words = in_words(short)[0]
    assert name == "accuracy on the client (mean-regularised)"
    assert "own - alone" in words


def test_a_run_that_is_resumed_makes_the_same_own_models(tmp_path, ended):
    shutil.copytree(ended[0], tmp_path / "run")
    (tmp_path / "run" / "personal.json").unlink()
    again = tacit.run(asked(), out=tmp_path / "run", resume=True, page=False).summary["personal"]
    first = ended[1].summary["personal"]
    assert again | {"adapt_seconds": 0.0} == first | {"adapt_seconds": 0.0}
    assert (tmp_path / "run" / "personal.json").exists()


def test_clients_whose_own_rows_cannot_tell_are_counted_and_named(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(123, 3)).astype(np.float32)
    y, who = (x[:, 0] > 0).astype(int), np.array(["a"] * 60 + ["b"] * 60 + ["tiny"] * 3)
    y[60:120] = 1  # one class at b
    data = Dataset(x, y, clients=who, classes=["no", "yes"], test_share=0)
    values = {"data": {"own_share": 0.25}, "task": {"kind": "binary"}, "train": QUICK}
    values |= {"personal": {"kind": "mean-regularised"}}
    privacy = {"kind": "local", "epsilon": 5.0}
    for seed in range(40):  # until the coins leave the tiny client nothing to judge by
        experiment = tacit.Experiment(**values | {"run": {"workers": 1, "seed": seed}}, privacy=privacy)
        coin = coins(data.rows.x[120:], data.rows.y[120:], share=0.25, seed=seed, purpose=PERSONAL)
        if not coin.any():
            break
    history = tacit.run(experiment, data=data, out=tmp_path / "run", page=False)
    told = history.summary["personal"]
    rows = {
        one["client"]: one["rows"] for one in json.loads((tmp_path / "run" / "personal.json").read_text())["clients"]
    }
    assert rows["tiny"] == 0
    assert told["untold"] == ["b", "tiny"]
    assert told["metrics"]["auroc"]["clients"] == 1
    assert told["metrics"]["log_loss"]["clients"] == 2
    assert "no epsilon: do not publish them" in dict(in_words(told))["own models"]
    assert in_words(told)[-1] == ("not judged", "2 clients (no own rows, or of one class): b, tiny")


def test_everybody_adapts_under_central_dp_whoever_was_drawn(tmp_path):
    central = {"kind": "central", "epsilon": 8.0, "clip": 1.0}
    drawn = {"rounds": 2, "local_steps": 2, "clients_per_round": 2, "sampling_rate": None}
    experiment = tacit.Experiment(
        data=KEPT, train=drawn, privacy=central, personal={"kind": "head"}, run={"workers": 1}
    )
    history = tacit.run(experiment, out=tmp_path / "run", page=False)
    assert len(json.loads((tmp_path / "run" / "personal.json").read_text())["clients"]) == 5
    assert history.summary["personal"]["metrics"]["accuracy"]["clients"] == 5
    said = dict(in_words(history.summary["personal"]))["own models"]
    assert "every client adapts, whether it was drawn or not" in said


def test_alone_is_a_control_beside_the_common_model_and_nothing_is_adapted(tmp_path):
    history = tacit.run(asked("alone"), out=tmp_path / "run", page=False)
    found = json.loads((tmp_path / "run" / "personal.json").read_text())
    assert history.summary["personal"]["kind"] == "alone"
    for one in found["clients"]:
        values = {name: told["value"] for name, told in one["metrics"]["log_loss"].items()}
        assert values["own"] == values[one["from"]]
        assert values["alone"] != values["common"]
    assert found["stay_alone"] == 5  # two rounds of four steps have taught the common model little


def test_a_network_adapts_by_every_way_and_its_head_is_no_worse_than_staying_at_home(tmp_path):
    """Without noise, which is another with every change of the code; so are batches, which move the difference by .01 here."""
    steps = {"rounds": 10, "local_steps": 10, "batch_size": 42, "sampling_rate": None, "learning_rate": 0.5}
    many = KEPT | {"examples_per_client": 200}
    network = {"data": many, "model": {"name": "mlp"}, "privacy": {"kind": "none"}, "train": steps}
    for kind in ("head", "mean-regularised"):
        told = tacit.run(asked(kind, **network), out=tmp_path / kind, page=False).summary["personal"]["metrics"]
        values = {name: told["accuracy"][name]["value"] for name in ("alone", "common", "own")}
        assert told["accuracy"]["clients"] == 5
        assert values["own"] >= max(values["alone"], values["common"]) - 0.05, (kind, values)


def test_work_follows_from_the_steps_of_the_run_and_from_no_clock():
    train, few = asked().train, 64
    assert trained_on(train, 100) == 2 * 2 * few  # 30 rows a step cost as much as few
    assert trained_on(train, 1000) == 2 * 2 * 300
    site = home(rows=128)
    assert [replace(site, work=work).gradients for work in (0, 64 * 20, 128 * 50)] == [6, 10, 50]


def test_a_network_asks_for_no_more_gradients_than_its_work_is_enough_for(monkeypatch):
    network = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
    site = home(rows=100, task="classification", model=network, losses=cross_entropy)
    asked_for, plain, centre = [], Home.slope, site.theta.clone()
    monkeypatch.setattr(Home, "slope", lambda *given: asked_for.append(1) or plain(*given))
    for gradients in (6, 15):
        asked_for.clear()
        ways.adapt(replace(site, work=gradients * 100), centre)
        assert len(asked_for) == gradients


@pytest.mark.parametrize(
    "crafted", [{"metrics": 3}, {"clients": [{"client": "a"}]}, {"untold": 3}, {"metric": 3}], ids=str
)
def test_an_edited_file_of_own_models_is_refused(tmp_path, ended, crafted):
    shutil.copytree(ended[0], tmp_path / "run")
    path = tmp_path / "run" / "personal.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | crafted))
    with pytest.raises(BadInput, match="is damaged"):
        collect([tmp_path / "run"])


def test_the_five_hospitals_of_the_example_are_told_what_joining_is_worth(tmp_path, monkeypatch):
    examples = Path(__file__).parents[2] / "examples" / "hospitals"
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(examples / "make_different.py"), run_name="__main__")
    experiment = tacit.Experiment.load(examples / "different.toml", ("train.rounds=1", "run.workers=1"))
    told = tacit.run(experiment, out=tmp_path / "run", page=False).summary["personal"]
    assert told["untold"] == []
    assert told["metrics"]["auroc"]["clients"] == 5


# what stays


def test_no_message_packs_an_own_model_and_nothing_pickles_it():
    own = Personal("north", torch.ones(3), {})
    message = Message("north", {"update": own})  # pyright: ignore[reportArgumentType] - which is the first guard
    for leave in (pack, size_of, lambda one: one.to(torch.device("cpu"))):
        with pytest.raises(Refused, match="neither sent nor published"):
            leave(message)
    with pytest.raises(Refused, match="neither sent nor published"):
        pickle.dumps(own)
    with pytest.raises(Refused, match="neither sent nor published"):
        copy.deepcopy(own)
    public = [name for name in dir(own) if not name.startswith("_")]
    assert public == ["chosen", "client", "judged", "keep"]
    with pytest.raises(TypeError):
        json.dumps(own)


def test_a_judge_says_a_number_or_answers_and_gets_nothing_else_out():
    own, stolen = Personal("north", torch.ones(3), {}), []
    ways_out = (lambda v: v, lambda v: v.numpy(), lambda v: (1.0, v), lambda v: v.tolist(), lambda v: v.sum())
    for steal in ways_out:
        with pytest.raises(Refused, match="neither sent nor published"):
            own.judged(steal)
    assert own.judged(lambda v: stolen.append(v) or 1.0) == 1.0
    assert torch.isnan(stolen[0]).all()  # a message of what was kept by its name holds no number
    with pytest.raises(ZeroDivisionError):
        own.judged(lambda v: stolen.append(v) or 1 / 0)
    assert torch.isnan(stolen[1]).all()
    assert own.judged(lambda v: float(v.sum())) == 3.0  # and the model is as it was


def test_an_own_model_is_kept_in_a_file_for_its_owner_alone(tmp_path):
    model = nn.Linear(2, 1)
    Personal("north", torch.arange(3.0), {}).keep(tmp_path / "model.safetensors", model, {})
    found = load_file(tmp_path / "model.safetensors")
    assert torch.equal(torch.cat([found["weight"].reshape(-1), found["bias"]]), torch.arange(3.0))
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == 0o600


# the ways


def test_a_ridge_is_the_minimiser_that_algebra_gives():
    site, strength = home(rows=80), 0.3
    centre = torch.full((6,), 0.5)
    found = ways.adapt(site, centre, strength=strength).vector
    x = torch.cat([site.x, torch.ones(80, 1)], dim=1).double()
    left = 2 / 80 * x.T @ x + strength * torch.eye(6).double()
    right = 2 / 80 * x.T @ site.y.double() + strength * centre.double()
    assert torch.allclose(found.double(), torch.linalg.solve(left, right), atol=2e-3)


@pytest.mark.parametrize(
    ("losses", "outputs", "targets"),
    [
        (cross_entropy, 3, torch.arange(40) % 3),
        (partial(cross_entropy, class_weights=None), 3, torch.arange(40) % 3),
        (binary_cross_entropy, 1, torch.arange(40) % 2),
        (binary_cross_entropy, 4, (torch.arange(160).reshape(40, 4) % 3 == 0).float()),
        (squared, 1, torch.linspace(-2, 2, 40)),
        (squared, 2, torch.linspace(-2, 2, 80).reshape(40, 2)),
    ],
)
def test_a_linear_layers_closed_form_is_what_autograd_gives(losses, outputs, targets):
    torch.manual_seed(1)
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(6, outputs)), torch.randn(40, 2, 3)
    site, w = Home(model, flatten(model), losses, x, targets), torch.randn(7 * outputs)
    value, gradient = site.slope(w)
    found = site.layer.slope(w.double().numpy())
    assert found[0] == pytest.approx(value, rel=1e-5)
    assert np.allclose(found[1], gradient.numpy(), atol=1e-5)


def test_what_is_more_than_a_plain_linear_layer_has_no_closed_form():
    x, y = torch.randn(4, 2), torch.tensor([0, 1, 0, 1])
    weighted = partial(cross_entropy, class_weights=(1.0, 3.0))
    deep = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
    frozen = nn.Linear(2, 2)
    frozen.bias.requires_grad_(False)
    assert last.layer_of(nn.Linear(2, 2), weighted, x, y) is None
    assert last.layer_of(deep, cross_entropy, x, y) is None
    assert last.layer_of(frozen, cross_entropy, x, y) is None
    assert last.layer_of(nn.Linear(2, 2), lambda outputs, targets: outputs[:, 0], x, y) is None


PLAIN = [
    (cross_entropy, 3, torch.arange(60) * 7 % 3),
    (binary_cross_entropy, 1, torch.arange(60) * 7 % 5 % 2),
    (binary_cross_entropy, 4, (torch.arange(240).reshape(60, 4) % 3 == 0).float()),
    (squared, 1, torch.linspace(-2, 2, 60)),
    (squared, 2, torch.linspace(-2, 2, 120).reshape(60, 2)),
]


@pytest.mark.parametrize("features", [6, 80], ids=["more rows", "more columns"])
@pytest.mark.parametrize(("losses", "outputs", "targets"), PLAIN)
def test_fits_of_several_parts_at_once_are_those_of_each_by_itself(losses, outputs, targets, features):
    torch.manual_seed(2)
    model, x = nn.Linear(features, outputs), torch.randn(60, features)
    site, centres = Home(model, flatten(model), losses, x, targets), torch.randn(3, outputs * (features + 1)) / 3
    parts = [np.arange(60), np.arange(40), np.arange(20, 60)]
    shares = np.stack([np.isin(np.arange(60), part) / len(part) for part in parts])
    path = Ridges(site.layer, centres.double().numpy(), shares)
    for strength in (1.0, 0.1, 0.01):
        path.move(strength)
        for part, centre, found in zip(parts, centres, path.vectors(range(3)), strict=True):
            rows, w = site.rows(part), torch.from_numpy(found).float()
            twin = rows.fit(centre, centre=centre, strength=strength)
            values = [rows.loss(one) + strength / 2 * float((one - centre).square().sum()) for one in (w, twin)]
            assert values[0] <= values[1] + 2e-4
            assert torch.allclose(w, twin, atol=0.1)
        assert np.allclose(
            path.losses()[1, :40].mean(), site.rows(parts[1]).loss(torch.from_numpy(path.vectors([1])[0])), atol=1e-4
        )


def test_columns_beyond_a_square_that_is_too_large_are_taken_as_they_are(monkeypatch):
    site = home(rows=90)
    shares, centre = np.full((1, 90), 1 / 90), np.zeros((1, 6))
    found = []
    for most in (1000, 3):
        monkeypatch.setattr("tacit.personal.ways.MOST_SIDE", most)
        path = Ridges(site.layer, centre, shares)
        path.move(0.01)
        found.append(path.vectors([0]))
    assert np.allclose(*found, atol=0.01)


def test_rows_without_a_difference_leave_the_centre_where_it_is():
    model = nn.Linear(3, 1, bias=False)
    site = Home(model, flatten(model), squared, torch.zeros(5, 3), torch.ones(5))
    path = Ridges(site.layer, np.ones((1, 3)), np.full((1, 5), 0.2))
    path.move(0.1)
    assert path.vectors([0]).tolist() == [[1.0, 1.0, 1.0]]


def test_the_share_of_a_model_is_what_rows_left_out_say_of_it():
    site = home(rows=40)
    right, wrong = site.y.double().numpy()[None] + 0.1, site.y.double().numpy()[None] + 5
    assert ways.share_of(site.layer, wrong, right, task="regression") > 0.95
    assert ways.share_of(site.layer, right, wrong, task="regression") < 0.05
    assert ways.share_of(site.layer, wrong, wrong, task="regression") == pytest.approx(0.5)
    assert ways.share_of(site.layer, right - 1, right + 1, task="binary") == pytest.approx(0.45, abs=0.02)


def test_an_own_linear_model_is_a_mean_of_both_beginnings_and_worse_than_neither():
    truth = torch.tensor([1.0, -1.0, 0.5, 0.0, 2.0])
    near, far, zero = torch.tensor([*truth.tolist(), 0.0]), torch.full((6,), -20.0), torch.zeros(6)
    site, judge = home(rows=30, truth=truth), home(rows=4000, truth=truth, seed=9)
    for before, common in ((zero, near), (zero, far)):
        alone, own = ways.adapt_both(site, before, common)
        assert torch.equal(alone.vector, ways.adapt_each(site, [before, common])[0].vector)
        share = own.chosen["share"]
        other = ways.adapt_each(site, [before, common])[1].vector
        assert torch.allclose(own.vector, share * other + (1 - share) * alone.vector, atol=1e-5)
        assert judge.loss(own.vector) < min(judge.loss(alone.vector), judge.loss(other)) + 0.1


def test_rows_left_out_are_given_what_the_folds_without_them_say():
    site, before = home(rows=30), torch.zeros(6)
    found = ways._along(site, site.layer, [before, before + 0.5])
    for one, centre in zip(found, (before, before + 0.5), strict=True):
        for kept, left_out in site.folds(5):
            fold = site.rows(kept).fit(centre, centre=centre, strength=one.strength)
            given = site.rows(left_out).layer
            expected = given.matrix(fold.double().numpy()) @ given.rows.T
            assert np.allclose(one.outputs[:, left_out], expected, atol=0.05)
        assert one.score == pytest.approx(site.layer.loss(one.outputs, site.layer.targets)[0].mean(), rel=1e-4)


def test_two_beginnings_at_once_give_what_each_gives_by_itself():
    site, centres = home(rows=50, seed=4), [torch.zeros(6), torch.full((6,), 0.7)]
    for centre, one in zip(centres, ways.adapt_each(site, centres), strict=True):
        alone = ways.adapt(site, centre)
        assert torch.allclose(one.vector, alone.vector, atol=2e-3)
        assert one.score == pytest.approx(alone.score, rel=1e-3)
        assert one.chosen.keys() == alone.chosen.keys()


def test_what_has_no_closed_form_is_adapted_fit_by_fit(monkeypatch):
    fast = ways.adapt(home(rows=50), torch.zeros(6))
    monkeypatch.setattr(last, "layer_of", lambda *_: None)
    slow = ways.adapt(home(rows=50), torch.zeros(6))
    assert slow.chosen["strength"] == fast.chosen["strength"]
    assert torch.allclose(fast.vector, slow.vector, atol=0.02)


def test_without_a_pull_it_is_the_own_optimum_and_with_a_boundless_one_the_common_model():
    site, centre = home(), torch.zeros(6)
    free = ways.adapt(site, centre, strength=0.0).vector
    assert float(site.slope(free)[1].norm()) < 0.01
    assert torch.equal(site.fit(centre, centre=centre, strength=math.inf), centre)


def test_adapting_gives_something_finite_even_of_one_row_and_twice_the_same_bits():
    for rows in (1, 200):
        one, other = (ways.adapt(home(rows=rows), torch.zeros(6)).vector for _ in range(2))
        assert torch.isfinite(one).all()
        assert torch.equal(one, other)


def test_few_rows_lean_on_a_good_common_model_and_many_rows_on_themselves():
    truth = torch.tensor([1.0, -1.0, 0.5, 0.0, 2.0])
    for rows, centre in ((12, torch.tensor([*truth.tolist(), 0.0])), (2000, torch.zeros(6))):
        site, judge = home(rows=rows, truth=truth), home(rows=4000, truth=truth, seed=9)
        alone = site.fit(torch.zeros(6), centre=torch.zeros(6), strength=0.0)
        found = ways.adapt(site, centre).vector
        assert judge.loss(found) < min(judge.loss(alone), judge.loss(torch.zeros(6))) + 0.02


def test_own_rows_speak_for_the_better_of_two_beginnings():
    truth = torch.tensor([1.0, -1.0, 0.5, 0.0, 2.0])
    near, far = torch.tensor([*truth.tolist(), 0.0]), torch.full((6,), -20.0)
    site = home(rows=12, truth=truth)
    assert ways.adapt(site, near).score < ways.adapt(site, far).score


def test_an_own_head_leaves_the_body_as_it_was():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
    site = home(task="classification", model=model, losses=cross_entropy)
    centre = site.theta.clone()
    last.refuse_headless(model, site.x[:2])
    found = ways.adapt_head(site, centre).vector
    body = 5 * 8 + 8
    assert torch.equal(found[:body], centre[:body])
    assert site.loss(found) < site.loss(centre)
    with pytest.raises(BadInput, match="ends in a linear layer that trains"):  # it goes on after its last layer
        last.refuse_headless(nn.Sequential(nn.Linear(3, 2), nn.Tanh()), torch.randn(2, 3))


# means and differences


def test_differences_are_paired_and_means_weighted_by_rows():
    def answers(right, rows):
        y = np.arange(rows) % 2
        guessed = np.where(np.arange(rows) < right, y, 1 - y)
        return Answers("classification", y, np.eye(2)[guessed], ("no", "yes"))

    small = {"alone": answers(5, 10), "common": answers(10, 10), "own": answers(10, 10)}
    large = {"alone": answers(15, 30), "common": answers(15, 30), "own": answers(16, 30)}
    told = together([judged("accuracy", one, seed=index) for index, one in enumerate((small, large))])
    assert told["own"]["value"] == pytest.approx(26 / 40)
    assert told["own_less_alone"]["value"] == pytest.approx(6 / 40)
    width = np.ptp(told["own_less_common"]["interval"])
    assert 0 < width < 0.5 * np.ptp(told["own"]["interval"])  # one row differs, and only that moves the difference
