"""The clipper: whole models, models without rules, refusals, and the bound itself."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from threads import one_thread  # noqa: F401 - a fixture
from torch import nn

from tacit.errors import BadInput, ModelRefused
from tacit.parts.models import build
from tacit.training.clipping import Clipper, clipped_sum_slow
from tacit.training.flat import flatten
from tacit.training.independence import Unsupported
from tacit.training.per_example import Tape

CLASSES = 4


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)


class Attention(nn.Module):
    """One head of self-attention from layers with rules."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.all, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.all(self.norm(x)).chunk(3, dim=-1)
        return x + self.out(F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0))


def transformer():
    return nn.Sequential(nn.Embedding(11, 6), Attention(6), Attention(6), Mean(), nn.Linear(6, CLASSES))


def residual():
    block = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(inplace=True))
    return nn.Sequential(block, nn.Conv2d(4, 4, 3, stride=2), nn.Flatten(), nn.Dropout(0.3), nn.LazyLinear(CLASSES))


def batch(*shape, examples=6, tokens=0):
    generator = torch.Generator().manual_seed(5)
    y = torch.randint(0, CLASSES, (examples,), generator=generator)
    if tokens:
        return torch.randint(0, tokens, (examples, *shape), generator=generator), y
    return torch.randn(examples, *shape, generator=generator), y


def made(model, x):
    """The model with parameters in general position, dropout off."""
    torch.manual_seed(3)
    model.eval()(x[:1])
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def norms_of(model, x, y):
    return torch.stack([clipped_sum_slow(model, x[i : i + 1], y[i : i + 1], clip=1e9) for i in range(len(y))]).norm(
        dim=1
    )


def agrees(model, x, y, path):
    """The clipper takes the path, and agrees with the slow twin where all, some and no examples are clipped."""
    norms = norms_of(model, x, y)
    for clip in (float(norms.min()) / 2, float(norms.median()), 2 * float(norms.max())):
        clipper = Clipper(model, clip=clip)
        bounded, not_private = clipper(x, y)
        assert clipper.path == path, clipper.reason
        torch.testing.assert_close(not_private.norms, norms, rtol=2e-4, atol=1e-6)
        assert bounded.sensitivity == clip
        expected = clipped_sum_slow(model, x, y, clip=clip)
        torch.testing.assert_close(bounded.vector.float(), expected, rtol=1e-3, atol=2e-5 * clip * len(y))


