"""Evaluation on rows that sites hold out, in a deployment: asked once at the end, answered with noise."""

import json
import sqlite3

import numpy as np
import pytest
import torch
from federation.flower.conftest import Line

from tacit.deploy.server import queries
from tacit.deploy.server.messages import refusal
from tacit.engine.assemble import build
from tacit.engine.queries import kept
from tacit.engine.run_files import read
from tacit.errors import BadInput, Refusal, TacitError
from tacit.privacy.ledger.disk import QUERY
from tacit.report.closing import facts
from tacit.report.collect import run_page
from tacit.types import Message
from tacit.wire import pack, unpack

HELD = {"held_out": 0.25}
STATS = {"stats": ["label"], "query_shares": {"stats": 0.2}}


def charges(site):
    with sqlite3.connect(site / "ledger.db") as book:
        return [round for (round,) in book.execute("SELECT round FROM charges ORDER BY time, round")]


class Stop(BaseException):
    pass


def refusing(node, words, kind=Refusal.NEVER):
    """A node that refuses to count; None: every node."""

    def see(message):
        hit = message.metadata.message_type == "query.count" and node in (None, message.metadata.dst_node_id)
        return (lambda asked: refusal(words, to=asked, kind=kind)) if hit else None

    return see


def kinds(grid):
    return [ask["kind"] for ask, _ in grid.asked]


def test_the_result_is_in_the_closing_table_and_on_the_page(federation):
    deployed = federation(data=HELD | {"examples_per_client": 200}, privacy={"epsilon": 30.0})
    history = deployed.run()
    told = history.summary["at_clients"]
    low, high = told["metrics"]["accuracy"]["interval"]
    assert low <= told["metrics"]["accuracy"]["value"] <= high
    assert (told["answered"], told["clients"], told["missing"]) == (3, 3, {})
    line = facts(history.summary)["accuracy at the clients, on held-out rows"]
    assert "95 % over noise and rows" in line
    assert "without" not in line
    assert line in run_page(read(history.out))["final"].values()


def test_who_refuses_is_missing_and_named_and_the_rest_is_what_is_known(federation):
    deployed = federation(data=HELD, privacy=STATS)
    history = deployed.run(deployed.grid(see=refusing(2, "The site's budget does not pay.", Refusal.UNPAID)))
    for told in (history.summary["at_clients"], json.loads((history.out / "stats.json").read_text())):
        assert told["missing"] == {"client-1": "The site's budget does not pay."}
        assert (told["answered"], told["clients"]) == (2, 3)
    assert (
        "without client-1: The site's budget does not pay."
        in facts(history.summary)["accuracy at the clients, on held-out rows"]
    )
    assert charges(deployed.site(1)) == [0, 1, 2]
    assert charges(deployed.site(0)) == [QUERY, 0, 1, 2, QUERY]


def test_who_is_away_at_the_end_is_not_waited_for_and_is_asked_when_the_run_is_resumed(federation):
    deployed = federation(data=HELD, run={"randomness": "os"})

    grid = deployed.grid(Line)

    def leaves(record):
        grid.gone = (3,) if record["round"] == 2 else ()

    told = deployed.run(grid, observe=leaves).summary["at_clients"]
    assert told["missing"] == {"client-2": "is not connected"}
    first = kept(deployed.folder / "out")["evaluation"]
    again = deployed.grid(Line)
    history = deployed.run(again, resume=True)
    assert history.summary["at_clients"]["missing"] == {}
    assert kinds(again).count("count") == 1
    second = kept(deployed.folder / "out")["evaluation"]
    assert all(np.array_equal(first.counts[name], second.counts[name]) for name in first.counts)
    assert [charges(deployed.site(index)) for index in range(3)] == [[0, 1, 2, QUERY]] * 3


def test_a_run_that_nobody_answers_ends_well_and_says_so(federation):
    deployed = federation(data=HELD)
    history = deployed.run(deployed.grid(see=refusing(None, "no.")))
    assert "No site answered (client-0: no.;" in history.summary["at_clients"]["unknown"]
    assert history.summary["stopped"] == "rounds"
    assert facts(history.summary)["accuracy at the clients, on held-out rows"].count("client-0") == 1
    assert (history.out / "model.safetensors").exists()


@pytest.mark.parametrize("randomness", ["seeded", "os"])
def test_a_server_that_dies_among_the_answers_asks_the_same_again_and_nobody_answers_or_pays_twice(
    federation, monkeypatch, randomness
):
    deployed, seen = federation(data=HELD, run={"randomness": randomness}), []
    real = queries.counts_of

    def dying(raw, *given):
        seen.append(raw)
        if len(seen) == 2:
            raise Stop
        return real(raw, *given)

    monkeypatch.setattr(queries, "counts_of", dying)
    with pytest.raises(Stop):
        deployed.run()
    assert not kept(deployed.folder / "out")
    grid = deployed.grid(Line)
    monkeypatch.setattr(queries, "counts_of", lambda raw, *given: (seen.append(raw), real(raw, *given))[1])
    history = deployed.run(grid, resume=True)
    assert seen[2:4] == seen[:2]
    assert history.summary["at_clients"]["missing"] == {}
    assert history.summary["stopped"] == "rounds"
    assert "train" not in kinds(grid)
    assert [charges(deployed.site(index)) for index in range(3)] == [[0, 1, 2, QUERY]] * 3
    assert charges(history.out).count(QUERY) == 3


