"""What every client gets: alone, from the common model, and from its own, on rows that it kept for that (`data.own_share`).

A client takes for its own whichever of the two beginnings its training rows speak for, where a way can compare them (`score`): one
that the common model does not serve stays alone. (The common model has seen those rows too, so they speak for it a little too
well.) Every client adapts, whether it was drawn in a round or not: what stays at home tells nobody who took part. For the
researcher of a simulation: computed from raw rows, covered by no epsilon.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tacit import metrics
from tacit.build.parts import Parts
from tacit.data.population import Population
from tacit.engine.evaluate import answers_to
from tacit.engine.run_files import PERSONAL as NAME
from tacit.errors import BadInput
from tacit.personal import finetune, head, mean_regularised, shrinkage
from tacit.personal.home import Adapted, Home
from tacit.personal.own import Personal
from tacit.personal.paired import Judged, judged, together
from tacit.tasks import chosen
from tacit.train.frozen import training

NOT_COVERED = "From raw data: not covered by epsilon. On rows that each client kept for this and trained on never."
LIKELY = {"classification": "cross-entropy", "binary": "binary-cross-entropy", "regression": "squared"}
MOST_NAMED = 8

Adapt = Callable[[Home, torch.Tensor], Adapted]


def refuse_unfit(parts: Parts) -> None:
    """Refuses an own model that this experiment's model or loss cannot have, before anybody pays. Raises BadInput."""
    experiment, kind = parts.experiment, parts.experiment.personal.kind
    if kind == "head":
        head.refuse(parts.model, parts.population.x[:2].to(parts.theta.device))
        training(parts.model)
    task = experiment.task
    if kind == "shrinkage" and (
        task.kind not in LIKELY or task.loss not in (None, LIKELY[task.kind]) or task.options()
    ):
        raise BadInput(
            'personal.kind = "shrinkage" derives its strength from a likelihood: it needs the plain loss of a classification,'
            ' binary or regression task; choose "mean-regularised".'
        )


def measured(parts: Parts, params: torch.Tensor) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """What there is to say of own models, whole (personal.json) and in short (the summary); None where none are asked for."""
    kept, kind = parts.population.held, parts.experiment.personal.kind
    if kind is None or kept is None:
        return None
    adapt, by_itself = _ways(parts)
    names, found, facts, seconds = _metrics(parts), list[dict[str, Judged]](), list[dict[str, Any]](), 0.0
    for index in range(len(parts.population)):
        home, client = _home(parts, index), parts.population[index]
        began = time.perf_counter()
        alone, own = by_itself(home, parts.params), adapt(home, params)
        stays = own.score is not None and alone.score is not None and alone.score < own.score
        seconds += time.perf_counter() - began
        own = alone if stays else own
        homes = {name: Personal(client.id, one.vector, one.chosen) for name, one in (("alone", alone), ("own", own))}
        found.append(_judged(parts, kept, index, names, homes, params))
        fact = {"client": client.id, "trained_on": client.size, "rows": kept[index].size, "chosen": own.chosen}
        facts.append(fact | {"from": "alone" if stays else "common"})
    training(parts.model)
    return _told(parts, names, found, facts, seconds)


def in_words(told: dict[str, Any]) -> list[tuple[str, str]]:
    """What own models gave, for the terminal: a line for each metric, with the differences, and one for who could not tell."""
    lines = []
    for key, one in told["metrics"].items():
        if "own" not in one:
            lines.append((f"{metrics.words(key)} at home", "not known: no client's own rows can tell"))
            continue
        means = ", ".join(f"{name} {one[name]['value']:.4f}" for name in ("alone", "common", "own"))
        gaps = "; ".join(f"own - {name} {_gap(one[f'own_less_{name}'])}" for name in ("alone", "common"))
        lines.append((f"{metrics.words(key)} at home ({told['kind']})", f"{means}; {gaps}"))
    stay = f"; {told['stay_alone']} stay alone" if told["stay_alone"] else ""
    lines.append(
        (
            "own models",
            f"made at home in {told['adapt_seconds']:.1f} s{stay}; they have no epsilon: do not publish them",
        )
    )
    if told["untold"]:
        some = ", ".join(told["untold"][:MOST_NAMED]) + (", ..." if len(told["untold"]) > MOST_NAMED else "")
        lines.append(("not told at home", f"{len(told['untold'])} clients (no own rows, or of one class): {some}"))
    return lines


