"""`random-effects`: each client weighted by 1/(sigma^2 + tau^2), tau^2 being the variance between clients.

The model of meta-analysis: client m's update is the common one, plus its own deviation N(0, tau^2), plus its known
noise N(0, sigma_m^2); every coordinate is one more replicate. If clients want the same, tau^2 is 0 and this is
`inverse-variance`; if they differ, it leans back towards the plain mean instead of trusting the few loose clients
alone.

tau^2 is estimated by restricted maximum likelihood (Patterson and Thompson 1971). DerSimonian and Laird's moment
estimator is here too, as `between_dl`: it weighs residuals by 1/sigma^2 once, so with budgets from 0.1 to 10 the tight
clients' noise swamps it. Differences between clients are believed only beyond `caution` standard errors of the score.
Sees: rows.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from tacit.errors import BadInput
from tacit.rules import Applied, Crowd, Layout, Memory, Rule, weighted_sum
from tacit.rules.inverse_variance import information, variance
from tacit.types import Message

HALVINGS = 60  # of the bracket of tau^2


@dataclass(frozen=True)
class random_effects(Rule):
    """The sum of w_m update_m over the sum of w_m, w_m = 1/(sigma_m^2 + tau^2)."""

    caution: float = 2.0
    sees = "rows"
    needs = ("noise_std",)

    def init(self, layout: Layout, crowd: Crowd) -> Memory:
        return {"variances": torch.as_tensor(crowd.noise_stds, dtype=torch.float64) ** 2}

    def apply(self, memory: Memory, messages: Iterable[Message]) -> Applied:
        rows = list(messages)
        if not rows:
            raise BadInput("Expected at least one update.")
        variances = torch.tensor([variance(m) for m in rows], dtype=torch.float64)
        updates = [m.tensors["update"] for m in rows]
        tau2 = between(variances, gram(updates), replicates=updates[0].numel(), caution=self.caution)
        weights = (1 / (variances + tau2)).tolist()
        total, weight = weighted_sum(zip(weights, updates, strict=True))
        step = information(memory["variances"], weights, tau2=tau2)
        return Applied(total * (step / weight), memory, {"tau": tau2**0.5, "step": step})


def gram(updates: list[torch.Tensor]) -> torch.Tensor:
    """Inner products of all pairs, in double precision."""
    rows = torch.stack(updates).double()
    return (rows @ rows.T).cpu()


def between(variances: torch.Tensor, products: torch.Tensor, *, replicates: int, caution: float) -> float:
    """The REML estimate of tau^2, or rather the tau^2 at which the score is `caution` standard errors above zero."""

    def excess(tau2: float) -> float:
        w = 1 / (variances + tau2)
        s1, s2, s3 = (float((w**k).sum()) for k in (1, 2, 3))
        mean = products @ w / s1
        residuals = (products.diagonal() - 2 * mean + w @ mean / s1) / replicates  # |x_i - mean|^2 per coordinate
        score = float((w**2 * residuals).sum()) - s1 + s2 / s1
        information = max(s2 - 2 * s3 / s1 + (s2 / s1) ** 2, 0.0) / 2
        return score - caution * 2 * (information / replicates) ** 0.5

    if len(variances) < 2 or excess(0.0) <= 0:
        return 0.0
    low, high = 0.0, float(products.diagonal().max()) / replicates
    while excess(high) > 0:
        high *= 4
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high


def between_dl(variances: torch.Tensor, products: torch.Tensor, *, replicates: int) -> float:
    """DerSimonian and Laird 1986: E[Q] = d ((m - 1) + tau^2 (S1 - S2/S1)), solved for tau^2; not below 0."""
    w = 1 / variances
    s1, s2 = float(w.sum()), float((w**2).sum())
    q = float(w @ products.diagonal()) - float(w @ products @ w) / s1
    return max(0.0, (q / replicates - (len(w) - 1)) / (s1 - s2 / s1))
