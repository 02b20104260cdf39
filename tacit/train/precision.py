"""Float32 products at full precision, for the time in which gradients are clipped.

A product whose factors were rounded (TF32 in cuDNN's convolutions, which is torch's default; bfloat16 in oneDNN's) can exceed
the clip, because the norm and the sum come from different products. Convolutions and recurrent layers are set right here and
set back afterwards; matrix products and autocast, which a user has chosen, are refused.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tacit.errors import BadInput

FULL = ("ieee", "none")  # "none": nothing is set, here or above, and float32 is float32
LAYERS = ("conv", "rnn")  # together: cuDNN's older setting `allow_tf32`, the only one before torch 2.9, stands for both


def _settings(backend: Any) -> list[Any]:
    """Where torch lets one choose the precision of a backend's convolutions."""
    return [getattr(backend, layer) for layer in LAYERS if hasattr(backend, layer)]


CUDNN, ONEDNN = _settings(torch.backends.cudnn), _settings(torch.backends.mkldnn)


class full_precision:
    """Convolutions on this device in full float32 within the block; the user's settings are back afterwards, whatever happens.

    Raises: BadInput where torch may round the factors of matrix products, unless nothing is clipped.
    """

    def __init__(self, device: torch.device, *, clipped: bool = True):
        self.settings = CUDNN if device.type == "cuda" else ONEDNN
        self.cuda, self.clipped = device.type == "cuda", clipped

    def __enter__(self) -> None:
        if self.clipped:
            refuse_coarse_products()
        found = [(setting, setting.fp32_precision) for setting in self.settings]
        self.coarse = [(setting, precision) for setting, precision in found if precision not in FULL]
        self.older = self.cuda and _allowed()
        if self.older:
            torch.backends.cudnn.allow_tf32 = False
        for setting, _ in self.coarse:
            setting.fp32_precision = "ieee"

    def __exit__(self, *error: object) -> None:
        if self.older:
            torch.backends.cudnn.allow_tf32 = True
        for setting, precision in self.coarse:
            setting.fp32_precision = precision


@contextmanager
def coarse(precision: str) -> Iterator[None]:
    """Products of plain SGD with rounded factors within the block: "tf32" or "bfloat16"; "float32" changes nothing.

    Never around what is clipped example by example: `full_precision` would refuse it.
    """
    if precision == "float32":
        yield
    elif precision == "bfloat16":
        with torch.autocast(
            "cuda", torch.bfloat16, cache_enabled=False
        ):  # a recorded graph must not read what is cached
            yield
    else:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


def refuse_coarse_products() -> None:
    """Raises: BadInput where torch may round the factors of a product: a sum of clipped gradients could exceed the clip."""
    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:  # set by the newer settings of single backends, which the older question cannot answer
        precision = "mixed"
    if precision != "highest":
        raise BadInput("Call torch.set_float32_matmul_precision('highest'): coarser products can exceed the clip.")
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise BadInput("Clip gradients outside torch.autocast: products of half precision can exceed the clip.")


def _allowed() -> bool:
    """Torch's older setting; False where it has no answer, because the newer ones were used."""
    try:
        return torch.backends.cudnn.allow_tf32
    except RuntimeError:
        return False
