"""`random-effects`: the weights that come nearest to FedAvg's mean: noise against the variance between clients. Sees: rows.

The model of meta-analysis: client m's update is the common one, plus its own deviation N(0, tau^2), plus its known noise
N(0, sigma_m^2); every coordinate is one more replicate. What is wanted is the mean by examples, p_m = n_m/n. Weights w that sum to
1 miss it by sum (w_m - p_m) deviation_m, the same in every round, and by sum w_m noise_m, fresh in every round: after H rounds
(`horizon`) the squared error is H^2 tau^2 sum (w_m - p_m)^2 + H sum w_m^2 sigma_m^2, which is least for

    w_m = (p_m tau^2 + c)/(tau^2 + sigma_m^2/H),  c such that they sum to 1.

If clients want the same, tau^2 is 0 and this is `inverse-variance`; if they differ much, it is `mean`. Accuracy is flat in H over a
factor of ten (docs/results.md, "The horizon"). tau^2 is estimated by restricted maximum likelihood (Patterson and Thompson 1971)
from each client's mean residual over all rounds so far; differences are believed only beyond `caution` standard errors of the
score. DerSimonian and Laird's moment estimator is swamped by tight clients' noise (tests/rules). What is remembered has a fixed
size: 2,053 sums of coordinates under random signs, of the 256 clients that took part last, so tau^2 has the relative standard error
sqrt(2/(m n)), 0.2 % with all 256."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch

from tacit import check
from tacit.algorithms import Applied, Layout, Memory, PopulationStatistics, Rule, weighted_sum
from tacit.algorithms.rules.inverse_variance import information, variance, variances_of
from tacit.errors import BadInput
from tacit.types import Message

HALVINGS = 60  # of the bracket of tau^2
SUMS = 2053  # of a sketch
CLIENTS = 256  # whose residuals are remembered
FIELDS = ("names", "sums", "seen", "noise", "last")  # of `Residuals`


@dataclass(frozen=True)
class random_effects(Rule):
    """The sum of w_m update_m, the weights as above, shortened as by `inverse_variance`. A round computes the residuals around
    the mean by the old tau^2, estimates a new one and weighs by that. Memory and time do not grow with the rounds. Assumes:
    sigma_m is stated truthfully, and a client keeps its name from round to round."""

    horizon: float | None = None  # H, the rounds over which noise averages out; default: those that are planned
    caution: float = 2.0  # standard errors that a difference between clients must show
    sees = "rows"
    needs = ("noise_std",)

    def __post_init__(self) -> None:
        if self.horizon is not None:
            check.at_least(1, **{"aggregate.horizon": self.horizon})
        check.at_least(0, **{"aggregate.caution": self.caution})

    def init(self, layout: Layout, statistics: PopulationStatistics) -> Memory:
        horizon = statistics.rounds if self.horizon is None else self.horizon
        numbers = {"tau2": 0.0, "horizon": horizon}
        return variances_of(statistics) | {name: torch.tensor(x, dtype=torch.float64) for name, x in numbers.items()}

    def apply(self, memory: Memory, messages: Sequence[Message]) -> Applied:
        """Raises: BadInput without messages, and by name for a client that states no noise."""
        if not messages:
            raise BadInput("Expected at least one update.")
        noise, horizon = torch.tensor([variance(m) for m in messages], dtype=torch.float64), float(memory["horizon"])
        updates = [m.tensors["update"] for m in messages]
        sketches, weights = sketched(updates), 1 / (noise / horizon + memory["tau2"])
        before = Residuals.of(memory, width=sketches.shape[1], dtype=sketches.dtype)
        known = before.with_round([m.sender for m in messages], sketches, noise, weights=weights)
        tau2 = between(known.variances, gram(known.means), replicates=known.sums.shape[1], caution=self.caution)
        tau2 = tau2 if math.isfinite(tau2) else 0.0  # residuals beyond float32: such a model's loss ends the run
        after = memory | known.memory() | {"tau2": torch.tensor(tau2, dtype=torch.float64)}
        weight = float((1 / (noise / horizon + tau2)).sum())
        step = information(memory, weight, clients=len(messages), horizon=horizon, tau2=tau2)
        examples = torch.tensor([float(m.facts.get("examples", 1)) for m in messages], dtype=torch.float64)
        total, _ = weighted_sum(zip((step * nearest(noise / horizon, tau2, examples)).tolist(), updates, strict=True))
        return Applied(total, after, {"tau": tau2**0.5, "step": step})


def nearest(noise: torch.Tensor, tau2: float, examples: torch.Tensor) -> torch.Tensor:
    """The weights, summing to 1 and none negative, of the weighted mean that is nearest to the mean by examples. Without noise
    they are the examples' shares, without differences the inverse variances'.

    >>> noise, examples = torch.tensor([1.0, 1.0, 4.0]), torch.tensor([1.0, 2.0, 1.0])
    >>> nearest(noise, 0.0, examples).tolist(), nearest(noise, 1e9, examples).round(decimals=3).tolist()
    ([0.4444444477558136, 0.4444444477558136, 0.1111111119389534], [0.25, 0.5, 0.25])
    """
    shares = examples / examples.sum() if float(examples.sum()) > 0 else torch.full_like(examples, 1 / len(examples))
    trust = 1 / (noise + tau2)
    weights = (shares * tau2 + (1 - tau2 * float(shares @ trust)) / trust.sum()) * trust
    return weights.clamp(min=0.0)  # of a client without examples rounding may leave less


def gram(rows: torch.Tensor) -> torch.Tensor:
    rows = rows.double()
    return rows @ rows.T


def between(variances: torch.Tensor, products: torch.Tensor, *, replicates: int, caution: float) -> float:
    """The REML estimate of tau^2, or rather the tau^2 at which the score is `caution` standard errors above zero. With w_i =
    1/(variance_i + tau^2), S_k = sum of w_i^k and r_i the squared distance of client i to the weighted mean per coordinate, the
    score is sum w_i^2 r_i - S_1 + S_2/S_1 and its variance 2 (S_2 - 2 S_3/S_1 + (S_2/S_1)^2)/replicates. Where that is not
    above zero at tau^2 = 0, or there is one client only, it is 0. Assumes: variances above zero, and `products` the inner
    products of vectors of `replicates` coordinates."""

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


# Vectors in a few sums. Coordinate j goes, times a sign s_j, into sum j mod m, divided by the root of how many it holds (Charikar,
# Chen, Farach-Colton 2002, with buckets in turn; m is a prime, so that no layer's width falls into step with it). Noise
# N(0, sigma^2 I) stays N(0, sigma^2 I); inner products are kept on average, with a relative error of sqrt(2/m).


def sketched(vectors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sums of every vector, (vector, sums), on the CPU; vectors that are no longer than a sketch are kept as they are."""
    size = vectors[0].numel()
    if size <= SUMS:
        return torch.stack(list(vectors)).cpu()
    signs, divisors = _signs(size, vectors[0].device)
    return torch.stack([_folded(vector * signs) for vector in vectors]).div_(divisors).cpu()


