"""What a site may expect of joining before anybody has trained: the random-effects model, solved.

Site m's optimum is w + u_m, with u_m of variance tau^2 in every coordinate; each of its n_m rows shows that optimum with variance
1 in every coordinate. Alone it takes the mean of its rows. Joining, it sends that mean with noise of variance v_m, and the common
model weighs what is sent by 1/(tau^2 + 1/n_m + v_m) (tacit/rules/random_effects.py). Its own model is the best linear prediction of
its optimum from the others' answers and its own rows, which carry no noise at home (tacit/personal/shrinkage.py). Errors are mean
squared distances to the site's own optimum, per coordinate.

Guarantee: no row is read; what is computed follows from numbers that are public. It is a model, and no promise of a gain.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Sites:
    """Everybody's number of rows, the variance of the noise on what each sends (inf: it sends nothing), and tau^2."""

    rows: np.ndarray
    noise: np.ndarray
    between: float


@dataclass(frozen=True)
class Errors:
    """Of one site: without joining, by the common model, and by its own model after joining.

    >>> Errors(alone=0.1, common=0.2, own=0.05).gains
    (-1.0, 0.5)
    """

    alone: float
    common: float
    own: float

    @property
    def gains(self) -> tuple[float, float]:
        """How much less than alone a site errs with the common model, and with its own made of it; below 0 it errs more."""
        return 1 - self.common / self.alone, 1 - self.own / self.alone


def expected(sites: Sites, index: int) -> Errors:
    """The expected errors of one site, in closed form.

    >>> found = expected(Sites(np.array([20, 20]), np.zeros(2), between=0.0), 0)
    >>> round(found.alone, 3), round(found.common, 3), round(found.own, 3)
    (0.05, 0.025, 0.025)
    """
    seen = 1 / sites.rows + sites.noise
    information = 1 / (sites.between + seen)
    others = float(information.sum() - information[index])
    weights = information / information.sum()
    own, kept = float(weights[index]), np.isfinite(seen)
    common = sites.between * (float((weights**2).sum()) - own**2 + (1 - own) ** 2)
    common += float((weights[kept] ** 2 * seen[kept]).sum())
    prior = sites.between + 1 / others if others > 0 else np.inf  # of the optimum, from what the others sent
    return Errors(1 / float(sites.rows[index]), common, float(1 / (sites.rows[index] + 1 / prior)))


def simulated(sites: Sites, index: int, *, coordinates: int, rng: np.random.Generator) -> Errors:
    """The slow twin of `expected`: optima, rows and noise are drawn, and errors measured over so many coordinates."""
    common = rng.standard_normal(coordinates)
    optima = common + np.sqrt(sites.between) * rng.standard_normal((len(sites.rows), coordinates))
    means = np.stack(
        [(w + rng.standard_normal((int(n), coordinates))).mean(0) for w, n in zip(optima, sites.rows, strict=True)]
    )
    sent = means + np.sqrt(sites.noise)[:, None] * rng.standard_normal(means.shape)
    trust = 1 / (sites.between + 1 / sites.rows + sites.noise)
    apart = np.where(np.arange(len(trust)) == index, 0.0, trust)
    others, spread = apart @ sent / apart.sum(), sites.between + 1 / apart.sum()
    n = sites.rows[index]
    own = (n * means[index] + others / spread) / (n + 1 / spread)
    found = (means[index], trust @ sent / trust.sum(), own)
    return Errors(*(float(((model - optima[index]) ** 2).mean()) for model in found))
