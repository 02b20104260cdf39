"""Rounding that depends on who was there (Casacuberta, Shoemate, Vadhan, Wagaman 2022, arXiv:2207.10635): what is added before the
noise is exact, or its error is within the clip."""

from fractions import Fraction
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tacit.algorithms import finished
from tacit.algorithms.central_dp import CentralDP
from tacit.errors import BadInput
from tacit.privacy.central.banded import Banded, BandedGaussian
from tacit.privacy.central.kind import CohortGaussian
from tacit.privacy.mechanism import FAST_FROM, ExactSum, bound, norm_bound, row_norm_bounds, row_scales
from tacit.privacy.samplers import Poisson
from tacit.random import seeded
from tacit.training.flat import flatten
from tacit.training.optimizer import Sgd
from tacit.training.sgd import Clipper
from tacit.training.stacked import Stack, StackedModel
from tacit.types import Message

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
QUIET = 1e-9  # noise over sensitivity: too small to see


def mechanisms(clients):
    turns = BandedGaussian(QUIET, 1.0, Banded((1.0,), rounds=1), groups=(0,) * clients, cycle=1)
    return {
        "poisson": CohortGaussian(QUIET, clip=1.0, cohorts=Poisson(clients, clients)),
        "cyclic": turns,
    }


def summed(mechanism, updates):
    """What a round of central DP adds up, read off the model that it releases."""
    names = [f"c{i}" for i in range(len(updates))]
    turns = {"groups": (frozenset(names),)} if isinstance(mechanism, BandedGaussian) else {}
    made = CentralDP(mechanism, dict.fromkeys(names, 1.0), 1.0, None, Sgd(), **turns)
    messages = [Message(name, {"update": update.to(DEVICE)}) for name, update in zip(names, updates, strict=True)]
    state = made.init(torch.zeros_like(updates[0], device=DEVICE))
    params = finished(made.collect(state, round=0), messages, partial(seeded(0), "server"))[0].params
    assert params.dtype == torch.float32  # rounded once, after the noise
    return params.double()


def ordered(power):
    """A victim, others who bring the sum as far below 2^power as it weighs, and 2^power whom a larger sum rounds up twofold."""
    full = 511 / 512  # short enough to be left alone
    whole, rest = divmod(2**power - full, full)
    crumb = 2.0 ** (power - 24) * (1 + 2.0**-20)
    return torch.tensor([full] * (1 + int(whole)) + [rest] + [crumb] * 2**power)[:, None].unbind()


@pytest.mark.parametrize("kind", ["poisson", "cyclic"])
@pytest.mark.parametrize("power", [10, 12])
def test_one_client_moves_a_central_sum_by_no_more_than_its_clip_in_any_order_of_the_others(kind, power):
    updates = ordered(power)
    mechanism = mechanisms(len(updates))[kind]
    without = (torch.zeros(1), *updates[1:])
    moved = float((summed(mechanism, updates) - summed(mechanism, without)).norm())
    assert 0.99 < moved <= 1 + 2 ** (power - 23)  # the model itself is float32


def test_a_central_sum_is_the_same_bits_in_any_order_and_in_any_parts():
    generator = torch.Generator().manual_seed(0)
    updates = [torch.randn(50, generator=generator) * 10.0 ** float(k % 7 - 3) for k in range(300)]
    mechanism = mechanisms(300)["poisson"]
    backwards, shuffled = updates[::-1], [updates[i] for i in torch.randperm(300, generator=generator).tolist()]
    assert torch.equal(summed(mechanism, updates), summed(mechanism, backwards))
    assert torch.equal(summed(mechanism, updates), summed(mechanism, shuffled))


def one_number(outputs, targets):
    return outputs[:, 0]  # so that an example's gradient is the example itself


@pytest.mark.parametrize("path", ["book-keeping", "vmap", "loop"])
@pytest.mark.parametrize("power", [5, 6, 8, 10, 12])
def test_one_example_moves_a_clipped_sum_by_no_more_than_the_clip_among_any_others(path, power):
    if path == "loop" and power > 8:
        pytest.skip("minutes of the same additions")
    x = torch.stack(ordered(power))
    y = torch.zeros(len(x), dtype=torch.long)
    model, x, y = nn.Linear(1, 1, bias=False).to(DEVICE), x.to(DEVICE), y.to(DEVICE)
    clipper = Clipper(model, clip=1.0, physical_batch=1 << 14, path=path, losses=one_number)
    with_it, without = (clipper(rows, labels)[0].vector.double() for rows, labels in ((x, y), (x[1:], y[1:])))
    assert 0.99 < float((with_it - without).norm()) <= 1.0


@pytest.mark.parametrize("power", [5, 6, 8, 10, 12])
def test_one_example_moves_the_sum_of_stacked_clients_by_no_more_than_the_clip(power):
    x = torch.stack(ordered(power))[None].to(DEVICE)
    y, mask = torch.zeros_like(x[..., 0], dtype=torch.long), torch.ones_like(x[..., 0])
    model = nn.Sequential(nn.Linear(1, 1, bias=False)).to(DEVICE)
    for stack in (StackedModel(model, torch.zeros(5, 1, device=DEVICE), one_number), Stack(model, one_number)):
        theta = stack.rows(flatten(model), 1)
        with_it, without = (
            stack.clipped_sums(theta, x[:, k:], y[:, k:], mask[:, k:], clip=1.0)[0].double() for k in (0, 1)
        )
        assert 0.99 < float((with_it - without).norm()) <= 1.0


