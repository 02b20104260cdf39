"""Updates that an attacker makes itself, of public rows: clients that it knows, trained and noised by the run's own code."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tacit.attacks._games import Wanted
from tacit.build.parts import Parts
from tacit.data.population import rows_mark
from tacit.engine.trainers import make
from tacit.engine.wire import pack, unpack
from tacit.errors import BadInput
from tacit.types import Client, Message


@dataclass(frozen=True, eq=False)
class Public:
    """The public rows of an attacker, with the property and without it."""

    having: tuple[torch.Tensor, torch.Tensor]
    lacking: tuple[torch.Tensor, torch.Tensor]

    @classmethod
    def of(cls, parts: Parts, wanted: Wanted) -> "Public":
        """The experiment's test rows. Raises BadInput where there are none, or none with the property, or none without."""
        x, y = parts.test_rows
        if not len(y):
            raise BadInput("The attacker trains on public rows, and this data has no test rows: set data.test_share.")
        having = wanted.of(parts.dataset, x, y)
        wanted.refuse_trivial(having, "the public test set")
        return cls((x[having], y[having]), (x[~having], y[~having]))

    def drawn(self, chance: np.random.Generator, size: int, with_it: int) -> tuple[torch.Tensor, torch.Tensor]:
        """So many rows, of which some have the property; drawn again where there are not enough."""
        parts = []
        for (x, y), count in ((self.having, with_it), (self.lacking, size - with_it)):
            rows = chance.choice(len(y), count, replace=count > len(y))
            parts.append((x[rows], y[rows]))
        return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def imitated(parts: Parts, victim: int, x: torch.Tensor, y: torch.Tensor, *, number: int) -> Client:
    """A client with the victim's place and budget, so with its mechanism, and with other rows.

    Its name is its own: noise is keyed by it and by its rows, so that it shares none with anybody.
    """
    own = parts.population[victim]
    return Client(own.index, f"auxiliary {number}", own.budget, x, y, rows_mark(x, y))


def updates_of(parts: Parts, told: Message, round: int, clients: Sequence[Client]) -> torch.Tensor | None:
    """What such clients would send in a round, (client, parameter); None where they send no whole update."""
    trainer = make.alone(parts, dict(enumerate(clients)))
    replies = (unpack(raw) for raw, _ in trainer(pack(told), round, range(len(clients))))
    found = [whole_update(message, told) for message in replies]
    known = [update for update in found if update is not None]
    return torch.stack(known) if len(known) == len(found) and known else None


def whole_update(message: Message, told: Message) -> torch.Tensor | None:
    """The update in a message, where it is one number for each parameter."""
    update = message.tensors.get("update")
    if update is None or update.numel() != told.tensors["params"].numel() or not update.is_floating_point():
        return None
    return update.flatten().float().cpu()
