"""How an own model is made: `mean-regularised`, a ridge towards the common model, and `head`, its last layer alone.
MR-MTL of Liu, Hu, Wu and Smith 2022 (arXiv:2206.07902), once, after the last round and without noise, because the result stays at
home; during training it is tacit/algorithms/mean_regularised.py. Of a network its last layer, which is convex, tells lambda."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tacit.personal.home import Adapted, Home, Last, Layer, known_last, last_of, then_whole

# Ridge fits of one linear layer, of several parts of the rows at once, along falling strengths.

MOST_STEPS = 200
NUMBERS = np.float32  # twice as fast, and as exact as what a fit ends by
FLAT, LEVEL = 2e-5, 1e-4  # where a fit ends: gain over max(1, value), largest slope
ROUGH = 5e-4  # the same, where only a strength is chosen
ROUNDING = 1e-6  # of a value, over max(1, value)
MOST_HALVED = 20  # times a step is halved before a part goes nowhere
KEPT = 5  # pairs that L-BFGS remembers
ENOUGH = 1e-4  # of the gain that a slope promises
SMALLEST = 1e-9  # share of the largest curvature below which an axis is none
MOST_SIDE = 1000  # of the matrix whose spectrum is found: beyond it axes are the columns as they are


class Ridges:
    """The minimisers of mean loss + strength/2 |w - centre|^2 of several parts of the rows: a row of `centres`, and one of
    `shares`, each.
    Guarantee: deterministic, and no row outside of a part is in what it minimises. Assumes rows of `shares` that add up to 1."""

    def __init__(self, layer: Layer, centres: np.ndarray, shares: np.ndarray, *, flat: float = FLAT):
        self.flat = flat  # a strength is chosen by rougher fits than a model is made by
        self.layer, self.centres = layer, np.stack([layer.matrix(centre) for centre in centres])
        self.axes, spectrum = principal(layer.rows)
        seen = layer.rows if self.axes is None else layer.rows @ self.axes
        first = self.centres @ layer.rows.T  # [parts, outputs, rows]: what the centres give
        known = (spectrum, seen, first, shares, layer.targets)
        self.spectrum, self.seen, self.first, self.shares, self.targets = (part.astype(NUMBERS) for part in known)
        self.at = np.zeros((len(shares), layer.outputs, seen.shape[1]), NUMBERS)  # w - centre, by part

    def move(self, strength: float | np.ndarray) -> None:
        """Moves every part's model to the minimiser of another strength, one for all of them or one each."""
        each = np.broadcast_to(np.asarray(strength, NUMBERS), len(self.at))
        with np.errstate(over="ignore", invalid="ignore"):  # a step that leaves the numbers is halved
            self._move(each)

    def _move(self, strength: np.ndarray) -> None:
        at, (value, slope) = self.at, self._objective(self.at, strength)
        guess = 1 / (
            self._curvatures()[:, :, None] * self.spectrum + np.maximum(strength, NUMBERS(SMALLEST))[:, None, None]
        )
        pairs: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        ended = np.abs(slope).max((1, 2)) <= LEVEL
        for _ in range(MOST_STEPS):
            if ended.all():
                break
            along = _direction(slope, pairs, guess)
            step, (new, lower) = self._step(at, value, along, slope, strength, ended)
            moved, bent = step[:, None, None] * along, lower - slope
            curved = _dot(moved, bent)
            pairs = [*pairs, (moved, bent, curved)][-KEPT:]
            gained = value - new <= self.flat * np.maximum(1.0, np.abs(value))
            at, value, slope = at + moved, new, lower
            ended |= gained | (np.abs(slope).max((1, 2)) <= LEVEL)
        self.at = at

    def losses(self) -> np.ndarray:
        """The loss of every row by every part's model, [parts, rows]."""
        return self.layer.loss(self.outputs(), self.targets)[0]

    def outputs(self) -> np.ndarray:
        """What every part's model gives for the rows, [parts, numbers, rows]."""
        return self._outputs(self.at)

    def vectors(self, parts: Sequence[int]) -> np.ndarray:
        """The parameters of some parts, a row each."""
        away = self.at[parts] if self.axes is None else self.at[parts] @ self.axes.T
        return np.stack([self.layer.vector(own) for own in self.centres[parts] + away])

    def _outputs(self, at: np.ndarray) -> np.ndarray:
        parts, outputs, axes = at.shape
        return (at.reshape(-1, axes) @ self.seen.T).reshape(parts, outputs, -1) + self.first

    def _objective(self, at: np.ndarray, strength: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        losses, by_output = self.layer.loss(self._outputs(at), self.targets)
        by_output *= self.shares[:, None]
        slope = (by_output.reshape(-1, by_output.shape[-1]) @ self.seen).reshape(at.shape)
        value = np.einsum("pn,pn->p", losses, self.shares) + strength / 2 * _dot(at, at)
        return value, slope + strength[:, None, None] * at

    def _curvatures(self) -> np.ndarray:
        return np.einsum("pkn,pn->pk", self.layer.bend(self._outputs(self.at)), self.shares)

    def _step(
        self,
        at: np.ndarray,
        value: np.ndarray,
        along: np.ndarray,
        slope: np.ndarray,
        strength: np.ndarray,
        ended: np.ndarray,
    ) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
        promised, step, room = _dot(along, slope), (~ended).astype(NUMBERS), ROUNDING * np.maximum(1.0, np.abs(value))
        found = self._objective(at + step[:, None, None] * along, strength)
        for halved in range(MOST_HALVED):
            short = ~(found[0] <= value + ENOUGH * step * promised + room) & (step > 0)
            if not short.any():
                break
            step[short] *= 0.5 if halved < MOST_HALVED - 1 else 0.0
            found = self._objective(at + step[:, None, None] * along, strength)
        return step, found


def principal(rows: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
    """The rows' principal axes [columns, axes], as far as they tell anything, and the mean squares along them. From the centre
    a ridge moves along these axes alone. Of many rows with many columns the columns are taken as they are (None)."""
    count, columns = rows.shape
    if min(count, columns) > MOST_SIDE:
        return None, np.square(rows).mean(0)
    if columns <= count:
        squares, axes = np.linalg.eigh(rows.T @ rows)
    else:
        squares, sides = np.linalg.eigh(rows @ rows.T)
        axes = rows.T @ (sides / np.sqrt(np.maximum(squares, np.finfo(float).tiny)))
    told = squares > SMALLEST * max(squares[-1], np.finfo(float).tiny)
    told[-1] = True  # rows that are all zero have an axis too
    return axes[:, told], squares[told] / count


def _direction(
    slope: np.ndarray, pairs: list[tuple[np.ndarray, np.ndarray, np.ndarray]], guess: np.ndarray
) -> np.ndarray:
    along, known = -slope, []
    for moved, bent, curved in reversed(pairs):
        share = np.divide(_dot(moved, along), curved, out=np.zeros_like(curved), where=curved > 0)
        along = along - share[:, None, None] * bent
        known.append((moved, bent, curved, share))
    along = along * guess
    for moved, bent, curved, share in reversed(known):
        again = np.divide(_dot(bent, along), curved, out=np.zeros_like(curved), where=curved > 0)
        along = along + (share - again)[:, None, None] * moved
    return along


def _dot(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.einsum("pkd,pkd->p", one, other)


FOLDS = 5
STRENGTHS = tuple(10.0**-k for k in range(-1, 5))  # 10 down to 1e-4, of the mean loss
OF_NETWORKS = (0.1, 0.01, 0.001)
PATIENCE = 2  # strengths in a row that judge no better than one has: weaker ones are the dearest, and farther off
SHARES = np.linspace(0, 1, 21)


@dataclass(frozen=True, eq=False)
class Found:
    """The lambda, the mean loss of rows left out, the model of all rows, and what rows left out were given, [numbers, rows]."""

    strength: float
    score: float
    vector: torch.Tensor
    outputs: np.ndarray

    def adapted(self, home: Home) -> Adapted:
        """As other ways tell it."""
        strength = self.strength if math.isfinite(self.strength) else None
        return Adapted(self.vector, {"strength": strength}, home.unlikely(self.score))


def adapt(home: Home, centre: torch.Tensor, *, strength: float | None = None) -> Adapted:
    """The client's own model; where it has one row, or no lambda judges better, the one it began with (lambda = None: no end)."""
    if strength is not None:
        return Adapted(home.fit(centre, centre=centre, strength=strength), {"strength": strength})
    return adapt_each(home, [centre])[0]


def adapt_each(home: Home, centres: Sequence[torch.Tensor]) -> list[Adapted]:
    """What `adapt` makes of several beginnings; of a linear layer all at once, which costs little more than one."""
    if home.size > 1 and home.layer is not None:
        return [one.adapted(home) for one in _along(home, home.layer, centres)]
    lasts = [known_last(home, centre) if home.size > 1 else None for centre in centres]
    return [
        then_whole(home, last, by_last_layer(last)) if last else _one_by_one(home, centre)
        for last, centre in zip(lasts, centres, strict=True)
    ]


def by_last_layer(last: Last) -> Adapted:
    """The last layer of a network by itself, along the few strengths among which those of networks lie."""
    layer = last.home.layer
    if layer is None:
        return adapt(last.home, last.vector)
    return _along(last.home, layer, [last.vector], strengths=OF_NETWORKS, flat=ROUGH)[0].adapted(last.home)


def adapt_both(home: Home, before: torch.Tensor, common: torch.Tensor) -> tuple[Adapted, Adapted]:
    """What the client makes of the model before the first round, and its own model: of a linear layer a mean of what both
    beginnings give (`share_of`); of another model, whose parameters have no mean, what the common model gives."""
    if home.layer is None or home.size == 1:
        alone, own = adapt_each(home, [before, common])
        return alone, own
    one, other = _along(home, home.layer, [before, common])
    share = share_of(home.layer, one.outputs, other.outputs, task=home.task)
    outputs = share * other.outputs + (1 - share) * one.outputs
    score = home.unlikely(float(home.layer.loss(outputs, home.layer.targets)[0].mean()))
    mixed = share * other.vector.double() + (1 - share) * one.vector.double()
    return one.adapted(home), Adapted(mixed.to(common), other.adapted(home).chosen | {"share": share}, score)


def share_of(layer: Layer, one: np.ndarray, other: np.ndarray, *, task: str) -> float:
    """How much of `other` belongs into a mean of two models, by what they give for rows that they were not fitted to.
    Stacking (Wolpert 1992, Neural Networks 5(2)), with the mean of all shares, each as likely as it makes the rows, in the place
    of the likeliest one: of few rows that is the better guess, and where they cannot tell it is a half. Losses are taken as
    negative log-likelihoods; of numbers the variance is unknown and taken where it is most likely."""
    totals = np.array([layer.loss(t * other + (1 - t) * one, layer.targets)[0].sum() for t in SHARES])
    if task == "regression":
        totals = layer.targets.size / 2 * np.log(np.maximum(totals, np.finfo(float).tiny))
    likely = np.exp(totals.min() - totals)
    return float(likely @ SHARES / likely.sum())


def _one_by_one(home: Home, centre: torch.Tensor) -> Adapted:
    best, least, since = math.inf, home.loss(centre), 0
    folds = [(home.rows(kept), home.rows(judged)) for kept, judged in home.folds(FOLDS)]
    starts = [centre] * len(folds)
    for strength in STRENGTHS if folds else ():
        starts = [kept.fit(w, centre=centre, strength=strength) for (kept, _), w in zip(folds, starts, strict=True)]
        losses = [judged.loss(w) * judged.size for (_, judged), w in zip(folds, starts, strict=True)]
        found = float(np.sum(losses)) / home.size
        best, least, since = (strength, found, 0) if found < least else (best, least, since + 1)
        if since >= PATIENCE and best < math.inf:
            break
    return Found(best, least, home.fit(centre, centre=centre, strength=best), np.empty(0)).adapted(home)


def _along(
    home: Home,
    layer: Layer,
    centres: Sequence[torch.Tensor],
    *,
    strengths: Sequence[float] = STRENGTHS,
    flat: float = FLAT,
) -> list[Found]:
    folds = home.folds(FOLDS)
    parts = len(folds) + 1  # of one beginning; the last one is all rows
    shares, judged = np.full((parts, home.size), 1 / home.size), np.zeros((parts, home.size), dtype=bool)
    for k, (kept, left_out) in enumerate(folds):
        shares[k], judged[k, left_out] = 0.0, True
        shares[k, kept] = 1 / len(kept)
    starts = np.stack([centre.double().numpy() for centre in centres])
    path = Ridges(layer, starts.repeat(parts, 0), np.tile(shares, (len(centres), 1)), flat=flat)
    given = [layer.matrix(start) @ layer.rows.T for start in starts]
    best = [Found(math.inf, home.loss(centre), centre, z) for centre, z in zip(centres, given, strict=True)]
    fold, row = np.nonzero(judged)
    since = np.zeros(len(centres), int)
    for strength in strengths:
        ended = [count >= PATIENCE and one.strength < math.inf for count, one in zip(since, best, strict=True)]
        if all(ended):
            break
        path.move(strength)
        since += 1
        losses = path.losses().reshape(len(centres), parts, home.size)
        for k, found in enumerate(losses[:, judged].sum(1) / home.size):
            if found < best[k].score and not ended[k]:
                since[k] = 0
                own, outputs = path.vectors([(k + 1) * parts - 1])[0], np.empty_like(given[k])
                outputs[:, row] = path.outputs()[k * parts + fold, :, row].T
                best[k] = Found(strength, float(found), torch.from_numpy(own).to(centres[k]), outputs)
    return best


def adapt_head(home: Home, centre: torch.Tensor) -> Adapted:
    """The common body and an own last layer. Raises BadInput where there is no such layer that trains."""
    last = last_of(home, centre)
    found = by_last_layer(last) if home.size > 1 else Adapted(last.vector, {"strength": None})
    return Adapted(last.within(found.vector), found.chosen, found.score)
