"""`inversion`: the records themselves, from the update of one client. By an imprint, Fowl et al. 2022 (arXiv:2110.13057), a server
that sends a crafted model; or by optimisation, Geiping et al. 2020 (arXiv:2003.14053), one that only looks.

The client takes one step on all of its records in a run of one round, so that all of epsilon is spent on that one noise: the least
noise that it can have. Update, clip and noise are the package's own. Under noise the attacker knows its deviation, and looks for
the posterior mean (imprint) or the most probable rows (optimisation) under a Gaussian prior from public rows."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.special import logsumexp
from torch import nn
from torch.func import functional_call

from tacit import check
from tacit.engine import trainers
from tacit.engine.assemble import Parts, build
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.lab.attacks import Attack, Estimate, Finding, Line, Place, Plot
from tacit.lab.attacks import _finding as roc
from tacit.lab.attacks._shadows import SOME, pooled, whole, whole_update
from tacit.parts import models
from tacit.training.flat import blocks, trainable
from tacit.wire import pack, unpack

RECOVERED = 20.0  # dB: errors of a tenth of the range, by root mean square
MOST_DECIBEL = 100.0  # what float32 leaves of an exact copy
RECORDS = {"imprint": 32, "optimise": 1}
BINS = 4  # for each record: then about three in four are alone in theirs
FACTORY = "tacit.lab.attacks.inversion:imprinted"
SCALE = 1e-5  # of the measurement in the weights: what the layer adds stays small, and float32 has room for updates
GAIN = 100.0  # how strongly a record's loss pulls at its bin, so that clipping leaves little room for other layers
SEED = 5  # of h: the attacker's own
MOST_PUBLIC = 5000
STRENGTHS = 41  # values of a that are tried
REACH = 4.0  # standard deviations around what the bias shows
RIDGE = 1e-4  # of the mean variance: directions in which no public row differs
STEP = 0.05  # of Adam, in units of the data's range
VARIATION = 1e-3  # the weight of total variation


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


@dataclass(frozen=True)
class inversion(Attack):
    """`method` is "imprint" or "optimise"; of client number `client`, `records` records are attacked (32, or 1 by optimisation), at
    each of the `levels` of epsilon; inf is no privacy. An optimisation takes `steps` steps."""

    method: str = "imprint"  # imprint or optimise
    records: int | None = None  # that are attacked; nothing: 32, or 1 by optimising
    client: int = 0  # whose, by number
    levels: list[float] = field(
        default_factory=lambda: [math.inf, 10.0, 1.0]
    )  # the epsilons that are compared; inf: no noise
    steps: int = 400  # of the search

    def __post_init__(self) -> None:
        check.one_of(RECORDS, **{"with.method": self.method})
        check.at_least(0, **{"with.client": self.client})
        check.at_least(1, **{"with.steps": self.steps, "with.records": self.count})
        for level in self.levels:
            if level != math.inf:
                check.positive(**{"with.levels": level})
        if not self.levels or len(set(self.levels)) < len(self.levels):
            raise BadInput("Expected with.levels to be epsilons, each once, as in --with levels=[inf,10,1].")

    @property
    def count(self) -> int:
        return RECORDS[self.method] if self.records is None else self.records

    def perform(self, experiment: Experiment, place: Place) -> Finding:
        """Has the client train once for each level and inverts what it sends. Raises BadInput where it has too few records."""
        count = self.count
        base = build(whole(experiment))
        public, _ = base.test_rows
        if not len(public):
            raise BadInput("The attacker knows what rows are like from public ones, and this data has no test rows.")
        if not public.is_floating_point():
            raise BadInput("Rows of tokens are not numbers that a gradient leads to: inversion needs features.")
        if self.client >= len(base.population):
            raise BadInput(f"Expected with.client < {len(base.population)} clients, got {self.client}.")
        held = int(base.population.sizes[self.client])
        if held < count:
            raise BadInput(f"Client {self.client} has {held} records, fewer than {count}: set --with records={held}.")
        edges, prior, found = edges_of(public, BINS * count), Prior.of(public), {}
        for level in self.levels:
            place.tell(f"the client trains at {words(level)}")
            parts = build(self._asked(experiment, level, count, edges))
            found[words(level)] = parts, self._inverted(parts, prior, count, seed=experiment.run.seed)
        return self._finding(experiment, base, place, found)

    def _asked(self, experiment: Experiment, level: float, count: int, edges: list[float]) -> Experiment:
        values = pooled(experiment, SOME, client=self.client, records=count).model_dump(exclude_none=True)
        same = {key: getattr(experiment.privacy, key) for key in ("delta", "clip", "accountant")}
        privacy = {"kind": "none"} if level == math.inf else {"kind": "local", "epsilon": level} | same
        train = {"rounds": 1, "local_steps": 1, "sampling_rate": 1.0, "learning_rate": experiment.train.learning_rate}
        changed: dict[str, Any] = {"train": train, "privacy": privacy}
        if self.method == "imprint":
            base = {"base": experiment.model.name, "options": experiment.model.options()}
            changed["model"] = {"name": FACTORY, "edges": edges} | base
        changed["run"] = {"seed": experiment.run.seed, "workers": 1}  # one step of one client: any CPU has it at once
        return Experiment(**{key: values[key] for key in ("name", "data", "model", "task")} | changed)

    def _inverted(self, parts: Parts, prior: Prior, count: int, *, seed: int) -> np.ndarray:
        """What is made of the client's update: candidates (row, number)."""
        told = parts.algorithm.broadcast(parts.algorithm.init(parts.params), [parts.population[0]], round=0)
        ((raw, _),) = trainers.alone(parts)(pack(told), 0, [0])
        message = unpack(raw)
        update, noise_std = whole_update(message, told), float(message.facts.get("noise_std", 0.0))
        if update is None:
            raise BadInput("The client sends no whole update here, so that there is nothing to invert.")
        rate, clip = parts.experiment.train.learning_rate, parts.plan.training_clip
        if self.method == "optimise":
            sent = Sent(update, noise_std, rate, clip)
            return inverted(parts, sent, parts.population.y, prior, steps=self.steps, seed=seed)
        imprints = Imprints.of(parts.model, update, noise_std)
        if not noise_std:
            return imprints.ratios()
        filled = 1 - math.exp(-1 / BINS)
        limits = {"noise_std": noise_std, "largest": rate * (clip or 1.0) / count, "filled": filled}
        means, odds = posterior_means(prior, imprints.weights, imprints.biases, **limits)
        return means[np.argsort(-odds)[:count]]

    def _finding(
        self, experiment: Experiment, base: Parts, place: Place, found: dict[str, tuple[Parts, np.ndarray]]
    ) -> Finding:
        public = base.test_rows[0].flatten(1).double().cpu().numpy()
        low, high = float(public.min()), float(public.max())
        estimates, strips, lines = [], {}, []
        for name, (parts, candidates) in found.items():
            records = parts.population.x.flatten(1).double().cpu().numpy()
            decibel, nearest = best(records, candidates, span=high - low)
            estimates += _estimates(decibel, of=name)
            decoys = best(public[-len(records) :], candidates, span=high - low)[0]
            taken = float((decoys >= RECOVERED).sum())
            estimates.append(Estimate(f"public rows taken for its own, of {len(decoys)}", taken, of=name))
            strips |= {"records": records} if not strips else {}
            strips[name] = candidates[nearest] if len(candidates) else np.full_like(records, low)
            lines.append(Line(name, tuple(range(1, len(decibel) + 1)), tuple(np.sort(decibel)[::-1].tolist())))
        guess = best(next(iter(strips.values())), public.mean(0)[None], span=high - low)[0]
        estimates.append(Estimate("PSNR (dB)", float(guess.mean()), of="the mean of public rows"))
        notes = ["Of each record the nearest of all reconstructions counts, which an attacker would not know."]
        files, shown = (), None
        shape = tuple(base.dataset.x.shape[1:])
        if roc.are_pictures(shape):
            files = ("attack-inversion-strip.png",)
            shown = roc.strip_of(strips, shape, low=low, high=high)
            roc.draw_strip(place.folder.parent / files[0], shown)
        else:
            notes.append(f"Rows of shape {list(shape)} are no pictures, so there is no strip.")
        records = len(next(iter(strips.values())))
        counted = f"{records} record{'s' * (records != 1)}"
        attacked = f"{counted} of client {self.client}, from its update after one step, by {self.method}"
        plot = Plot("psnr", "How near each record was come to", "records, the nearest first", "PSNR (dB)", tuple(lines))
        return Finding("inversion", experiment.name, attacked, tuple(estimates), (plot,), tuple(notes), files, shown)