def _folded(vector: torch.Tensor) -> torch.Tensor:
    whole = vector.numel() // SUMS * SUMS
    sums = vector[:whole].view(-1, SUMS).sum(0)
    sums[: vector.numel() - whole] += vector[whole:]
    return sums


@lru_cache(maxsize=4)
def _signs(size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    # the same in every process; and the root of how many coordinates are in each sum
    drawn = torch.randint(0, 2, (size,), generator=torch.Generator().manual_seed(0), dtype=torch.int8)
    return (2.0 * drawn - 1).to(device), _folded(torch.ones(size)).sqrt().to(device)


@dataclass(frozen=True, eq=False)
class Residuals:
    """Of each remembered client: the sum of its residuals, how many there were, the variance of their noise, and its last
    round. Of a fixed size: whoever took part longest ago makes room for somebody new."""

    names: torch.Tensor  # a hash of each
    sums: torch.Tensor = field(repr=False)
    seen: torch.Tensor
    noise: torch.Tensor
    last: torch.Tensor

    @classmethod
    def of(cls, memory: dict[str, torch.Tensor], *, width: int, dtype: torch.dtype) -> "Residuals":
        if "residuals.names" in memory:
            return cls(*(memory[f"residuals.{name}"] for name in FIELDS))
        whole, number = torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.float64)
        return cls(whole, torch.zeros(0, width, dtype=dtype), number, number, whole)

    def memory(self) -> dict[str, torch.Tensor]:
        return {f"residuals.{name}": getattr(self, name) for name in FIELDS}

    @property
    def means(self) -> torch.Tensor:
        return self.sums / self.seen[:, None].to(self.sums.dtype)

    @property
    def variances(self) -> torch.Tensor:
        return self.noise / self.seen**2

    def with_round(
        self, senders: Sequence[str], sketches: torch.Tensor, noise: torch.Tensor, *, weights: torch.Tensor
    ) -> "Residuals":
        """These and a round's residuals around its weighted mean."""
        mean = (weights @ sketches.double() / weights.sum()).to(sketches.dtype)
        hashes = [hashlib.blake2b(sender.encode(), digest_size=8).digest() for sender in senders]
        ids = [int.from_bytes(digest, "big", signed=True) for digest in hashes]
        known = {name: k for k, name in enumerate(self.names.tolist())}
        here = {known[name] for name in ids if name in known}
        oldest = [place for place in self.last.argsort(stable=True).tolist() if place not in here]
        free = [
            *range(len(known), CLIENTS),
            *oldest,
        ]  # while there is room, then in the places of who took part longest ago
        places = known | dict(zip((name for name in ids if name not in known), free, strict=False))
        grown = max(places.values(), default=-1) + 1 - len(known)
        new = [place for name, place in places.items() if name not in known]
        parts: dict[str, torch.Tensor] = {}
        for name in FIELDS:
            part = getattr(self, name)
            parts[name] = torch.cat([part, part.new_zeros(max(0, grown), *part.shape[1:])])
            parts[name][new] = 0
        round = int(self.last.max()) + 1 if len(self.last) else 0
        for name, sketch, sigma2 in zip(ids, sketches, noise, strict=True):
            if name in places:  # else the cohort is larger than what is remembered
                place = places[name]
                parts["names"][place] = name
                parts["sums"][place] += sketch - mean
                parts["seen"][place] += 1
                parts["noise"][place] += sigma2
                parts["last"][place] = round
        return Residuals(**parts)
