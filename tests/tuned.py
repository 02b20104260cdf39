"""Models with a frozen body, for the tests to name."""

import math

import torch
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
