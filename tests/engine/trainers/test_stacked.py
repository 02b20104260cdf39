"""Many clients at once give what one by one gives."""

import copy
import dataclasses

import pytest
import torch
from statistical import has_std
from torch import nn

import tacit
from tacit.engine import trainers as make
from tacit.engine.assemble import build
from tacit.engine.stacked import Split, Stacked, stacked
from tacit.engine.trainers import OneByOne, task
from tacit.errors import BadInput, TrainingDiverged
from tacit.privacy.plan import kind_of
from tacit.training import stacked as kernels
from tacit.training.clipping import workspace
from tacit.training.independence import Unsupported
from tacit.wire import pack, size_of, unpack

MODELS = ["logr", "cnn", "mlp"]


def parts_of(model="logr", **train):
    steps = {"rounds": 2, "local_steps": 3, "sampling_rate": 0.3, **train}
    return build(
        tacit.Experiment(
            data={"clients": 5, "examples_per_client": 60},
            model={"name": model},
            train={key: value for key, value in steps.items() if value is not None},
            privacy={"kind": "local", "epsilon": [0.3, 1.0, 3.0, 5.0, 9.0], "clip": 0.7},
        )
    )


def replies(parts, make, work=None):
    work = work or workspace(parts.model, clip=0.7, physical_batch=256)
    message = pack(parts.algorithm.broadcast(parts.algorithm.init(parts.params), [parts.population[0]], round=0))
    return [(unpack(raw), info) for raw, info in make(parts, work)(message, 0, [4, 0, 2, 3])]


def slow(parts, work):
    return OneByOne(task(parts.algorithm, work, parts.population, parts.derive))


def fast(parts, work):
    return Stacked(parts.algorithm, work, parts.population, parts.derive, chunk=8)


def near(a, b):
    """As near as steps are whose sums round in another way: where a rectifier or a maximum is at its kink, one example moves."""
    return float((a - b).norm()) < 2e-3 * float(a.norm())


@pytest.mark.parametrize("model", MODELS)
def test_stacked_clients_send_what_single_ones_send(model):
    parts = parts_of(model)
    for (a, a_info), (b, b_info) in zip(replies(parts, slow), replies(parts, fast), strict=True):
        assert a.sender == b.sender
        assert near(a.tensors["update"], b.tensors["update"])
        assert not torch.allclose(a.tensors["update"], torch.zeros(()), atol=1e-3)
        assert a.facts["noise_std"] == pytest.approx(b.facts["noise_std"], rel=1e-5)
        assert a_info == pytest.approx(b_info, rel=1e-3)


@pytest.mark.parametrize("chunk", [1, 3])
def test_a_cohort_in_chunks_sends_what_the_whole_sends(chunk):
    parts = parts_of()
    in_chunks = lambda p, work: Stacked(p.algorithm, work, p.population, p.derive, chunk=chunk)  # noqa: E731
    for (a, _), (b, _) in zip(replies(parts, fast), replies(parts, in_chunks), strict=True):
        assert torch.allclose(a.tensors["update"], b.tensors["update"], atol=1e-6)


def test_memory_of_a_model_that_is_no_graph_is_bounded_by_parts_of_the_batch(monkeypatch):
    parts = parts_of("stacks:untraced")
    whole, single = replies(parts, fast), replies(parts, slow)
    monkeypatch.setattr(kernels, "MOST_FLOATS", 5 * parts.params.numel() * 4)
    for (a, _), (b, _), (c, _) in zip(whole, replies(parts, fast), single, strict=True):
        assert torch.allclose(a.tensors["update"], b.tensors["update"], atol=1e-6)
        assert torch.allclose(a.tensors["update"], c.tensors["update"], atol=2e-5)


def test_clients_may_take_other_numbers_of_steps():
    parts = parts_of(local_steps={"epochs": 1})
    steps = {0: 2, 2: 5, 3: 2, 4: 1}
    own = parts.algorithm.mechanism
    uneven = dataclasses.replace(
        parts.algorithm, mechanism=lambda client: dataclasses.replace(own(client), steps=steps[client.index])
    )
    parts = dataclasses.replace(parts, algorithm=uneven)
    for (a, _), (b, _) in zip(replies(parts, slow), replies(parts, fast), strict=True):
        assert torch.allclose(a.tensors["update"], b.tensors["update"], atol=2e-5)


