"""`alone`: nothing is adapted; what a client would have by itself stands beside the common model, as a control.

Its own model is then the one of the two that its training rows speak for, as it is. What it would have by itself is ridge towards
the model before round 0, lambda by cross-validation (`mean_regularised.py`).
"""

import torch

from tacit.personal.home import Adapted, Home


def adapt(home: Home, centre: torch.Tensor) -> Adapted:
    """The common model, and how unlikely it makes the rows."""
    return Adapted(centre, {}, home.unlikely(home.loss(centre)))
