"""SCAFFOLD gives what the paper's Algorithm 1 gives, with clients that keep nothing; under local DP at the same price."""

import dataclasses
from functools import partial

import pytest
import torch
from statistical import has_std
from torch.nn.functional import cross_entropy

import tacit
from tacit.algorithms import finished, in_round
from tacit.engine.assemble import build
from tacit.errors import BadInput, Refused
from tacit.random import seeded
from tacit.training.sgd import workspace
from tacit.types import Message
from tacit.wire import pack, state_digest, unpack

COHORTS = [[0, 2, 4], [1, 2, 3], [4, 0, 1], [2, 3, 0]]
LOCAL_RATE, STEPS, CLIENTS = 0.4, 5, 5
NONE = {"kind": "none"}
QUIET = {"kind": "local", "epsilon": float("inf"), "noise_multiplier": 1e-9, "clip": 1e4}
CLIENT = QUIET | {"unit": "client"}


def parts_of(privacy, *, control="scaffold", **train):
    full = {"sampling_rate": 1.0} if privacy["kind"] == "local" and "unit" not in privacy else {"batch_size": 40}
    steps = {"rounds": len(COHORTS), "local_steps": STEPS, "learning_rate": LOCAL_RATE, "control": control}
    return build(
        tacit.Experiment(
            data={
                "clients": CLIENTS,
                "examples_per_client": 40,
                "partition": "dirichlet",
                "alpha": 0.1,
                "min_size": 40,
            },
            train=full | steps | train,
            privacy=privacy,
            aggregate={"rule": "mean"},
        )
    )


def run(parts, cohorts=COHORTS, state=None):
    """Rounds of chosen clients, through the wire's bytes."""
    algorithm, work = parts.algorithm, workspace(parts.model, clip=parts.plan.training_clip, physical_batch=256)
    state = state or algorithm.init(parts.params)
    for r, cohort in enumerate(cohorts):
        clients = [parts.population[index] for index in cohort]
        received = unpack(pack(algorithm.broadcast(state, clients, round=r)))
        messages = []
        for client in clients:
            trained = algorithm.train(work, in_round(received, r), client, partial(seeded(0), r, client.id))
            messages.append(algorithm.release(trained, client, received))
        state, _ = finished(algorithm.collect(state, round=r), messages, seeded(0))
    return state


def by_the_paper(parts, cohorts=COHORTS):
    """Algorithm 1 of arXiv:1910.06378, option II, where every client keeps its own c_i; eta_g = 1."""
    work = workspace(parts.model, clip=None, physical_batch=256)
    x, c, c_i = parts.params.clone(), torch.zeros_like(parts.params), {}
    for cohort in cohorts:
        dy, dc = [], []
        for i in cohort:
            client, y = parts.population[i], work.theta.copy_(x)
            own = c_i.get(i, torch.zeros_like(x))
            for _ in range(STEPS):
                loss = cross_entropy(work.model(client.x), client.y)
                g = torch.cat([p.reshape(-1) for p in torch.autograd.grad(loss, list(work.model.parameters()))])
                y.sub_(LOCAL_RATE * (g - own + c))  # line 10
            new = own - c + (x - y) / (STEPS * LOCAL_RATE)  # line 12, option II
            dy, dc, c_i[i] = [*dy, y - x], [*dc, new - own], new
        x = x + torch.stack(dy).mean(0)  # line 16
        c = c + len(cohort) / CLIENTS * torch.stack(dc).mean(0)  # line 17
    return x, c, c_i


@pytest.mark.parametrize("privacy", [NONE, QUIET, CLIENT], ids=["none", "record", "client"])
def test_rounds_are_those_of_the_paper(privacy):
    parts = parts_of(privacy)
    state, (x, c, c_i) = run(parts), by_the_paper(parts)
    assert torch.allclose(state.params, x, atol=1e-4)
    assert torch.allclose(state.control["c"], c, atol=1e-4)
    for i, own in c_i.items():
        assert torch.allclose(state.control["clients"][i], own, atol=1e-4)
    assert not torch.allclose(run(parts_of(privacy, control=None)).params, x, atol=1e-2)


def test_the_common_optimum_is_that_of_all_records_where_clients_have_unequal_numbers_of_them():
    data = {"name": "digits", "clients": 3, "partition": "dirichlet", "alpha": 0.3, "min_size": 30}
    train = {"rounds": 2, "local_steps": 10, "batch_size": 2000, "control": "scaffold", "weight_decay": 0.1}
    parts = build(tacit.Experiment(data=data, train=train, privacy=NONE, aggregate={"rule": "mean"}))
    assert parts.population.sizes.max() > 1.5 * parts.population.sizes.min()
    scaffold = parts.algorithm.server.control
    assert scaffold.weights == pytest.approx(parts.population.sizes / parts.population.sizes.sum())
    state, x, y = run(parts, [[0, 1, 2]] * 40), parts.population.x, parts.population.y
    work = workspace(parts.model, clip=None, physical_batch=256)
    work.theta.copy_(state.params)
    pooled = torch.autograd.grad(cross_entropy(work.model(x), y), list(work.model.parameters()))
    clients = [parts.population[i] for i in range(3)]
    apart = [torch.autograd.grad(cross_entropy(work.model(c.x), c.y), list(work.model.parameters())) for c in clients]
    equal = [torch.stack(parts).mean(0) for parts in zip(*apart, strict=True)]
    decay = 0.1 * state.params
    norms = [float((decay + torch.cat([g.reshape(-1) for g in found])).norm()) for found in (pooled, equal)]
    assert norms[0] < norms[1] / 20


