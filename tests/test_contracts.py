"""Every rule that ships is held to the same contract; a new file in tacit/rules/ is found by itself."""

import pytest
import torch

from tacit import rules
from tacit.errors import BadInput
from tacit.types import Message

FACTS = {"examples": 60, "noise_std": 0.1, "epsilon": 1.0}


def message(name, update, **facts):
    return Message(name, {"update": torch.as_tensor(update)}, FACTS | facts)


@pytest.fixture(params=rules.names())
def rule(request):
    return rules.load(request.param)


def test_equal_updates_come_back_unchanged(rule):
    update = torch.randn(50, generator=torch.Generator().manual_seed(0))
    applied = rule.apply(rule.init(), [message(str(i), update.clone(), examples=10 + i) for i in range(4)])
    assert torch.allclose(applied.update, update, atol=1e-6)


def test_the_order_of_clients_does_not_matter(rule):
    generator = torch.Generator().manual_seed(0)
    messages = [message(str(i), torch.randn(50, generator=generator), examples=10 + i) for i in range(5)]
    forward = rule.apply(rule.init(), messages).update
    assert torch.allclose(forward, rule.apply(rule.init(), messages[::-1]).update, atol=1e-6)


def test_the_messages_are_left_as_they_were(rule):
    update = torch.ones(5)
    rule.apply(rule.init(), [message("a", update), message("b", 3 * torch.ones(5))])
    assert torch.equal(update, torch.ones(5))


def test_a_rule_says_what_it_sees(rule):
    assert rule.sees in ("sums", "rows")


def test_no_messages_are_refused(rule):
    with pytest.raises(BadInput):
        rule.apply(rule.init(), [])


def test_mean_weighs_by_examples():
    mean = rules.load("mean")
    applied = mean.apply({}, [message("a", [0.0], examples=1), message("b", [4.0], examples=3)])
    assert applied.update.item() == 3.0


def test_a_rule_can_come_from_any_module():
    assert rules.load("tacit.rules.mean:mean").sees == "sums"
    with pytest.raises(BadInput, match=r"nowhere:rule"):
        rules.load("nowhere:rule")
