"""What a lying server can do with private ranges: with the query for them, and with the ranges that it sends back."""

import json
import shutil
from dataclasses import asdict

import numpy as np
import pytest
import torch
from redteam.lying_server import RUN, Server, experiment
from redteam.test_counts import counts, killed

import tacit
from tacit.deploy.site import replies
from tacit.deploy.site.agreement import accept, terms_of
from tacit.deploy.site.limits import allow, make_site, read_limits
from tacit.deploy.site.requests import Roster
from tacit.deploy.site.rows import public_rows
from tacit.deploy.site.site import UNSAID
from tacit.engine.assemble import assemble
from tacit.errors import Refused
from tacit.privacy.ledger.disk import QUERY

EPSILONS = (30.0, 30.0)
FOUND = {"chol": [128.0, 512.0]}
ROWS = 60


def written(folder, *, seed=0):
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    rows = zip(rng.uniform(20, 90, ROWS), rng.uniform(140, 400, ROWS), rng.integers(0, 2, ROWS), strict=True)
    (folder / "records.csv").write_text("age,chol,ill\n" + "".join(f"{a:.1f},{c:.0f},{y}\n" for a, c, y in rows))


class Ranging(Server):
    """A lying server and a site with a column of which nobody knows the range."""

    def __init__(self, folder, **changes):
        data = {
            "name": "csv",
            "path": "records.csv",
            "partition": "natural",
            "label": "ill",
            "classes": 2,
            "test_share": 0,
            "columns": ["age", "chol"],
            "numeric": {"age": [0, 120], "chol": "private"},
        }
        privacy = {"epsilon": dict(zip(("client-0", "client-1"), EPSILONS, strict=True))}
        values = experiment().model_dump(exclude_none=True) | {"data": data | changes.get("data", {})}
        values["privacy"] |= privacy | {"query_shares": {"ranges": 0.3}} | changes.get("privacy", {})
        self.folder, self.experiment = folder, tacit.Experiment(**values)
        make_site(folder, self.experiment, name="client-0", epsilon=EPSILONS[0])
        written(folder)
        self.restart()
        size = self.hello()["examples"]
        self.roster = Roster(("client-0", "client-1"), (size, 70), EPSILONS, self.experiment.privacy.run_delta)
        rows = public_rows(self.experiment)
        self.parts = assemble(self.experiment, rows, self.roster.population((2,)), place="server")
        self.terms = asdict(terms_of(self.parts, self.parts.population[0], epsilon=EPSILONS[0]))

    def count(self, query="ranges", body=b""):
        return self.ask(body, kind="count", run=RUN, query=query)[1]

    def scaled(self):
        """The site's rows as it trains on them."""
        return accept(allow(self.folder, self.experiment.toml(), read_limits(self.folder)), RUN, self.roster).client.x


@pytest.fixture
def ranging(tmp_path):
    def make(**changes):
        asking = Ranging(tmp_path / "site", **changes)
        asking.agree()
        return asking

    return make


def test_the_query_is_paid_before_its_noise_answered_once_and_ends_no_run(ranging):
    asking = ranging()
    first = asking.count()
    assert len(counts(first)) == 123
    assert asking.charges() == [QUERY]
    asking.agree(ranges=FOUND)
    asking.train(0)
    asking.restart()
    assert asking.count() == first
    assert asking.charges() == [QUERY, 0]


def test_whatever_reads_encoded_rows_waits_for_their_ranges(ranging):
    asking = ranging(privacy={"stats": ["age"]})
    for restart in (False, True):
        if restart:
            asking.restart()
        for ask in (
            asking.train,
            lambda: asking.count("stats"),
            lambda: asking.ask(asking.parameters(asking.parts.params), kind="keep", run=RUN),
        ):
            with pytest.raises(Refused, match="not known yet"):
                ask()
    assert asking.charges() == []
    assert not list(asking.folder.glob("runs/*/round-*"))


def test_ranges_are_on_disk_before_the_first_training_and_no_others_are_taken(ranging):
    asking = ranging()
    asking.count()
    asking.agree(ranges=FOUND)
    (bound,) = asking.folder.glob("runs/*/ranges.json")
    assert json.loads(bound.read_text()) == FOUND
    assert "chol is read from 128 to 512" in asking.log()[-1]["text"]
    x = asking.scaled()
    assert torch.all((x >= 0) & (x <= 1))
    for restart in (False, True):
        if restart:
            asking.restart()
        asking.agree(ranges=FOUND)
        asking.agree()
        with pytest.raises(Refused, match="one run reads rows in one way"):
            asking.agree(ranges={"chol": [64.0, 512.0]})
    asking.train(0)
    assert torch.equal(asking.scaled(), x)


