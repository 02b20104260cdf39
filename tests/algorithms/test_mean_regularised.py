"""Own models during training are MR-MTL's, with clients that keep nothing; under local DP they are made of what was sent."""

import dataclasses
from functools import partial

import pytest
import torch
from algorithms.test_scaffold import CLIENT, CLIENTS, COHORTS, LOCAL_RATE, NONE, QUIET, STEPS, run
from safetensors.torch import load_file
from statistical import has_std
from torch.nn.functional import cross_entropy

import tacit
from tacit.algorithms import in_round
from tacit.deploy.operate.init import deployable
from tacit.deploy.site.layout import wanted
from tacit.engine.assemble import build
from tacit.engine.run_folder import CHECKPOINT
from tacit.errors import BadInput
from tacit.personal.one import in_words
from tacit.random import seeded
from tacit.report.page import collect
from tacit.training.sgd import workspace

LAMBDA = 0.3


def asked(privacy, *, strength=LAMBDA, **changes):
    full = {"sampling_rate": 1.0} if privacy["kind"] == "local" and "unit" not in privacy else {"batch_size": 400}
    dealt = {"partition": "dirichlet", "alpha": 0.1, "min_size": 40}
    train = full | {"rounds": len(COHORTS), "local_steps": STEPS, "learning_rate": LOCAL_RATE}
    own = {} if strength is None else {"kind": "mean-regularised", "strength": strength, "when": "during"}
    return tacit.Experiment(
        data={"clients": CLIENTS, "examples_per_client": 40, "own_share": 0.2} | dealt,
        train=train | changes.pop("train", {}),
        privacy=privacy,
        personal=own | changes.pop("personal", {}),
        aggregate={"rule": "mean"},
        **changes,
    )


def by_the_paper(parts, cohorts=COHORTS):
    """The paper's loop, in which each silo keeps its w_k; with plain gradients."""
    work, w_bar = workspace(parts.model, clip=None, physical_batch=256), parts.params.clone()
    w = {k: w_bar.clone() for k in range(CLIENTS)}
    for cohort in cohorts:
        moved = []
        for k in cohort:
            client, own = parts.population[k], work.theta.copy_(w[k])
            for _ in range(STEPS):
                loss = cross_entropy(work.model(client.x), client.y)
                g = torch.cat([p.reshape(-1) for p in torch.autograd.grad(loss, list(work.model.parameters()))])
                own.sub_(LOCAL_RATE * (g + LAMBDA * (own - w_bar)))
            moved.append((client.size, own - w[k]))
            w[k] = own.clone()
        w_bar = w_bar + sum(n * step for n, step in moved) / sum(n for n, _ in moved)
    return w_bar, w


@pytest.mark.parametrize("privacy", [NONE, QUIET, CLIENT], ids=["none", "record", "client"])
def test_rounds_are_those_of_the_paper(privacy):
    parts = build(asked(privacy))
    state, (w_bar, w) = run(parts), by_the_paper(parts)
    assert torch.allclose(state.params, w_bar, atol=1e-4)
    for k, own in w.items():
        assert torch.allclose(state.control["own"][k], own, atol=1e-4)
    assert not torch.allclose(run(build(asked(privacy, strength=None))).params, w_bar, atol=1e-2)


def test_without_a_pull_a_client_trains_as_if_the_others_were_not_there():
    everybody, alone = build(asked(NONE, strength=0.0)), [[2]] * 3
    with_others = run(everybody, [[0, 2, 4], [1, 2, 3], [4, 2, 1]])
    assert torch.allclose(with_others.control["own"][2], run(everybody, alone).control["own"][2], atol=1e-5)


def test_an_own_model_is_the_first_model_and_all_that_its_client_has_sent():
    experiment = asked({"kind": "local", "epsilon": [1.0, 2.0, 3.0, 4.0, 5.0]}, train={"schedule": "cosine"})
    parts = build(experiment)
    algorithm, schedule = parts.algorithm, parts.algorithm.server.schedule
    own = parts.params.repeat(CLIENTS, 1)
    work, state = workspace(parts.model, clip=1.0, physical_batch=256), algorithm.init(parts.params)
    for round, cohort in enumerate(COHORTS[:3]):
        clients = [parts.population[k] for k in cohort]
        received = in_round(algorithm.broadcast(state, clients, round=round), round)
        collecting = algorithm.collect(state, round=round)
        for client in clients:
            trained = algorithm.train(work, received, client, partial(seeded(0), round, client.id))
            message = algorithm.release(trained, client, received)
            own[client.index] += schedule(round) * message.tensors["update"]
            collecting.add(message)
        state, _ = collecting.finish(seeded(0))
        assert torch.allclose(state.control["own"], own, atol=1e-6)


def test_what_clients_release_has_the_noise_that_is_stated_wherever_their_own_model_is():
    parts = build(asked({"kind": "local", "epsilon": [1.0] * CLIENTS}))
    quiet = dataclasses.replace(parts.population, x=torch.zeros_like(parts.population.x))
    client, state = quiet[0], parts.algorithm.init(parts.params)
    state = dataclasses.replace(state, control={"own": state.control["own"] + 0.05})
    received = in_round(parts.algorithm.broadcast(state, [client], round=0), 0)
    work = workspace(parts.model, clip=1.0, physical_batch=256)
    noises, left = [], (1 - LOCAL_RATE * LAMBDA) ** STEPS  # of the way to the common model
    for place in range(40):
        update = parts.algorithm.train(work, received, client, partial(seeded(place), "a")).update
        noises.append((update.vector - 0.05 * (left - 1))[:640])  # no input, no gradient there
    noise, std = torch.cat(noises), update.noise_std
    assert has_std(noise, std)
    assert not has_std(noise, std * 2 / 3)
    assert not has_std(noise, std * 3 / 2)


