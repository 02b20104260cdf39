"""What a lying server can do with the one query that a site agreed to: noised counts of the rows that it holds out."""

import contextlib
import json
import shutil
import sqlite3
import time

import numpy as np
import pytest
import torch
from redteam.lying_server import EPSILONS, RUN, Server, experiment
from redteam.test_server import crafted_bodies
from statistical import has_std

from tacit.deploy.site import replies
from tacit.deploy.site.agreement import smallest_noise
from tacit.deploy.site.site import UNSAID
from tacit.engine.assemble import build
from tacit.engine.queries import Evaluation, judged_by
from tacit.errors import BudgetExhausted, Refused
from tacit.privacy.ledger.disk import QUERY
from tacit.privacy.queries.mechanism import NoisyCounts
from tacit.wire import unpack

HELD = {"held_out": 0.3}
OTHER = "1" * 32


def count(asking, params=None, *, run=RUN, query="evaluation", body=None):
    """The question that ends a run, and the bytes that come back."""
    params = asking.parts.params if params is None else params
    return asking.ask(body or asking.parameters(params), kind="count", run=run, query=query)[1]


def counts(raw):
    return unpack(raw).tensors["counts"].numpy()


def truth(asking, params=None):
    """What an honest count without noise would be."""
    parts = build(asking.experiment)
    query = Evaluation(
        judged_by(parts.experiment, parts.dataset), parts, asking.parts.params if params is None else params
    )
    return query.count(parts.population.held[0]).values


def killed(*_, **__):
    raise MemoryError


@pytest.fixture
def agreed(server):
    """A site that has agreed to a run that holds rows out."""

    def make(**changes):
        asking = server(**changes | {"data": HELD | changes.get("data", {})})
        asking.agree()
        return asking

    return make


def test_counts_are_asked_of_nobody_who_did_not_agree_to_the_run_or_to_the_query(server):
    asking = server(data=HELD)
    with pytest.raises(Refused, match="no agreement on this run"):
        count(asking)
    asking.agree()
    with pytest.raises(Refused, match="no agreement on this run"):
        count(asking, run=OTHER)
    assert asking.charges() == []
    assert not list(asking.folder.glob("runs/*/counted-*"))


def test_a_run_that_holds_out_nothing_answers_no_query(server):
    asking = server()
    asking.agree()
    with pytest.raises(Refused, match="agreed were: none"):
        count(asking)
    assert asking.charges() == []


def test_an_agreement_that_was_edited_to_hold_a_query_gets_no_counts(server):
    asking = server()
    asking.agree()
    (path,) = asking.folder.glob("runs/*/agreement.json")
    record = json.loads(path.read_text())
    record["terms"]["asked"] = '{"evaluation": ""}'
    path.write_text(json.dumps(record))
    asking.restart()
    with pytest.raises(Refused, match="is not what was agreed"):
        count(asking)
    assert asking.charges() == []


@pytest.mark.parametrize("asked", ["", '{"evaluation": ""}', '{"evaluation": "", "ranges": ""}'])
def test_a_server_that_prices_the_query_otherwise_gets_no_agreement(server, asked):
    asking = server(data=HELD)
    with pytest.raises(Refused, match="asks beside training for"):
        asking.agree(terms={"asked": asked})
    assert not list(asking.folder.glob("runs/*"))


def test_what_the_site_signs_names_the_query_and_its_share_of_epsilon(agreed):
    asking = agreed(privacy={"query_shares": {"evaluation": 0.5}})
    promise = next(asking.folder.glob("runs/*/promise.txt")).read_text()
    assert "answers once, for ever, with counts for results on the rows of data.held_out" in promise
    assert (
        "for at most epsilon 0.500 (50 % of it), which the records held out pay, while those trained on pay" in promise
    )
    assert "its one answer to the query evaluation costs" in asking.log()[-1]["text"]
    stored = json.loads(next(asking.folder.glob("runs/*/agreement.json")).read_text())["terms"]["asked"]
    assert json.loads(stored) == {"evaluation": json.loads(asking.terms["asked"])["evaluation"]}


