"""`inversion`: the records themselves, from one client's update, by an imprint (Fowl et al. 2022, arXiv:2110.13057).
The client takes one step on all of its records in a run of one round: the least noise that epsilon allows. The attacker knows
the noise's deviation, and computes the posterior mean under a Gaussian prior from public rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from rich.progress import Progress
from scipy.special import logsumexp
from torch import nn

from tacit import check
from tacit.data.dataset import Dataset
from tacit.engine import trainers
from tacit.engine.assemble import Parts, build
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.lab.attacks import Attack, Estimate, Finding, Line, Place, Plot
from tacit.lab.attacks import _roc as roc
from tacit.lab.attacks._runs import TRUSTED, clients_of, pooled, whole, whole_update
from tacit.lab.audit import evidence
from tacit.parts import models
from tacit.privacy.plan import kind_of
from tacit.training.flat import blocks
from tacit.wire import pack, unpack

SUMMED = (
    "Under noise once the server sees the sum of all clients' gradients: this is what is left to somebody who knows every record"
    " of the others and takes them off it."
)
SOME = "tacit.lab.attacks.inversion:some"
FACTORY = "tacit.lab.attacks.inversion:imprinted"
RECOVERED = 20.0  # dB: errors of a tenth of the range, by root mean square
MOST_DECIBEL = 100.0  # what float32 leaves of an exact copy
BINS = 4  # for each record: then about three in four are alone in theirs
SCALE = 1e-5  # of the measurement in the weights: what the layer adds stays small, and float32 has room for updates
GAIN = 100.0  # how strongly a record's loss pulls at its bin, so that clipping leaves little room for other layers
SEED = 5  # of h: the attacker's own
MOST_PUBLIC = 5000
STRENGTHS = 41  # values of a that are tried
REACH = 4.0  # standard deviations around what the bias shows
RIDGE = 1e-4  # of the mean variance: directions in which no public row differs


@dataclass(frozen=True)
class some:
    """The first `records` rows of client number `client` alone, among the clients that the [data] table `of` describes."""

    of: dict[str, Any]
    client: int
    records: int

    def load(self, *, seed: int, progress: Progress | None = None) -> Dataset:
        dataset, population = clients_of(self.of, seed, progress)
        own = population[self.client]
        rows = {"x": own.x[: self.records], "y": own.y[: self.records]}
        return replace(dataset, **rows, client=np.zeros(len(rows["y"]), int), client_names=(own.id,), mapped=False)


@dataclass(frozen=True)
class inversion(Attack):
    """Of client number `client`, `records` records are attacked, at each of the `levels` of epsilon; inf is no privacy."""

    records: int = 32  # that are attacked
    client: int = 0  # whose, by number
    levels: list[float] = field(default_factory=lambda: [math.inf, 10.0, 1.0])  # epsilons to compare; inf: no noise

    def __post_init__(self) -> None:
        check.at_least(0, **{"with.client": self.client})
        check.at_least(1, **{"with.records": self.records})
        for level in self.levels:
            if level != math.inf:
                check.positive(**{"with.levels": level})
        if not self.levels or len(set(self.levels)) < len(self.levels):
            raise BadInput("Expected with.levels to be epsilons, each once, as in --with levels=[inf,10,1].")

    def perform(self, experiment: Experiment, place: Place) -> Finding:
        """Has the client train once for each level and inverts what it sends. Raises BadInput where it has too few records."""
        base = build(whole(experiment))
        public, _ = base.test_rows
        if not len(public):
            raise BadInput("The attacker knows what rows are like from public ones, and this data has no test rows.")
        if not public.is_floating_point():
            raise BadInput("Rows of tokens are not numbers that a gradient leads to: inversion needs features.")
        if self.client >= len(base.population):
            raise BadInput(f"Expected with.client < {len(base.population)} clients, got {self.client}.")
        held = int(base.population.sizes[self.client])
        if held < self.records:
            raise BadInput(
                f"Client {self.client} has {held} records, fewer than {self.records}: set --with records={held}."
            )
        edges, prior, candidates = edges_of(public, BINS * self.records), Prior.of(public), {}
        for level in self.levels:
            name = "ε = ∞" if level == math.inf else f"ε = {level:g}"
            place.tell(f"the client trains at {name}")
            parts = build(self._imprinted(experiment, level, edges))
            candidates[name] = self._inverted(parts, prior)
        records = base.population[self.client].x[: self.records].flatten(1).double().cpu().numpy()
        return self._finding(experiment, base, records, candidates)

    def _imprinted(self, experiment: Experiment, level: float, edges: list[float]) -> Experiment:
        values = pooled(experiment, SOME, client=self.client, records=self.records).model_dump(exclude_none=True)
        same = {key: getattr(experiment.privacy, key) for key in ("delta", "clip")}
        base = {"base": experiment.model.name, "options": experiment.model.options()}
        rate = experiment.train.learning_rate
        return Experiment(
            **{key: values[key] for key in ("name", "data", "task")},
            model={"name": FACTORY, "edges": edges} | base,
            privacy={"kind": "none"} if level == math.inf else {"kind": "local", "epsilon": level} | same,
            train={"rounds": 1, "local_steps": 1, "sampling_rate": 1.0, "learning_rate": rate},
            run={"seed": experiment.run.seed, "workers": 1},  # one step of one client: any CPU has it at once
        )

    def _inverted(self, parts: Parts, prior: "Prior") -> np.ndarray:
        """What is reconstructed from the client's update: candidates (row, number)."""
        broadcast = parts.algorithm.broadcast(parts.algorithm.init(parts.params), [parts.population[0]], round=0)
        ((raw, _),) = trainers.alone(parts)(pack(broadcast), 0, [0])
        message = unpack(raw)
        update, noise_std = whole_update(message, broadcast), float(message.facts.get("noise_std", 0.0))
        if update is None:
            raise BadInput("The client sends no whole update here, so that there is nothing to invert.")
        weights, biases = bins_of(parts.model, update)
        if not noise_std:
            return ratios(weights, biases)
        most = parts.experiment.train.learning_rate * (parts.plan.training_clip or 1.0) / self.records
        filled = 1 - math.exp(-1 / BINS)
        means, odds = posterior_means(prior, weights, biases, noise_std=noise_std, largest=most, filled=filled)
        return means[np.argsort(-odds)[: self.records]]

    def _finding(
        self, experiment: Experiment, base: Parts, records: np.ndarray, candidates: dict[str, np.ndarray]
    ) -> Finding:
        public = base.test_rows[0].flatten(1).double().cpu().numpy()
        low, high = float(public.min()), float(public.max())
        estimates, pictures, lines = list[Estimate](), {"records": records}, []
        for name, rows in candidates.items():
            decibel, nearest = best(records, rows, span=high - low)
            decoys, _ = best(public[-len(records) :], rows, span=high - low)
            taken = float((decoys >= RECOVERED).sum())
            estimates += _estimates(decibel, of=name)
            estimates.append(Estimate(f"public rows taken for its own, of {len(decoys)}", taken, of=name))
            pictures[name] = rows[nearest] if len(rows) else np.full_like(records, low)
            lines.append(Line(name, tuple(range(1, len(decibel) + 1)), tuple(np.sort(decibel)[::-1].tolist())))
        guess, _ = best(records, public.mean(0)[None], span=high - low)
        estimates.append(Estimate("PSNR (dB)", float(guess.mean()), of="the mean of public rows"))
        notes = ("Of each record the nearest of all reconstructions counts, which an attacker would not know.",)
        if experiment.privacy.sums_records:
            notes += (SUMMED,)
        if kind_of(experiment).plans.traits.trusts_server:
            notes += (TRUSTED,)
        shape, strip = tuple(base.dataset.x.shape[1:]), None
        if len(shape) == 3 and shape[0] in (1, 3):  # pictures: colours, height, width
            strip = roc.strip_of(pictures, shape, low=low, high=high)
        counted = f"{self.records} record{'s' * (self.records != 1)}"
        attacked = f"{counted} of client {self.client}, from its update after one step, by an imprint"
        plot = Plot("psnr", "How near each record was come to", "records, the nearest first", "PSNR (dB)", tuple(lines))
        return Finding("inversion", experiment.name, attacked, tuple(estimates), (plot,), notes, strip=strip)


