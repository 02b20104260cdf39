"""Every layer with a rule gives the norms and the sum of its slow twin, in every configuration."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from threads import one_thread  # noqa: F401 - a fixture
from torch import nn

from tacit.training.clipping import SMALLEST, Clipper, clipped_sum_slow
from tacit.training.layers import Product, gram_norms, multiplied, multiplied_norms, weighted

CLASSES, BATCH = 3, 5


class Head(nn.Module):
    """A layer under test, a nonlinearity, and class scores from a fixed projection of whatever it answers."""

    def __init__(self, *layers: nn.Module):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        features = torch.tanh(self.layers(x)).flatten(1)
        rows = torch.arange(CLASSES * features.shape[1], dtype=torch.float32).view(CLASSES, -1)
        return features @ torch.cos(rows).T


def norms_of(model, x, y):
    singles = [clipped_sum_slow(model, x[i : i + 1], y[i : i + 1], clip=1e9) for i in range(len(y))]
    return torch.stack(singles).norm(dim=1)


def agrees(model: nn.Module, x: torch.Tensor, path: str = "book-keeping") -> None:
    """The clipper takes the path and agrees with the twin where all, some and no examples are clipped."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    y = torch.arange(len(x)) % CLASSES
    norms = norms_of(model, x, y)
    for clip in (max(float(norms.min()) / 2, SMALLEST), float(norms.median()), 2 * float(norms.max())):
        clipper = Clipper(model, clip=clip)
        bounded, not_private = clipper(x, y)
        assert (clipper.path, clipper.reason) == (path, clipper.reason if path != "book-keeping" else "")
        torch.testing.assert_close(not_private.norms, norms, rtol=2e-4, atol=1e-6)
        expected = clipped_sum_slow(model, x, y, clip=clip)
        torch.testing.assert_close(bounded.vector.float(), expected, rtol=1e-3, atol=2e-5 * clip * len(y))


def images(*shape: int) -> torch.Tensor:
    return torch.randn(BATCH, *shape, generator=torch.Generator().manual_seed(2))


def tokens(*shape: int, vocabulary: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, (BATCH, *shape), generator=torch.Generator().manual_seed(3))


LINEAR: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "plain": (lambda: nn.Linear(4, 6), (4,)),
    "no bias": (lambda: nn.Linear(4, 6, bias=False), (4,)),
    "one output": (lambda: nn.Linear(4, 1), (4,)),
    "sequence of one": (lambda: nn.Linear(4, 6), (1, 4)),
    "short sequence, by Gram matrices": (lambda: nn.Linear(60, 50), (2, 60)),
    "long sequence, by products": (lambda: nn.Linear(3, 2), (40, 3)),
    "sequence without bias": (lambda: nn.Linear(4, 6, bias=False), (7, 4)),
    "three leading dimensions": (lambda: nn.Linear(4, 6), (3, 2, 2, 4)),
    "two layers": (lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5)), (4,)),
}


@pytest.mark.parametrize("name", LINEAR)
def test_linear_agrees_with_the_slow_twin(name):
    make, shape = LINEAR[name]
    agrees(Head(make()), images(*shape))


CONVOLUTIONS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "1d": (lambda: nn.Conv1d(3, 4, 3), (3, 9)),
    "1d everything": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2, bias=False), (4, 11)),
    "2d": (lambda: nn.Conv2d(2, 4, 3), (2, 6, 7)),
    "2d stride": (lambda: nn.Conv2d(2, 4, (3, 2), stride=(2, 1)), (2, 8, 7)),
    "2d padding": (lambda: nn.Conv2d(2, 4, 3, padding=(2, 1)), (2, 5, 6)),
    "2d same, even kernel": (lambda: nn.Conv2d(2, 4, (4, 3), padding="same"), (2, 6, 6)),
    "2d same, dilation": (lambda: nn.Conv2d(2, 4, 2, padding="same", dilation=3), (2, 6, 6)),
    "2d valid": (lambda: nn.Conv2d(2, 4, 3, padding="valid"), (2, 6, 6)),
    "2d one place": (lambda: nn.Conv2d(2, 4, 5), (2, 5, 5)),
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


@pytest.mark.filterwarnings("ignore:Using padding=.same.")
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_agrees_with_the_slow_twin(name):
    make, shape = CONVOLUTIONS[name]
    agrees(Head(make()), images(*shape))