@pytest.mark.parametrize(
    "said",
    [{"query": query} for query in ("ranges", "stats", "Evaluation", "../evaluation", "", "evaluation\n")]
    + [{"cells": 100}, {"std": 0.0}, {"share": 1.0}, {"round": 0}, {"terms": {}}],
)
def test_another_query_than_the_agreed_one_is_refused_and_so_is_one_that_says_how_to_count(agreed, said):
    asking = agreed()
    with pytest.raises(Refused, match=None if "query" in said else "exactly the parts"):
        asking.ask(
            asking.parameters(asking.parts.params), **{"kind": "count", "run": RUN, "query": "evaluation"} | said
        )
    assert asking.charges() == []
    assert not list(asking.folder.glob("runs/*/counted-*"))


def test_crafted_models_are_refused_and_cost_nothing(agreed):
    asking = agreed()
    params = asking.parts.params
    bodies = [*crafted_bodies(params), asking.parameters(torch.full_like(params, float("nan")))]
    for body in bodies:
        with pytest.raises(Refused):
            asking.ask(body, kind="count", run=RUN, query="evaluation")
    assert asking.charges() == []
    assert len(counts(count(asking))) == 2


@pytest.mark.parametrize("metric", ["accuracy", "balanced-accuracy"])
def test_a_model_near_the_largest_float_is_counted_like_any_other(agreed, metric):
    asking = agreed(metric={"choose": metric})
    params = torch.full_like(asking.parts.params, 3e38)
    params[::2] = -3e38
    found = counts(count(asking, params))
    assert found.dtype == np.int64
    assert abs(found).max() < 1000


def test_a_second_model_gets_no_counts_and_the_first_the_same_bytes_for_ever(agreed):
    asking = agreed()
    first = count(asking)
    for restart in (False, True):
        if restart:
            asking.restart()
        with pytest.raises(Refused, match="answered already"):
            count(asking, asking.parts.params + 1)
        assert count(asking) == first
    assert asking.charges() == [QUERY]


def test_whoever_asks_for_counts_before_the_last_round_gets_no_further_round(agreed):
    asking = agreed()
    last = asking.train(0)
    count(asking)
    for restart in (False, True):
        if restart:
            asking.restart()
        with pytest.raises(Refused, match="there is no round after it"):
            asking.train(1)
        assert asking.train(0) == last, "what was released before may be sent again"
    assert asking.charges() == [QUERY, 0]


def test_a_question_that_was_only_bound_ends_the_run_as_well(agreed, monkeypatch):
    asking = agreed()
    with monkeypatch.context() as patch:
        patch.setattr(replies, "pay_query", killed)
        with pytest.raises(Refused, match=UNSAID):
            count(asking)
    assert asking.charges() == []
    with pytest.raises(Refused, match="there is no round after it"):
        asking.train(0)
    with pytest.raises(Refused, match="one query is one question"):
        count(asking, asking.parts.params + 1)
    count(asking)
    assert asking.charges() == [QUERY]


@pytest.mark.parametrize(
    ("where", "query"), [("released", "evaluation"), ("keep", "evaluation"), ("released", "stats")]
)
def test_a_site_killed_after_it_paid_gives_no_second_noise(agreed, monkeypatch, where, query):
    asking = agreed(privacy={"stats": ["label"]})
    ask = count if query == "evaluation" else describe
    with monkeypatch.context() as patch:
        patch.setattr(replies, where, killed)
        with pytest.raises(Refused, match=UNSAID):
            ask(asking)
    assert asking.charges() == [QUERY]
    for restart in (False, True):
        if restart:
            asking.restart()
        with pytest.raises(Refused, match="paid for before and its answer lost"):
            ask(asking)
    assert asking.charges() == [QUERY]
    if query == "stats":  # which ends no run
        asking.train(0)
        assert asking.charges() == [QUERY, 0]