def best(records: np.ndarray, candidates: np.ndarray, *, span: float) -> tuple[np.ndarray, np.ndarray]:
    """The PSNR of the nearest candidate to each record, and which one that is."""
    if not len(candidates):
        return np.zeros(len(records)), np.zeros(len(records), int)
    errors = np.stack([((candidates - record) ** 2).mean(1) for record in records])
    nearest = errors.argmin(1)
    least = np.maximum(errors[np.arange(len(records)), nearest] / span**2, 10 ** (-MOST_DECIBEL / 10))
    return -10 * np.log10(least), nearest


def _estimates(decibel: np.ndarray, *, of: str) -> list[Estimate]:
    n, hits, mean = len(decibel), int((decibel >= RECOVERED).sum()), float(decibel.mean())
    low, high = evidence.rate(hits, n).limits(roc.TAIL)
    half = 1.96 * float(decibel.std(ddof=1)) / math.sqrt(n) if n > 1 else None
    limits = (None, None) if half is None else (mean - half, min(mean + half, MOST_DECIBEL))
    recovered = Estimate(f"recovered, of {n}", float(hits), low * n, high * n, of)
    return [recovered, Estimate("PSNR (dB)", mean, *limits, of)]


# The imprint (Fowl et al., the sparse variant). In front of the model that was agreed upon stands a layer of `bins`. All of them
# measure the same number h.x of a record, and bin i lets a gradient through only for records between its edges. So its weights'
# gradient is the sum of d(x) x over them, and its bias' that of d(x): where a bin has one record, their ratio is that record. What
# the layer adds to its input is tiny, so that training goes on as before.


