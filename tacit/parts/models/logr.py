"""`logr`: logistic regression; 7,850 parameters on 1x28x28 and ten classes."""

from math import prod

from torch import nn

from tacit.parts.models import Shape


def logr(*, input_shape: Shape, classes: int) -> nn.Module:
    """Logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), classes))
