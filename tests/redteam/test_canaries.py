"""Canaries under attack: audits that accuse the innocent, that overlook the guilty, or that die; files that somebody made."""

import json
import os
import shutil
import tracemalloc
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from audit.test_canaries import DOUBT, experiment, finished, unlooked
from audit.test_site_canaries import server_of, trained
from redteam.lying_server import RUN

from tacit.deploy.site.replies import _release
from tacit.engine.assemble import build
from tacit.engine.canaries import ROW, canaries_of, file_of, with_canaries
from tacit.engine.run_files import read
from tacit.errors import BadData, BadInput, TacitError
from tacit.lab.audit import run as auditing
from tacit.lab.audit.estimate import Charged, Traces, _repeated, guess_counts, measured, scores
from tacit.lab.audit.run import audit_run, audit_site
from tacit.privacy.local import SampledGaussian
from tacit.random import seeded
from tacit.report.collect import run_page
from tacit.training.sgd import Trained
from tacit.types import Private, Raw

DELTA = 1e-5


def gaussian(z=1.0, rounds=1, rate=1.0, steps=1):
    noise = dp_accounting.GaussianDpEvent(z)
    event = noise if rate == 1 else dp_accounting.PoissonSampledDpEvent(rate, noise)
    return Charged(event, rounds * steps, steps, DELTA)


def traces_of(rng, coins, *, rounds, z=1.0, rate=1.0):
    """What honest code leaves of canaries."""
    drawn = np.where(coins, rng.binomial(1, rate, (rounds, len(coins))), 0)
    return Traces(drawn + z * rng.standard_normal(drawn.shape), drawn, coins)


# Does an audit accuse the innocent, or die?


@pytest.mark.parametrize("coins", [[False, False, False], [True, True, True]])
def test_a_group_whose_coins_all_fell_alike_is_measured_and_not_accused(coins):
    rng = np.random.default_rng(3)
    found = measured(traces_of(rng, np.array(coins), rounds=2), gaussian(rounds=2), level=DOUBT)
    assert found.low <= gaussian(rounds=2).epsilon()


def test_two_canaries_of_one_round_do_not_accuse_honest_noise_more_often_than_they_may(monkeypatch):
    monkeypatch.setattr(Charged, "epsilon", lambda self, factor=1.0, rate=1.0: 1 / factor)  # as monotone as any price
    rng, promised, coins = np.random.default_rng(7), gaussian(0.1), np.array([True, False])
    tries, level = 2000, 0.05
    accused = sum(measured(traces_of(rng, coins, rounds=1, z=0.1), promised, level=level).low > 1 for _ in range(tries))
    assert accused <= tries * level


def test_rare_draws_are_called_repeated_no_more_often_than_they_may():
    rng, priced = np.random.default_rng(11), gaussian(rounds=110, rate=0.01)
    found = np.array([_repeated(rng.binomial(110, 0.01, (1, 500)).repeat(110, 0) / 110, priced) for _ in range(2000)])
    assert (found < 0.001).sum() <= 7  # 2 are expected


@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 6000.0, 1e6])
def test_a_promise_that_is_next_to_nothing_or_to_everything_has_a_number_of_guesses(epsilon):
    assert all(2 <= guesses <= 20 for guesses in guess_counts(20, epsilon, DELTA))


def test_many_steps_a_round_take_no_more_memory_than_a_round_of_them():
    rng = np.random.default_rng(0)
    traces = traces_of(rng, rng.random(200) < 0.5, rounds=100)
    tracemalloc.start()
    scores(traces, gaussian(rounds=100, rate=0.1, steps=200))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20e6  # (round, canary, step) in one array are 32 MB, several times


def test_one_run_given_twice_is_not_evidence_twice(done, tmp_path):
    for twin in (done, shutil.copytree(done, tmp_path / "twin")):
        with pytest.raises(BadInput, match="the same canaries"):
            audit_run(done, Path(twin))


# Does it stay silent where it must not?


