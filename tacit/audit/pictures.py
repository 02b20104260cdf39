"""What a page shows of an audited run: how well coins were guessed, scores over their predicted densities, epsilon by round,
noise by layer. Plain numbers, few enough for a small file.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tacit.audit.as_run import Traces, measured
from tacit.audit.evidence import Noise
from tacit.audit.guessing import scores
from tacit.audit.priced import Charged

POINTS, BINS, LOOKS = 60, 24, 6
FEWEST = 10  # canaries out that a point of a curve stands for
PREDICTED = 20_000  # canaries of the mechanism that was priced, from which densities are predicted
MOST = 4_000_000  # numbers that are drawn for it
Layer = tuple[str, int, int]  # name, first and last but one coordinate


def pictures(
    traces: Traces, charged: Charged, places: np.ndarray, layers: Sequence[Layer], *, level: float
) -> dict[str, Any]:
    """All pictures of one group."""
    found = scores(traces, charged)
    return {
        "roc": _roc(found, traces.coins, charged),
        "scores": _scores(found, traces.coins, charged),
        "by_round": _by_round(traces, charged, level=level),
        "layers": _layers(traces, charged, places, layers, level=level),
    }


def _roc(found: np.ndarray, coins: np.ndarray, charged: Charged) -> dict[str, list[float]]:
    """The share of canaries in that are called in, over the share of canaries out that are; and the most that is promised."""
    false = np.geomspace(min(1.0, max(FEWEST / max(1, int((~coins).sum())), 1e-4)), 1.0, POINTS)
    limits = np.quantile(found[~coins], 1 - false, method="higher") if (~coins).any() else np.zeros(POINTS)
    true = [float((found[coins] >= limit).mean()) if coins.any() else 0.0 for limit in limits]
    inverse = charged.inverse(1.0)
    return {"false": _short(false), "true": _short(true), "most": _short([1 - inverse(1 - float(a)) for a in false])}


def _scores(found: np.ndarray, coins: np.ndarray, charged: Charged) -> dict[str, list[float]]:
    """Densities of scores, of canaries in and out, as seen and as predicted by what was priced."""
    rng = np.random.default_rng(20_261_116)  # of the prediction alone
    count = max(200, min(PREDICTED, MOST // max(1, charged.rounds), MOST // (charged.steps + 1)))
    drawn = rng.binomial(charged.steps, charged.rate, size=(charged.rounds, count))
    noise = charged.multiplier * np.sqrt(charged.steps) * rng.standard_normal(drawn.shape)
    expected = [scores(Traces(part + noise, drawn, np.ones(count, bool)), charged) for part in (drawn, 0 * drawn)]
    every = np.concatenate([found, *expected])
    low, high = np.quantile(every, [0.001, 0.999]).tolist()
    edges = np.linspace(low, high, BINS + 1)
    middle = (edges[:-1] + edges[1:]) / 2

    def density(part: np.ndarray) -> list[float]:
        return _short(np.histogram(part, edges)[0] / max(1, len(part)) / (edges[1] - edges[0]))

    return {
        "at": _short(middle),
        "in": density(found[coins]),
        "out": density(found[~coins]),
        "expected_in": density(expected[0]),
        "expected_out": density(expected[1]),
    }


def _by_round(traces: Traces, charged: Charged, *, level: float) -> dict[str, list[float]]:
    """Promised and measured after some rounds."""
    rounds = np.unique(np.linspace(1, len(traces.seen), LOOKS).round().astype(int))
    columns: dict[str, list[float]] = {"round": rounds.tolist(), "promised": [], "measured": [], "low": [], "high": []}
    for r in rounds.tolist():
        so_far = replace(charged, count=charged.steps * r)
        found = measured(Traces(traces.seen[:r], traces.drawn[:r], traces.coins), so_far, level=level)
        values = (so_far.epsilon(), found.epsilon, found.low, found.high)
        for name, value in zip(("promised", "measured", "low", "high"), values, strict=True):
            columns[name].append(round(min(value, 1e6), 4))
    return columns


def _layers(
    traces: Traces, charged: Charged, places: np.ndarray, layers: Sequence[Layer], *, level: float
) -> list[list[Any]]:
    """The noise over what is priced, by layer, with its limits."""
    left = (traces.seen - traces.drawn) / (charged.multiplier * np.sqrt(charged.steps))
    found = []
    for name, start, stop in layers:
        mine = left[:, (places >= start) & (places < stop)]
        if mine.size:
            noise = Noise(float((mine.astype(float) ** 2).sum()), mine.size)
            found.append([name, *_short([noise.value, *noise.limits(level / len(layers))])])
    return found


def _short(values: Any) -> list[float]:
    return [float(f"{float(value):.4g}") for value in values]
