"""`tacit plan`: what noise costs and what a budget buys, before anything runs; the rows of experiments: tacit/report/planned.py."""

from collections.abc import Sequence
from decimal import ROUND_CEILING, Context
from typing import Any

import dp_accounting
from dp_accounting import DpEvent
from rich.markup import escape
from rich.table import Table

from tacit import check
from tacit.errors import BadInput
from tacit.privacy.accounting import price
from tacit.privacy.accounting.calibrate import affordable
from tacit.privacy.accounting.calibrate import noise_multiplier as solve
from tacit.privacy.guarantee import shown_delta
from tacit.privacy.local.words import RELATION

CAPTIONED = ("delta", "accountant", "guarantee", "ledger", "ledger_runs", "ledger_delta", "note")
WIDEST = 80  # columns of a terminal
BRIEF = {
    "noise_multiplier": "noise over clip",
    "affordable_rounds": "rounds paid for",
    "planned_rounds": "rounds planned",
    "affordable_turns": "turns paid for",
    "planned_turns": "turns planned",
}
KEPT = (
    "clients",
    "names",
    "epsilon",
    "noise_multiplier",
    "affordable_rounds",
    "affordable_turns",
)  # of a table that is too wide
LONGEST_NAME = 16  # characters of a client's name in a table
MOST_NAMES = 4  # of a group's clients that are named; --json names all


def of_numbers(
    *,
    epsilon: float | None,
    delta: float,
    sampling_rate: float | None,
    steps: int | None,
    noise_multiplier: float | None,
    accountant: str,
) -> dict[str, Any]:
    """Computes whichever of epsilon, steps and noise_multiplier is missing; with all three given it says if they agree."""
    if sampling_rate is None:
        raise BadInput(
            "Give an experiment, or --sampling-rate (the probability with which a record enters a step) and the other numbers."
        )
    check.rate(sampling_rate=sampling_rate)
    check.one_of(price.ACCOUNTANTS, accountant=accountant)
    missing = [name for name, value in (("epsilon", epsilon), ("noise-multiplier", noise_multiplier)) if value is None]
    if len(missing) == 2:
        raise BadInput(
            "Give --epsilon to get the noise, --noise-multiplier to get the epsilon, or both to get the steps."
        )
    answer: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "noise_multiplier": noise_multiplier}
    answer |= {"sampling_rate": sampling_rate, "steps": steps, "accountant": accountant, "guarantee": RELATION}
    if steps is None and missing:
        raise BadInput("--steps is needed: how many noisy steps are released.")
    if noise_multiplier is None and epsilon is not None and steps is not None:
        answer["noise_multiplier"] = z = solve(
            epsilon=epsilon, delta=delta, sampling_rate=sampling_rate, steps=steps, accountant=accountant
        )
        return answer | {"computed": "noise_multiplier", "epsilon_spent": _spent(z, answer, steps)}
    check.positive(noise_multiplier=noise_multiplier or 0)
    if epsilon is None:
        check.at_least(1, steps=steps or 0)
        return answer | {"computed": "epsilon", "epsilon": _spent(noise_multiplier or 0, answer, steps or 0)}
    check.positive(epsilon=epsilon)
    event = _event(noise_multiplier or 0, sampling_rate)
    most = affordable(event, epsilon=epsilon, delta=delta, accountant=accountant)
    spent = _spent(noise_multiplier or 0, answer, most) if most else 0.0
    return answer | {"computed": "steps", "steps": most, "epsilon_spent": spent}


