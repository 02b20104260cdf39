"""What a lying server can tell clients beside the model: it is checked before anything is charged."""

import pytest
import torch
from redteam.lying_server import Server, experiment

from tacit.errors import Refused
from tacit.types import Message
from tacit.wire import pack

SIZE = 650


def word(**changes):
    """The broadcast of an honest PFA+ after its first round, with changes."""
    tensors = {"params": torch.zeros(SIZE), "basis": torch.ones(SIZE, 1), "centre": torch.zeros(SIZE)}
    facts = {"threshold": 1e9, "layout": [0, 640, SIZE]}
    for name, value in changes.items():
        (tensors if isinstance(value, torch.Tensor) else facts)[name] = value
    return Message("server", tensors, facts)


CRAFTED = {
    "hours of blocks": word(layout=[0, SIZE] * 100_000),
    "blocks of nothing": word(layout=[0] * 100_000 + [SIZE]),
    "blocks that overlap": word(layout=[0, SIZE, 0, SIZE]),
    "no layout": word(layout=None),
    "no numbers": word(layout=[0, "640", SIZE]),
    "a wide basis": word(basis=torch.ones(SIZE, 4000)),
    "a basis of nothing": word(basis=torch.ones(SIZE, 0)),
    "another basis": word(basis=torch.ones(SIZE)),
    "a long centre": word(centre=torch.ones(SIZE, SIZE)),
    "another centre": word(centre=torch.zeros(SIZE, dtype=torch.float64)),
    "no threshold": word(threshold=None),
    "a text for a threshold": word(threshold="0"),
}


@pytest.fixture
def asking(tmp_path):
    made = Server(tmp_path / "site", experiment(aggregate={"rule": "pfa-plus"}, model={"name": "logr"}))
    made.agree()
    return made


@pytest.mark.parametrize("why", CRAFTED)
def test_a_crafted_word_of_a_rule_is_refused_before_it_costs_time_memory_or_budget(asking, why):
    with pytest.raises(Refused, match="beside the parameters"):
        asking.train(0, body=pack(CRAFTED[why]))
    assert asking.charges() == []
    assert asking.train(0, body=pack(word()))


def test_a_basis_that_is_not_finite_is_answered_for_its_price_like_any_other(asking):
    asking.train(0, body=pack(word(basis=torch.full((SIZE, 1), torch.nan))))
    assert asking.charges() == [0]
