"""What a client has at home when a run has ended: the model's code, its training rows, a loss, and so much work.
Fits are by L-BFGS on all rows at once, without dropout, and draw nothing. Work is counted in rows, never by a clock: a busy machine
makes the same model."""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import torch
from scipy.optimize import minimize
from torch import nn

from tacit.errors import BadInput
from tacit.parts.losses import Losses, binary_cross_entropy, cross_entropy, squared
from tacit.training.flat import blocks, flatten, trainable

# A model that is one linear layer, in closed form: loss, slope and curvature without autograd. `Home.slope` is the slow twin.

Loss = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
Bend = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class Layer:
    """The rows of a linear layer, a column of ones among them where it has a bias, with their targets and a plain loss.
    `targets` are [numbers, rows], of a class 1 where it holds. `loss` takes outputs [..., numbers, rows] and targets, and gives
    every row's loss and its slope by output; `bend` takes outputs, and gives the second derivative of the loss by each of them."""

    rows: np.ndarray = field(repr=False)
    targets: np.ndarray = field(repr=False)
    outputs: int
    biased: bool
    loss: Loss
    bend: Bend

    def matrix(self, vector: np.ndarray) -> np.ndarray:
        """The parameters as one vector, by output and column; the bias comes last in both."""
        if not self.biased:
            return vector.reshape(self.outputs, -1)
        return np.column_stack([vector[: -self.outputs].reshape(self.outputs, -1), vector[-self.outputs :]])

    def vector(self, matrix: np.ndarray) -> np.ndarray:
        """The way back."""
        if not self.biased:
            return matrix.reshape(-1)
        return np.concatenate([matrix[:, :-1].reshape(-1), matrix[:, -1]])

    def losses(self, vector: np.ndarray) -> np.ndarray:
        """The loss of every row, of the parameters as one vector."""
        return self.loss(self.matrix(vector) @ self.rows.T, self.targets)[0]

    def slope(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        """The mean loss on the rows and its slope, of the parameters as one vector."""
        losses, by_output = self.loss(self.matrix(vector) @ self.rows.T, self.targets)
        return float(losses.mean()), self.vector(by_output @ self.rows) / len(self.rows)


def layer_of(model: nn.Module, losses: Losses, x: torch.Tensor, y: torch.Tensor) -> Layer | None:
    """The closed form of a model on some rows; None where it is more than one linear layer with a plain loss, or on a device.

    >>> made = layer_of(nn.Linear(2, 2), cross_entropy, torch.eye(2), torch.tensor([0, 1]))
    >>> made and round(made.slope(np.zeros(6))[0], 4)
    0.6931
    """
    layer, known = _only_layer(model), _known(losses)
    if layer is None or known is None or x.device.type != "cpu" or x.shape[1:].numel() != layer.in_features:
        return None
    rows = x.detach().double().reshape(len(x), -1).numpy()
    if layer.bias is not None:
        rows = np.column_stack([rows, np.ones(len(rows))])
    return Layer(rows, _of_rows(y, layer.out_features, known[0]), layer.out_features, layer.bias is not None, *known)


def _of_rows(y: torch.Tensor, outputs: int, loss: Loss) -> np.ndarray:
    targets = np.eye(outputs)[y.numpy()] if loss is _cross_entropy else y.numpy().astype(float)
    return np.ascontiguousarray(targets.reshape(len(y), -1).T)


def _only_layer(model: nn.Module) -> nn.Linear | None:
    parts = list(model) if type(model) is nn.Sequential else [model]
    layers = [part for part in parts if type(part) is nn.Linear]
    flat = [part for part in parts if type(part) is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1)]
    trains = all(parameter.requires_grad for parameter in model.parameters())
    return layers[0] if len(layers) == 1 and len(flat) + 1 == len(parts) and trains else None


def _known(losses: Losses) -> tuple[Loss, Bend] | None:
    plain = losses.func if isinstance(losses, partial) and not _options(losses) else losses
    known = {cross_entropy: (_cross_entropy, _bent_cross_entropy), binary_cross_entropy: (_binary, _bent_binary)}
    return (known | {squared: (_squared, _bent_squared)}).get(plain)  # type: ignore[call-overload]


def _options(losses: "partial[torch.Tensor]") -> bool:
    return bool(losses.args) or any(value is not None for value in losses.keywords.values())


