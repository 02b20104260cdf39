"""`adaptive`: an attacker that knows the clip (Sun et al. 2019, arXiv:1911.07963; projected gradient descent as in Wang et al.
2020, arXiv:2007.05084): it trains on and on, going back into the ball that the server clips to, and uses all of it."""

from dataclasses import dataclass

import torch

from tacit import check
from tacit.engine.malicious import Malice, Scene, Train
from tacit.types import Client

TINY = 1e-30  # in the place of a length of zero


@dataclass(frozen=True)
class adaptive(Malice):
    """Trains `passes` times as long as an honest client, within `bound` of the round's model; then stretches to it.
    Unless said, the bound is the clip that the experiment declares; where there is none, the length of the client's own honest
    update, so that nobody finds it by its norm. `boost` has no effect."""

    passes: int = 5  # how many times as long as an honest client it trains
    bound: float | None = None  # the norm that it stays within; nothing: the one that is declared

    def __post_init__(self) -> None:
        super().__post_init__()
        check.at_least(1, **{"attack.passes": self.passes})
        if self.bound is not None:
            check.positive(**{"attack.bound": self.bound})

    def update(self, train: Train, params: torch.Tensor, client: Client, bad: Client, scene: Scene) -> torch.Tensor:
        """An update of exactly the bound's norm."""
        bound = self.bound or scene.bound or float(train(client, params).norm())
        moved = torch.zeros_like(params)
        for _ in range(self.passes):
            moved = moved + train(bad, params + moved)
            moved = moved * min(1.0, bound / max(float(moved.norm()), TINY))
        return moved * (bound / max(float(moved.norm()), TINY))