@pytest.mark.parametrize(
    "ranges",
    [
        {},
        [],
        "chol",
        {"chol": []},
        {"chol": [128.0]},
        {"chol": [128.0, 256.0, 512.0]},
        {"chol": [512.0, 128.0]},
        {"chol": [128.0, 128.0]},
        {"chol": [128.0, float("nan")]},
        {"chol": [128.0, float("inf")]},
        {"chol": [-float("inf"), 512.0]},
        {"chol": ["128", "512"]},
        {"chol": [True, 512.0]},
        {"chol": [130.0, 512.0]},
        {"chol": [128.0, 500.0]},
        {"chol": [128.0, 129.0]},
        {"chol": [128.0, 2.0**41]},
        {"chol": [10**400, 2 * 10**400]},
        {"age": [0.0, 64.0]},
        {"chol": [128.0, 512.0], "age": [0.0, 64.0]},
        {"chol\n": [128.0, 512.0]},
        {"chol": {"low": 128.0, "high": 512.0}},
    ],
)
def test_ranges_that_no_histogram_shows_are_refused_and_leave_nothing(ranging, ranges):
    asking = ranging()
    with pytest.raises(Refused):
        asking.agree(ranges=ranges)
    assert not list(asking.folder.glob("runs/*/ranges.json"))
    assert UNSAID not in asking.log()[-1]["text"]
    asking.agree(ranges=FOUND)


def test_a_range_outside_of_where_it_was_looked_for_is_refused(ranging):
    asking = ranging(data={"numeric": {"age": [0, 120], "chol": {"private": [0, 640]}}})
    assert len(counts(asking.count())) == 64
    for ends in ([128.0, 512.0 + 1], [128.0, 650.0], [-10.0, 640.0]):
        with pytest.raises(Refused, match="no histogram"):
            asking.agree(ranges={"chol": ends})
    asking.agree(ranges={"chol": [130.0, 400.0]})


def test_who_has_ranges_is_not_asked_for_them_any_more(ranging):
    asking = ranging()
    asking.agree(ranges=FOUND)
    with pytest.raises(Refused, match="known already"):
        asking.count()
    asking.train(0)
    assert asking.charges() == [0]


def test_an_answer_that_was_paid_for_and_lost_is_not_drawn_again_and_the_site_trains_on(ranging, monkeypatch):
    asking = ranging()
    with monkeypatch.context() as patch:
        patch.setattr(replies, "released", killed)
        with pytest.raises(Refused, match=UNSAID):
            asking.count()
    asking.restart()
    with pytest.raises(Refused, match="paid for before and its answer lost"):
        asking.count()
    asking.agree(ranges=FOUND)
    asking.train(0)
    assert asking.charges() == [QUERY, 0]


def test_a_site_without_the_file_of_its_ranges_trains_no_more_and_a_damaged_one_is_said(ranging):
    asking = ranging()
    asking.agree(ranges=FOUND)
    asking.train(0)
    (bound,) = asking.folder.glob("runs/*/ranges.json")
    shutil.move(bound, asking.folder / "elsewhere")
    asking.restart()
    with pytest.raises(Refused, match="not known yet"):
        asking.train(1)
    bound.write_text('{"chol": [128.0, 12')
    with pytest.raises(Refused, match=UNSAID):
        asking.train(1)
    assert "ranges.json is damaged" in asking.log()[-1]["text"]


def test_ranges_for_a_run_that_asks_for_none_are_refused(server):
    asking = server()
    with pytest.raises(Refused, match="asks for none"):
        asking.agree(ranges=FOUND)


def test_a_record_is_held_out_whatever_its_range(ranging):
    """By the coin of the row as it stands in the file: a range that was found moves nobody between the sides."""
    asking = ranging(data={"held_out": 0.3})
    first = accept(allow(asking.folder, asking.experiment.toml(), read_limits(asking.folder)), RUN, asking.roster)
    asking.agree(ranges=FOUND)
    second = accept(allow(asking.folder, asking.experiment.toml(), read_limits(asking.folder)), RUN, asking.roster)
    for before, after in ((first.client, second.client), (first.asked, second.asked)):
        assert torch.equal(before.x[:, 0], after.x[:, 0])
        assert torch.allclose((before.x[:, 1] - 128) / 384, after.x[:, 1], atol=1e-6)
    assert first.client.digest != second.client.digest, "what is trained on is another release"
