"""Stacked clients and the plan's noise agree with single clients that descend as they are told."""

import dataclasses

import numpy as np
import pytest
import torch

import tacit
from tacit.engine.assemble import build
from tacit.engine.stacked import Stacked
from tacit.engine.trainers import OneByOne, task
from tacit.random import seeded
from tacit.training.clipping import workspace
from tacit.wire import pack, unpack


def parts_of(**train):
    return build(
        tacit.Experiment(
            data={"clients": 5, "examples_per_client": 60},
            model={"name": "mlp"},
            train={"rounds": 4, "local_steps": 3, "sampling_rate": 0.3} | train,
            privacy={"kind": "local", "epsilon": [0.3, 1.0, 3.0, 5.0, 9.0], "clip": 0.7},
        )
    )


ALL = {"momentum": 0.9, "weight_decay": 0.01, "proximal": 0.3, "schedule": "cosine"}


@pytest.mark.parametrize("more", [{}, {"control": "scaffold"}])
def test_stacked_clients_descend_as_single_ones_do(more):
    parts = parts_of(**ALL, **more)
    work = workspace(parts.model, clip=0.7, physical_batch=256)
    state = parts.algorithm.init(parts.params)
    if more:
        controls = {name: torch.randn_like(tensor) / 10 for name, tensor in state.control.items()}
        state = dataclasses.replace(state, control=controls)
    cohort = [4, 0, 2, 3]
    raw = pack(parts.algorithm.broadcast(state, [parts.population[index] for index in cohort], round=2))
    slow = OneByOne(task(parts.algorithm, work, parts.population, parts.derive))(raw, 2, cohort)
    fast = Stacked(parts.algorithm, work, parts.population, parts.derive, chunk=8)(raw, 2, cohort)
    for (a, _), (b, _) in zip(slow, fast, strict=True):
        a, b = unpack(a), unpack(b)
        assert a.sender == b.sender
        assert torch.allclose(a.tensors["update"], b.tensors["update"], atol=1e-4)
        assert a.facts["noise_std"] == pytest.approx(b.facts["noise_std"], rel=1e-5)


def test_noise_and_price_know_nothing_of_the_descent():
    plain, moved = parts_of(), parts_of(**ALL, control="scaffold")
    assert np.array_equal(plain.plan.multipliers, moved.plan.multipliers)
    for index in range(5):
        client = plain.population[index]
        assert plain.plan.mechanism(client) == moved.plan.mechanism(client)
        assert plain.algorithm.cost(client) == moved.algorithm.cost(client)


def test_the_noise_that_the_server_expects_is_the_noise_that_clients_state():
    parts = parts_of(**ALL)
    for round in (0, 3):
        how = parts.algorithm.local.for_round(round)
        expected = parts.plan.update_noise(parts.population.sizes, learning_rate=0.5, descent=how.descent)
        work = workspace(parts.model, clip=0.7, physical_batch=256)
        for index in (0, 4):
            client = parts.population[index]
            stated = how(
                work, parts.params, client, parts.plan.mechanism(client), stream=seeded(0)("a")
            ).update.noise_std
            assert stated == pytest.approx(float(expected[index]))
    assert parts.algorithm.server.statistics.noise_stds == pytest.approx(
        parts.plan.update_noise(
            parts.population.sizes, learning_rate=0.5, descent=parts.algorithm.local.for_round(0).descent
        )
    )
