"""`neurotoxin`: a backdoor that lasts (Zhang et al. 2022, arXiv:2206.10341): what honest clients move most is left alone.
The paper takes the largest coordinates of the last aggregate, and projects every step. Here they are those of the client's own
honest update, and the whole update is projected: so a round stays a function of what was broadcast."""

from dataclasses import dataclass

import torch

from tacit import check
from tacit.engine.malicious import Malice, Scene, Train
from tacit.types import Client


@dataclass(frozen=True)
class neurotoxin(Malice):
    """`avoid` is the share of coordinates that are left alone, k in the paper. Raises: BadInput for none or all."""

    avoid: float = 0.05  # the share of coordinates that is left alone

    def __post_init__(self) -> None:
        super().__post_init__()
        check.probability(**{"attack.avoid": self.avoid})

    def update(self, train: Train, params: torch.Tensor, client: Client, bad: Client, scene: Scene) -> torch.Tensor:
        """The poisoned update without the coordinates in which an honest one is largest."""
        honest = train(client, params).abs()
        count = max(1, round(self.avoid * honest.numel()))
        sent = train(bad, params) * self.factor(scene)
        sent[honest.topk(count).indices] = 0.0
        return sent
