import numpy as np
import pytest
import torch
from test_contracts import EPSILONS, LAYOUT, draws, noise_std, sent, statistics

import tacit
from tacit.algorithms import combined, rules
from tacit.algorithms.rules.random_effects import between, gram, nearest
from tacit.algorithms.rules.robust import sparse_part
from tacit.engine.assemble import build
from tacit.errors import BadInput
from tacit.types import Message


def rows(updates):
    return np.stack([u.numpy() for u in updates]).astype(float)


@pytest.mark.parametrize(("name", "power"), [("weighted", 1), ("inverse-variance", 2)])
def test_weights_are_powers_of_epsilon_where_noise_is_inverse_to_it(name, power):
    updates = draws()
    rule = rules.load(name)
    w = EPSILONS**power
    expected = (w[:, None] * rows(updates)).sum(0) / w.sum()
    assert np.allclose(combined(rule, *sent(rule, updates)).update.numpy(), expected, atol=1e-5)


def test_public_only_ignores_private_clients_and_stands_still_without_public_ones():
    rule = rules.load("public-only", split="kmeans")
    updates = draws()
    applied = combined(rule, *sent(rule, updates))
    assert np.allclose(applied.update.numpy(), (9 * rows(updates)[3] + 10 * rows(updates)[4]) / 19, atol=1e-5)
    memory = rule.init(LAYOUT, statistics(EPSILONS))
    assert not combined(rule, *sent(rule, draws(2), [0.1, 0.2], memory=memory)).update.any()


def simulate(*, tau, sigma, d=4000, seed=0):
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(d, generator=generator)
    return [common + (tau**2 + s**2) ** 0.5 * torch.randn(d, generator=generator) for s in sigma]


SIGMA = [10.0] * 27 + [0.1, 0.1, 0.12]


@pytest.mark.parametrize("tau", [0.3, 1.0, 5.0])
def test_reml_finds_the_variance_between_clients(tau):
    found = [
        between(
            torch.tensor(SIGMA).double() ** 2,
            gram(torch.stack(simulate(tau=tau, sigma=SIGMA, seed=s))),
            replicates=4000,
            caution=0.0,
        )
        for s in range(5)
    ]
    assert np.mean(found) == pytest.approx(tau**2, rel=0.1)


def test_random_effects_lies_between_inverse_variance_and_the_plain_mean():
    updates = simulate(tau=0.0, sigma=[noise_std(e) for e in EPSILONS], d=50)
    rule, other = rules.load("random-effects"), rules.load("inverse-variance")
    assert torch.allclose(
        combined(rule, *sent(rule, updates)).update, combined(other, *sent(other, updates)).update, atol=2e-2
    )
    apart = [100.0 * u for u in draws()]
    plain = torch.stack(apart).mean(0)
    assert torch.allclose(combined(rule, *sent(rule, apart)).update, plain, rtol=0.01, atol=0.1)


def test_a_client_without_noise_cannot_be_weighed_by_it():
    rule = rules.load("inverse-variance")
    with pytest.raises(BadInput, match="Client a states no noise"):
        combined(
            rule,
            rule.init(LAYOUT, statistics(EPSILONS)),
            [Message("a", {"update": torch.ones(3)}, {"noise_std": 0.0, "epsilon": 1.0})],
        )


def test_weights_that_sum_to_zero_or_are_not_finite_are_refused():
    rule = rules.load("weighted")
    for epsilon, message in ((0.0, "sum to zero"), (float("inf"), "finite"), (float("nan"), "finite")):
        with pytest.raises(BadInput, match=message):
            combined(rule, {}, [Message("a", {"update": torch.ones(3)}, {"epsilon": epsilon})])


def test_robust_finds_the_noise_of_a_client_that_lies_about_its_epsilon():
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(3000, generator=generator)
    sigma = torch.tensor([0.1] * 9 + [5.0])
    updates = [common + s * torch.randn(3000, generator=generator) for s in sigma]
    robust, trusting = rules.load("robust"), rules.load("inverse-variance")
    error = []
    for rule in (robust, trusting):
        memory, messages = sent(rule, updates, np.full(10, 5.0))  # the last one claims as little noise as the others
        error.append(float((combined(rule, memory, messages).update - common).norm()))
    assert error[0] < error[1] / 5


