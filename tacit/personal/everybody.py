"""What every client gets: alone, from the common model, and from its own, on rows that it kept for that (`data.own_share`).

A client takes for its own whichever of the two beginnings its training rows speak for, where a way can compare them (`score`): one
that the common model does not serve stays alone. (The common model has seen those rows too, so they speak for it a little too
well.) Every client adapts, whether it was drawn in a round or not: what stays at home tells nobody who took part. For the
researcher of a simulation: computed from raw rows, covered by no epsilon.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tacit import metrics
from tacit.build.parts import Parts
from tacit.engine.run_files import PERSONAL as NAME
from tacit.personal import one
from tacit.personal.paired import Judged, together

NOT_COVERED = "From raw data: not covered by epsilon. On rows that each client kept for this and trained on never."
DRAWN = "every client adapts, whether it was drawn or not"  # else who adapted would tell who took part
MOST_NAMED = 8
SEEDS = 1_000_003  # a client's own draws are its own for every run.seed


def refuse_unfit(parts: Parts) -> None:
    """Refuses an own model that this experiment's model or loss cannot have, before anybody pays. Raises BadInput."""
    few = parts.population.x[:2].to(parts.theta.device)
    one.refuse_unfit(parts.experiment, parts.experiment.personal.kind, parts.model, few)


def measured(
    parts: Parts, params: torch.Tensor, *, kept: torch.Tensor | None = None
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """What there is to say of own models, whole (personal.json) and in short (the summary); None where none are asked for.

    `kept` are the own models that clients have from training, a row each, where they keep some.
    """
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
    } | ({"adapts": DRAWN} if parts.plan.together and parts.experiment.train.clients_per_round else {})
    limits = parts.population.epsilons.tolist()
    clients = [
        fact
        | {"epsilon": limit if limit < float("inf") else None}
        | {"metrics": {metrics.key(name): told[name].told() for name in names}}
        for fact, limit, told in zip(facts, limits, found, strict=True)
    ]
    return short | {"clients": clients}, short


__all__ = ["NAME", "in_words", "measured", "refuse_unfit"]
