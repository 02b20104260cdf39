"""What a comparison's page says of settings held against each other: paired differences, and own models setting by setting."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tacit import metrics
from tacit.compare import at_home
from tacit.compare.differences import Difference, Scored, differences
from tacit.compare.results import Estimate, estimate
from tacit.engine.run_files import RunFiles
from tacit.report.collect import personal, short

MOST_PAIRS = 12  # drawn; differences.csv of a comparison has all
SIGNIFICANT = 0.05
MOST_BELLS = 60  # clients of a run that are drawn (html/personal.js)
MOST_ROWS = 1200  # over all runs of a comparison: about a tenth of a megabyte


@dataclass(frozen=True)
class Setting:
    """One setting: its label, what it varies, and its runs that ended with their scores."""

    label: str
    varied: Mapping[str, Any]
    runs: Sequence[tuple[RunFiles, float]]

    @property
    def scores(self) -> dict[int, float]:
        """By seed."""
        return {run.experiment.run.seed: score for run, score in self.runs}


def paired(settings: Sequence[Setting]) -> dict[str, Any] | None:
    """Differences of settings over the seeds they share; None where no two share two seeds."""
    known = [one for one in settings if len(one.scores) == len(one.runs)]  # else a seed stands for several runs
    by_label = {one.label: one.scores for one in known}
    found = differences([Scored(one.label, one.varied, one.scores) for one in known])
    if not any(len(one.seeds) > 1 for one in found):
        return None
    return {"count": len(found), "some": [_difference(one, by_label) for one in found[:MOST_PAIRS]]}


def _difference(one: Difference, scores: Mapping[str, Mapping[int, float]]) -> dict[str, Any]:
    ends = [] if one.interval is None else [short(one.mean - one.interval), short(one.mean + one.interval)]
    return {
        "name": f"{one.cell} − {one.than}",
        "seeds": len(one.seeds),
        "value": short(one.mean),
        "interval": ends,
        "p": short(one.p),
        "p_holm": short(one.p_holm),
        "shown": one.p_holm is not None and one.p_holm < SIGNIFICANT,
        "each": [short(scores[one.cell][seed] - scores[one.than][seed]) for seed in one.seeds],
    }


def homes(settings: Sequence[Setting], *, metric: str) -> dict[str, Any] | None:
    """What clients have alone, from the common model and from their own, setting by setting; None where no run was asked for it.

    From raw rows: no epsilon covers it.
    """
    told = [(one.label, [found for run, _ in one.runs if (found := at_home.told(run))]) for one in settings]
    rows = [(label, found) for label, found in told if found]
    if not rows:
        return None
    models = ("alone", "common", "own")
    return {
        "metric": metrics.words(metric),
        "names": [label for label, _ in rows],
        "seeds": max(len(found) for _, found in rows),
        "models": [[_over(found, key, metric) for key in models] for _, found in rows],
        "gaps": [[_over(found, key, metric) for key in ("own_less_alone", "own_less_common")] for _, found in rows],
    }


def by_client(settings: Sequence[Setting]) -> list[dict[str, Any]]:
    """What every client has alone, from the common model and from its own, run by run, beside its epsilon, by the headline metric.

    From raw rows: no epsilon covers it. Seeds are apart, because another seed may deal rows out to other clients; as many runs as
    keep the page small.
    """
    found, left = list[dict[str, Any]](), MOST_ROWS
    for one in settings:
        for run, _ in one.runs:
            told = personal(run)
            first = (
                {key: part[:MOST_BELLS] if isinstance(part, list) else part for key, part in told["told"][0].items()}
                if told
                else {}
            )
            left -= len(first.get("models", ()))
            if first.get("models") and left >= 0:
                seed = f", seed {run.experiment.run.seed}" if len(one.runs) > 1 else ""
                found.append({"label": f"{one.label}{seed}", "told": first})
    return found


def _over(found: Sequence[dict[str, Any]], key: str, metric: str) -> list[Any]:
    """A mean over seeds with its interval; of one seed, the interval over kept rows."""
    bounds = (-math.inf, math.inf) if "_less_" in key else metrics.bounds(metric)
    mean = estimate([one[key]["value"] for one in found], bounds)
    if mean is None:
        return [None, []]
    ends = _ends(mean) or ([short(end) for end in found[0][key]["interval"] or ()] if len(found) == 1 else [])
    return [short(mean.mean), ends]


def _ends(found: Estimate) -> list[float]:
    """The ends of an interval as a picture draws it; empty where there is none."""
    below, above = found.span
    return [] if found.interval is None else [short(found.mean - below), short(found.mean + above)]
