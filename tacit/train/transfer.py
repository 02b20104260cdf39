"""To a device and back without waiting for what else it does: a copy from ordinary memory, or a look at a number, waits for all."""

from collections.abc import Callable
from typing import Any

import torch


def sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor on a device, in the order of its other work."""
    return tensor if device.type != "cuda" else tensor.pin_memory().to(device, non_blocking=True)


def later(tensor: torch.Tensor) -> Callable[[], Any]:
    """The numbers of a tensor, after what its device was told so far: calling waits for that, and for nothing told since.

    >>> later(torch.tensor([1.0, 2.0]))()
    [1.0, 2.0]
    """
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
