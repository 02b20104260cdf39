"""A device that has no room left: fewer test rows at a time, and one sentence where even that does not help."""

import pytest
import torch
from torch import nn

import tacit
from tacit.engine import loop
from tacit.engine.assemble import build
from tacit.engine.evaluate import evaluate
from tacit.errors import TacitError


class Cramped(nn.Module):
    """Logistic regression for at most so many rows at a time, as if the device had no room for more."""

    def __init__(self, most):
        super().__init__()
        self.layer, self.most = nn.Linear(64, 10), most

    def forward(self, x):
        if not self.training and len(x) > self.most:
            raise torch.OutOfMemoryError("no room")
        return self.layer(x.flatten(1))


def test_a_full_device_answers_fewer_rows_at_a_time():
    parts = build(tacit.Experiment(data={"clients": 3}, model={"name": "logr"}, privacy={"kind": "none"}))
    whole = evaluate(parts, parts.params)
    cramped = Cramped(7)
    object.__setattr__(parts, "model", cramped)
    cramped.layer = next(module for module in build(parts.experiment).model.modules() if isinstance(module, nn.Linear))
    with torch.no_grad():
        parts.theta.copy_(parts.params)
        offset = 0
        for parameter in cramped.parameters():
            parameter.copy_(parts.params[offset : offset + parameter.numel()].view_as(parameter))
            offset += parameter.numel()
    found = evaluate(parts, parts.params)
    assert found["accuracy"] == whole["accuracy"]
    assert found["loss"] == pytest.approx(whole["loss"])
    assert cramped.training


def test_a_device_that_is_full_beside_training_ends_the_run_in_one_sentence(tmp_path, monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(loop, "evaluating", full)
    experiment = tacit.Experiment(data={"clients": 3}, train={"rounds": 1}, privacy={"kind": "none"})
    with pytest.raises(TacitError, match="end what else runs there, then go on with --resume"):
        tacit.run(experiment, out=tmp_path / "run")
