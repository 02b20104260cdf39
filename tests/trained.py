"""The model that a run left, and whether two runs left the same one."""

import torch
from safetensors.torch import load_file


def weights(folder):
    return load_file(folder / "model.safetensors")


def same_model(first, *others):
    """Whether the runs' folders hold the same model, bit for bit."""
    a = weights(first)
    return all(a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a) for b in map(weights, others))
