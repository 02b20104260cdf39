"""`head`: a common body and an own last layer, for networks.

After Collins, Hassani, Mokhtari and Shakkottai 2021 (arXiv:2102.07078), who learn the body together and heads apart in every round;
here the common model's body is kept as it was released, and its last linear layer adapted at home once: ridge towards the common
one, lambda by cross-validation (`mean_regularised.py`), on what the body makes of the rows, computed once.
"""

import copy
from dataclasses import replace

import torch
from torch import nn

from tacit.errors import BadInput
from tacit.personal import mean_regularised
from tacit.personal.home import CHUNK, Adapted, Home
from tacit.train.flat import blocks, flatten, trainable

CLOSE = 1e-4


def adapt(home: Home, centre: torch.Tensor) -> Adapted:
    """The client's own model. Raises BadInput where the model does not end in a linear layer that trains."""
    home.theta.copy_(centre)
    name, layer = last_layer(home.model)
    x = torch.cat([_entering(home.model.eval(), layer, rows) for rows in home.x.split(CHUNK)])
    own = copy.deepcopy(layer)
    theta = flatten(own)
    found = mean_regularised.adapt(replace(home, model=own, theta=theta, x=x), theta.clone())
    theta.copy_(found.vector)
    w, mine = centre.clone(), {_within(name, key): value for key, value in own.named_parameters()}
    for block in blocks(home.model):
        if block.name in mine:
            block.of(w).copy_(mine[block.name].detach())
    return Adapted(w, found.chosen)


def refuse(model: nn.Module, x: torch.Tensor) -> None:
    """Raises BadInput where the model's answer to two rows is not what its last linear layer gives."""
    _, layer = last_layer(model)
    with torch.no_grad():
        same = torch.allclose(layer(_entering(model.eval(), layer, x)), model(x), rtol=CLOSE, atol=CLOSE)
    if not same:
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
        if isinstance(layer, nn.Linear) and {_within(name, key) for key, _ in layer.named_parameters()} <= training
    ]
    if not found:
        raise BadInput('personal.kind = "head" needs a model with a linear layer that trains: choose "finetune".')
    return found[-1]


def _within(layer: str, key: str) -> str:
    return f"{layer}.{key}" if layer else key


def _entering(model: nn.Module, layer: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """What comes to a layer when the model reads rows."""
    seen: list[torch.Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, entering: seen.append(entering[0].detach()))
    try:
        with torch.no_grad():
            model(rows)
    finally:
        hook.remove()
    if len(seen) != 1:
        raise BadInput('personal.kind = "head" needs a last layer that is used once: choose "finetune".')
    return seen[0]
