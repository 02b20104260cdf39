"""`shrinkage`: ridge towards the common model with a strength that is derived, not tuned.

The random-effects model of `tacit/rules/random_effects.py`, at home: the client's own optimum is the common model plus a deviation
N(0, t) in every coordinate, t = tau^2 + s^2, where tau^2 is the variance between clients and s^2 that of the noise in the common
model. The best linear unbiased prediction of the optimum is then the minimiser of
    mean loss + lambda/2 |w - common|^2,    lambda = phi/(n t),
phi the scale of the loss as a negative log-likelihood (1 for cross-entropy; of the squared error it is estimated). Only the sum t
enters, and the client's own noise sigma_m^2 does not: what it fits at home carries none. As there, every coordinate is one more
replicate, so that one client's rows tell t: it is where their marginal likelihood is greatest (empirical Bayes; MacKay 1992,
Neural Computation 4(3), by Laplace's approximation, exact for a linear model of numbers). No t has to be agreed upon, nothing is
sent, and no row is set aside. Where the rows show no deviation, t is 0 and the own model the common one.

Where a model fits the rows without error Laplace's approximation is greatest at no pull at all: the weakest one ends it.
"""

import math

import numpy as np
import torch
from torch.func import functional_call, grad, vmap

from tacit.personal import linear
from tacit.personal.home import Adapted, Home
from tacit.train.flat import blocks, trainable, views

STRENGTHS = tuple(10.0 ** (1 - k / 2) for k in range(11))  # 10 down to 1e-4, as in cross-validation, in half decades
MOST_NUMBERS = 1 << 25  # of gradients held at once
ENOUGH = 300  # gradients: of fewer rows each has several made-up targets
DRAWS = 4  # of them at most
MOST_ROWS = 1000  # of gradients: their products are a square of that side


def adapt(home: Home, centre: torch.Tensor) -> Adapted:
    """The client's own model with its lambda (None: no end), t, and how many parameters the rows determine."""
    best, most = (centre, math.inf, 0.0, np.zeros((1, 1))), evidence(home, home.size * home.loss(centre), 0.0)
    w = centre
    for strength in STRENGTHS:
        w = home.fit(w, centre=centre, strength=strength)
        away = float((w - centre).double().square().sum())
        total, squares = home.size * (home.loss(w) + strength / 2 * away), products(home, w)
        found = evidence(home, total, float(np.linalg.slogdet(np.eye(len(squares)) + squares / strength)[1]))
        if found > most:
            best, most = (w, strength, _scale(home, total) / (home.size * strength), squares), found
    w, strength, t, squares = best
    spectrum = _spectrum(squares)
    told = {"variance": t, "determined": float((spectrum / (spectrum + strength)).sum())}
    return Adapted(w, {"strength": strength if math.isfinite(strength) else None, **told}, -most)


def evidence(home: Home, total: float, logarithms: float) -> float:
    """The logarithm of the rows' marginal likelihood, but for a constant.

    `total` is n times the penalised mean loss at its minimiser, `logarithms` the sum of log(1 + curvature/lambda). Of numbers the
    variance is unknown and taken where it is most likely: phi = 2 total/(n k).
    """
    if home.task != "regression":
        return -total - logarithms / 2
    return -home.y.numel() / 2 * math.log(max(total, 1e-30)) - logarithms / 2


def curvatures(home: Home, vector: torch.Tensor) -> np.ndarray:
    """The eigenvalues above zero of the mean loss's Fisher information."""
    return _spectrum(products(home, vector))


def _spectrum(squares: np.ndarray) -> np.ndarray:
    return np.maximum(np.linalg.eigvalsh(squares), 0.0)


def products(home: Home, vector: torch.Tensor) -> np.ndarray:
    """GG'/n, [rows, rows], of gradients at targets that the model itself draws.

    Its eigenvalues above zero are those of G'G/n, the Fisher information, so that no matrix is as large as the model squared.
    """
    home.theta.copy_(vector)
    rng = torch.Generator().manual_seed(home.seed)
    most = max(1, min(MOST_ROWS, MOST_NUMBERS // vector.numel()))
    chosen = torch.randperm(home.size, generator=rng)[:most]
    draws = max(1, min(DRAWS, ENOUGH // len(chosen), most // len(chosen)))
    x = home.x[chosen.to(home.x.device)].repeat_interleave(draws, 0)
    home.model.eval()
    with torch.no_grad():
        targets = _drawn(home.model(x).cpu(), home.task, home.y, rng).to(x.device)
    found = linear.products(home.model, home.losses, x, targets, vector)
    if found is None:
        gradients = _gradients(home, vector, x, targets)
        found = (gradients @ gradients.T).double().cpu().numpy()
    return found / len(x)


def _gradients(home: Home, vector: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The gradient of every example's loss, a row each."""
    names, layout = [name for name, _ in trainable(home.model)], blocks(home.model)

    def one(parameters: dict[str, torch.Tensor], row: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return home.losses(functional_call(home.model, parameters, (row[None],)), target[None])[0]

    parameters = dict(zip(names, views(vector, layout), strict=True))
    found = vmap(grad(one), in_dims=(None, 0, 0))(parameters, x, y)
    return torch.cat([found[name].reshape(len(x), -1) for name in names], dim=1)


def _drawn(outputs: torch.Tensor, task: str, y: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    """Targets as the model believes them to be: E[gg'] is then the curvature of the loss."""
    if task == "classification":
        return torch.multinomial(outputs.softmax(1), 1, generator=rng)[:, 0]
    if task == "binary":
        return torch.bernoulli(outputs.sigmoid(), generator=rng)[:, 0].to(y.dtype)
    numbers = outputs.shape[1:].numel()  # the loss is their mean square: a log-likelihood with variance numbers/2
    signs = 2.0 * torch.randint(2, outputs.shape, generator=rng) - 1  # of that variance, and for one number exact
    drawn = outputs + math.sqrt(numbers / 2) * signs
    return drawn.reshape(len(outputs), *y.shape[1:])


def _scale(home: Home, total: float) -> float:
    """phi: 1 for a log-likelihood; of the mean square of k numbers 2 sigma^2/k."""
    return 1.0 if home.task != "regression" else 2 * total / home.y.numel()
