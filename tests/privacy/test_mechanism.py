"""What every mechanism keeps to, whichever kind of privacy it belongs to, and that algorithms and training know no kind."""

import ast
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from statistical import has_std, is_normal, is_poisson_sampling

import tacit
from tacit.algorithms import finished
from tacit.algorithms.central_dp import CentralDP
from tacit.crypto.grid import Quantised
from tacit.errors import BadInput
from tacit.privacy.accounting import price
from tacit.privacy.central.kind import CohortGaussian
from tacit.privacy.distributed.mechanism import even
from tacit.privacy.local import SampledGaussian
from tacit.privacy.samplers import Poisson
from tacit.random import seeded
from tacit.training.optimizer import Sgd
from tacit.types import Bounded, Message, Private

SIZE, D = 50, 2000
SHARES = {"law": "skellam", "l2_squared": 400, "dimension": D, "fewest": 6, "colluding": 2, "most": 8}
SPENT = Bounded(torch.ones(D), 0.5)
MECHANISMS = {
    "local": (SampledGaussian(1.3, 0.5, 0.2, steps=4), SPENT),
    "poisson cohorts": (CohortGaussian(1.3, 0.5, Poisson(SIZE, 10)), SPENT),
    "shares": (even(multiplier=2.0, **SHARES), Quantised(np.ones(D, dtype=np.int64), 400, 20)),
}


def steps(mechanism, bounded, *, count=3):
    """The samples and the noised vectors of some steps."""
    state, stream, found = mechanism.init(), seeded(0)("steps"), []
    for _ in range(count):
        state, drawn = mechanism.sample(state, stream, SIZE)
        state, noised = mechanism.noise(state, stream, bounded)
        found.append((drawn.tolist(), noised.vector.tolist()))
    return found


@pytest.fixture(params=MECHANISMS)
def given(request):
    return MECHANISMS[request.param]


GAUSSIANS = pytest.mark.parametrize("name", ["local", "poisson cohorts"])


@GAUSSIANS
def test_noise_has_the_stated_std_and_not_two_thirds_or_three_halves(name):
    (mechanism, _), total = MECHANISMS[name], torch.arange(100_000.0)
    _, noised = mechanism.noise({}, seeded(0)("noise"), Bounded(torch.zeros(100_000), 0.5))
    assert noised.noise_std == pytest.approx(1.3 * 0.5)
    assert is_normal(noised.vector, 1.3 * 0.5)
    for factor, right in ((1, True), (2 / 3, False), (3 / 2, False)):
        assert has_std(noised.vector, 1.3 * 0.5 * factor) is right
    _, added = mechanism.noise({}, seeded(0)("noise"), Bounded(total, 0.5))
    assert torch.allclose(added.vector, total + noised.vector)
    with pytest.raises(AttributeError):  # what was not bounded has no noise
        mechanism.noise({}, seeded(0)("noise"), total)


@GAUSSIANS
def test_batches_and_cohorts_are_poisson_samples(name):
    (mechanism, _), stream = MECHANISMS[name], seeded(0)("batches")
    assert is_poisson_sampling([mechanism.sample({}, stream, SIZE)[1] for _ in range(2000)], size=SIZE, rate=0.2)


def test_the_verdict_rejects_fixed_size_shuffled_and_wrong_rate_batches():
    rng = np.random.default_rng(0)
    fixed = [rng.choice(50, size=10, replace=False) for _ in range(2000)]
    shuffled = [part for _ in range(400) for part in np.split(rng.permutation(50), 5)]
    denser = [np.flatnonzero(rng.random(50) < 0.23) for _ in range(2000)]
    replaced = [rng.choice(50, size=rng.binomial(50, 0.2)) for _ in range(2000)]
    for wrong in (fixed, shuffled, denser, replaced):
        assert not is_poisson_sampling(wrong, size=50, rate=0.2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier > 0"),
        ({"noise_multiplier": float("nan")}, "finite"),
        ({"clip": -1.0}, "clip > 0"),
        ({"sampling_rate": 0.0}, "sampling_rate"),
        ({"sampling_rate": 1.5}, "sampling_rate"),
        ({"steps": 0}, "steps >= 1"),
    ],
)
def test_a_mechanism_that_would_break_its_promise_is_refused(change, message):
    with pytest.raises(BadInput, match=message):
        SampledGaussian(**{"noise_multiplier": 1.0, "clip": 1.0, "sampling_rate": 0.1} | change)


def test_the_same_stream_gives_the_same_steps_and_every_step_is_another(given):
    mechanism, bounded = given
    first = steps(mechanism, bounded)
    assert first == steps(mechanism, bounded)
    assert len({tuple(noised) for _, noised in first}) == 3
    assert all(set(drawn) <= set(range(SIZE)) for drawn, _ in first)


def test_independent_noise_remembers_nothing_and_leaves_what_it_is_given(given):
    mechanism, bounded = given
    before = repr(bounded), mechanism
    state, _ = mechanism.sample(mechanism.init(), seeded(0)("a"), SIZE)
    state, _ = mechanism.noise(state, seeded(0)("a"), bounded)
    assert state == mechanism.init() == {}
    assert (repr(bounded), mechanism) == before


def test_noise_for_another_sensitivity_is_refused(given):
    mechanism, bounded = given
    other = Bounded(torch.ones(D), 0.7) if isinstance(bounded, Bounded) else Quantised(bounded.values, 401, 20)
    with pytest.raises(BadInput, match="This noise is made for"):
        mechanism.noise(mechanism.init(), seeded(0)("a"), other)


def test_the_price_is_one_that_a_ledger_reads_back(given):
    event = given[0].event()
    assert price.compose([(price.from_text(price.to_text(event)), 2)]) == price.compose([(event, 2)])


@dataclass(frozen=True)
class Alternating(CohortGaussian):
    """Noise that is taken off again in the next round: private for nobody, but visible in a server's memory."""

    def init(self):
        return {"last": torch.zeros(D)}

    def noise(self, state, stream, bounded):
        fresh = stream.normal(D)
        return {"last": fresh}, Private(bounded.vector + fresh - state["last"], 1.0)


def test_a_server_hands_the_noise_of_one_round_to_the_next_and_a_checkpoint_can_hold_it():
    central = CentralDP(Alternating(1.0, 0.5, Poisson(40, 10)), {"a": 1.0}, 1.0, local=None, optimizer=Sgd())
    state, moves = central.init(torch.zeros(D)), []
    for r in range(4):
        told = central.broadcast(state, [], round=r)
        assert set(told.tensors) == {"params", "clip"}  # and nothing of the noise
        message = Message("a", {"update": torch.zeros(D)}, {"unclipped": True})
        after, _ = finished(central.collect(state, round=r), [message], partial(seeded(3), "server", r))
        moves.append(after.params - state.params)
        state = after
        assert all(isinstance(value, torch.Tensor) for value in state.memory.values())
    assert torch.allclose(sum(moves), state.memory["last"], atol=1e-5)  # all but the last noise is gone
    assert 1.3 < float(moves[2].std()) < 1.6  # sqrt(2)
    assert float(state.memory["clip"]) == 0.5


@pytest.mark.parametrize("room", ["algorithms", "training"])
def test_algorithms_and_training_know_mechanisms_and_no_kind_of_privacy(room):
    kinds = ("tacit.privacy.local", "tacit.privacy.central", "tacit.privacy.distributed")
    files = sorted((Path(tacit.__file__).parent / room).rglob("*.py"))
    assert len(files) > 3
    for file in files:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not [name for name in names if name.startswith(kinds)], file