def test_a_seeded_site_killed_after_it_paid_gives_the_very_same_bits(tmp_path, monkeypatch):
    chosen = experiment(data=HELD, run={"randomness": "seeded"})
    asking, twin = (Server(tmp_path / name, chosen) for name in ("one", "other"))
    for each in (asking, twin):
        each.agree()
    with monkeypatch.context() as patch:
        patch.setattr(replies, "keep", killed)
        with pytest.raises(Refused, match=UNSAID):
            count(asking)
    asking.restart()
    assert count(asking) == count(twin)
    assert asking.charges() == [QUERY]


def test_noise_of_the_operating_system_is_nobodys_to_draw_again(tmp_path):
    one, other = (Server(tmp_path / name, experiment(data=HELD)) for name in ("one", "other"))
    for each in (one, other):
        each.agree()
    assert count(one) != count(other)


def test_a_kept_answer_that_somebody_edited_is_not_sent(agreed):
    asking = agreed()
    first = count(asking)
    (path,) = asking.folder.glob("runs/*/counted-evaluation/*.answer")
    whole = path.read_bytes()
    for place in (33, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        asking.restart()
        with pytest.raises(Refused, match="not as it was kept"):
            count(asking)
    path.write_bytes(whole)
    assert count(asking) == first
    assert asking.charges() == [QUERY]


def test_a_kept_answer_that_somebody_deleted_is_not_drawn_again(agreed):
    asking = agreed()
    count(asking)
    shutil.rmtree(next(asking.folder.glob("runs/*/counted-evaluation")))
    asking.restart()
    for params in (None, asking.parts.params + 1):
        with pytest.raises(Refused, match=r"paid for before and its answer lost|one query is one question"):
            count(asking, params)
    assert asking.charges() == [QUERY]


def test_counts_that_the_ledger_knows_no_charge_for_stop_the_site(agreed):
    asking = agreed()
    count(asking)
    for name in ("ledger.db", "ledger.mark"):
        (asking.folder / name).unlink()
    asking.restart()
    with pytest.raises(Refused, match=UNSAID):
        count(asking)
    assert "holds the answer to the query evaluation" in asking.log()[-1]["text"]


def noises(tmp_path, many=4):
    """The noise of some sites' answers, and the standard deviation that was charged for."""
    chosen, found = experiment(data=HELD, metric={"choose": "balanced-accuracy"}), []
    for number in range(many):
        asking = Server(tmp_path / f"site-{number}", chosen)
        asking.agree()
        found.append(counts(count(asking)) - truth(asking))
    with sqlite3.connect(asking.folder / "ledger.db") as book:
        ((event,),) = book.execute(
            "SELECT text FROM charges JOIN events ON events.id = event WHERE round = ?", (QUERY,)
        )
    return np.concatenate(found), smallest_noise(event)


def test_a_sites_noise_is_what_its_ledger_was_charged_for(tmp_path):
    found, std = noises(tmp_path)
    assert len(found) == 400
    assert has_std(found, std)
    assert not has_std(found, 1.5 * std)


def test_noise_of_two_thirds_of_what_is_charged_would_be_noticed(tmp_path, monkeypatch):
    real = NoisyCounts.noise_std.fget
    monkeypatch.setattr(NoisyCounts, "noise_std", property(lambda self: 2 / 3 * real(self)))
    found, std = noises(tmp_path)
    assert not has_std(found, std)


def test_a_site_without_any_held_out_row_answers_and_pays_like_any_other(agreed):
    asking = agreed(data={"held_out": 1e-6})
    assert not truth(asking).any()
    assert len(counts(count(asking))) == 2
    assert asking.charges() == [QUERY]


def test_held_out_rows_are_neither_trained_on_nor_declared(agreed):
    asking = agreed()
    held, trained = (len(part[0].y) for part in (build(asking.experiment).population.held, asking.parts.population))
    assert held > 0
    assert asking.hello()["examples"] == trained == 60 - held


@pytest.mark.parametrize("stats", [False, True], ids=["evaluation", "both queries"])
def test_what_is_spent_is_the_larger_side_and_within_the_budget(agreed, stats):
    asking = agreed(privacy={"stats": ["label"], "query_shares": {"stats": 0.3}} if stats else {})
    if stats:
        describe(asking)
    for round in range(3):
        asking.train(round)
    reply, _ = asking.ask(asking.parameters(asking.parts.params), kind="count", run=RUN, query="evaluation")
    assert 0.97 * EPSILONS[0] < reply["epsilon"] <= EPSILONS[0]


def test_a_budget_that_does_not_pay_for_query_and_round_is_told_before_round_0(server):
    asking = server(data=HELD, privacy={"noise_multiplier": 0.3})
    with pytest.raises(
        BudgetExhausted, match="does not pay for one round of this run and the query evaluation beside it"
    ):
        asking.agree()
    assert not list(asking.folder.glob("runs/*"))


def test_a_budget_that_was_lowered_since_refuses_at_the_question(agreed):
    asking = agreed()
    asking.train(0)
    asking.budget("epsilon = 1.0", "epsilon = 0.5")
    with pytest.raises(Refused, match=r"asks for epsilon 1; the site allows 0.5"):
        count(asking)
    assert asking.charges() == [0]


def test_a_ledger_that_another_run_has_used_meanwhile_refuses_at_the_question(agreed):
    asking = agreed(privacy={"delta_share": 0.5})
    asking.agree(run=OTHER)
    asking.train(0, run=OTHER)  # seals what there is
    with pytest.raises(BudgetExhausted, match="does not pay for the query evaluation"):
        count(asking)
    assert asking.charges() == [0]
    with pytest.raises(Refused, match="there is no round after it"):
        asking.train(0)


def test_the_time_of_counting_is_not_seen_where_the_site_wants_that(agreed):
    asking = agreed()
    asking.budget("# answer_seconds = 0.0 ", "answer_seconds = 1.0 # ")
    for ask in (lambda: count(asking), lambda: count(asking), lambda: count(asking, asking.parts.params + 1)):
        began = time.monotonic()
        with contextlib.suppress(Refused):
            ask()
        assert time.monotonic() - began >= 1.0


def describe(asking, body=b""):
    return asking.ask(body, kind="count", run=RUN, query="stats")[1]


def test_statistics_are_answered_once_and_paid_for_before_their_noise_and_end_no_run(agreed, monkeypatch):
    asking, real, seen = agreed(privacy={"stats": ["label"]}), NoisyCounts.noise, []

    def watched(self, *given):
        seen.append(asking.charges())
        return real(self, *given)

    monkeypatch.setattr(NoisyCounts, "noise", watched)
    first = describe(asking)
    asking.train(0)
    asking.restart()
    assert describe(asking) == first
    assert asking.charges() == [QUERY, 0]
    assert len(counts(first)) == 10
    count(asking)
    assert seen == [[QUERY], [QUERY, QUERY, 0]]


def test_a_question_for_statistics_has_no_body(agreed):
    asking = agreed(privacy={"stats": ["label"]})
    for body in (b"age", asking.parameters(asking.parts.params)):
        with pytest.raises(Refused, match="the question has more than its name"):
            describe(asking, body)
    assert asking.charges() == []
    describe(asking)


def test_a_charge_for_one_query_does_not_vouch_for_the_answer_to_another(agreed, tmp_path):
    asking = agreed(privacy={"stats": ["label"]})
    describe(asking)
    for name in ("ledger.db", "ledger.mark"):
        shutil.copy(asking.folder / name, tmp_path / name)
    count(asking)
    for name in ("ledger.db", "ledger.mark"):
        shutil.copy(tmp_path / name, asking.folder / name)
    asking.restart()
    with pytest.raises(Refused, match=UNSAID):
        describe(asking)
    assert "holds the answer to the query evaluation" in asking.log()[-1]["text"]