def _softmax(outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    shifted = outputs - outputs.max(-2, keepdims=True)
    weights = np.exp(shifted)
    total = weights.sum(-2, keepdims=True)
    weights /= total
    return shifted, weights, np.log(total)[..., 0, :]


def _cross_entropy(outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    shifted, weights, total = _softmax(outputs)
    shifted *= targets
    weights -= targets
    return total - shifted.sum(-2), weights


def _bent_cross_entropy(outputs: np.ndarray) -> np.ndarray:
    _, weights, _ = _softmax(outputs)
    return weights * (1 - weights)


def _binary(outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    losses = np.logaddexp(0.0, outputs) - targets * outputs
    slope = np.exp(-np.logaddexp(0.0, -outputs)) - targets
    return losses.sum(-2) / len(targets), slope / len(targets)


def _bent_binary(outputs: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0.0, outputs) - np.logaddexp(0.0, -outputs)) / outputs.shape[-2]


def _squared(outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    off = outputs - targets
    return np.square(off).sum(-2) / len(targets), 2 * off / len(targets)


def _bent_squared(outputs: np.ndarray) -> np.ndarray:
    return np.full(outputs.shape, 2 / outputs.shape[-2])


CHUNK = 1000  # rows at a time
MOST_STEPS = 200  # of L-BFGS
FEW = 64  # rows whose gradient costs as much as that of one: calls are most of it
LEAST = 6  # gradients of all rows: with fewer nothing is adapted
WORK = 200 * FEW  # where nobody says how much
FLAT, LEVEL = 1e-5, 1e-4  # where a fit ends: relative gain, largest slope; float32 knows no better


class _Enough(Exception):
    """The work is done."""


@dataclass(frozen=True, eq=False)
class Adapted:
    """A model made at home, how it was chosen, and how unlikely it makes the client's own training rows (`Home.unlikely`).
    `score` compares what one way made from two beginnings, never two ways; None where a way has nothing to compare by."""

    vector: torch.Tensor = field(repr=False)
    chosen: dict[str, float | None]
    score: float | None = None


@dataclass(frozen=True, eq=False)
class Home:
    """One client's training rows beside a model whose trainable parameters are views of `theta`.
    `seed` is of the folds, and `work` of how many rows a network's gradients may be asked for."""

    model: nn.Module = field(repr=False)
    theta: torch.Tensor = field(repr=False)
    losses: Losses = field(repr=False)
    x: torch.Tensor = field(repr=False)
    y: torch.Tensor = field(repr=False)
    seed: int = 0
    task: str = "classification"
    work: int = WORK

    @property
    def size(self) -> int:
        """How many rows there are."""
        return len(self.y)

    @property
    def gradients(self) -> int:
        """How many gradients of all rows the work is enough for."""
        return max(LEAST, self.work // max(FEW, self.size))

    @cached_property
    def layer(self) -> Layer | None:
        """The closed form of the model on these rows, where it has one."""
        return layer_of(self.model, self.losses, self.x, self.y)

    def rows(self, chosen: np.ndarray) -> "Home":
        """The same with some of the rows."""
        index = torch.from_numpy(chosen).to(self.x.device)
        return replace(self, x=self.x[index], y=self.y[index])

    def loss(self, vector: torch.Tensor) -> float:
        """The mean loss of a model on the rows; infinite where it is no number."""
        if self.layer is not None:
            found = float(self.layer.losses(vector.double().numpy()).mean())
        else:
            self.theta.copy_(vector)
            self.model.eval()
            with torch.no_grad():
                found = sum(float(self.losses(self.model(x), y).sum()) for x, y in self._chunks()) / self.size
        return found if math.isfinite(found) else math.inf

    def unlikely(self, mean: float) -> float:
        """A mean loss over the rows as a negative log-likelihood, but for a constant.
        Of numbers the variance is unknown and taken where it is most likely."""
        if self.task != "regression":
            return self.size * mean
        return self.size * self.y.shape[1:].numel() / 2 * math.log(max(mean, np.finfo(float).tiny))

    def slope(self, vector: torch.Tensor) -> tuple[float, torch.Tensor]:
        """The mean loss and its gradient, by autograd."""
        self.theta.copy_(vector)
        self.model.eval()
        parameters = [parameter for _, parameter in trainable(self.model)]
        total, gradient = 0.0, torch.zeros_like(self.theta)
        for x, y in self._chunks():
            loss = self.losses(self.model(x), y).sum() / self.size
            gradient += torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, parameters)])
            total += float(loss.detach())
        return total, gradient

    def fit(self, start: torch.Tensor, *, centre: torch.Tensor, strength: float) -> torch.Tensor:
        """The minimiser of mean loss + strength/2 |w - centre|^2, from `start`; the best that was seen where the work ends."""
        if math.isinf(strength):
            return centre.clone()
        middle, first = centre.double().cpu().numpy(), start.double().cpu().numpy()
        best, used = (math.inf, first), 0

        def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
            nonlocal best, used
            if self.layer is not None:
                value, gradient = self.layer.slope(w)
            elif used < self.gradients:
                value, found = self.slope(torch.from_numpy(w).to(centre))
                gradient = found.double().cpu().numpy()
            else:
                raise _Enough
            away, used = w - middle, used + 1
            value += strength / 2 * float(away @ away)
            best = (value, w.copy()) if value < best[0] else best
            return value, gradient + strength * away

        limits = {"maxiter": MOST_STEPS, "ftol": FLAT, "gtol": LEVEL}
        try:
            found = minimize(objective, first, jac=True, method="L-BFGS-B", options=limits).x
        except _Enough:
            found = best[1]
        return torch.from_numpy(found if np.isfinite(found).all() else first).to(centre)

    def folds(self, most: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Rows to train on and rows to judge by, at most so many times: every row is judged once. None of a single row."""
        order, count = np.random.default_rng([self.seed, 1]).permutation(self.size), min(most, self.size)
        parts = [order[k::count] for k in range(count)] if count > 1 else []
        return [(np.concatenate([p for p in parts if p is not part]), part) for part in parts]

    def _chunks(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return zip(self.x.split(CHUNK), self.y.split(CHUNK), strict=True)


# The last layer of a network by itself: what the body makes of the rows, computed once, is a small convex problem.

CLOSE = 1e-4
NO_HEAD = 'personal.kind = "head" needs a model that ends in a linear layer that trains: choose "mean-regularised".'


@dataclass(frozen=True, eq=False)
class Last:
    """A client's rows as they come to the last layer of a model, beside that layer."""

    home: Home
    name: str
    whole: nn.Module = field(repr=False)
    centre: torch.Tensor = field(repr=False)
    vector: torch.Tensor = field(repr=False)  # the layer's parameters in that model

    def within(self, own: torch.Tensor) -> torch.Tensor:
        """The model with another last layer."""
        self.home.theta.copy_(own)
        w, mine = self.centre.clone(), {_key(self.name, k): v for k, v in self.home.model.named_parameters()}
        for block in blocks(self.whole):
            if block.name in mine:
                block.of(w).copy_(mine[block.name].detach())
        return w


def last_of(home: Home, centre: torch.Tensor) -> Last:
    """The last layer of a model. Raises BadInput where it does not end in a linear layer that trains."""
    home.theta.copy_(centre)
    name, layer = last_layer(home.model)
    x = torch.cat([entering(home.model.eval(), layer, rows) for rows in home.x.split(CHUNK)])
    own = copy.deepcopy(layer).cpu()
    theta = flatten(own)
    rows = {"model": own, "theta": theta, "x": x.cpu(), "y": home.y.cpu()}
    return Last(replace(home, **rows), name, home.model, centre, theta.clone())


def known_last(home: Home, centre: torch.Tensor) -> Last | None:
    """The same where its problem has a closed form, and its answers are the model's; None where not."""
    try:
        last = last_of(home, centre)
        refuse_headless(home.model, home.x[:2])
    except BadInput:
        return None
    return last if last.home.layer is not None else None


def refuse_headless(model: nn.Module, x: torch.Tensor) -> None:
    """Raises BadInput where the model's answer to some rows is not what its last linear layer gives."""
    _, layer = last_layer(model)
    with torch.no_grad():
        told, given = layer(entering(model.eval(), layer, x)), model(x)
    if given.shape != told.shape or not torch.allclose(told, given, rtol=CLOSE, atol=CLOSE):
        raise BadInput(NO_HEAD)


def last_layer(model: nn.Module) -> tuple[str, nn.Linear]:
    """The last linear layer that trains, by its name."""
    training = {name for name, _ in trainable(model)}
    found = [
        (name, layer)
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and {_key(name, key) for key, _ in layer.named_parameters()} <= training
    ]
    if not found:
        raise BadInput(NO_HEAD)
    return found[-1]


def entering(model: nn.Module, layer: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """What comes to a layer when the model reads rows. Raises BadInput for a layer that is not used once."""
    seen: list[torch.Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, came: seen.append(came[0].detach()))
    try:
        with torch.no_grad():
            model(rows)
    finally:
        hook.remove()
    if len(seen) != 1:
        raise BadInput(NO_HEAD)
    return seen[0]


def then_whole(home: Home, last: Last, found: Adapted) -> Adapted:
    """The whole network, held to the model that it began with as its last layer is; where that stays, so does the network."""
    strength = found.chosen.get("strength")
    if strength is None:
        return Adapted(last.centre.clone(), found.chosen, found.score)
    start = last.within(found.vector)
    return Adapted(home.fit(start, centre=last.centre, strength=strength), found.chosen, found.score)


def _key(layer: str, key: str) -> str:
    return f"{layer}.{key}" if layer else key
