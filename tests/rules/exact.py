"""The slow twin of `random-effects`: every client that ever took part, in full length."""

import torch

from tacit.algorithms import weighted_sum
from tacit.algorithms.rules.inverse_variance import variance
from tacit.algorithms.rules.random_effects import between


def nearest(noise, tau2, shares):
    """The least of tau2 |w - shares|^2 + sum of w^2 noise over weights that sum to 1, by its Lagrange conditions."""
    size = len(noise)
    system = torch.zeros(size + 1, size + 1, dtype=torch.float64)
    system[:size, :size] = torch.diag(2 * (tau2 + noise))
    system[:size, size] = system[size, :size] = 1.0
    return torch.linalg.solve(system, torch.cat([2 * tau2 * shares, torch.ones(1, dtype=torch.float64)]))[:size]


class Exact:
    """One run of the rule, round by round."""

    def __init__(self, variances, *, horizon=200.0, caution=2.0):
        self.variances, self.horizon, self.caution = variances, horizon, caution
        self.tau2, self.sums, self.seen, self.noise = 0.0, {}, {}, {}

    def apply(self, messages):
        noise = torch.tensor([variance(m) for m in messages], dtype=torch.float64)
        updates = [m.tensors["update"] for m in messages]
        mean = self._mean(noise, updates)[0]
        for message, sigma2 in zip(messages, noise, strict=True):
            name = message.sender
            self.sums[name] = self.sums.get(name, 0) + message.tensors["update"] - mean
            self.seen[name] = self.seen.get(name, 0) + 1
            self.noise[name] = self.noise.get(name, 0) + sigma2
        seen = torch.tensor([float(self.seen[name]) for name in self.sums], dtype=torch.float64)
        rows = torch.stack([self.sums[name] for name in self.sums]).double() / seen[:, None]
        variances = torch.stack([self.noise[name] for name in self.sums]) / seen**2
        self.tau2 = between(variances, rows @ rows.T, replicates=len(mean), caution=self.caution)
        weight = self._mean(noise, updates)[1]
        average = float((1 / (self.variances / self.horizon + self.tau2)).mean())
        examples = torch.tensor([float(m.facts["examples"]) for m in messages], dtype=torch.float64)
        weights = nearest(noise / self.horizon, self.tau2, examples / examples.sum())
        total, _ = weighted_sum(zip(weights.tolist(), updates, strict=True))
        return total * min(1.0, weight / (len(messages) * average))

    def _mean(self, noise, updates):
        total, weight = weighted_sum(zip((1 / (noise / self.horizon + self.tau2)).tolist(), updates, strict=True))
        return total / weight, weight
