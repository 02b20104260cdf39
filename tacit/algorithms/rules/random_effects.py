"""`random-effects`: the weights that come nearest to FedAvg's mean: noise against the variance between clients.

The model of meta-analysis: client m's update is the common one, plus its own deviation N(0, tau^2), plus its known
noise N(0, sigma_m^2); every coordinate is one more replicate. What is wanted is the mean by examples, p_m = n_m/n. Weights
w that sum to 1 miss it by sum (w_m - p_m) deviation_m, the same in every round, and by sum w_m noise_m, fresh in every
round: after H rounds the squared error is H^2 tau^2 sum (w_m - p_m)^2 + H sum w_m^2 sigma_m^2, which is least for

    w_m = (p_m tau^2 + c)/(tau^2 + sigma_m^2/H),  c such that they sum to 1.

If clients want the same, tau^2 is 0 and this is `inverse-variance`; if they differ much, it is `mean`. H (`horizon`) is how
often a client is expected to take part: T rounds, times the cohort's share of all. Where the result is a running mean of
models, a round counts as far as it is in it (tacit/training/optimizer.py). A model that forgets its early rounds has a
shorter one, and where clients differ in the few directions that matter most, a longer one is better; accuracy is flat in
it over a factor of ten (docs/results.md, "The horizon").

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
from tacit.algorithms.rules import Applied, Crowd, Layout, Memory, Rule, weighted_sum
from tacit.algorithms.rules._sketch import Residuals, sketched
from tacit.algorithms.rules.inverse_variance import information, variance, variances_of
from tacit.errors import BadInput
from tacit.types import Message

HALVINGS = 60  # of the bracket of tau^2


@dataclass(frozen=True)
class random_effects(Rule):
    """The sum of w_m update_m, the weights as above, shortened as by `inverse_variance`.

    `horizon` is H, the rounds over which noise averages out, by default those that are planned; `caution` is how many
    standard errors a difference between clients must show before it is believed. A round computes the residuals around the
    mean by the old tau^2, estimates a new one and weighs by that. Memory and time do not grow with the rounds.

    Assumes: sigma_m is stated truthfully, and a client keeps its name from round to round.

    Raises: BadInput for a horizon below 1 or a caution below 0.
    """

    horizon: float | None = None  # H, the rounds over which noise averages out; nothing: those that are planned
    caution: float = 2.0  # standard errors that a difference between clients must show
    sees = "rows"
    needs = ("noise_std",)

    def __post_init__(self) -> None:
        if self.horizon is not None:
            check.at_least(1, **{"aggregate.horizon": self.horizon})
        check.at_least(0, **{"aggregate.caution": self.caution})

    def init(self, layout: Layout, crowd: Crowd) -> Memory:
        """The crowd's variances, the horizon, and tau^2 = 0: at first clients are believed to want the same."""
        horizon = crowd.rounds if self.horizon is None else self.horizon
        numbers = {"tau2": 0.0, "horizon": horizon}
        return variances_of(crowd) | {name: torch.tensor(x, dtype=torch.float64) for name, x in numbers.items()}

    def apply(self, memory: Memory, messages: Sequence[Message]) -> Applied:
        """The weighted mean; tau and the step's length are in the info.

        Raises: BadInput without messages, and by name for a client that states no noise.
        """
        if not messages:
            raise BadInput("Expected at least one update.")
        noise, horizon = torch.tensor([variance(m) for m in messages], dtype=torch.float64), float(memory["horizon"])
        updates = [m.tensors["update"] for m in messages]
        known = Residuals.of(memory).with_round(
            [m.sender for m in messages], sketched(updates), noise, weights=1 / (noise / horizon + memory["tau2"])
        )
        tau2 = between(known.variances, gram(known.means), replicates=known.sums.shape[1], caution=self.caution)
        tau2 = tau2 if math.isfinite(tau2) else 0.0  # residuals beyond float32: such a model's loss ends the run
        after = memory | known.memory() | {"tau2": torch.tensor(tau2, dtype=torch.float64)}
        weight = float((1 / (noise / horizon + tau2)).sum())
        step = information(memory, weight, clients=len(messages), horizon=horizon, tau2=tau2)
        examples = torch.tensor([float(m.facts.get("examples", 1)) for m in messages], dtype=torch.float64)
        total, _ = weighted_sum(zip((step * nearest(noise / horizon, tau2, examples)).tolist(), updates, strict=True))
        return Applied(total, after, {"tau": tau2**0.5, "step": step})


def nearest(noise: torch.Tensor, tau2: float, examples: torch.Tensor) -> torch.Tensor:
    """The weights, summing to 1, of the weighted mean that is nearest to the mean by examples.

    Guarantee: none is negative. Without noise they are the examples' shares, without differences the inverse variances'.

    >>> noise, examples = torch.tensor([1.0, 1.0, 4.0]), torch.tensor([1.0, 2.0, 1.0])
    >>> nearest(noise, 0.0, examples).tolist(), nearest(noise, 1e9, examples).round(decimals=3).tolist()
    ([0.4444444477558136, 0.4444444477558136, 0.1111111119389534], [0.25, 0.5, 0.25])
    """
    shares = examples / examples.sum() if float(examples.sum()) > 0 else torch.full_like(examples, 1 / len(examples))
    trust = 1 / (noise + tau2)
    weights = (shares * tau2 + (1 - tau2 * float(shares @ trust)) / trust.sum()) * trust
    return weights.clamp(min=0.0)  # of a client without examples rounding may leave less


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
