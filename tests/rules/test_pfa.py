import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_contracts import EPSILONS, LAYOUT, draws, sent, statistics

import tacit
from tacit.algorithms import combined, group_message, rules
from tacit.algorithms.rules.pfa import subspace, threshold
from tacit.data.partition import draw
from tacit.errors import BadInput
from tacit.wire import pack


def twin(updates, epsilons, *, public, rank, reading, blocks):
    """The slow twin: explicit projection matrices, block by block."""
    x, e = np.stack([u.numpy() for u in updates]).astype(float), np.asarray(epsilons)
    weigh = lambda rows: (e[rows, None] * x[rows]).sum(0) / e[rows].sum()  # noqa: E731
    pub, pri = weigh(public), weigh(~public)
    out = np.zeros(x.shape[1])
    for start, stop in blocks:
        m = x[public, start:stop] if reading == "code" else pub[None, start:stop]
        mu = m.mean(0) if len(m) > 1 else np.zeros(stop - start)
        _, s, vt = np.linalg.svd(m - mu, full_matrices=False)
        v = vt[:rank][s[:rank] > 1e-6 * s.max()].T
        out[start:stop] = v @ v.T @ (pri[start:stop] - mu) + mu
    return (e[public].sum() * pub + e[~public].sum() * out) / e.sum()


@pytest.mark.parametrize("reading", ["paper", "code"])
@pytest.mark.parametrize("blocks", ["layer", "model"])
@pytest.mark.parametrize("rank", [1, 2, 7])
def test_pfa_is_what_the_algorithm_says(reading, blocks, rank):
    epsilons = np.array([0.1, 0.2, 0.5, 0.4, 9.0, 9.5, 10.0, 11.0])
    updates = draws(8)
    rule = rules.load("pfa", reading=reading, rank=rank, blocks=blocks, split="kmeans")
    applied = combined(rule, *sent(rule, updates, epsilons))
    marks = LAYOUT if blocks == "layer" else [(0, 50)]
    expected = twin(updates, epsilons, public=epsilons > 5, rank=rank, reading=reading, blocks=marks)
    assert np.allclose(applied.update.numpy(), expected, atol=1e-4)
    assert applied.info["public"] == 4


def test_one_public_client_is_not_centred():
    rule = rules.load("pfa", split="top", share=0.1)
    updates = draws()
    applied = combined(rule, *sent(rule, updates))
    expected = twin(updates, EPSILONS, public=EPSILONS >= 10, rank=1, reading="code", blocks=LAYOUT)
    assert np.allclose(applied.update.numpy(), expected, atol=1e-4)


def test_a_round_without_a_public_client_leaves_the_model_as_it_is():
    rule = rules.load("pfa")
    memory = rule.init(LAYOUT, statistics(np.array([0.1, 0.2, 10.0])))
    updates = draws(2)
    applied = combined(rule, *sent(rule, updates, [0.1, 0.2], memory=memory))
    assert not applied.update.any()
    assert applied.info == {"public": 0, "rank": 0}


def test_a_round_without_a_private_client_averages_by_epsilon():
    rule = rules.load("pfa")
    memory = rule.init(LAYOUT, statistics(np.array([0.1, 10.0, 10.0])))
    updates = draws(2)
    applied = combined(rule, *sent(rule, updates, [10.0, 10.0], memory=memory))
    assert torch.allclose(applied.update, (updates[0] + updates[1]) / 2, atol=1e-6)


