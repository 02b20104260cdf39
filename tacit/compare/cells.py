"""The grid of a comparison: every combination of the varied values, each with every seed, validated before anything
runs.

An option of `[aggregate]` goes only to the rules that take it: `aggregate.rank` stays with pfa and leaves mean alone, and
`privacy.unit` stays with local DP, because central DP has one unit.
Combinations that are then the same experiment are one cell.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from tacit import check, metrics, plugin, rules
from tacit.build.parts import build
from tacit.compare.values import label, text
from tacit.errors import BadInput, TacitError
from tacit.experiment import Experiment
from tacit.tasks import headline

DEFAULT_RULE = "random-effects"
NO_TEST_ROWS = (
    "A comparison draws what every round reaches on public test rows, and there are none: name a file of public rows"
    " (data.test_path), or set data.test_share, which makes that share of the clients' own rows public."
)
LONGEST_SLUG = 120  # a folder's name may have 255 bytes
REFUSED = {
    "run.seed": "run.seed is what --seeds counts up: set the first one with --set run.seed=N.",
    "run.workers": "Every run of a comparison trains in one process: say with --jobs how many go side by side.",
    "run.out": "The folder of a comparison is --out.",
    "privacy.ledger": "The runs of a comparison have one ledger, or each its own: leave it out, or name it with --ledger.",
}


@dataclass(frozen=True)
class Cell:
    """One combination: what it varies (None where an option does not belong to its rule), and an experiment per seed."""

    label: str
    slug: str
    varied: dict[str, Any]
    experiments: tuple[Experiment, ...] = field(repr=False)


def expand(values: Mapping[str, Any], vary: Mapping[str, Sequence[Any]], *, seeds: int) -> list[Cell]:
    """All cells, in the order given. Raises BadInput in one sentence for the first that cannot be.

    >>> [cell.label for cell in expand({}, {"train.rounds": [1, 2], "data.clients": [5]}, seeds=2)]
    ['rounds 1, clients 5', 'rounds 2, clients 5']
    """
    check.at_least(1, seeds=seeds)
    _check_keys(values, vary)
    found: dict[str, tuple[dict[str, Any], tuple[Experiment, ...]]] = {}
    for combination in product(*vary.values()):
        varied = dict(zip(vary, combination, strict=True))
        chosen = _without_foreign_unit(_without_foreign_options(_applied(values, varied)))
        varied = {key: value if _said(chosen, key) else None for key, value in varied.items()}
        experiments = _seeded(chosen, seeds)
        found.setdefault(experiments[0].toml(), (varied, experiments))
    _refuse_useless_options(values, vary, [experiments[0] for _, experiments in found.values()])
    labels = _labels([varied for varied, _ in found.values()], next(iter(found.values()))[1][0].name)
    return [
        Cell(name, _slug(varied), varied, experiments)
        for name, (varied, experiments) in zip(labels, found.values(), strict=True)
    ]


def refuse_two_metrics(cells: Sequence[Cell]) -> None:
    """Refuses a grid whose cells are not judged by one metric: no table or figure could compare them. Raises BadInput."""
    named = sorted({metrics.words(headline(cell.experiments[0])) for cell in cells})
    if len(named) > 1:
        raise BadInput(
            f"Cells are compared by one metric, these by {' and by '.join(named)}: set metric.choose for all."
        )


def try_out(cell: Cell) -> None:
    """Builds a cell's first experiment, data included, so that what cannot run is refused before anything runs."""
    try:
        parts = build(cell.experiments[0])
    except TacitError as error:
        raise BadInput(f"{cell.label}: {error}" if cell.varied else str(error)) from error
    if not len(parts.dataset.test_y):
        own = any(key.startswith("data.") for key in cell.varied)
        raise BadInput(f"{cell.label}: {NO_TEST_ROWS}" if own else NO_TEST_ROWS)


def _check_keys(values: Mapping[str, Any], vary: Mapping[str, Sequence[Any]]) -> None:
    for key, choices in vary.items():
        section, _, name = key.partition(".")
        if not section or not name:
            raise BadInput(f"Expected what varies as section.key=value,value, got {key!r}.")
        if key in REFUSED:
            raise BadInput(REFUSED[key])
        if not choices:
            raise BadInput(f"Expected at least one value of {key}.")
        if len({text(choice) for choice in choices}) < len(choices):
            raise BadInput(f"Expected each value of {key} once, got {', '.join(map(text, choices))}.")


def _applied(values: Mapping[str, Any], varied: Mapping[str, Any]) -> dict[str, Any]:
    copy = {name: dict(part) if isinstance(part, Mapping) else part for name, part in values.items()}
    for key_path, value in varied.items():
        section, _, key = key_path.partition(".")
        copy.setdefault(section, {})[key] = value
    return copy


