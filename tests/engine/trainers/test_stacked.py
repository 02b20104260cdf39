"""Many clients at once give what one by one gives."""

import dataclasses

import pytest
import torch
from statistical import has_std
from torch import nn

import tacit
from tacit.build.parts import build
from tacit.engine.trainers import stacked as module
from tacit.engine.trainers.processes import one_by_one, task
from tacit.engine.trainers.stacked import stackable, stacked
from tacit.engine.wire import pack, unpack
from tacit.errors import BadInput
from tacit.train.workspace import workspace

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
    return one_by_one(task(parts.algorithm, work, parts.population, parts.derive))


def fast(parts, work):
    return stacked(parts.algorithm, work, parts.population, parts.derive)


@pytest.mark.parametrize("model", MODELS)
def test_stacked_clients_send_what_single_ones_send(model):
    parts = parts_of(model)
    for (a, a_info), (b, b_info) in zip(replies(parts, slow), replies(parts, fast), strict=True):
        assert a.sender == b.sender
        assert torch.allclose(a.tensors["update"], b.tensors["update"], atol=2e-5)
        assert not torch.allclose(a.tensors["update"], torch.zeros(()), atol=1e-3)
        assert a.facts["noise_std"] == pytest.approx(b.facts["noise_std"], rel=1e-5)
        assert a_info == pytest.approx(b_info, rel=1e-3)


def test_memory_is_bounded_by_parts_of_the_batch(monkeypatch):
    parts = parts_of()
    whole = replies(parts, fast)
    monkeypatch.setattr(module, "MOST_FLOATS", 5 * parts.params.numel() * 4)
    for (a, _), (b, _) in zip(whole, replies(parts, fast), strict=True):
        assert torch.allclose(a.tensors["update"], b.tensors["update"], atol=1e-6)


def test_clients_may_take_other_numbers_of_steps():
    parts = parts_of(local_steps=None, local_epochs=1)
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
        return stacked(other.algorithm, work, other.population, parts.derive)

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
    assert stackable(parts.algorithm, workspace(parts.model, clip=1.0, physical_batch=8), parts.population)
    assert not stackable(parts.algorithm, workspace(Reads(), clip=1.0, physical_batch=8), parts.population)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_run_on_a_gpu_reaches_the_model_of_the_cpu_but_for_its_own_noise(tmp_path):
    settings = {"data": {"clients": 5}, "train": {"rounds": 3, "sampling_rate": 1.0}}
    settings |= {"privacy": {"kind": "local", "epsilon": float("inf"), "noise_multiplier": 0.01}}
    runs = [{"device": "cuda"}, {"device": "cpu", "workers": 1}]  # a process that has used a GPU does not fork
    gpu, cpu = (tacit.run(tacit.Experiment(**settings, run=r), out=tmp_path / r["device"]) for r in runs)
    for a, b in zip(cpu.model.parameters(), gpu.model.parameters(), strict=True):
        assert torch.allclose(a, b.cpu(), atol=5e-3)
        assert not torch.equal(a, b.cpu())


def test_a_stacked_sum_says_which_clip_bounded_it_and_noise_for_another_is_refused():
    parts = parts_of()
    with pytest.raises(BadInput, match=r"made for sensitivity 0\.7, got a vector of 1\.4"):
        replies(parts, fast, work=workspace(parts.model, clip=1.4, physical_batch=256))
