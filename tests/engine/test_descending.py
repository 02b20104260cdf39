"""Momentum, weight decay, FedProx and schedules in whole runs of every kind, and at a site."""

import pytest
import torch
from redteam.lying_server import Server, experiment

import tacit
from tacit.deploy.server.server import oddity
from tacit.deploy.site.consent import digest
from tacit.engine.assemble import build
from tacit.errors import BadInput
from tacit.random import seeded
from tacit.training.sgd import workspace
from tacit.types import Message
from tacit.wire import pack, unpack

KNOBS = {
    "momentum": 0.5,
    "weight_decay": 0.05,
    "proximal": 0.1,
    "schedule": {"kind": "step", "rounds": 1, "factor": 0.5},
}
KINDS = {
    "none": {"kind": "none"},
    "record": {"kind": "local", "epsilon": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]},
    "client": {"kind": "local", "unit": "client", "epsilon": 8.0},
    "central": {"kind": "central", "epsilon": 8.0},
    "distributed": {"kind": "distributed", "epsilon": 8.0},
}


def made(kind, **train):
    return tacit.Experiment(
        data={"clients": 6, "examples_per_client": 40},
        train={"rounds": 3, "local_steps": 3, "batch_size": 20} | train,
        privacy=KINDS[kind],
        run={"workers": 1},
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_descends_as_it_is_told_at_the_same_price(kind, tmp_path):
    plain = tacit.run(made(kind), out=tmp_path / "plain", page=False)
    moved = tacit.run(made(kind, **KNOBS), out=tmp_path / "moved", page=False)
    assert moved.guarantee == plain.guarantee
    assert len(moved.rounds) == 3
    assert moved.rounds[0]["update_norm"] != plain.rounds[0]["update_norm"]
    again = tacit.run(made(kind, **KNOBS, averaging=0.0), out=tmp_path / "again", page=False)
    assert again.rounds[-1]["update_norm"] == moved.rounds[-1]["update_norm"]


@pytest.mark.parametrize("kind", ["none", "record"])
def test_a_schedule_lowers_what_a_round_moves(kind, tmp_path):
    tiny = {"schedule": {"kind": "step", "rounds": 2, "factor": 1e-3}}
    first, second, third = tacit.run(made(kind, **tiny), out=tmp_path, page=False).rounds
    assert second["update_norm"] > first["update_norm"] / 10
    assert second["update_norm"] / 10_000 < third["update_norm"] < second["update_norm"] / 100  # once, not twice


def test_zero_and_left_out_are_one_experiment():
    zeros = {"momentum": 0, "weight_decay": 0.0, "proximal": 0.0, "schedule": "constant", "control": "none"}
    said, unsaid = tacit.Experiment(train=zeros), tacit.Experiment()
    assert said == unsaid
    assert digest(said) == digest(unsaid)
    assert said.toml() == unsaid.toml()
    assert "momentum" not in tacit.Experiment().toml()


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ({"momentum": 1.0}, r"train\.momentum to be a number of at least 0 and below 1"),
        ({"momentum": -0.1}, r"train\.momentum to be a number of at least 0"),
        ({"weight_decay": float("nan")}, r"train\.weight_decay to be a number of at least 0, got nan"),
        ({"proximal": -1}, r"train\.proximal to be a number of at least 0"),
        ({"proximal": 10.0}, r"steps would overshoot further and further"),
        ({"momentum": True}, r"got true"),
        ({"schedule": "cosin"}, r"train\.schedule"),
        ({"schedule": "step"}, r"train\.schedule\.rounds is missing"),
        ({"schedule": {"kind": "step", "rounds": 0}}, r"train\.schedule\.rounds to be a whole number of at least 1"),
        (
            {"schedule": {"kind": "step", "rounds": 3, "factor": 1.5}},
            r"train\.schedule\.factor to be a number above 0 and at most 1",
        ),
        ({"schedule": {"kind": "step", "rounds": 1}, "rounds": 50}, r"In round 50 the learning rate would be below"),
        ({"step_rounds": 3}, r"Unknown key 'train\.step_rounds'"),
        ({"schedule": {"kind": "step", "rounds": 2, "final": 0.1}}, r"it is a key of kind = \"cosine\""),
        ({"schedule": {"kind": "cosine", "final": 0.9}}, r"a schedule goes down"),
        ({"control": "scafold"}, r"train\.control"),
    ],
)
def test_what_no_training_ends_well_with_is_refused_in_one_sentence(train, words):
    with pytest.raises(BadInput, match=words):
        tacit.Experiment(train=train)


def test_a_kind_of_somebody_else_is_told_of_no_schedule():
    privacy = {"kind": "toy_kind:Toy", "unit": "client", "epsilon": 4.0}
    with pytest.raises(BadInput, match=r"train\.schedule is not told"):
        tacit.Experiment(train={"schedule": "cosine"}, privacy=privacy)


def test_a_site_trains_at_the_rate_of_the_round_that_it_was_asked_for_whatever_the_server_says(tmp_path):
    asking = Server(tmp_path / "site", experiment(train=KNOBS))
    asking.agree()
    body = unpack(asking.body())
    crafted = body.tensors | {"correction": torch.full((1, len(body.tensors["params"])), 1e6)}
    lie = pack(Message("server", crafted, body.facts | {"round": 0, "corrected": ["client-0"]}))
    answers = [asking.train(0), asking.train(2, body=lie)]
    stated = [unpack(raw).facts["noise_std"] for raw in answers]
    assert stated[0] != stated[1]  # the pull is as strong as the learning rate
    assert [oddity(asking.parts, body, 0, raw, round) for raw, round in zip(answers, (0, 2), strict=True)] == ["", ""]
    assert "other facts" in oddity(asking.parts, body, 0, answers[1], 0)
    assert float(unpack(answers[1]).tensors["update"].abs().max()) < 100  # nobody has agreed to a correction


def test_no_honest_update_is_longer_than_a_server_allows():
    parts = build(made("record", momentum=0.9, weight_decay=0.5, learning_rate=1.0))
    received = parts.algorithm.broadcast(parts.algorithm.init(parts.params + 1e6), [parts.population[0]], round=0)
    client, work = parts.population[0], workspace(parts.model, clip=1.0, physical_batch=256)
    trained = parts.algorithm.train(work, received, client, seeded(0))
    like = parts.algorithm.release(trained, client, received)
    assert float(like.tensors["update"].abs().max()) > 5e5  # decay has moved it far
    assert oddity(parts, received, 0, pack(like)) == ""
    huge = Message(like.sender, {"update": torch.full_like(like.tensors["update"], 1e12)}, like.facts)
    assert "larger than any honest one" in oddity(parts, received, 0, pack(huge))
