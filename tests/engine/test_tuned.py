"""A head on a frozen body, under every kind of privacy: what does not train is nowhere but in the model and in the digests."""

import copy
import dataclasses
import json

import pytest
import torch
import tuned
from safetensors.torch import load_file, save_file
from torch import nn
from trained import Stop, stop_after, weights

import tacit
from tacit.engine.assemble import START, build
from tacit.errors import BadInput

HEAD = 16 * 10 + 10
LOCAL = {"kind": "local", "epsilon": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}
PAILLIER = {"kind": "paillier", "key": {"bits": 2048}}
KINDS = {
    "none": {"privacy": {"kind": "none", "epsilon": None}},
    "record": {"privacy": LOCAL},
    "client": {"privacy": LOCAL | {"unit": "client"}},
    "central": {"privacy": {"kind": "central", "epsilon": 5.0}},
    "distributed": {"privacy": {"kind": "distributed", "epsilon": 5.0}},
    "encrypted": {"privacy": {"kind": "distributed", "epsilon": 5.0}, "protect": PAILLIER},
}


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_head_travels_is_kept_and_is_written(small, tmp_path, kind):
    def run(name):
        return tacit.run(small(model={"name": name}, **KINDS[kind]), out=tmp_path / name, page=False)

    history, plain = run("tuned:head"), run("tuned:lone")
    assert (history.summary["parameters"], history.summary["frozen_parameters"]) == (HEAD, 64 * 16 + 16)
    if kind != "central":  # its cohorts are drawn anew
        for key in ("uplink_bytes", "downlink_bytes"):
            assert history.summary[key] == pytest.approx(plain.summary[key], rel=0.02)
    assert sorted(weights(history.out)) == ["1.bias", "1.weight"]
    kept = load_file(history.out / "checkpoint.safetensors")
    assert max(tensor.numel() for tensor in kept.values()) <= 6 * HEAD
    start = build(small(model={"name": "tuned:head"}, **KINDS[kind])).model
    assert torch.equal(history.model[0][1].weight, start[0][1].weight)
    assert not torch.equal(history.model[1].weight, start[1].weight)
    assert (START in history.sentence) == (kind != "none")
    assert "frozen part" not in plain.sentence


def test_a_head_on_a_frozen_body_is_trained_as_by_itself_on_what_the_body_says(small, tmp_path):
    every = {"sampling_rate": 1.0}  # batches are keyed by the release, and these are two
    experiment = small(model={"name": "tuned:head"}, train=every, **KINDS["none"])
    parts = build(experiment)
    whole = tacit.run(experiment, out=tmp_path / "whole", page=False)
    body, head = copy.deepcopy(parts.model[0]), copy.deepcopy(parts.model[1])
    with torch.no_grad():
        rows = {
            name: (body(client.x), client.y)
            for name, client in zip(parts.population.names, parts.population, strict=False)
        }
        test = body(parts.dataset.test_x), parts.dataset.test_y
    values = experiment.model_dump(exclude_unset=True) | {"data": {}, "model": {}}
    data = tacit.Dataset(rows, classes=10, test=test)
    alone = tacit.run(tacit.Experiment(**values), data=data, model=head, out=tmp_path / "alone", page=False)
    for name, tensor in weights(alone.out).items():
        torch.testing.assert_close(tensor, weights(whole.out)[f"1.{name}"])


def test_two_bodies_are_two_releases_and_share_no_noise(small):
    first = build(small(model={"name": "tuned:head"}))
    again = build(small(model={"name": "tuned:head"}))
    assert first.releases.common == again.releases.common

    def other(*, input_shape, classes):
        model = tuned.head(input_shape=input_shape, classes=classes)
        with torch.no_grad():
            model[0][1].bias[0] += 1e-6
        return model

    def same(*, input_shape, classes):
        return tuned.head(input_shape=input_shape, classes=classes)

    section = small().model
    made = [build(small().model_copy(update={"model": section.carrying(f, passed="")})) for f in (same, other)]
    assert torch.equal(made[0].params, made[1].params)
    assert made[0].initial_model_digest != made[1].initial_model_digest
    assert made[0].frozen == first.frozen != made[1].frozen
    assert (
        dataclasses.replace(made[0], initial_model_digest=made[1].initial_model_digest).releases.common
        != made[0].releases.common
    )


