"""The clipper: every layer with a rule, whole models, models without rules, refusals, and the bound itself."""

import copy
from functools import partial

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
from tacit.training.flat import blocks, flatten
from tacit.training.independence import Unsupported, analysed
from tacit.training.layers import Product, gram_norms
from tacit.training.per_example import Tape
from tacit.training.sgd import SMALLEST, Clipper, clipped_sum_slow

CLASSES = 4
PATHS = ("book-keeping", "vmap", "loop")


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


def agrees(model, x, y, path="book-keeping"):
    """The clipper takes the path, and agrees with the slow twin where all, some and no examples are clipped."""
    norms = norms_of(model, x, y)
    for clip in (max(float(norms.min()) / 2, SMALLEST), float(norms.median()), 2 * float(norms.max())):
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
    agrees(made(make(), x), x, y)


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


def behind_its_back(model, h):
    return h + F.linear(h, model.first.weight)


DECIDED = {  # by values of the batch
    "by value": lambda model, h: 2 * h if h.sum() > 0 else h.sin(),
    "by number": lambda model, h: h * (2 if float(h.detach().sum()) > 0 else 3),
    "in NumPy": lambda model, h: h * (2 if np.asarray(h.detach()).sum() > 0 else 3),
    "by comparison": lambda model, h: h * (2 if torch.equal(h, h.abs()) else 3),
}


def frozen(model):
    model.first.requires_grad_(False)
    return model


class SequenceFirst(nn.Module):
    """Time before the batch, as many recurrent models have it."""

    def __init__(self):
        super().__init__()
        self.layer, self.out = nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.out(torch.tanh(self.layer(x.transpose(0, 1))).mean(0))


