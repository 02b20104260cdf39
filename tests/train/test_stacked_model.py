"""Many clients at once give what each gives alone: every layer, plain gradients and clipped sums."""

import pytest
import torch
from torch import nn

from tacit.parts.losses import cross_entropy
from tacit.training.batches import sent
from tacit.training.flat import flatten
from tacit.training.independence import LARGE, SMALL, Unsupported
from tacit.training.optimizer import ONEDNN, full_precision
from tacit.training.per_example import example_gradient
from tacit.training.sgd import clipped_sum_slow
from tacit.training.stacked import StackedModel, stack_of
from tacit.training.stacked_layers import Multiplied, Pool

CLIENTS, EXAMPLES, CLASSES = 3, 4, 3
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # where there is one, its kernels are tried


class Frames(nn.Module):  # folded into the batch, as a model of video does
    def __init__(self):
        super().__init__()
        self.each, self.last = nn.Conv2d(1, 4, 3, stride=2), nn.Linear(4, CLASSES)

    def forward(self, x):
        frames = torch.relu(self.each(x.flatten(0, 1).unsqueeze(1)))
        return self.last(frames.mean((2, 3)).view(x.shape[0], -1, 4).mean(1))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.again, self.last = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.last(torch.tanh(self.again(torch.tanh(self.again(torch.tanh(self.first(x)))))))


def pooled(*layers):
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(CLASSES))


def half_frozen():
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, CLASSES))
    model[0].weight.requires_grad_(False)
    model[2].requires_grad_(False)
    return model


def biases_alone():
    model = pooled(nn.Conv2d(2, 4, 3), nn.ReLU())
    model[0].weight.requires_grad_(False)
    return model


