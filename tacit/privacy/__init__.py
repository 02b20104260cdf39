"""Privacy: what is noised, what it costs, who has paid, and what may be said of it; `plan.py` is where to begin. Guarantee,
of all kinds but `none`: what a client releases in a round carries the noise that its charge paid for, the charge was on
disk before, and no client's charges pass its budget."""

import importlib
from typing import Any

_HOMES = {  # what a training loop of somebody's own is made of (examples/own_loop.py)
    "Bounded": "tacit.types",
    "Budget": "tacit.types",
    "Client": "tacit.types",
    "Ledger": "tacit.privacy.ledger.ledger",
    "SampledGaussian": "tacit.privacy.local",
    "epsilon": "tacit.privacy.accounting.price",
    "from_os": "tacit.random",
    "noise_multiplier": "tacit.privacy.accounting.price",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tacit.privacy' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
