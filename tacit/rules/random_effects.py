"""`random-effects`: each client weighted by 1/(sigma^2/H + tau^2): its noise, as far as it does not average out over
rounds, plus the variance between clients.

The model of meta-analysis: client m's update is the common one, plus its own deviation N(0, tau^2), plus its known
noise N(0, sigma_m^2); every coordinate is one more replicate. Noise is fresh in every round and averages out over the
rounds the model remembers (`horizon` H), a client's deviation is the same in every round and does not. If clients want
the same, tau^2 is 0 and this is `inverse-variance`; if they differ, it leans back towards the plain mean instead of
trusting the few loose clients alone.

tau^2 is estimated by restricted maximum likelihood (Patterson and Thompson 1971) from each client's mean residual over
all rounds so far, whose noise is sigma^2 over their number; differences are believed only beyond `caution` standard
errors of the score. DerSimonian and Laird's moment estimator is here too, as `between_dl`: it weighs residuals by
1/sigma^2 once, so with budgets from 0.1 to 10 the tight clients' noise swamps it.

What is remembered has a fixed size: of a residual m = 2,053 sums of coordinates under random signs (`_sketch.py`), and of
clients the 256 that took part last. Signs keep noise what it was, N(0, sigma^2) in every sum, so the model holds for sums as
for coordinates, with m replicates for d: tau^2 has the relative standard error sqrt(2/(m n)), 0.2 % with all 256. Sees: rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tacit import check
from tacit.errors import BadInput
from tacit.rules import Applied, Crowd, Layout, Memory, Rule, weighted_sum
from tacit.rules._sketch import Residuals, sketched
from tacit.rules.inverse_variance import information, variance, variances_of
from tacit.types import Message

HALVINGS = 60  # of the bracket of tau^2


@dataclass(frozen=True)
class random_effects(Rule):
    """The sum of w_m update_m over the sum of w_m, w_m = 1/(sigma_m^2/H + tau^2), shortened as by `inverse_variance`.

    `horizon` is H, the rounds over which noise averages out; `caution` is how many standard errors a difference between
    clients must show before it is believed. A round computes the residuals around the mean by the old tau^2, estimates a new
    one and weighs by that. Memory and time do not grow with the rounds.

    Assumes: sigma_m is stated truthfully, and a client keeps its name from round to round.

    Raises: BadInput for a horizon below 1 or a caution below 0.
    """

    horizon: float = 200.0
    caution: float = 2.0
    sees = "rows"
    needs = ("noise_std",)

    def __post_init__(self) -> None:
        check.at_least(1, **{"aggregate.horizon": self.horizon})
        check.at_least(0, **{"aggregate.caution": self.caution})

    def init(self, layout: Layout, crowd: Crowd) -> Memory:
        """The crowd's variances, and tau^2 = 0: at first clients are believed to want the same."""
        return {**variances_of(crowd), "tau2": torch.zeros((), dtype=torch.float64)}

    def apply(self, memory: Memory, messages: Sequence[Message]) -> Applied:
        """The weighted mean; tau and the step's length are in the info.

        Raises: BadInput without messages, and by name for a client that states no noise.
        """
        if not messages:
            raise BadInput("Expected at least one update.")
        noise = torch.tensor([variance(m) for m in messages], dtype=torch.float64)
        updates = [m.tensors["update"] for m in messages]
        known = Residuals.of(memory).with_round(
            [m.sender for m in messages], sketched(updates), noise, weights=1 / (noise / self.horizon + memory["tau2"])
        )
        tau2 = between(known.variances, gram(known.means), replicates=known.sums.shape[1], caution=self.caution)
        tau2 = tau2 if math.isfinite(tau2) else 0.0  # residuals beyond float32: such a model's loss ends the run
        after = memory | known.memory() | {"tau2": torch.tensor(tau2, dtype=torch.float64)}
        total, weight = weighted_sum(zip((1 / (noise / self.horizon + tau2)).tolist(), updates, strict=True))
        step = information(memory, weight, clients=len(messages), horizon=self.horizon, tau2=tau2)
        return Applied(total * (step / weight), after, {"tau": tau2**0.5, "step": step})


def gram(rows: torch.Tensor) -> torch.Tensor:
    """Inner products of all pairs of rows, in double precision."""
    rows = rows.double()
    return rows @ rows.T


def between(variances: torch.Tensor, products: torch.Tensor, *, replicates: int, caution: float) -> float:
    """The REML estimate of tau^2, or rather the tau^2 at which the score is `caution` standard errors above zero.

    With w_i = 1/(variance_i + tau^2), S_k = sum of w_i^k and r_i the squared distance of client i to the weighted mean per
    coordinate, the score is sum w_i^2 r_i - S_1 + S_2/S_1 and its variance 2 (S_2 - 2 S_3/S_1 + (S_2/S_1)^2)/replicates.
    Where that is not above zero at tau^2 = 0, or there is one client only, the answer is 0; else a root is bracketed and
    halved HALVINGS times.

    Assumes: variances above zero, and `products` the inner products of the clients' vectors over `replicates` coordinates
    each.
    """

    def excess(tau2: float) -> float:
        w = 1 / (variances + tau2)
        s1, s2, s3 = (float((w**k).sum()) for k in (1, 2, 3))
        mean = products @ w / s1
        residuals = (products.diagonal() - 2 * mean + w @ mean / s1) / replicates  # |x_i - mean|^2 per coordinate
        score = float((w**2 * residuals).sum()) - s1 + s2 / s1
        spread = max(s2 - 2 * s3 / s1 + (s2 / s1) ** 2, 0.0) / 2
        return score - caution * 2 * (spread / replicates) ** 0.5

    if len(variances) < 2 or excess(0.0) <= 0:
        return 0.0
    low, high = 0.0, max(float(products.diagonal().max()) / replicates, float(variances.min()))
    while excess(high) > 0:
        high *= 4
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high


def between_dl(variances: torch.Tensor, products: torch.Tensor, *, replicates: int) -> float:
    """DerSimonian and Laird 1986: E[Q] = d ((m - 1) + tau^2 (S1 - S2/S1)), solved for tau^2; not below 0.

    Assumes: at least two clients, variances above zero.
    """
    w = 1 / variances
    s1, s2 = float(w.sum()), float((w**2).sum())
    q = float(w @ products.diagonal()) - float(w @ products @ w) / s1
    return max(0.0, (q / replicates - (len(w) - 1)) / (s1 - s2 / s1))