class Imprint(nn.Module):
    """x + V g(h.x - c): each of the bins passes between its edges, and is level outside."""

    def __init__(self, shape: tuple[int, ...], edges: Sequence[float]):
        super().__init__()
        size, cuts = math.prod(shape), torch.tensor(edges)
        self.first, self.second = nn.Linear(size, len(cuts) - 1), nn.Linear(len(cuts) - 1, size, bias=False)
        self.register_buffer("top", SCALE * cuts.diff())
        signs = torch.randn(size, generator=torch.Generator().manual_seed(SEED + 1)).sign()
        with torch.no_grad():
            self.first.weight.copy_(SCALE * measurement(size).expand(len(cuts) - 1, size))
            self.first.bias.copy_(-SCALE * cuts[:-1])
            self.second.weight.copy_(GAIN * signs[:, None].expand(size, len(cuts) - 1))

    top: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = torch.minimum(self.first(x.flatten(1)).clamp(min=0), self.top)
        return x + self.second(inside).view_as(x)


def imprinted(
    *, input_shape: tuple[int, ...], classes: int, base: str, edges: list[float], options: dict[str, Any] | None = None
) -> nn.Module:
    facts: dict[str, Any] = {"input_shape": input_shape, "classes": classes, "seed": SEED}
    return nn.Sequential(Imprint(input_shape, edges), models.build(base, **facts, options=options))


def measurement(size: int) -> torch.Tensor:
    """h: a direction of norm 1."""
    h = torch.randn(size, generator=torch.Generator().manual_seed(SEED))
    return h / h.norm()


def edges_of(public: torch.Tensor, bins: int) -> list[float]:
    """Edges between which public rows fall equally often; beyond the outermost nothing is let through."""
    measured = (public.flatten(1).double().cpu() @ measurement(public[0].numel()).double()).numpy()
    cuts = np.quantile(measured, np.linspace(0, 1, bins + 1))
    width = max(float(cuts[-1] - cuts[0]), 1e-6)
    cuts = np.maximum.accumulate(cuts + 1e-9 * width * np.arange(bins + 1))  # equal rows leave no empty bin
    cuts[0] -= width
    cuts[-1] += width
    return cuts.tolist()


def bins_of(model: nn.Module, update: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """What every bin's weights and bias have moved by, the sign turned: a x and a, each with the update's noise."""
    moved = {block.name: block.of(update).double().numpy() for block in blocks(model)}
    return -moved["0.first.weight"], -moved["0.first.bias"]


def ratios(weights: np.ndarray, biases: np.ndarray) -> np.ndarray:
    """The record of each bin that has any, (bin, number): exact where there is no noise and the bin has one."""
    used = np.abs(biases) > 0
    return weights[used] / biases[used, None]


@dataclass(frozen=True, eq=False)
class Prior:
    """N(m, S) by the axes of S: `axes` (number, axis) and their variances."""

    mean: np.ndarray = field(repr=False)
    axes: np.ndarray = field(repr=False)
    variances: np.ndarray = field(repr=False)

    @classmethod
    def of(cls, public: torch.Tensor) -> "Prior":
        """Mean and covariance of public rows."""
        rows = public[:MOST_PUBLIC].flatten(1).double().cpu().numpy()
        mean = rows.mean(0)
        variances, axes = np.linalg.eigh((rows - mean).T @ (rows - mean) / max(1, len(rows) - 1))
        return cls(mean, axes, np.maximum(variances, 0) + RIDGE * max(float(variances.mean()), 1e-12))


def posterior_means(
    prior: Prior, weights: np.ndarray, biases: np.ndarray, *, noise_std: float, largest: float, filled: float
) -> tuple[np.ndarray, np.ndarray]:
    """E[x] of every bin, (bin, number), and the log odds that it holds a record at all.
    `largest` bounds |a|, as the clip does; `filled` is the share of bins that hold a record before anything is seen."""
    s, y, m = noise_std, weights @ prior.axes, prior.mean @ prior.axes
    low, high = (np.clip(biases + away * s, -largest, largest) for away in (-REACH, REACH))  # u says so much about a
    fits, means = np.empty((STRENGTHS, len(y))), np.empty((STRENGTHS, *y.shape))
    for row, share in enumerate(np.linspace(0, 1, STRENGTHS)):
        a = (low + share * (high - low))[:, None]
        variances = a**2 * prior.variances + s**2
        away = y - a * m
        fits[row] = -0.5 * (away**2 / variances + np.log(variances)).sum(1) - 0.5 * ((biases - a[:, 0]) / s) ** 2
        means[row] = m + a * prior.variances / variances * away
    empty = -0.5 * (y**2 / s**2 + np.log(s**2)).sum(1) - 0.5 * (biases / s) ** 2
    any_strength = logsumexp(fits, axis=0)
    before = np.log(np.maximum(high - low, 1e-30) / (2 * largest * STRENGTHS))  # a is anything up to the clip
    odds = any_strength + before - empty + np.log(filled / (1 - filled))
    mean = np.einsum("ab,abj->bj", np.exp(fits - any_strength), means)
    return mean @ prior.axes.T, odds
