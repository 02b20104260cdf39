"""A server that chooses the parameters, and a model that mixes or remembers, learn nothing that was not paid for."""

import copy
import dataclasses
import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from threads import one_thread  # noqa: F401 - a fixture
from torch import nn

import tacit
from tacit.engine.assemble import build
from tacit.engine.stacked import Stacked
from tacit.engine.trainers import OneByOne, task
from tacit.errors import ModelRefused
from tacit.parts.losses import cross_entropy
from tacit.parts.models import build as build_model
from tacit.privacy.local import SampledGaussian
from tacit.random import seeded
from tacit.training.batches import Viewed, over_views
from tacit.training.flat import flatten
from tacit.training.sgd import Clipper, LocalSgd, NoisedUpdate, clipped_sum_slow, dp_sgd, workspace
from tacit.types import Budget, Client
from tacit.wire import pack, unpack

CLASSES, CLIP = 4, 0.5
PATHS = ("book-keeping", "vmap", "loop")


def rows(*shape, examples=8):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(examples, *shape, generator=generator), torch.arange(examples) % CLASSES


def moves(total, x, y):
    """How far one example moves a sum when it goes."""
    whole, others = total(x, y), [torch.arange(len(y)) != i for i in range(len(y))]
    assert bool(whole.isfinite().all())
    return max(float((whole - total(x[rest], y[rest])).norm()) for rest in others)


# parameters near the largest float


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(9, 3), nn.Linear(3, CLASSES)

    def forward(self, x):
        return self.out(self.words(x).mean(1))


def convolutions():
    layers = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, CLASSES)
    return nn.Sequential(*layers)


def scaled_rows(*shape):
    """Small rows, and large ones."""
    x, y = rows(*shape)
    return x * torch.logspace(-3, 3, len(y)).view(-1, *[1] * len(shape)), y


def tokens():
    return torch.arange(8)[:, None].expand(8, 5).clone(), torch.arange(8) % CLASSES


FACTS = {"input_shape": (1, 8, 8), "classes": CLASSES, "seed": 1}
OVERFLOWING = {
    "logr": (lambda: build_model("logr", **FACTS), scaled_rows(1, 8, 8), 1e37),
    "mlp": (lambda: build_model("mlp", **FACTS), scaled_rows(1, 8, 8), 1e18),
    "convolutions": (convolutions, scaled_rows(1, 8, 8), 1e8),
    "group norm": (
        lambda: nn.Sequential(nn.Linear(6, 6), nn.GroupNorm(2, 6), nn.ReLU(), nn.Linear(6, CLASSES)),
        scaled_rows(6),
        1e18,
    ),
    "sequence, by Gram matrices": (
        lambda: nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Flatten(), nn.Linear(60, CLASSES)),
        scaled_rows(2, 40),
        1e18,
    ),
    "table": (Text, tokens(), 1e38),
    "views": (lambda: Viewed(build_model("mlp", **FACTS)), scaled_rows(3, 1, 8, 8), 1e18),
}


def overflowing(name):
    """A model whose parameters make some of the examples overflow and not others."""
    make, (x, y), size = OVERFLOWING[name]
    model = make()
    theta = flatten(model)
    signs = torch.randn(len(theta), generator=torch.Generator().manual_seed(1))
    theta.copy_(signs.clamp(-3, 3) * size)
    if name == "table":  # three words whose scores leave float32
        model.words.weight.data.copy_(torch.linspace(-1, 1, 27).view(9, 3))
        model.words.weight.data[6:] = 3e38
        model.out.weight.data.copy_(torch.linspace(-1, 1, 12).view(4, 3) * 5)
    return model, x, y


