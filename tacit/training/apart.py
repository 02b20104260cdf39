"""A model's answers to rows, each as if it were the only one: what one record adds to a count then depends on that record alone.

A model may mix the examples of a batch (a mean over it, attention along it) or remember earlier ones. Under `torch.vmap` every
example is a batch of its own; a model that cannot run so is shown one row at a time, each on a copy that has seen no other."""

import torch
from torch import nn

from tacit.training.flat import fresh

CHUNK = 1000  # rows at a time


@torch.no_grad()
def answers_apart(model: nn.Module, x: torch.Tensor, *, answer: tuple[int, ...]) -> torch.Tensor:
    """What the model answers to every row, [rows, *answer]; a row that it cannot read gets zeros.

    Guarantee: an answer depends on its own row and the parameters alone, and a row that cannot be read changes no other, as far
    as the model keeps what it remembers in itself (tacit/training/flat.py).

    Assumes: the model is in evaluation mode, and draws nothing.

    >>> answers_apart(nn.BatchNorm1d(2).train(), torch.ones(3, 2), answer=(2,)).shape  # alone, no row has a variance
    torch.Size([3, 2])
    """
    parts = [_chunk(model, part, answer) for part in x.split(CHUNK)] if len(x) else []
    return torch.cat(parts) if parts else x.new_zeros((0, *answer), dtype=torch.float32)


def _chunk(model: nn.Module, x: torch.Tensor, answer: tuple[int, ...]) -> torch.Tensor:
    try:
        alone = fresh(model)
        found = torch.vmap(lambda row: alone(row[None]).reshape(answer), chunk_size=None)(x)
    except Exception:  # noqa: BLE001 - whatever cannot be batched is shown row by row
        return torch.stack([_row(model, row, answer) for row in x])
    return found.float().cpu()


def _row(model: nn.Module, row: torch.Tensor, answer: tuple[int, ...]) -> torch.Tensor:
    try:
        return fresh(model)(row[None]).reshape(answer).float().cpu()
    except Exception:  # noqa: BLE001 - a row's own trouble
        return torch.zeros(answer)
