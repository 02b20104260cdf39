"""Models that a stack has trouble with."""

import math

from torch import nn


class Untraced(nn.Module):
    """Its forward pass asks about a shape in a way that no graph holds; `torch.func` can take it."""

    def __init__(self, inputs: int, classes: int):
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 12), nn.Linear(12, classes)

    def forward(self, x):
        rows = x.reshape(len(x), -1)
        return self.last(nn.functional.relu(self.first(rows)) * len(set(range(2))))


def untraced(*, input_shape, classes):
    return Untraced(math.prod(input_shape), classes)


def mixing(*, input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), 8), nn.BatchNorm1d(8), nn.Linear(8, classes))
