"""The loss and the slope of a model that is one linear layer, in closed form: what a fit asks for some hundred times.

Autograd is most of what a fit of a small linear model costs. `Home.slope` is the slow twin, which any model and any loss has.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn

from tacit.losses import Losses
from tacit.losses.binary_cross_entropy import binary_cross_entropy
from tacit.losses.cross_entropy import cross_entropy
from tacit.losses.squared import squared

Slope = Callable[[np.ndarray], tuple[float, np.ndarray]]
Known = Callable[
    [np.ndarray, np.ndarray], tuple[float, np.ndarray]
]  # of outputs and targets: the summed loss, and its slope


def closed(model: nn.Module, losses: Losses, x: torch.Tensor, y: torch.Tensor) -> Slope | None:
    """The mean loss on the rows and its slope, of the trainable parameters as one vector; None where there is no closed form.

    >>> rows = torch.eye(2), torch.tensor([0, 1])
    >>> round(closed(nn.Linear(2, 2), cross_entropy, *rows)(np.zeros(6))[0], 4)
    0.6931
    """
    found = _read(model, losses, x)
    if found is None:
        return None
    loss, rows, outputs_of = found
    targets, biased = y.numpy(), outputs_of.biased

    def slope(w: np.ndarray) -> tuple[float, np.ndarray]:
        value, by_output = loss(outputs_of(rows, w), targets)
        parts = [(by_output.T @ rows).reshape(-1), *([by_output.sum(0)] if biased else [])]
        return value / len(rows), np.concatenate(parts) / len(rows)

    return slope


def products(
    model: nn.Module, losses: Losses, x: torch.Tensor, y: torch.Tensor, vector: torch.Tensor
) -> np.ndarray | None:
    """The products of all examples' gradients with each other, [rows, rows]; None where there is no closed form.

    Of one linear layer the gradient is an outer product, so that g_i g_j = (slope_i slope_j)(x_i x_j + 1): no gradient is made.
    """
    found = _read(model, losses, x)
    if found is None:
        return None
    loss, rows, outputs_of = found
    _, by_output = loss(outputs_of(rows, vector.double().numpy()), y.numpy())
    return (by_output @ by_output.T) * (rows @ rows.T + outputs_of.biased)


@dataclass(frozen=True)
class _Outputs:
    """What a linear layer gives for rows, from its parameters as one vector."""

    classes: int
    size: int  # of the weights, which come first
    biased: bool

    def __call__(self, rows: np.ndarray, w: np.ndarray) -> np.ndarray:
        outputs = rows @ w[: self.size].reshape(self.classes, -1).T
        return outputs + w[self.size :] if self.biased else outputs


def _read(model: nn.Module, losses: Losses, x: torch.Tensor) -> tuple[Known, np.ndarray, _Outputs] | None:
    """The loss, the rows and the layer of what has a closed form."""
    layer, loss = _only_layer(model), _known(losses)
    if layer is None or loss is None or x.device.type != "cpu" or x.shape[1:].numel() != layer.in_features:
        return None
    rows = x.detach().double().reshape(len(x), -1).numpy()
    return loss, rows, _Outputs(layer.out_features, layer.weight.numel(), layer.bias is not None)


def _only_layer(model: nn.Module) -> nn.Linear | None:
    """The linear layer that a model consists of, all of which trains; None where it is anything more."""
    parts = list(model) if type(model) is nn.Sequential else [model]
    layers = [part for part in parts if type(part) is nn.Linear]
    flat = [part for part in parts if type(part) is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1)]
    trains = all(parameter.requires_grad for parameter in model.parameters())
    return layers[0] if len(layers) == 1 and len(flat) + 1 == len(parts) and trains else None


def _known(losses: Losses) -> Known | None:
    """The closed form of a plain loss."""
    plain = losses.func if isinstance(losses, partial) and not _options(losses) else losses
    return {cross_entropy: _cross_entropy, binary_cross_entropy: _binary, squared: _squared}.get(plain)  # type: ignore[call-overload]


def _options(losses: "partial[torch.Tensor]") -> bool:
    return bool(losses.args) or any(value is not None for value in losses.keywords.values())


def _cross_entropy(outputs: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    each = np.arange(len(outputs))
    shifted = outputs - outputs.max(1, keepdims=True)
    weights = np.exp(shifted)
    total = weights.sum(1, keepdims=True)
    value = float((np.log(total[:, 0]) - shifted[each, targets]).sum())
    weights /= total
    weights[each, targets] -= 1
    return value, weights


def _binary(outputs: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    holds = targets.reshape(outputs.shape)
    value = np.logaddexp(0.0, outputs) - holds * outputs
    slope = np.exp(-np.logaddexp(0.0, -outputs)) - holds
    return float(value.sum()) / outputs.shape[1], slope / outputs.shape[1]


def _squared(outputs: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    off = outputs - targets.reshape(outputs.shape)
    return float(np.square(off).sum()) / off.shape[1], 2 * off / off.shape[1]
