"""`mean-regularised`: ridge towards the common model, lambda by cross-validation at home.

MR-MTL of Liu, Hu, Wu and Smith 2022 (arXiv:2206.07902): every silo minimises its own loss + lambda/2 |w - w_bar|^2. Here it is done
once, after the last round, with w_bar the released common model and without noise, because the result stays at home. Not here:
the same *during* training, where each silo keeps an own model from round to round and sends its noised update.
"""

import math

import numpy as np
import torch

from tacit.personal.home import Adapted, Home

FOLDS = 5
STRENGTHS = tuple(10.0**-k for k in range(-1, 5))  # 10 down to 1e-4, of the mean loss


def adapt(home: Home, centre: torch.Tensor, *, strength: float | None = None) -> Adapted:
    """The client's own model; where it has one row, or no lambda judges better, the one it began with (lambda = None: no end)."""
    if strength is not None:
        return Adapted(home.fit(centre, centre=centre, strength=strength), {"strength": strength})
    chosen, score = cross_validated(home, centre)
    found = home.fit(centre, centre=centre, strength=chosen)
    return Adapted(found, {"strength": chosen if math.isfinite(chosen) else None}, score)


def cross_validated(home: Home, centre: torch.Tensor) -> tuple[float, float]:
    """The lambda of the least mean loss on rows left out, each once, and that loss; infinite where none beats the centre itself."""
    best, least = math.inf, home.loss(centre)
    folds = [(home.rows(kept), home.rows(judged)) for kept, judged in home.folds(FOLDS)]
    starts = [centre] * len(folds)
    for strength in STRENGTHS if folds else ():
        starts = [kept.fit(w, centre=centre, strength=strength) for (kept, _), w in zip(folds, starts, strict=True)]
        losses = [judged.loss(w) * judged.size for (_, judged), w in zip(folds, starts, strict=True)]
        found = float(np.sum(losses)) / home.size
        best, least = (strength, found) if found < least else (best, least)
    return best, least