BARE = {  # of two steps of six clients a round: which numbers carry no noise, what the sentence names, and how many canaries
    "a layer, though nearly all canaries are elsewhere": (lambda size, _: torch.arange(size) >= 640, "bias", 500),
    "one round of many": (lambda size, call: torch.full((size,), call // 12 == 3), "round 4", 100),
    "one client among many": (lambda size, call: torch.full((size,), call % 12 < 2), "client", 60),
    "everything": (lambda size, _: torch.full((size,), True), "", 500),
}


@pytest.mark.parametrize("part", BARE)
def test_a_part_without_noise_is_found_and_a_run_without_any_is_not_called_damaged(monkeypatch, tmp_path, part):
    bare, name, count = BARE[part]
    whole, calls = SampledGaussian.noise, []

    def noise(self, state, stream, bounded):
        state, noised = whole(self, state, stream, bounded)
        calls.append(1)
        vector, quiet = noised.vector.clone(), bare(len(noised.vector), len(calls) - 1)
        vector[quiet] = bounded.vector[quiet]
        return state, Private(vector, noised.noise_std)

    monkeypatch.setattr(SampledGaussian, "noise", noise)
    kind = "record" if name else "client"
    report = audit_run(finished(tmp_path, kind, audit={"canaries": count}), level=DOUBT)
    assert report.alarming
    assert name in report.sentence


# One charge, one vector


def test_coins_that_were_exchanged_together_with_their_hash_never_meet_noise_that_was_drawn_before(tmp_path):
    parts = build(experiment())
    one, other = (with_canaries(parts, canaries_of(parts, key)).releases for key in (b"a" * 16, b"b" * 16))
    client = parts.population[0]
    assert one.client(client) != other.client(client)
    assert one.attempt("state") != other.attempt("state")
    assert one.server_key != other.server_key
    assert parts.releases.client(client) not in (one.client(client), other.client(client))


def test_a_canary_never_takes_the_place_of_a_clients_share_of_the_noise():
    many = {"kind": "distributed", "epsilon": 3000}
    parts = build(experiment("distributed", privacy=many, train={"rounds": 1}, audit={"canaries": 600}))
    algorithm: Any = with_canaries(parts, canaries_of(parts, b"key")).algorithm
    client = parts.population[0]
    place = int(algorithm.canaries.places(0)[algorithm.canaries.coins(0)][0])
    update = torch.zeros_like(parts.params)
    update[place] = 10 * algorithm.grid.clip  # as far as a client can go, where a canary goes as far
    algorithm = replace(algorithm, local=lambda *_: Trained(Raw(update)))
    received = algorithm.broadcast(algorithm.init(parts.params), [client], round=0)
    assert algorithm.groups[client.id].noise.tail < algorithm.grid.largest
    sent = {
        int(algorithm.train(None, received, client, lambda name, k=k: seeded(k)(name)).update.vector[place])
        for k in range(8)
    }
    assert len(sent) > 1


# Files that somebody made


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return finished(tmp_path_factory.mktemp("canaries"), train={"rounds": 3}, audit={"canaries": 60})


@pytest.fixture
def copy(done, tmp_path):
    return unlooked(done, tmp_path / "copy")


def rows(**columns):
    whole = np.zeros(60, ROW)
    whole["number"] = np.arange(60)
    for name, column in columns.items():
        whole[name] = column
    return whole.tobytes()


CRAFTED = {
    "none": None,
    "part of a row": rows()[:-3],
    "more rows than canaries": rows() + bytes(ROW.itemsize),
    "endless rows": bytes(1 << 20),
    "a terabyte": None,
    "an infinite trace": rows(seen=np.inf),
    "a trace that is none": rows(seen=np.nan),
    "negative numbers": rows(number=np.arange(60) - 60),
    "numbers that are given twice": rows(number=0),
    "numbers out of range": rows(number=np.arange(60) + 1),
    "huge numbers": rows(number=np.arange(60) + 2**62),
    "negative draws": rows(drawn=-1),
    "draws of who never took part": rows(drawn=1),
}


@pytest.mark.parametrize("kind", CRAFTED)
def test_a_trace_that_somebody_made_is_one_sentence(copy, kind):
    file_of(copy, 1).unlink()
    if kind == "a terabyte":
        file_of(copy, 1).touch()
        os.truncate(file_of(copy, 1), 1 << 40)
    elif CRAFTED[kind] is not None:
        file_of(copy, 1).write_bytes(CRAFTED[kind])
    with pytest.raises(BadData, match="round-00001"):
        audit_run(copy)
    assert not (copy / auditing.AUDIT).exists()


def test_a_canary_that_was_drawn_more_often_than_there_are_steps_is_one_sentence(copy):
    observed = np.frombuffer(file_of(copy, 1).read_bytes(), ROW).copy()
    observed["drawn"] *= 1000
    file_of(copy, 1).write_bytes(observed.tobytes())
    with pytest.raises(BadData, match="more often than there are steps"):
        audit_run(copy)


@pytest.mark.parametrize("layers", [[["a", "b", "c"]], [["a", 1e308, {}]], [[1, 2, 3]], "many"])
def test_layers_that_somebody_made_end_no_audit(copy, layers):
    file = copy / "canaries.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"layers": layers}))
    audit_run(copy)
    assert json.loads((copy / auditing.AUDIT).read_text())["pictures"][0]["layers"] == []


@pytest.mark.parametrize("looks", ["1e999", "Infinity", "-5", '"a"', "[" * 100_000, "null", "true"])
def test_looks_that_somebody_made_end_no_audit(copy, looks):
    (copy / auditing.LOOKS).write_text(f'{{"looks": {looks}')
    assert audit_run(copy).looks == 1
    (copy / auditing.LOOKS).write_text(f'{{"looks": {looks}}}')
    report = audit_run(copy)
    assert (report.looks, report.earlier) == (2, 0)  # what the first audit wrote says so


FILES = {
    "canaries that no model holds": ("experiment.toml", lambda text: text.replace("= 60", f"= {10**6}")),
    "canaries without end": ("experiment.toml", lambda text: text.replace("= 60", f"= {10**25}")),
    "a client whom the ledger never charged": ("clients.json", lambda text: text.replace("client-0", "somebody")),
    **{f"run.json {text[:9]}": ("run.json", lambda _, text=text: text) for text in ("[]", "5", "{", '{"run": 5}')},
    "run.json of brackets": ("run.json", lambda _: "[" * 100_000),
    "audit.json of brackets": (auditing.AUDIT, lambda _: "[" * 100_000),
    **{f"a key {text}": ("canaries.json", lambda _, text=text: text) for text in ('{"key": 5}', "[]", '{"key": "zz"}')},
    "a key that is gone": ("canaries.json", None),
    "a run that has not ended": ("summary.json", None),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_of_a_run_that_somebody_made_is_one_sentence(copy, kind):
    name, change = FILES[kind]
    before = (copy / name).read_text() if (copy / name).exists() else ""
    if change is None:
        (copy / name).unlink()
    else:
        (copy / name).write_text(change(before))
        assert (copy / name).read_text() != before
    with pytest.raises(TacitError):
        read(copy).audit if name == auditing.AUDIT else audit_run(copy)
    assert name == auditing.AUDIT or not (copy / auditing.AUDIT).exists()


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("pictures", 0, "roc", "true"), [0.5]),
        (("pictures", 0, "scores", "at"), []),
        (("pictures", 0, "by_round", "low"), [1.0] * 99),
        (("groups", 0, "measured", "high"), float("inf")),
        (("groups", 0, "measured", "high"), "<b>"),
        (("sentence",), ["<script>"]),
        (("groups",), [{}] * 3),
    ],
)
def test_an_audit_file_that_somebody_made_never_reaches_the_page(copy, where, value):
    audit_run(copy)
    audit = json.loads((copy / auditing.AUDIT).read_text())
    *path, last = where
    reduce(getitem, path, audit)[last] = value
    (copy / auditing.AUDIT).write_text(json.dumps(audit))
    with pytest.raises(BadInput, match="audit the run again"):
        run_page(read(copy))


