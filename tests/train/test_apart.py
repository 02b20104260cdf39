import pytest
import torch
from torch import nn

from tacit.training.flat import answers_apart


class Mixing(nn.Module):
    """Takes the mean over the batch."""

    def forward(self, x):
        return x - x.mean(0, keepdim=True) + x.sum(1, keepdim=True)


class Remembering(nn.Module):
    """Adds up whatever it has seen, where vmap can and where it cannot follow."""

    def __init__(self, *, tensors):
        super().__init__()
        self.register_buffer("seen", torch.zeros(2))
        self.notes, self.tensors = [], tensors

    def forward(self, x):
        if self.tensors:
            self.seen += x.sum(0)
            return x + self.seen
        self.notes.append(float(x.sum()))
        return x + sum(self.notes)


class Choosing(nn.Module):
    """Looks at a value, and cannot read some."""

    def forward(self, x):
        if float(x[0, 0]) > 2:
            raise ValueError(x)
        return 2 * x if float(x[0, 0]) > 0 else x


MODELS = [
    Mixing(),
    Remembering(tensors=True),
    Remembering(tensors=False),
    Choosing(),
    nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)),
    nn.BatchNorm1d(2),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_an_answer_depends_on_its_own_row_alone(model):
    x = torch.randn(12, 2, generator=torch.Generator().manual_seed(0))
    found = answers_apart(model.eval(), x, answer=(2,))
    for row in range(12):
        others = torch.cat([x[row : row + 1], 3 * torch.randn(5, 2)])
        assert torch.allclose(answers_apart(model, others, answer=(2,))[0], found[row], atol=1e-6)


def test_a_row_that_cannot_be_read_gets_zeros_and_changes_no_other():
    x = torch.tensor([[1.0, 1.0], [3.0, 1.0], [-1.0, 1.0]])
    assert answers_apart(Choosing(), x, answer=(2,)).tolist() == [[2.0, 2.0], [0.0, 0.0], [-1.0, 1.0]]


def test_plain_models_answer_as_they_do_in_a_batch_and_no_rows_have_no_answers():
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), torch.randn(1500, 1, 2, 2)
    with torch.no_grad():
        assert torch.allclose(answers_apart(model, x, answer=(3,)), model(x), atol=1e-6)
    assert answers_apart(model, x[:0], answer=(3,)).shape == (0, 3)
