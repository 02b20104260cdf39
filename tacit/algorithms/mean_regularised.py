"""MR-MTL: Liu, Hu, Wu, Smith 2022 (arXiv:2206.07902), mean-regularised multi-task learning during training. Client k's round
begins with its own model w_k, descends on its loss plus lambda/2 |w - w_bar|^2, w_bar the common model of the round before, and
ends with a noised difference; of all that is sent the server makes the next w_bar. Lambda = 0: clients train alone (with
noise); without end: FedAvg. Guarantee: w_k is the model before round 1 plus all that client k has released, so to begin with
it, or to pull from it to w_bar, costs nothing. So the server keeps it, and clients nothing: a w_k that was trained on the client
without noise would carry rows of earlier rounds into the next release, and no price per record would hold. The pull comes after
clip and noise (as FedProx's does); the paper's code has it inside the clipped gradient."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from tacit.algorithms.scaffold import CORRECTED, CORRECTION, Controls
from tacit.errors import BadInput
from tacit.types import Client, Message


@dataclass(frozen=True, eq=False)
class MeanRegularised:
    """Everybody's own models at the server; `strength` is lambda."""

    places: Mapping[str, int] = field(repr=False)  # of all clients, by name
    strength: float

    def init(self, params: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"own": params.repeat(len(self.places), 1)}

    def tell(self, message: Message, controls: Controls, cohort: Sequence[Client]) -> Message:
        away = controls["own"][[self.places[client.id] for client in cohort]] - message.tensors["params"]
        facts = message.facts | {CORRECTED: [client.id for client in cohort]}
        return replace(message, tensors=message.tensors | {CORRECTION: away}, facts=facts)

    def start(self, w_bar: torch.Tensor, away: torch.Tensor) -> torch.Tensor:
        return w_bar + away

    def correction(self, away: torch.Tensor) -> torch.Tensor:
        """lambda (w_k - w_bar): with FedProx's lambda (w - w_k), from where the round began, it is lambda (w - w_bar)."""
        return self.strength * away

    def own(self, controls: Controls, message: Message, *, round: int, share: float) -> dict[int, torch.Tensor]:
        """w_k after the round, of who sent the message: before it, plus what was sent."""
        if "update" not in message.tensors:
            raise BadInput(f"Client {message.sender} sent no whole update for MR-MTL to follow: use the rule mean.")
        k = self.places[message.sender]
        return {k: controls["own"][k] + share * message.tensors["update"]}

    def after(self, controls: Controls, new: Mapping[int, torch.Tensor]) -> dict[str, torch.Tensor]:
        own = controls["own"].clone()
        for k, w_k in new.items():
            own[k] = w_k
        return {"own": own}
