"""Malicious clients among honest ones, in the place of an algorithm's local training; the rest of it knows nothing of them."""

import dataclasses
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from tacit.algorithms import Told
from tacit.algorithms.local_dp import LocalDP
from tacit.engine.malicious import Malice, Scene, with_rows
from tacit.training.clipping import Trained, Workspace
from tacit.training.dp_sgd import DpSgd
from tacit.training.sgd import Local
from tacit.types import Client, Private, Raw


@dataclass(frozen=True, eq=False)
class Among:
    """Local training of all clients: `honest` is the algorithm's own, which honest clients run untouched.

    `plain` is training without noise, for malicious clients under local DP that add none; they state the noise of `claims` all
    the same. It is the training of one round, which `told` says.
    """

    honest: Any
    malice: Malice
    scene: Scene = field(repr=False)
    plain: Local | None = None
    claims: np.ndarray | None = field(default=None, repr=False)
    round: int = 0

    def told(self, round: int, correction: torch.Tensor | None = None) -> "Among":
        """The training of one round."""
        honest, plain = (
            local.told(round, correction) if isinstance(local, Told) else local for local in (self.honest, self.plain)
        )
        return dataclasses.replace(self, honest=honest, plain=plain, round=round)

    def __call__(self, work: Workspace, theta: torch.Tensor, client: Client, *rest: Any, **more: Any) -> Trained:
        """Trains one client: an honest one as ever, a malicious one from its first round on as its attack says."""
        if client.index not in self.scene.malicious or self.round < self.scene.start:
            return self.honest(work, theta, client, *rest, **more)
        place = self.scene.malicious.index(client.index)
        bad = with_rows(client, self.malice.rows(client, place, self.scene))
        train = partial(self.honest, work)
        if self.plain is not None:
            rest, more = (), {"stream": more["stream"]}
            train = partial(self.plain, work)
        info: dict[str, float] = {}
        noise: list[float] = []

        def trained(whose: Client, start: torch.Tensor) -> torch.Tensor:
            found = train(start, whose, *rest, **more)
            info.update(found.info)
            noise.extend([found.update.noise_std] if isinstance(found.update, Private) else [])
            return found.update.vector

        sent = self.malice.update(trained, theta.to(work.theta.device), client, bad, self.scene)
        if self.claims is None:
            return Trained(Private(sent, noise[-1]) if noise else Raw(sent), info)
        share = self.honest.descent.share if isinstance(self.honest, DpSgd) else 1.0
        return Trained(Private(sent / share, float(self.claims[client.index])), info)


def among(algorithm: Any, malice: Malice, scene: Scene, *, plain: Local | None) -> Any:
    """The algorithm with malicious clients; with `plain` they leave out their own noise. Only `local` is another."""
    claims = algorithm.server.crowd.noise_stds if plain is not None and isinstance(algorithm, LocalDP) else None
    return dataclasses.replace(algorithm, local=Among(algorithm.local, malice, scene, plain, claims))
