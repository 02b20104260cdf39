"""What a lying server can do with the list of sites that it sends along with a proposal."""

from dataclasses import replace

import pytest
from redteam.lying_server import RUN

from tacit.deploy.site.requests import Roster
from tacit.engine.assemble import assemble, clients
from tacit.errors import BudgetExhausted, Refused
from tacit.privacy.accounting import price
from tacit.privacy.ledger import reader as books

ROUNDS = 12


@pytest.mark.parametrize("privacy", [{}, {"noise_multiplier": 40.0}])
def test_a_server_that_proposes_less_than_the_budget_gets_no_more_than_it_proposed(server, privacy):
    """The site would allow 1 and is promised .2 for the whole run; half of the rounds were planned for it, and all are asked."""
    train = {"rounds": ROUNDS, "clients_per_round": 1}
    asking = server(train=train, privacy=privacy)
    roster = asking.roster = replace(asking.roster, epsilons=(0.2, 0.2))
    asking.parts = assemble(asking.experiment, clients(asking.experiment)[0], roster.population((1, 8, 8)))
    event = price.to_text(asking.parts.algorithm.cost(asking.parts.population[0]))
    asking.terms |= {"rounds": ROUNDS, "epsilon": 0.2, "event": event}
    asking.agree()
    assert "at most 0.200" in (asking.folder / "runs" / RUN / "promise.txt").read_text()
    with pytest.raises(BudgetExhausted):
        list(map(asking.train, range(ROUNDS)))
    (account,) = books.accounts(asking.folder / "ledger.db")
    assert 0 < account.used <= account.sealed <= 0.2


def test_a_list_of_a_thousand_sizes_has_a_site_price_its_own_only(server, monkeypatch):
    """A size is a price of its own: at a tenth of a second each, a list of 10,000 kept a site from answering for an hour."""
    asking = server(train={"sampling_rate": None, "batch_size": 30})
    count = 1000
    roster = Roster(
        ("client-0", *(f"x{i}" for i in range(count - 1))), (60, *range(100, 99 + count)), (1.0,) * count, 1e-5
    )
    priced = set()
    solve = price.noise_multipliers

    def counted(epsilons, **settings):
        priced.add(settings["sampling_rate"])
        return solve(epsilons, **settings)

    monkeypatch.setattr(price, "noise_multipliers", counted)
    with pytest.raises(Refused, match="noise"):
        asking.agree(roster=roster.record(), terms={"event": ""})
    assert priced == {0.5}
