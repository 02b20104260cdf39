"""`mlp`: one hidden layer; 159,010 parameters on 1x28x28 and ten classes."""

from math import prod

from torch import nn

from tacit.parts.models import Shape

WIDTH = 200


def mlp(*, input_shape: Shape, classes: int) -> nn.Module:
    """One hidden layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), WIDTH), nn.ReLU(), nn.Linear(WIDTH, classes))