IMAGE = (1, 8, 8)
MODELS = {
    "logr": (lambda: build("logr", input_shape=IMAGE, classes=CLASSES, seed=1), batch(*IMAGE)),
    "mlp": (lambda: build("mlp", input_shape=IMAGE, classes=CLASSES, seed=1), batch(*IMAGE)),
    "small cnn": (lambda: build("cnn", input_shape=IMAGE, classes=CLASSES, seed=1), batch(*IMAGE)),
    "cnn": (lambda: build("cnn", input_shape=(1, 28, 28), classes=CLASSES, seed=1), batch(1, 28, 28)),
    "cifar-cnn": (lambda: build("cifar-cnn", input_shape=(3, 8, 8), classes=CLASSES, seed=1), batch(3, 8, 8)),
    "transformer": (transformer, batch(7, tokens=11)),
    "residual": (residual, batch(2, 7, 7)),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_whole_model_agrees_with_the_slow_twin(name):
    make, (x, y) = MODELS[name]
    agrees(made(make(), x), x, y, "book-keeping")


class Last(nn.Module):
    """A recurrent layer and class scores from its last output."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.out = layer, nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.out(self.layer(x)[0][:, -1])


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.out = nn.MultiheadAttention(6, 2, batch_first=True, dropout=0.2), nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.out(self.layer(x, x, x)[0].mean(1))


class Custom(nn.Module):
    """A linear layer followed by anything."""

    def __init__(self, then):
        super().__init__()
        self.first, self.last, self.then = nn.Linear(6, 6), nn.Linear(6, CLASSES), then
        self.scale = nn.Parameter(torch.ones(6)) if then is scaled else None
        if then is tied:
            self.twin = nn.Linear(6, 6)
            self.twin.weight = self.first.weight

    def forward(self, x):
        return self.last(torch.tanh(self.then(self, self.first(x))))


def scaled(model, h):
    return model.scale * h


def tied(model, h):
    return model.twin(h)


def mixed(model, h):
    return h - h.mean(0)


def mixed_in_training(model, h):
    return h - h.mean(0) if model.training else h


def behind_its_back(model, h):
    return h + F.linear(h, model.first.weight)


def decided(model, h):
    return 2 * h if h.sum() > 0 else h.sin()


def decided_by_number(model, h):
    return h * (2 if float(h.detach().sum()) > 0 else 3)


def decided_in_numpy(model, h):
    return h * (2 if np.asarray(h.detach()).sum() > 0 else 3)


def decided_by_comparison(model, h):
    return h * (2 if torch.equal(h, h.abs()) else 3)


def frozen(model):
    model.first.requires_grad_(False)
    return model


def sequence_first():
    """Time before the batch, as many recurrent models have it."""

    class SequenceFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.out = nn.Linear(6, 6), nn.Linear(6, CLASSES)

        def forward(self, x):
            return self.out(torch.tanh(self.layer(x.transpose(0, 1))).mean(0))

    return SequenceFirst()


def positions():
    """A table of positions that all examples share."""

    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.out = nn.Embedding(6, 6), nn.Linear(6, CLASSES)

        def forward(self, x):
            return self.out(torch.tanh(x + self.table(torch.arange(x.shape[1]))).mean(1))

    return Positions()


WITHOUT_RULE = {
    "LSTM": (lambda: Last(nn.LSTM(6, 6, batch_first=True)), batch(4, 6), "loop"),
    "GRU": (lambda: Last(nn.GRU(6, 6, batch_first=True)), batch(4, 6), "loop"),
    "MultiheadAttention": (Attends, batch(4, 6), "vmap"),
    "TransformerEncoderLayer": (
        lambda: nn.Sequential(nn.TransformerEncoderLayer(6, 2, 8, batch_first=True), Mean(), nn.Linear(6, CLASSES)),
        batch(4, 6),
        "vmap",
    ),
    "PReLU": (lambda: nn.Sequential(nn.Linear(6, 5), nn.PReLU(), nn.Linear(5, CLASSES)), batch(6), "vmap"),
    "bare parameter": (lambda: Custom(scaled), batch(6), "vmap"),
    "tied weights": (lambda: Custom(tied), batch(6), "vmap"),
    "mixed examples": (lambda: Custom(mixed), batch(6), "vmap"),
    "weight used behind its layer's back": (lambda: Custom(behind_its_back), batch(6), "vmap"),
    "decides by value": (lambda: Custom(decided), batch(6), "loop"),
    "decides by number": (lambda: Custom(decided_by_number), batch(6), "loop"),
    "decides in NumPy": (lambda: Custom(decided_in_numpy), batch(6), "loop"),
    "decides by comparison": (lambda: Custom(decided_by_comparison), batch(6), "loop"),
    "part frozen": (lambda: frozen(Custom(scaled)), batch(6), "vmap"),
    "time before batch": (sequence_first, batch(4, 6), "vmap"),
    "time before batch, as long as the check": (sequence_first, batch(3, 6, examples=3), "vmap"),
    "shared positions": (positions, batch(6, 6), "vmap"),
    "subclass of a layer": (
        lambda: nn.Sequential(type("Other", (nn.Linear,), {"forward": lambda s, x: x @ s.weight.abs().T})(6, CLASSES)),
        batch(6),
        "vmap",
    ),
    "weight norm": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, CLASSES))),
        batch(6),
        "vmap",
    ),
}


@pytest.mark.parametrize("name", WITHOUT_RULE)
def test_a_model_without_rules_is_taken_example_by_example(name):
    make, (x, y), path = WITHOUT_RULE[name]
    agrees(made(make(), x), x, y, path)


@pytest.mark.parametrize("path", ["vmap", "loop"])
def test_every_path_takes_a_simple_model(path):
    x, y = batch(*IMAGE)
    model = made(MODELS["small cnn"][0](), x)
    fast, slow = Clipper(model, clip=0.5), Clipper(model, clip=0.5, path=path)
    torch.testing.assert_close(fast(x, y)[0].vector, slow(x, y)[0].vector, rtol=1e-3, atol=1e-5)
    assert slow.path == path


def test_a_path_that_cannot_take_the_model_is_refused_when_asked_for():
    x, y = batch(6)
    for then in (scaled, mixed, behind_its_back):
        with pytest.raises(ModelRefused, match="book-keeping"):
            Clipper(Custom(then), clip=1.0, path="book-keeping")(x, y)
    with pytest.raises(BadInput, match="book-keeping"):
        Clipper(Custom(mixed), clip=1.0, path="bookkeeping")


def test_zero_weights_above_do_not_hide_what_happens_below():
    x, y = batch(6)
    model = Custom(behind_its_back)
    nn.init.zeros_(model.last.weight)
    clipper = Clipper(model, clip=1.0)
    clipper(x, y)
    assert clipper.path == "vmap"


def test_the_path_is_chosen_before_any_example_is_there():
    x, y = batch(6)
    model = made(Custom(mixed_in_training), x).train()
    clipper = Clipper(model, clip=0.1)
    for examples in (0, 1, 6):
        bounded, _ = clipper(x[:examples], y[:examples])
        assert clipper.path == "vmap"
        torch.testing.assert_close(
            bounded.vector.float(), clipped_sum_slow(model, x[:examples], y[:examples], clip=0.1)
        )
    model.eval()
    clipper(x, y)
    assert clipper.path == "book-keeping"


def test_a_model_is_read_once_and_no_code_that_comes_later_runs():
    x, y = batch(6)
    model = made(Custom(lambda model, h: h), x)
    clipper = Clipper(model, clip=1.0)
    first, _ = clipper(x, y)
    assert clipper.path == "book-keeping"
    model.then = mixed
    again, _ = clipper(x, y)
    assert torch.equal(first.vector, again.vector)


@pytest.mark.parametrize("drop", [nn.Dropout(0.5), nn.Dropout1d(0.5), nn.AlphaDropout(0.5), None])
def test_dropout_stays_on_the_fast_path_and_the_check_draws_nothing(drop):
    class Drops(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last, self.drop = nn.Linear(6, 50), nn.Linear(50, CLASSES), drop

        def forward(self, x):
            h = torch.tanh(self.first(x))
            return self.last(self.drop(h) if self.drop else F.dropout(h, 0.5, training=self.training))

    x, y = batch(6)
    model = made(Drops(), x).train()
    clipper, vectors = Clipper(model, clip=1.0), []
    for _ in range(2):
        torch.manual_seed(9)
        vectors.append(clipper(x, y)[0].vector)
    assert clipper.path == "book-keeping", clipper.reason
    assert torch.equal(vectors[0], vectors[1])
    assert not torch.allclose(vectors[0].float(), clipped_sum_slow(model.eval(), x, y, clip=1.0), atol=1e-3)


def test_an_output_overwritten_in_place_keeps_its_gradient():
    x, y = batch(6)
    layers = nn.Linear(6, 9), nn.ReLU(inplace=True), nn.Linear(9, 9), nn.ReLU(inplace=True), nn.Linear(9, CLASSES)
    agrees(made(nn.Sequential(*layers), x), x, y, "book-keeping")


def test_an_input_overwritten_in_place_is_seen():
    layer, (x, _) = nn.Linear(6, CLASSES), batch(6)

    def overwrites(x, record):
        h = x.clone()
        logits = layer(h)
        record(0, h, logits)
        h.mul_(2)
        return logits

    with pytest.raises(Unsupported, match="in place"):
        Tape().run(overwrites, x)


def test_a_model_that_single_examples_cannot_train_is_refused_with_the_reason():
    class Overwrites(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, CLASSES)

        def forward(self, x):
            h = x.clone()
            logits = self.layer(h)
            h.mul_(2)
            return logits

    with pytest.raises(ModelRefused, match=r"single examples.*modified by an inplace operation"):
        Clipper(Overwrites(), clip=1.0)(*batch(6))


REFUSED = {
    "BatchNorm1d": (lambda: nn.BatchNorm1d(4), r"'1' \(BatchNorm1d\) by GroupNorm"),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(4), "GroupNorm"),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(4), "GroupNorm"),
    "SyncBatchNorm": (lambda: nn.SyncBatchNorm(4), "GroupNorm"),
    "LazyBatchNorm1d": (lambda: nn.LazyBatchNorm1d(), "GroupNorm"),
    "InstanceNorm": (lambda: nn.InstanceNorm1d(4, track_running_stats=True), "track_running_stats=False"),
    "max_norm": (lambda: nn.Embedding(4, 4, max_norm=1.0), "max_norm"),
    "scale_grad_by_freq": (lambda: nn.Embedding(4, 4, scale_grad_by_freq=True), "scale_grad_by_freq"),
    "lazy": (lambda: nn.LazyLinear(4), "one batch"),
    "double": (lambda: nn.Linear(4, 4).double(), "float"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_mixes_or_remembers_examples_is_refused_with_a_way_out(name):
    make, words = REFUSED[name]
    with pytest.raises(ModelRefused, match=words):
        Clipper(nn.Sequential(nn.Linear(4, 4), make()), clip=1.0)


def test_a_model_that_writes_data_into_itself_is_refused():
    class Remembers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, CLASSES)
            self.register_buffer("mean", torch.zeros(6))

        def forward(self, x):
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
            return self.layer(x - self.mean)

    with pytest.raises(ModelRefused, match="'mean'"):
        Clipper(Remembers(), clip=1.0)(*batch(6))


def test_the_model_is_left_as_it_was():
    x, y = batch(*IMAGE)
    model = MODELS["small cnn"][0]()
    before, state, random = flatten(model).clone(), copy.deepcopy(model).state_dict(), torch.get_rng_state()
    clipper = Clipper(model, clip=1.0)
    clipper(x, y)
    with pytest.raises(ModelRefused, match=r"cannot read rows of torch.float32 and shape \(1, 3, 8\)"):
        clipper(x[:, :, :3], y)
    assert torch.equal(flatten(model), before)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), state.values(), strict=True))
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(module._forward_hooks for module in model.modules())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_parameters_stepped_in_place_are_followed():
    x, y = batch(*IMAGE)
    model = MODELS["mlp"][0]()
    theta, clipper = flatten(model), Clipper(model, clip=0.5)
    for _ in range(3):
        bounded, _ = clipper(x, y)
        torch.testing.assert_close(
            bounded.vector.float(), clipped_sum_slow(model, x, y, clip=0.5), rtol=1e-3, atol=1e-5
        )
        theta.sub_(bounded.vector, alpha=0.5)


@pytest.mark.parametrize("physical", [1, 2, 4, 100])
def test_physical_batches_give_the_same_sum(physical):
    x, y = batch(*IMAGE, examples=7)
    model = MODELS["small cnn"][0]()
    whole, parts = Clipper(model, clip=0.5)(x, y), Clipper(model, clip=0.5, physical_batch=physical)(x, y)
    torch.testing.assert_close(whole[0].vector, parts[0].vector, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(whole[1].norms, parts[1].norms)
    torch.testing.assert_close(whole[1].losses, parts[1].losses)


@pytest.mark.parametrize("path", [None, "vmap", "loop"])
def test_an_empty_batch_gives_zeros(path):
    x, y = batch(*IMAGE)
    clipper = Clipper(MODELS["mlp"][0](), clip=0.5, path=path)
    for _ in range(2):
        bounded, not_private = clipper(x[:0], y[:0])
        assert bounded.vector.shape == (64 * 200 + 200 + 200 * CLASSES + CLASSES,)
        assert not bounded.vector.any()
        assert (not_private.examples, not_private.fraction_clipped, not_private.loss_sum) == (0, 0.0, 0.0)
        clipper(x, y)


def test_the_statistics_are_those_of_the_batch():
    x, y = batch(*IMAGE)
    model = MODELS["mlp"][0]()
    norms = norms_of(model, x, y).sort().values
    _, not_private = Clipper(model, clip=float((norms[1] + norms[2]) / 2))(x, y)
    assert not_private.examples == 6
    assert not_private.fraction_clipped == pytest.approx(4 / 6)
    assert not_private.loss_sum == pytest.approx(F.cross_entropy(model(x), y, reduction="sum").item(), rel=1e-5)
    assert "tensor" not in repr(not_private)


@pytest.mark.parametrize("path", ["book-keeping", "vmap", "loop"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_example_without_a_finite_norm_counts_as_zero(path, value):
    x, y = batch(*IMAGE)
    bad, good = x.clone(), torch.arange(6) != 4
    bad[4] = value
    clipper = Clipper(MODELS["mlp"][0](), clip=0.5, path=path)
    for _ in range(2):
        bounded, not_private = clipper(bad, y)
        torch.testing.assert_close(bounded.vector, clipper(x[good], y[good])[0].vector, rtol=1e-4, atol=1e-6)
        assert not_private.norms.isfinite().tolist() == good.tolist()
    torch.testing.assert_close(
        clipped_sum_slow(clipper.model, bad, y, clip=0.5), bounded.vector.float(), rtol=1e-4, atol=1e-6
    )


def test_bad_arguments_are_refused():
    x, y = batch(*IMAGE)
    model = MODELS["mlp"][0]()
    with pytest.raises(BadInput, match="clip > 0"):
        Clipper(model, clip=0.0)
    with pytest.raises(BadInput, match="physical_batch"):
        Clipper(model, clip=1.0, physical_batch=0)
    with pytest.raises(BadInput, match="labels"):
        Clipper(model, clip=1.0)(x, y[:3])


def test_coarse_products_are_refused():
    x, y = batch(*IMAGE)
    clipper = Clipper(MODELS["mlp"][0](), clip=1.0)
    torch.set_float32_matmul_precision("medium")
    try:
        with pytest.raises(BadInput, match="highest"):
            clipper(x, y)
    finally:
        torch.set_float32_matmul_precision("highest")


@given(
    power=st.integers(-6, 6),
    place=st.integers(0, 5),
    label=st.integers(0, CLASSES - 1),
    clip=st.sampled_from([0.01, 1.0]),
)
@settings(max_examples=15, deadline=None, derandomize=True)
@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer"])
def test_one_example_changes_the_sum_by_at_most_the_clip(name, power, place, label, clip):
    make, (x, y) = MODELS[name]
    model = made(make(), x)
    scale = 1 if x.dtype == torch.long else 10.0**power
    odd = (x[place : place + 1] * scale, torch.tensor([label]))
    clipper = Clipper(model, clip=clip)
    without, _ = clipper(x, y)
    alone, _ = clipper(*odd)
    together, _ = clipper(torch.cat([x, odd[0]]), torch.cat([y, odd[1]]))
    assert float(alone.vector.norm()) <= clip
    assert float((together.vector - without.vector).norm()) <= clip


@pytest.mark.parametrize("path", ["book-keeping", "vmap", "loop"])
def test_a_long_gradient_is_cut_to_the_clip_exactly(path):
    x, y = batch(*IMAGE)
    model = MODELS["mlp"][0]()
    clipper = Clipper(model, clip=1e-3, path=path)
    assert norms_of(model, x, y).min() > 0.1  # without clipping every vector below would be this long
    for i in range(len(y)):
        assert 1e-3 * (1 - 2.0**-9) < float(clipper(x[i : i + 1], y[i : i + 1])[0].vector.norm()) <= 1e-3


def test_a_short_gradient_is_left_alone():
    x, y = batch(*IMAGE)
    model = MODELS["mlp"][0]()
    bounded, _ = Clipper(model, clip=1e6)(x, y)
    gradient = torch.autograd.grad(F.cross_entropy(model(x), y, reduction="sum"), list(model.parameters()))
    torch.testing.assert_close(
        bounded.vector.float(), torch.cat([part.reshape(-1) for part in gradient]), rtol=1e-3, atol=1e-5
    )


def test_a_wholly_frozen_model_gives_zeros():
    x, y = batch(6)
    bounded, not_private = Clipper(nn.Linear(6, CLASSES).requires_grad_(False), clip=1.0)(x, y)
    assert not bounded.vector.any()
    assert not not_private.norms.any()


def test_gradients_are_found_under_no_grad():
    x, y = batch(*IMAGE)
    model = MODELS["mlp"][0]()
    expected = clipped_sum_slow(model, x, y, clip=0.5)
    with torch.no_grad():
        for path in ("book-keeping", "vmap", "loop"):
            bounded, _ = Clipper(model, clip=0.5, path=path)(x, y)
            torch.testing.assert_close(bounded.vector.float(), expected, rtol=1e-3, atol=1e-5)
