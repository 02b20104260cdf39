"""A device made ready beside what else is done: its context and its libraries take about a second, in which rows can be read."""

import threading
from collections.abc import Sequence

import torch
import torch.nn.functional as F


def warm(devices: Sequence[str]) -> None:
    """Has CUDA devices wake up in a thread; does nothing for others, and nothing about what fails: the run will say it.

    A process that ends meanwhile waits for it: torch aborts where Python ends beside a thread that is at work in it.
    """
    awake = [name for name in devices if name.startswith("cuda")]
    if awake:
        threading.Thread(target=_woken, args=(awake,)).start()


def _woken(devices: Sequence[str]) -> None:
    for name in devices:
        try:
            images = torch.zeros(1, 1, 8, 8, device=name)
            F.conv2d(images, images[..., :3, :3])
            torch.mm(images[0, 0], images[0, 0])
        except Exception:  # noqa: BLE001 - no such device, or a full one: whoever uses it is told
            return
