"""Models with a frozen body, for the tests to name."""

import math

import torch
from safetensors.torch import load_file
from torch import nn


def head(*, input_shape, classes, width=16):
    """A head on a frozen body: 'tuned:head'."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), width), nn.Tanh()).requires_grad_(False)
    return nn.Sequential(body, nn.Linear(width, classes))


def nothing(*, input_shape, classes):
    """An adapter that was forgotten."""
    return head(input_shape=input_shape, classes=classes).requires_grad_(False)


def normalised(*, input_shape, classes, width=16):
    """A frozen body with batch normalisation whose statistics came with it."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), width), nn.BatchNorm1d(width), nn.ReLU())
    with torch.no_grad():
        body[2].running_mean.copy_(torch.linspace(-1, 1, width))
        body[2].running_var.copy_(torch.linspace(0.5, 2, width))
    return nn.Sequential(body.requires_grad_(False), nn.Linear(width, classes))


def stored(*, input_shape, classes, path, width=16):
    """A head on a body whose weights lie in a file."""
    model = head(input_shape=input_shape, classes=classes, width=width)
    model[0].load_state_dict(load_file(path))
    return model


def lone(*, input_shape, classes, width=16):
    """As many trainable parameters as `head`, and none that are frozen."""
    return nn.Sequential(First(width), nn.Linear(width, classes))


class First(nn.Module):
    """The first numbers of a row."""

    def __init__(self, width):
        super().__init__()
        self.width = width

    def forward(self, x):
        return x.flatten(1)[:, : self.width]