@pytest.mark.parametrize("reading", ["paper", "code"])
def test_pfa_plus_starts_as_pfa_and_then_sends_coordinates_in_the_old_basis(reading):
    plus, plain = (rules.load(name, reading=reading, rank=2, split="kmeans") for name in ("pfa-plus", "pfa"))
    first = draws(6, seed=1)
    epsilons = np.array([0.1, 0.2, 0.3, 9.0, 10.0, 11.0])
    memory, messages = sent(plus, first, epsilons)
    warm = combined(plus, memory, messages)
    assert torch.allclose(warm.update, combined(plain, *sent(plain, first, epsilons)).update, atol=1e-5)
    second = draws(6, seed=2)
    memory, messages = sent(plus, second, epsilons, memory=warm.memory)
    assert [set(m.tensors) for m in messages] == [{"coordinates"}] * 3 + [{"update"}] * 3
    blocks = 3 if reading == "code" else 1
    assert messages[0].tensors["coordinates"].shape == (blocks, warm.memory["basis"].shape[1])
    v, mu = warm.memory["basis"].numpy().astype(float), warm.memory.get("centre", torch.zeros(50)).numpy()
    private = sum(e * u.numpy() for e, u in zip(epsilons[:3], second[:3], strict=True)) / epsilons[:3].sum()
    rebuilt = mu.copy().astype(float)
    for start, stop in LAYOUT if blocks == 3 else [(0, 50)]:
        rebuilt[start:stop] += v[start:stop] @ (v[start:stop].T @ (private - mu)[start:stop])
    public = sum(e * u.numpy() for e, u in zip(epsilons[3:], second[3:], strict=True))
    expected = (public + epsilons[:3].sum() * rebuilt) / epsilons.sum()
    applied = combined(plus, memory, messages)
    assert np.allclose(applied.update.numpy(), expected, atol=1e-4)
    # of a secret sum the server takes the coordinates itself
    secret = group_message("private", torch.from_numpy(private).float(), [message.facts for message in messages[:3]])
    hidden = combined(plus, memory, [*messages[3:], secret])
    assert np.allclose(hidden.update.numpy(), expected, atol=1e-4)
    assert not torch.allclose(applied.memory["basis"], warm.memory["basis"])


def test_pfa_plus_keeps_its_basis_through_a_round_without_public_clients():
    rule = rules.load("pfa-plus")
    memory = rule.init(LAYOUT, statistics(EPSILONS))
    warm = combined(rule, *sent(rule, draws(), memory=memory)).memory
    applied = combined(rule, *sent(rule, draws(2, seed=3), [0.1, 0.2], memory=warm))
    assert torch.equal(applied.memory["basis"], warm["basis"])
    assert torch.isfinite(applied.update).all()


def test_pfa_plus_warms_up_without_a_public_client():
    rule = rules.load("pfa-plus")
    memory = rule.init(LAYOUT, statistics(EPSILONS))
    applied = combined(rule, *sent(rule, draws(2), [0.1, 0.2], memory=memory))
    assert "basis" not in applied.memory
    assert torch.isfinite(applied.update).all()


def test_private_clients_save_about_99_percent_of_the_uplink_and_the_downlink_grows():
    d, epsilons = 26_010, np.array([0.1] * 27 + [10.0, 10.1, 10.2])
    layout = (
        (0, 1024),
        (1024, 1040),
        (1040, 9232),
        (9232, 9264),
        (9264, 25_648),
        (25_648, 25_680),
        (25_680, 26_000),
        (26_000, d),
    )
    rule = rules.load("pfa-plus", split="kmeans")
    generator = torch.Generator().manual_seed(0)
    memory = rule.init(layout, statistics(epsilons))
    sizes = []
    for _ in range(2):
        updates = [torch.randn(d, generator=generator) for _ in epsilons]
        memory, messages = sent(rule, updates, epsilons, memory=memory)
        told = rule.tell(memory, epsilons)
        down = len(pack(tacit.types.Message("server", {"params": updates[0], **told.tensors}, told.facts)))
        sizes.append((len(pack(messages[0])), len(pack(messages[-1])), down))
        memory = combined(rule, memory, messages).memory
    (whole, public, plain_down), (private, public_later, down) = sizes
    assert private / whole < 0.01
    assert public_later == public
    assert 2.9 < down / plain_down < 3.1  # the model, its basis (k = 1) and its centre


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "rank >= 1"),
        ({"reading": "book"}, r"aggregate.reading to be one of 'paper' or 'code'; got 'book'"),
        ({"share": 0.0}, "share"),
        ({"ranks": 2}, "ranks"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(BadInput, match=message):
        rules.load("pfa", **options)


HOW = ("gmm", "kmeans", "top")


@pytest.mark.parametrize("how", ["gmm", "kmeans"])
@pytest.mark.parametrize("name", ["mixgauss1", "mixgauss2", "mixgauss3", "mixgauss4"])
def test_the_mixtures_of_the_paper_are_split_at_their_public_component(how, name):
    for seed in range(5):
        epsilons = draw(name, clients=30, rng=np.random.default_rng(seed))
        assert 3 < threshold(epsilons, how=how, share=0.1) < 13


def test_top_takes_the_share_with_the_largest_budgets():
    epsilons = np.arange(1.0, 31.0)
    assert threshold(epsilons, how="top", share=0.1) == 28.0
    assert threshold(epsilons[:3], how="top", share=0.1) == 3.0


@pytest.mark.parametrize("how", HOW)
def test_equal_budgets_make_everybody_public(how):
    assert threshold(np.full(10, 2.0), how=how, share=0.1) == 2.0


@pytest.mark.parametrize("how", HOW)
def test_a_client_without_a_limit_is_public_and_those_with_one_are_not(how):
    assert threshold(np.array([1.0, 2.0, np.inf]), how=how, share=0.1) == np.inf


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=30), st.sampled_from(HOW))
def test_somebody_is_always_public(values, how):
    epsilons = np.array(values)
    assert (epsilons >= threshold(epsilons, how=how, share=0.1)).any()


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=12, unique=True))
def test_two_means_is_the_best_of_all_cuts(values):
    x = np.sort(np.array(values, dtype=float))
    errors = [x[:k].var() * k + x[k:].var() * (len(x) - k) for k in range(1, len(x))]
    cut = np.searchsorted(x, threshold(x, how="kmeans", share=0.1))
    assert errors[cut - 1] == pytest.approx(min(errors), rel=1e-6, abs=1e-6)


