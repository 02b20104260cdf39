"""What a site says of itself when it is greeted: its name, and what it declares to be public."""

import math
from typing import Any

import torch

import tacit
from tacit.data.dataset import Dataset
from tacit.experiment import Experiment
from tacit.federation.site.limits import Limits
from tacit.federation.site.own_rows import shape

DEALT = "client-"  # how clients are named that rows are dealt out to


def declaration(experiment: Experiment, limits: Limits, *, name: str, rows: Dataset) -> dict[str, Any]:
    """What the server is told of a site: name, number of rows, shape of a row, number of classes, budget and versions.

    Guarantee: the number of rows, the shape of one and the number of classes are all that is told of the data; none of them is
    noised, and the run's promise treats them as public. The epsilon is the smaller of what the site allows and what the
    experiment names for it.

    Assumes: the site's people have accepted the experiment (`refuse_beyond`): how rows are read decides what the shape is.
    """
    return {
        "site": name,
        "examples": len(rows.y),
        "shape": list(shape(rows)),
        "classes": rows.classes,
        "epsilon": min(limits.epsilon, proposed(experiment, name)),
        "unit": limits.unit,
        "tacit": tacit.__version__,
        "torch": torch.__version__,
    }


def proposed(experiment: Experiment, name: str) -> float:
    """The epsilon that an experiment itself names for a site; infinity where it leaves that to the site's budget file.

    A table names sites, a list those that rows are dealt out to (`client-0`, `client-1`, ...), and one number is for everybody.

    >>> proposed(Experiment(privacy={"kind": "local", "epsilon": {"north": 1.0, "coast": 3.0}}), "coast")
    3.0
    """
    epsilon = experiment.privacy.epsilon
    if isinstance(epsilon, dict):
        own = epsilon.get(name)
    elif isinstance(epsilon, tuple) and name.startswith(DEALT) and name.removeprefix(DEALT).isdecimal():
        index = int(name.removeprefix(DEALT))
        own = epsilon[index] if index < len(epsilon) else None
    else:
        own = epsilon
    return float(own) if isinstance(own, int | float) else math.inf
