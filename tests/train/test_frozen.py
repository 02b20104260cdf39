"""What does not train: it is no part of the vector, of gradients, noise or messages, and nobody can write into it."""

import pytest
import torch
import tuned
from torch import nn

from tacit.engine.release import held
from tacit.errors import ModelRefused
from tacit.random import seeded
from tacit.training.flat import beside, blocks, flatten, frozen_mark, settled, training
from tacit.training.sgd import Clipper, clipped_sum_slow, sgd, workspace
from tacit.types import Budget, Client

FACTS = {"input_shape": (6,), "classes": 3}


def rows(count=8):
    torch.manual_seed(1)
    return torch.randn(count, 6), torch.randint(3, (count,))


def client():
    return Client(0, "a", Budget(1.0, 1e-5), *rows(20))


def test_the_vector_holds_what_trains_and_the_body_stays_where_it_is():
    model = tuned.head(**FACTS)
    place = model[0][1].weight.data_ptr()
    assert flatten(model).shape == (16 * 3 + 3,)
    assert [block.name for block in blocks(model)] == ["1.weight", "1.bias"]
    assert model[0][1].weight.data_ptr() == place
    assert beside(model)[0][1].weight is model[0][1].weight
    assert beside(model)[1].weight is not model[1].weight


def test_a_frozen_body_may_have_any_type_and_what_trains_must_be_float32():
    model = tuned.head(**FACTS)
    model[0][1].half()
    assert flatten(model).dtype == torch.float32
    with pytest.raises(ModelRefused, match="float16"):
        flatten(model.half())


@pytest.mark.parametrize("path", ["book-keeping", "vmap", "loop"])
@pytest.mark.parametrize("make", [tuned.head, tuned.normalised])
def test_every_path_gives_the_gradients_of_what_trains(path, make):
    model, (x, y) = training(make(**FACTS)), rows()
    bounded, _ = Clipper(model, clip=0.3, path=path)(x, y)
    torch.testing.assert_close(bounded.vector.float(), clipped_sum_slow(model, x, y, clip=0.3), rtol=1e-4, atol=1e-6)


def test_book_keeping_asks_for_no_gradient_of_the_body(monkeypatch):
    model, (x, y) = tuned.head(**FACTS), rows()
    clipper, asked, real = Clipper(model, clip=1.0, path="book-keeping"), [], torch.autograd.grad
    clipper(x, y)
    monkeypatch.setattr(torch.autograd, "grad", lambda sums, at, **how: asked.append(len(at)) or real(sums, at, **how))
    clipper(x, y)
    assert asked == [1]  # the output of the head


def test_batch_normalisation_is_let_through_only_where_it_is_frozen_with_its_statistics():
    model, (x, y) = tuned.normalised(**FACTS), rows()
    kind = model[0][2]
    with pytest.raises(ModelRefused, match="freeze it"):
        Clipper(model.train(), clip=1.0)  # in training mode even a frozen one mixes
    training(model)
    assert not kind.training
    assert model[1].training
    assert Clipper(model, clip=1.0)(x, y)[0].vector.any()
    kind.weight.requires_grad_(True)
    assert not settled(kind)
    with pytest.raises(ModelRefused, match="mixes the examples"):
        Clipper(training(model), clip=1.0)
    assert not settled(nn.BatchNorm1d(3, track_running_stats=False).requires_grad_(False))
    assert not settled(nn.BatchNorm1d(3, affine=False))  # nobody froze it: it is as it always was


class Counting(nn.Module):
    """Writes into its frozen parameter what it sees, past every trace that torch keeps."""

    def __init__(self):
        super().__init__()
        self.seen = nn.Parameter(torch.zeros(1), requires_grad=False)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        self.seen.data += x.detach().abs().sum()
        return self.head(x) * (1 + self.seen)


def test_no_client_meets_what_another_wrote_into_a_frozen_parameter():
    work = workspace(Counting(), clip=None, physical_batch=256)
    theta = work.theta.clone()
    how = {"steps": 3, "batch_size": 10, "learning_rate": 1e-5}
    first = sgd(work, theta, client(), **how, stream=seeded(0)("a")).update.vector
    assert float(work.model.seen) > 0
    assert torch.equal(first, sgd(work, theta, client(), **how, stream=seeded(0)("a")).update.vector)


def test_a_table_that_shortens_its_frozen_rows_is_set_back():
    table = nn.Embedding(4, 3, max_norm=0.1)
    work = workspace(
        nn.Sequential(table.requires_grad_(False), nn.Flatten(), nn.Linear(6, 3)), clip=None, physical_batch=8
    )
    before = table.weight.clone()
    one = Client(0, "a", Budget(1.0, 1e-5), torch.randint(4, (20, 2)), torch.randint(3, (20,)))
    sgd(work, work.theta.clone(), one, steps=1, batch_size=20, learning_rate=0.1, stream=seeded(0)("a"))
    assert not torch.equal(table.weight, before)
    work.forget()
    assert torch.equal(table.weight, before)


def test_the_digest_of_a_model_follows_the_bits_of_its_body_and_not_of_its_head():
    model = tuned.head(**FACTS)
    digests = held(model), frozen_mark(model)
    with torch.no_grad():
        model[1].weight.add_(1)
    assert (held(model), frozen_mark(model)) == digests
    with torch.no_grad():
        model[0][1].weight[0, 0] += 1e-7
    assert held(model) != digests[0]
    assert frozen_mark(model) != digests[1]
    assert frozen_mark(nn.Linear(2, 2)) == ""
    model = tuned.normalised(**FACTS)  # a buffer is part of it
    before = frozen_mark(model)
    model[0][2].running_mean.add_(1)
    assert frozen_mark(model) != before
