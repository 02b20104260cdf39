"""`shrinkage`: ridge towards the common model with a strength that is derived, not tuned.
The random-effects model of algorithms/rules/random_effects.py, at home: the client's optimum is the common model plus a deviation
N(0, t) in every coordinate, t = tau^2 + s^2 (between clients, and noise in the common model). Its best linear unbiased prediction
minimises mean loss + lambda/2 |w - common|^2, lambda = phi/(n t), phi the scale of the loss as a negative log-likelihood. The rows'
marginal likelihood tells t (empirical Bayes; MacKay 1992, Neural Computation 4(3), by Laplace's approximation, exact for a linear
model of numbers). Where rows are fitted without error it is greatest at no pull at all: the weakest one ends it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.func import functional_call, grad, vmap

from tacit.personal import mean_regularised
from tacit.personal.home import Adapted, Home, Last, known_last, layer_of, then_whole
from tacit.personal.mean_regularised import FLAT, ROUGH, Ridges
from tacit.training.flat import blocks, trainable, views

STRENGTHS = tuple(
    10.0 ** (1 - 5 * k / 7) for k in range(8)
)  # 10 down to 1e-4, as in cross-validation, each a seventh of the last; between them a parabola tells
PATIENCE = 2  # strengths in a row at which the evidence falls
MOST_NUMBERS = 1 << 25  # of gradients held at once
ENOUGH = 200  # gradients: of fewer rows each has several made-up targets
DRAWS = 4  # of them at most
MOST_ROWS = 1000  # of gradients: their products are a square of that side


def adapt(home: Home, centre: torch.Tensor) -> Adapted:
    """The client's own model with its lambda (None: no end), t, and how many parameters the rows determine."""
    return adapt_each(home, [centre])[0]


def adapt_both(home: Home, before: torch.Tensor, common: torch.Tensor) -> tuple[Adapted, Adapted]:
    """What the client makes of the model before round 0, and of the common one."""
    alone, own = adapt_each(home, [before, common])
    return alone, own


def adapt_each(home: Home, centres: Sequence[torch.Tensor]) -> list[Adapted]:
    """What `adapt` makes of several beginnings; of a linear layer all at once, which costs little more than one."""
    if home.layer is None and home.size > 1 and (lasts := [known_last(home, centre) for centre in centres]):
        known = [last for last in lasts if last is not None]
        if len(known) == len(centres):
            return [_by_last_layer(home, last) for last in known]
    none = np.zeros((1, 1))
    tried = [
        [Tried(evidence(home, home.size * home.loss(centre), 0.0), centre, math.inf, 0.0, none)] for centre in centres
    ]
    fisher, path = Fisher(home), _Path(home, centres)
    for strength in STRENGTHS:
        if all(_falls(one) for one in tried):
            break
        _try(home, fisher, path, [strength] * len(centres), tried)
    path.end()
    _try(home, fisher, path, [_vertex(one) for one in tried], tried)
    return [max(one, key=lambda each: each.evidence).told() for one in tried]


@dataclass(frozen=True, eq=False)
class Tried:
    """A strength, its minimiser, and what the rows say of it."""

    evidence: float
    vector: torch.Tensor
    strength: float
    variance: float
    squares: np.ndarray

    def told(self) -> Adapted:
        spectrum = np.maximum(np.linalg.eigvalsh(self.squares), 0.0)
        determined = float((spectrum / (spectrum + self.strength)).sum())
        strength = self.strength if math.isfinite(self.strength) else None
        chosen = {"strength": strength, "variance": self.variance, "determined": determined}
        return Adapted(self.vector, chosen, -self.evidence)


def _try(home: Home, fisher: "Fisher", path: "_Path", strengths: list[float], tried: list[list[Tried]]) -> None:
    for strength, w, centre, one in zip(strengths, path.move(strengths), path.centres, tried, strict=True):
        away = float((w - centre).double().square().sum())
        total, squares = home.size * (home.loss(w) + strength / 2 * away), fisher.products(w)
        found = evidence(home, total, _logarithms(squares / strength))
        one.append(Tried(found, w, strength, _scale(home, total) / (home.size * strength), squares))


def _falls(one: list[Tried]) -> bool:
    best = max(range(len(one)), key=lambda k: one[k].evidence)
    return len(one) - 1 - best >= PATIENCE and best > 0


def _vertex(one: list[Tried]) -> float:
    best = max(range(len(one)), key=lambda k: one[k].evidence)
    if not 2 <= best < len(one) - 1:  # the first is no strength at all, the last may be on the way up
        return one[max(best, 1)].strength
    low, top, high = (one[k].evidence for k in (best - 1, best, best + 1))
    bent = low - 2 * top + high
    if not bent < 0:
        return one[best].strength
    return one[best].strength * (STRENGTHS[1] / STRENGTHS[0]) ** (0.5 * (low - high) / bent)


