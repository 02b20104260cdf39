"""How a client's parameters follow its gradients, as `torch.optim.SGD` takes its steps, with FedProx's and SCAFFOLD's terms:

    g <- g + lambda theta + mu (theta - theta_0) + (c - c_i)      weight decay, FedProx, SCAFFOLD
    m <- beta m + g                                               momentum, from zero in every round
    theta <- theta - eta m

Guarantee: g comes in clipped and noised, where there is a clip and noise, so that under DP-SGD this is post-processing: sampling,
noise and price of the steps stay what they were. How far the noise of a step carries changes, and `growth` says how much."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import torch
from torch import nn

from tacit.errors import BadInput
from tacit.privacy.mechanism import TrainingMechanism
from tacit.training.flat import blocks, trainable

# Learning rates over rounds, as shares of the first one's, counted as torch's schedulers count epochs.


@dataclass(frozen=True)
class Constant:
    def __call__(self, round: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from the first round to `end` (a share) after the last (Loshchilov and Hutter 2017, arXiv:1608.03983)."""

    rounds: int
    end: float = 0.0

    def __call__(self, round: int) -> float:
        return self.end + (1 - self.end) * (1 + math.cos(math.pi * round / self.rounds)) / 2  # eq. 5


@dataclass(frozen=True)
class Step:
    every: int
    factor: float

    def __call__(self, round: int) -> float:
        return self.factor ** (round // self.every)


Schedule = Constant | Cosine | Step
CONSTANT = Constant()


@dataclass(frozen=True)
class Descent:
    """Momentum beta, weight decay lambda, proximal mu (FedProx; Li et al. 2020, arXiv:1812.06127v5, Algorithm 2) and the schedule.
    `for_round` adds what a round has: `share`, its learning rate over the first one's, and `correction`, SCAFFOLD's c - c_i."""

    momentum: float = 0.0
    weight_decay: float = 0.0
    proximal: float = 0.0
    schedule: Schedule = CONSTANT
    share: float = 1.0
    correction: torch.Tensor | None = field(default=None, repr=False, compare=False)

    @property
    def plain(self) -> bool:
        return not (self.momentum or self.weight_decay or self.proximal)

    def for_round(self, round: int, correction: torch.Tensor | None = None) -> "Descent":
        return replace(self, share=self.schedule(round), correction=correction)

    def begin(self, theta_0: torch.Tensor) -> "Motion":
        """The motion of one flat vector of parameters from theta_0, or of several (client, parameter)."""
        return Motion(self, theta_0, None if self.correction is None else self.correction.to(theta_0.device))

    def begin_each(self, model: nn.Module) -> "list[Motion]":
        motions = []
        for block, (_, parameter) in zip(blocks(model), trainable(model), strict=True):
            own = None if self.correction is None else block.of(self.correction.to(parameter.device))
            motions.append(Motion(self, parameter.detach().clone() if self.proximal else parameter.detach(), own))
        return motions

    def responses(self, steps: int, *, learning_rate: float) -> np.ndarray:
        """How far a gradient has moved the parameters after 1, 2, ... steps, in units of its learning rate: 1, 1, ... if plain."""
        return _responses(self.momentum, learning_rate * self.share * (self.weight_decay + self.proximal), steps)

    def growth(self, steps: np.ndarray, *, learning_rate: float) -> np.ndarray:
        """The standard deviation that independent noise in every step leaves in the update, in units of a plain step's."""
        if self.plain:
            return np.sqrt(steps)
        responses = self.responses(int(np.max(steps)), learning_rate=learning_rate)
        return np.sqrt(np.cumsum(responses**2))[np.asarray(steps) - 1]

    def reach(self, steps: np.ndarray, *, learning_rate: float) -> np.ndarray:
        """How far a gradient of one in every step moves the parameters: K eta, where all is plain."""
        responses = self.responses(int(np.max(steps)), learning_rate=learning_rate)
        return learning_rate * self.share * np.cumsum(responses)[np.asarray(steps) - 1]


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
            g = g + summed * how.proximal * (theta - self.theta_0)
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
    moved, d, m = np.empty(steps), 0.0, 1.0
    for n in range(steps):
        d -= m  # theta <- theta - eta m, in units of eta
        moved[n] = -d
        m = momentum * m + pulled * d  # m <- beta m + (lambda + mu) (theta - theta_0)
    moved.flags.writeable = False
    return moved


# The running mean of a run's models.

WARM_UP = 10  # rounds: in round r the mean keeps at most r/(r + 10) of what it was


def kept(rate: float, *, round: int) -> float:
    """What the mean keeps of itself in a round."""
    return min(rate, round / (round + WARM_UP))


def rounds_in_it(rounds: int, *, rate: float) -> float:
    """How many rounds of independent noise are in the mean after so many: (sum g)^2/sum g^2, g_t the share that has seen round t
    (as Kish counts a weighted sample).

    >>> rounds_in_it(100, rate=0.0), round(rounds_in_it(100, rate=0.9), 1), round(rounds_in_it(20, rate=0.9), 1)
    (100.0, 96.0, 19.3)
    """
    share, total, squares = 1.0, 0.0, 0.0  # of the mean that comes after round t: all of it has seen the first
    for round in reversed(range(rounds)):
        seen = 1 - share * kept(rate, round=round) if rate else 1.0
        share *= kept(rate, round=round)
        total, squares = total + seen, squares + seen**2
    return total**2 / squares


# Float32 products at full precision, for the time in which gradients are clipped.

FULL = ("ieee", "none")  # "none": nothing is set, here or above, and float32 is float32
LAYERS = ("conv", "rnn")  # together: cuDNN's older setting `allow_tf32`, the only one before torch 2.9, stands for both


CUDNN, ONEDNN = (
    [getattr(backend, layer) for layer in LAYERS if hasattr(backend, layer)]
    for backend in (torch.backends.cudnn, torch.backends.mkldnn)
)


class full_precision:
    """Convolutions on this device in full float32 within the block. Raises: BadInput where torch may round the factors of matrix
    products, so that a sum of clipped gradients could exceed the clip, unless nothing is `clipped`."""

    def __init__(self, device: torch.device, *, clipped: bool = True):
        self.settings = CUDNN if device.type == "cuda" else ONEDNN
        self.cuda, self.clipped = device.type == "cuda", clipped

    def __enter__(self) -> None:
        if self.clipped:
            refuse_coarse_products()
        found = [(setting, setting.fp32_precision) for setting in self.settings]
        self.coarse = [(setting, precision) for setting, precision in found if precision not in FULL]
        try:
            self.older = self.cuda and torch.backends.cudnn.allow_tf32
        except RuntimeError:  # set by the newer settings, which the older question cannot answer
            self.older = False
        if self.older:
            torch.backends.cudnn.allow_tf32 = False
        for setting, _ in self.coarse:
            setting.fp32_precision = "ieee"

    def __exit__(self, *error: object) -> None:
        if self.older:
            torch.backends.cudnn.allow_tf32 = True
        for setting, precision in self.coarse:
            setting.fp32_precision = precision


@contextmanager
def coarse(precision: str) -> Iterator[None]:
    """Products of plain SGD with rounded factors within the block ("tf32", "bfloat16"): never around what is clipped."""
    if precision == "float32":
        yield
    elif precision == "bfloat16":
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):  # a recorded graph must read no cache
            yield
    else:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


