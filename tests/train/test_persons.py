"""A person as the unit: persons are drawn, and the mean gradient of a few rows of each is clipped once."""

# pyright: reportOptionalMemberAccess=false, reportArgumentType=false
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from statistical import has_std, is_normal, is_poisson_sampling
from torch import nn

from tacit.data.population import rows_digest
from tacit.parts.losses import IGNORED
from tacit.privacy.local import SampledGaussian
from tacit.random import seeded
from tacit.training import batches
from tacit.training.batches import Viewed, counted, over_rows, own, rows_of
from tacit.training.flat import trainable
from tacit.training.per_example import MARGIN
from tacit.training.sgd import Clipper, clipped_batch, dp_sgd, workspace
from tacit.types import Budget, Client, Persons

CLIP, CLASSES, PIXELS = 0.7, 3, 6


def logr():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, CLASSES))


def cnn():
    torch.manual_seed(0)
    return nn.Sequential(nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, CLASSES))


def client(counts=(1, 2, 5, 9, 3), *, most=4, seed=0):
    made, rows = torch.Generator().manual_seed(seed), sum(counts)
    x, y = torch.randn(rows, PIXELS, generator=made), torch.randint(0, CLASSES, (rows,), generator=made)
    persons = Persons(np.concatenate([[0], np.cumsum(counts)]), most)
    return Client(0, "a", Budget(1.0, 1e-5, "person"), x, y, persons=persons)


def sum_slow(model, x, y, places, losses, *, clip=CLIP):
    """One person at a time, one row at a time: the mean gradient of the rows that count, clipped once."""
    total, parameters = 0, [parameter for _, parameter in trainable(model)]
    for person in places.tolist():
        rows = [row for row in person if row >= 0]
        each = [torch.autograd.grad(losses(model(x[[row]]), y[[row]]).sum(), parameters) for row in rows]
        mean = torch.stack([torch.cat([part.flatten() for part in parts]) for parts in each]).mean(0)
        total = total + mean * min(1.0, clip * (1 - MARGIN) / float(mean.norm()))
    return total


