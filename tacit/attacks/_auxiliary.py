"""Updates that an attacker makes itself: clients with rows that it knows, trained and noised by the run's own code."""

from collections.abc import Sequence

import torch

from tacit.build.parts import Parts
from tacit.data.population import rows_mark
from tacit.engine.trainers import make
from tacit.engine.wire import pack, unpack
from tacit.types import Client, Message


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
