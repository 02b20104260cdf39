"""`tacit plan` of numbers: noise, epsilon or steps from the other two. It loads neither torch nor data."""

from decimal import ROUND_CEILING, Context
from typing import Any

import dp_accounting

from tacit import check
from tacit.errors import BadInput
from tacit.privacy.accounting import price
from tacit.privacy.guarantee import RECORD_LEVEL


def of_numbers(
    *,
    epsilon: float | None = None,
    delta: float = 1e-5,
    sampling_rate: float | None = None,
    steps: int | None = None,
    noise_multiplier: float | None = None,
) -> dict[str, Any]:
    """Computes whichever of epsilon, steps and noise_multiplier is missing; with all three given it says if they agree."""
    if sampling_rate is None:
        raise BadInput(
            "Give an experiment, or sampling_rate=Q (the probability with which a record enters a step) and the other numbers."
        )
    check.rate(sampling_rate=sampling_rate)
    if epsilon is None and noise_multiplier is None:
        raise BadInput(
            "Give epsilon=E to get the noise, noise_multiplier=Z to get the epsilon, or both to get the steps."
        )
    if steps is None and (epsilon is None or noise_multiplier is None):
        raise BadInput("steps=N is needed: how many noisy steps are released.")
    answer: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "noise_multiplier": noise_multiplier}
    answer |= {"sampling_rate": sampling_rate, "steps": steps, "guarantee": RECORD_LEVEL}
    computed = "noise_multiplier" if noise_multiplier is None else "epsilon" if epsilon is None else "steps"
    if noise_multiplier is None:
        known: dict[str, Any] = {"epsilon": epsilon, "sampling_rate": sampling_rate, "steps": steps}
        answer["noise_multiplier"] = noise_multiplier = price.noise_multiplier(**known, delta=delta)
    check.positive(noise_multiplier=noise_multiplier)
    gaussian = dp_accounting.GaussianDpEvent(noise_multiplier)
    event = gaussian if sampling_rate == 1 else dp_accounting.PoissonSampledDpEvent(sampling_rate, gaussian)
    if computed == "epsilon":
        check.at_least(1, steps=steps or 0)
    elif computed == "steps":
        check.positive(epsilon=epsilon or 0)
        answer["steps"] = steps = price.affordable(event, epsilon=epsilon or 0, delta=delta)
    spent = price.epsilon(((event, steps),), delta=delta) if steps else 0.0
    return answer | {"computed": computed, "epsilon" if computed == "epsilon" else "epsilon_spent": spent}


def lines(answer: dict[str, Any]) -> list[tuple[str, str]]:
    """The answer as names and printed values; what was computed is marked."""
    found = []
    for name, value in answer.items():
        if name != "computed" and value is not None:
            mark = " (computed)" if name == answer["computed"] else ""
            text = f"{rounded(name, value, 6)}{mark}" if isinstance(value, int | float) else str(value)
            found.append((name.replace("_", " "), text))
    return found


def rounded(name: str, value: float, digits: int) -> str:
    """A number for print. What is spent, and the noise that keeps a budget, are rounded up: what is read must hold.

    >>> rounded("epsilon", 2.00001, 4), rounded("steps", 100.0, 4)
    ('2.001', '100')
    """
    up = "epsilon" in name or "multiplier" in name or name == "delta"
    exact = Context(prec=12).create_decimal(repr(float(value)))
    return f"{float(Context(prec=digits, rounding=ROUND_CEILING).plus(exact)) if up else value:.{digits}g}"
