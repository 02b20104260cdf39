"""What a server says of its sites while it runs (status.json), and what its page makes of that."""

import json

from federation.flower.conftest import Line, lost

from tacit.deploy.server import trainer
from tacit.engine.run_files import read
from tacit.report.page import collect, sites_view


def by_name(view):
    return {site["name"]: (site["state"], site["why"]) for site in view["sites"]}


def test_the_page_says_who_answered_who_refused_who_is_out_and_why(federation):
    deployed = federation(train={"min_clients": 1})
    grid = deployed.grid(change=lost((2, 1), (2, 2)))

    def withdraw(record):
        deployed.edit(2, "most_rounds = 3", "most_rounds = 1")

    history = deployed.run(grid, round_seconds=0.2, observe=withdraw)
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
    said = []

    class Watched(Line):
        def pull_messages(self, message_ids):  # whenever the server looks for answers
            said.append(json.loads((deployed.folder / "out" / "status.json").read_text()))
            return super().pull_messages(message_ids)

    deployed.run(deployed.grid(Watched, change=lost((2, 1))), round_seconds=0.5)
    waiting = [seen["asked"] for seen in said if seen["asked"] and not seen["asked"]["over"]]
    assert {"round": 1, "over": False, "answered": ["client-0", "client-2"]}.items() <= waiting[-1].items()
    assert list(waiting[-1]["silent"]) == ["client-1"]
    assert said[0]["state"] == "waiting"
    assert said[0]["missing"] == ["client-0", "client-1", "client-2"]


def test_under_central_dp_nobody_is_named_who_was_asked(federation):
    deployed = federation(
        privacy={"kind": "central", "epsilon": 50.0, "network": "unwatched"}, train={"clients_per_round": 2}
    )
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