# At a site


def test_another_number_of_canaries_in_mid_run_changes_nothing_of_the_run(tmp_path):
    server = server_of(tmp_path)
    trained(server, rounds=1)
    settings = tmp_path / "site" / "site.toml"
    settings.write_text(settings.read_text().replace("canaries = 300", "canaries = 500"))
    server.restart()
    assert server.train(round=1)
    for name in ("round-x.rows", "round-999999999999.rows", "round--1.rows", "round-.rows"):  # of no round
        (tmp_path / "site" / "runs" / RUN / "canaries" / name).write_bytes(b"")
    report = audit_site(tmp_path / "site", level=DOUBT)
    assert report.groups[0].canaries == 300
    assert not report.alarming
    for count in (10**7, 10**25):  # what the site's own file says
        file = tmp_path / "site" / "runs" / RUN / "canaries.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"count": count}))
        with pytest.raises(BadInput):
            audit_site(tmp_path / "site")


def test_a_site_that_is_asked_again_after_its_canaries_changed_never_draws_the_same_noise(tmp_path):
    seeds = {"run": {"randomness": "seeded"}}
    names = []
    for count in (300, 200):
        server = server_of(tmp_path / str(count), canaries=count, **seeds)
        shutil.copy(tmp_path / "300" / "site" / "canaries.secret", tmp_path / str(count) / "site") if names else None
        server.agree()
        accepted: Any = server.site._held[RUN]
        names.append(_release(accepted, accepted.client, "question"))
    assert names[0] != names[1]
