"""How a client's parameters follow its gradients, as `torch.optim.SGD` takes its steps, with FedProx's and SCAFFOLD's terms:

    g <- g + lambda theta + mu (theta - theta_0) + (c - c_i)      weight decay, FedProx, SCAFFOLD
    m <- beta m + g                                               momentum, from zero in every round
    theta <- theta - eta m

Guarantee: g comes in here clipped and with its noise, where there is any; all that is done to it depends on parameters, on
settings and on gradients that carry theirs too. So under DP-SGD this is post-processing: sampling, noise and price of the steps
are what they were. What changes is how far the noise of a step carries, and `growth` says that to whoever weighs updates by it.
"""

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import torch
from torch import nn

from tacit.errors import BadInput
from tacit.privacy.mechanism import TrainingMechanism
from tacit.train.fedprox import pull
from tacit.train.flat import blocks, trainable
from tacit.train.schedule import CONSTANT, Schedule


@dataclass(frozen=True)
class Descent:
    """Momentum beta, weight decay lambda and proximal mu; the learning rate over rounds. `told` makes it that of one round.

    Of a round: `share`, its learning rate over the first one's, and `correction`, SCAFFOLD's c - c_i.
    """

    momentum: float = 0.0
    weight_decay: float = 0.0
    proximal: float = 0.0
    schedule: Schedule = CONSTANT
    share: float = 1.0
    correction: torch.Tensor | None = field(default=None, repr=False, compare=False)

    @property
    def plain(self) -> bool:
        """Whether a step moves by its own gradient and nothing else."""
        return not (self.momentum or self.weight_decay or self.proximal)

    def told(self, round: int, correction: torch.Tensor | None = None) -> "Descent":
        """The descent of one round."""
        return replace(self, share=self.schedule(round), correction=correction)

    def begin(self, theta_0: torch.Tensor) -> "Motion":
        """The motion of one flat vector of parameters from theta_0, or of several (client, parameter)."""
        correction = None if self.correction is None else self.correction.to(theta_0.device)
        return Motion(self, theta_0, correction)

    def begin_each(self, model: nn.Module) -> "list[Motion]":
        """The motions of a model's trainable parameters, each from where it is."""
        found = []
        for block, (_, parameter) in zip(blocks(model), trainable(model), strict=True):
            own = None if self.correction is None else block.of(self.correction.to(parameter.device))
            found.append(Motion(self, parameter.detach().clone() if self.proximal else parameter.detach(), own))
        return found

    def responses(self, steps: int, *, learning_rate: float) -> np.ndarray:
        """How far a gradient has moved the parameters after 1, 2, ... steps, in units of the round's learning rate.

        The gradients that follow are taken as given: 1, 1, 1, ... where all is plain.
        """
        return _responses(self.momentum, learning_rate * self.share * (self.weight_decay + self.proximal), steps)

    def growth(self, steps: np.ndarray, *, learning_rate: float) -> np.ndarray:
        """The standard deviation that independent noise in every step leaves in the update, in units of a plain step's."""
        if self.plain:
            return np.sqrt(steps)
        known = self.responses(int(np.max(steps)), learning_rate=learning_rate)
        return np.sqrt(np.cumsum(known**2))[np.asarray(steps) - 1]

    def reach(self, steps: np.ndarray, *, learning_rate: float) -> np.ndarray:
        """How far a gradient of one in every step moves the parameters: K eta, where all is plain."""
        known = self.responses(int(np.max(steps)), learning_rate=learning_rate)
        return learning_rate * self.share * np.cumsum(known)[np.asarray(steps) - 1]


PLAIN = Descent()


class Motion:
    """One tensor of parameters on its way from theta_0; it remembers its momentum."""

    def __init__(self, how: Descent, theta_0: torch.Tensor, correction: torch.Tensor | None):
        self.how, self.theta_0, self.correction = how, theta_0, correction
        self.m: torch.Tensor | None = None

    def __call__(self, g: torch.Tensor, theta: torch.Tensor, *, summed: float | torch.Tensor = 1.0) -> torch.Tensor:
        """The direction to step along at theta. Where g is a sum, `summed` is what it will be divided by."""
        how = self.how
        if how.weight_decay:
            g = g + summed * how.weight_decay * theta
        if how.proximal:
            g = g + pull(theta, self.theta_0, mu=summed * how.proximal)
        if self.correction is not None:
            g = g + summed * self.correction
        if how.momentum:
            g = g if self.m is None else how.momentum * self.m + g
            self.m = g
        return g


def noise_growth(mechanism: TrainingMechanism, how: Descent, *, learning_rate: float) -> float:
    """`mechanism.noise_growth` for steps that are not plain. Raises BadInput where the noise of a step depends on another's."""
    if how.plain:
        return mechanism.noise_growth
    if not np.isclose(mechanism.noise_growth, np.sqrt(mechanism.steps)):
        raise BadInput(
            f"How the noise of {type(mechanism).__name__} adds up is known for plain steps only: leave out train.momentum,"
            " train.weight_decay and train.proximal."
        )
    return float(how.growth(np.array(mechanism.steps), learning_rate=learning_rate))


@lru_cache(maxsize=64)
def _responses(momentum: float, pulled: float, steps: int) -> np.ndarray:
    found, d, m = np.empty(steps), 0.0, 1.0
    for n in range(steps):
        d -= m  # theta <- theta - eta m, in units of eta
        found[n] = -d
        m = momentum * m + pulled * d  # m <- beta m + (lambda + mu) (theta - theta_0)
    found.flags.writeable = False
    return found
