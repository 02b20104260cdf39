import pytest
import torch
import torch.nn.functional as F

from tacit.training import fused

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # where there is one, its kernels are tried
TYPES = (torch.float32, torch.bfloat16)


def near(found, expected, dtype):
    torch.testing.assert_close(found, expected, rtol=1e-5 if dtype == torch.float32 else 1e-2, atol=1e-5)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_step_goes_against_its_direction_by_the_rate_also_where_that_is_not_in_one_piece(stride):
    part, along = torch.randn(3, 1500, device=DEVICE), torch.randn(3, 1500 * stride, device=DEVICE)[:, ::stride]
    expected = part - 0.3 * along
    fused.step_(part, along, torch.tensor(0.3, device=DEVICE))
    torch.testing.assert_close(part, expected)


@pytest.mark.parametrize("shape", [(6, 5, 7, 9), (4, 3, 1), (2, 32, 40, 41)])
@pytest.mark.parametrize("dtype", TYPES)
def test_every_client_adds_its_own_bias_to_its_own_rows(shape, dtype):
    out, bias = torch.randn(shape, device=DEVICE).to(dtype), torch.randn(2, shape[1], device=DEVICE)
    each = bias.repeat_interleave(shape[0] // 2, 0).view(*shape[:2], *(1 for _ in shape[2:]))
    expected = (out.float() + each).to(dtype)
    near(fused.add_bias_(out, bias), expected, dtype)


@pytest.mark.parametrize("shape", [(6, 5, 7, 9), (4, 3, 1), (2, 32, 40, 41)])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_bias_has_the_sum_of_its_clients_gradients(shape, dtype):
    d = torch.randn(shape, device=DEVICE).to(dtype)
    expected = d.double().reshape(2, shape[0] // 2, shape[1], -1).sum((1, 3))
    found = fused.sum_bias(d, 2).double()
    rtol, atol = (2e-2, 0.5) if dtype == torch.bfloat16 else (1e-4, 1e-4)
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)


SIDE_BY_SIDE = [
    ((3, 2, 8, 8), (2, 2), (2, 2)),
    ((2, 1, 7, 9), (2, 3), (2, 3)),
    ((1, 4, 5, 5), (5, 1), (5, 1)),
    ((1, 1, 40, 40), (20, 20), (20, 20)),
]
OVERLAPPING = [
    ((3, 2, 8, 8), (2, 2), (1, 1)),
    ((2, 1, 7, 9), (3, 3), (2, 2)),
    ((1, 4, 5, 6), (3, 1), (1, 1)),
    ((2, 2, 9, 9), (2, 2), (3, 3)),
]


@pytest.mark.parametrize(("shape", "size", "stride"), SIDE_BY_SIDE + OVERLAPPING)
def test_pooling_and_its_way_back_are_torchs_with_ties_and_what_is_no_number(shape, size, stride):
    x = torch.randint(0, 3, shape, device=DEVICE).float()
    if size != stride and not fused.pools_overlapping(x, size):
        pytest.skip("windows that overlap are torch's where there is no Triton")
    x.view(-1)[3], x.view(-1)[-1] = torch.nan, torch.inf
    x.requires_grad_()
    theirs = F.max_pool2d(x, size, stride)
    found, where = fused.pool(x.detach(), size, stride)
    assert torch.equal(found.nan_to_num(-9.0), theirs.detach().nan_to_num(-9.0))
    d = torch.randn_like(found)
    torch.testing.assert_close(fused.unpool(d, where, size, stride, x.shape), torch.autograd.grad(theirs, x, d)[0])
