"""Canaries under attack: audits that accuse the innocent, that overlook the guilty, or that die; files that somebody made."""

import io
import json
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from audit.test_canaries import DOUBT, experiment
from audit.test_site_canaries import server_of, trained
from redteam.lying_server import RUN
from typer.testing import CliRunner

import tacit
from tacit.cli.app import app
from tacit.deploy.site.replies import _release
from tacit.engine.assemble import build
from tacit.engine.canaries import COLUMNS, Canaries, file_of, sizes_of, with_canaries
from tacit.engine.run_files import read
from tacit.errors import BadData, BadInput, TacitError
from tacit.lab.audit import run
from tacit.lab.audit.estimate import Charged, Traces, guess_counts, measured, scores
from tacit.lab.audit.run import LOOKS, audit_run, audit_site
from tacit.privacy.local.mechanism import SampledGaussian
from tacit.random import seeded
from tacit.report.collect import run_page
from tacit.training.clipping import Trained
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
    from tacit.lab.audit.estimate import _repeated

    rng, priced = np.random.default_rng(11), gaussian(rounds=110, rate=0.01)
    found = np.array([_repeated(rng.binomial(110, 0.01, (1, 500)).repeat(110, 0) / 110, priced) for _ in range(2000)])
    assert (found < 0.001).sum() <= 7  # 2 are expected


@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 6000.0, 1e6])
def test_a_promise_that_is_next_to_nothing_or_to_everything_has_a_number_of_guesses(epsilon):
    assert all(2 <= guesses <= 20 for guesses in guess_counts(20, epsilon, DELTA))


def test_many_steps_a_round_take_no_more_memory_than_a_round_of_them():
    import tracemalloc

    rng = np.random.default_rng(0)
    traces = traces_of(rng, rng.random(200) < 0.5, rounds=100)
    tracemalloc.start()
    scores(traces, gaussian(rounds=100, rate=0.1, steps=200))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20e6  # (round, canary, step) in one array are 32 MB, several times


def test_one_run_given_twice_is_not_evidence_twice(done, tmp_path):
    twin = Path(shutil.copytree(done, tmp_path / "twin"))
    for folders in ((done, done), (done, twin)):
        with pytest.raises(BadInput, match="the same canaries"):
            audit_run(*folders)


# Does it stay silent where it must not?


def unnoised(part):
    """The noise of DP-SGD, without what `part(vector, step)` says."""
    whole, calls = SampledGaussian.noise, []

    def noise(self, state, stream, bounded):
        state, noised = whole(self, state, stream, bounded)
        calls.append(1)
        bare, vector = part(noised.vector, len(calls) - 1), noised.vector.clone()
        vector[bare] = bounded.vector[bare]
        return state, Private(vector, noised.noise_std)

    return noise


def test_a_layer_without_noise_is_found_although_nearly_all_canaries_are_elsewhere(monkeypatch, tmp_path):
    monkeypatch.setattr(SampledGaussian, "noise", unnoised(lambda vector, _: torch.arange(len(vector)) >= 640))
    tacit.run(experiment(), out=tmp_path / "run", page=False)
    found = audit_run(tmp_path / "run", level=DOUBT)
    assert found.alarming
    assert "bias" in found.sentence