def cross_entropy(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize("path", ["book-keeping", "vmap", "loop"])
@pytest.mark.parametrize("model", [logr, cnn])
def test_every_path_adds_what_the_slow_twin_adds_of_persons_with_few_and_with_many_rows(model, path):
    made, one = model(), client()
    places = torch.from_numpy(rows_of(one.persons, np.arange(5), seeded(0)("rows")))
    clipper = Clipper(Viewed(made), clip=CLIP, path=path, losses=over_rows(cross_entropy))
    total, info = clipper(one.x[own(places)], counted(one.y, places))
    due = sum_slow(made, one.x, one.y, places, cross_entropy)
    assert torch.allclose(total.vector.float(), due, atol=1e-5)
    assert clipper.path == path
    assert info.examples == 5


TARGETS = {
    "classes": (torch.tensor([0, 2, 1, 1]), cross_entropy),
    "numbers": (torch.tensor([0.5, -2.0, 1.0, 3.0]), lambda o, y: (o[:, 0] - y) ** 2),
    "several labels": (
        torch.tensor([[0.0, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 1]]),
        lambda o, y: F.binary_cross_entropy_with_logits(o, y, reduction="none").mean(1),
    ),
    "tokens": (
        torch.tensor([[0, 2], [1, IGNORED], [1, 1], [2, 0]]),
        lambda o, y: F.cross_entropy(o[:, None].expand(-1, 2, -1).mT, y, reduction="none", ignore_index=IGNORED).sum(1),
    ),
}


@pytest.mark.parametrize("kind", TARGETS)
def test_rows_that_fill_up_count_nothing_whatever_the_targets_are(kind):
    y, losses = TARGETS[kind]
    made, x = logr(), torch.randn(4, PIXELS, generator=torch.Generator().manual_seed(1))
    persons = Persons(np.array([0, 1, 4]), 3)
    places = torch.from_numpy(rows_of(persons, np.arange(2), seeded(0)("rows")))
    assert (places < 0).sum() == 2
    total, _ = Clipper(Viewed(made), clip=CLIP, losses=over_rows(losses))(x[own(places)], counted(y, places))
    assert torch.allclose(total.vector.float(), sum_slow(made, x, y, places, losses), atol=1e-5)


def moved(one, *, most, without=0):
    """By how much the sum changes when one person goes, all persons and as many rows as may be being drawn."""
    work, everybody = workspace(logr(), clip=CLIP, physical_batch=8), np.arange(len(one.persons))
    one = replace(one, persons=replace(one.persons, most=most))
    sums = [
        clipped_batch(work, one, drawn, seeded(0)("rows"))[0].vector
        for drawn in (everybody, np.delete(everybody, without))
    ]
    return float((sums[0] - sums[1]).norm())


def test_a_person_with_many_large_rows_moves_the_sum_by_the_clip_and_no_more():
    one = client((40, 2, 2))
    one.x[:40] = 1e4 * one.x[:1]  # forty rows that all push one way
    one.y[:40] = 0
    assert 0.99 * CLIP < moved(one, most=40) <= CLIP
    assert 0.99 * CLIP < moved(one, most=3) <= CLIP
    by_row = replace(one, persons=None)  # which clips each row alone: the person counts forty times
    work = workspace(logr(), clip=CLIP, physical_batch=8)
    sums = [
        clipped_batch(work, by_row, rows, seeded(0)("rows"))[0].vector for rows in (np.arange(44), np.arange(40, 44))
    ]
    assert float((sums[0] - sums[1]).norm()) > 30 * CLIP


def test_without_the_clip_such_a_person_would_move_it_by_far_more():
    one = client((40, 2, 2))
    one.x[:40] = 1e4 * one.x[:1]
    one.y[:40] = 0
    places = torch.from_numpy(rows_of(one.persons, np.arange(1), seeded(0)("rows")))
    assert float(sum_slow(logr(), one.x, one.y, places, cross_entropy, clip=math.inf).norm()) > 1000 * CLIP


def test_what_fills_a_person_up_is_of_that_person_so_that_a_broken_row_reaches_nobody_else():
    whole, broken = client(), client()
    broken.x[0] = torch.inf  # of person 0, whose one row fills its other places
    work = workspace(logr(), clip=CLIP, physical_batch=8)
    others = clipped_batch(work, whole, np.arange(1, 5), seeded(0)("rows"))[0].vector
    places = rows_of(broken.persons, np.arange(5), seeded(0)("rows"))
    assert set(np.where(places < 0, ~places, places)[0]) == {0}
    total, _ = Clipper(Viewed(logr()), clip=CLIP, losses=over_rows(cross_entropy))(
        broken.x[own(torch.from_numpy(places))], counted(broken.y, torch.from_numpy(places))
    )
    assert bool(total.vector.isfinite().all())
    assert others.isfinite().all()
    for k, (first, last) in enumerate(zip(broken.persons.offsets[:-1], broken.persons.offsets[1:], strict=True)):
        found = np.where(places[k] < 0, ~places[k], places[k])
        assert ((first <= found) & (found < last)).all()


def test_rows_are_drawn_without_replacement_all_as_likely_and_anew_each_time():
    persons, stream = Persons(np.array([0, 2, 12]), 4), seeded(0)("rows")
    drawn = [rows_of(persons, np.array([1, 0]), stream, start=100) for _ in range(3000)]
    assert {one.shape for one in drawn} == {(2, 4)}
    assert all(len(set(one[0])) == 4 and (one[0] >= 102).all() and (one[0] < 112).all() for one in drawn)
    assert all(sorted(one[1])[2:] == [100, 101] and (one[1] < 0).sum() == 2 for one in drawn)
    counts = np.bincount(np.concatenate([one[0] - 102 for one in drawn]), minlength=10)
    assert (np.abs(counts - 1200) < 5 * math.sqrt(1200 * 0.6)).all()
    pairs = np.array([[a in one[0], b in one[0]] for one in drawn for a, b in [(102, 103)]])
    assert abs(float(pairs.all(1).mean()) - 4 * 3 / (10 * 9)) < 0.03
    assert len({tuple(sorted(one[0])) for one in drawn}) == 210  # all there are


def test_twice_the_rows_of_one_person_in_a_batch_are_no_two_shares_of_it():
    """A person that is drawn is in the batch once: a fault that adds it once per row is seen by the sum's length."""
    one, work = client((5,) * 6, most=5), workspace(logr(), clip=1e-3, physical_batch=8)
    info = clipped_batch(work, one, np.arange(6), seeded(0)("rows"))
    assert info[1].examples == 6
    assert float(info[0].vector.norm()) <= 6e-3
    again = clipped_batch(work, one, np.repeat(np.arange(6), 5), seeded(0)("rows"))  # the fault
    assert float(again[0].vector.norm()) > 3 * float(info[0].vector.norm())


def batches_of(one, *, rate, steps, monkeypatch):
    seen, real = [], batches.rows_of

    def noted(persons, drawn, stream, **how):
        seen.append(drawn)
        return real(persons, drawn, stream, **how)

    monkeypatch.setattr("tacit.training.sgd.rows_of", noted)
    work = workspace(logr(), clip=CLIP, physical_batch=64)
    mechanism = SampledGaussian(1.0, CLIP, rate, steps)
    dp_sgd(work, work.theta.clone(), one, mechanism, learning_rate=0.1, stream=seeded(0)("train"))
    return seen


def test_persons_are_drawn_at_the_rate_that_is_priced_however_many_rows_they_have(monkeypatch):
    counts = [1, 9] * 30
    drawn = batches_of(client(tuple(counts)), rate=0.2, steps=400, monkeypatch=monkeypatch)
    assert is_poisson_sampling(drawn, size=60, rate=0.2)
    owner, stream = np.repeat(np.arange(60), counts), seeded(1)("rows")
    by_rows = [
        np.unique(owner[stream.bernoulli(300, 0.2)]) for _ in range(400)
    ]  # who has more rows is drawn more often
    assert not is_poisson_sampling(by_rows, size=60, rate=0.2)
    assert not is_poisson_sampling(drawn, size=60, rate=0.3)


def test_an_update_carries_the_noise_of_one_person_over_the_expected_persons_and_not_two_thirds_of_it():
    one = client((5,) * 40, most=5)
    one.x.zero_()
    model = nn.Sequential(nn.Linear(PIXELS, 400, bias=False), nn.ReLU(), nn.Linear(400, CLASSES, bias=False))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)  # so that no row has a gradient
    work, mechanism = workspace(model, clip=CLIP, physical_batch=64), SampledGaussian(2.0, CLIP, 0.25, 1)
    made = [
        dp_sgd(work, torch.zeros_like(work.theta), one, mechanism, learning_rate=0.5, stream=seeded(n)("train")).update
        for n in range(5)
    ]
    noise, std = torch.cat([one.vector for one in made]), 0.5 * 2.0 * CLIP / (0.25 * 40)
    assert made[0].noise_std == pytest.approx(std)
    assert has_std(noise, std)
    assert is_normal(noise, std)
    assert not has_std(noise, std * 2 / 3)
    assert not has_std(noise, std / 5)  # over rows in the place of persons


def test_the_same_rows_of_other_persons_are_another_clients_data():
    one = client((2, 2, 2))
    other = replace(one.persons, offsets=np.array([0, 1, 4, 6]))
    assert rows_digest(one.x, one.y, one.persons) != rows_digest(one.x, one.y, other) != rows_digest(one.x, one.y)
    assert one.size == 3
    assert replace(one, persons=None).size == 6
