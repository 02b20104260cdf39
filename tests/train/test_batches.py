"""The batches of a whole cohort: where all are of one size, in one go; the same places and marks as one by one."""

import numpy as np
import pytest
import torch

from tacit.random import seeded
from tacit.training import batches
from tacit.training.batches import equal, filled, shuffled, shuffled_alike


def drawn(clients, *, size=20, batch_size=5, steps=6):
    return [list(shuffled(seeded(k)("train"), size, batch_size=batch_size, steps=steps)) for k in range(clients)]


@pytest.mark.parametrize("idle", [0, 2])
def test_batches_of_one_size_are_those_that_are_filled_one_by_one(idle, monkeypatch):
    given, starts = drawn(4) + [[]] * idle, [100 * k for k in range(4)] + [0] * idle
    fast = filled(given, starts)
    monkeypatch.setattr(batches, "equal", None)
    uneven = [*given[:3], [*given[3][:-1], given[3][-1][:-1]], *given[4:]]  # one row short: the other way
    slow = filled(uneven, starts)
    assert torch.equal(fast.places[:-1], slow.places[:-1])
    assert torch.equal(fast.mask[:-1], slow.mask[:-1])
    assert torch.equal(fast.places[-1, :, :-1], slow.places[-1, :, :-1])
    assert (fast.places.dtype, fast.mask.dtype) == (slow.places.dtype, slow.mask.dtype)


def test_whoever_takes_no_step_has_marks_of_nought_and_its_own_first_row():
    found = filled([*drawn(2), []], [0, 20, 40])
    assert found.mask[:, :2].min() == 1
    assert not found.mask[:, 2].any()
    assert set(found.places[:, 2].flatten().tolist()) == {40}


def test_an_idle_client_in_the_middle_keeps_its_place():
    some = drawn(2)
    found = filled([some[0], [], some[1]], [0, 20, 40])
    assert np.array_equal(found.mask.amax((0, 2)).numpy(), [1, 0, 1])
    assert torch.equal(found.places[:, 2], torch.from_numpy(np.array(some[1])) + 40)


@pytest.mark.parametrize(
    ("size", "batch_size", "steps"), [(12, 4, 3), (12, 4, 7), (12, 12, 1), (12, 1, 5), (60, 20, 6)]
)
def test_clients_that_train_alike_are_shuffled_at_once_as_each_by_itself(size, batch_size, steps):
    apart = drawn(3, size=size, batch_size=batch_size, steps=steps)
    at_once = shuffled_alike([seeded(k)("train") for k in range(3)], size, batch_size=batch_size, steps=steps)
    assert np.array_equal(at_once, np.array(apart))
    one, other = equal(at_once, [0, 100, 200, 0]), filled([*apart, []], [0, 100, 200, 0])
    assert torch.equal(one.places, other.places)
    assert torch.equal(one.mask, other.mask)


@pytest.mark.parametrize(("size", "batch_size"), [(12, 5), (3, 4)])
def test_batches_that_would_be_short_are_drawn_client_by_client(size, batch_size):
    assert shuffled_alike([seeded(0)("train")], size, batch_size=batch_size, steps=2) is None
