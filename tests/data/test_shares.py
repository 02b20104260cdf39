"""Rows grouped by client."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tacit.data.partition import first, grouped, label_counts


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