def _gap(one: dict[str, Any]) -> str:
    ends = one["interval"]
    return f"{one['value']:+.4f}" + (f" ({ends[0]:+.4f} to {ends[1]:+.4f})" if ends else "")


def _ways(parts: Parts) -> tuple[Adapt, Adapt]:
    """How an own model is made of the common one, and, for `alone`, of the model before round 0, where no body is trained yet."""
    personal = parts.experiment.personal

    def held_to(home: Home, centre: torch.Tensor) -> Adapted:
        return mean_regularised.adapt(home, centre, strength=personal.strength)

    ways: dict[str, Adapt] = {
        "finetune": finetune.adapt,
        "mean-regularised": held_to,
        "shrinkage": shrinkage.adapt,
        "head": head.adapt,
    }
    alone = finetune.adapt if personal.kind == "head" else mean_regularised.adapt
    kind = personal.kind or "finetune"
    return ways[kind], ways[kind] if kind in ("finetune", "shrinkage") else alone


def _home(parts: Parts, index: int) -> Home:
    client, experiment, device = parts.population[index], parts.experiment, parts.theta.device
    rows = {"x": client.x.to(device), "y": client.y.to(device), "seed": experiment.run.seed * 1_000_003 + index}
    rate, task = experiment.train.learning_rate, experiment.task.kind
    return Home(parts.model, parts.theta, parts.losses, **rows, learning_rate=rate, task=task)


def _metrics(parts: Parts) -> list[str]:
    """The headline, and the log loss where the task has one: probabilities show what hits do not."""
    first = chosen(parts.experiment)
    return [first, *(name for name in ("log-loss",) if name in parts.task.metrics and name != first)]


def _judged(
    parts: Parts, kept: Population, index: int, names: Sequence[str], homes: dict[str, Personal], params: torch.Tensor
) -> dict[str, Judged]:
    client, device = kept[index], parts.theta.device
    if not client.size:
        return {name: Judged(0, None) for name in names}
    x, y = client.x.to(device), client.y.to(device)

    def judge(vector: torch.Tensor) -> metrics.Answers:
        return answers_to(parts, vector, x, y)[0]

    answers = {"alone": homes["alone"].judged(judge), "common": judge(params), "own": homes["own"].judged(judge)}
    return {name: judged(name, answers, seed=index) for name in names}


def _told(
    parts: Parts,
    names: Sequence[str],
    found: Sequence[dict[str, Judged]],
    facts: Sequence[dict[str, Any]],
    seconds: float,
) -> tuple[dict[str, Any], dict[str, Any]]:
    headline = metrics.key(names[0])
    short = {
        "note": NOT_COVERED,
        "kind": parts.experiment.personal.kind,
        "metric": headline,
        "metrics": {metrics.key(name): together([one[name] for one in found]) for name in names},
        "untold": [fact["client"] for fact, one in zip(facts, found, strict=True) if one[names[0]].values is None],
        "stay_alone": sum(fact["from"] == "alone" for fact in facts),
        "adapt_seconds": seconds,
    }
    limits = parts.population.epsilons.tolist()
    clients = [
        fact
        | {"epsilon": limit if limit < float("inf") else None}
        | {"metrics": {metrics.key(name): one[name].told() for name in names}}
        for fact, limit, one in zip(facts, limits, found, strict=True)
    ]
    return short | {"clients": clients}, short


__all__ = ["NAME", "in_words", "measured", "refuse_unfit"]
