"""Who is "public": the split of clients by epsilon (Liu et al., PVLDB 15(4), section 4.3). A client is public if
epsilon >= threshold.

`gmm`: two Gaussians fitted to the epsilons; `kmeans`: the exact best cut in two; `top`: the `share` of clients with the
largest. Equal epsilons make everybody public. At least one client always is.
"""

import warnings

import numpy as np


def threshold(epsilons: np.ndarray, *, how: str, share: float) -> float:
    """The smallest epsilon that counts as public.

    Guarantee: it is one of the epsilons, so at least one client is public. If one is infinite, the infinite ones are the
    public ones. `top` makes at least one client public, and all with the same epsilon as the last of the `share`.

    Assumes: at least one epsilon, and a `how` that was checked before: every other word means gmm.

    >>> threshold(np.array([0.1, 0.12, 9.0, 11.0]), how="kmeans", share=0.1)
    9.0
    """
    values = np.sort(np.asarray(epsilons, dtype=float))
    if np.isinf(values[-1]):
        return np.inf
    if how == "top":
        return float(values[-max(1, round(share * len(values)))])
    if values[0] == values[-1]:
        return float(values[0])
    return _two_means(values) if how == "kmeans" or len(np.unique(values)) < 3 else _two_gaussians(values)


def _two_means(values: np.ndarray) -> float:
    """The cut that leaves the least squared error, over all cuts between different values."""
    n, total, squares = len(values), np.cumsum(values), np.cumsum(values**2)
    k = np.arange(1, n)
    error = squares[-1] - total[:-1] ** 2 / k - (total[-1] - total[:-1]) ** 2 / (n - k)
    error[values[1:] == values[:-1]] = np.inf
    return float(values[np.argmin(error) + 1])


def _two_gaussians(values: np.ndarray) -> float:
    from sklearn.exceptions import ConvergenceWarning  # 20 MB and half a second, and only this split needs it
    from sklearn.mixture import GaussianMixture

    start = np.array([[values[0]], [values[-1]]])
    mixture = GaussianMixture(2, means_init=start, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a fit that still moves is as good a split
        component = mixture.fit_predict(values[:, None])
    means = np.asarray(mixture.means_)[:, 0]
    upper = component == np.argmax(means)
    # a wide upper component may also claim what lies below the lower one: only values above the lower mean can be public
    public = values[upper & (values > means.min())]
    return float(public[0]) if len(public) else float(values[-1])