def test_what_clients_release_has_the_noise_that_is_stated_whatever_their_correction():
    noisy = {"kind": "local", "epsilon": [1.0] * CLIENTS}
    parts = parts_of(noisy)
    quiet = dataclasses.replace(parts.population, x=torch.zeros_like(parts.population.x))
    client, state = quiet[0], parts.algorithm.init(parts.params)
    controls = {name: torch.full_like(tensor, 0.01) for name, tensor in state.control.items()}
    state = dataclasses.replace(state, control=controls | {"c": controls["c"] * 3})
    received = in_round(parts.algorithm.broadcast(state, [client], round=0), 0)
    work = workspace(parts.model, clip=1.0, physical_batch=256)
    noises = []
    for place in range(40):
        update = parts.algorithm.train(work, received, client, partial(seeded(place), "a")).update
        moved = -LOCAL_RATE * STEPS * 0.02  # c - c_i in every step
        noises.append((update.vector - moved)[:640])  # no input, no gradient there
    noise, std = torch.cat(noises), update.noise_std
    assert has_std(noise, std)
    assert not has_std(noise, std * 2 / 3)
    assert not has_std(noise, std * 3 / 2)


def test_momentum_is_counted_in_what_a_gradient_moves():
    parts = parts_of(NONE, momentum=0.9, local_steps=6)
    state = run(parts, [[0]])
    client, work = parts.population[0], workspace(parts.model, clip=None, physical_batch=256)
    work.theta.copy_(parts.params)
    weights, y, m, total = [(1 - 0.9 ** (6 - j)) / 0.1 for j in range(6)], work.theta, 0.0, 0.0
    for w in weights:
        loss = cross_entropy(work.model(client.x), client.y)
        g = torch.cat([p.reshape(-1) for p in torch.autograd.grad(loss, list(work.model.parameters()))])
        m = 0.9 * m + g
        y.sub_(LOCAL_RATE * m)
        total = total + w * g
    assert torch.allclose(state.control["clients"][0], total / sum(weights), atol=1e-5)  # a mean of gradients


def test_a_round_starts_from_the_control_variates():
    parts = parts_of(NONE)
    state = parts.algorithm.init(parts.params)
    moved = dataclasses.replace(state, control=state.control | {"clients": state.control["clients"] + 1})
    assert state_digest(state) != state_digest(moved)
    assert state_digest(state) != state_digest(dataclasses.replace(state, control={}))


def test_a_client_is_counted_as_told_the_model_and_its_own_correction(tmp_path):
    def down(control):
        train = {"rounds": 1, "local_steps": 1, "control": control}
        experiment = tacit.Experiment(data={"clients": 20, "examples_per_client": 10}, train=train, privacy=NONE)
        return tacit.run(experiment, out=tmp_path / control, page=False).rounds[0]["downlink_bytes"]

    assert 1.9 < down("scaffold") / down("none") < 2.4  # its name list is longer than nothing


@pytest.mark.parametrize("kind", ["central", "distributed"])
def test_where_only_sums_are_released_it_is_refused(kind):
    with pytest.raises(BadInput, match="only sums are"):
        tacit.Experiment(train={"control": "scaffold"}, privacy={"kind": kind, "epsilon": 3.0})


def test_a_rule_that_sends_a_part_of_an_update_is_refused():
    privacy = {"kind": "local", "epsilon": [1.0] * 4 + [9.0]}
    with pytest.raises(BadInput, match="follows whole updates"):
        build(
            tacit.Experiment(
                data={"clients": 5}, train={"control": "scaffold"}, privacy=privacy, aggregate={"rule": "pfa-plus"}
            )
        )


def test_a_foreign_rule_that_sends_no_update_is_named():
    parts = parts_of(NONE)
    with pytest.raises(BadInput, match="Client client-0 sent no whole update"):
        parts.algorithm.collect(parts.algorithm.init(parts.params), round=0).add(Message("client-0", {}))


def test_more_control_variates_than_can_be_kept_are_refused(monkeypatch):
    monkeypatch.setattr("tacit.privacy.wiring.MOST_CONTROLS", 5 * 650 - 1)
    with pytest.raises(BadInput, match="keeps 650 numbers for each of 5 clients"):
        parts_of(NONE)


def test_a_site_takes_no_part_in_it():
    from redteam.lying_server import experiment

    from tacit.deploy.site.consent import read_experiment

    with pytest.raises(Refused, match=r"leave out train\.control"):
        read_experiment(experiment(train={"control": "scaffold"}).toml())
