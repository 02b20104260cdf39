"""Sums of records of many clients at once give what each client's own gives: the slow twin is one client after the other."""

import copy
import dataclasses
import sqlite3
from functools import partial

import numpy as np
import pytest
import torch
from statistical import has_std, is_poisson_sampling

import tacit
from tacit.algorithms.record_sums import InTotal, RecordSums, longest
from tacit.engine import summed
from tacit.engine.assemble import build
from tacit.engine.canaries import wrap
from tacit.engine.stacked import Split, Stacked
from tacit.engine.trainers import OneByOne, task, workspace_of
from tacit.random import seeded
from tacit.training.sgd import workspace
from tacit.types import Message
from tacit.wire import pack, receive_any, size_of

COHORT = [4, 0, 2, 3, 1]
EPSILONS = [0.3, 1.0, 3.0, 5.0, 9.0]


def parts_of(kind, model="logr", *, privacy=None, **train):
    privacy = {"kind": kind, "unit": "record", "epsilon": EPSILONS, "delta": 1e-3, "clip": 0.7} | (privacy or {})
    data = {"clients": 5, "examples_per_client": 40}
    steps = {"rounds": 4, "local_steps": 1, "learning_rate": 0.5, **train}
    return build(tacit.Experiment(data=data, model={"name": model}, train=steps, privacy=privacy))


def fast(parts, chunk=8, model=None):
    work = workspace_of(parts, model=model)
    return Stacked(parts.algorithm, work, parts.population, parts.derive, chunk=chunk)


def slow(parts):
    return OneByOne(task(parts.algorithm, workspace_of(parts), parts.population, parts.derive))


def replies(parts, trainer):
    clients = [parts.population[index] for index in COHORT]
    message = parts.algorithm.broadcast(parts.algorithm.init(parts.params), clients, round=0)
    answers = trainer.dispatch(message, 0, COHORT)
    return [(sent if isinstance(sent, Message) else receive_any(sent), info) for sent, info in answers]


def served(parts, answers):
    collecting = parts.algorithm.collect(parts.algorithm.init(parts.params), round=0)
    for message, _ in answers:
        collecting.add(message)
    return collecting.finish(partial(seeded(0), "server"))


def total_of(answers):
    return sum(message.total.vector.double() for message, _ in answers if message.total is not None)


