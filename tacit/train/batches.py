"""Which rows the clients of a round take in every step, for all of them at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from tacit.random import Stream
from tacit.train.transfer import sent


@dataclass(frozen=True, eq=False)
class Batches:
    """(step, client, example): places among the rows of all clients, and 1 for those that count; the others fill up.

    What fills a batch up is a row of that very batch, or of that client where the batch is empty.
    """

    places: torch.Tensor = field(repr=False)
    mask: torch.Tensor = field(repr=False)

    def to(self, device: torch.device) -> "Batches":
        """The same on a device."""
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
    """`shuffled` of clients with as many rows, all at once: the very same batches, (client, step, example).

    None where a batch is short.
    """
    in_epoch, rest = divmod(size, batch_size)
    if rest or not in_epoch:
        return None
    epochs = -(-steps // in_epoch)
    drawn = np.stack([stream.uniform(epochs * size) for stream in streams]).reshape(len(streams), epochs, size)
    mixed = drawn.argsort(axis=2, kind="stable")
    return mixed.reshape(len(streams), epochs * in_epoch, batch_size)[:, :steps]


def filled(drawn: Sequence[Sequence[np.ndarray]], starts: Sequence[int], *, longest: int = 1, fold: int = 1) -> Batches:
    """The batches (client, step) as one. `starts` says where each client's rows begin; who takes fewer steps has empty ones.

    The longest batch is at least `longest` and a multiple of `fold`, so that shapes repeat from round to round.
    """
    steps = max(map(len, drawn))
    most = max(longest, *(len(batch) for batches in drawn for batch in batches))
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
