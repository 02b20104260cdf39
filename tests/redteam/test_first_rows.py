"""A question that needs no round: does an agreement, which costs nothing, depend on the values of the rows?"""

import pytest
from redteam.lying_server import RUN, accept, experiment
from redteam.test_server import csv_site

from tacit.deploy.site.consent import code_digest
from tacit.deploy.site.requests import Roster
from tacit.deploy.site.rows import public_rows
from tacit.deploy.site.site import Site
from tacit.engine.assemble import assemble
from tacit.errors import Refused
from tacit.privacy.accounting import price

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.table = nn.Embedding(64, classes)

    def forward(self, x):
        return self.table(x[:, 0].abs().long())

def net(*, input_shape, classes):
    return Net(classes)
"""


@pytest.mark.parametrize("value", ["5.1", "900"])
def test_a_model_that_cannot_read_the_first_row_is_agreed_to_like_any_other(tmp_path, monkeypatch, value):
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "odd_net.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(tmp_path / "ours"))
    chosen = csv_site(tmp_path, [], model={"name": "odd_net:net"})
    site = tmp_path / "north"
    head, first, *rest = (site / "records.csv").read_text().splitlines()
    (site / "records.csv").write_text("\n".join([head, value + first[3:], *rest]) + "\n")
    budget = site / "budget.toml"
    budget.write_text(f'{budget.read_text()}\n[accept.code]\n"odd_net:net" = "{code_digest("odd_net:net")}"\n')
    roster = Roster(("north", "south"), (150, 150), (1.0, 1.0), chosen.privacy.delta)
    parts = assemble(chosen, public_rows(chosen), roster.population((4,)))
    event = price.to_text(parts.algorithm.cost(parts.population[0]))
    terms = {"event": event, "epsilon": 1.0, "rounds": 3, "parameters": parts.params.numel(), "frozen": "", "asked": ""}
    ask = {"kind": "agree", "run": RUN, "experiment": chosen.toml(), "roster": roster.record(), "terms": terms}
    assert Site(site).answer(ask, b"")[0]["terms"] == terms


@pytest.mark.parametrize("limit", [{"most": 3}, {"max": "3"}, {}, {"maximum": 3, "min": 1}, {"max": True}])
def test_a_limit_that_is_not_understood_is_no_consent(server, limit):
    """A slip of the pen in accept.settings let every value in."""
    asking = server()
    accept(asking, **{"train.rounds": limit})
    with pytest.raises(Refused, match="cannot take part"):
        asking.agree(experiment=experiment(train={"rounds": 20}).toml())
    assert "train.rounds wants a value" in asking.log()[-1]["text"]
