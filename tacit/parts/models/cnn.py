"""`cnn`: the model of Papernot et al. 2021 (arXiv:2007.14191v1), with tanh, which suits clipping better than ReLU.

26,010 parameters on 1x28x28 and ten classes.
"""

import torch
from torch import nn

from tacit.parts.models import Shape, features_of, image

LARGE_IMAGE = 16  # pixels a side from which the strides of the published cnn leave something to pool
SMALL_IMAGE = 6  # the same for its small sibling


def cnn(*, input_shape: Shape, classes: int) -> nn.Module:
    """Two strided convolutions and two dense layers; images under 16 pixels a side get smaller kernels."""
    channels, side = image("cnn", input_shape, smallest=SMALL_IMAGE)
    if side >= LARGE_IMAGE:
        first, second = nn.Conv2d(channels, 16, 8, stride=2, padding=3), nn.Conv2d(16, 32, 4, stride=2)
    else:
        first, second = nn.Conv2d(channels, 16, 3, padding=1), nn.Conv2d(16, 32, 3, stride=2)
    convolutions = (first, ChannelsLast(), nn.Tanh(), nn.MaxPool2d(2, 1), second, nn.Tanh(), nn.MaxPool2d(2, 1))
    features = nn.Sequential(*convolutions, nn.Flatten())
    return nn.Sequential(
        *features, nn.Linear(features_of(features, input_shape), 32), nn.Tanh(), nn.Linear(32, classes)
    )


class ChannelsLast(nn.Module):
    """The same image with its channels innermost in memory, which makes max-pooling on a CPU nine times faster; on a GPU, slower.

    By `permute`, because `torch.func.vmap` knows no memory formats.
    """

    only_for_cpu = True  # it gives back what it is given: a stack of clients on a GPU leaves it out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same values."""
        if isinstance(x, torch.Tensor) and x.is_cuda:  # what reads a model as a graph gives it something else
            return x
        return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
