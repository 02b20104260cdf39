"""`finetune`: the common model trained on at home, and stopped by rows that the client sets aside for that.

Fine-tuning of Yu, Bagdasaryan and Shmatikov 2020 (arXiv:2002.04758), with early stopping: of its training rows a client sets a
fifth aside, takes the learning rate and the number of epochs at which they are predicted best (perhaps none), and repeats that
with all of them, unless these rows are predicted worse then than when they were set aside.
"""

import math

import numpy as np
import torch

from tacit.personal.home import Adapted, Home
from tacit.train.flat import trainable

FOLDS = 5  # one of them is set aside
RATES = (1.0, 0.1, 0.01)  # times train.learning_rate
EPOCHS = 40
PATIENCE = 6  # epochs without a better one


def adapt(home: Home, centre: torch.Tensor) -> Adapted:
    """The client's own model; where it has one row, or no epoch is better, the one it began with."""
    folds = home.folds(FOLDS)
    if not folds:
        return Adapted(centre, {"epochs": 0, "learning_rate": 0.0})
    kept, judged = (home.rows(rows) for rows in folds[0])
    best, least, epochs, rate = centre, judged.loss(centre), 0, 0.0
    for share in RATES:
        w, since = centre, 0
        for epoch in range(1, EPOCHS + 1):
            w = one_epoch(kept, w, rate=share * home.learning_rate, epoch=epoch)
            found, since = judged.loss(w), since + 1
            if found < least:
                best, least, epochs, rate, since = w, found, epoch, share * home.learning_rate, 0
            if since == PATIENCE or not math.isfinite(found):
                break
    w = centre
    for epoch in range(1, epochs + 1):
        w = one_epoch(home, w, rate=rate, epoch=epoch)
    taken = w if judged.loss(w) <= least else best  # else a step is too long for these rows, and nobody has judged it
    return Adapted(taken, {"epochs": epochs, "learning_rate": rate}, least)


def one_epoch(home: Home, start: torch.Tensor, *, rate: float, epoch: int) -> torch.Tensor:
    """Plain SGD over the rows once, in an order of its own."""
    home.theta.copy_(start)
    home.model.eval()
    parameters = [parameter for _, parameter in trainable(home.model)]
    order = torch.from_numpy(np.random.default_rng([home.seed, 2, epoch]).permutation(home.size)).to(home.x.device)
    for rows in order.split(home.batch):
        loss = home.losses(home.model(home.x[rows]), home.y[rows]).mean()
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.data.add_(gradient, alpha=-rate)
    return home.theta.clone()
