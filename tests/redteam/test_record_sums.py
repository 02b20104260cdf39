"""Noise once on sums of records: what one record moves, floats included, and what an honest batch may hold."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

import tacit
from tacit.algorithms.record_sums import RecordSums, SumNoise, longest
from tacit.engine.assemble import build
from tacit.engine.trainers import workspace_of
from tacit.errors import BadInput
from tacit.privacy.local import SampledGaussian
from tacit.random import seeded
from tacit.training.optimizer import CONSTANT, Sgd
from tacit.types import Bounded, Message

SIZE = 500


def collecting(noise, records=20.0):
    mechanism = SampledGaussian(noise.noise_multiplier, noise.clip, 0.5)
    known = dict.fromkeys(("a", "b", "c"), records)
    made = RecordSums(lambda client: mechanism, noise, known, 1.0, CONSTANT, Sgd())
    return made.collect(made.init(torch.zeros(noise.size)), round=0)


def total(noise, sums):
    adding = noise.sum(torch.zeros(noise.size))
    for one in sums:
        adding.add(noise.bound(one.float()), weight=1.0)
    return adding.value()


def test_a_record_that_tips_the_rounding_of_a_long_sum_to_float32_is_within_what_is_priced():
    noise = SumNoise(1.0, clip=0.5001, most=2, records=1e6, size=1)
    ulp = 2.0**-5  # of float32 between 2^18 and 2^19
    without = torch.tensor([2.0**18 + ulp / 2 - 5e-5], dtype=torch.float64)
    moved = total(noise, [without + noise.clip]) - total(noise, [without])
    assert float(moved.norm()) > noise.clip + 0.9 * ulp
    assert float(moved.norm()) <= noise.sensitivity


def test_a_record_that_tips_every_coordinate_over_a_step_is_within_what_is_priced():
    noise = SumNoise(1.0, clip=0.5, most=2, records=1e6, size=4096)
    step = noise.sum(torch.zeros(1)).step
    without = torch.full((noise.size,), 3 * step * (1 - 1e-6), dtype=torch.float64)
    record = torch.full((noise.size,), 4e-6 * step, dtype=torch.float64)
    record[0] = noise.clip * 0.999
    moved = total(noise, [without + record]) - total(noise, [without])
    assert float(record.norm()) <= noise.clip
    assert float(moved.norm()) > 1.05 * (noise.clip + 2.0**-23 * noise.length)
    assert float(moved.norm()) <= noise.sensitivity


def test_a_sum_of_another_sensitivity_than_was_priced_gets_no_noise():
    noise = SumNoise(2.0, clip=0.5, most=2, records=20.0, size=SIZE)
    for wrong in (noise.clip, 2 * noise.sensitivity):
        with pytest.raises(BadInput, match="made for sensitivity"):
            noise.noise(noise.init(), seeded(0)("noise"), Bounded(torch.zeros(SIZE), wrong))


@pytest.mark.parametrize("size", [100, 1 << 15])
def test_no_honest_batch_is_scaled_down_where_one_record_would_move_all_of_it(size):
    noise = SumNoise(1.0, clip=2.0, most=2, records=400.0, size=size)
    for records in (400, 400 + 9 * 20, 400 + 10 * 20):  # all of them along one axis, up to ten standard deviations more
        batch = torch.zeros(size)
        batch[0] = 2.0 * records
        assert noise.bound(batch) is batch


@pytest.mark.parametrize("mean", [0.01, 1.0, 4.0, 10.0, 50.0, 1000.0])
def test_a_batch_is_longer_than_that_with_a_probability_below_ten_to_minus_twenty(mean):
    first, log = math.floor(longest(mean)) + 1, 0.0
    log = first * math.log(mean) - mean - math.lgamma(first + 1)
    tail = math.exp(log) / (1 - mean / (first + 1))  # of a Poisson law, which no binomial one exceeds there
    assert tail < 2e-20


def test_a_client_that_sends_its_sum_twice_is_in_the_sum_once_and_named():
    adding = collecting(SumNoise(1.0, clip=1.0, most=3, records=20.0, size=SIZE))
    for update in (torch.full((SIZE,), 0.1), torch.full((SIZE,), 0.2)):
        adding.add(Message("a", {"update": update}))
    assert torch.allclose(adding.total.value(), torch.full((SIZE,), 0.1, dtype=torch.float64), atol=1e-5)
    assert list(adding.refused) == ["a"]
    assert adding.within == ["a"]


def test_the_noise_of_a_sum_hides_no_other_sum_of_the_same_state():
    noise = SumNoise(3.0, clip=1.0, most=3, records=20.0, size=SIZE)
    found = []
    for last in (0.0, 0.02):
        adding = collecting(noise)
        for name, value in (("a", 0.01), ("b", last)):
            adding.add(Message(name, {"update": torch.full((SIZE,), value)}))
        found.append(adding.finish(partial(seeded(0), "server", 0))[0].params)
    assert abs(float(torch.corrcoef(torch.stack(found))[0, 1])) < 0.25


def planned(kind, **privacy):
    said = {"kind": kind, "unit": "record", "epsilon": (0.5, 4.0, 4.0), "noise_multiplier": 6.0, "rate_cap": 9.0}
    values = {"data": {"clients": 3, "examples_per_client": 40}, "train": {"rounds": 60, "local_steps": 1}}
    return build(tacit.Experiment(**values, privacy=said | privacy))


def test_the_price_of_a_secret_sum_holds_that_its_rounding_fails_and_that_a_share_is_cut():
    parts = planned("distributed")
    share = parts.plan.mechanism(parts.population[0])
    assert share.failure == parts.plan.grid.failure > 0
    assert share.event().slack >= 2.0**-80 + share.failure
    assert replace(share, failure=1e-3).event().slack >= 1e-3


@pytest.mark.parametrize("kind", ["central", "distributed"])
def test_plans_of_other_noise_or_other_rates_have_no_key_and_no_digest_in_common(kind):
    parts = planned(kind)
    plan, client = parts.plan, parts.population[0]
    rates = plan.chosen.rates * np.array([0.5, 1.0, 1.0])
    slower = replace(plan, chosen=replace(plan.chosen, rates=rates))
    louder = planned(kind, noise_multiplier=7.0).plan
    for other in (slower, louder):
        assert other.key(client) != plan.key(client)
        assert other.digest() != plan.digest()
    if kind == "central":  # the server's own noise
        assert louder.key(None) != plan.key(None)
        assert slower.key(None) != plan.key(None)


def test_no_client_is_drawn_more_than_the_cap_says_where_the_noise_is_given():
    rates = planned("central", rate_cap=1.5, epsilon=(0.3, 9.0, 9.0), noise_multiplier=3.0).plan.chosen.rates
    assert 1.4 < rates.max() / rates.min() <= 1.5 + 1e-9


def test_batch_rounding_and_share_of_a_client_are_drawn_from_streams_of_their_own():
    parts, asked = planned("distributed"), []

    def derive(purpose):
        asked.append(purpose)
        return seeded(0)(purpose)

    client = parts.population[0]
    received = parts.algorithm.broadcast(parts.algorithm.init(parts.params), [client], round=0)
    parts.algorithm.train(workspace_of(parts), received, client, derive)
    assert sorted(asked) == ["rounding", "share", "train"]
