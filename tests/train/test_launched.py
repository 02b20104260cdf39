"""How kernels are launched, without a device: for rows of whatever number, and places counted as far as they go."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import tacit.training

MOST_ALONG = (2**31 - 1, 65_535, 65_535)  # of a CUDA grid, in each direction


class Launched:
    """In the place of a kernel: it notes its grid and its settings."""

    def __init__(self, function):
        self.seen = []

    def __getitem__(self, grid):
        return lambda *_, **how: self.seen.append((grid, how))


@pytest.fixture
def kernels(monkeypatch):
    """Reads a module of kernels without Triton, so that nothing runs."""
    fake, language = ModuleType("triton"), ModuleType("triton.language")
    fake.jit, fake.cdiv, fake.language = (
        lambda function=None, **_: Launched if function is None else Launched(function),
        lambda a, b: -(-a // b),
        language,
    )
    fake.next_power_of_2 = lambda n: 1 << (n - 1).bit_length()
    language.constexpr = None
    monkeypatch.setitem(sys.modules, "triton", fake)
    monkeypatch.setitem(sys.modules, "triton.language", language)

    def read(name):
        path = Path(tacit.training.__path__[0]) / f"{name}.py"
        spec = importlib.util.spec_from_file_location(f"launched_{name}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return read


@pytest.mark.parametrize("shape", [(1 << 17, 3, 2, 2), (4, 512, 300, 300)])
def test_biases_are_added_to_more_rows_than_a_grid_has_in_its_second_direction(kernels, shape):
    fused = kernels("kernels_triton")
    out, bias = torch.empty(shape, device="meta"), torch.empty(2, shape[1], device="meta")
    fused.add_bias(out, bias)
    fused.sum_bias(out, 2)
    for kernel in (fused._add_bias, fused._sum_bias):
        ((grid, _),) = kernel.seen
        assert all(size <= most for size, most in zip(grid, MOST_ALONG, strict=False))


@pytest.mark.parametrize(("channels", "size", "stride"), [(64, 1, 2), (64, 1, 4), (4, 3, 1)])
def test_places_are_counted_in_64_bits_where_images_or_their_windows_are_long(kernels, channels, size, stride):
    layer = nn.Conv2d(channels, 2, size, stride=stride, device="meta")
    for rows in (2, 1 << 13):  # of 64 x 64 pixels
        fused, x = kernels("kernels_triton"), torch.empty(rows, channels, 64, 64, device="meta")
        found = fused.windows(layer, x, (0, 0))
        fused.unwindowed(layer, found, x.shape, (0, 0))
        longest = max(x.numel(), found.numel())
        for kernel in (fused._windows, fused._unwindowed):
            ((_, how),) = kernel.seen
            assert how["LONG"] == (longest >= fused.LONG)
