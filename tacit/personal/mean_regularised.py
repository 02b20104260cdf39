"""`mean-regularised`: ridge towards the common model, lambda by cross-validation at home.

MR-MTL of Liu, Hu, Wu and Smith 2022 (arXiv:2206.07902): every silo minimises its own loss + lambda/2 |w - w_bar|^2. Here it is done
once, after the last round, with w_bar the released common model and without noise, because the result stays at home. The same
*during* training, where each silo keeps an own model from round to round and sends its noised update, is an algorithm
(tacit/algorithms/mean_regularised.py).

Of a network lambda is told by its last layer, which is convex and whose rows the body makes once (`last.py`); then the whole
network is fitted with it, once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tacit.personal.home import Adapted, Home
from tacit.personal.last import Last, known_last, then_whole
from tacit.personal.linear import Layer
from tacit.personal.ridges import FLAT, ROUGH, Ridges

FOLDS = 5
STRENGTHS = tuple(10.0**-k for k in range(-1, 5))  # 10 down to 1e-4, of the mean loss
OF_NETWORKS = (0.1, 0.01, 0.001)
PATIENCE = 2  # strengths in a row that judge no better than one has: weaker ones are the dearest, and farther off
SHARES = np.linspace(0, 1, 21)


@dataclass(frozen=True, eq=False)
class Found:
    """The lambda, the mean loss of rows left out, the model of all rows, and what rows left out were given, [numbers, rows]."""

    strength: float
    score: float
    vector: torch.Tensor
    outputs: np.ndarray

    def adapted(self, home: Home) -> Adapted:
        """As other ways tell it."""
        strength = self.strength if math.isfinite(self.strength) else None
        return Adapted(self.vector, {"strength": strength}, home.unlikely(self.score))


def adapt(home: Home, centre: torch.Tensor, *, strength: float | None = None) -> Adapted:
    """The client's own model; where it has one row, or no lambda judges better, the one it began with (lambda = None: no end)."""
    if strength is not None:
        return Adapted(home.fit(centre, centre=centre, strength=strength), {"strength": strength})
    return adapt_each(home, [centre])[0]


def adapt_each(home: Home, centres: Sequence[torch.Tensor]) -> list[Adapted]:
    """What `adapt` makes of several beginnings; of a linear layer all at once, which costs little more than one."""
    if home.size > 1 and home.layer is not None:
        return [one.adapted(home) for one in _along(home, home.layer, centres)]
    return [_network(home, centre) for centre in centres]


def _network(home: Home, centre: torch.Tensor) -> Adapted:
    last = known_last(home, centre) if home.size > 1 else None
    if last is None:
        return _one_by_one(home, centre).adapted(home)
    return then_whole(home, last, by_last_layer(last))


def by_last_layer(last: Last) -> Adapted:
    """The last layer of a network by itself, along the few strengths among which those of networks lie."""
    layer = last.home.layer
    if layer is None:
        return adapt(last.home, last.vector)
    return _along(last.home, layer, [last.vector], strengths=OF_NETWORKS, flat=ROUGH)[0].adapted(last.home)


def adapt_both(home: Home, before: torch.Tensor, common: torch.Tensor) -> tuple[Adapted, Adapted]:
    """What the client makes of the model before the first round, and its own model.

    Of a linear layer that is a mean of what both beginnings give, the second with the `share` by which the rows left out speak for
    it (`share_of`); of another model, whose parameters have no mean, what the common model gives: there one of the two is chosen.
    """
    if home.layer is None or home.size == 1:
        alone, own = adapt_each(home, [before, common])
        return alone, own
    one, other = _along(home, home.layer, [before, common])
    share = share_of(home.layer, one.outputs, other.outputs, task=home.task)
    outputs = share * other.outputs + (1 - share) * one.outputs
    score = home.unlikely(float(home.layer.loss(outputs, home.layer.targets)[0].mean()))
    mixed = share * other.vector.double() + (1 - share) * one.vector.double()
    return one.adapted(home), Adapted(mixed.to(common), other.adapted(home).chosen | {"share": share}, score)


