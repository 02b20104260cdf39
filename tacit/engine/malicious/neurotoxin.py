"""`neurotoxin`: a backdoor that lasts (Zhang et al. 2022, arXiv:2206.10341): the coordinates that honest clients move most are left
alone, so that their later updates do not undo it.

The paper takes the largest coordinates of the last round's aggregate, and projects every step. Here they are those of the
client's own honest update from the same model, and the whole update is projected: so a round stays a function of what was
broadcast, and can be resumed.
"""

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