def test_the_price_is_that_of_the_same_run_without_own_models():
    private = {"kind": "local", "epsilon": [1.0] * CLIENTS}
    own, common = build(asked(private)), build(asked(private, strength=None))
    for k in range(CLIENTS):
        costs = [repr(parts.algorithm.cost(parts.population[k])) for parts in (own, common)]
        assert costs[0] == costs[1]


def test_releases_with_another_strength_share_no_noise():
    private = {"kind": "local", "epsilon": [1.0] * CLIENTS}
    after = {"when": "after", "strength": None, "kind": "head"}
    chosen = [
        asked(private),
        asked(private, strength=0.2),
        asked(private, strength=None),
        asked(private, personal=after),
    ]
    digests = [build(experiment).releases.digest for experiment in chosen]
    assert len(set(digests)) == 3
    assert digests[2] == digests[3]  # what is made after the last round is in no release


def test_own_models_of_a_run_that_promises_nothing_are_not_said_to_have_an_epsilon(tmp_path):
    history = tacit.run(asked(NONE, run={"workers": 1}), out=tmp_path, page=False)
    words = dict(in_words(history.summary["personal"]))["own models"]
    assert "they have no epsilon: do not publish them" in words
    assert collect([tmp_path])["personal"]["promised"] is False


def test_a_run_reports_the_models_of_training_and_says_that_they_have_its_epsilon(tmp_path):
    experiment = asked({"kind": "local", "epsilon": [1.0, 2.0, 3.0, 4.0, 5.0]}, run={"workers": 1})
    history = tacit.run(experiment, out=tmp_path / "run", page=False)
    told, kept = history.summary["personal"], load_file(tmp_path / "run" / CHECKPOINT)["control.own"]
    assert kept.shape == (CLIENTS, 650)
    assert "has this epsilon too" in history.sentence
    assert "must not be published" not in history.sentence
    assert "with the run's epsilon" in dict(in_words(told))["own models"]
    assert told["stay_alone"] == 0
    judge = build(experiment).population.held
    right = [
        ((judge[k].x.reshape(-1, 64) @ w[:640].reshape(10, 64).T + w[640:]).argmax(1) == judge[k].y)
        for k, w in enumerate(kept)
    ]
    assert told["metrics"]["accuracy"]["own"]["value"] == pytest.approx(
        float(torch.cat(right).float().mean()), abs=1e-4
    )


@pytest.mark.parametrize(
    ("privacy", "changes", "sentence"),
    [
        (NONE, {"personal": {"kind": "head", "strength": None}}, r'is for personal.kind = "mean-regularised"'),
        (NONE, {"personal": {"strength": None}}, r"would have a price: say it, such as 0\.1"),
        (NONE, {"personal": {"strength": 9.0}}, r"steps would overshoot further and further"),
        (NONE, {"train": {"proximal": 0.1}}, r"train\.proximal pull the same steps elsewhere"),
        (NONE, {"train": {"control": "scaffold"}}, r"train\.control pull the same steps elsewhere"),
        ({"kind": "central", "epsilon": 3.0}, {}, r'set privacy.kind = "local" or "none"'),
        ({"kind": "distributed", "epsilon": 3.0}, {}, r'set privacy.kind = "local" or "none"'),
        ({"kind": "local", "epsilon": 3.0}, {"audit": {"canaries": 4}}, r"\[audit\] is not known to own models"),
        (
            {"kind": "local", "epsilon": 3.0},
            {"attack": {"kind": "replacement", "clients": 1}},
            r"\[attack\] is not known",
        ),
    ],
)
def test_what_cannot_be_is_one_sentence(privacy, changes, sentence):
    with pytest.raises(BadInput, match=sentence):
        asked(privacy, **changes)


def test_a_rule_that_sends_a_part_of_an_update_is_refused():
    experiment = asked({"kind": "local", "epsilon": [1.0] * 4 + [9.0]})
    with pytest.raises(BadInput, match=r'personal\.when = "during" follows whole updates'):
        build(experiment.model_copy(update={"aggregate": tacit.Experiment(aggregate={"rule": "pfa-plus"}).aggregate}))


def test_neither_a_server_nor_a_site_has_own_models_during_training():
    with pytest.raises(BadInput, match="each site's own choice"):
        deployable(asked({"kind": "local", "epsilon": 3.0}), "5", trial=True)
    own = {"kind": "mean-regularised", "strength": 0.1, "when": "during"}
    with pytest.raises(BadInput, match=r"are for simulations: leave out personal\.when"):
        wanted({"name": "north", "held_out": 0.2, "personal": own})


def test_clients_that_begin_with_their_own_models_are_not_stacked(tmp_path):
    experiment = asked({"kind": "local", "epsilon": [1.0] * CLIENTS}, run={"at_once": True})
    with pytest.raises(BadInput, match=r"a model of its own \(personal\.when\)"):
        tacit.run(experiment, out=tmp_path / "run", page=False)