def words(level: float) -> str:
    """A level of privacy in words.

    >>> words(math.inf), words(10.0)
    ('ε = ∞', 'ε = 10')
    """
    return "ε = ∞" if level == math.inf else f"ε = {level:g}"


def best(records: np.ndarray, candidates: np.ndarray, *, span: float) -> tuple[np.ndarray, np.ndarray]:
    """The PSNR of the nearest candidate to each record, and which one that is.

    >>> best(np.zeros((1, 4)), np.array([[1.0] * 4, [0.1] * 4]), span=1.0)[1]
    array([1])
    """
    if not len(candidates):
        return np.zeros(len(records)), np.zeros(len(records), int)
    errors = np.stack([((candidates - record) ** 2).mean(1) for record in records])
    nearest = errors.argmin(1)
    least = np.maximum(errors[np.arange(len(records)), nearest] / span**2, 10 ** (-MOST_DECIBEL / 10))
    return -10 * np.log10(least), nearest


def _estimates(decibel: np.ndarray, *, of: str) -> list[Estimate]:
    n, hits = len(decibel), int((decibel >= RECOVERED).sum())
    low, high = roc.clopper_pearson(hits, n)
    half = 1.96 * float(decibel.std(ddof=1)) / math.sqrt(n) if n > 1 else None
    mean = float(decibel.mean())
    limits = (None, None) if half is None else (mean - half, min(mean + half, MOST_DECIBEL))
    return [
        Estimate(f"recovered, of {n}", float(hits), low * n, high * n, of),
        Estimate("PSNR (dB)", mean, *limits, of),
    ]


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


