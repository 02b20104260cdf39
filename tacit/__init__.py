"""Tacit: federated learning with a privacy promise that holds.

>>> import tacit
>>> tacit.Experiment(privacy={"kind": "local", "epsilon": 3.0}).privacy.kind
'local'
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.algorithms import Rule
    from tacit.data.given import Dataset
    from tacit.deploy.site.charges import Ledger
    from tacit.engine.history import History
    from tacit.errors import TacitError
    from tacit.experiment import Experiment
    from tacit.lab.grid import compare
    from tacit.predict import Predictor, load
    from tacit.simulation import run
    from tacit.types import Budget, Guarantee

__version__ = "0.2.0"
__all__ = [
    "Budget",
    "Dataset",
    "Experiment",
    "Guarantee",
    "History",
    "Ledger",
    "Predictor",
    "Rule",
    "TacitError",
    "compare",
    "load",
    "run",
]

_HOMES = {
    "Budget": "tacit.types",
    "Dataset": "tacit.data.given",
    "Experiment": "tacit.experiment",
    "Guarantee": "tacit.types",
    "History": "tacit.engine.history",
    "Ledger": "tacit.deploy.site.charges",
    "Predictor": "tacit.predict",
    "Rule": "tacit.algorithms",
    "TacitError": "tacit.errors",
    "compare": "tacit.lab.grid",
    "load": "tacit.predict",
    "run": "tacit.simulation",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tacit' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return ["__version__", *__all__]
