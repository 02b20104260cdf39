"""An experiment with changes, a run that is stopped, and the model that a run left."""

import torch
from safetensors.torch import load_file

import tacit


def changed(base, changes):
    """The experiment of these settings, with changes by table."""
    tables = {key: dict(value) if isinstance(value, dict) else value for key, value in base.items()}
    for section, change in changes.items():
        tables[section] = tables.get(section, {}) | change
    return tacit.Experiment(**tables)


class Stop(Exception):
    pass


def stop_after(round):
    def observe(record):
        if record["round"] == round:
            raise Stop

    return observe


def weights(folder):
    return load_file(folder / "model.safetensors")


def same_model(first, *others):
    """Whether the runs' folders hold the same model, bit for bit."""
    a = weights(first)
    return all(a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a) for b in map(weights, others))