def test_one_round_of_many_without_noise_is_found(monkeypatch, tmp_path):
    bare = unnoised(lambda vector, call: torch.full((len(vector),), call // 12 == 3))  # 6 clients, 2 steps a round
    monkeypatch.setattr(SampledGaussian, "noise", bare)
    tacit.run(experiment(audit={"canaries": 100}), out=tmp_path / "run", page=False)
    found = audit_run(tmp_path / "run", level=DOUBT)
    assert found.alarming
    assert "round 4" in found.sentence


def test_one_client_without_noise_among_many_is_found(monkeypatch, tmp_path):
    bare = unnoised(lambda vector, call: torch.full((len(vector),), call % 12 < 2))
    monkeypatch.setattr(SampledGaussian, "noise", bare)
    tacit.run(experiment(audit={"canaries": 60}), out=tmp_path / "run", page=False)
    assert audit_run(tmp_path / "run", level=DOUBT).alarming


def test_a_run_without_any_noise_is_rejected_and_not_called_damaged(monkeypatch, tmp_path):
    monkeypatch.setattr(SampledGaussian, "noise", unnoised(lambda vector, _: torch.full((len(vector),), True)))
    tacit.run(experiment("client"), out=tmp_path / "run", page=False)
    done = CliRunner().invoke(app, ["audit", str(tmp_path / "run")])
    assert done.exit_code == 3, done.output
    assert "rejected" in done.output


# One charge, one vector


def test_coins_that_were_exchanged_together_with_their_hash_never_meet_noise_that_was_drawn_before(tmp_path):
    parts = build(experiment())
    sizes = sizes_of(parts)
    one, other = (
        replace(parts, algorithm=with_canaries(parts, Canaries(key, *sizes))).releases for key in (b"a" * 16, b"b" * 16)
    )
    client = parts.population[0]
    assert one.client(client) != other.client(client)
    assert one.attempt("state") != other.attempt("state")
    assert one.server_key != other.server_key
    assert parts.releases.client(client) not in (one.client(client), other.client(client))


def test_a_canary_never_takes_the_place_of_a_clients_share_of_the_noise():
    many = {"kind": "distributed", "epsilon": 3000}
    parts = build(experiment("distributed", privacy=many, train={"rounds": 1}, audit={"canaries": 600}))
    planted: Any = with_canaries(parts, Canaries(b"key", *sizes_of(parts)))
    client = parts.population[0]
    place = int(planted.canaries.places(0)[planted.canaries.coins(0)][0])
    update = torch.zeros_like(parts.params)
    update[place] = 10 * planted.grid.clip  # as far as a client can go, where a canary goes as far
    planted = replace(planted, local=lambda *_: Trained(Raw(update)))
    received = planted.broadcast(planted.init(parts.params), [client], round=0)
    assert planted.groups[client.id].noise.tail < planted.grid.largest
    sent = {
        int(planted.train(None, received, client, lambda name, k=k: seeded(k)(name)).update.vector[place])
        for k in range(8)
    }
    assert len(sent) > 1


# Files that somebody made


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("canaries") / "run"
    tacit.run(experiment(train={"rounds": 3}, audit={"canaries": 60}), out=out, page=False)
    return out


@pytest.fixture
def copy(done, tmp_path):
    made = Path(shutil.copytree(done, tmp_path / "copy"))
    for file in (run.AUDIT, LOOKS, run.POOLED):
        (made / file).unlink(missing_ok=True)
    return made


def packed(**arrays):
    raw = io.BytesIO()
    whole = {"numbers": np.arange(60), "seen": np.zeros(60), "drawn": np.zeros(60, int)} | arrays
    plain = {name: array.astype(COLUMNS[name]) for name, array in whole.items() if array.dtype.kind in "if"}
    np.savez(raw, **(whole | plain))
    return raw.getvalue()


def bomb():
    """Some kilobytes that hold megabytes of zeros."""
    raw, header = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 19,)})
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as file:
        for name in ("numbers", "seen", "drawn"):
            with file.open(f"{name}.npy", "w") as stream:
                stream.write(header.getvalue())
                for _ in range(1 << 2):
                    stream.write(bytes(1 << 20))
    return raw.getvalue()


def plain():
    raw = io.BytesIO()
    np.save(raw, np.zeros(3))
    return raw.getvalue()


def huge():
    raw, header = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 50,)})
    with zipfile.ZipFile(raw, "w") as file:
        for name in ("numbers", "seen", "drawn"):
            file.writestr(f"{name}.npy", header.getvalue())
    return raw.getvalue()


CRAFTED = {
    "an array of its own": plain,
    "a header that promises a petabyte": huge,
    "a bomb": bomb,
    "structures": lambda: packed(seen=np.zeros(60, dtype=[("a", "f4")])),
    "complex numbers": lambda: packed(seen=np.ones(60, dtype=complex)),
    "texts": lambda: packed(seen=np.array(["1"] * 60)),
    "an infinite trace": lambda: packed(seen=np.full(60, np.inf)),
    "a trace that is none": lambda: packed(seen=np.full(60, np.nan)),
    "negative numbers": lambda: packed(numbers=np.arange(60) - 60),
    "numbers that are given twice": lambda: packed(numbers=np.zeros(60, int)),
    "numbers out of range": lambda: packed(numbers=np.arange(60) + 1),
    "negative draws": lambda: packed(drawn=np.full(60, -1)),
    "draws of who never took part": lambda: packed(drawn=np.ones(60, int)),
    "tables": lambda: packed(seen=np.zeros((1, 60))),
    "pickles": lambda: packed(seen=np.array([{}] * 60, dtype=object)),
}