def _said(values: Mapping[str, Any], key_path: str) -> bool:
    section, _, key = key_path.partition(".")
    return key in values.get(section, {})


def _seeded(values: dict[str, Any], seeds: int) -> tuple[Experiment, ...]:
    run = {key: value for key, value in values.get("run", {}).items() if key != "out"}
    first = Experiment(**{**values, "run": run}).run.seed
    return tuple(
        Experiment(**{**values, "run": {**run, "seed": seed, "workers": 1}}) for seed in range(first, first + seeds)
    )


def _without_foreign_options(values: dict[str, Any]) -> dict[str, Any]:
    aggregate = values.get("aggregate", {})
    if not set(aggregate) - {"rule"}:
        return values
    rule = str(aggregate.get("rule", DEFAULT_RULE))
    kept = set(aggregate) if plugin.takes_any(rules.find(rule)) else {"rule", *taken_by(rule)}
    return {**values, "aggregate": {key: value for key, value in aggregate.items() if key in kept}}


def _without_foreign_unit(values: dict[str, Any]) -> dict[str, Any]:
    """Central DP has one unit, the client: where units are varied, it is one cell."""
    privacy = values.get("privacy", {})
    if privacy.get("kind") != "central":
        return values
    return {**values, "privacy": {key: value for key, value in privacy.items() if key != "unit"}}


def taken_by(rule: str) -> frozenset[str]:
    """The options of `[aggregate]` that a rule names. Raises BadInput for a rule that cannot be found.

    >>> sorted(taken_by("mean")), "rank" in taken_by("pfa")
    ([], True)
    """
    return frozenset(plugin.options(rules.find(rule)))


def _refuse_useless_options(
    values: Mapping[str, Any], vary: Mapping[str, Sequence[Any]], experiments: list[Experiment]
) -> None:
    varied = {key.removeprefix("aggregate.") for key in vary if key.startswith("aggregate.")}
    said = {*values.get("aggregate", {}), *varied} - {"rule"}
    used = {option for experiment in experiments for option in experiment.aggregate.options()}
    for option in sorted(said - used):
        named = dict.fromkeys(experiment.aggregate.rule or DEFAULT_RULE for experiment in experiments)
        takes = "; ".join(f"{rule} takes {', '.join(sorted(taken_by(rule))) or 'no options'}" for rule in named)
        others = rules.taking(option)
        way = f"leave it out, or compare {', '.join(others)}, which take it" if others else "leave it out"
        raise BadInput(f"No rule of this comparison takes aggregate.{option} ({takes}): {way}.")


def for_some_alone(cells: Sequence[Cell]) -> list[str]:
    """A sentence for every option that was said for all and went to some rules only; what varies stands in the table itself."""
    given: dict[str, list[str]] = {}
    for cell in cells:
        for option in cell.experiments[0].aggregate.options():
            if f"aggregate.{option}" not in cell.varied:
                given.setdefault(option, []).append(_rule(cell))
    found = []
    for option, takers in given.items():
        others = [rule for rule in dict.fromkeys(map(_rule, cells)) if rule not in takers]
        if others:
            found.append(
                f"aggregate.{option} went to {', '.join(dict.fromkeys(takers))} alone: {', '.join(others)} ran without it."
            )
    return found


def _rule(cell: Cell) -> str:
    return cell.experiments[0].aggregate.rule or DEFAULT_RULE


def _labels(varied: list[dict[str, Any]], name: str) -> list[str]:
    labels = [label(one) or name for one in varied]
    if len(set(labels)) < len(labels):
        labels = [label(one, every_key=True) or name for one in varied]
    seen: dict[str, int] = {}
    for index, words in enumerate(labels):  # long values may look alike once they are shortened
        seen[words] = seen.get(words, 0) + 1
        if seen[words] > 1:
            labels[index] = f"{words} ({seen[words]})"
    return labels


def _slug(varied: Mapping[str, Any]) -> str:
    """A folder name that depends on the cell alone, so that a larger grid finds the runs of a smaller one."""
    exact = ",".join(f"{key}={text(value)}" for key, value in sorted(varied.items()) if value is not None) or "as-given"
    plain = re.sub(r"[^A-Za-z0-9.,=+-]+", "_", exact)
    if plain == exact and len(exact) <= LONGEST_SLUG:
        return exact
    return f"{plain[:LONGEST_SLUG]}-{hashlib.blake2b(exact.encode(), digest_size=4).hexdigest()}"
