"""Rows held out for testing: some of every client's, chosen by the seed, and never its last one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.data.held_out import hold_out
from tacit.errors import BadData


@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=20).filter(lambda sizes: max(sizes) > 2),
    share=st.floats(0.2, 0.9),
    seed=st.integers(0, 9),
)
def test_every_client_gives_its_share_and_keeps_a_row(sizes, share, seed):
    client = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    held = hold_out(client, rows=len(client), share=share, seed=seed)
    for index, size in enumerate(sizes):
        taken = held[client == index].sum()
        assert taken == min(np.floor(size * share + 0.5), max(size - 1, 0))


def test_the_seed_decides_which_rows():
    first, same, other = (hold_out(None, rows=100, share=0.2, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)
    assert first.sum() == 20


def test_clients_too_small_to_give_a_row_are_refused():
    with pytest.raises(BadData, match=r"No client has enough rows to hold out 0.2 of them: set data.test_path"):
        hold_out(np.array([0, 1, 2]), rows=3, share=0.2, seed=0)
