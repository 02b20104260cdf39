"""What a client has at home when a run has ended: the model's code, its training rows, a loss, and so much work.

Fits are by L-BFGS on all rows at once, with the model as in use (no dropout): they draw nothing and are repeated bit for bit. What
has no closed form is given work by a count of rows, never by a clock, so that a busy machine makes the same model.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from scipy.optimize import minimize
from torch import nn

from tacit.losses import Losses
from tacit.personal import linear
from tacit.personal.descent import descend
from tacit.train.flat import trainable

CHUNK = 1000  # rows at a time
MOST_STEPS = 200  # of L-BFGS, where the loss has a closed form
FEW = 64  # rows whose gradient costs as much as that of one: calls are most of it
LEAST = 6  # gradients of all rows: with fewer nothing is adapted
WORK = 200 * FEW  # where nobody says how much
FLAT, LEVEL = 1e-5, 1e-4  # where a fit ends: relative gain, largest slope; float32 knows no better


@dataclass(frozen=True, eq=False)
class Adapted:
    """A model made at home, how it was chosen, and how unlikely it makes the client's own training rows (`Home.unlikely`).

    `score` compares what one way made from two beginnings, never two ways; None where a way has nothing to compare by.
    """

    vector: torch.Tensor = field(repr=False)
    chosen: dict[str, float | None]
    score: float | None = None


@dataclass(frozen=True, eq=False)
class Home:
    """One client's training rows beside a model whose trainable parameters are views of `theta`.

    `seed` is of the client's own draws (folds, orders of rows): they decide about its own model alone. `work` is of how many rows a
    network's gradients may be asked for.
    """

    model: nn.Module = field(repr=False)
    theta: torch.Tensor = field(repr=False)
    losses: Losses = field(repr=False)
    x: torch.Tensor = field(repr=False)
    y: torch.Tensor = field(repr=False)
    seed: int = 0
    learning_rate: float = 0.1
    batch: int = 32
    task: str = "classification"
    work: int = WORK

    @property
    def size(self) -> int:
        """How many rows there are."""
        return len(self.y)

    def rows(self, chosen: np.ndarray) -> "Home":
        """The same with some of the rows."""
        index = torch.from_numpy(chosen).to(self.x.device)
        return replace(self, x=self.x[index], y=self.y[index])

    def gradients(self, rows: int | None = None) -> int:
        """How many gradients of so many rows (of all of them) the work is enough for."""
        return max(LEAST, self.work // max(FEW, rows or self.size))

    def loss(self, vector: torch.Tensor) -> float:
        """The mean loss of a model on the rows; infinite where it is no number."""
        layer = self.layer
        if layer is not None:
            found = float(layer.losses(vector.double().numpy()).mean())
        else:
            with torch.no_grad():
                found = self._sum(vector) / self.size
        return found if math.isfinite(found) else math.inf

    def unlikely(self, mean: float, *, rows: int | None = None) -> float:
        """A mean loss over rows (all of them) as a negative log-likelihood, but for a constant.

        Of numbers the variance is unknown and taken where it is most likely.
        """
        count = self.size if rows is None else rows
        if self.task != "regression":
            return count * mean
        return count * self.y.shape[1:].numel() / 2 * math.log(max(mean, np.finfo(float).tiny))

    def slope(self, vector: torch.Tensor) -> tuple[float, torch.Tensor]:
        """The mean loss and its gradient."""
        return self._slope(vector, self._ready())

    @cached_property
    def layer(self) -> linear.Layer | None:
        """The closed form of the model on these rows, where it has one."""
        return linear.layer_of(self.model, self.losses, self.x, self.y)

    def _ready(self) -> list[nn.Parameter]:
        """The parameters that train, of a model as it is in use."""
        self.model.eval()
        return [parameter for _, parameter in trainable(self.model)]

    def _slope(self, vector: torch.Tensor, parameters: list[nn.Parameter]) -> tuple[float, torch.Tensor]:
        self.theta.copy_(vector)
        total, gradient = 0.0, None
        for rows, targets in zip(self.x.split(CHUNK), self.y.split(CHUNK), strict=True):
            loss = self.losses(self.model(rows), targets).sum() / self.size
            found = torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, parameters)])
            gradient = found if gradient is None else gradient.add_(found)
            total += float(loss.detach())
        return total, torch.zeros_like(self.theta) if gradient is None else gradient

    def fit(self, start: torch.Tensor, *, centre: torch.Tensor, strength: float) -> torch.Tensor:
        """The minimiser of mean loss + strength/2 |w - centre|^2, from `start`; the best that was seen where a fit does not end."""
        if math.isinf(strength):
            return centre.clone()
        layer = self.layer
        if layer is None:
            return self._descended(start, centre=centre, strength=strength)
        middle, first = centre.double().numpy(), start.double().numpy()

        def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = layer.slope(w)
            away = w - middle
            return value + strength / 2 * float(away @ away), gradient + strength * away

        limits = {"maxiter": MOST_STEPS, "ftol": FLAT, "gtol": LEVEL}
        found = minimize(objective, first, jac=True, method="L-BFGS-B", options=limits)
        return torch.from_numpy(found.x if np.isfinite(found.x).all() else first).to(centre)

    def _descended(self, start: torch.Tensor, *, centre: torch.Tensor, strength: float) -> torch.Tensor:
        """A fit of what has no closed form, within the work that there is."""
        parameters = self._ready()

        def objective(w: torch.Tensor) -> tuple[float, torch.Tensor]:
            value, gradient = self._slope(w, parameters)
            away = w - centre
            return value + strength / 2 * float(away @ away), gradient.add_(away, alpha=strength)

        return descend(objective, start, most=self.gradients(), flat=FLAT, level=LEVEL)

    def folds(self, most: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Rows to train on and rows to judge by, at most so many times: every row is judged once. None of a single row."""
        order, count = np.random.default_rng([self.seed, 1]).permutation(self.size), min(most, self.size)
        parts = [order[k::count] for k in range(count)] if count > 1 else []
        return [(np.concatenate([p for p in parts if p is not part]), part) for part in parts]

    def _sum(self, vector: torch.Tensor) -> float:
        self.theta.copy_(vector)
        self.model.eval()
        chunks = zip(self.x.split(CHUNK), self.y.split(CHUNK), strict=True)
        return sum(float(self.losses(self.model(rows), targets).sum()) for rows, targets in chunks)