def test_a_model_passed_from_python_goes_on_only_with_the_body_that_it_had(small, tmp_path):
    torch.manual_seed(0)
    model, experiment = tuned.head(input_shape=(1, 8, 8), classes=10), small()
    with pytest.raises(Stop):
        tacit.run(experiment, model=model, out=tmp_path / "run", observe=stop_after(1), page=False)
    with torch.no_grad():
        model[0][1].bias[0] += 1e-6
    with pytest.raises(BadInput, match="another model"):
        tacit.run(experiment, model=model, out=tmp_path / "run", resume=True, page=False)


def test_frozen_batch_normalisation_trains_under_dp_sgd_and_keeps_its_statistics(small, tmp_path):
    history = tacit.run(small(model={"name": "tuned:normalised"}), out=tmp_path / "run", page=False)
    assert torch.equal(history.model[0][2].running_mean, torch.linspace(-1, 1, 16))


def test_a_model_without_trainable_parameters_is_refused_in_one_sentence(small, tmp_path):
    with pytest.raises(BadInput, match=r"no trainable parameters.*set requires_grad_\(True\) on its adapter or head"):
        tacit.run(small(model={"name": "tuned:nothing"}), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_is_loaded_with_the_body_that_it_was_trained_on(small, tmp_path):
    history = tacit.run(small(model={"name": "tuned:head"}), out=tmp_path / "run", page=False)
    parts = build(small(model={"name": "tuned:head"}))
    predictor = tacit.load(tmp_path / "run", trust=True)
    found = predictor.predict(parts.dataset.test_x)
    right = sum(int(label) == int(y) for label, y in zip(found.labels, parts.dataset.test_y, strict=True))
    assert right / len(found) == pytest.approx(history.summary["test_accuracy"])
    file = tmp_path / "run" / "experiment.toml"
    file.write_text(file.read_text().replace("seed = 0", "seed = 3"))
    with pytest.raises(BadInput, match="another frozen part"):
        tacit.load(tmp_path / "run", trust=True)


def test_weights_that_a_run_folder_names_are_opened_only_where_it_is_trusted(small, tmp_path):
    file = tmp_path / "body.safetensors"
    body = tuned.head(input_shape=(1, 8, 8), classes=10)[0]
    save_file(body.state_dict(), file)
    experiment = small(model={"name": "tuned:stored", "path": str(file)})
    tacit.run(experiment, out=tmp_path / "run", page=False)
    assert tacit.load(tmp_path / "run", trust=True)
    file.with_suffix(".moved").write_bytes(file.read_bytes())
    moved = small(model={"name": "tuned:stored", "path": str(file.with_suffix(".moved"))})
    assert build(experiment).releases.common == build(moved).releases.common  # where it lies is no part of what it is
    save_file(nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh()).state_dict(), file)
    assert build(experiment).releases.common != build(moved).releases.common
    with pytest.raises(BadInput, match="another frozen part"):
        tacit.load(tmp_path / "run", trust=True)


def test_random_effects_sees_what_trains_and_nothing_else(small, tmp_path):
    def tau(name):
        experiment = small(
            data={"partition": "shards", "shards_per_client": 1},
            model={"name": name, "width": 64},
            train={"rounds": 6, "local_steps": 20, "learning_rate": 2.0},
            privacy=LOCAL | {"epsilon": [200.0, 300.0, 400.0, 500.0, 600.0, 700.0]},
            aggregate={"rule": "random-effects"},
        )
        history = tacit.run(experiment, out=tmp_path / name, page=False)
        return json.loads((history.out / "rounds.jsonl").read_text().splitlines()[-1])["tau"]

    assert tau("tuned:head") > 0
