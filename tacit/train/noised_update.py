"""Client-level local DP at one client: plain SGD, then the whole update is clipped and noised before it leaves.

Guarantee: that of the mechanism it is given (client level: empty one client, whose update is then zero), for
whoever sees the update. Training that fails or diverges counts as a zero update, and is noised like any other.
"""

from dataclasses import dataclass

import torch

from tacit.errors import BadInput
from tacit.privacy.clip import bound
from tacit.privacy.mechanism import TrainingMechanism
from tacit.random import Stream
from tacit.train.attempt import Local, attempt
from tacit.train.sgd import LocalSgd
from tacit.train.workspace import Trained, Workspace
from tacit.types import Client


def noised_update(
    work: Workspace,
    theta_0: torch.Tensor,
    client: Client,
    mechanism: TrainingMechanism,
    *,
    sgd: Local,
    stream: Stream,
) -> Trained:
    """Trains from theta_0 and returns the difference, clipped to C, plus N(0, (zC)^2 I)."""
    if (mechanism.sampling_rate, mechanism.steps) != (1.0, 1):
        raise BadInput("A noised update is one release of all that the client has: it has no sampling to be priced.")
    trained = attempt(sgd, work, theta_0, client, stream)
    bounded = bound(trained.update.vector, clip=mechanism.clip)
    clipped = float(bounded.vector is not trained.update.vector)
    _, noised = mechanism.noise(mechanism.init(), stream, bounded)
    return Trained(noised, trained.info | {"clipped": clipped})


@dataclass(frozen=True)
class NoisedUpdate:
    """`noised_update` of one kind of training: whatever that does, the whole of it is clipped and noised."""

    sgd: Local

    def told(self, round: int, correction: torch.Tensor | None = None) -> "NoisedUpdate":
        """The training of one round; somebody else's knows of no rounds."""
        return NoisedUpdate(self.sgd.told(round, correction)) if isinstance(self.sgd, LocalSgd) else self

    def __call__(
        self, work: Workspace, theta: torch.Tensor, client: Client, mechanism: TrainingMechanism, *, stream: Stream
    ) -> Trained:
        return noised_update(work, theta, client, mechanism, sgd=self.sgd, stream=stream)
