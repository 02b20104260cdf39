"""Rows made up from public facts, their shape and type, on which a model is tried before it meets private ones.

How a model is trained, and whether it is refused, must not depend on the rows: that it was refused would tell about them.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from tacit.errors import ModelRefused
from tacit.train.fresh import fresh

SEED = 0


def synthetic(model: nn.Module, x: torch.Tensor, y: torch.Tensor, *, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`count` rows and labels of the shape and type of x and y; of their values nothing is read.

    Raises: ModelRefused for a model that cannot read such rows, with what it said.
    """
    said = ""
    for rows in candidates(model, x, count):
        try:
            with torch.no_grad(), same_chance(x.device):
                scores = fresh(model)(rows)
            return rows, labels(scores, y, count)
        except ModelRefused:
            raise
        except Exception as error:  # noqa: BLE001 - a model's own code may raise anything
            said = said or str(error).partition("\n")[0] or type(error).__name__
    raise ModelRefused(f"The model cannot read rows of {x.dtype} and shape {tuple(x.shape[1:])}: {said}")


def candidates(model: nn.Module, x: torch.Tensor, count: int) -> Iterator[torch.Tensor]:
    """Rows to try: numbers around zero; whole numbers that the smallest embedding has a place for, or small ones."""
    generator, shape = torch.Generator().manual_seed(SEED), (count, *x.shape[1:])
    if x.is_floating_point() or x.is_complex():
        yield torch.randn(shape, generator=generator).to(x)
        return
    tables = [module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)]
    for low, high in ((0, min(tables, default=2)), (0, 2), (1, 2), (0, 1)):
        yield torch.randint(low, max(high, low + 1), shape, generator=generator).to(x)


def labels(scores: torch.Tensor, y: torch.Tensor, count: int) -> torch.Tensor:
    """Targets for these answers: classes that each of them has a score for, or numbers that may be probabilities."""
    generator, shape = torch.Generator().manual_seed(SEED), (count, *y.shape[1:])
    if y.is_floating_point():
        return torch.randn(shape, generator=generator).softmax(1).to(y) if len(shape) > 1 else torch.zeros(shape).to(y)
    return torch.randint(0, max(1, min(scores.shape[1:], default=1)), shape, generator=generator).to(y)


@contextmanager
def same_chance(device: torch.device) -> Iterator[None]:
    """The same random numbers every time, for torch, NumPy and Python; theirs go on afterwards as if nothing had been drawn."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(SEED)
        random.seed(SEED)
        np.random.seed(SEED)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
