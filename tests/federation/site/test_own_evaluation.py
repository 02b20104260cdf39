"""Rows that a site holds out: never trained on, judged for the site's own people, and told to nobody."""

import json
from dataclasses import replace

import pytest
import torch
from redteam.lying_server import RUN, Server, experiment

from tacit.build.parts import assemble, clients
from tacit.engine.wire import unpack
from tacit.errors import Refused
from tacit.federation.site import own_evaluation
from tacit.privacy.accounting import price


def holding_out(folder, share="0.3", **changes):
    """A site whose people hold out rows, and a server that believes the number of rows it is told."""
    asking = Server(folder, experiment(**changes))
    with (folder / "site.toml").open("a") as file:
        file.write(f"held_out = {share}\n")
    asking.restart()
    asking.roster = replace(asking.roster, sizes=(asking.hello()["examples"], asking.roster.sizes[1]))
    chosen = asking.experiment
    asking.parts = assemble(chosen, clients(chosen)[0], asking.roster.population((1, 8, 8)))
    asking.terms["event"] = price.to_text(asking.parts.algorithm.cost(asking.parts.population[0]))
    asking.agree()
    return asking


def results(asking):
    path = asking.folder / "runs" / RUN / "held_out.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_site_trains_on_the_rest_and_writes_down_for_itself_how_the_model_does(tmp_path):
    asking = holding_out(tmp_path / "site")
    joined = asking.site._runs.get(RUN)
    rows = {bytes(row.numpy()) for row in joined.client.x}
    assert rows.isdisjoint(bytes(row.numpy()) for row in joined.held.x)
    assert len(joined.client.y) + len(joined.held.y) == 60
    asking.train(0)
    (line,) = results(asking)
    assert (line["round"], line["rows"]) == (0, len(joined.held.y))
    assert 0 <= line["accuracy"] <= 1
    asking.train(0)  # the kept answer again
    assert len(results(asking)) == 1


def test_nothing_of_it_leaves_the_site_and_the_answer_is_the_same_without_it(tmp_path, monkeypatch):
    seeded = {"run": {"randomness": "seeded"}}
    raw = holding_out(tmp_path / "one", **seeded).train(0)
    with monkeypatch.context() as patched:
        patched.setattr("tacit.federation.site.site.judge", lambda *_: None)
        assert holding_out(tmp_path / "two", **seeded).train(0) == raw
    assert set(unpack(raw).facts) == {"examples", "noise_std", "epsilon"}
    for line in (tmp_path / "one" / "log.jsonl").read_text().splitlines():
        assert "accuracy" not in line


def test_whatever_goes_wrong_in_it_changes_no_answer(tmp_path, monkeypatch):
    asking = holding_out(tmp_path / "site")
    monkeypatch.setattr(own_evaluation.metrics, "load", lambda name: 1 / 0)
    assert asking.train(0)
    assert results(asking) == []
    failed = [line for line in asking.log() if line["verdict"] == "failed"]
    assert failed[0]["text"].startswith("Held-out rows: ZeroDivisionError")


def test_held_out_rows_of_one_class_tell_what_they_can(tmp_path):
    asking = holding_out(tmp_path / "site")
    joined = asking.site._runs.get(RUN)
    mine = joined.held.y == joined.held.y[0]
    one = own_evaluation.HeldOut(joined.held.x[mine], joined.held.y[mine])
    measured = own_evaluation._measured(joined, one, torch.zeros_like(joined.parts.params))
    assert measured["auroc"] is None
    assert measured["accuracy"] is not None
    none = own_evaluation.HeldOut(joined.held.x[:0], joined.held.y[:0])
    assert set(own_evaluation._measured(joined, none, joined.parts.params).values()) == {None}


@pytest.mark.parametrize("share", ["1.5", "0", "true", "'half'", "-0.1"])
def test_a_share_that_is_none_is_said_to_the_sites_people_and_not_to_the_server(tmp_path, share):
    asking = Server(tmp_path / "site", experiment())
    with (tmp_path / "site" / "site.toml").open("a") as file:
        file.write(f"held_out = {share}\n")
    asking.restart()
    with pytest.raises(Refused, match="the reason is in its log"):
        asking.hello()
    assert "Expected held_out in site.toml to be a share" in asking.log()[-1]["text"]
