"""Training by somebody else's code, inside Tacit's promise.

It is possible where the promise does not lean on how a client trained: under client-level DP whatever comes out is bounded
as a whole, and noise is added after that. Record-level DP is made in the training itself, so there it is refused.
"""

from collections.abc import Callable
from dataclasses import replace

import torch

from tacit.algorithms.central_dp import CentralDP
from tacit.algorithms.encrypted import Encrypted
from tacit.build.parts import Parts
from tacit.errors import Refused
from tacit.random import Stream
from tacit.train.workspace import Trained, Workspace
from tacit.types import Client

Local = Callable[[Workspace, torch.Tensor, Client, Stream], Trained]


def with_training(parts: Parts, local: Local | None) -> Parts:
    """The parts with another local training; Tacit's own where None. Raises Refused where that would break the promise."""
    if local is None:
        return parts
    if not isinstance(parts.algorithm, CentralDP | Encrypted):
        raise Refused(
            "This experiment's promise is made in Tacit's own training: another client's code can take part only under "
            'privacy.kind = "central" or "distributed".'
        )
    return replace(parts, algorithm=replace(parts.algorithm, local=local))
