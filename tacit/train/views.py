"""Several views of one record, whose gradients are averaged before they are clipped.

Source: augmentation multiplicity, De, Berrada, Hayes, Smith, Balle 2022 (arXiv:2204.13650). Guarantee: that of the mechanism,
unchanged: however many views a record has, its gradient is one vector, the mean over them, and is clipped as one.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from tacit.losses import Losses
from tacit.random import Stream


@dataclass(frozen=True)
class Shifts:
    """`count` views of an image: itself, and others moved by up to `reach` pixels along each axis, with zeros moving in."""

    count: int
    reach: int

    def offsets(self, stream: Stream, batch: int) -> torch.Tensor:
        """(batch, count, 2) places in 0 .. 2 reach where a view begins in the padded image; `reach` leaves it as it is."""
        starts = (stream.uniform(batch * (self.count - 1) * 2) * (2 * self.reach + 1)).astype("int64")
        drawn = torch.from_numpy(starts).view(batch, self.count - 1, 2)
        return torch.cat([torch.full((batch, 1, 2), self.reach), drawn], dim=1)

    def of(self, x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """The views (batch, count, channels, height, width) of images (batch, channels, height, width)."""
        batch, channels, height, width = x.shape
        room = F.pad(x, [self.reach] * 4)
        starts = offsets.to(x.device)
        rows = starts[:, :, 0, None] + torch.arange(height, device=x.device)
        columns = starts[:, :, 1, None] + torch.arange(width, device=x.device)
        image = torch.arange(batch, device=x.device)[:, None, None, None, None]
        channel = torch.arange(channels, device=x.device)[:, None, None]
        return room[image, channel, rows[:, :, None, :, None], columns[:, :, None, None, :]]


class Viewed(nn.Module):
    """A model on several views of each example: its answers (batch, views, ...), over which the loss takes the mean."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One answer for every view."""
        return self.model(x.flatten(0, 1)).unflatten(0, x.shape[:2])


def over_views(losses: Losses) -> Losses:
    """The mean of an example's losses over its views; their targets are one and the same."""

    def mean(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        count = outputs.shape[1]
        repeated = y[:, None].expand(len(y), count, *y.shape[1:])
        return losses(outputs.flatten(0, 1), repeated.flatten(0, 1)).unflatten(0, (len(y), count)).mean(1)

    return mean