@pytest.mark.parametrize("name", OVERFLOWING)
@pytest.mark.parametrize("path", [*PATHS, "slow twin"])
def test_examples_that_overflow_at_chosen_parameters_count_as_zero_and_change_no_other(name, path):
    model, x, y = overflowing(name)
    losses = over_views(cross_entropy) if name == "views" else cross_entropy
    clipper = Clipper(model, clip=CLIP, path=None if path == "slow twin" else path, losses=losses)

    def total(x, y):
        return (
            clipped_sum_slow(model, x, y, clip=CLIP, losses=losses) if path == "slow twin" else clipper(x, y)[0].vector
        )

    good = clipper(x, y)[1].norms.isfinite()
    assert 0 < int(good.sum()) < len(y)  # the attack works: some overflow and some do not
    assert moves(total, x, y) <= CLIP * (1 + 1e-4)
    torch.testing.assert_close(total(x, y), total(x[good], y[good]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("path", PATHS)
def test_factors_whose_squares_leave_float32_are_not_taken_for_a_short_gradient(path):
    """Activations of 1e18 and errors of 1e-19 have a product of 1 and, squared one by one, a norm of nothing."""
    model = nn.Sequential(nn.Linear(200, CLASSES))
    model[0].weight.data.zero_()
    model[0].bias.data.copy_(torch.tensor([43.8, 0.0, 0.0, 0.0]))
    x, y = torch.full((3, 200), 9e17), torch.zeros(3, dtype=torch.long)
    torch.set_flush_denormal(True)
    try:
        clipper = Clipper(model, clip=1e-2, path=path)
        assert float(Clipper(model, clip=1e9, path="loop")(x[:1], y[:1])[0].vector.norm()) > 1.0
        assert float(clipper(x[:1], y[:1])[0].vector.norm()) <= 1e-2 * (1 + 1e-4)
    finally:
        torch.set_flush_denormal(False)


def client_of(x, y, unit="record"):
    return Client(0, "a", Budget(1.0, 1e-5, unit), x, y)


def test_a_server_that_sends_parameters_near_the_largest_float_learns_nothing_for_free():
    """It asked which records overflow, and heard it from whether the site answered."""
    model, x, y = overflowing("logr")
    work = workspace(model, clip=CLIP, physical_batch=4)
    theta, mechanism = work.theta.clone(), SampledGaussian(1e-9, CLIP, 1.0, steps=1)
    found = []
    for part in (slice(0, 8), slice(0, 7), slice(0, 1)):
        trained = dp_sgd(work, theta, client_of(x[part], y[part]), mechanism, learning_rate=1e30, stream=seeded(0)("a"))
        found.append(trained.update.vector * len(y[part]) / 1e30)
        assert bool(found[-1].isfinite().all())
    assert float((found[0] - found[1]).norm()) <= CLIP * (1 + 1e-3)


def test_an_update_that_leaves_float32_with_its_noise_is_sent_as_zeros():
    model, x, y = overflowing("logr")
    work = workspace(model, clip=CLIP, physical_batch=4)
    mechanism = SampledGaussian(1e9, CLIP, 1.0, steps=3)
    trained = dp_sgd(work, work.theta.clone(), client_of(x, y), mechanism, learning_rate=1e38, stream=seeded(0)("a"))
    assert torch.equal(trained.update.vector, torch.zeros_like(work.theta))


def test_clients_stacked_on_a_gpu_answer_the_same_parameters_as_single_ones():
    parts = build(
        tacit.Experiment(
            data={"clients": 3, "examples_per_client": 40},
            train={"rounds": 1, "local_steps": 1, "sampling_rate": 0.5, "learning_rate": 1e30},
            privacy={"kind": "local", "epsilon": 3.0, "clip": CLIP},
        )
    )
    signs = torch.randn(len(parts.params), generator=torch.Generator().manual_seed(1))
    message = parts.algorithm.broadcast(parts.algorithm.init(signs * 5e36), [parts.population[0]], round=0)
    population = dataclasses.replace(
        parts.population, x=parts.population.x * torch.logspace(-2, 2, 120).view(-1, 1, 1, 1)
    )
    sent = []
    for make in (lambda *a: OneByOne(task(*a)), partial(Stacked, chunk=2)):
        work = workspace(copy.deepcopy(parts.model), clip=CLIP, physical_batch=64)
        trainer = make(parts.algorithm, work, population, parts.derive)
        sent.append([unpack(raw).tensors["update"] for raw, _ in trainer(pack(message), 0, [0, 1, 2])])
    for one, other in zip(*sent, strict=True):
        assert bool(one.isfinite().all())
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e25)
        assert float(one.norm()) > 0


class Refuses(nn.Module):
    """Raises at values that some rows have."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, CLASSES)

    def forward(self, x):
        if float(x.max()) > 1e3:
            raise ValueError(f"a value of {float(x.max())}")
        return self.out(x)


@pytest.mark.parametrize("kind", ["raises", "unknown token"])
def test_a_model_that_fails_on_some_rows_tells_nobody_which(kind):
    x, y = rows(6)
    model, bad = Refuses(), x.clone()
    bad[3] = 1e4
    if kind == "unknown token":
        model, (x, y) = Text(), tokens()
        bad = x.clone()
        bad[3, 2] = 9  # there are nine words, from 0
    clipper, rest = Clipper(model, clip=CLIP), torch.arange(8) != 3
    torch.testing.assert_close(clipper(bad, y)[0].vector, clipper(x[rest], y[rest])[0].vector, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["overflows", "raises"])
def test_client_level_training_that_fails_is_a_zero_update_with_its_noise(kind):
    model, x, y = (Refuses(), *rows(6)) if kind == "raises" else overflowing("mlp")
    if kind == "raises":
        x[3] = 1e4
    work, mechanism = workspace(model, clip=CLIP, physical_batch=8), SampledGaussian(1.0, CLIP, 1.0)
    train = NoisedUpdate(LocalSgd(2, 8, learning_rate=0.1))
    client = client_of(x, y, "client")
    found = train(work, work.theta.clone(), client, mechanism, stream=seeded(3)("train")).update
    assert found.noise_std == CLIP
    assert bool(found.vector.isfinite().all())
    std = float(found.vector.std()) / CLIP
    assert 0.5 < std < 2


def test_denormals_take_no_time_of_their_own_while_a_client_trains():
    parts = build(
        tacit.Experiment(data={"clients": 2, "examples_per_client": 20}, privacy={"kind": "central", "epsilon": 9.0})
    )
    seen = []

    def local(work, theta, client, stream):
        seen.append(float(torch.full((), 1e-40) * 1))
        raise ValueError

    algorithm = dataclasses.replace(parts.algorithm, local=local)
    message = algorithm.broadcast(algorithm.init(parts.params), [parts.population[0]], round=0)
    work = workspace(parts.model, clip=None, physical_batch=8)
    list(OneByOne(task(algorithm, work, parts.population, parts.derive))(pack(message), 0, [0, 1]))
    assert seen == [0.0, 0.0]
    assert float(torch.full((), 1e-40) * 1) > 0


# models that mix


class Mixes(nn.Module):
    """Two layers with something between them."""

    def __init__(self, between):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.between = nn.Linear(6, 6), nn.Linear(6, CLASSES), between
        self.memory, self.calls = [], 0

    def forward(self, x):
        return self.last(torch.tanh(self.between(self, self.first(x))))


def later_batch_mean(model, h):
    model.calls += 1
    return 20 * (h - h.mean(0)) if model.calls > 9 else h


MIXES = {
    "batch mean": lambda model, h: 20 * (h - h.mean(0)) if len(h.shape) else h,
    "large batch mean": lambda model, h: 20 * (h - h.mean(0)) if h.shape[0] > 8 else h,
    "later batch mean": later_batch_mean,
    "transposed": lambda model, h: h + (h @ h.T).mean() if h.shape[0] > 4 else h,
    "paired by broadcast": lambda model, h: h + 20 * (h[:, None] * h).mean(1),
    "divided by the batch": lambda model, h: 40 * h / h.shape[0],
    "ordered": lambda model, h: h + h.argsort(0),
}


@pytest.mark.parametrize("between", MIXES.values(), ids=MIXES)
def test_a_model_that_mixes_its_batch_cannot_hide_that_from_the_clipper(between):
    x, y = rows(6, examples=34)
    x[:3], y[:3] = x[0], y[0]  # three equal rows, which mixing leaves as they are
    clipper = Clipper(Mixes(between), clip=CLIP)

    def total(x, y):
        return clipper(x, y)[0].vector

    for size in (3, 34):
        assert moves(total, x[:size], y[:size]) <= CLIP * (1 + 1e-4)


@pytest.mark.parametrize("between", MIXES.values(), ids=MIXES)
def test_a_model_that_mixes_is_not_taken_by_book_keeping_or_not_with_the_mixing(between):
    x, y = rows(6, examples=20)
    clipper = Clipper(Mixes(between), clip=CLIP)
    whole = clipper(x, y)[0].vector
    single = Clipper(Mixes(between), clip=CLIP)
    alone = sum(single(x[i : i + 1], y[i : i + 1])[0].vector for i in range(20))
    torch.testing.assert_close(whole, alone, rtol=1e-3, atol=1e-5)


# models that remember


def in_a_list(model, h):
    model.memory.append(h.detach().sum())
    return h * (1 + 10 * torch.stack(model.memory).sum())


def in_a_tensor(model, h):
    last = getattr(model, "last_seen", None)
    model.last_seen = h.detach().mean()
    return h if last is None else h * (1 + 10 * last)


def in_a_number(model, h):
    model.calls += float(h.detach().sum())
    return h * (1 + model.calls)


def in_a_dict_of_a_dict(model, h):
    inner = model.__dict__.setdefault("notes", {}).setdefault("inner", {"sum": 0.0})
    inner["sum"] += float(h.detach().sum())
    return h * (1 + inner["sum"])


def in_a_class(model, h):
    model.shared.append(float(h.detach().sum()))
    return h * (1 + sum(model.shared))


def in_a_parameter(model, h):
    model.last.bias.data.add_(h.detach().mean())
    return h


def in_a_submodule(model, h):
    model.first.seen = getattr(model.first, "seen", 0.0) + float(h.detach().sum())
    return h * (1 + model.first.seen)


class Shares(Mixes):
    shared = []  # noqa: RUF012 - that it is shared is the attack


@pytest.mark.parametrize(
    "between", [in_a_list, in_a_tensor, in_a_number, in_a_dict_of_a_dict, in_a_class, in_a_parameter, in_a_submodule]
)
def test_a_model_that_remembers_is_given_nothing_to_remember_with(between):
    x, y = rows(6, examples=12)
    other = x + 5
    found = []
    for before in (x, other):
        Shares.shared.clear()
        clipper = Clipper(Shares(between), clip=CLIP)
        if between is in_a_parameter:  # refused on synthetic rows, the same for every client
            with pytest.raises(ModelRefused, match=r"writes into 'last\.bias'"):
                clipper(before, y)
            continue
        clipper(before, y)
        found.append(clipper(x, y)[0].vector)
        assert moves(lambda x, y, clipper=clipper: clipper(x, y)[0].vector, x, y) <= CLIP * (1 + 1e-4)
    assert not found or torch.equal(*found)


SEEN = []


def in_a_global(model, h):
    SEEN.append(float(h.detach().sum()))
    return h * (1 + SEEN[-2] if len(SEEN) > 1 else 1)


def test_a_memory_outside_the_model_is_found_by_synthetic_rows_in_another_order():
    with pytest.raises(ModelRefused, match="remembers examples outside itself"):
        Clipper(Mixes(in_a_global), clip=CLIP)(*rows(6))


class Pictures(Mixes):
    """For pictures, with something of its own on the way."""

    def __init__(self, between):
        super().__init__(between)
        self.last = nn.Linear(64, 10)

    def forward(self, x):
        return self.last(self.between(self, x.flatten(1)))


def in_a_closure():
    before = [torch.zeros(64)]

    def between(model, h):
        h, before[0] = h - before[0], h.detach().mean(0)
        return h

    return between


def in_a_gradient():
    """What the model answers does not show it."""
    scale = [1.0]

    def hook(gradient):
        found, scale[0] = gradient * scale[0], 1 + float(gradient.norm())
        return found

    def between(model, h):
        h = h * model.last.weight.sum() / model.last.weight.sum().detach()
        if h.requires_grad:
            h.register_hook(hook)
        return h

    return between


KINDS = {
    "local": {},
    "local, client by client": {"privacy": {"kind": "local", "unit": "client"}},
    "central": {"privacy": {"kind": "central"}},
    "cyclic": {"privacy": {"kind": "central", "sampler": "cyclic"}, "train": {"clients_per_round": 4, "rounds": 2}},
    "distributed": {"privacy": {"kind": "distributed"}},
}


def of_kind(kind):
    private = {"kind": "local", "epsilon": 8.0, "delta": 1e-5, "clip": CLIP}
    data, train = {"clients": 8, "examples_per_client": 20}, {"rounds": 1, "local_steps": 1}
    settings = {"data": data, "train": train, "privacy": private, "run": {"workers": 1}}
    return tacit.Experiment(**{key: value | KINDS[kind].get(key, {}) for key, value in settings.items()})


@pytest.mark.parametrize("memory", [in_a_closure, in_a_gradient])
@pytest.mark.parametrize("kind", KINDS)
def test_a_memory_outside_the_model_is_refused_by_every_kind_of_privacy_before_anybody_pays(kind, memory, tmp_path):
    """What one client trained would depend on another's rows, and the sum move by more than one clip."""
    with pytest.raises(ModelRefused, match="remembers examples outside itself"):
        tacit.run(of_kind(kind), model=Pictures(memory()), out=tmp_path / "run", page=False)
    assert not (tmp_path / "run" / "ledger.db").exists()


@pytest.mark.parametrize("kind", ["central", "distributed"])
def test_a_model_with_code_of_its_own_and_no_memory_is_trained_by_every_kind(kind, tmp_path):
    model = Pictures(lambda model, h: torch.tanh(h) if float(h.detach().sum()) else h)
    assert tacit.run(of_kind(kind), model=model, out=tmp_path / "run", page=False).records


def test_what_a_client_left_in_a_models_attributes_does_not_reach_the_next_client():
    x, y = rows(6)
    sent = []
    for before in (x, x + 5):
        work = workspace(Mixes(in_a_number), clip=None, physical_batch=8)
        theta, sgd = work.theta.clone(), LocalSgd(2, 8, learning_rate=0.1)
        sgd(work, theta, client_of(before, y), seeded(0)("a"))
        sent.append(sgd(work, theta, client_of(x, y), seeded(0)("b")).update.vector)
    assert torch.equal(*sent)


# what decides how a model is trained


@pytest.mark.parametrize("between", [MIXES["batch mean"], in_a_number, lambda model, h: h])
@pytest.mark.parametrize("value", [None, 0.0, math.nan, math.inf])
def test_no_value_of_a_private_row_decides_how_a_model_is_trained(between, value):
    x, y = rows(6)
    clippers = [Clipper(Mixes(between), clip=CLIP) for _ in range(2)]
    clippers[0](x, y)
    clippers[1](x if value is None else torch.full_like(x, value), y)
    clippers[1](x, y)
    assert (clippers[0].path, clippers[0].reason) == (clippers[1].path, clippers[1].reason)
    assert torch.equal(clippers[0](x, y)[0].vector, clippers[1](x, y)[0].vector)


# precision


def settings_of(backend):
    return [getattr(backend, layer).fp32_precision for layer in ("conv", "rnn")]


class Looks(nn.Module):
    """Notes the precision that its layers run at."""

    def __init__(self, backend):
        super().__init__()
        self.out, self.look = nn.Linear(6, CLASSES), lambda: SEEN.append(settings_of(backend))

    def forward(self, x):
        self.look()
        return self.out(x) if float(x.detach().sum()) > 0 else self.out(2 * x)


def test_convolutions_are_never_rounded_while_gradients_are_clipped():
    onednn = torch.backends.mkldnn
    if not hasattr(onednn, "conv"):
        pytest.skip("this torch has one setting for all")
    before = onednn.conv.fp32_precision
    onednn.conv.fp32_precision = "bf16"
    SEEN.clear()
    try:
        Clipper(Looks(onednn), clip=CLIP)(*rows(6))
        assert onednn.conv.fp32_precision == "bf16"
    finally:
        onednn.conv.fp32_precision = before
    assert SEEN
    assert all(precision in ("ieee", "none") for found in SEEN for precision in found)


def test_tf32_is_off_for_convolutions_on_a_gpu_and_back_afterwards():
    from tacit.training.optimizer import full_precision

    cudnn = torch.backends.cudnn
    assert cudnn.allow_tf32  # torch's default

    def fails():
        with full_precision(torch.device("cuda")):
            seen.append(cudnn.allow_tf32)
            raise KeyError

    seen = []
    with pytest.raises(KeyError):
        fails()
    assert seen == [False]
    assert cudnn.allow_tf32
    assert not hasattr(cudnn, "conv") or settings_of(cudnn) == ["tf32", "tf32"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("path", PATHS)
def test_sums_on_a_convolution_are_those_of_the_slow_twin_in_double_precision(device, path):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(16, 32, 3), nn.Tanh(), nn.Conv2d(32, 32, 3), nn.Tanh(), nn.Flatten(), nn.Linear(512, CLASSES)
    )
    x, y = torch.randn(16, 16, 8, 8), torch.arange(16) % CLASSES
    exact = clipped_sum_slow(copy.deepcopy(model).double(), x.double(), y, clip=CLIP)
    bounded, _ = Clipper(model.to(device), clip=CLIP, path=path)(x.to(device), y.to(device))
    assert float((bounded.vector.cpu() - exact).norm()) <= 1e-5 * float(exact.norm())


def test_half_precision_around_the_clipper_is_refused():
    with torch.autocast("cpu"), pytest.raises(tacit.errors.BadInput, match=r"outside torch\.autocast"):
        Clipper(nn.Linear(6, CLASSES), clip=CLIP)(*rows(6))
    assert F.linear(torch.ones(1), torch.ones(1, 1)).dtype == torch.float32