def test_stacked_updates_carry_the_stated_noise_and_not_two_thirds_of_it():
    parts = parts_of("mlp", local_steps=1)
    quiet = dataclasses.replace(parts.population, x=torch.zeros_like(parts.population.x))
    for message, _ in replies(dataclasses.replace(parts, population=quiet), fast):
        noise, std = message.tensors["update"][: 64 * 200], message.facts["noise_std"]  # no input, no gradient there
        assert has_std(noise, std)
        assert not has_std(noise, std * 2 / 3)
        assert not has_std(noise, std * 3 / 2)


def test_one_huge_record_moves_a_stacked_step_by_at_most_the_clip():
    parts = parts_of(local_steps=1, sampling_rate=1.0)
    x = parts.population.x.clone()
    x[0] = 1e6
    there = dataclasses.replace(parts, population=dataclasses.replace(parts.population, x=x))

    def same_noise(other, work):  # other rows would have noise of their own
        return Stacked(other.algorithm, work, other.population, parts.derive, chunk=8)

    moved = [
        a.tensors["update"] - b.tensors["update"]
        for (a, _), (b, _) in zip(replies(parts, same_noise), replies(there, same_noise), strict=True)
    ]
    step = 0.5 / 60 * 0.7  # learning rate / expected batch * clip
    assert step < moved[1].norm() <= 2 * step * (1 + 1e-4)  # replaced, so at most twice; client 0 answers second
    assert all(float(moved[place].norm()) == 0 for place in (0, 2, 3))


def test_frozen_parameters_are_in_no_message():
    parts = parts_of("tuned:head")
    body = parts.model[0][1].weight.clone()
    for (a, _), (b, _) in zip(replies(parts, slow), replies(parts, fast), strict=True):
        assert a.tensors["update"].shape == (16 * 10 + 10,)
        assert bool((a.tensors["update"] != 0).all())
        assert torch.allclose(a.tensors["update"], b.tensors["update"], atol=2e-5)
    assert torch.equal(parts.model[0][1].weight, body)


def test_a_record_without_a_finite_gradient_counts_as_zero_stacked_or_not():
    parts = parts_of(sampling_rate=1.0)
    x = parts.population.x.clone()
    x[int(parts.population.offsets[2])] = float("nan")
    broken = dataclasses.replace(parts, population=dataclasses.replace(parts.population, x=x))
    for (a, a_info), (b, b_info) in zip(replies(broken, slow), replies(broken, fast), strict=True):
        assert torch.allclose(a.tensors["update"], b.tensors["update"], atol=2e-5)
        assert bool(b.tensors["update"].isfinite().all())
        assert a_info == pytest.approx(b_info, rel=1e-3)


def test_products_that_round_their_factors_are_refused():
    parts, before = parts_of(), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(BadInput, match="can exceed the clip"):
            replies(parts, fast)
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_model_that_vmap_cannot_take_is_not_stacked():
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 10)

        def forward(self, x):
            x = x.flatten(1)
            return self.layer(x) * (1.0 if float(x.sum()) > 0 else 0.5)

    parts = parts_of()
    with pytest.raises(Unsupported):
        fast(parts, workspace(Reads(), clip=1.0, physical_batch=8))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_run_on_a_gpu_reaches_the_model_of_the_cpu_but_for_its_own_noise(tmp_path):
    settings = {"data": {"clients": 5}, "train": {"rounds": 3, "sampling_rate": 1.0}}
    settings |= {"privacy": {"kind": "local", "epsilon": float("inf"), "noise_multiplier": 0.01}}
    runs = [{"device": "cuda"}, {"device": "cpu", "workers": 1}]  # a process that has used a GPU does not fork
    gpu, cpu = (tacit.run(tacit.Experiment(**settings, run=r), out=tmp_path / r["device"]) for r in runs)
    for a, b in zip(cpu.model.parameters(), gpu.model.parameters(), strict=True):
        assert torch.allclose(a, b.cpu(), atol=5e-3)
        assert not torch.equal(a, b.cpu())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["none", "central", "local"])