@dataclass(frozen=True, eq=False)
class Imprints:
    """What a bin's weights and bias have moved by, the sign turned: a x and a, each with noise of deviation `noise_std`."""

    weights: np.ndarray = field(repr=False)
    biases: np.ndarray = field(repr=False)
    noise_std: float

    @classmethod
    def of(cls, model: nn.Module, update: torch.Tensor, noise_std: float) -> "Imprints":
        """Read off the update of an imprinted model."""
        found = {block.name: block.of(update).double().numpy() for block in blocks(model)}
        return cls(-found["0.first.weight"], -found["0.first.bias"], noise_std)

    def ratios(self) -> np.ndarray:
        """The record of each bin that has any, (bin, number): exact where there is no noise and the bin has one."""
        used = np.abs(self.biases) > 0
        return self.weights[used] / self.biases[used, None]


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
    nothing = -0.5 * (y**2 / s**2 + np.log(s**2)).sum(1) - 0.5 * (biases / s) ** 2
    whole = logsumexp(fits, axis=0)
    before = np.log(np.maximum(high - low, 1e-30) / (2 * largest * STRENGTHS))  # a is anything up to the clip
    odds = whole + before - nothing + np.log(filled / (1 - filled))
    mean = np.einsum("ab,abj->bj", np.exp(fits - whole), means)
    return mean @ prior.axes.T, odds


@dataclass(frozen=True, eq=False)
class Sent:
    """An update that a client sent after one step, the noise on it, and what was agreed upon: rate and clip (None: no clip)."""

    update: torch.Tensor
    noise_std: float
    rate: float
    clip: float | None


def inverted(parts: Parts, sent: Sent, y: torch.Tensor, prior: Prior, *, steps: int, seed: int) -> np.ndarray:
    shape = (len(y), *parts.dataset.x.shape[1:])
    known = parts.dataset.test_x
    low, high = float(known.min()), float(known.max())
    mean = torch.from_numpy(prior.mean).float().view(shape[1:])
    x = mean.expand(shape).clone()
    x += 0.1 * (high - low) * torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    x.requires_grad_()
    judged = _probable(parts, sent, y, prior) if sent.noise_std else _aligned(parts, sent, y)
    optimiser = torch.optim.Adam([x], lr=STEP * (high - low))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        optimiser.zero_grad()
        (x.grad,) = torch.autograd.grad(judged(x), x)
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            x.clamp_(low, high)
    return x.detach().flatten(1).double().numpy()


def _aligned(parts: Parts, sent: Sent, y: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    def judged(x: torch.Tensor) -> torch.Tensor:
        made = _update(parts, sent, x, y)
        cosine = (made * sent.update).sum() / (made.norm() * sent.update.norm()).clamp_min(1e-30)
        return 1 - cosine + VARIATION * variation(x)

    return judged


def _probable(parts: Parts, sent: Sent, y: torch.Tensor, prior: Prior) -> Callable[[torch.Tensor], torch.Tensor]:
    mean, axes, variances = (torch.from_numpy(part).float() for part in (prior.mean, prior.axes, prior.variances))

    def judged(x: torch.Tensor) -> torch.Tensor:
        away = (_update(parts, sent, x, y) - sent.update).square().sum() / (2 * sent.noise_std**2)
        return away + 0.5 * (((x.flatten(1) - mean) @ axes).square() / variances).sum()

    return judged


def _update(parts: Parts, sent: Sent, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """What a client with these rows would send without noise: one step on all of them, each clipped; differentiable."""
    model, layout = parts.model, blocks(parts.model)
    theta = parts.params.detach().clone().requires_grad_()
    weights = {name: block.of(theta) for (name, _), block in zip(trainable(model), layout, strict=True)}
    losses = parts.losses(functional_call(model, weights, (x,)), y)
    if sent.clip is None:
        (total,) = torch.autograd.grad(losses.sum(), theta, create_graph=True)
    else:
        rows = [torch.autograd.grad(loss, theta, create_graph=True)[0] for loss in losses]
        total = sum(g * (sent.clip / g.norm().clamp_min(1e-30)).clamp(max=1.0) for g in rows)
    return -sent.rate / len(y) * torch.as_tensor(total)


def variation(x: torch.Tensor) -> torch.Tensor:
    """The mean difference of neighbouring pixels; of rows that are no pictures, nothing.

    >>> variation(torch.zeros(1, 1, 4, 4)), variation(torch.ones(2, 3))
    (tensor(0.), tensor(0.))
    """
    if x.dim() != 4:
        return torch.zeros(())
    return x.diff(dim=2).abs().mean() + x.diff(dim=3).abs().mean()