def test_a_run_whose_rounds_the_budget_ended_is_judged_and_trains_no_more_when_it_is_resumed(federation):
    few = {"strategy": "same-noise", "noise_multiplier": 6.0, "epsilon": 1.0}
    deployed = federation(data=HELD, privacy=few, train={"rounds": 30})
    first = deployed.run().summary
    assert first["stopped"] == "budget"
    assert 0 < first["rounds"] < 30
    assert first["at_clients"]["answered"] == 3
    again = deployed.run(resume=True).summary
    for key in ("stopped", "rounds", "at_clients"):
        assert again[key] == first[key]


def test_a_budget_that_was_lowered_during_the_run_leaves_that_site_out_and_the_run_ends_well(federation):
    deployed = federation(data=HELD)

    def lowered(record):
        if record["round"] == 2:
            deployed.edit(0, "epsilon = 1.0", "epsilon = 0.5")

    history = deployed.run(observe=lowered)
    assert "asks for epsilon 1; the site allows 0.5" in history.summary["at_clients"]["missing"]["client-0"]
    assert charges(deployed.site(0)) == [0, 1, 2]
    assert history.summary["at_clients"]["answered"] == 2


def test_without_privacy_sites_answer_exactly(federation):
    deployed = federation(data=HELD, privacy={"kind": "none", "epsilon": None})
    history = deployed.run()
    held = build(deployed.experiment).population.held
    with torch.inference_mode():
        right = float((history.model.eval()(held.x).argmax(1) == held.y).float().mean())
    assert history.summary["at_clients"]["metrics"]["accuracy"]["value"] == pytest.approx(right)
    assert "data.held_out, without noise." in next(deployed.site(0).glob("runs/*/promise.txt")).read_text()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": HELD, "metric": {"choose": "brier"}}, "cannot be asked for brier"),
        ({"privacy": {"stats": ["labl"]}}, r"There is no column 'labl' to count. Did you mean 'label'"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_before_anybody_is_greeted(federation, changes, words):
    deployed = federation(**changes)
    with pytest.raises(BadInput, match=words):
        deployed.run()
    assert not (deployed.site(0) / "log.jsonl").exists()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m: pack(Message("client-0", m.tensors)), "another's name"),
        (lambda m: pack(Message(m.sender, {"counts": m.tensors["counts"][:-1]})), "where 2 counts belong"),
        (lambda m: pack(Message(m.sender, {"counts": m.tensors["counts"].double()})), "where 2 counts belong"),
        (lambda m: pack(Message(m.sender, m.tensors | {"more": torch.zeros(3)})), "something else than counts"),
        (lambda m: pack(Message(m.sender, m.tensors, {"noise_std": 0.0})), "something else than counts"),
        (lambda m: pack(Message(m.sender, {"counts": m.tensors["counts"] + 10**6})), "larger than any honest one"),
        (lambda m: pack(Message(m.sender, {"counts": torch.tensor([-(2**63), 0])})), "larger than any honest one"),
        (lambda m: b"no message", ""),
    ],
)
def test_counts_that_no_honest_site_could_send_are_left_out_by_name(federation, change, why):
    def cheats(ask, node, reply):
        if ask["kind"] == "count" and node == 2:
            record = reply.content["tacit"]
            record["bytes"] = change(unpack(record["bytes"]))
        return reply

    deployed = federation(data=HELD)
    told = deployed.run(deployed.grid(change=cheats)).summary["at_clients"]
    assert list(told["missing"]) == ["client-1"]
    assert why in told["missing"]["client-1"]
    assert told["answered"] == 2


def test_a_site_whose_rows_tacit_never_sees_answers_no_query(federation):
    deployed = federation(data=HELD, privacy={"kind": "none", "epsilon": None})
    deployed.edit(0, "name =", "examples = 60\nname =", file="site.toml")
    with pytest.raises(TacitError, match="answer nothing for results on the rows"):
        deployed.run()


def test_statistics_and_evaluation_of_one_run_are_two_answers_and_two_charges_of_every_ledger(federation):
    deployed = federation(data=HELD, privacy=STATS, run={"randomness": "os"})
    history = deployed.run()
    assert [charges(deployed.site(index)) for index in range(3)] == [[QUERY, 0, 1, 2, QUERY]] * 3
    assert charges(history.out) == [QUERY] * 3 + sorted([0, 1, 2] * 3) + [QUERY] * 3
    told = history.summary["sites"]["epsilon"]
    assert all(0.97 * limit < told[name] <= limit for name, limit in zip(deployed.names, (1, 2, 8), strict=True))
    assert "evaluation is about held-out records alone" in history.sentence
    assert history.summary["queries"]["stats"]["share"] == 0.2
    assert history.summary["at_clients"]["answered"] == 3
    again = deployed.run(resume=True)
    assert again.summary["at_clients"] == history.summary["at_clients"]
    assert charges(deployed.site(0)) == [QUERY, 0, 1, 2, QUERY]
    promise = next(deployed.site(0).glob("runs/*/promise.txt")).read_text()
    assert (
        "counts for statistics of the columns of privacy.stats, for at most epsilon 0.200 (20 % of it), which is"
        in promise
    )
    assert "which is part of the epsilon of training and not added to it" in promise
    assert "(100 % of it), which the records held out pay, while those trained on pay for training" in promise
