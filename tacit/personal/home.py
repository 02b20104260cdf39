"""What a client has at home when a run has ended: the model's code, its training rows, a loss, and so much work.
Fits are by L-BFGS on all rows at once, without dropout: they draw nothing and are repeated bit for bit. Work is counted in rows,
never by a clock, so that a busy machine makes the same model."""

import copy
import math
from collections.abc import Callable
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

    def slopes(self, vector: np.ndarray, targets: torch.Tensor) -> np.ndarray:
        """The slope of every row's loss by output, [numbers, rows], had the rows other targets."""
        return self.loss(self.matrix(vector) @ self.rows.T, _of_rows(targets, self.outputs, self.loss))[1]


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


# L-BFGS for any model at home, within a number of gradients: what a network is fitted by.

Slope = Callable[[torch.Tensor], tuple[float, torch.Tensor]]

KEPT = 6  # pairs that are remembered
ENOUGH = 1e-4  # of the gain that a slope promises
SHORTEST = 1e-6  # a step below this goes nowhere
FIRST = 0.5  # how far the first step goes: nothing is known yet of the curvature


def descend(slope: Slope, start: torch.Tensor, *, most: int, flat: float, level: float) -> torch.Tensor:
    """The lowest that at most so many gradients find, from `start`: the start itself where nothing is lower.
    It ends where a step gains less than `flat` of the value (or of 1), or no slope is above `level`.

    >>> descend(lambda w: (float((w - 3).square().sum()), 2 * (w - 3)), torch.zeros(2), most=9, flat=0, level=1e-4).round()
    tensor([3., 3.])
    """
    at, (value, gradient) = start, slope(start)
    pairs, used = Pairs(start), 1
    while used < most and float(gradient.abs().max()) > level:
        along = pairs.direction(gradient)
        promised, step = float(along @ gradient), 1.0 if pairs.order else min(1.0, FIRST / float(gradient.norm()))
        while True:
            new, (found, lower) = at + step * along, slope(at + step * along)
            used += 1
            if found <= value + ENOUGH * step * promised or used >= most or step < SHORTEST:
                break
            step /= 2
        if not found < value:
            break
        pairs.add(new - at, lower - gradient)
        gained = value - found
        at, value, gradient = new, found, lower
        if gained <= flat * max(1.0, abs(value)):
            break
    return at


class Pairs:
    """The last pairs of a step (row 2i) and how the gradient bent along it (row 2i + 1), with all their products."""

    def __init__(self, start: torch.Tensor):
        self.rows = torch.zeros(2 * KEPT, start.numel(), dtype=start.dtype, device=start.device)
        self.products = np.zeros((2 * KEPT, 2 * KEPT))
        self.order: list[int] = []  # of pairs, the oldest first

    def add(self, moved: torch.Tensor, bent: torch.Tensor) -> None:
        """Remembers a pair that has curvature, in the place of the oldest one where there is no room."""
        if not float(moved @ bent) > 0:
            return
        free = len(self.order) if len(self.order) < KEPT else self.order.pop(0)
        self.order.append(free)
        mine = [2 * free, 2 * free + 1]
        self.rows[mine[0]], self.rows[mine[1]] = moved, bent
        found = (self.rows @ self.rows[mine].T).double().cpu().numpy()
        self.products[:, mine], self.products[mine] = found, found.T

    def direction(self, gradient: torch.Tensor) -> torch.Tensor:
        """The two loops of L-BFGS, in coordinates: `share` of every row, and -1 (later -guess) of the gradient."""
        if not self.order:
            return -gradient
        by, products = (self.rows @ gradient).double().cpu().numpy(), self.products
        share, left, known = np.zeros(len(by)), -1.0, dict[int, float]()
        for i in reversed(self.order):
            known[i] = (products[2 * i] @ share + left * by[2 * i]) / products[2 * i, 2 * i + 1]
            share[2 * i + 1] -= known[i]
        last = 2 * self.order[-1]
        guess = products[last, last + 1] / products[last + 1, last + 1]
        share, left = share * guess, left * guess
        for i in self.order:
            bent = products[2 * i + 1] @ share + left * by[2 * i + 1]
            share[2 * i] += known[i] - bent / products[2 * i, 2 * i + 1]
        return torch.from_numpy(share).to(gradient) @ self.rows + left * gradient