def test_two_workers_on_one_gpu_give_what_one_gives_also_while_steps_are_recorded(kind):
    privacy = {"kind": kind} if kind == "none" else {"kind": kind, "epsilon": 5.0, "clip": 0.5}
    settings = {"data": {"clients": 12}, "model": {"name": "cnn"}, "privacy": privacy}
    parts = build(tacit.Experiment(**settings, run={"device": "cuda:0,cuda:0"}))
    parts = dataclasses.replace(parts, together=12)
    message = parts.algorithm.broadcast(
        parts.algorithm.init(parts.params), [parts.population[k] for k in range(12)], round=0
    )
    known = (parts.algorithm, make.workspace_of(parts), parts.population, parts.derive)
    one, two = Stacked(*known, chunk=12), stacked(parts)
    for _ in range(4):  # as it is, recorded, played
        answers = [
            [unpack(raw).tensors["update"] for raw, _ in some(pack(message), 0, range(12))] for some in (one, two)
        ]
        torch.testing.assert_close(*map(torch.stack, answers), rtol=1e-3, atol=1e-4)


def test_a_stacked_sum_says_which_clip_bounded_it_and_noise_for_another_is_refused():
    parts = parts_of()
    with pytest.raises(BadInput, match=r"made for sensitivity 0\.7, got a vector of 1\.4"):
        replies(parts, fast, work=workspace(parts.model, clip=1.4, physical_batch=256))


KINDS = {
    "none": {"kind": "none"},
    "client level": {"kind": "local", "unit": "client", "epsilon": 8.0, "clip": 0.3},
    "central": {"kind": "central", "epsilon": 8.0, "clip": 0.3},
    "distributed": {"kind": "distributed", "epsilon": 8.0, "clip": 0.3},
}
TRAINING = {
    "plain": {},
    "epochs": {"local_steps": {"epochs": 2}, "batch_size": 60, "learning_rate": 0.02},
    "momentum": {"momentum": 0.9, "weight_decay": 0.01, "proximal": 0.1},
}


def uneven(kind, model="logr", task=None, **train):
    data = {"clients": 5, "partition": "dirichlet", "alpha": 0.5} if task is None else task.pop("data")
    steps = {"rounds": 2, "local_steps": 3, "batch_size": 10, "learning_rate": 0.1, **train}
    settings = {"train": {key: value for key, value in steps.items() if value is not None}, "privacy": KINDS[kind]}
    return build(tacit.Experiment(data=data, model={"name": model}, **settings, **(task or {})))


def both(parts, cohort=(4, 0, 2, 3), round=1):
    work = workspace(parts.model, clip=parts.plan.training_clip, physical_batch=256, losses=parts.losses)
    clients = [parts.population[index] for index in cohort]
    raw = pack(parts.algorithm.broadcast(parts.algorithm.init(parts.params), clients, round=round))
    trainers = (slow(parts, work), Stacked(parts.algorithm, work, parts.population, parts.derive, chunk=3))
    return zip(
        *([(unpack(sent), info) for sent, info in trainer(raw, round, cohort)] for trainer in trainers), strict=True
    )


