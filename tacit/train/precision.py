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


def _places(backend: Any) -> list[Any]:
    """Where torch lets one choose the precision of a backend's convolutions."""
    return [getattr(backend, layer) for layer in LAYERS if hasattr(backend, layer)]


CUDNN, ONEDNN = _places(torch.backends.cudnn), _places(torch.backends.mkldnn)


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Convolutions on this device in full float32; the user's settings are back afterwards, whatever happens.

    Raises: BadInput where torch may round the factors of matrix products.
    """
    refuse_coarse_products()
    places = CUDNN if device.type == "cuda" else ONEDNN
    before = [place.fp32_precision for place in places]
    old = device.type == "cuda" and _allowed()
    try:
        if old:
            torch.backends.cudnn.allow_tf32 = False
        for place, found in zip(places, before, strict=True):
            if found not in FULL:
                place.fp32_precision = "ieee"
        yield
    finally:
        if old:
            torch.backends.cudnn.allow_tf32 = True
        for place, found in zip(places, before, strict=True):
            if found not in FULL:
                place.fp32_precision = found


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