def projected_slowly(rows, x, *, rank, centred):
    """The slow projected_slowly: numpy's dense SVD."""
    m = np.stack(rows).astype(float)
    mu = m.mean(0) if centred else np.zeros(m.shape[1])
    _, s, vt = np.linalg.svd(m - mu, full_matrices=False)
    v = vt[:rank][s[:rank] > 1e-5 * max(s.max(), 1e-30)].T
    return v @ (v.T @ (x - mu)) + mu


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 40), st.integers(1, 8), st.booleans(), st.integers(0, 10**6))
def test_projection_agrees_with_the_dense_svd(n, d, rank, centred, seed):
    rng = np.random.default_rng(seed)
    scales = np.exp(-np.arange(n))[:, None]  # separated singular values: the top subspace is well defined
    rows, x = (scales * rng.normal(size=(n, d))).astype(np.float32), rng.normal(size=d).astype(np.float32)
    centred = centred and n > 1
    space = subspace([torch.from_numpy(r) for r in rows], rank=rank, centred=centred)
    found = space.point(space.coordinates(torch.from_numpy(x))).numpy()
    assert np.allclose(found, projected_slowly(rows, x, rank=rank, centred=centred), atol=2e-3)


@pytest.mark.parametrize("centred", [False, True])
def test_the_basis_is_orthonormal_and_gives_the_same_projection(centred):
    torch.manual_seed(0)
    rows, x = list(torch.randn(6, 200_000)), torch.randn(200_000)
    space = subspace(rows, rank=4, centred=centred)
    v = space.basis()
    assert torch.allclose(v.T @ v, torch.eye(4), atol=1e-4)
    mu = torch.stack(rows).mean(0) if centred else torch.zeros(200_000)
    assert torch.allclose(v @ (v.T @ (x - mu)) + mu, space.point(space.coordinates(x)), atol=1e-4)


def test_a_rank_above_that_of_the_rows_lets_no_noise_in():
    torch.manual_seed(0)
    rows = [torch.randn(50) for _ in range(3)]
    assert subspace(rows, rank=10, centred=True).mix.shape[1] == 2
    assert subspace(rows, rank=10, centred=False).mix.shape[1] == 3
    assert subspace([rows[0], 2 * rows[0]], rank=2, centred=False).mix.shape[1] == 1


def test_rows_that_are_all_zero_span_nothing():
    space = subspace([torch.zeros(5), torch.zeros(5)], rank=2, centred=False)
    assert torch.equal(space.point(space.coordinates(torch.ones(5))), torch.zeros(5))
