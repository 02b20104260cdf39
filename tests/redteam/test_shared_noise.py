"""Two seeded runs on one ledger whose releases differ by what no setting and no file of the model says: they share no noise."""

import sys

import pytest
import torch
from redteam.careless_researcher import Researcher, correlation

SHARED_NOISE = 0.25  # as in test_researcher.py

MODEL = """
import os
import torch
from torch import nn
import own_helper
from own_helper import LIMIT

class Own(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.out, self.scale = nn.Linear(64, classes), float(os.environ.get("OWN_SCALE", "1"))
        self.register_buffer("mask", torch.load(os.environ["OWN_MASK"]), persistent=False)

    def forward(self, x):
        return self.out(own_helper.activated(x.flatten(1) * self.mask * self.scale).clamp(max=LIMIT))

def make(input_shape, classes):
    return Own(classes)
"""
HELPER = """
LIMIT = 9.0

def activated(x):
    return x * 1.0
"""


@pytest.fixture
def researcher(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("OWN_MASK", str(tmp_path / "mask.pt"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "own_shared.py").write_text(MODEL)
    (tmp_path / "own_helper.py").write_text(HELPER)
    torch.save(torch.ones(64), tmp_path / "mask.pt")
    yield Researcher(tmp_path, monkeypatch)
    forget()


def forget():
    """What a new process would have to import again."""
    for name in ("own_shared", "own_helper"):
        sys.modules.pop(name, None)


def updates(researcher):
    return [researcher.update(name, client="client-1") for name in ("one", "two")]


def run(researcher, name):
    researcher.run(name, model={"name": "own_shared:make"}, privacy=researcher.shared(), train={"rounds": 1})


def edit(path, old, new):
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(
    "change", ["a function it imports", "a number it imports", "a buffer it reads", "an attribute it is told"]
)
def test_a_model_that_computes_something_else_by_what_its_own_file_does_not_say_gets_other_noise(
    researcher, monkeypatch, change
):
    run(researcher, "one")
    forget()
    if change == "a function it imports":
        edit(researcher.place / "own_helper.py", "x * 1.0", "x * 0.5")
    elif change == "a number it imports":
        edit(researcher.place / "own_helper.py", "9.0", "0.5")
    elif change == "a buffer it reads":
        torch.save(torch.arange(64.0), researcher.place / "mask.pt")
    else:
        monkeypatch.setenv("OWN_SCALE", "3")
    run(researcher, "two")
    assert abs(correlation(*updates(researcher))) < SHARED_NOISE


def test_a_model_whose_file_was_edited_after_it_was_imported_shares_no_noise_with_what_is_imported_later(researcher):
    """A notebook keeps the code of before, and the file says that of afterwards."""
    __import__("own_shared")
    edit(researcher.place / "own_shared.py", "* self.scale", "* self.scale * 0.1")
    run(researcher, "one")
    forget()
    run(researcher, "two")
    assert abs(correlation(*updates(researcher))) < SHARED_NOISE


def test_the_same_model_imported_again_gives_the_very_same_bits(researcher):
    run(researcher, "one")
    forget()
    run(researcher, "two")
    assert torch.equal(*updates(researcher))


def test_sums_that_another_kernel_rounds_differently_are_another_release(researcher, monkeypatch):
    """With the same noise, the difference of two releases would be what rounding tells about the rows."""
    run(researcher, "one")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    run(researcher, "two")
    assert abs(correlation(*updates(researcher))) < SHARED_NOISE
