"""What a lying server can do with the list of sites that it sends along with a proposal."""

from dataclasses import replace

import pytest
from redteam.lying_server import RUN

from tacit.build import assemble, clients
from tacit.errors import BudgetExhausted
from tacit.privacy import books, price

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
