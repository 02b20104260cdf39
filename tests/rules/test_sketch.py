"""What `random-effects` remembers: a fixed size, and nearly all that the whole vectors say."""

import math

import numpy as np
import pytest
import torch
from statistical import has_std

from tacit.algorithms import PopulationStatistics, weighted_sum
from tacit.algorithms.rules.inverse_variance import information, variance, variances_of
from tacit.algorithms.rules.random_effects import CLIENTS, SUMS, Residuals, between, random_effects, sketched
from tacit.types import Message

D = 50_000


def rounds(*, tau, clients=40, cohort=20, count=5, size=D, seed=0):
    """Cohorts of clients that want the same up to N(0, tau^2), with noise from 0.05 to 2."""
    rng = np.random.default_rng(seed)
    stds = np.geomspace(0.05, 2.0, clients)
    own = torch.from_numpy(rng.normal(size=(clients, size), scale=tau)).float()
    common = torch.from_numpy(rng.normal(size=size, scale=0.3)).float()
    for _ in range(count):
        chosen = rng.choice(clients, cohort, replace=False)
        yield [
            Message(
                f"client {k}",
                {"update": common + own[k] + float(stds[k]) * torch.from_numpy(rng.normal(size=size)).float()},
                {"noise_std": float(stds[k]), "examples": int(10 + 5 * k), "epsilon": 1.0},
            )
            for k in chosen
        ]


def run(rule, messages, stds):
    memory, found = rule.init([(0, D)], PopulationStatistics(np.ones(len(stds)), stds)), []
    for cohort in messages:
        applied = rule.apply(memory, cohort)
        memory = applied.memory
        found.append(applied)
    return memory, found


def test_a_sketch_keeps_inner_products_and_leaves_noise_as_it_is():
    rng = np.random.default_rng(0)
    a, b = (torch.from_numpy(rng.normal(size=D) * np.linspace(0, 3, D)).float() for _ in range(2))
    x, y = sketched([a, b])
    lengths = float(a.norm() * b.norm())
    assert abs(float(x @ y) / SUMS - float(a @ b) / D) * D < 6 * lengths * math.sqrt(1 / SUMS)
    assert float(x @ x) / SUMS == pytest.approx(float(a @ a) / D, rel=6 * math.sqrt(2 / SUMS))
    noise = sketched([torch.from_numpy(rng.normal(scale=0.7, size=D)).float() for _ in range(20)])
    assert has_std(noise.flatten(), 0.7)
    assert not has_std(noise.flatten(), 0.7 * 2 / 3)


def test_a_sketch_is_linear_and_short_vectors_are_kept_whole():
    a, b = torch.randn(2, 3 * SUMS + 5)
    assert torch.allclose(sketched([a + 2 * b])[0], (lambda s: s[0] + 2 * s[1])(sketched([a, b])), atol=1e-4)
    short = torch.randn(SUMS)
    assert torch.equal(sketched([short])[0], short)


@pytest.mark.parametrize(("tau", "near"), [(0.0, 0.1), (0.02, 0.3), (0.3, 0.1)])
def test_tau_and_update_are_those_of_the_slow_twin_but_for_the_caution_of_a_coarser_look(tau, near):
    stds = np.geomspace(0.05, 2.0, 40)
    exact = Exact(torch.as_tensor(stds) ** 2)
    _, found = run(random_effects(horizon=200.0), rounds(tau=tau), stds)
    for applied, cohort in zip(found, rounds(tau=tau), strict=True):
        update = exact.apply(cohort)
        assert applied.info["tau"] ** 2 == pytest.approx(exact.tau2, rel=near, abs=2e-5)
        assert float((applied.update - update).norm()) < 0.02 * float(update.norm())


def test_vectors_no_longer_than_a_sketch_give_the_slow_twins_very_numbers():
    stds = np.geomspace(0.05, 2.0, 40)
    exact = Exact(torch.as_tensor(stds) ** 2)
    memory = (rule := random_effects()).init([(0, 500)], PopulationStatistics(np.ones(40), stds, rounds=200.0))
    for cohort in rounds(tau=0.1, size=500):
        applied = rule.apply(memory, cohort)
        memory = applied.memory
        assert torch.allclose(applied.update, exact.apply(cohort), atol=1e-6)


def test_memory_stops_growing_and_whoever_took_part_longest_ago_makes_room():
    stds, size = np.full(1000, 0.5), 3000
    memory, rule = {}, random_effects()
    memory = rule.init([(0, size)], PopulationStatistics(np.ones(1000), stds))
    sizes = []
    for turn in range(8):
        cohort = [
            Message(f"client {k}", {"update": torch.randn(size)}, {"noise_std": 0.5, "examples": 1})
            for k in range(100 * turn, 100 * turn + 100)
        ]
        memory = rule.apply(memory, cohort).memory
        sizes.append(sum(tensor.numel() for tensor in memory.values()))
    assert sizes[2] == sizes[-1]
    known = Residuals.of(memory, width=SUMS, dtype=torch.float32)
    assert len(known.names) == CLIENTS == len(set(known.names.tolist()))
    assert known.last.min() >= 5  # rounds 5 to 7 have 300 clients, of whom 256 fit
    assert bool((known.seen == 1).all())
    assert sum(tensor.numel() * tensor.element_size() for tensor in memory.values()) < 64 << 20


def test_who_comes_again_is_counted_again_and_not_twice():
    stds = np.full(300, 0.5)
    rule = random_effects()
    memory = rule.init([(0, 10)], PopulationStatistics(np.ones(300), stds))
    first = [Message(f"client {k}", {"update": torch.randn(10)}, {"noise_std": 0.5}) for k in range(260)]
    for cohort in (first, first[:3], first[255:]):
        memory = rule.apply(memory, cohort).memory
    known = Residuals.of(memory, width=SUMS, dtype=torch.float32)
    assert sorted(known.seen.tolist())[-3:] == [2.0, 2.0, 2.0]
    assert len(known.names) == CLIENTS
    assert known.variances.max() == pytest.approx(0.25)


def test_the_noise_of_a_million_clients_is_a_few_numbers_that_say_what_a_cohort_weighs():
    stds = np.exp(np.random.default_rng(0).normal(size=1_000_000))
    memory = variances_of(PopulationStatistics(np.ones(len(stds)), stds))
    assert sum(tensor.numel() for tensor in memory.values()) < 10_000
    for tau2 in (0.0, 0.5):
        average = (1 / (stds**2 / 3 + tau2)).mean()
        assert information(memory, 0.4 * average, clients=1, horizon=3.0, tau2=tau2) == pytest.approx(0.4, rel=1e-3)


# The slow twin of `random-effects`: every client that ever took part, in full length.


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