def table(answer: dict[str, Any] | list[dict[str, Any]]) -> Table:
    """The answer as a table."""
    if isinstance(answer, dict):
        shown = Table(show_header=False, box=None, padding=(0, 2))
        for name, value in answer.items():
            if name != "computed" and value is not None:
                mark = " (computed)" if name == answer["computed"] else ""
                number = isinstance(value, int | float)
                shown.add_row(name.replace("_", " "), f"{_rounded(name, value, 6)}{mark}" if number else str(value))
        return shown
    first = answer[0]
    # of what is asked beside training a terminal has room for the price alone
    names = [name for name in first if name not in CAPTIONED and not name.endswith("_noise_multiplier")]
    names = [name for name in names if name != "names" or len(answer) > 1]  # one row is everybody
    caption = (
        f"{first['guarantee']}; delta {shown_delta(first['delta'])}; {first['accountant'].upper()}{_of_ledger(first)}"
    )
    columns, words, aside = _fitted(answer, names)
    shown = Table(caption=f"{caption}{aside}")
    roomy = _width([max(map(len, column)) for column in columns]) <= WIDEST
    for column, width in zip(columns, words, strict=True):
        shown.add_column(column[0], width=None if roomy else width)
    for row in zip(*(column[1:] for column in columns), strict=True):
        shown.add_row(*map(escape, row))
    return shown


def _fitted(answer: list[dict[str, Any]], names: list[str]) -> tuple[list[list[str]], list[int], str]:
    """The columns that fit a terminal, headings first, their longest words, and what stands below the table instead.

    Headings become brief where there is no room, then what is the same in all rows goes below.
    """
    first, heads = answer[0], {name: name.replace("_", " ") for name in names} | {"names": "who"}
    brief, aside = {name: said for name, said in BRIEF.items() if name in heads}, ""
    while True:
        columns = [[heads[name], *(_span(name, row[name]) for row in answer)] for name in names]
        words = [max(len(word) for text in column for word in text.split()) for column in columns]
        same = [name for name in names if name not in KEPT and all(row[name] == first[name] for row in answer)]
        if _width(words) <= WIDEST or not (brief or same):
            return columns, words, aside
        if brief:
            heads, brief = heads | brief, {}
        else:
            aside += f"; {heads[same[-1]]} {_span(same[-1], first[same[-1]])}"
            names = [name for name in names if name != same[-1]]


def _width(columns: Sequence[int]) -> int:
    """How wide a table of such columns is, with its lines."""
    return sum(columns) + 3 * len(columns) + 1


def _of_ledger(row: dict[str, Any]) -> str:
    """What a shared ledger holds already."""
    if "ledger" not in row:
        return ""
    runs = f"{row['ledger_runs']} run{'s' * (row['ledger_runs'] != 1)}"
    spent = f"counts as spent (at delta {shown_delta(row['ledger_delta'])})"
    return f"; {row['ledger']} holds {runs} of this unit: what they sealed, used or not, {spent}; planned with what is left"


def _who(names: Sequence[str]) -> str:
    """The clients of a group, the first ones by name.

    >>> _who(["a", "b"]), _who(["a", "b", "c", "d", "e", "f"])
    ('a, b', 'a, b, c and 3 more')
    """
    said = [name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…" for name in names]
    if len(said) <= MOST_NAMES:
        return ", ".join(said)
    return f"{', '.join(said[: MOST_NAMES - 1])} and {len(said) - MOST_NAMES + 1} more"


def _span(name: str, value: Any) -> str:
    if name == "names":
        return _who(value)
    low, high = (_rounded(name, end, 4) for end in (value if isinstance(value, list) else [value, value]))
    return low if low == high else f"{low} to {high}"


def _rounded(name: str, value: float, digits: int) -> str:
    """A number for print. What is spent, and the noise that keeps a budget, are rounded up: what is read must hold.

    >>> _rounded("epsilon", 2.00001, 4), _rounded("steps", 100.0, 4)
    ('2.001', '100')
    """
    up = "epsilon" in name or "multiplier" in name or name == "delta"
    exact = Context(prec=12).create_decimal(repr(float(value)))
    return f"{float(Context(prec=digits, rounding=ROUND_CEILING).plus(exact)) if up else value:.{digits}g}"


def _event(z: float, rate: float) -> DpEvent:
    gaussian = dp_accounting.GaussianDpEvent(z)
    return gaussian if rate == 1 else dp_accounting.PoissonSampledDpEvent(rate, gaussian)


def _spent(z: float, answer: dict[str, Any], steps: int) -> float:
    composition = ((_event(z, answer["sampling_rate"]), steps),)
    return price.epsilon(composition, delta=answer["delta"], accountant=answer["accountant"])
