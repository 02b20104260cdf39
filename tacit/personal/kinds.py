"""`alone`: nothing is adapted; what a client would have by itself stands beside the common model, as a control.

Its own model is then the one of the two that its training rows speak for, as it is. What it would have by itself is ridge towards
the model before round 0, lambda by cross-validation (`mean_regularised.py`)."""

import math

import numpy as np
import torch

from tacit.personal import mean_regularised
from tacit.personal.home import Adapted, Home, last_of
from tacit.training.flat import trainable


def adapt(home: Home, centre: torch.Tensor) -> Adapted:
    """The common model, and how unlikely it makes the rows."""
    return Adapted(centre, {}, home.unlikely(home.loss(centre)))


# `finetune`: the common model trained on at home, and stopped by rows that the client sets aside for that.

FOLDS = 5  # one of them is set aside
SLOWER = 4  # times, each time that it goes back
RATES = 3  # learning rates
EPOCHS = 60  # at most, and no more than half of the work: the other half repeats them
PATIENCE = 4  # epochs without a better one


def adapt_finetune(home: Home, centre: torch.Tensor) -> Adapted:
    """The client's own model; where it has one row, or no epoch is better, the one it began with."""
    folds = home.folds(FOLDS)
    if not folds:
        return Adapted(centre, {"epochs": 0, "learning_rate": 0.0})
    kept, judged = (home.rows(rows) for rows in folds[0])
    best, least, taken = _searched(kept, judged, centre)
    w = centre
    for epoch, rate in taken:
        w = one_epoch(home, w, rate=rate, epoch=epoch)
    own = w if judged.loss(w) <= least else best  # else a step is too long for these rows, and nobody has judged it
    chosen = {"epochs": len(taken), "learning_rate": taken[-1][1] if taken else 0.0}
    return Adapted(own, chosen, judged.unlikely(least))


def _searched(kept: Home, judged: Home, centre: torch.Tensor) -> tuple[torch.Tensor, float, list[tuple[int, float]]]:
    """The model at which rows set aside are predicted best, their mean loss, and the epochs that led there with their rates."""
    w, rate, rates = centre, kept.learning_rate, 1
    best, least, taken, trail = centre, judged.loss(centre), list[tuple[int, float]](), list[tuple[int, float]]()
    for epoch in range(1, epochs(kept) + 1):
        w, trail = one_epoch(kept, w, rate=rate, epoch=epoch), [*trail, (epoch, rate)]
        found = judged.loss(w)
        if found < least:
            best, least, taken = w, found, trail
        elif len(trail) - len(taken) == PATIENCE or not math.isfinite(found):
            w, trail, rate, rates = best, taken, rate / SLOWER, rates + 1
            if rates > RATES:
                break
    return best, least, taken


def epochs(home: Home) -> int:
    """How many epochs half of the work is enough for; of a linear layer, whose gradients cost next to nothing, EPOCHS."""
    if home.layer is not None:
        return EPOCHS
    batches = -(-home.size // home.batch)
    return min(EPOCHS, max(1, home.work // (2 * batches * home.batch)))


def one_epoch(home: Home, start: torch.Tensor, *, rate: float, epoch: int) -> torch.Tensor:
    """Plain SGD over the rows once, in an order of its own; of a linear layer without autograd."""
    order, layer = np.random.default_rng([home.seed, 2, epoch]).permutation(home.size), home.layer
    if layer is not None:
        w = layer.matrix(start.double().numpy())
        for rows in np.split(order, range(home.batch, home.size, home.batch)):
            seen = layer.rows[rows]
            w = w - rate / len(rows) * layer.loss(w @ seen.T, layer.targets[:, rows])[1] @ seen
        return torch.from_numpy(layer.vector(w)).to(start)
    home.theta.copy_(start)
    home.model.eval()
    parameters = [parameter for _, parameter in trainable(home.model)]
    for rows in torch.from_numpy(order).to(home.x.device).split(home.batch):
        loss = home.losses(home.model(home.x[rows]), home.y[rows]).mean()
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.data.add_(gradient, alpha=-rate)
    return home.theta.clone()


# `head`: a common body and an own last layer, for networks.


def adapt_head(home: Home, centre: torch.Tensor) -> Adapted:
    """The client's own model. Raises BadInput where the model does not end in a linear layer that trains."""
    last = last_of(home, centre)
    found = mean_regularised.by_last_layer(last) if home.size > 1 else Adapted(last.vector, {"strength": None})
    return Adapted(last.within(found.vector), found.chosen, found.score)
