"""Which rows the clients of a round take in every step, for all of them at once."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tacit.parts.losses import IGNORED, Losses
from tacit.random import Stream
from tacit.types import Persons

# To a device and back without waiting for what else it does: a copy from ordinary memory, or a look at a number, waits for all.


def sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor on a device, in the order of its other work."""
    return tensor if device.type != "cuda" else tensor.pin_memory().to(device, non_blocking=True)


def later(tensor: torch.Tensor) -> Callable[[], Any]:
    """The numbers of a tensor, after what its device has to do so far: calling waits for that, and for nothing since."""
    if not tensor.is_cuda:
        return tensor.tolist
    here = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    here.copy_(tensor, non_blocking=True)
    ready = torch.cuda.Event()
    ready.record(torch.cuda.current_stream(tensor.device))

    def numbers() -> Any:
        ready.synchronize()
        return here.tolist()

    return numbers


@dataclass(frozen=True, eq=False)
class Batches:
    """(step, client, example): places among the rows of all clients, and 1 for those that count; the others fill up, with a row of
    that very batch, or of that client where the batch is empty."""

    places: torch.Tensor = field(repr=False)
    mask: torch.Tensor = field(repr=False)

    def to(self, device: torch.device) -> "Batches":
        return Batches(sent(self.places, device), sent(self.mask, device))


def shuffled(stream: Stream, size: int, *, batch_size: int, steps: int) -> Iterator[np.ndarray]:
    """The batches of plain SGD: a new shuffle every epoch, the last batch of an epoch may be short."""
    order = list[np.ndarray]()
    for _ in range(steps):
        if not order:
            mixed = stream.uniform(size).argsort(kind="stable")
            order = [mixed[start : start + batch_size] for start in range(0, size, batch_size)][::-1]
        yield order.pop()


