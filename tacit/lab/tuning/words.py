"""A search in words: what is promised of the model that it ends with, and what its folder says of that."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import tacit
from tacit.engine.assemble import Parts
from tacit.lab.tuning.price import Priced
from tacit.parts import metrics
from tacit.parts.tasks import headline
from tacit.privacy.accounting.rdp import rate_and_multiplier
from tacit.privacy.guarantee import PUBLIC, sentence, shown, shown_delta
from tacit.privacy.ledger.sql import ALL
from tacit.types import Guarantee

BEST_ALONE = (
    "whoever sees the best model alone, with its settings and its score, and not the number of runs, the losers' models and scores,"
    " or how long the search took (the server is trusted, and who took part in which round stays secret)"
)
SEARCHED = "the test set, the grid and all settings that were not searched are public"
KEYED = "a key from the operating system, which is deleted with the search"
DELETED = "nobody has seen the folder `secret` of the search, and it is deleted"
COPIED = (
    "name",
    "test_loss",
    "metric",
    "metrics",
    "confusion",
    "per_class",
    "rounds",
    "clients",
    "parameters",
    "frozen_parameters",
    "rule",
    "noise_multiplier",
)  # of the best run's summary: what follows from its models and public rows; not its times, traffic, notes and cohorts


def promised(parts: Parts, priced: Priced, assumes: Iterable[str]) -> Guarantee:
    """The statement of a search before anything is spent; `assumes` is what the promises of single candidates rest on."""
    blank = parts.promise
    said = [SEARCHED if one in PUBLIC else one for one in dict.fromkeys((*blank.assumes, *assumes))]
    if not priced.hidden:
        seen = f"{priced.count} runs, all of which are seen, with {blank.sampler}"
        return replace(blank, sampler=seen, assumes=tuple(said))
    by, runs = metrics.words(headline(parts.experiment)), priced.events[""].runs  # pyright: ignore[reportAttributeAccessIssue]
    rates = sorted({rate_and_multiplier(event)[0] for event, _ in runs})
    rate = " to ".join(f"{end:.4g}" for end in dict.fromkeys((rates[0], rates[-1])))
    best = (
        f"the best, by {by} on public rows, of a secret number of runs ({priced.repetitions.words()}), each of a candidate"
        f" drawn at random from {len(priced.runs)}, with Poisson cohorts, each of {len(parts.population)} clients with"
        f" probability {rate} in every round"
    )
    return replace(blank, adversary=BEST_ALONE, sampler=best, assumes=(*said, DELETED), randomness=KEYED)


def prices(priced: Priced, unit: str) -> list[str]:
    """What a search costs beside what it would cost otherwise, a line each: both numbers, and which of them is charged."""
    at = f"at delta = {shown_delta(priced.delta)}"
    best = "has no price here" if priced.best is None else f"costs epsilon {shown(priced.best)}"
    whose = f", to whom of {len(priced.events)} clients it costs most" if len(priced.events) > 1 else ""
    lines = [
        f"One run costs epsilon {shown(priced.one)} per {unit} {at}{whose}.",
        f"The best of about {priced.count} runs, where nothing else is seen, {best}.",
        f"{priced.count} runs that are all seen cost epsilon {shown(priced.composed)}.",
    ]
    if priced.hidden:
        dearer = priced.best is not None and priced.best > priced.composed
        # what is charged there also counts the rounds that may be lost and repeated, so that only its own price is sure
        cheaper = (
            "That is more than all seen: `--losers seen` may be cheaper here, and with `--price` says what it costs."
        )
        return [
            *lines,
            *[cheaper] * dearer,
            f"Charged: {shown(priced.epsilon)}, before the first run. How many runs there are stays secret.",
        ]
    why = (
        "as asked, all of them may be seen"
        if ALL in priced.events
        else "somebody whom the promise is against sees every run"
    )
    each = "; every client pays by its own budget" if whose else ""
    return [*lines, f"Charged: {shown(priced.epsilon)}, composed, before the first run: {why}{each}."]


def summary(found: dict[str, Any], *, settings: dict[str, Any], priced: Priced, guarantee: Guarantee) -> dict[str, Any]:
    """What is published of the best run (`found` is its own summary): no times, no traffic, no number of runs."""
    answered = (
        () if priced.hidden else ("at_clients",)
    )  # the answers that chose it, which are paid for where all runs are
    kept = {key: found[key] for key in (*COPIED, *answered, f"test_{found['metric']}") if key in found}
    return kept | {
        "settings": settings,
        "search": {
            "candidates": len(priced.runs),
            "runs": priced.repetitions.words() if priced.hidden else priced.count,
            "epsilon_of_one_run": priced.one,
            "epsilon_of_the_best": priced.best,
            "epsilon_composed": priced.composed,
            "charged": "best" if priced.hidden else "composed",
        },
        "guarantee": guarantee.record(),
        "sentence": said(guarantee),
        "version": tacit.__version__,
    }


def said(guarantee: Guarantee) -> str:
    """The guarantee in a sentence."""
    return sentence(guarantee).replace("spent in this run", "spent in this search")