def refuse_coarse_products() -> None:
    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:  # set by the newer settings of single backends, which the older question cannot answer
        precision = "mixed"
    if precision != "highest":
        raise BadInput("Call torch.set_float32_matmul_precision('highest'): coarser products can exceed the clip.")
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise BadInput("Clip gradients outside torch.autocast: products of half precision can exceed the clip.")


# What the server does with the combined update, as post-processing: SGD, momentum (FedAvgM; Hsu, Qi, Brown 2019, arXiv:1909.06335,
# section 4) or Adam (FedAdam; Reddi et al. 2021, arXiv:2003.00295, Algorithm 2, without bias correction).

Memory = dict[str, torch.Tensor]
BETA_2 = 0.99  # section 5.2 of arXiv:2003.00295


@dataclass(frozen=True)
class Sgd:
    """x <- x + eta Delta."""

    learning_rate: float = 1.0

    def init(self, params: torch.Tensor) -> Memory:
        return {}

    def step(self, params: torch.Tensor, memory: Memory, update: torch.Tensor) -> tuple[torch.Tensor, Memory]:
        return params + self.learning_rate * update, {}


@dataclass(frozen=True)
class Momentum:
    """v <- beta v + Delta; x <- x + eta v."""

    learning_rate: float = 1.0
    momentum: float = 0.9

    def init(self, params: torch.Tensor) -> Memory:
        return {"v": torch.zeros_like(params)}

    def step(self, params: torch.Tensor, memory: Memory, update: torch.Tensor) -> tuple[torch.Tensor, Memory]:
        v = self.momentum * memory["v"] + update
        return params + self.learning_rate * v, {"v": v}


@dataclass(frozen=True)
class Adam:
    """m <- b1 m + (1 - b1) Delta; v <- b2 v + (1 - b2) Delta^2; x <- x + eta m / (sqrt(v) + tau), with v_0 = tau^2."""

    learning_rate: float = 1.0
    momentum: float = 0.9
    adaptivity: float = 1e-3

    def init(self, params: torch.Tensor) -> Memory:
        return {"m": torch.zeros_like(params), "v": torch.full_like(params, self.adaptivity**2)}

    def step(self, params: torch.Tensor, memory: Memory, update: torch.Tensor) -> tuple[torch.Tensor, Memory]:
        m = self.momentum * memory["m"] + (1 - self.momentum) * update
        v = BETA_2 * memory["v"] + (1 - BETA_2) * update.square()
        moved = params + self.learning_rate * m / (v.sqrt() + self.adaptivity)
        return moved, {"m": m, "v": v}


ServerOptimizer = Sgd | Momentum | Adam  # how the model moves by an update, and what to remember next
