"""Local training that always has an outcome: where it fails or leaves float32, the update is zero.

Under client-level privacy an answer that did not come, or came with an error, would tell about the rows outside every bound and all
noise. So whatever they cause ends here. The client's own log says that it happened; nothing that leaves does.
"""

import logging
from collections.abc import Callable

import torch

from tacit.random import Stream
from tacit.train.workspace import Trained, Workspace
from tacit.types import Client, Raw

LOG = logging.getLogger(__name__)
Local = Callable[[Workspace, torch.Tensor, Client, Stream], Trained]


def attempt(local: Local, work: Workspace, theta: torch.Tensor, client: Client, stream: Stream) -> Trained:
    """What `local` trains from theta, or zeros. Guarantee: a finite update of theta's shape, whatever the rows and theta."""
    try:
        trained = local(work, theta, client, stream)
        vector = trained.update.vector
        if vector.shape == theta.shape and bool(vector.isfinite().all()):
            return trained
        reason = "its update has another shape" if vector.shape != theta.shape else "its update is not finite"
    except Exception as error:  # noqa: BLE001 - somebody else's training may raise anything; its words may quote a row
        reason = type(error).__name__
    LOG.warning("The training of %s failed (%s): a zero update takes its place.", client.id, reason)
    return Trained(Raw(torch.zeros_like(theta)), {"diverged": 1.0})
