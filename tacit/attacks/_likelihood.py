"""The scores of membership attacks, as pure functions of what models and updates say about records.

Models come in pairs, (0, 1), (2, 3), ...: a record is in exactly one of each. A model is attacked with all pairs but its own, so
that for every record as many of the others have it as have it not, and how many do says nothing about the model that is attacked.
"""

import numpy as np
from scipy import stats

FEWEST_MODELS = 6  # a target, its mirror, and two models with and two without every record


def lira(phi: np.ndarray, member: np.ndarray) -> np.ndarray:
    """LiRA (Carlini et al. 2022, arXiv:2112.03570, Algorithm 1): log N(phi | in) - log N(phi | out) for every model and record.

    `phi` are logit-scaled confidences (model, record). The means are each record's own and the variances are those of all records
    (sec. VI-C, for few models), with what the means of k models add: 1 + 1/k.
    """
    scores = np.empty_like(phi, dtype=float)
    for target in range(len(phi)):
        others = _others(len(phi), target)
        densities = []
        for side in (member[others], ~member[others]):
            k = side[:, 0].sum()
            mean = np.where(side, phi[others], 0.0).sum(0) / k
            squares = np.where(side, (phi[others] - mean) ** 2, 0.0).sum() / (side.sum() - phi.shape[1])
            densities.append(stats.norm.logpdf(phi[target], mean, np.sqrt(max(squares * (1 + 1 / k), 1e-12))))
        scores[target] = densities[0] - densities[1]
    return scores


def rmia(log_p: np.ndarray, member: np.ndarray, log_p_z: np.ndarray, *, gamma: float = 2.0) -> np.ndarray:
    """RMIA (Zarifzadeh, Liu, Shokri 2024, arXiv:2312.03262, Algorithm 1, online): the share of public z that x beats by gamma.

    LR(x, z) = (p(x | theta) / p(x)) / (p(z | theta) / p(z)), where p(x) is the mean over models with x and models without it, and
    p(z) that over models, none of which has seen a public row.
    """
    scores = np.empty_like(log_p, dtype=float)
    for target in range(len(log_p)):
        others = _others(len(log_p), target)
        sides = (member[others], ~member[others])
        p_x = sum(np.where(side, np.exp(log_p[others]), 0.0).sum(0) / side.sum(0) for side in sides) / 2
        ratio_x = log_p[target] - np.log(np.maximum(p_x, 1e-300))
        ratio_z = np.sort(log_p_z[target] - np.log(np.maximum(np.exp(log_p_z[others]).mean(0), 1e-300)))
        scores[target] = np.searchsorted(ratio_z, ratio_x - np.log(gamma), side="right") / len(ratio_z)
    return scores


def fedmia(own: np.ndarray, others: np.ndarray) -> np.ndarray:
    """FedMIA (Zhu et al. 2024, arXiv:2402.06289): how far a record's gradient points along its client's update, by round.

    `own` (record) is the cosine with the update of the client that may have it, `others` (record, client) those with updates of
    clients that cannot: the null. The paper takes the normal distribution function; with few others that is Student's t, which it
    becomes with many. Of several rounds the scores are added.
    """
    m = others.shape[1]
    spread = others.std(1, ddof=1) * np.sqrt(1 + 1 / m)
    return stats.t.cdf((own - others.mean(1)) / np.maximum(spread, 1e-30), df=m - 1)


def _others(models: int, target: int) -> np.ndarray:
    """All models but the target and its mirror."""
    return np.array([model for model in range(models) if model // 2 != target // 2])