class Positions(nn.Module):
    """A table of positions that all examples share."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.out(torch.tanh(x + self.table(torch.arange(x.shape[1]))).mean(1))


WITHOUT_RULE = {
    "LSTM": (lambda: Last(nn.LSTM(6, 6, batch_first=True)), batch(4, 6), "loop"),
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
    **{f"decides {how}": (partial(Custom, then), batch(6), "loop") for how, then in DECIDED.items()},
    "part frozen": (lambda: frozen(Custom(scaled)), batch(6), "vmap"),
    "time before batch": (SequenceFirst, batch(4, 6), "vmap"),
    "time before batch, as long as the check": (SequenceFirst, batch(3, 6, examples=3), "vmap"),
    "shared positions": (Positions, batch(6, 6), "vmap"),
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
    model = made(Custom(lambda model, h: h - h.mean(0) if model.training else h), x).train()
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


class Drops(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5, training=self.training)


@pytest.mark.parametrize("drop", [nn.Dropout(0.5), nn.Dropout1d(0.5), nn.AlphaDropout(0.5), Drops()])
def test_dropout_stays_on_the_fast_path_and_the_check_draws_nothing(drop):
    x, y = batch(6)
    model = made(nn.Sequential(nn.Linear(6, 50), nn.Tanh(), drop, nn.Linear(50, CLASSES)), x).train()
    clipper, vectors = Clipper(model, clip=1.0), []
    for _ in range(2):
        torch.manual_seed(9)
        vectors.append(clipper(x, y)[0].vector)
    assert clipper.path == "book-keeping", clipper.reason
    assert torch.equal(vectors[0], vectors[1])
    assert not torch.allclose(vectors[0].float(), clipped_sum_slow(model.eval(), x, y, clip=1.0), atol=1e-3)


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


class Overwrites(nn.Linear):
    def forward(self, x):
        h = x.clone()
        logits = super().forward(h)
        h.mul_(2)
        return logits


class Remembers(nn.Linear):
    def forward(self, x):
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return super().forward(x - self.mean)


def test_a_model_that_single_examples_cannot_train_or_that_writes_data_into_itself_is_refused_with_the_reason():
    with pytest.raises(ModelRefused, match=r"single examples.*modified by an inplace operation"):
        Clipper(nn.Sequential(Overwrites(6, CLASSES)), clip=1.0, path="loop")(*batch(6))
    model = Remembers(6, CLASSES)
    model.register_buffer("mean", torch.zeros(6))
    with pytest.raises(ModelRefused, match="'mean'"):
        Clipper(model, clip=1.0)(*batch(6))


REFUSED = {
    "BatchNorm1d": (lambda: nn.BatchNorm1d(4), r"'1' \(BatchNorm1d\) by GroupNorm"),
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


@pytest.mark.parametrize("path", PATHS)
def test_a_long_gradient_is_cut_to_the_clip_exactly(path):
    x, y = batch(*IMAGE)
    model = MODELS["mlp"][0]()
    clipper = Clipper(model, clip=1e-3, path=path)
    assert norms_of(model, x, y).min() > 0.1  # without clipping every vector below would be this long
    for i in range(len(y)):
        assert 1e-3 * (1 - 2.0**-9) < float(clipper(x[i : i + 1], y[i : i + 1])[0].vector.norm()) <= 1e-3


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
        for path in PATHS:
            bounded, _ = Clipper(model, clip=0.5, path=path)(x, y)
            torch.testing.assert_close(bounded.vector.float(), expected, rtol=1e-3, atol=1e-5)


# Every layer with a rule, in every configuration.


def of_layers(layer, x):
    """The layers agree with their slow twin where class scores are a fixed projection of what they answer."""
    torch.manual_seed(1)
    model = Head(layer)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    agrees(model, x, torch.arange(len(x)) % CLASSES)


class Head(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layers = layer

    def forward(self, x):
        features = torch.tanh(self.layers(x)).flatten(1)
        rows = torch.arange(CLASSES * features.shape[1], dtype=torch.float32).view(CLASSES, -1)
        return features @ torch.cos(rows).T


LINEAR = {
    "plain": (lambda: nn.Linear(4, 6), (4,)),
    "no bias": (lambda: nn.Linear(4, 6, bias=False), (4,)),
    "sequence of one": (lambda: nn.Linear(4, 6), (1, 4)),
    "short sequence, by Gram matrices": (lambda: nn.Linear(60, 50), (2, 60)),
    "long sequence, by products": (lambda: nn.Linear(3, 2), (40, 3)),
    "three leading dimensions": (lambda: nn.Linear(4, 6), (3, 2, 2, 4)),
    "two layers": (lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5)), (4,)),
}


CONVOLUTIONS = {
    "1d": (lambda: nn.Conv1d(3, 4, 3), (3, 9)),
    "1d everything": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2, bias=False), (4, 11)),
    "2d same, even kernel": (lambda: nn.Conv2d(2, 4, (4, 3), padding="same"), (2, 6, 6)),
    "2d same, dilation": (lambda: nn.Conv2d(2, 4, 2, padding="same", dilation=3), (2, 6, 6)),
    "2d valid": (lambda: nn.Conv2d(2, 4, 3, padding="valid"), (2, 6, 6)),
    "2d pointwise": (lambda: nn.Conv2d(5, 4, 1), (5, 4, 4)),
    "2d depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4), (4, 6, 6)),
    "2d many channels, by Gram matrices": (lambda: nn.Conv2d(40, 48, 3), (40, 4, 4)),
    "2d groups, by Gram matrices": (lambda: nn.Conv2d(80, 96, 3, groups=2), (80, 4, 4)),
    "2d reflect": (lambda: nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"), (2, 5, 5)),
    "2d replicate": (lambda: nn.Conv2d(2, 4, 3, padding=(2, 1), padding_mode="replicate"), (2, 5, 5)),
    "2d circular": (lambda: nn.Conv2d(2, 4, 3, padding="same", padding_mode="circular"), (2, 5, 5)),
    "3d": (lambda: nn.Conv3d(2, 3, 2, stride=(1, 2, 1), padding=1), (2, 3, 4, 4)),
    "3d groups": (lambda: nn.Conv3d(4, 4, (1, 2, 3), groups=2, dilation=(1, 2, 1)), (4, 2, 5, 5)),
}


@given(
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    groups=st.sampled_from([1, 2]),
    size=st.tuples(st.integers(7, 10), st.integers(7, 10)),
)
@settings(max_examples=12, deadline=None, derandomize=True)
def test_any_convolution_agrees_with_the_slow_twin(kernel, stride, padding, dilation, groups, size):
    layer = nn.Conv2d(2, 4, kernel, stride=stride, padding=padding, dilation=dilation, groups=groups)
    of_layers(layer, batch(2, *size)[0])


NORMS = {
    "LayerNorm on a sequence": (lambda: nn.LayerNorm(6), (4, 6)),
    "LayerNorm on two dimensions": (lambda: nn.LayerNorm((3, 6)), (2, 3, 6)),
    "LayerNorm without bias": (lambda: nn.LayerNorm(6, bias=False), (4, 6)),
    "RMSNorm": (lambda: nn.RMSNorm(6), (4, 6)),
    "RMSNorm with eps": (lambda: nn.RMSNorm((2, 6), eps=0.1), (3, 2, 6)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (4, 3, 3)),
    "GroupNorm on vectors": (lambda: nn.GroupNorm(2, 6), (6,)),
    "InstanceNorm1d": (lambda: nn.InstanceNorm1d(3, affine=True), (3, 7)),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(3, affine=True), (3, 4, 4)),
    "InstanceNorm3d": (lambda: nn.InstanceNorm3d(2, affine=True), (2, 2, 3, 3)),
}


LAYERS = LINEAR | CONVOLUTIONS | NORMS


@pytest.mark.filterwarnings("ignore:Using padding=.same.")
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_agrees_with_the_slow_twin(name):
    make, shape = LAYERS[name]
    of_layers(make(), batch(*shape)[0])


@pytest.mark.parametrize(
    ("shape", "padding"), [((9,), None), ((9,), 0), ((9,), 4), ((), None), ((1,), None), ((3, 4), None)]
)
def test_an_embedding_of_tokens_of_any_shape_repeated_or_not_agrees_with_the_slow_twin(shape, padding):
    of_layers(nn.Embedding(5, 4, padding_idx=padding), batch(*shape, tokens=5)[0])


class Twice(nn.Module):
    """Uses one layer two times, on inputs of different length."""

    def __init__(self, layer, cut):
        super().__init__()
        self.layer, self.cut = layer, cut

    def forward(self, x):
        other = x.flip(-1)[..., 1:] if self.cut else x.flip(1)
        return torch.cat([self.layer(x).flatten(1), torch.sin(self.layer(other)).flatten(1)], dim=1)


USED_TWICE = {
    "Linear": (lambda: nn.Linear(4, 3), batch(4), False),
    "Linear on sequences": (lambda: nn.Linear(4, 3), batch(5, 4), False),
    "Conv2d": (lambda: nn.Conv2d(2, 3, 2), batch(2, 5, 5), True),
    "Embedding": (lambda: nn.Embedding(5, 3), batch(6, tokens=5), True),
    "LayerNorm": (lambda: nn.LayerNorm(4), batch(5, 4), False),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), batch(4, 5), True),
}


@pytest.mark.parametrize("name", USED_TWICE)
def test_a_layer_used_twice_adds_up_before_its_norm_is_taken(name):
    make, (x, _), cut = USED_TWICE[name]
    of_layers(Twice(make(), cut), x)


class Frames(nn.Module):
    """Folds time into the batch, as video and time-distributed models do."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x.flatten(0, 1)).unflatten(0, x.shape[:2])


