"""Paired differences for people: the second table of a comparison, on the terminal and as Markdown."""

from collections.abc import Sequence

from tacit import metrics
from tacit.compare.differences import Difference, differences, scored
from tacit.compare.results import CONFIDENCE, FEWEST_SEEDS, Row
from tacit.experiment import Experiment

MOST_SHOWN = 12
NOTHING = "–"
PINNED = {
    "data": ("rows", "data.seed"),
    "epsilon": ("budgets", "privacy.epsilon_seed"),
    "model": ("first weights", "model.seed"),
}
Column = tuple[str, list[str]]


def found(rows: Sequence[Row]) -> list[Difference]:
    """The differences between the cells of a comparison."""
    return differences([scored(row) for row in rows])


def columns(rows: Sequence[Row]) -> list[Column]:
    """Headings with a text per pair; none where no pair of cells has two seeds in common."""
    pairs = found(rows)
    if not any(len(one.seeds) > 1 for one in pairs):
        return []
    shown = pairs[:MOST_SHOWN]
    made = [
        ("difference", [f"{one.cell} − {one.than}" for one in shown]),
        (metrics.words(rows[0].metric), [_with_interval(one) for one in shown]),
        ("p", [probability(one.p) for one in shown]),
        ("p (Holm)", [probability(one.p_holm) for one in shown]),
        ("seeds", [str(len(one.seeds)) for one in shown]),
    ]
    return [column for column in made if column[0] != "p (Holm)" or len(pairs) > 1]


def notes(rows: Sequence[Row]) -> list[str]:
    """What must be read with them."""
    pairs = found(rows)
    if not any(len(one.seeds) > 1 for one in pairs):
        return []
    corrected = (
        f"; p (Holm) is corrected for all {len(pairs)} comparisons." if len(pairs) > 1 else ": one comparison was made."
    )
    how = f", ± {100 * CONFIDENCE:g} % interval and two-sided p (Student t), uncorrected{corrected}"
    said = [f"Differences are paired by seed{how if any(one.p is not None for one in pairs) else '.'}"]
    if any(one.p is None for one in pairs):
        said.append(
            f"{NOTHING}: fewer than {FEWEST_SEEDS} seeds, or the very same difference in all, tell nothing about chance."
        )
    if len(pairs) > MOST_SHOWN:
        said.append(f"{len(pairs) - MOST_SHOWN} more differences are in differences.csv.")
    return said + pinned(rows)


def pinned(rows: Sequence[Row]) -> list[str]:
    """What seeds do not change, because it has a seed of its own: no interval says anything about it."""
    experiments = [experiment for row in rows for experiment in row.cell.experiments]
    if len({one.run.seed for one in experiments}) < 2:
        return []
    held = [key for key in PINNED if all(_said(one, key) for one in experiments)]
    drawn = [
        key for key in held if key != "epsilon" or any(isinstance(one.privacy.epsilon, str) for one in experiments)
    ]
    if not drawn:
        return []
    names, keys = (", ".join(PINNED[key][which] for key in drawn) for which in (0, 1))
    return [f"The seeds do not change {names} ({keys}): intervals say nothing about others."]


def probability(p: float | None) -> str:
    """A p-value as papers print it.

    >>> probability(0.0412), probability(0.00003), probability(None)
    ('0.041', '< 0.001', '–')
    """
    return NOTHING if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def _said(experiment: Experiment, key: str) -> bool:
    tables = {"data": experiment.data.seed, "epsilon": experiment.privacy.epsilon_seed, "model": experiment.model.seed}
    return tables[key] is not None


def _with_interval(one: Difference) -> str:
    return f"{one.mean:+.4f}" + ("" if one.interval is None else f" ± {one.interval:.4f}")
