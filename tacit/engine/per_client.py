"""How good a simulation's final model is for every client, on its own rows: for the researcher, covered by no epsilon."""

from typing import Any

import torch

from tacit import metrics
from tacit.build.parts import Parts
from tacit.engine.evaluate import answers_to
from tacit.tasks import chosen

NAME = "per_client.json"
NOT_COVERED = "From raw data: not covered by epsilon. These are the rows that the clients trained on."


def record(parts: Parts, params: torch.Tensor) -> dict[str, Any]:
    """The headline of each client with its 95 % interval over its rows; None where they cannot tell, as of one class alone."""
    name, found = chosen(parts.experiment), []
    for index in range(len(parts.population)):
        client = parts.population[index]
        measured = metrics.table([name], answers_to(parts, params, client.x, client.y)[0]) if len(client.y) else {}
        found.append(measured.get(name))
    return {
        "note": NOT_COVERED,
        "metric": metrics.key(name),
        "clients": list(parts.population.names),
        "values": [one and one["value"] for one in found],
        "intervals": [one and one["interval"] for one in found],
    }
