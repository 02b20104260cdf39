import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tacit.parts.losses import cross_entropy
from tacit.training.batches import sent
from tacit.training.optimizer import ONEDNN
from tacit.training.stacked import stack_of
from tacit.training.stacked_layers import Multiplied, Pool, Pooled


@pytest.mark.parametrize(("shape", "size"), [((3, 2, 8, 8), (2, 2)), ((2, 1, 7, 9), (2, 3)), ((1, 4, 5, 5), (5, 1))])
def test_pooling_side_by_side_and_its_way_back_are_torchs(shape, size):
    x = torch.randint(0, 3, shape).float().requires_grad_()  # with ties
    ours, theirs = Pooled.apply(x, size, size), F.max_pool2d(x, size)
    assert torch.equal(ours, theirs)
    d = torch.randn_like(ours)
    assert torch.equal(*(torch.autograd.grad(out, x, d)[0] for out in (ours, theirs)))


@pytest.mark.parametrize(
    "layer",
    [nn.MaxPool2d(2, 1), nn.MaxPool2d(2, padding=1), nn.MaxPool2d(2, ceil_mode=True), nn.MaxPool2d(2, dilation=2)],
)
def test_windows_that_overlap_or_leave_the_image_are_left_to_torch(layer):
    like = torch.zeros(1)  # on a CPU: with Triton a GPU takes windows that overlap too
    assert Pool.fits(nn.MaxPool2d(2), like)
    assert not Pool.fits(layer, like)


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