@pytest.mark.parametrize("chunk", [8, 2, 1])
@pytest.mark.parametrize(
    ("model", "train"), [("logr", {}), ("mlp", {}), ("cnn", {"views": 3}), ("stacks:untraced", {})]
)
def test_one_batch_of_all_clients_has_the_sum_of_the_clients_own(model, train, chunk):
    parts = parts_of("central", model, **train)
    alone, together = replies(parts, slow(parts)), replies(parts, fast(parts, chunk))
    total = sum(message.tensors["update"].double() for message, _ in alone)
    assert sum(message.total is not None for message, _ in together) == -(-5 // chunk)
    assert float((total_of(together) - total).norm()) < 1e-4 * float(total.norm())
    for (a, a_info), (b, b_info) in zip(alone, together, strict=True):
        assert a.sender == b.sender
        assert a_info == pytest.approx(b_info, rel=1e-3)
        assert size_of(a) == size_of(b)


@pytest.mark.parametrize(
    ("records", "groups"),
    [
        ([3_400.0], [1]),
        ([3_400.0, 0.1], [1, 1]),
        ([1_700.0, 1_700.0, 1.0], [2, 1]),
        ([5_000.0, 5_000.0, 10.0, 10.0], [1, 1, 2]),
        ([100.0] * 100, [34, 34, 32]),
    ],
)
def test_a_sum_is_expected_to_hold_no_more_records_than_its_rounding_is_proved_for(records, groups):
    found = summed.grouped(records)
    assert [part.stop - part.start for part in found] == groups
    assert [k for part in found for k in range(part.start, part.stop)] == list(range(len(records)))
    shared = [sum(records[part]) for part, count in zip(found, groups, strict=True) if count > 1]
    expected = max(shared, default=summed.MOST_IN_ONE)
    assert longest(expected) <= 2**30 / (1_024 * 256)  # m B with 1,024 positions and 256 examples at a time


def test_a_record_moves_the_bits_of_its_own_sum_alone(monkeypatch):
    monkeypatch.setattr(summed, "MOST_IN_ONE", 80)
    parts = parts_of("central", "cnn", views=2)
    totals = {}
    for name in ("as it was", "another record"):
        if name == "another record":
            parts.population.x[int(parts.population.offsets[COHORT[0]])] *= 0.5
        answers = replies(parts, fast(parts))
        totals[name] = [message.total.vector for message, _ in answers if message.total is not None]
    own, *others = [torch.equal(a, b) for a, b in zip(*totals.values(), strict=True)]
    assert len(others) >= 1
    assert all(others)
    assert not own
    moved = float((totals["as it was"][0] - totals["another record"][0]).norm())
    assert moved <= 2 * 0.7


def test_the_server_takes_the_step_that_it_takes_from_single_sums_but_for_the_noise():
    quiet = {"epsilon": 1e9, "noise_multiplier": 1e-3}
    parts = parts_of("central", privacy=quiet)
    (a, told), (b, also) = (served(parts, replies(parts, trainer(parts))) for trainer in (slow, fast))
    assert torch.allclose(a.params, b.params, atol=1e-5)
    assert not torch.allclose(a.params, parts.params, atol=1e-3)
    assert told["batch"] == also["batch"]
    assert told["noise_std"] == also["noise_std"]
    assert told["refused"] == also["refused"] == {}


def test_the_noise_on_one_batch_has_the_deviation_that_is_priced_and_not_two_thirds_of_it():
    parts = parts_of("central", "mlp")
    silent = dataclasses.replace(parts.population, x=torch.zeros_like(parts.population.x))
    parts = dataclasses.replace(parts, population=silent)
    state, info = served(parts, replies(parts, fast(parts)))
    moved = (state.params - parts.params)[: 64 * 200]  # which have no gradient
    noise = parts.algorithm.noise
    assert info["noise_std"] >= 0.5 * parts.plan.chosen.multiplier * 0.7 / info["batch"]
    assert info["noise_std"] == pytest.approx(0.5 * noise.noise_std / info["batch"])
    for factor, fits in ((1, True), (2 / 3, False), (3 / 2, False)):
        assert has_std(moved, factor * info["noise_std"]) == fits


@pytest.mark.parametrize("kind", ["central", "distributed"])
def test_one_record_moves_the_sum_by_at_most_the_clip_and_no_other_clients(kind):
    parts = parts_of(kind)
    rates = np.ones(5)
    own = parts.algorithm.mechanism
    all_drawn = dataclasses.replace(
        parts.algorithm, mechanism=lambda client: dataclasses.replace(own(client), sampling_rate=float(rates[0]))
    )
    parts = dataclasses.replace(parts, algorithm=all_drawn)
    x = parts.population.x.clone()
    x[0] = 1e6
    there = dataclasses.replace(parts, population=dataclasses.replace(parts.population, x=x))

    def trainer(other):  # with the same noise, which other rows would not have
        return Stacked(other.algorithm, workspace_of(other), other.population, parts.derive, chunk=8)

    before, after = (replies(other, trainer(other)) for other in (parts, there))
    if kind == "central":
        moved = float((total_of(after) - total_of(before)).norm())
        assert 0.7 < moved <= 2 * 0.7  # replaced, so at most twice
        return
    moved = [
        (b.tensors["report"] - a.tensors["report"]).double().norm() * parts.plan.grid.step
        for (a, _), (b, _) in zip(before, after, strict=True)
    ]
    assert 0.7 < float(moved[1]) <= 2 * 0.7 * 1.1  # client 0 answers second
    assert all(float(moved[place]) == 0 for place in (0, 2, 3, 4))


@pytest.mark.parametrize("chunk", [8, 2])
def test_secret_integers_are_those_of_single_clients_but_for_a_rounding_here_and_there(chunk):
    parts = parts_of("distributed", "cnn", views=2)
    for (a, a_info), (b, b_info) in zip(replies(parts, slow(parts)), replies(parts, fast(parts, chunk)), strict=True):
        apart = (a.tensors["report"] - b.tensors["report"]).abs()
        assert a.sender == b.sender
        assert int(apart.max()) <= 1
        assert float((apart > 0).double().mean()) < 0.01
        assert a_info == pytest.approx(b_info, rel=1e-3)


def test_batches_are_drawn_at_each_clients_own_rate(monkeypatch):
    given = {"rate_cap": 100.0, "noise_multiplier": 4.0, "epsilon": [0.1, 0.15, 0.2, 0.3, 0.4]}
    parts, drawn = parts_of("central", privacy=given), {index: [] for index in COHORT}
    own = parts.algorithm.mechanism

    def watched(client):
        mechanism = own(client)

        def sample(real, *given):
            state, batch = real(*given)
            drawn[client.index].append(batch)
            return state, batch

        return wrap(mechanism, sample=sample)

    algorithm = dataclasses.replace(parts.algorithm, mechanism=watched)
    clients = [parts.population[index] for index in COHORT]
    received = algorithm.broadcast(algorithm.init(parts.params), clients, round=0)
    for turn in range(150):
        streams = [partial(seeded(turn), client.id) for client in clients]
        summed.begin_sums(algorithm, workspace_of(parts), parts.population, received, clients, streams)
    rates = parts.plan.chosen.rates
    assert rates.max() > 1.5 * rates.min()
    for index in COHORT:
        assert is_poisson_sampling(drawn[index], size=40, rate=float(rates[index]))
        assert parts.algorithm.cost(parts.population[index]).event.sampling_probability == rates[index]


def test_a_batch_that_a_server_would_scale_down_is_sent_by_each_client_alone(monkeypatch):
    parts = parts_of("central")
    monkeypatch.setattr(RecordSums, "longest_batch", 3)
    answers = replies(parts, fast(parts))
    assert not any(isinstance(message, InTotal) for message, _ in answers)
    for (a, _), (b, _) in zip(answers, replies(parts, slow(parts)), strict=True):
        assert torch.equal(a.tensors["update"], b.tensors["update"])


def test_an_answer_in_a_total_that_has_crossed_a_wire_is_no_answer():
    parts = parts_of("central")
    _, info = served(parts, [(receive_any(pack(message)), told) for message, told in replies(parts, fast(parts))])
    assert set(info["refused"]) == set(parts.population.names)
    assert all("it sent no update" in why for why in info["refused"].values())


@pytest.mark.parametrize("kind", ["central", "distributed"])
def test_sums_that_were_clipped_for_another_price_are_refused(kind):
    parts = parts_of(kind)
    work = workspace(parts.model, clip=1.4, physical_batch=256)
    trainer = Stacked(parts.algorithm, work, parts.population, parts.derive, chunk=8)
    with pytest.raises(TypeError, match="clipped as was priced"):
        replies(parts, trainer)


def test_a_cohort_over_several_devices_has_one_total_for_each():
    parts = parts_of("central")
    answers = replies(parts, Split([fast(parts, model=copy.deepcopy(parts.model)) for _ in range(2)]))
    assert sum(message.total is not None for message, _ in answers) == 2
    whole = total_of(replies(parts, fast(parts)))
    assert float((total_of(answers) - whole).norm()) < 1e-4 * float(whole.norm())


def test_an_algorithm_with_somebodys_steps_in_it_runs_them_for_every_client():
    parts, seen = parts_of("central"), []

    def train(real, work, received, client, derive):
        seen.append(client.index)
        return real(work, received, client, derive)

    hooked = dataclasses.replace(parts, algorithm=wrap(parts.algorithm, train=train))
    for (a, _), (b, _) in zip(replies(parts, slow(parts)), replies(hooked, fast(hooked)), strict=True):
        assert torch.equal(a.tensors["update"], b.tensors["update"])
    assert seen == COHORT


def charges(folder):
    ledger = sqlite3.connect(folder / "ledger.db")
    return ledger.execute("SELECT client, round, text FROM charges JOIN events ON events.id = charges.event").fetchall()


@pytest.mark.parametrize("kind", ["central", "distributed"])
def test_a_run_at_once_pays_before_it_trains_and_pays_what_single_clients_pay(kind, tmp_path, monkeypatch):
    seen, real = [], summed.clipped_rows

    def watched(*given):
        if len(given[3]):  # else it looks for its way on made-up rows
            seen.append(len(charges(tmp_path / "at-once")))
        return real(*given)

    monkeypatch.setattr(summed, "clipped_rows", watched)
    privacy = {"kind": kind, "unit": "record", "epsilon": EPSILONS[:4], "delta": 1e-3}
    tables = {"data": {"clients": 4, "examples_per_client": 40}, "privacy": privacy}
    tables |= {"train": {"rounds": 2, "local_steps": 1, "learning_rate": 1.0}}
    runs = {"at-once": {"at_once": True}, "alone": {"workers": 1}}
    rounds = {
        name: tacit.run(tacit.Experiment(**tables, run=run), out=tmp_path / name).rounds for name, run in runs.items()
    }
    assert sorted(set(seen)) == [4, 8]
    assert sorted(charges(tmp_path / "at-once")) == sorted(charges(tmp_path / "alone"))
    for a, b in zip(rounds["at-once"], rounds["alone"], strict=True):
        assert (a["cohort"], a["answered"], a["uplink_bytes"]) == (b["cohort"], b["answered"], b["uplink_bytes"])
        assert a["refused"] == b["refused"] == {}