@given(
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    groups=st.sampled_from([1, 2]),
    size=st.tuples(st.integers(7, 10), st.integers(7, 10)),
)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_any_convolution_agrees_with_the_slow_twin(kernel, stride, padding, dilation, groups, size):
    layer = nn.Conv2d(2, 4, kernel, stride=stride, padding=padding, dilation=dilation, groups=groups)
    agrees(Head(layer), images(2, *size))


def test_a_channels_last_image_gives_the_same():
    agrees(Head(nn.Conv2d(3, 4, 3, stride=2, padding=1)), images(3, 7, 6).to(memory_format=torch.channels_last))


NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "LayerNorm": (lambda: nn.LayerNorm(6), (6,)),
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


@pytest.mark.parametrize("name", NORMS)
def test_a_normalisation_agrees_with_the_slow_twin(name):
    make, shape = NORMS[name]
    agrees(Head(make()), images(*shape))


@pytest.mark.parametrize("padding", [None, 0, 4])
def test_an_embedding_with_repeated_tokens_agrees_with_the_slow_twin(padding):
    agrees(Head(nn.Embedding(5, 4, padding_idx=padding)), tokens(9, vocabulary=5))


@pytest.mark.parametrize("shape", [(), (1,), (3, 4)])
def test_an_embedding_takes_tokens_of_any_shape(shape):
    agrees(Head(nn.Embedding(6, 4)), tokens(*shape, vocabulary=6))


class Twice(nn.Module):
    """Uses one layer two times, on inputs of different length."""

    def __init__(self, layer: nn.Module, cut: bool):
        super().__init__()
        self.layer, self.cut = layer, cut

    def forward(self, x):
        other = x.flip(-1)[..., 1:] if self.cut else x.flip(1)
        return torch.cat([self.layer(x).flatten(1), torch.sin(self.layer(other)).flatten(1)], dim=1)


USED_TWICE: dict[str, tuple[Callable[[], nn.Module], torch.Tensor, bool]] = {
    "Linear": (lambda: nn.Linear(4, 3), images(4), False),
    "Linear on sequences": (lambda: nn.Linear(4, 3), images(5, 4), False),
    "Conv2d": (lambda: nn.Conv2d(2, 3, 2), images(2, 5, 5), True),
    "Embedding": (lambda: nn.Embedding(5, 3), tokens(6, vocabulary=5), True),
    "LayerNorm": (lambda: nn.LayerNorm(4), images(5, 4), False),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), images(4, 5), True),
}


@pytest.mark.parametrize("name", USED_TWICE)
def test_a_layer_used_twice_adds_up_before_its_norm_is_taken(name):
    make, x, cut = USED_TWICE[name]
    agrees(Head(Twice(make(), cut)), x)


class Frames(nn.Module):
    """Folds time into the batch, as video and time-distributed models do."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x.flatten(0, 1)).unflatten(0, x.shape[:2])


@pytest.mark.parametrize("layer", [nn.Conv2d(2, 3, 2, groups=1), nn.GroupNorm(1, 2), nn.InstanceNorm2d(2, affine=True)])
def test_time_folded_into_the_batch_is_unfolded_again(layer):
    agrees(Head(Frames(layer)), images(4, 2, 3, 3))


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_a_frozen_parameter_has_zeros_and_no_share_in_the_norm(name):
    layer = nn.Linear(4, 6)
    getattr(layer, name).requires_grad_(False)
    agrees(Head(nn.Linear(4, 4), layer), images(4))


@pytest.mark.parametrize(("time", "groups", "p", "q"), [(3, 1, 8, 9), (30, 1, 3, 2), (5, 2, 4, 3)])
def test_the_ways_to_a_norm_agree(time, groups, p, q):
    a, d = torch.randn(4, time, groups, p), torch.randn(4, time, groups, q)
    exact = torch.einsum("btgq,btgp->bgqp", d.double(), a.double())
    for found in (gram_norms(a, d), multiplied_norms(a, d), multiplied(a, d).square().sum(1)):
        torch.testing.assert_close(found.double(), exact.square().sum((1, 2, 3)), rtol=1e-4, atol=0)
    torch.testing.assert_close(weighted(a, d).view(groups, q, p).double(), exact.sum(0), rtol=1e-4, atol=1e-4)


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