def shuffled_alike(streams: Sequence[Stream], size: int, *, batch_size: int, steps: int) -> np.ndarray | None:
    """`shuffled` of clients with as many rows, all at once, (client, step, example); None where a batch is short."""
    in_epoch, rest = divmod(size, batch_size)
    if rest or not in_epoch:
        return None
    epochs = -(-steps // in_epoch)
    drawn = np.stack([stream.uniform(epochs * size) for stream in streams]).reshape(len(streams), epochs, size)
    mixed = drawn.argsort(axis=2, kind="stable")
    return mixed.reshape(len(streams), epochs * in_epoch, batch_size)[:, :steps]


def filled(drawn: Sequence[Sequence[np.ndarray]], starts: Sequence[int], *, fold: int = 1) -> Batches:
    """The batches (client, step) as one; `starts` says where each client's rows begin. Who takes fewer steps has empty ones. The
    longest batch is a multiple of `fold`, so that shapes repeat from round to round."""
    steps = max(map(len, drawn))
    most = max(1, *(len(batch) for batches in drawn for batch in batches))
    most = -(-most // fold) * fold
    busy = [batches for batches in drawn if batches]
    sizes = {len(batch) for batches in busy for batch in batches}
    if sizes == {most} and {len(batches) for batches in busy} == {steps} and not any(drawn[len(busy) :]):
        return equal(np.array(busy), starts)
    places = np.empty((steps, len(drawn), most), np.int64)
    counts = np.zeros((steps, len(drawn)), np.int64)
    for k, (batches, start) in enumerate(zip(drawn, starts, strict=True)):
        places[len(batches) :, k] = start
        for s, batch in enumerate(batches):
            counts[s, k] = count = len(batch)
            places[s, k, :count] = batch
            if count < most:
                places[s, k, count:] = batch[0] if count else 0
        places[: len(batches), k] += start
    mask = (np.arange(most) < counts[:, :, None]).astype(np.float32)
    return Batches(torch.from_numpy(places), torch.from_numpy(mask))


def equal(drawn: np.ndarray, starts: Sequence[int]) -> Batches:
    """`filled` of batches of one size, as many for each client (client, step, example); whoever else has a start takes none."""
    clients, steps, size = drawn.shape
    places = np.zeros((steps, len(starts), size), np.int64)
    places[:, :clients] = drawn.swapaxes(0, 1)
    mask = np.zeros(places.shape, np.float32)
    mask[:, :clients] = 1.0
    return Batches(torch.from_numpy(places + np.array(starts)[:, None]), torch.from_numpy(mask))


def shuffled_cohort(
    streams: Sequence[Stream], shapes: Sequence[tuple[int, int, int]], starts: Sequence[int]
) -> tuple[Batches, bool]:
    """The batches of clients of a (size, batch_size, steps) each, idle ones last, and whether some take fewer steps than others."""
    if len(set(shapes)) == 1:
        size, batch_size, steps = shapes[0]
        alike = shuffled_alike(streams, size, batch_size=batch_size, steps=steps)
        if alike is not None:
            return equal(alike, starts), False
    drawn = [
        list(shuffled(stream, size, batch_size=batch_size, steps=steps))
        for stream, (size, batch_size, steps) in zip(streams, shapes, strict=True)
    ]
    idle: list[list[np.ndarray]] = [[]] * (len(starts) - len(shapes))
    return filled(drawn + idle, starts), len({len(batches) for batches in drawn}) > 1


# Several views of one record, whose gradients are averaged before they are clipped.


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
        batch, channels, height, width = x.shape
        room = F.pad(x, [self.reach] * 4)
        starts = offsets.to(x.device)
        rows = starts[:, :, 0, None] + torch.arange(height, device=x.device)
        columns = starts[:, :, 1, None] + torch.arange(width, device=x.device)
        image = torch.arange(batch, device=x.device)[:, None, None, None, None]
        channel = torch.arange(channels, device=x.device)[:, None, None]
        return room[image, channel, rows[:, :, None, :, None], columns[:, :, None, None, :]]


class Viewed(nn.Module):
    """A model on several views of each example, or rows of each person: its answers (batch, views, ...), over which the loss takes
    the mean."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x.flatten(0, 1)).unflatten(0, x.shape[:2])


def over_views(losses: Losses) -> Losses:
    """The mean of an example's losses over its views; their targets are one and the same."""

    def mean(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        count = outputs.shape[1]
        repeated = y[:, None].expand(len(y), count, *y.shape[1:])
        return losses(outputs.flatten(0, 1), repeated.flatten(0, 1)).unflatten(0, (len(y), count)).mean(1)

    return mean


# Several rows of one person, whose gradients are averaged before they are clipped, once.


def rows_of(persons: Persons, drawn: np.ndarray, stream: Stream, *, start: int = 0) -> np.ndarray:
    """(person, row): for each drawn person the places of `most` of its rows, from `start` on. Of who has more, these are drawn
    without replacement, all as likely. Who has fewer fills up with ~p, p the place of one of its own rows, which counts
    nothing: so what another person's row gives is never near."""
    first, counts = persons.offsets[drawn], np.diff(persons.offsets)[drawn]
    ends = np.cumsum(counts)
    owner = np.repeat(np.arange(len(drawn)), counts)
    order = np.lexsort((stream.uniform(len(owner)), owner))  # each person's rows in an order of their own
    rank = np.arange(len(owner)) - np.repeat(ends - counts, counts)
    mixed = (first + counts - ends)[owner] + order + start
    places = np.repeat(~(first + start)[:, None], persons.most, axis=1)
    taken = rank < persons.most
    places[owner[taken], rank[taken]] = mixed[taken]
    return places


def counted(y: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The targets at the places of `rows_of`, with a mark where none is."""
    absent = (places < 0).reshape(*places.shape, *(1,) * (y.dim() - 1))
    return y[own(places)].masked_fill(absent.to(y.device), math.nan if y.is_floating_point() else IGNORED)


def own(places: torch.Tensor) -> torch.Tensor:
    """Places among rows of `rows_of`: of what fills up too."""
    return torch.where(places < 0, ~places, places)


def over_rows(losses: Losses) -> Losses:
    """The mean of a person's losses over its rows that count."""

    def mean(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        here = ~y.isnan() if y.is_floating_point() else y != IGNORED
        here = here.flatten(2).any(2) if y.dim() > 2 else here
        shape = (*here.shape, *(1,) * (y.dim() - 2))
        each = losses(outputs.flatten(0, 1), torch.where(here.view(shape), y, 0).flatten(0, 1)).unflatten(0, here.shape)
        return torch.where(here, each, 0.0).sum(1) / here.sum(1).clamp(min=1)

    return mean
