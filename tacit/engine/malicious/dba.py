"""`dba`: distributed backdoor attack (Xie, Huang, Chen, Li 2020, ICLR): each malicious client trains with one part of the trigger,
and only the whole of it is tried afterwards."""

from dataclasses import dataclass

import torch

from tacit import check
from tacit.engine.malicious import Malice, Scene, poisoned
from tacit.types import Client


@dataclass(frozen=True)
class dba(Malice):
    """`parts` is into how many the trigger is cut; malicious clients take turns. Raises: BadInput for less than two."""

    parts: int = 4  # into how many the trigger is cut

    def __post_init__(self) -> None:
        super().__post_init__()
        check.at_least(2, **{"attack.parts": self.parts})

    def rows(self, client: Client, place: int, scene: Scene) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows with this client's part of the trigger."""
        part = scene.trigger(self.trigger).part(place, self.parts)
        return poisoned(client, self.poison, part.on(client.x), scene.target)