CHUNK = 1000  # rows at a time
MOST_STEPS = 200  # of L-BFGS, where the loss has a closed form
FEW = 64  # rows whose gradient costs as much as that of one: calls are most of it
LEAST = 6  # gradients of all rows: with fewer nothing is adapted
WORK = 200 * FEW  # where nobody says how much
FLAT, LEVEL = 1e-5, 1e-4  # where a fit ends: relative gain, largest slope; float32 knows no better


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
    `seed` is of the client's own draws (folds, orders of rows): they decide about its own model alone. `work` is of how many rows
    a network's gradients may be asked for."""

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
        Of numbers the variance is unknown and taken where it is most likely."""
        count = self.size if rows is None else rows
        if self.task != "regression":
            return count * mean
        return count * self.y.shape[1:].numel() / 2 * math.log(max(mean, np.finfo(float).tiny))

    def slope(self, vector: torch.Tensor) -> tuple[float, torch.Tensor]:
        """The mean loss and its gradient."""
        return self._slope(vector, self._ready())

    @cached_property
    def layer(self) -> Layer | None:
        """The closed form of the model on these rows, where it has one."""
        return layer_of(self.model, self.losses, self.x, self.y)

    def _ready(self) -> list[nn.Parameter]:
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


# The last layer of a network by itself: what the body makes of the rows, computed once, is a small convex problem.

CLOSE = 1e-4


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
    except BadInput:
        return None
    with torch.no_grad():
        given, told = home.model(home.x[:2]).cpu(), last.home.model(last.home.x[:2])
    return last if last.home.layer is not None and _same(given, told) else None


def refuse(model: nn.Module, x: torch.Tensor) -> None:
    """Raises BadInput where the model's answer to two rows is not what its last linear layer gives."""
    _, layer = last_layer(model)
    with torch.no_grad():
        told, given = layer(entering(model.eval(), layer, x)), model(x)
    if not _same(given, told):
        raise BadInput(
            'personal.kind = "head" needs a model that ends in a linear layer, and this one does more after it: choose'
            ' "finetune" or "mean-regularised".'
        )


def last_layer(model: nn.Module) -> tuple[str, nn.Linear]:
    """The last linear layer that trains, by its name."""
    training = {name for name, _ in trainable(model)}
    found = [
        (name, layer)
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and {_key(name, key) for key, _ in layer.named_parameters()} <= training
    ]
    if not found:
        raise BadInput('personal.kind = "head" needs a model with a linear layer that trains: choose "finetune".')
    return found[-1]


def entering(model: nn.Module, layer: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """What comes to a layer when the model reads rows."""
    seen: list[torch.Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, came: seen.append(came[0].detach()))
    try:
        with torch.no_grad():
            model(rows)
    finally:
        hook.remove()
    if len(seen) != 1:
        raise BadInput('personal.kind = "head" needs a last layer that is used once: choose "finetune".')
    return seen[0]


def then_whole(home: Home, last: Last, found: Adapted) -> Adapted:
    """The whole network, held to the model that it began with as its last layer is; where that stays, so does the network."""
    strength = found.chosen.get("strength")
    if strength is None:
        return Adapted(last.centre.clone(), found.chosen, found.score)
    start = last.within(found.vector)
    return Adapted(home.fit(start, centre=last.centre, strength=strength), found.chosen, found.score)


def _same(given: torch.Tensor, told: torch.Tensor) -> bool:
    return given.shape == told.shape and torch.allclose(told, given, rtol=CLOSE, atol=CLOSE)


def _key(layer: str, key: str) -> str:
    return f"{layer}.{key}" if layer else key
