"""Rows held out for testing: a coin for each row, keyed by the seed and the row alone, so that no row moves another."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.data.dataset import hold_out
from tacit.data.sources import load
from tacit.errors import BadData
from tacit.experiment.data import DataSection


def rows(count, *, seed=0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=(count, 3)).astype(np.float32)), torch.from_numpy(rng.integers(0, 2, count))


@given(share=st.floats(0.05, 0.9), seed=st.integers(0, 9), gone=st.integers(0, 299))
def test_a_row_that_goes_moves_no_other_one_between_training_and_test(share, seed, gone):
    x, y = rows(300, seed=seed)
    held = hold_out(x, y, None, share=share, seed=seed)
    rest = np.arange(300) != gone
    assert np.array_equal(hold_out(x[rest], y[rest], None, share=share, seed=seed), held[rest])


def test_the_order_of_the_rows_and_whose_they_are_do_not_matter():
    x, y = rows(300)
    held = hold_out(x, y, None, share=0.2, seed=1)
    order = np.random.default_rng(1).permutation(300)
    owners = (("a", "b", "c"), np.arange(300) % 3)
    assert np.array_equal(hold_out(x[order], y[order], owners, share=0.2, seed=1), held[order])


def test_about_the_share_is_held_out_and_the_seed_decides_which():
    x, y = rows(4000)
    first, other = (hold_out(x, y, None, share=0.2, seed=seed) for seed in (1, 2))
    assert 0.17 < first.mean() < 0.23
    assert 0.03 < (first & other).mean() < 0.05  # as two coins that know nothing of each other


def test_a_client_whose_rows_would_all_be_held_out_is_named():
    x, y = rows(30)
    owners = (("large", "small"), (np.arange(30) == 7).astype(np.int32))
    seeds = [seed for seed in range(40) if hold_out(x, y, None, share=0.2, seed=seed)[7]]
    with pytest.raises(
        BadData, match=r"hold out every row of client 'small': clients this small need public test rows"
    ):
        hold_out(x, y, owners, share=0.2, seed=seeds[0])


def test_a_row_of_a_csv_file_is_held_out_as_it_was_written_however_it_is_scaled(tmp_path):
    lines = [f"{20 + k % 60},{100 + 7 * k % 300},{k % 2}" for k in range(400)]
    (tmp_path / "rows.csv").write_text("age,chol,ill\n" + "\n".join(lines) + "\n")
    settings = {"name": "csv", "path": str(tmp_path / "rows.csv"), "label": "ill", "classes": 2}
    found = []
    for ranges in ({"age": "unscaled", "chol": "unscaled"}, {"age": [0, 120], "chol": [150, 200]}):
        data = load(DataSection(**settings, numeric=ranges), seed=3)
        found.append((data.y.tolist(), data.test_y.tolist()))
    assert found[0] == found[1]


def test_rows_too_few_for_any_to_be_held_out_are_refused():
    x, y = rows(2)
    with pytest.raises(BadData, match=r"hold out no row: .* data\.test_path"):
        hold_out(x, y, None, share=1e-9, seed=0)