def share_of(layer: Layer, one: np.ndarray, other: np.ndarray, *, task: str) -> float:
    """How much of `other` belongs into a mean of two models, by what they give for rows that they were not fitted to.

    Stacking (Wolpert 1992, Neural Networks 5(2)), with the mean of all shares, each as likely as it makes the rows, in the place of
    the likeliest one: of few rows that is the better guess, and where they cannot tell it is a half. Losses are taken as negative
    log-likelihoods; of numbers the variance is unknown and taken where it is most likely.
    """
    totals = np.array([layer.loss(t * other + (1 - t) * one, layer.targets)[0].sum() for t in SHARES])
    if task == "regression":
        totals = layer.targets.size / 2 * np.log(np.maximum(totals, np.finfo(float).tiny))
    likely = np.exp(totals.min() - totals)
    return float(likely @ SHARES / likely.sum())


def cross_validated(home: Home, centre: torch.Tensor) -> tuple[float, float]:
    """The lambda of the least mean loss on rows left out, each once, and that loss; infinite where none beats the centre itself.

    The slow twin of what `adapt` does with a linear layer: every fit by itself.
    """
    best, least, since = math.inf, home.loss(centre), 0
    folds = [(home.rows(kept), home.rows(judged)) for kept, judged in home.folds(FOLDS)]
    starts = [centre] * len(folds)
    for strength in STRENGTHS if folds else ():
        starts = [kept.fit(w, centre=centre, strength=strength) for (kept, _), w in zip(folds, starts, strict=True)]
        losses = [judged.loss(w) * judged.size for (_, judged), w in zip(folds, starts, strict=True)]
        found = float(np.sum(losses)) / home.size
        best, least, since = (strength, found, 0) if found < least else (best, least, since + 1)
        if since >= PATIENCE and best < math.inf:
            break
    return best, least


def _one_by_one(home: Home, centre: torch.Tensor) -> Found:
    chosen, score = cross_validated(home, centre)
    return Found(chosen, score, home.fit(centre, centre=centre, strength=chosen), np.empty(0))


def _along(
    home: Home,
    layer: Layer,
    centres: Sequence[torch.Tensor],
    *,
    strengths: Sequence[float] = STRENGTHS,
    flat: float = FLAT,
) -> list[Found]:
    """All folds, and all rows, of every beginning at once along the strengths."""
    folds = home.folds(FOLDS)
    parts = len(folds) + 1  # of one beginning; the last one is all rows
    shares, judged = np.full((parts, home.size), 1 / home.size), np.zeros((parts, home.size), dtype=bool)
    for k, (kept, left_out) in enumerate(folds):
        shares[k], judged[k, left_out] = 0.0, True
        shares[k, kept] = 1 / len(kept)
    starts = np.stack([centre.double().numpy() for centre in centres])
    path = Ridges(layer, starts.repeat(parts, 0), np.tile(shares, (len(centres), 1)), flat=flat)
    given = [layer.matrix(start) @ layer.rows.T for start in starts]
    best = [Found(math.inf, home.loss(centre), centre, z) for centre, z in zip(centres, given, strict=True)]
    fold, row = np.nonzero(judged)
    since = np.zeros(len(centres), int)
    for strength in strengths:
        ended = [count >= PATIENCE and one.strength < math.inf for count, one in zip(since, best, strict=True)]
        if all(ended):
            break
        path.move(strength)
        since += 1
        losses = path.losses().reshape(len(centres), parts, home.size)
        for k, found in enumerate(losses[:, judged].sum(1) / home.size):
            if found < best[k].score and not ended[k]:
                since[k] = 0
                own, outputs = path.vectors([(k + 1) * parts - 1])[0], np.empty_like(given[k])
                outputs[:, row] = path.outputs()[k * parts + fold, :, row].T
                best[k] = Found(strength, float(found), torch.from_numpy(own).to(centres[k]), outputs)
    return best
