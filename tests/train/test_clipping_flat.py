"""The flat vector of parameters."""

import pytest
import torch
from torch import nn

from tacit.errors import ModelRefused
from tacit.training.clipping import Clipper, clipped_sum_slow
from tacit.training.flat import blocks, flatten


def tied():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    return model


def test_parameters_become_views_of_one_vector():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    theta = flatten(model)
    assert theta.shape == (3 * 4 + 4 + 4 * 2 + 2,)
    assert not theta.requires_grad
    for parameter, old, view in zip(model.parameters(), before, (b.of(theta) for b in blocks(model)), strict=True):
        assert torch.equal(parameter, old)
        assert parameter.data_ptr() == view.data_ptr()
        assert parameter.requires_grad
    theta.fill_(2.0)
    assert all((parameter == 2).all() for parameter in model.parameters())


def test_the_model_still_trains_after_flattening():
    model = nn.Linear(3, 2)
    theta = flatten(model)
    old = theta.clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    torch.testing.assert_close(theta, old - 1)


def test_a_second_call_returns_the_same_memory():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    assert flatten(model).data_ptr() == flatten(model).data_ptr()
    assert flatten(model).shape == flatten(model).shape


def test_a_tied_parameter_is_stored_once():
    model = tied()
    theta = flatten(model)
    assert theta.shape == (9 + 3 + 3,)
    assert model[0].weight is model[2].weight
    assert [block.name for block in blocks(model)] == ["0.weight", "0.bias", "2.bias"]


def test_a_tied_model_is_clipped_as_one():
    model, x, y = tied(), torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])
    flatten(model)
    bounded, _ = Clipper(model, clip=0.3)(x, y)
    torch.testing.assert_close(bounded.vector.float(), clipped_sum_slow(model, x, y, clip=0.3), rtol=1e-4, atol=1e-6)


def test_a_transposed_parameter_is_flattened_by_value():
    model = nn.Linear(3, 2)
    model.weight = nn.Parameter(torch.arange(6.0).view(3, 2).T)
    theta = flatten(model)
    assert theta[:6].tolist() == [0, 2, 4, 1, 3, 5]


def test_a_model_without_parameters_is_empty():
    assert flatten(nn.ReLU()).shape == (0,)


def test_other_types_are_refused():
    with pytest.raises(ModelRefused, match="float16"):
        flatten(nn.Linear(3, 2).half())
