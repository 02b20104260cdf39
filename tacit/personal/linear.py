"""A model that is one linear layer, in closed form: its loss, slope and curvature without autograd.

Autograd is most of what a fit of a small linear model costs. `Home.slope` is the slow twin, which any model and any loss has."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import nn

from tacit.parts.losses import Losses, binary_cross_entropy, cross_entropy, squared

Loss = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
Bend = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class Layer:
    """The rows of a linear layer, a column of ones among them where it has a bias, with their targets and a plain loss.

    `targets` are [numbers, rows], of a class 1 where it holds. `loss` takes outputs [..., numbers, rows] and targets, and gives
    every row's loss and its slope by output; `bend` takes outputs, and gives the second derivative of the loss by each of them.
    """

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
    """Targets as [numbers, rows]; of a class 1 where it holds."""
    targets = np.eye(outputs)[y.numpy()] if loss is _cross_entropy else y.numpy().astype(float)
    return np.ascontiguousarray(targets.reshape(len(y), -1).T)


def _only_layer(model: nn.Module) -> nn.Linear | None:
    """The linear layer that a model consists of, all of which trains; None where it is anything more."""
    parts = list(model) if type(model) is nn.Sequential else [model]
    layers = [part for part in parts if type(part) is nn.Linear]
    flat = [part for part in parts if type(part) is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1)]
    trains = all(parameter.requires_grad for parameter in model.parameters())
    return layers[0] if len(layers) == 1 and len(flat) + 1 == len(parts) and trains else None


def _known(losses: Losses) -> tuple[Loss, Bend] | None:
    """The closed form of a plain loss."""
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
