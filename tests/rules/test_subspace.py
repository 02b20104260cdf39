import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.algorithms.rules.pfa import subspace


def twin(rows, x, *, rank, centred):
    """The slow twin: numpy's dense SVD."""
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
    assert np.allclose(found, twin(rows, x, rank=rank, centred=centred), atol=2e-3)


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
