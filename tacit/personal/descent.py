"""L-BFGS for any model at home, within a number of gradients: what a network is fitted by.

Source: Nocedal 1980 (Mathematics of Computation 35), its two loops in coordinates of the remembered vectors (Chen, Wang and Zhou
2014, NIPS), so that a step reads each of them twice; steps are halved until they gain enough (Armijo), and pairs without curvature
left out, so that a loss that is not convex cannot turn it uphill. It draws nothing, and ends by a count, never by a clock.
"""

from collections.abc import Callable

import numpy as np
import torch

Slope = Callable[[torch.Tensor], tuple[float, torch.Tensor]]

KEPT = 6  # pairs that are remembered
ENOUGH = 1e-4  # of the gain that a slope promises
SHORTEST = 1e-6  # a step below this goes nowhere
FIRST = 0.5  # how far the first step goes: nothing is known yet of the curvature


def descend(slope: Slope, start: torch.Tensor, *, most: int, flat: float, level: float) -> torch.Tensor:
    """The lowest that at most so many gradients find, from `start`: the start itself where nothing is lower.

    It ends where a step gains less than `flat` of the value (or of 1), or no slope is above `level`.

    >>> descend(lambda w: (float((w - 3).square().sum()), 2 * (w - 3)), torch.zeros(2), most=9, flat=0, level=1e-4).round()
    tensor([3., 3.])
    """
    at, (value, gradient) = start, slope(start)
    pairs, used = Pairs(start), 1
    while used < most and float(gradient.abs().max()) > level:
        along = pairs.direction(gradient)
        promised, step = float(along @ gradient), 1.0 if pairs.order else min(1.0, FIRST / float(gradient.norm()))
        while True:
            new, (found, lower) = at + step * along, slope(at + step * along)
            used += 1
            if found <= value + ENOUGH * step * promised or used >= most or step < SHORTEST:
                break
            step /= 2
        if not found < value:
            break
        pairs.add(new - at, lower - gradient)
        gained = value - found
        at, value, gradient = new, found, lower
        if gained <= flat * max(1.0, abs(value)):
            break
    return at


class Pairs:
    """The last pairs of a step (row 2i) and how the gradient bent along it (row 2i + 1), with all their products."""

    def __init__(self, start: torch.Tensor):
        self.rows = torch.zeros(2 * KEPT, start.numel(), dtype=start.dtype, device=start.device)
        self.products = np.zeros((2 * KEPT, 2 * KEPT))
        self.order: list[int] = []  # of pairs, the oldest first

    def add(self, moved: torch.Tensor, bent: torch.Tensor) -> None:
        """Remembers a pair that has curvature, in the place of the oldest one where there is no room."""
        if not float(moved @ bent) > 0:
            return
        free = len(self.order) if len(self.order) < KEPT else self.order.pop(0)
        self.order.append(free)
        mine = [2 * free, 2 * free + 1]
        self.rows[mine[0]], self.rows[mine[1]] = moved, bent
        found = (self.rows @ self.rows[mine].T).double().cpu().numpy()
        self.products[:, mine], self.products[mine] = found, found.T

    def direction(self, gradient: torch.Tensor) -> torch.Tensor:
        """The two loops of L-BFGS, in coordinates: `share` of every row, and -1 (later -guess) of the gradient."""
        if not self.order:
            return -gradient
        by, products = (self.rows @ gradient).double().cpu().numpy(), self.products
        share, left, known = np.zeros(len(by)), -1.0, dict[int, float]()
        for i in reversed(self.order):
            known[i] = (products[2 * i] @ share + left * by[2 * i]) / products[2 * i, 2 * i + 1]
            share[2 * i + 1] -= known[i]
        last = 2 * self.order[-1]
        guess = products[last, last + 1] / products[last + 1, last + 1]
        share, left = share * guess, left * guess
        for i in self.order:
            bent = products[2 * i + 1] @ share + left * by[2 * i + 1]
            share[2 * i] += known[i] - bent / products[2 * i, 2 * i + 1]
        return torch.from_numpy(share).to(gradient) @ self.rows + left * gradient
