"""What the rules that look at every update by itself have in common. Each client counts once: what it states is not believed."""

import math
from collections.abc import Sequence

import torch

from tacit.errors import BadInput
from tacit.types import Message

SLACK = 1e-9  # of a product that should be a whole number


def rows_of(messages: Sequence[Message]) -> torch.Tensor:
    """The updates of a round as one matrix (client, parameter). Raises: BadInput without updates."""
    if not messages:
        raise BadInput("Expected at least one update.")
    return torch.stack([message.tensors["update"] for message in messages])


def refuse_half(share: float) -> None:
    """Refuses a share of clients that leaves no majority: the rule would trim everybody away. Raises: BadInput.

    >>> refuse_half(0.5)
    Traceback (most recent call last):
    tacit.errors.BadInput: Expected 0 <= aggregate.share < 0.5, got 0.5: of a half nothing would be left to believe.
    """
    if not 0 <= share < 0.5:
        raise BadInput(
            f"Expected 0 <= aggregate.share < 0.5, got {share!r}: of a half nothing would be left to believe."
        )


def part(share: float, count: int) -> int:
    """How many of `count` clients a share is, rounded up, and never half of them or more.

    >>> [part(0.1, count) for count in (1, 2, 3, 10, 11, 30)]
    [0, 0, 1, 1, 2, 3]
    """
    return min(math.ceil(share * count - SLACK), (count - 1) // 2)


def middle(rows: torch.Tensor, cut: int) -> torch.Tensor:
    """Every coordinate's mean without its `cut` largest and its `cut` smallest values."""
    return rows.sort(0).values[cut : len(rows) - cut].mean(0)
