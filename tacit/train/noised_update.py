"""Client-level local DP at one client: plain SGD, then the whole update is clipped and noised before it leaves.

Guarantee: that of the mechanism it is given (client level: all of a client's data against none, whose update is zero), for
whoever sees the update. Training that fails or diverges counts as a zero update, and is noised like any other.
"""

import torch

from tacit.errors import BadInput
from tacit.privacy.clip import bound
from tacit.privacy.local.mechanism import SampledGaussian
from tacit.random import Stream
from tacit.train.attempt import attempt
from tacit.train.sgd import LocalSgd
from tacit.train.workspace import Trained, Workspace
from tacit.types import Client


def noised_update(
    work: Workspace,
    theta_0: torch.Tensor,
    client: Client,
    mechanism: SampledGaussian,
    *,
    sgd: LocalSgd,
    stream: Stream,
) -> Trained:
    """Trains from theta_0 and returns the difference, clipped to C, plus N(0, (zC)^2 I)."""
    if (mechanism.sampling_rate, mechanism.steps) != (1.0, 1):
        raise BadInput("A noised update is one release of all that the client has: it has no sampling to be priced.")
    trained = attempt(sgd, work, theta_0, client, stream)
    bounded = bound(trained.update.vector, clip=mechanism.clip)
    clipped = float(bounded.vector is not trained.update.vector)
    return Trained(mechanism.noise(stream, bounded), trained.info | {"clipped": clipped})
