"""Two seeded runs on one ledger share no noise where they differ by a seed, or by what no setting and no file of the model says."""

import sys

import pytest
import torch
from redteam.careless_researcher import Researcher, correlation

import tacit
from tacit.errors import BadInput, LedgerError

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


@pytest.mark.parametrize("changes", [{"seed": {"noise": 1}}, {"seed": {"model": 1}}, {"run": {"seed": 1}}])
def test_runs_that_differ_in_one_seed_share_no_noise_and_both_pay(researcher, changes):
    common = {"privacy": researcher.shared(), "train": {"rounds": 1}, "seed": {"data": 0}}
    researcher.run("one", **common)
    history = researcher.run("two", **common | changes | {"seed": common["seed"] | changes.get("seed", {})})
    assert abs(correlation(researcher.update("one"), researcher.update("two"))) < SHARED_NOISE
    assert len(list(history.ledger.entries())) == 2 * 3


def test_what_a_client_allows_is_in_the_key_of_the_noise(researcher):
    for name, privacy in (("one", {"epsilon": 9.0}), ("two", {"epsilon": 9.5})):
        researcher.run(name, train={"rounds": 1}, privacy=researcher.shared() | privacy)
    assert abs(correlation(researcher.update("one"), researcher.update("two"))) < SHARED_NOISE


def test_the_same_seeds_said_again_are_the_very_same_release(researcher):
    common = {"privacy": researcher.shared(), "train": {"rounds": 1}, "seed": {"data": 4, "noise": 2}}
    for name in ("one", "two"):
        researcher.run(name, **common)
    assert torch.equal(researcher.update("one"), researcher.update("two"))


def test_rows_dealt_out_by_another_seed_are_refused_on_the_ledger_of_all(researcher):
    researcher.run("one", privacy=researcher.shared(), train={"rounds": 1}, seed={"data": 0})
    with pytest.raises(LedgerError, match=r"seed\.data"):
        researcher.run("two", privacy=researcher.shared(), train={"rounds": 1}, seed={"data": 1})
    assert not any(name == "two" for name, _, _ in researcher.seen)


def test_a_seed_for_a_model_that_is_made_already_is_refused(researcher):
    made = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    with pytest.raises(BadInput, match=r"leave out seed\.model"):
        tacit.run(researcher.experiment(seed={"model": 1}), model=made, out=researcher.place / "made")