@pytest.mark.parametrize("kind", CRAFTED)
def test_a_trace_that_somebody_made_is_one_sentence(copy, kind):
    file_of(copy, 1).write_bytes(CRAFTED[kind]())
    with pytest.raises(BadData, match="round-00001"):
        audit_run(copy)
    assert not (copy / run.AUDIT).exists()


def test_a_canary_that_was_drawn_more_often_than_there_are_steps_is_one_sentence(copy):
    with np.load(file_of(copy, 1)) as found:
        raw = packed(**dict(found) | {"drawn": found["drawn"] * 1000})
    file_of(copy, 1).write_bytes(raw)
    with pytest.raises(BadData, match="more often than there are steps"):
        audit_run(copy)


@pytest.mark.parametrize("layers", [[["a", "b", "c"]], [["a", 1e308, {}]], [[1, 2, 3]], "many"])
def test_layers_that_somebody_made_end_no_audit(copy, layers):
    file = copy / "canaries.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"layers": layers}))
    audit_run(copy)
    assert json.loads((copy / run.AUDIT).read_text())["pictures"][0]["layers"] == []


@pytest.mark.parametrize("looks", ["1e999", "Infinity", "-5", '"a"', "[" * 100_000, "null", "true"])
def test_looks_that_somebody_made_end_no_audit(copy, looks):
    (copy / LOOKS).write_text(f'{{"looks": {looks}')
    assert audit_run(copy).looks == 1
    (copy / LOOKS).write_text(f'{{"looks": {looks}}}')
    found = audit_run(copy)
    assert (found.looks, found.earlier) == (2, 0)  # what the first audit wrote says so too


@pytest.mark.parametrize("count", [10**6, 10**12, 10**25])
def test_a_number_of_canaries_that_no_model_holds_is_one_sentence(copy, count):
    file = copy / "experiment.toml"
    file.write_text(file.read_text().replace("canaries = 60", f"canaries = {count}"))
    with pytest.raises(TacitError):
        audit_run(copy)


@pytest.mark.parametrize("text", ["[]", "5", "{", '{"run": 5}', "[" * 100_000])
def test_a_run_file_that_somebody_made_is_one_sentence(copy, text):
    (copy / "run.json").write_text(text)
    with pytest.raises(TacitError):
        audit_run(copy)


def test_a_client_in_the_ledger_that_is_no_client_of_the_run_is_named(copy):
    file = copy / "clients.json"
    known = json.loads(file.read_text())
    known["names"][0] = "somebody"
    file.write_text(json.dumps(known))
    with pytest.raises(TacitError):
        audit_run(copy)


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
    found = json.loads((copy / run.AUDIT).read_text())
    *path, last = where
    inner = found
    for key in path:
        inner = inner[key]
    inner[last] = value
    (copy / run.AUDIT).write_text(json.dumps(found))
    with pytest.raises(BadInput, match="audit the run again"):
        run_page(read(copy))


def test_an_audit_file_of_a_hundred_thousand_brackets_is_one_sentence(copy):
    (copy / run.AUDIT).write_text("[" * 100_000)
    with pytest.raises(BadInput):
        read(copy).audit  # noqa: B018


# At a site


def test_another_number_of_canaries_in_mid_run_changes_nothing_of_the_run(tmp_path):
    server = server_of(tmp_path)
    trained(server, rounds=1)
    settings = tmp_path / "site" / "site.toml"
    settings.write_text(settings.read_text().replace("canaries = 300", "canaries = 500"))
    server.restart()
    assert server.train(round=1)
    found = audit_site(tmp_path / "site", level=DOUBT)
    assert found.groups[0].canaries == 300
    assert not found.alarming


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


@pytest.mark.parametrize("name", ["round-x.npz", "round-999999999999.npz", "round--1.npz", "round-.npz"])
def test_a_trace_of_no_round_in_a_sites_folder_ends_no_audit(tmp_path, name):
    trained(server_of(tmp_path))
    (tmp_path / "site" / "runs" / RUN / "canaries" / name).write_bytes(b"")
    assert not audit_site(tmp_path / "site", level=DOUBT).alarming


@pytest.mark.parametrize("count", [10**7, 10**12, 10**25])
def test_a_sites_own_file_that_asks_for_endless_canaries_is_one_sentence(tmp_path, count):
    trained(server_of(tmp_path), rounds=1)
    file = tmp_path / "site" / "runs" / RUN / "canaries.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"count": count}))
    with pytest.raises(BadInput):
        audit_site(tmp_path / "site")
