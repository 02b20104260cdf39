"""The last layer of a network by itself: what the body makes of the rows, computed once, is a small convex problem.

A strength, or whether a body serves a client at all, can be told by the last layer in milliseconds; the whole network is then
fitted once.
"""

import copy
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from tacit.errors import BadInput
from tacit.personal.home import CHUNK, Adapted, Home
from tacit.train.flat import blocks, flatten, trainable

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
