"""What every client gets: alone, from the common model, and from its own, on rows that it kept for that (`data.own_share`).
Every client adapts, whether it was drawn in a round or not: what stays at home tells nobody who took part. For the researcher of a
simulation: computed from raw rows, covered by no epsilon."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tacit.engine.assemble import Parts
from tacit.engine.run_files import PERSONAL as NAME
from tacit.parts import metrics
from tacit.personal import one
from tacit.personal.one import Judged, together

NOT_COVERED = "From raw data: not covered by epsilon. On rows that each client kept for this and trained on never."
DRAWN = "every client adapts, whether it was drawn or not"  # else who adapted would tell who took part
MOST_NAMED = 8
SEEDS = 1_000_003  # a client's own draws are its own for every run.seed


def refuse_unfit(parts: Parts) -> None:
    """Refuses an own model that this experiment's model or loss cannot have, before anybody pays. Raises BadInput."""
    one.refuse_unfit(parts.experiment, parts.experiment.personal.kind, parts.model, parts.population.x)


def measured(
    parts: Parts, params: torch.Tensor, *, kept: torch.Tensor | None = None
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """What there is to say of own models, whole (personal.json) and in short (the summary); None where none are asked for.
    `kept` are the own models that clients have from training, a row each, where they keep some."""
    judges, personal = parts.population.held, parts.experiment.personal
    if personal.kind is None or judges is None:
        return None
    names, found, facts, seconds = (
        one.measured_by(parts),
        list[dict[str, Judged]](),
        list[dict[str, Any]](),
        np.zeros(2),
    )
    for index in range(len(parts.population)):
        client, seed = parts.population[index], parts.experiment.run.seed * SEEDS + index
        own = None if kept is None else kept[index]
        made = one.make(parts, params, client.x, client.y, by=personal, name=client.id, seed=seed, own=own)
        seconds += made.seconds, made.control
        judge = judges[index]
        found.append(one.tell(parts, made, params, judge.x, judge.y, names=names, seed=index).by)
        fact = {"client": client.id, "trained_on": client.size, "rows": judge.size, "chosen": made.chosen}
        facts.append(fact | {"from": made.beginning})
    return _told(parts, names, found, facts, seconds)


def in_words(told: dict[str, Any]) -> list[tuple[str, str]]:
    """What own models gave, for the terminal: a line for each metric, with the differences, and one for who could not tell."""
    lines = [one.lines(metric, key, kind=told["kind"]) for key, metric in told["metrics"].items()]
    stay = f"; {told['stay_alone']} stay alone" if told["stay_alone"] else ""
    stay += f"; {told['adapts']}" if "adapts" in told else ""
    lines.append(
        (
            "own models",
            f"made at home in {told['adapt_seconds']:.1f} s of CPU time{stay}; they have no epsilon: do not publish them"
            if "when" not in told
            else f"trained in the rounds, each of what its client released: with the run's epsilon{stay}; alone has none"
            if told.get("promised", True)  # folders of old do not say it
            else f"trained in the rounds, of updates of which nothing is promised{stay}; they have no epsilon: do not publish them",
        )
    )
    if told["untold"]:
        some = ", ".join(told["untold"][:MOST_NAMED]) + (", ..." if len(told["untold"]) > MOST_NAMED else "")
        lines.append(("not told at home", f"{len(told['untold'])} clients (no own rows, or of one class): {some}"))
    return lines


def _told(
    parts: Parts,
    names: Sequence[str],
    found: Sequence[dict[str, Judged]],
    facts: Sequence[dict[str, Any]],
    seconds: np.ndarray,
) -> tuple[dict[str, Any], dict[str, Any]]:
    headline = metrics.key(names[0])
    short = {
        "note": NOT_COVERED,
        "kind": parts.experiment.personal.kind,
        "metric": headline,
        "metrics": {metrics.key(name): together([told[name] for told in found]) for name in names},
        "untold": [fact["client"] for fact, told in zip(facts, found, strict=True) if told[names[0]].values is None],
        "stay_alone": sum(fact["from"] == "alone" for fact in facts),
        "adapt_seconds": float(seconds[0]),
        "alone_seconds": float(seconds[1]),
        **({"when": "during", "promised": parts.plan.priced} if parts.experiment.personal.during else {}),
    } | ({"adapts": DRAWN} if parts.plan.sampler.charges_all and parts.experiment.train.clients_per_round else {})
    limits = parts.population.epsilons.tolist()
    clients = [
        fact
        | {"epsilon": limit if limit < float("inf") else None}
        | {"metrics": {metrics.key(name): told[name].told() for name in names}}
        for fact, limit, told in zip(facts, limits, found, strict=True)
    ]
    return short | {"clients": clients}, short


__all__ = ["NAME", "in_words", "measured", "refuse_unfit"]


# What a site may expect of joining before anybody has trained: the random-effects model, solved.


@dataclass(frozen=True, eq=False)
class Sites:
    """Everybody's number of rows, the variance of the noise on what each sends (inf: it sends nothing), and tau^2."""

    rows: np.ndarray
    noise: np.ndarray
    between: float


@dataclass(frozen=True)
class Errors:
    """Of one site: without joining, by the common model, and by its own model after joining.

    >>> Errors(alone=0.1, common=0.2, own=0.05).gains
    (-1.0, 0.5)
    """

    alone: float
    common: float
    own: float

    @property
    def gains(self) -> tuple[float, float]:
        """How much less than alone a site errs with the common model, and with its own made of it; below 0 it errs more."""
        return 1 - self.common / self.alone, 1 - self.own / self.alone


def expected(sites: Sites, index: int) -> Errors:
    """The expected errors of one site, in closed form.

    >>> found = expected(Sites(np.array([20, 20]), np.zeros(2), between=0.0), 0)
    >>> round(found.alone, 3), round(found.common, 3), round(found.own, 3)
    (0.05, 0.025, 0.025)
    """
    seen = 1 / sites.rows + sites.noise
    information = 1 / (sites.between + seen)
    others = float(information.sum() - information[index])
    weights = information / information.sum()
    own, kept = float(weights[index]), np.isfinite(seen)
    common = sites.between * (float((weights**2).sum()) - own**2 + (1 - own) ** 2)
    common += float((weights[kept] ** 2 * seen[kept]).sum())
    prior = sites.between + 1 / others if others > 0 else np.inf  # of the optimum, from what the others sent
    return Errors(1 / float(sites.rows[index]), common, float(1 / (sites.rows[index] + 1 / prior)))
