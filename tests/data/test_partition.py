"""Sharing rows among clients: every row at most once, the sizes that were asked for, and always an end."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tacit.data.dataset import Dataset
from tacit.data.partition import client_names, first, grouped, label_counts, share_out
from tacit.data.sources import load
from tacit.errors import BadData, BadInput
from tacit.experiment.data import DataSection


def partition(y, *, rng, client=None, names=None, **section):
    """The shares of rows with these labels, as a section of an experiment deals them out."""
    x, y, classes = torch.zeros(len(y), 1), torch.from_numpy(y), tuple("0123456789")
    whose = {"client": client, "client_names": names}
    data = Dataset("made up", x, y, x[:0], y[:0], classes, **whose)
    return share_out(data, DataSection(**section), rng=rng)


def labels(rows, classes=10):
    return np.random.default_rng(rows).integers(0, classes, rows)


def held(shares):
    """The rows of all clients, after seeing that the offsets and the views agree."""
    assert np.array_equal(np.concatenate([shares[client] for client in range(len(shares))]), shares.order)
    assert shares.order.dtype == shares.offsets.dtype == np.int64
    return shares.order


def assert_each_row_at_most_once(shares, rows):
    order = held(shares)
    assert len(np.unique(order)) == len(order)
    assert shares.sizes.min() >= 1
    assert 0 <= order.min() <= order.max() < rows


@given(clients=st.integers(1, 40), rows=st.integers(40, 500), seed=st.integers(0, 99))
def test_iid_uses_every_row_once_in_sizes_that_differ_by_one(clients, rows, seed):
    shares = partition(labels(rows), partition="iid", clients=clients, rng=np.random.default_rng(seed))
    assert sorted(held(shares)) == list(range(rows))
    assert shares.sizes.max() - shares.sizes.min() <= 1


@given(
    clients=st.integers(1, 20),
    per_client=st.integers(1, 10),
    extra=st.integers(0, 99),
    each=st.none() | st.integers(10, 15),
    seed=st.integers(0, 99),
)
def test_shards_use_each_row_at_most_once_in_equal_sizes(clients, per_client, extra, each, seed):
    rows = clients * max(per_client, each or 0) + extra
    shares = partition(
        labels(rows),
        partition="shards",
        clients=clients,
        shards_per_client=per_client,
        examples_per_client=each,
        rng=np.random.default_rng(seed),
    )
    assert_each_row_at_most_once(shares, rows)
    assert len(held(shares)) == (rows if each is None else clients * each)
    assert shares.sizes.max() - shares.sizes.min() <= (per_client if each is None or each % per_client else 0)


def test_few_shards_a_client_mean_few_labels_a_client():
    y = np.repeat(np.arange(10), 1000)
    shares = partition(y, partition="shards", clients=50, shards_per_client=2, rng=np.random.default_rng(0))
    assert max(len(np.unique(y[shares[client]])) for client in range(50)) <= 2
    mixed = partition(y, partition="iid", clients=50, rng=np.random.default_rng(0))
    assert min(len(np.unique(y[mixed[client]])) for client in range(50)) == 10


@settings(deadline=None)
@given(
    clients=st.integers(1, 40),
    min_size=st.integers(1, 12),
    spare=st.integers(0, 200),
    log_alpha=st.floats(-320, 300),
    seed=st.integers(0, 99),
)
@example(clients=9, min_size=2, spare=50, log_alpha=-323, seed=0)
def test_dirichlet_always_ends_with_every_row_used_and_nobody_too_small(clients, min_size, spare, log_alpha, seed):
    rows = clients * min_size + spare
    alpha = max(10.0**log_alpha, 5e-324)
    rng = np.random.default_rng(seed)
    shares = partition(labels(rows), partition="dirichlet", clients=clients, alpha=alpha, min_size=min_size, rng=rng)
    assert sorted(held(shares)) == list(range(rows))
    assert shares.sizes.min() >= min_size


def test_small_alpha_is_skewed_and_large_alpha_is_not():
    y = labels(20_000)

    def top_share(alpha):
        rng = np.random.default_rng(0)
        shares = partition(y, partition="dirichlet", clients=20, alpha=alpha, min_size=1, rng=rng)
        return np.mean([np.bincount(y[shares[client]]).max() / len(shares[client]) for client in range(20)])

    assert top_share(0.05) > 0.6
    assert top_share(1000) < 0.15


def test_dirichlet_proportions_have_the_moments_of_the_distribution():
    """For Dir(a) over K clients the variance of a proportion is (1/K)(1 - 1/K)/(K a + 1); a and 2a are told apart."""
    rng, y, clients = np.random.default_rng(0), np.zeros(10_000, int), 5

    def variance(alpha):
        draws = [
            partition(y, partition="dirichlet", clients=clients, alpha=alpha, min_size=1, rng=rng) for _ in range(150)
        ]
        return np.var(np.concatenate([draw.sizes / len(y) for draw in draws]))

    for alpha in (0.5, 3.0):
        expected = 0.2 * 0.8 / (clients * alpha + 1)
        assert 0.8 < variance(alpha) / expected < 1.25
        assert not 0.8 < variance(2 * alpha) / expected < 1.25


def test_a_cap_takes_random_rows_of_a_client_beyond_it():
    y, rng = np.repeat(np.arange(10), 50), np.random.default_rng(0)
    shares = partition(y, partition="dirichlet", clients=4, examples_per_client=20, rng=rng)
    assert_each_row_at_most_once(shares, 500)
    assert shares.sizes.max() == 20


def test_clients_that_the_data_names_hold_all_of_their_rows_in_their_order():
    client = np.random.default_rng(0).permutation(np.repeat([0, 1, 2, 3], [5, 95, 200, 200]))
    whose = {"client": client, "names": ("a", "b", "c", "d")}
    shares = partition(np.zeros(500, int), partition="natural", rng=np.random.default_rng(1), **whose)
    assert [shares[k].tolist() for k in range(4)] == [np.flatnonzero(client == k).tolist() for k in range(4)]


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "shards"])
def test_the_same_generator_gives_the_same_shares(kind):
    y = labels(300)

    def shares(seed):
        return partition(y, partition=kind, clients=6, rng=np.random.default_rng(seed)).order

    assert np.array_equal(shares(1), shares(1))
    assert not np.array_equal(shares(1), shares(2))


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"partition": "iid", "clients": 101}, "at least one row per client, got 100 rows for 101 clients"),
        (
            {"partition": "iid", "clients": 20, "examples_per_client": 6},
            "20 clients with 6 examples each need 120 rows, but there are 100: set examples_per_client to at most 5",
        ),
        ({"partition": "shards", "clients": 20}, "20 clients with 10 shards each need 200 rows, but there are 100"),
        (
            {"partition": "dirichlet", "clients": 20},
            "20 clients with at least 10 examples each need 200 rows, but there are 100: set min_size to at most 5",
        ),
        ({"partition": "natural"}, "This data names no clients: set data.client_column"),
    ],
)
def test_what_cannot_be_shared_is_refused(keys, sentence):
    with pytest.raises(BadInput, match=sentence):
        partition(labels(100), rng=np.random.default_rng(0), **keys)


def test_a_client_without_data_is_refused_by_name():
    whose = {"client": np.array([0, 0, 2, 2]), "names": ("ann", "bob", "cy")}
    with pytest.raises(BadData, match="Client 'bob' has no data"):
        partition(labels(4), partition="natural", rng=np.random.default_rng(0), **whose)


def test_a_natural_section_takes_the_clients_of_the_data(tmp_path):
    x, y = np.arange(9.0)[:, None], np.arange(9) % 2
    np.savez(tmp_path / "a.npz", x=x, y=y, client=np.repeat(["z", "y", "x"], 3), x_test=x, y_test=y)
    section = DataSection(name="npz", path=str(tmp_path / "a.npz"), classes=2, partition="natural")
    data = load(section, seed=0)
    shares = share_out(data, section, rng=np.random.default_rng(0))
    assert client_names(data, section) == ("x", "y", "z")
    assert shares.sizes.tolist() == [3, 3, 3]


def test_very_many_clients_are_shared():
    y = np.random.default_rng(0).integers(0, 10, 200_000).astype(np.int8)
    shares = partition(y, partition="dirichlet", clients=20_000, min_size=5, rng=np.random.default_rng(0))
    assert len(np.unique(shares.order)) == len(y)
    assert shares.sizes.min() >= 5


@given(owner=st.lists(st.integers(0, 5), min_size=1, max_size=60), seed=st.integers(0, 9))
def test_grouping_gives_every_client_its_rows_and_nobody_the_rest(owner, seed):
    owner = np.array(owner)
    shares = grouped(owner, clients=5, rng=np.random.default_rng(seed))
    assert len(shares) == 5
    for client in range(5):
        assert sorted(shares[client]) == np.flatnonzero(owner == client).tolist()


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    wanted=st.lists(st.integers(0, 12), min_size=8, max_size=8),
)
def test_the_first_rows_and_the_rest_make_the_whole(sizes, wanted):
    shares = grouped(np.repeat(np.arange(len(sizes)), sizes), clients=len(sizes), rng=np.random.default_rng(0))
    kept, rest = first(shares, np.array(wanted[: len(sizes)]))
    assert kept.sizes.tolist() == [min(size, want) for size, want in zip(sizes, wanted, strict=False)]
    assert sorted([*kept.order, *rest]) == list(range(sum(sizes)))
    for client in range(len(sizes)):
        assert set(kept[client]) <= set(shares[client])


@given(seed=st.integers(0, 99))
def test_label_counts_agree_with_counting_one_by_one(seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 4, 50)
    shares = grouped(rng.integers(0, 7, 50), clients=6, rng=rng)
    counts = label_counts(y, shares, classes=4)
    slow = [[int((y[shares[client]] == label).sum()) for label in range(4)] for client in range(6)]
    assert counts.tolist() == slow
