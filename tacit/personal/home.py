"""What a client has at home when a run has ended: the model's code, its training rows, a loss, and all the time it wants.

Fits are by L-BFGS on all rows at once, with the model as in use (no dropout): they draw nothing and are repeated bit for bit.
"""

import math
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from scipy.optimize import minimize
from torch import nn

from tacit.losses import Losses
from tacit.personal import linear
from tacit.train.flat import trainable

CHUNK = 1000  # rows at a time
MOST_STEPS = 200  # of L-BFGS
FLAT, LEVEL = 1e-5, 1e-4  # where a fit ends: relative gain, largest slope; float32 knows no better


@dataclass(frozen=True, eq=False)
class Adapted:
    """A model made at home, how it was chosen, and how badly the client's own training rows speak of it.

    `score` compares what one way made from two beginnings, never two ways; None where a way has nothing to compare by.
    """

    vector: torch.Tensor = field(repr=False)
    chosen: dict[str, float | None]
    score: float | None = None


@dataclass(frozen=True, eq=False)
class Home:
    """One client's training rows beside a model whose trainable parameters are views of `theta`.

    `seed` is of the client's own draws (folds, orders of rows): they decide about its own model alone.
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

    @property
    def size(self) -> int:
        """How many rows there are."""
        return len(self.y)

    def rows(self, chosen: np.ndarray) -> "Home":
        """The same with some of the rows."""
        index = torch.from_numpy(chosen).to(self.x.device)
        return replace(self, x=self.x[index], y=self.y[index])

    def loss(self, vector: torch.Tensor) -> float:
        """The mean loss of a model on the rows; infinite where it is no number."""
        with torch.no_grad():
            found = self._sum(vector) / self.size
        return found if math.isfinite(found) else math.inf

    def slope(self, vector: torch.Tensor) -> tuple[float, torch.Tensor]:
        """The mean loss and its gradient."""
        return self._slope(vector, self._ready())

    def _ready(self) -> list[nn.Parameter]:
        """The parameters that train, of a model as it is in use."""
        self.model.eval()
        return [parameter for _, parameter in trainable(self.model)]

    def _slope(self, vector: torch.Tensor, parameters: list[nn.Parameter]) -> tuple[float, torch.Tensor]:
        self.theta.copy_(vector)
        total, gradient = 0.0, torch.zeros_like(self.theta)
        for rows, targets in zip(self.x.split(CHUNK), self.y.split(CHUNK), strict=True):
            loss = self.losses(self.model(rows), targets).sum() / self.size
            found = torch.autograd.grad(loss, parameters)
            gradient += torch.cat([part.reshape(-1) for part in found])
            total += float(loss.detach())
        return total, gradient

    def fit(self, start: torch.Tensor, *, centre: torch.Tensor, strength: float) -> torch.Tensor:
        """The minimiser of mean loss + strength/2 |w - centre|^2, from `start`; the best that was seen where a fit does not end."""
        if math.isinf(strength):
            return centre.clone()
        middle, parameters = centre.double().cpu().numpy(), self._ready()
        closed = linear.closed(self.model, self.losses, self.x, self.y)

        def slope(w: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = self._slope(torch.from_numpy(w).to(centre), parameters)
            return value, gradient.double().cpu().numpy()

        def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = (closed or slope)(w)
            away = w - middle
            return value + strength / 2 * float(away @ away), gradient + strength * away

        first = start.double().cpu().numpy()
        limits = {"maxiter": MOST_STEPS, "ftol": FLAT, "gtol": LEVEL}
        found = minimize(objective, first, jac=True, method="L-BFGS-B", options=limits)
        return torch.from_numpy(found.x if np.isfinite(found.x).all() else first).to(centre)

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
