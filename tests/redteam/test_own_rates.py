"""A trusted server draws each site at a rate of its own: a site pays for no other rate than the one that its own budget gives."""

import json

import pytest
from redteam.lying_server import EPSILONS, Server, experiment

from tacit.errors import Refused
from tacit.privacy.accounting import price

OWN = {
    "privacy": {"kind": "central", "epsilon": list(EPSILONS), "delta": 1e-3, "network": "unwatched", "rate_cap": 1e9}
}
OWN["privacy"]["noise_multiplier"] = 3.0


@pytest.fixture
def asking(tmp_path):
    return Server(tmp_path / "site", experiment(**OWN))


def events(asking):
    from tacit.privacy.ledger import reader

    return {entry["event"] for entry in reader.entries(asking.folder / "ledger.db")}


def test_a_site_pays_when_it_agrees_for_every_round_at_the_rate_that_the_server_draws_it_at(asking):
    plan = asking.parts.plan
    assert plan.sampler.rates[0] != plan.sampler.rates[1]
    asking.agree()
    (event,) = events(asking)
    drawn = price.sampled_gaussian(plan.mechanism.noise_multiplier, plan.sampler.rates[0])
    assert price.compose([(price.from_text(event), 1)]) == price.compose([(drawn, 1)])
    assert asking.charges() == [0, 1, 2]
    text = next(asking.folder.glob("runs/*/promise.txt")).read_text()
    assert "at a rate of its own in every round" in text
    assert price.epsilon(((price.from_text(event), 3),), delta=1e-3) <= EPSILONS[0]


def test_a_site_refuses_a_rate_beyond_its_own_budget_whoever_asks(asking):
    more = json.loads(asking.terms["event"])
    dearer = price.to_text(price.sampled_gaussian(3.0, 1.0))
    assert json.loads(dearer) != more
    with pytest.raises(Refused, match=r"event|price"):
        asking.agree(terms={"event": dearer})
    assert asking.charges() == []


def test_a_site_refuses_a_list_in_which_its_own_epsilon_is_larger_than_its_budget(asking):
    roster = asking.roster.record()
    roster["epsilons"] = [100.0, *roster["epsilons"][1:]]
    with pytest.raises(Refused, match="epsilon"):
        asking.agree(roster=roster)
    assert asking.charges() == []