IMAGE, SIGNAL, TOKENS, ROW = (2, 9, 8), (3, 12), (7,), (5,)
MODELS = {
    "linear": (lambda: nn.Linear(5, CLASSES), ROW),
    "no bias": (lambda: nn.Sequential(nn.Linear(5, 4, bias=False), nn.Tanh(), nn.Linear(4, CLASSES)), ROW),
    "used twice": (Twice, ROW),
    "frozen parts": (half_frozen, ROW),
    "conv": (lambda: pooled(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)), IMAGE),
    "strided, dilated, grouped": (lambda: pooled(nn.Conv2d(2, 4, (3, 2), stride=2, dilation=(1, 2), groups=2)), IMAGE),
    "two convs": (lambda: pooled(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 4, 3, padding="same"), nn.Tanh()), IMAGE),
    "reflecting": (lambda: pooled(nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"), nn.Conv2d(4, 2, 2)), IMAGE),
    "biases alone": (biases_alone, IMAGE),
    "conv1d": (lambda: pooled(nn.Conv1d(3, 4, 3, stride=2), nn.ReLU(), nn.Conv1d(4, 4, 2)), SIGNAL),
    "conv3d": (lambda: pooled(nn.Conv3d(1, 2, 2), nn.ReLU(), nn.Conv3d(2, 2, 2)), (1, 4, 5, 4)),
    "frames": (Frames, (3, 8, 8)),
    "embedding": (lambda: pooled(nn.Embedding(11, 4, padding_idx=0), nn.Tanh()), TOKENS),
    "layer norm": (lambda: pooled(nn.Embedding(11, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.LayerNorm((7, 4))), TOKENS),
    "rms norm": (lambda: nn.Sequential(nn.Linear(5, 6), nn.RMSNorm(6), nn.Linear(6, CLASSES)), ROW),
    "group norm": (lambda: pooled(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU()), IMAGE),
    "instance norm": (lambda: pooled(nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.ReLU()), IMAGE),
}


def case(name):
    make, shape = MODELS[name]
    generator = torch.Generator().manual_seed(1)

    def rows(count):
        if shape == TOKENS:
            return torch.randint(11, (count, *shape), generator=generator).to(DEVICE)
        return torch.randn(count, *shape, generator=generator).to(DEVICE)

    torch.manual_seed(0)
    model = make().to(DEVICE)
    model(rows(2))
    theta = flatten(model)
    thetas = theta + 0.3 * torch.randn(CLIENTS, len(theta), generator=generator).to(DEVICE)
    x = rows(CLIENTS * EXAMPLES).unflatten(0, (CLIENTS, EXAMPLES))
    y = torch.randint(CLASSES, (CLIENTS, EXAMPLES), device=DEVICE)
    return model, theta, thetas, x, y, StackedModel(model, rows(SMALL + LARGE), cross_entropy)


@pytest.fixture(autouse=True)
def _exact():
    with full_precision(DEVICE):
        yield


@pytest.mark.parametrize("name", MODELS)
def test_the_gradients_of_stacked_clients_are_those_of_each_alone(name):
    model, theta, thetas, x, y, stack = case(name)
    weights = torch.rand(CLIENTS, EXAMPLES, device=DEVICE)
    gradients, losses = stack.gradients(stack.cut(thetas), x, y, weights)
    for k in range(CLIENTS):
        theta.copy_(thetas[k])
        each = zip(weights[k], x[k], y[k], strict=True)
        alone = sum(w * example_gradient(model, a[None], b[None])[0] for w, a, b in each)
        near = 1e-6 * max(1.0, float(alone.abs().max()))  # an entry that cancels holds rounding of the others' size
        torch.testing.assert_close(torch.cat([block[k] for block in gradients]), alone, rtol=1e-4, atol=near)
        own = cross_entropy(model(x[k]), y[k]).detach()
        torch.testing.assert_close(losses[k], own @ weights[k], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_the_clipped_sums_of_stacked_clients_are_those_of_each_alone_whatever_fills_the_batch_up(name):
    model, theta, thetas, x, y, stack = case(name)
    mask, clip = torch.ones(CLIENTS, EXAMPLES, device=DEVICE), 0.5
    mask[1, 2:] = mask[2] = 0
    sums, norms, losses = stack.clipped_sums(stack.rows(theta, CLIENTS).copy_(thetas), x, y, mask, clip=clip)
    for k in range(CLIENTS):
        theta.copy_(thetas[k])
        there = mask[k].bool()
        alone = clipped_sum_slow(model, x[k][there], y[k][there], clip=clip)
        torch.testing.assert_close(sums[k].float(), alone, rtol=1e-4, atol=1e-6)
        each = [example_gradient(model, a[None], b[None])[0].norm() for a, b in zip(x[k], y[k], strict=True)]
        torch.testing.assert_close(norms[k], torch.stack(each), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(losses[k], cross_entropy(model(x[k]), y[k]).detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("crafted", [torch.inf, torch.nan, 1e38])
def test_a_row_without_a_finite_gradient_counts_as_zero_and_touches_nobody_else(crafted):
    _model, theta, thetas, x, y, stack = case("conv")
    rows, mask = stack.rows(theta, CLIENTS).copy_(thetas), torch.ones(CLIENTS, EXAMPLES, device=DEVICE)
    mask[1, 0] = 0
    expected = stack.clipped_sums(rows, x, y, mask, clip=0.5)[0]
    mask[1, 0] = 1
    x = x.clone()
    x[1, 0] = crafted
    torch.testing.assert_close(stack.clipped_sums(rows, x, y, mask, clip=0.5)[0], expected, rtol=1e-4, atol=1e-6)


def test_a_model_that_mixes_examples_is_not_stacked():
    with pytest.raises(Unsupported):
        StackedModel(
            nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)), torch.randn(5, 5), cross_entropy
        )


@pytest.mark.parametrize("how", [{"stride": 1}, {"padding": 1}, {"ceil_mode": True}, {"dilation": 2}])
def test_windows_that_overlap_or_leave_the_image_are_left_to_torch(how):
    like = torch.zeros(1)  # on a CPU: with Triton a GPU takes windows that overlap too
    assert Pool.fits(nn.MaxPool2d(2), like)
    assert not Pool.fits(nn.MaxPool2d(2, **how), like)


def test_a_stacked_layers_gradient_lies_in_memory_as_its_weights_do():
    rows, weight = torch.randn(3, 5, 7, requires_grad=True), torch.randn(3, 4, 7, requires_grad=True)
    d = torch.randn(3, 5, 4)
    ours = torch.autograd.grad(Multiplied.apply(rows, weight), (rows, weight), d)
    theirs = torch.autograd.grad(torch.bmm(rows, weight.mT), (rows, weight), d)
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other)
    assert ours[1].is_contiguous()


def test_a_stack_is_compared_with_single_examples_at_full_precision():
    convolutions = ONEDNN[0]
    seen, before = [], convolutions.fp32_precision

    def losses(outputs, targets):
        seen.append(convolutions.fp32_precision)
        return cross_entropy(outputs, targets)

    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 2))
    convolutions.fp32_precision = "tf32"  # as cuDNN's are by themselves
    try:
        stack_of(model, torch.randn(3, 1, 8, 8), torch.zeros(3, dtype=torch.long), losses)
        assert set(seen) == {"ieee"}
        assert convolutions.fp32_precision == "tf32"
    finally:
        convolutions.fp32_precision = before


def test_what_is_sent_to_a_cpu_is_the_thing_itself():
    tensor = torch.ones(2)
    assert sent(tensor, torch.device("cpu")) is tensor
