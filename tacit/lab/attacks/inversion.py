"""`inversion`: the records themselves, from the update of one client. By an imprint, Fowl et al. 2022 (arXiv:2110.13057), a server
that sends a crafted model; or by optimisation, Geiping et al. 2020 (arXiv:2003.14053), one that only looks.

The client takes one step on all of its records in a run of one round, so that all of epsilon is spent on that one noise: the least
noise that it can have. Update, clip and noise are the package's own. Under noise the attacker knows its deviation, and looks for
the posterior mean (imprint) or the most probable rows (optimisation) under a Gaussian prior from public rows."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tacit import check
from tacit.engine import trainers
from tacit.engine.assemble import Parts, build
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.lab.attacks import Attack, Estimate, Finding, Line, Place, Plot
from tacit.lab.attacks import _finding as roc
from tacit.lab.attacks import _finding as strip
from tacit.lab.attacks._inversion import FACTORY, Imprints, Prior, Sent, edges_of, inverted, posterior_means
from tacit.lab.attacks._records import SOME, pooled, whole, whole_update
from tacit.wire import pack, unpack

RECOVERED = 20.0  # dB: errors of a tenth of the range, by root mean square
MOST_DECIBEL = 100.0  # what float32 leaves of an exact copy
RECORDS = {"imprint": 32, "optimise": 1}
BINS = 4  # for each record: then about three in four are alone in theirs


@dataclass(frozen=True)
class inversion(Attack):
    """`method` is "imprint" or "optimise"; of client number `client`, `records` records are attacked (32, or 1 by optimisation), at
    each of the `levels` of epsilon; inf is no privacy. An optimisation takes `steps` steps.
    """

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
        check.at_least(
            1,
            **{
                "with.steps": self.steps,
                "with.records": RECORDS[self.method] if self.records is None else self.records,
            },
        )
        for level in self.levels:
            if level != math.inf:
                check.positive(**{"with.levels": level})
        if not self.levels or len(set(self.levels)) < len(self.levels):
            raise BadInput("Expected with.levels to be epsilons, each once, as in --with levels=[inf,10,1].")

    def perform(self, experiment: Experiment, place: Place) -> Finding:
        """Has the client train once for each level and inverts what it sends. Raises BadInput where it has too few records."""
        count = RECORDS[self.method] if self.records is None else self.records
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
        """The experiment with one client, its few records, one step on all of them, and this epsilon."""
        values = pooled(experiment, SOME, client=self.client, records=count).model_dump(exclude_none=True)
        told = experiment.privacy
        local = {
            "kind": "local",
            "epsilon": level,
            "delta": told.delta,
            "clip": told.clip,
            "accountant": told.accountant,
        }
        train = {"rounds": 1, "local_steps": 1, "sampling_rate": 1.0, "learning_rate": experiment.train.learning_rate}
        crafted = {
            "name": FACTORY,
            "base": experiment.model.name,
            "edges": edges,
            "options": experiment.model.options(),
        }
        changed: dict[str, Any] = {"train": train, "privacy": {"kind": "none"} if level == math.inf else local}
        changed |= {"model": crafted} if self.method == "imprint" else {}
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
            estimates.append(
                Estimate(
                    f"public rows taken for its own, of {len(decoys)}", float((decoys >= RECOVERED).sum()), of=name
                )
            )
            strips |= {"records": records} if not strips else {}
            strips[name] = candidates[nearest] if len(candidates) else np.full_like(records, low)
            lines.append(Line(name, tuple(range(1, len(decibel) + 1)), tuple(np.sort(decibel)[::-1].tolist())))
        guess = best(next(iter(strips.values())), public.mean(0)[None], span=high - low)[0]
        estimates.append(Estimate("PSNR (dB)", float(guess.mean()), of="the mean of public rows"))
        notes = ["Of each record the nearest of all reconstructions counts, which an attacker would not know."]
        files, shown = (), None
        shape = tuple(base.dataset.x.shape[1:])
        if strip.are_pictures(shape):
            files = ("attack-inversion-strip.png",)
            shown = strip.strip_of(strips, shape, low=low, high=high)
            strip.draw(place.folder.parent / files[0], shown)
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