class _Path:
    def __init__(self, home: Home, centres: Sequence[torch.Tensor]):
        self.home, self.centres, self.models = home, centres, list(centres)
        starts, even = [c.double().cpu().numpy() for c in centres], np.full((len(centres), home.size), 1 / home.size)
        self.ridges = None if home.layer is None else Ridges(home.layer, np.stack(starts), even, flat=ROUGH)

    def end(self) -> None:
        """From here on fits are as exact as a model is made."""
        if self.ridges is not None:
            self.ridges.flat = FLAT

    def move(self, strengths: list[float]) -> list[torch.Tensor]:
        """The minimisers at other strengths, one for each beginning."""
        if self.ridges is None:
            each = zip(self.models, self.centres, strengths, strict=True)
            self.models = [self.home.fit(w, centre=centre, strength=strength) for w, centre, strength in each]
            return self.models
        self.ridges.move(np.array(strengths))
        return list(torch.from_numpy(self.ridges.vectors(range(len(self.centres)))).to(self.centres[0]))


def _by_last_layer(home: Home, last: Last) -> Adapted:
    """Of a network: t where rows left out of its last layer's fits are likeliest, one for all coordinates.
    A network fits few rows without error, and there Laplace's approximation knows no end: the curvature goes with the error."""
    found = mean_regularised.by_last_layer(last)
    own, strength = then_whole(home, last, found), found.chosen["strength"]
    total = home.size * home.loss(own.vector)
    t = _scale(home, total) / (home.size * strength) if strength else 0.0
    return Adapted(own.vector, {"strength": strength, "variance": t}, own.score)


def _logarithms(curvatures: np.ndarray) -> float:
    curvatures.flat[:: len(curvatures) + 1] += 1
    return 2 * float(np.log(np.diagonal(np.linalg.cholesky(curvatures))).sum())


def evidence(home: Home, total: float, logarithms: float) -> float:
    """The logarithm of the rows' marginal likelihood, but for a constant.
    `total` is n times the penalised mean loss at its minimiser, `logarithms` the sum of log(1 + curvature/lambda). Of numbers the
    variance is unknown and taken where it is most likely: phi = 2 total/(n k)."""
    if home.task != "regression":
        return -total - logarithms / 2
    return -home.y.numel() / 2 * math.log(max(total, 1e-30)) - logarithms / 2


class Fisher:
    """The rows at which the Fisher information is found: some of them, or each several times where they are few."""

    def __init__(self, home: Home):
        self.home, self.rng = home, torch.Generator()
        most = max(1, min(MOST_ROWS, MOST_NUMBERS // home.theta.numel()))
        chosen = torch.randperm(home.size, generator=self.rng.manual_seed(home.seed))[:most]
        draws = max(1, min(DRAWS, ENOUGH // len(chosen), most // len(chosen)))
        self.x = home.x[chosen.to(home.x.device)].repeat_interleave(draws, 0)
        self.layer = layer_of(home.model, home.losses, self.x, home.y[:1].expand(len(self.x), *home.y.shape[1:]))
        self.near = None if self.layer is None else self.layer.rows @ self.layer.rows.T

    def products(self, vector: torch.Tensor) -> np.ndarray:
        """GG'/n, [rows, rows], of gradients at targets that the model itself draws.
        Its eigenvalues above zero are those of G'G/n, the Fisher information, so that no matrix is as large as the model squared.
        Of one linear layer a gradient is an outer product, so that g_i g_j = (slope_i slope_j)(x_i x_j): no gradient is made."""
        home = self.home
        home.theta.copy_(vector)
        home.model.eval()
        with torch.no_grad():
            targets = _drawn(home.model(self.x).cpu(), home.task, home.y, self.rng.manual_seed(home.seed))
        if self.layer is None or self.near is None:
            gradients = _gradients(home, vector, self.x, targets.to(self.x.device))
            return (gradients @ gradients.T).double().cpu().numpy() / len(self.x)
        slopes = self.layer.slopes(vector.double().numpy(), targets)
        return (slopes.T @ slopes) * self.near / len(self.x)


def _gradients(home: Home, vector: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    names, layout = [name for name, _ in trainable(home.model)], blocks(home.model)

    def one(parameters: dict[str, torch.Tensor], row: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return home.losses(functional_call(home.model, parameters, (row[None],)), target[None])[0]

    parameters = dict(zip(names, views(vector, layout), strict=True))
    found = vmap(grad(one), in_dims=(None, 0, 0))(parameters, x, y)
    return torch.cat([found[name].reshape(len(x), -1) for name in names], dim=1)


def _drawn(outputs: torch.Tensor, task: str, y: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    """Targets as the model believes them to be: E[gg'] is then the curvature of the loss."""
    if task == "classification":
        reached = outputs.softmax(1).cumsum(1) < torch.rand(len(outputs), 1, generator=rng)
        return reached.sum(1).clamp_(max=outputs.shape[1] - 1)
    if task == "binary":
        return torch.bernoulli(outputs.sigmoid(), generator=rng)[:, 0].to(y.dtype)
    numbers = outputs.shape[1:].numel()  # the loss is their mean square: a log-likelihood with variance numbers/2
    signs = 2.0 * torch.randint(2, outputs.shape, generator=rng) - 1  # of that variance, and for one number exact
    drawn = outputs + math.sqrt(numbers / 2) * signs
    return drawn.reshape(len(outputs), *y.shape[1:])


def _scale(home: Home, total: float) -> float:
    """phi: 1 for a log-likelihood; of the mean square of k numbers 2 sigma^2/k."""
    return 1.0 if home.task != "regression" else 2 * total / home.y.numel()
