"""Was it worth joining? Which of a client's three models to use, and the sentence that says why, by held-out rows.

The personalised model is the default, since training rows made it a compromise of the other two. Another is used where held-out
rows put it ahead by more than one standard error: few rows move the choice little."""

from collections.abc import Mapping
from typing import Any

from tacit.parts import metrics

WORDS = {"alone": "the model trained alone", "common": "the global model", "own": "the personalised model"}
USE = {name: f"use {words}" for name, words in WORDS.items()} | {"alone": "use the model that stayed at home"}
ERRORS = 2 * 1.96  # standard errors in the length of a 95 % interval
Gap = tuple[float, float, float]  # by how much one is better, and the ends of its interval


def verdict(
    by: Mapping[str, Any], losses: Mapping[str, float], *, key: str, higher: bool, rows: int
) -> tuple[str, str]:
    """The model to use, and why: `by` is what the metric `key` gave of the models and their differences, if the rows can tell.

    >>> by = {name: {"value": value} for name, value in {"alone": 0.94, "common": 0.9, "own": 0.91}.items()}
    >>> gaps = {"own_less_alone": -0.03, "own_less_common": 0.01, "common_less_alone": -0.04}
    >>> by |= {name: {"value": gap, "interval": [gap - 0.02, gap + 0.02]} for name, gap in gaps.items()}
    >>> verdict(by, {}, key="auroc", higher=True, rows=90)[1]  # doctest: +NORMALIZE_WHITESPACE
    'The model trained alone is better than the personalised model by 0.030 AUROC (0.010 to 0.050) on 90 held-out rows: use the
    model that stayed at home.'
    """
    if "own" not in by:
        best = min(WORDS, key=lambda name: (losses[name], name != "own"))
        return best, f"{rows} held-out rows are of one class; by their mean loss, {USE[best]}."
    values = {name: by[name]["value"] if higher else -by[name]["value"] for name in WORDS}
    best = max(WORDS, key=lambda name: (values[name], name == "alone"))
    gap, low, high = _gap(by, best, "own", higher=higher)
    use = best if by[best]["value"] == by["own"]["value"] or gap > (high - low) / ERRORS else "own"
    other = "alone" if use != "alone" else max(("common", "own"), key=values.__getitem__)
    if use == "alone" and values["own"] == values["alone"]:
        other = "common"  # the personalised one is that very model
    gap, low, high = _gap(by, use, other, higher=higher)
    first, unit, ends = WORDS[use][0].upper() + WORDS[use][1:], metrics.words(key), f"({low:.3f} to {high:.3f})"
    if low > 0:
        said = f"{first} is better than {WORDS[other]} by {gap:.3f} {unit} {ends} on {rows} held-out rows"
    else:
        said = f"{rows} held-out rows cannot tell {WORDS[use]} from {WORDS[other]}, by {gap:+.3f} {unit} {ends}"
    return use, f"{said}: {USE[use]}."


def _gap(by: Mapping[str, Any], one: str, other: str, *, higher: bool) -> Gap:
    """How much better one is than another, with the ends of the interval; without one, its ends are the value."""
    known: dict[str, Any] = by.get(f"{one}_less_{other}") or by.get(f"{other}_less_{one}") or {"value": 0.0}
    sign = (1 if f"{one}_less_{other}" in by else -1) * (1 if higher else -1)
    ends: list[float] = known.get("interval") or [known["value"], known["value"]]
    return sign * known["value"], min(sign * end for end in ends), max(sign * end for end in ends)