@pytest.mark.parametrize("training", TRAINING)
@pytest.mark.parametrize("model", ["logr", "mlp", "cnn", "stacks:untraced"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_algorithm_sends_stacked_what_it_sends_one_by_one(kind, model, training):
    for (a, a_info), (b, b_info) in both(uneven(kind, model, **TRAINING[training])):
        assert (a.sender, a.facts) == (b.sender, b.facts)
        (first,), (second,) = a.tensors.values(), b.tensors.values()
        assert near(first.double(), second.double())
        assert float(first.double().norm()) > 1e-3
        assert a_info == pytest.approx(b_info, rel=1e-3)


def test_training_that_diverges_is_named_where_nothing_is_promised_and_is_zero_where_something_is():
    with pytest.raises(TrainingDiverged, match=r"lower train\.learning_rate"):
        list(both(uneven("none", "mlp", learning_rate=1e20)))
    for (a, a_info), (b, b_info) in both(uneven("central", "mlp", learning_rate=1e20)):
        assert a_info["diverged"] == b_info["diverged"] == 1.0
        assert float(a.tensors["update"].norm()) == float(b.tensors["update"].norm()) == 0.0


def test_an_update_that_leaves_float32_in_the_last_step_is_zero_although_the_loss_before_it_was_finite():
    parts = uneven("central", "logr", learning_rate=3e38, local_steps=1)
    parts.population.x.mul_(100)
    for (a, a_info), (b, b_info) in both(parts):
        assert a_info["diverged"] == b_info["diverged"] == 1.0
        assert float(a.tensors["update"].norm()) == float(b.tensors["update"].norm()) == 0.0


def test_the_tensors_that_are_carried_are_those_of_the_bytes():
    parts = uneven("central")
    work = workspace(parts.model, clip=None, physical_batch=256)
    trainer = Stacked(parts.algorithm, work, parts.population, parts.derive, chunk=8)
    clients = [parts.population[index] for index in (1, 3)]
    message = parts.algorithm.broadcast(parts.algorithm.init(parts.params), clients, round=0)
    pairs = zip(trainer(pack(message), 0, [1, 3]), trainer.dispatch(message, 0, [1, 3]), strict=True)
    for (raw, info), (carried, same) in pairs:
        sent = unpack(raw)
        assert info == same
        assert torch.equal(sent.tensors["update"], carried.tensors["update"])
        assert size_of(carried) == len(raw)


def test_where_a_start_cannot_be_repeated_every_call_has_noise_of_its_own():
    parts = parts_of()
    work = workspace(parts.model, clip=0.7, physical_batch=256)
    message = parts.algorithm.broadcast(parts.algorithm.init(parts.params), [parts.population[0]], round=0)
    once, again = (
        Stacked(parts.algorithm, work, parts.population, parts.derive, chunk=8, repeats=repeats)
        for repeats in (True, False)
    )
    (first, _), (second, _) = next(once.dispatch(message, 0, [0])), next(once.dispatch(message, 0, [0]))
    assert torch.equal(first.tensors["update"], second.tensors["update"])
    (first, _), (second, _) = next(again.dispatch(message, 0, [0])), next(again.dispatch(message, 0, [0]))
    assert not torch.allclose(first.tensors["update"], second.tensors["update"], atol=1e-3)


@pytest.mark.parametrize("kind", ["local", *KINDS])
@pytest.mark.parametrize("workers", [2, 3])
def test_a_cohort_that_is_split_sends_what_one_trainer_sends_whatever_the_split(kind, workers):
    parts = parts_of() if kind == "local" else uneven(kind)
    works = [
        workspace(copy.deepcopy(parts.model), clip=parts.plan.training_clip, physical_batch=256, losses=parts.losses)
        for _ in range(workers + 1)
    ]
    alone, *rest = (Stacked(parts.algorithm, work, parts.population, parts.derive, chunk=8) for work in works)
    clients = [parts.population[index] for index in (4, 0, 2, 3)]
    message = parts.algorithm.broadcast(parts.algorithm.init(parts.params), clients, round=0)
    pairs = list(
        zip(alone.dispatch(message, 0, [4, 0, 2, 3]), Split(rest).dispatch(message, 0, [4, 0, 2, 3]), strict=True)
    )
    assert [a.sender for (a, _), _ in pairs] == [client.id for client in clients]
    for (a, _), (b, _) in pairs:
        assert (a.sender, a.facts) == (b.sender, b.facts)
        (first,), (second,) = a.tensors.values(), b.tensors.values()
        assert near(first.double(), second.double())


def test_a_split_leaves_torchs_precision_as_it_found_it():
    parts, before = uneven("none"), torch.get_float32_matmul_precision()
    works = [workspace(copy.deepcopy(parts.model), clip=None, physical_batch=256) for _ in range(3)]
    trainers = [Stacked(parts.algorithm, work, parts.population, parts.derive, chunk=8) for work in works]
    message = parts.algorithm.broadcast(parts.algorithm.init(parts.params), [parts.population[0]], round=0)
    list(Split(trainers, precision="tf32").dispatch(message, 0, [0, 1, 2, 3]))
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        ({"device": "cuda:0,cpu"}, "Expected several run.device of the kind cuda"),
        ({"device": "cpu", "precision": "tf32"}, "is for plain SGD on CUDA devices"),
    ],
)
def test_devices_and_precision_that_cannot_be_are_one_sentence(run, sentence):
    with pytest.raises(BadInput, match=sentence):
        tacit.Experiment(run=run)


def test_coarse_products_are_refused_where_examples_are_clipped():
    asked = tacit.Experiment(run={"device": "cuda", "precision": "bfloat16"}, privacy={"kind": "local", "epsilon": 3.0})
    parts = parts_of()
    with pytest.raises(BadInput, match="could exceed the clip: leave it out"):
        kind_of(asked).plan(asked, parts.population, size=10)