@pytest.mark.parametrize("width", [2, 300])  # by products, and by Gram matrices
@pytest.mark.parametrize("examples", [8, 200])
def test_one_example_whose_rows_cancel_moves_the_sum_by_no_more_than_the_clip(width, examples):
    """Its gradient is short, and what is added up for it is 10,000 times as long."""
    generator = torch.Generator().manual_seed(0)
    signs = torch.tensor([1.0, -1.0] * 8)
    x = 1e4 + torch.randn(examples, 16, width, generator=generator)
    y = torch.zeros(examples, dtype=torch.long)

    def cancelling(outputs, targets):
        return (outputs[:, :, 0] * signs).sum(1)

    clipper = Clipper(nn.Linear(width, 1, bias=False), clip=1e-3, losses=cancelling)
    whole = clipper(x, y)[0].vector.double()
    assert clipper.path == "book-keeping"
    for i in (0, examples // 2):
        rest = torch.arange(examples) != i
        assert float((whole - clipper(x[rest], y[rest])[0].vector.double()).norm()) <= 1e-3


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 40, 1000, FAST_FROM + 5]), st.floats(1e-6, 1e6))
def test_no_update_is_longer_than_the_clip_after_it_was_scaled(seed, size, clip):
    """Float32 rounded a scaled vector up to 1.0000001 clips, and its sensitivity is priced as 1."""
    rows = torch.randn(20, size, generator=torch.Generator().manual_seed(seed)) * clip * 3
    scaled = rows * row_scales(rows, clip=clip)[:, None]
    for row, together in zip(rows, scaled, strict=True):
        alone = bound(row, clip=clip).vector
        assert float(together.double().norm()) <= clip
        assert float(alone.double().norm()) <= clip
        assert bound(alone, clip=clip).vector is alone
    assert bool((row_scales(scaled, clip=clip) == 1.0).all())


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(1e-9, 1e9), st.integers(1, 30))
def test_what_a_client_adds_to_an_exact_sum_is_no_longer_than_its_update_whoever_else_is_in_it(seed, clip, others):
    generator = torch.Generator().manual_seed(seed)
    updates = [bound(torch.randn(30, generator=generator) * clip, clip=clip).vector for _ in range(others + 1)]
    weights = torch.rand(others + 1, generator=generator, dtype=torch.float64).tolist()
    sums = [ExactSum(updates[0], clip=clip, most=others + 1) for _ in range(3)]
    for update, weight in zip(updates[1:], weights[1:], strict=True):
        sums[0].add(update, weight=weight)
    sums[1].add(updates[0], weight=weights[0])
    for update, weight in [*zip(updates[1:], weights[1:], strict=True), (updates[0], weights[0])]:
        sums[2].add(update, weight=weight)
    others_alone, alone, together = (total.value() for total in sums)
    assert torch.equal(together - others_alone, alone)
    assert float(alone.norm()) <= float((updates[0].double() * weights[0]).norm()) * (1 + 2.0**-23)
    assert float(alone.norm()) <= clip
    assert torch.allclose(alone, updates[0].double() * weights[0], atol=clip * 2.0**-25, rtol=2.0**-23)


def test_as_many_full_updates_as_there_are_fit_an_exact_sum_and_more_than_a_double_holds_are_refused():
    for clip in (1.0, 0.7, 2.0**-30):
        full, total = torch.tensor([clip, -clip]), ExactSum(torch.zeros(2), clip=clip, most=1000)
        for _ in range(1000):
            total.add(full, weight=1.0)
        assert total.value().tolist() == pytest.approx([1000 * clip, -1000 * clip], rel=1e-6)
    ExactSum(full, clip=1.0, most=1 << 26)
    with pytest.raises(BadInput, match="at most 67,108,864 clients"):
        ExactSum(full, clip=1.0, most=(1 << 26) + 1)


def test_several_updates_at_once_add_exactly_what_each_adds_and_what_is_no_number_adds_nothing():
    generator = torch.Generator().manual_seed(0)
    rows, weights = torch.randn(20, 3000, generator=generator).to(DEVICE), torch.rand(20, generator=generator)
    alone, together = (ExactSum(rows[0], clip=100.0, most=40) for _ in range(2))
    for row, weight in zip(rows, weights.tolist(), strict=True):
        alone.add(row, weight=weight)
    broken = torch.tensor([torch.nan, torch.inf, -torch.inf], device=DEVICE)[:, None].expand(3, 3000)
    together.add_rows(torch.cat([rows, broken]), torch.cat([weights, torch.ones(3)]).to(DEVICE))
    assert torch.equal(together.value(), alone.value())


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 3, 100, FAST_FROM + 7]))
def test_no_norm_is_measured_below_what_it_is(seed, size):
    vector = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    exact = sum(Fraction(value) ** 2 for value in vector.tolist())
    assert Fraction(norm_bound(vector)) ** 2 >= exact
    assert Fraction(float(row_norm_bounds(vector[None])[0])) ** 2 >= exact
