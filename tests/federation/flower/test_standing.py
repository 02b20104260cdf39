"""What a server says of its sites while it runs (status.json), and what its page makes of that."""

import json

from federation.flower.test_server import Silent

from tacit.deploy.server import trainer
from tacit.deploy.server.client import client_app
from tacit.engine.run_files import read
from tacit.report.page import collect, sites_view


def withdrawing(deployed):
    """An observer after whose first call the last site allows no further round."""

    def withdraw(record):
        path = deployed.site(2) / "budget.toml"
        path.write_text(path.read_text().replace("most_rounds = 3", "most_rounds = 1"))

    return withdraw


def by_name(view):
    return {site["name"]: (site["state"], site["why"]) for site in view["sites"]}


class Watched(Silent):
    """A grid that remembers what status.json said whenever the server looked for answers."""

    def pull_messages(self, message_ids):
        self.seen.append(json.loads((self.out / "status.json").read_text()))
        return super().pull_messages(message_ids)


def test_the_page_says_who_answered_who_refused_who_is_out_and_why(federation):
    deployed = federation(train={"min_clients": 1})
    grid = Silent(client_app(), [deployed.site(index) for index in range(3)], lost={(2, 1), (2, 2)})
    history = deployed.run(grid, round_seconds=0.2, observe=withdrawing(deployed))
    view = collect([history.out])["sites"]
    assert view["state"] == "finished"
    assert by_name(view) == {
        "client-0": ("answered", ""),
        "client-1": ("out", "did not answer in 0.2 s"),
        "client-2": ("refused", "The server asks for 3 rounds; the site allows 1."),
    }
    assert [site["rounds"] for site in view["sites"]] == [[1, 1, 1], [1, 0, 0], [1, 0, 0]]
    assert view["absences"]["some"][0] == [2, "client-1", "did not answer in 0.2 s"]
    assert view["sites"][0]["spent"] > 0.5
    assert [site["limit"] for site in view["sites"]] == [1.0, 2.0, 8.0]


def test_who_is_awaited_is_named_while_a_round_goes_on(federation, monkeypatch):
    monkeypatch.setattr(trainer, "EVERY_SECONDS", 0.0)
    deployed = federation(train={"min_clients": 2})
    grid = Watched(client_app(), [deployed.site(index) for index in range(3)], lost={(2, 1)})
    grid.out, grid.seen = deployed.folder / "out", []
    deployed.run(grid, round_seconds=0.5)
    waiting = [seen["asked"] for seen in grid.seen if seen["asked"] and not seen["asked"]["over"]]
    assert {"round": 1, "over": False, "answered": ["client-0", "client-2"]}.items() <= waiting[-1].items()
    assert list(waiting[-1]["silent"]) == ["client-1"]
    assert grid.seen[0]["state"] == "waiting"
    assert grid.seen[0]["missing"] == ["client-0", "client-1", "client-2"]


SECRET = {"kind": "central", "epsilon": 50.0, "network": "unwatched"}


def test_under_central_dp_nobody_is_named_who_was_asked(federation):
    deployed = federation(privacy=SECRET, train={"clients_per_round": 2})
    history = deployed.run()
    status = json.loads((history.out / "status.json").read_text())
    assert (status["state"], status["asked"]) == ("finished", None)
    view = sites_view(read(history.out))
    assert view["drawn"]
    assert {site["state"] for site in view["sites"]} == {"no absence"}


def test_a_status_that_cannot_be_written_while_a_round_goes_on_stops_nothing(federation, monkeypatch):
    deployed = federation()
    kept = trainer.Status.write

    def full(self, folder, state, text):
        if text.startswith("round "):
            raise OSError("no space left")
        kept(self, folder, state, text)

    monkeypatch.setattr(trainer.Status, "write", full)
    assert deployed.run().summary["rounds"] == 3
