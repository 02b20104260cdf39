"""Ridge fits of one linear layer, of several parts of the rows at once, along falling strengths: what cross-validation asks for.

All parts share the rows, so that one product gives the outputs of all of them; each strength begins where the last one ended; and
the rows' spectrum, found once, is the first guess of every curvature. The slow twin is `Home.fit`, one fit after the other.

Source: L-BFGS (Nocedal 1980, Mathematics of Computation 35) with a diagonal first guess in the rows' principal axes. Where the loss
is convex, as all losses here are, steps that go down far enough have curvature, and nothing else has to be searched for.
"""

from collections.abc import Sequence

import numpy as np

from tacit.personal.linear import Layer

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

    Guarantee: deterministic, and no row outside of a part is in what it minimises. Assumes rows of `shares` that add up to 1.
    """

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
        """The mean curvature of the loss in every output, by part."""
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
        """How far each part goes, with value and slope there: halved until it gains enough; who has ended goes nowhere."""
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
    """The rows' principal axes [columns, axes], as far as they tell anything, and the mean squares along them.

    From the centre a ridge moves along these axes alone. Of many rows with many columns the columns are taken as they are (None).
    """
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
    """L-BFGS's two loops, for every part by itself; a pair without curvature, of a part that has ended, counts for nothing."""
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
