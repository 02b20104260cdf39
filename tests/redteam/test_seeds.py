"""Two seeded runs on one ledger that differ in one seed alone: other noise, another charge; and rows stay in their hands."""

import pytest
import torch
from redteam.careless_researcher import Researcher, correlation

import tacit
from tacit.errors import BadInput, LedgerError

SHARED_NOISE = 0.25  # as in test_researcher.py


@pytest.fixture
def researcher(tmp_path, monkeypatch):
    return Researcher(tmp_path, monkeypatch)


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
