"""How good a simulation's final model is for every client, on its own rows: for the researcher, covered by no epsilon."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tacit import metrics
from tacit.build.parts import Parts
from tacit.engine.evaluate import answers_to
from tacit.tasks import chosen

NAME = "per_client.json"
RAW = "From raw data: not covered by epsilon."
TRAINED_ON = "These are the rows that the clients trained on."
KEPT = "These are rows that each client kept for this (data.own_share) and trained on never."


def record(parts: Parts, params: torch.Tensor) -> dict[str, Any]:
    """The headline of each client with its 95 % interval over its rows, and how clients differ in it; None where rows cannot tell.

    Where clients keep rows to judge models by (`data.own_share`), it is measured on those, else on the rows they trained on.
    """
    name, found = chosen(parts.experiment), []
    kept = parts.population.held if parts.experiment.data.own_share is not None else None
    everybody = parts.population if kept is None else kept
    for index in range(len(parts.population)):
        client = everybody[index]
        measured = metrics.table([name], answers_to(parts, params, client.x, client.y)[0]) if len(client.y) else {}
        found.append(measured.get(name))
    values = [one and one["value"] for one in found]
    return {
        "note": f"{RAW} {TRAINED_ON if kept is None else KEPT}",
        "metric": metrics.key(name),
        "clients": list(parts.population.names),
        "values": values,
        "intervals": [one and one["interval"] for one in found],
        "spread": spread(values, better=metrics.load(name).better),
    }


def spread(values: Sequence[float | None], *, better: str) -> dict[str, float] | None:
    """How a metric differs between clients, each of which counts once; None where no client's rows can tell.

    `worst_tenth` is the mean over the tenth of the clients, rounded up, that the model serves worst.

    >>> spread([0.5, 0.7, 0.9, None], better="higher")["worst_tenth"], spread([0.5, 0.7], better="lower")["worst"]
    (0.5, 0.7)
    """
    known = np.sort([value for value in values if value is not None])
    if not len(known):
        return None
    ordered = known if better == "higher" else known[::-1]  # the worst first
    tenth = ordered[: math.ceil(len(ordered) / 10)]
    return {
        "clients": len(ordered),
        "mean": float(ordered.mean()),
        "std": float(ordered.std()),
        "worst": float(ordered[0]),
        "worst_tenth": float(tenth.mean()),
        "median": float(np.median(ordered)),
        "best": float(ordered[-1]),
    }
