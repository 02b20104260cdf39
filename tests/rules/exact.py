"""The slow twin of `random-effects`: every client that ever took part, in full length."""

import torch

from tacit.rules import weighted_sum
from tacit.rules.inverse_variance import variance
from tacit.rules.random_effects import between


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
        mean, weight = self._mean(noise, updates)
        average = float((1 / (self.variances / self.horizon + self.tau2)).mean())
        return mean * min(1.0, weight / (len(messages) * average))

    def _mean(self, noise, updates):
        total, weight = weighted_sum(zip((1 / (noise / self.horizon + self.tau2)).tolist(), updates, strict=True))
        return total / weight, weight
