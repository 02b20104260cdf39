"""Many clients at once give what one by one gives; DP-SGD with noise drawn on a device is tried on the CPU."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from statistical import has_std
from torch import nn

import tacit
from tacit.engine import stacked as module
from tacit.engine import trainers as make
from tacit.engine.assemble import build
from tacit.engine.stacked import InStep, Split, Stacked, stacked
from tacit.engine.trainers import OneByOne, task
from tacit.errors import BadInput, TrainingDiverged
from tacit.privacy.plan import kind_of
from tacit.random import Stream, keyed, seeded
from tacit.training import stacked as kernels
from tacit.training.batches import Shifts
from tacit.training.fused import DeviceStream
from tacit.training.independence import Unsupported
from tacit.training.sgd import workspace
from tacit.wire import pack, size_of, unpack

COHORT = [4, 0, 2, 3]
LOCAL = {"kind": "local", "epsilon": [0.3, 1.0, 3.0, 5.0, 9.0], "clip": 0.7}
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
DESCENT = {"momentum": 0.9, "weight_decay": 0.01, "proximal": 0.3, "schedule": "cosine"}


def parts_of(model="logr", privacy=LOCAL, examples=60, **train):
    steps = {"rounds": 2, "local_steps": 3, "sampling_rate": 0.3, **train}
    data = {"clients": 5, "examples_per_client": examples}
    return build(tacit.Experiment(data=data, model={"name": model}, train=steps, privacy=privacy))


def uneven(kind, model="logr", **train):
    data = {"clients": 5, "partition": "dirichlet", "alpha": 0.5}
    steps = {"rounds": 2, "local_steps": 3, "batch_size": 10, "learning_rate": 0.1, **train}
    return build(tacit.Experiment(data=data, model={"name": model}, train=steps, privacy=KINDS[kind]))


def work_of(parts, model=None):
    own = parts.model if model is None else model
    return workspace(own, clip=parts.plan.training_clip, physical_batch=256, losses=parts.losses)


def broadcast(parts, *, round=0, state=None, cohort=COHORT):
    state = state or parts.algorithm.init(parts.params)
    return parts.algorithm.broadcast(state, [parts.population[index] for index in cohort], round=round)


def slow(parts, work):
    return OneByOne(task(parts.algorithm, work, parts.population, parts.derive))


def fast(parts, work, chunk=8, **how):
    return Stacked(parts.algorithm, work, parts.population, parts.derive, chunk=chunk, **how)


def replies(parts, make, work=None, *, round=0, state=None):
    raw = pack(broadcast(parts, round=round, state=state))
    return [(unpack(sent), info) for sent, info in make(parts, work or work_of(parts))(raw, round, COHORT)]


def pairs(parts, one=slow, other=fast, **where):
    return zip(replies(parts, one, **where), replies(parts, other, **where), strict=True)


def same(parts, one=slow, other=fast, atol=2e-5, **where):
    for (a, _), (b, _) in pairs(parts, one, other, **where):
        assert torch.allclose(a.tensors["update"], b.tensors["update"], atol=atol)


def near(a, b):
    """As near as steps are whose sums round in another way: where a rectifier or a maximum is at its kink, one example moves."""
    (first,), (second,) = a.tensors.values(), b.tensors.values()
    assert a.sender == b.sender
    assert a.facts == pytest.approx(b.facts, rel=1e-5)
    assert float(first.double().norm()) > 1e-3
    return float((first.double() - second.double()).norm()) < 2e-3 * float(first.double().norm())


def says_its_noise(row, std):
    return has_std(row, std) and not has_std(row, std * 2 / 3) and not has_std(row, std * 3 / 2)


def without_signal(parts):
    """The same with rows of zeros, and the part of an update of `mlp` that has no gradient then."""
    silent = dataclasses.replace(parts.population, x=torch.zeros_like(parts.population.x))
    return dataclasses.replace(parts, population=silent), slice(0, 64 * 200)


@pytest.mark.parametrize("model", ["logr", "cnn", "mlp"])
def test_stacked_clients_send_what_single_ones_send(model):
    for (a, a_info), (b, b_info) in pairs(parts_of(model)):
        assert near(a, b)
        assert a_info == pytest.approx(b_info, rel=1e-3)


@pytest.mark.parametrize("training", TRAINING)
@pytest.mark.parametrize("model", ["logr", "mlp", "cnn", "stacks:untraced"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_algorithm_sends_stacked_what_it_sends_one_by_one(kind, model, training):
    in_chunks = lambda parts, work: fast(parts, work, chunk=3)  # noqa: E731
    for (a, a_info), (b, b_info) in pairs(uneven(kind, model, **TRAINING[training]), other=in_chunks, round=1):
        assert near(a, b)
        assert a_info == pytest.approx(b_info, rel=1e-3)


@pytest.mark.parametrize("more", [{}, {"control": "scaffold"}, {"views": 4}])
def test_stacked_clients_descend_and_see_views_as_single_ones_do(more):
    parts = parts_of("cnn" if "views" in more else "mlp", **(DESCENT | more | {"rounds": 4}))
    state = parts.algorithm.init(parts.params)
    if "control" in more:
        controls = {name: torch.randn_like(tensor) / 10 for name, tensor in state.control.items()}
        state = dataclasses.replace(state, control=controls)
    same(parts, atol=1e-4, round=2, state=state)


@pytest.mark.parametrize("chunk", [1, 3])
def test_a_cohort_in_chunks_sends_what_the_whole_sends(chunk):
    same(parts_of(), fast, lambda parts, work: fast(parts, work, chunk=chunk), atol=1e-6)


def test_memory_of_a_model_that_is_no_graph_is_bounded_by_parts_of_the_batch(monkeypatch):
    parts = parts_of("stacks:untraced")
    whole = replies(parts, fast)
    monkeypatch.setattr(kernels, "MOST_FLOATS", 5 * parts.params.numel() * 4)
    for (a, _), ((b, _), (c, _)) in zip(whole, pairs(parts), strict=True):
        assert torch.allclose(a.tensors["update"], c.tensors["update"], atol=1e-6)
        assert torch.allclose(a.tensors["update"], b.tensors["update"], atol=2e-5)


def test_clients_may_take_other_numbers_of_steps():
    parts = parts_of(local_steps={"epochs": 1})
    steps, own = {0: 2, 2: 5, 3: 2, 4: 1}, parts.algorithm.mechanism
    other = dataclasses.replace(
        parts.algorithm, mechanism=lambda client: dataclasses.replace(own(client), steps=steps[client.index])
    )
    same(dataclasses.replace(parts, algorithm=other))


def test_stacked_updates_carry_the_stated_noise_and_not_two_thirds_of_it():
    parts, silent = without_signal(parts_of("mlp", local_steps=1))
    for message, _ in replies(parts, fast):
        assert says_its_noise(message.tensors["update"][silent], message.facts["noise_std"])


def test_the_noise_that_the_server_expects_is_the_noise_that_clients_state_and_knows_nothing_of_the_descent():
    plain, parts = parts_of("mlp", rounds=4), parts_of("mlp", **DESCENT, rounds=4, control="scaffold")
    assert np.array_equal(plain.plan.multipliers, parts.plan.multipliers)
    work = work_of(parts)
    for round in (3, 0):
        how = parts.algorithm.local.for_round(round)
        expected = parts.plan.update_noise(parts.population.sizes, learning_rate=0.5, descent=how.descent)
        for index in (0, 4):
            client, mechanism = parts.population[index], parts.plan.mechanism(parts.population[index])
            assert plain.plan.mechanism(client) == mechanism
            assert plain.algorithm.cost(client) == parts.algorithm.cost(client)
            stated = how(work, parts.params, client, mechanism, stream=seeded(0)("a")).update.noise_std
            assert stated == pytest.approx(float(expected[index]))
    assert parts.algorithm.server.statistics.noise_stds == pytest.approx(expected)


def test_one_huge_record_moves_a_stacked_step_by_at_most_the_clip():
    parts = parts_of(local_steps=1, sampling_rate=1.0)
    x = parts.population.x.clone()
    x[0] = 1e6
    there = dataclasses.replace(parts, population=dataclasses.replace(parts.population, x=x))

    def same_noise(other, work):  # other rows would have noise of their own
        return Stacked(other.algorithm, work, other.population, parts.derive, chunk=8)

    both = zip(replies(parts, same_noise), replies(there, same_noise), strict=True)
    moved = [a.tensors["update"] - b.tensors["update"] for (a, _), (b, _) in both]
    step = 0.5 / 60 * 0.7  # learning rate / expected batch * clip
    assert step < moved[1].norm() <= 2 * step * (1 + 1e-4)  # replaced, so at most twice; client 0 answers second
    assert all(float(moved[place].norm()) == 0 for place in (0, 2, 3))


def test_frozen_parameters_are_in_no_message():
    parts = parts_of("tuned:head")
    body = parts.model[0][1].weight.clone()
    same(parts)
    for message, _ in replies(parts, fast):
        assert message.tensors["update"].shape == (16 * 10 + 10,)
        assert bool((message.tensors["update"] != 0).all())
    assert torch.equal(parts.model[0][1].weight, body)


def test_a_record_without_a_finite_gradient_counts_as_zero_stacked_or_not():
    parts = parts_of(sampling_rate=1.0)
    parts.population.x[int(parts.population.offsets[2])] = float("nan")
    for (a, a_info), (b, b_info) in pairs(parts):
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
        fast(parts, work_of(parts, Reads()))


def test_a_stacked_sum_says_which_clip_bounded_it_and_noise_for_another_is_refused():
    parts = parts_of()
    with pytest.raises(BadInput, match=r"made for sensitivity 0\.7, got a vector of 1\.4"):
        replies(parts, fast, work=workspace(parts.model, clip=1.4, physical_batch=256))


def test_training_that_diverges_is_named_where_nothing_is_promised_and_is_zero_where_something_is():
    with pytest.raises(TrainingDiverged, match=r"lower train\.learning_rate"):
        list(pairs(uneven("none", "mlp", learning_rate=1e20)))
    finite_loss = uneven("central", "logr", learning_rate=3e38, local_steps=1)  # but the update leaves float32
    finite_loss.population.x.mul_(100)
    for parts in (uneven("central", "mlp", learning_rate=1e20), finite_loss):
        for (a, a_info), (b, b_info) in pairs(parts):
            assert a_info["diverged"] == b_info["diverged"] == 1.0
            assert float(a.tensors["update"].norm()) == float(b.tensors["update"].norm()) == 0.0


def test_the_tensors_that_are_carried_are_those_of_the_bytes():
    parts = uneven("central")
    trainer, message = fast(parts, work_of(parts)), broadcast(parts)
    for (raw, info), (carried, also) in zip(
        trainer(pack(message), 0, COHORT), trainer.dispatch(message, 0, COHORT), strict=True
    ):
        assert info == also
        assert torch.equal(unpack(raw).tensors["update"], carried.tensors["update"])
        assert size_of(carried) == len(raw)


def test_where_a_start_cannot_be_repeated_every_call_has_noise_of_its_own():
    parts = parts_of()
    for repeats in (True, False):
        trainer, message = fast(parts, work_of(parts), repeats=repeats), broadcast(parts)
        (first, _), (second, _) = (next(trainer.dispatch(message, 0, [0])) for _ in range(2))
        assert torch.allclose(first.tensors["update"], second.tensors["update"], atol=1e-3) == repeats


@pytest.mark.parametrize("kind", ["local", *KINDS])
@pytest.mark.parametrize("workers", [2, 3])
def test_a_cohort_that_is_split_sends_what_one_trainer_sends_whatever_the_split(kind, workers):
    parts = parts_of() if kind == "local" else uneven(kind)

    def split(parts, work):
        return Split([fast(parts, work_of(parts, copy.deepcopy(parts.model))) for _ in range(workers)])

    assert all(near(a, b) for (a, _), (b, _) in pairs(parts, fast, split))


def test_a_split_leaves_torchs_precision_as_it_found_it():
    parts, before = uneven("none"), torch.get_float32_matmul_precision()
    trainers = [fast(parts, work_of(parts, copy.deepcopy(parts.model))) for _ in range(3)]
    list(Split(trainers, precision="tf32").dispatch(broadcast(parts), 0, [0, 1, 2, 3]))
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
    with pytest.raises(BadInput, match="could exceed the clip: leave it out"):
        kind_of(asked).plan(asked, parts_of().population, size=10)


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
    parts = dataclasses.replace(build(tacit.Experiment(**settings, run={"device": "cuda:0,cuda:0"})), together=12)
    raw = pack(broadcast(parts, cohort=range(12)))
    one, two = fast(parts, make.workspace_of(parts), chunk=12), stacked(parts)
    for _ in range(4):  # as it is, recorded, played
        answers = [[unpack(sent).tensors["update"] for sent, _ in some(raw, 0, range(12))] for some in (one, two)]
        torch.testing.assert_close(*map(torch.stack, answers), rtol=1e-3, atol=1e-4)


# DP-SGD with noise drawn on the device: the path of a GPU, tried on the CPU, where the same code has a slower twin below.


@pytest.fixture
def there(monkeypatch):
    """Makes the CPU count as a device, and notes whether its path was taken."""
    taken, real = [], InStep._there

    def noted(self, *arguments):
        taken.append(len(self.clients))
        return real(self, *arguments)

    monkeypatch.setattr(InStep, "_on_device", lambda self: all(isinstance(s, DeviceStream) for s in self.streams))
    monkeypatch.setattr(InStep, "_there", noted)
    return taken


def noisy(*, noise=1.0, model="logr", **train):
    privacy = {"kind": "local", "epsilon": float("inf"), "noise_multiplier": noise, "clip": 0.7}
    return parts_of(model, privacy, 40, **({"sampling_rate": 1.0, "learning_rate": 0.3} | train))


def by_streams(kind):
    """A trainer whose clients draw from streams of a kind."""
    streams = keyed(bytes(32), kind=kind)

    def trainer(parts, work):
        def derive(question, round, client, purpose):
            return streams(question, round, client.id, purpose)

        return Stacked(parts.algorithm, work, parts.population, derive, chunk=8)

    return trainer


@pytest.mark.parametrize("train", [{}, {"momentum": 0.9, "weight_decay": 0.01}, {"views": 2}, {"control": "scaffold"}])
def test_but_for_the_noise_clients_send_what_they_send_with_noise_of_their_own_streams(there, train, monkeypatch):
    own = torch.tensor([[1, 1], [0, 2]])  # the same views for all, since the two ways draw them in another order
    monkeypatch.setattr(Shifts, "offsets", lambda self, stream, batch: own.expand(batch, 2, 2))
    parts = noisy(noise=1e-6, model="cnn" if "views" in train else "logr", **train)
    here = replies(parts, by_streams(Stream))
    assert not there
    for (a, a_info), (b, b_info) in zip(here, replies(parts, by_streams(DeviceStream)), strict=True):
        assert a.facts == b.facts
        assert float((a.tensors["update"] - b.tensors["update"]).norm()) < 1e-3 * float(a.tensors["update"].norm())
        assert a_info == pytest.approx(b_info, rel=1e-3)
    assert there == [4]


def test_the_noise_has_the_deviation_that_is_stated_and_is_another_in_every_step_and_at_every_client(there):
    parts, silent = without_signal(noisy(noise=2.0, model="mlp"))
    messages = [message for message, _ in replies(parts, by_streams(DeviceStream))]
    assert there == [4]
    rows = [message.tensors["update"][silent] for message in messages]
    assert all(says_its_noise(row, message.facts["noise_std"]) for row, message in zip(rows, messages, strict=True))
    assert float((torch.corrcoef(torch.stack(rows)) - torch.eye(4)).abs().max()) < 0.05


def test_batches_are_a_poisson_sample_of_the_stated_rate(there, monkeypatch):
    sizes, real = [], module.filled

    def counted(drawn, *arguments, **more):
        sizes.extend(len(batch) for batches in drawn for batch in batches)
        return real(drawn, *arguments, **more)

    monkeypatch.setattr(module, "filled", counted)
    parts = noisy(sampling_rate=0.25, local_steps=60)
    replies(parts, by_streams(DeviceStream))
    assert there == [4]
    expected, draws = parts.population[0].size * 0.25, torch.tensor(sizes, dtype=torch.float64)
    assert len(sizes) == 4 * 60
    assert abs(float(draws.mean()) - expected) < 5 * (expected * 0.75 / len(sizes)) ** 0.5
    assert 0.5 < float(draws.var()) / (expected * 0.75) < 1.7


def test_a_clip_that_the_noise_was_not_made_for_is_refused(there):
    parts = noisy()
    own = parts.algorithm.mechanism
    other = dataclasses.replace(parts.algorithm, mechanism=lambda c: dataclasses.replace(own(c), clip=1.4))
    with pytest.raises(BadInput, match=r"made for sensitivity 1\.4, got a vector of 0\.7"):
        replies(dataclasses.replace(parts, algorithm=other), by_streams(DeviceStream))
    assert there