@pytest.mark.parametrize("layer", [nn.Conv2d(2, 3, 2, groups=1), nn.GroupNorm(1, 2), nn.InstanceNorm2d(2, affine=True)])
def test_time_folded_into_the_batch_is_unfolded_again(layer):
    of_layers(Frames(layer), batch(4, 2, 3, 3)[0])


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_a_frozen_parameter_has_zeros_and_no_share_in_the_norm(name):
    layer = nn.Linear(4, 6)
    getattr(layer, name).requires_grad_(False)
    of_layers(nn.Sequential(nn.Linear(4, 4), layer), batch(4)[0])


def test_a_gram_norm_that_cancels_is_rounded_up():
    a = torch.randn(200, 1, 1, 64).expand(200, 30, 1, 64) + 1e-4 * torch.randn(200, 30, 1, 64)
    d = torch.randn(200, 30, 1, 48)
    d = d - d.mean(1, keepdim=True)
    exact = torch.einsum("btgq,btgp->bgqp", d.double(), a.double()).square().sum((1, 2, 3))
    assert (gram_norms(a, d) >= exact * (1 - 1e-5)).all()


@pytest.mark.parametrize(("p", "q"), [(6, 5), (300, 200)])
def test_examples_taken_in_parts_give_the_same(monkeypatch, p, q):
    a, d = torch.randn(7, 4, 1, p), torch.randn(7, 4, 1, q)
    weights, out = torch.rand(7), torch.zeros(2, q, p)
    monkeypatch.setattr("tacit.training.layers.KEEP_FLOATS", 0)
    monkeypatch.setattr("tacit.training.layers.KEEP_RATIO", 0)
    found = []
    for limit, place in ((1 << 23, out[0]), (1, out[1])):
        monkeypatch.setattr("tacit.training.layers.PART_FLOATS", limit)
        product = Product(lambda part: (a[part], d[part]), lambda g: g, batch=7, time=4, groups=1, p=p, q=q)
        found.append(product.squared_norms())
        product.add_weighted(weights, place)
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(out[0], out[1], rtol=1e-4, atol=1e-4)


# The flat vector of parameters.


def tied_layers():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    return model


def test_parameters_become_views_of_one_vector():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    theta = flatten(model)
    assert theta.shape == (3 * 4 + 4 + 4 * 2 + 2,)
    assert not theta.requires_grad
    for parameter, old, view in zip(model.parameters(), before, (b.of(theta) for b in blocks(model)), strict=True):
        assert torch.equal(parameter, old)
        assert parameter.data_ptr() == view.data_ptr()
        assert parameter.requires_grad
    assert flatten(model).data_ptr() == theta.data_ptr()
    before = theta.fill_(2.0).clone()
    model(torch.ones(1, 3)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    assert torch.equal(theta, torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]))
    assert not torch.equal(theta, before)


def test_a_tied_parameter_is_stored_once():
    model = tied_layers()
    theta = flatten(model)
    assert theta.shape == (9 + 3 + 3,)
    assert model[0].weight is model[2].weight
    assert [block.name for block in blocks(model)] == ["0.weight", "0.bias", "2.bias"]


def test_a_transposed_parameter_is_flattened_by_value():
    model = nn.Linear(3, 2)
    model.weight = nn.Parameter(torch.arange(6.0).view(3, 2).T)
    theta = flatten(model)
    assert theta[:6].tolist() == [0, 2, 4, 1, 3, 5]


def test_a_model_without_parameters_is_empty():
    assert flatten(nn.ReLU()).shape == (0,)


def test_the_size_of_a_batch_is_never_squared_in_a_graph():
    model = Custom(lambda model, h: h.reshape(h.shape[0] * h.shape[0], -1).reshape(h.shape[0], 6))
    with pytest.raises(Unsupported, match="squares the size of the batch"):
        analysed(model, batch(6)[0])