def test_the_robust_split_adds_up_and_keeps_a_common_direction():
    torch.manual_seed(0)
    low = torch.randn(8, 1) @ torch.randn(1, 500)
    spikes = torch.zeros(8, 500)
    spikes[torch.randint(8, (40,)), torch.randint(500, (40,))] = 20.0
    found = sparse_part(low + spikes)
    assert float((found - spikes).norm() / spikes.norm()) < 0.15


@pytest.mark.parametrize("name", ["inverse-variance", "random-effects"])
def test_a_cohort_that_knows_little_takes_a_small_step(name):
    rule, updates = rules.load(name), [torch.ones(50) for _ in range(2)]
    memory = rule.init(LAYOUT, statistics(EPSILONS))
    tight = combined(rule, *sent(rule, updates, [0.1, 0.2], memory=memory))
    loose = combined(rule, *sent(rule, updates, [9.0, 10.0], memory=memory))
    assert torch.allclose(loose.update, torch.ones(50), atol=1e-5)
    expected = (0.1**2 + 0.2**2) / (2 * (EPSILONS**2).mean())
    assert torch.allclose(tight.update, torch.full((50,), expected), rtol=1e-3)


def test_random_effects_aims_at_the_mean_by_examples_where_clients_differ_much():
    rule = rules.load("random-effects")
    apart = [100.0 * u for u in draws()]
    examples = [10, 20, 30, 40, 300]
    memory, messages = sent(rule, apart)
    for message, count in zip(messages, examples, strict=True):
        message.facts["examples"] = count
    wanted = (np.array(examples)[:, None] * rows(apart)).sum(0) / sum(examples)
    assert np.allclose(combined(rule, memory, messages).update.numpy(), wanted, rtol=0.01, atol=0.2)


def test_no_other_weights_come_nearer_to_the_mean_by_examples():
    rng = np.random.default_rng(0)
    noise, examples = torch.from_numpy(rng.uniform(0.1, 5, 12)), torch.from_numpy(rng.uniform(1, 9, 12))
    shares, tau2 = examples / examples.sum(), 0.7

    def error(w):
        return float(tau2 * ((w - shares) ** 2).sum() + (w**2 * noise).sum())

    best = nearest(noise, tau2, examples)
    assert float(best.sum()) == pytest.approx(1.0)
    assert bool((best >= 0).all())
    for _ in range(200):
        moved = torch.from_numpy(rng.normal(size=12)) * 1e-3
        assert error(best + moved - moved.mean()) > error(best)


@pytest.mark.parametrize(
    ("train", "horizon"),
    [
        ({"rounds": 50}, 50.0),
        ({"rounds": 50, "clients_per_round": 2}, 25.0),
        ({"rounds": 1, "clients_per_round": 2}, 1.0),
    ],
)
def test_the_horizon_is_how_often_a_client_is_expected_to_take_part(train, horizon):
    parts = build(
        tacit.Experiment(data={"clients": 4}, train=train, privacy={"kind": "local", "epsilon": [1.0, 2.0, 4.0, 8.0]})
    )
    assert float(parts.algorithm.init(parts.params).memory["horizon"]) == pytest.approx(horizon)


def test_a_horizon_that_is_given_is_taken():
    rule = rules.load("random-effects", horizon=7.0)
    assert float(rule.init(LAYOUT, statistics(EPSILONS))["horizon"]) == 7.0


def test_a_client_without_examples_gets_no_negative_weight_by_rounding():
    """A weight of -1e-16 ended the round, which was paid for, with a sentence about negative weights."""
    rng = np.random.default_rng(0)
    for _ in range(2000):
        count = int(rng.integers(2, 40))
        noise, examples = 10 ** rng.uniform(-12, 12, count), rng.choice([0, 1, 5, 10**9], count)
        weights = nearest(torch.from_numpy(noise), 10 ** rng.uniform(-15, 30), torch.from_numpy(examples).double())
        assert float(weights.min()) >= 0
        assert float(weights.sum()) == pytest.approx(1)
