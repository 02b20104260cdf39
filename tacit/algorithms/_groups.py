"""Clients that are summed together, and the way of a round's reports to one message for each group."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from tacit.algorithms.rules import stand_in
from tacit.crypto.grid import Grid
from tacit.crypto.seal import Collected, Seal
from tacit.errors import BadCiphertext, BadOpening, GridOverflow, SumOverflow, TooFewReports
from tacit.privacy.mechanism import ShareMechanism
from tacit.types import Message

OUT_OF_RANGE = (
    GridOverflow,
    SumOverflow,
    BadCiphertext,
)  # of an opened sum: a sealed number that no honest client seals


@dataclass(frozen=True, eq=False)
class Group:
    """A group's noise and seal, and what is public of each client: facts for the rule, and a weight of at most 1.

    Groups are fixed before the run: noise is sized for the clients it protects, and a client is in one sum only.
    """

    name: str
    noise: ShareMechanism
    seal: Seal
    facts: Mapping[str, dict[str, Any]] = field(repr=False)
    weights: Mapping[str, float] = field(repr=False)

    def mean(self, reports: Collected, *, grid: Grid, round: int) -> Message:
        """The opened sum over the weight it holds, as one message for all who reported.

        Guarantee: clients are counted after opening and by the server's own weights, so nothing that a client states is used.

        Raises: what `Collected.open` raises.
        """
        total, clients = reports.open(), reports.clients
        weight = sum(self.weights[name] for name in clients)
        update = grid.dequantise(total, round=round) / weight  # divide by K, after opening
        members = [self.facts[name] | {"group": self.name} for name in clients]
        return stand_in(self.name, torch.from_numpy(update).float(), members)


def means(
    collected: Mapping[str, tuple[Group, Collected]], *, grid: Grid, round: int, refused: dict[str, str]
) -> list[Message]:
    """One message for each group with enough reports; a sum that cannot be opened is named in `refused`.

    Guarantee: a group with too few reports is left out, and the others count. A sum out of range is of no use and drops the
    round, all groups of it: one report did not keep to the grid, and nobody can say whose without opening single reports.

    Assumes: every group's proofs were checked (`Collected.settle`).

    Raises: OpeningRefused and whatever else an opener has for the operator: holders that are away stop the run, for a resume.
    """
    opened: list[Message] = []
    dropped = False
    for name, (group, reports) in collected.items():
        try:
            opened.append(group.mean(reports, grid=grid, round=round))
        except TooFewReports as error:
            refused[f"the sum of group {name}"] = str(error)
        except BadOpening as error:
            dropped = True
            refused[f"the sum of group {name}"] = (
                f"the sum of round {round + 1} is not known: {error}; the round is dropped"
            )
        except OUT_OF_RANGE:
            dropped = True
            refused[f"the sum of group {name}"] = (
                f"the sum of round {round + 1} is out of range: a report did not keep to the grid; the round is dropped, one of"
                f" {', '.join(reports.clients)}"
            )
        if reports.opened:
            refused |= {f"the share of {who}": why for who, why in reports.opened.left_out.items()}
    return [] if dropped else opened
