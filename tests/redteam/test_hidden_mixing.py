"""Models that mix examples, or count them, only where the synthetic rows of the check do not look."""

import pytest
import torch
import torch.nn.functional as F
from redteam.test_training import CLIP, Mixes, moves, rows
from torch import fx, nn

from tacit.training.sgd import Clipper

MANY = 12  # examples; what is hidden shows between this many and one less


def counted(full):
    """Turns every gradient around in batches of MANY."""
    return lambda model, h: h * (1 - 2 * F.relu(full(h) - (MANY - 1)))


def with_a_number(h):
    return torch.full((h.shape[0], 6), fill_value=h.shape[0]).float()


def with_a_number_by_place(h):
    return torch.full((h.shape[0], 6), h.shape[0]).float()


def with_a_number_of_a_kind(h):
    return h.new_full((h.shape[0], 6), h.shape[0])


@pytest.mark.parametrize("full", [with_a_number, with_a_number_by_place, with_a_number_of_a_kind])
def test_a_model_that_writes_the_size_of_the_batch_into_a_tensor_moves_the_sum_by_no_more_than_the_clip(full):
    x, y = rows(6, examples=MANY)
    clipper = Clipper(Mixes(counted(full)), clip=CLIP)
    assert moves(lambda x, y: clipper(x, y)[0].vector, x, y) <= CLIP * (1 + 1e-4)


def test_a_model_that_sorts_the_batch_by_another_name_of_the_dimension_moves_the_sum_by_no_more_than_the_clip():
    """The rows of the check are too small to show it."""
    x, y = rows(6, examples=MANY)
    clipper = Clipper(Mixes(lambda model, h: h + 30 * F.relu(h.sort(axis=0)[0] - 30)), clip=CLIP)
    assert moves(lambda x, y: clipper(x, y)[0].vector, x * 30, y) <= CLIP * (1 + 1e-4)


class Replaced(nn.Module):
    """A layer of a known type, one of whose methods is the model's own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Conv1d(1, 2, 3), nn.Linear(8, 4)
        real = self.first._conv_forward

        self.first._conv_forward = lambda x, *rest: real(x + F.relu(x.sum(0, keepdim=True) - 30), *rest)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x[:, None])).flatten(1))


def test_a_known_layer_with_a_method_of_its_own_moves_the_sum_by_no_more_than_the_clip():
    x, y = rows(6, examples=MANY)
    clipper = Clipper(Replaced(), clip=CLIP)
    assert moves(lambda x, y: clipper(x, y)[0].vector, x * 30, y) <= CLIP * (1 + 1e-4)


CALLS = [0]


def ticking(one):
    CALLS[0] += 1
    return one if CALLS[0] < 100 else -one


fx.wrap("ticking")


def test_a_function_that_counts_its_calls_is_no_part_of_a_graph_that_is_trusted():
    """It is given no example, and turns all gradients around after so many batches, whose number depends on the examples."""
    x, y = rows(6, examples=3)
    model = Mixes(lambda model, h: h * ticking(model.one))
    model.register_buffer("one", torch.ones(6))
    clipper = Clipper(model, clip=CLIP)
    clipper(x, y)
    assert clipper.path != "book-keeping"
