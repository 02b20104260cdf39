"""Canaries in real runs: what they cost, what they show, what they find, and what nobody can do to their coins."""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import tacit
from tacit.algorithms.record_sums import SumNoise
from tacit.cli.app import app
from tacit.engine.assemble import build
from tacit.engine.canaries import Canaries, CanaryRecords, file_of, with_canary_clients
from tacit.engine.run_files import read
from tacit.errors import BadData, BadInput
from tacit.lab.audit import run as auditing
from tacit.lab.audit.estimate import share
from tacit.lab.audit.run import audit_run
from tacit.privacy.central.kind import CohortGaussian
from tacit.privacy.distributed.mechanism import SharedNoise
from tacit.privacy.distributed.records import RecordShare
from tacit.privacy.ledger.reader import accounts
from tacit.privacy.local import SampledGaussian
from tacit.privacy.mechanism import ExactSum
from tacit.privacy.samplers import Poisson
from tacit.random import seeded
from tacit.report.collect import run_page
from tacit.types import Bounded, Private, Shared

DOUBT = 1e-6  # of a false alarm: noise is another with every change of the code
KINDS = {
    "record": {"kind": "local", "epsilon": 8},
    "client": {"kind": "local", "unit": "client", "epsilon": 40},
    "central": {"kind": "central", "epsilon": 8},
    "distributed": {"kind": "distributed", "epsilon": 8},
    "central-records": {"kind": "central", "unit": "record", "epsilon": 8},
    "secret-records": {"kind": "distributed", "unit": "record", "epsilon": 8},
}
SUMS = ("central-records", "secret-records")


def experiment(kind="record", **more):
    sections = {
        "name": "audited",
        "data": {"clients": 6, "examples_per_client": 40},
        "train": {"rounds": 6, "local_steps": 1 if kind in SUMS else 2}
        | ({"clients_per_round": 3} if kind == "central" else {}),
        "privacy": KINDS[kind],
        "audit": {"canaries": 500},
        "run": {"workers": 1},
    }
    return tacit.Experiment(**(sections | more))


def finished(folder, *args, **more):
    """The folder of a run of such an experiment."""
    tacit.run(experiment(*args, **more), out=folder / "run", page=False)
    return folder / "run"


def unlooked(run, to):
    """A copy of a finished run that nobody has looked at."""
    copy = Path(shutil.copytree(run, to))
    for file in (auditing.AUDIT, auditing.LOOKS, auditing.POOLED):
        (copy / file).unlink(missing_ok=True)
    return copy


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of every kind, and one of another seed, each made when a test first needs it."""
    folders = {}

    def of(kind):
        if kind not in folders:
            run = {"workers": 1, "seed": int(kind == "another")} | ({"at_once": True} if kind == "at once" else {})
            own = kind if kind in KINDS else "record"
            folders[kind] = finished(tmp_path_factory.mktemp(kind.replace(" ", "-")), own, run=run)
        return folders[kind]

    return of


@pytest.fixture
def copy(runs, tmp_path):
    return unlooked(runs("record"), tmp_path / "copy")


@pytest.mark.parametrize("kind", [*KINDS, "at once"])
def test_clean_code_is_not_accused_and_its_noise_is_measured(runs, kind):
    report = audit_run(runs(kind), level=DOUBT)
    (group,) = report.groups
    assert not report.alarming, report.sentence
    assert report.cannot_tell or report.sentence.startswith("The claim stands. ")
    assert (group.clients, group.canaries) == (6, 500)
    assert group.promised == pytest.approx(KINDS.get(kind, KINDS["record"])["epsilon"], rel=0.02)
    # the sum of all clients carries the shares of those beyond the fewest too
    assert group.measured.epsilon == pytest.approx(group.promised, rel=0.4)
    assert 0 < group.measured.low < group.promised
    assert max(group.no_assumption, group.within_family) < group.promised


@pytest.mark.parametrize("kind", KINDS)
def test_less_noise_than_is_paid_for_is_found(monkeypatch, tmp_path, kind):
    owners = {"central": CohortGaussian, "distributed": SharedNoise}
    owners |= {"central-records": SumNoise, "secret-records": SharedNoise}
    owner = owners.get(kind, SampledGaussian)
    whole = owner.noise

    def less(self, state, stream, bounded):
        state, noised = whole(self, state, stream, bounded)
        if isinstance(noised, Shared):
            own = torch.from_numpy(bounded.values)
            return state, Shared((own + 0.4 * (noised.vector - own)).round().to(noised.vector.dtype))
        return state, Private(bounded.vector + 0.4 * (noised.vector - bounded.vector), noised.noise_std)

    monkeypatch.setattr(owner, "noise", less)
    report = audit_run(finished(tmp_path, kind), level=DOUBT)
    assert report.alarming
    assert "measured" in report.sentence


@pytest.mark.parametrize("kind", ["record", *SUMS])
def test_a_record_that_is_in_every_batch_although_sampling_is_priced_is_found(monkeypatch, tmp_path, kind):
    for owner in (SampledGaussian, RecordShare):
        monkeypatch.setattr(owner, "sample", lambda self, state, stream, size: (state, np.arange(size)))
    drawn = {"train": {"rounds": 60, "local_steps": 1}, "privacy": KINDS[kind] | {"noise_multiplier": 2.0}}
    report = audit_run(finished(tmp_path, kind, **drawn if kind in SUMS else {}), level=DOUBT)
    assert report.alarming
    assert report.groups[0].measured.rate == 1.0


@pytest.mark.parametrize("repeated", ["noise", "sample"])
def test_noise_or_batches_that_are_the_same_in_every_round_are_found(monkeypatch, tmp_path, repeated):
    whole = SampledGaussian.noise
    stuck = {
        "noise": lambda self, state, stream, bounded: whole(self, state, seeded(1)("stuck", int(self.steps)), bounded),
        "sample": lambda self, state, stream, size: (state, seeded(1)("stuck").bernoulli(size, self.sampling_rate)),
    }
    monkeypatch.setattr(SampledGaussian, repeated, stuck[repeated])
    report = audit_run(finished(tmp_path), level=DOUBT)
    assert report.groups[0].measured.dependent
    assert report.alarming


@pytest.mark.parametrize("kind", SUMS)
def test_each_clients_canaries_are_drawn_at_its_own_rate_and_those_of_other_prices_are_not_pooled(tmp_path, kind):
    budgets = (2.0, 2.0, 4.0, 4.0, 6.0, 6.0)
    privacy = KINDS[kind] | {"epsilon": budgets, "noise_multiplier": 5.0, "rate_cap": 9.0}
    run = finished(tmp_path, kind, privacy=privacy, train={"rounds": 40, "local_steps": 1})
    report = audit_run(run, level=DOUBT)
    assert not report.alarming, report.sentence
    assert [group.clients for group in report.groups] == [2, 2, 2]
    for group, epsilon in zip(report.groups, (2.0, 4.0, 6.0), strict=True):
        assert group.promised <= epsilon
    plan: Any = build(read(run).experiment).plan
    rates = plan.chosen.rates
    assert 1 >= rates[4] > rates[2] > rates[0]
    for group, rate in zip(report.groups, rates[::2], strict=True):
        assert group.measured.rate == pytest.approx(float(rate), abs=0.05)
    spent = {name: paid.epsilon() for name, paid in auditing._of_run(run).paid.items()}
    assert max(spent.values()) <= 6.0
    assert len(set(spent.values())) == 3


def test_canaries_cost_nothing_and_without_them_a_run_has_none_of_it(runs, tmp_path):
    plain = finished(tmp_path, audit={})
    (one, *_), (other, *_) = (accounts(out / "ledger.db") for out in (runs("record"), plain))
    assert (one.sealed, one.used, one.releases) == (other.sealed, other.used, other.releases)
    assert "canaries" not in json.loads((plain / "run.json").read_text())
    assert not list(plain.glob("canaries*"))
    assert "[audit]" not in experiment(audit={}).toml()
    with pytest.raises(BadInput, match=r"audit\.canaries=1000"):
        audit_run(plain)


def test_with_no_coin_fallen_for_them_not_one_bit_changes():
    own = SampledGaussian(1.0, clip=0.5, sampling_rate=0.3, steps=2)
    records = CanaryRecords(own, np.arange(20), np.zeros(20, dtype=bool)).mechanism
    stream, other, total = seeded(3)("a"), seeded(3)("a"), torch.rand(30)
    for _ in range(2):
        assert (own.sample({}, stream, 50)[1] == records.sample({}, other, 50)[1]).all()
        one = own.noise({}, stream, Bounded(total, 0.5))[1].vector
        assert torch.equal(one, records.noise({}, other, Bounded(total, 0.5))[1].vector)


def test_a_canary_that_is_drawn_adds_its_clip_at_its_own_coordinate_and_the_sum_it_was_given_stays():
    own = SampledGaussian(1.0, clip=0.5, sampling_rate=1.0)
    records = CanaryRecords(own, np.array([4, 2]), np.array([True, False]))
    total = torch.zeros(6)
    records.mechanism.sample({}, seeded(3)("a"), 5)
    _, noised = records.mechanism.noise({}, seeded(3)("b"), Bounded(total, 0.5))
    _, plain = own.noise({}, seeded(3)("b"), Bounded(total, 0.5))
    assert (noised.vector - plain.vector).tolist() == pytest.approx([0, 0, 0, 0, 0.5, 0], abs=1e-6)
    assert total.tolist() == [0.0] * 6
    assert records.drawn.tolist() == [1, 0]


@dataclass(frozen=True)
class Shown(CohortGaussian):
    """Keeps the sum that it is given to noise."""

    kept: list = field(default_factory=list, compare=False)

    def noise(self, state, stream, bounded):
        self.kept.append(bounded.vector)
        return super().noise(state, stream, bounded)


def test_a_canary_in_an_exact_sum_leaves_it_exact():
    own = Shown(1.0, clip=0.7, cohorts=Poisson(3, 3))
    mechanism = with_canary_clients(own, np.array([1, 4]), np.array([True, True]), {})
    others = ExactSum(torch.zeros(6), clip=0.7, most=3)
    others.add(torch.full((6,), 0.123456789), weight=1.0)
    for total in (torch.zeros(6, dtype=torch.float64), others.value()):
        mechanism.noise({}, seeded(3)("b"), Bounded(total, 0.7))
    alone, beside_others = own.kept
    assert int((alone != 0).sum()) == 2
    assert torch.equal(beside_others - others.value(), alone)
    assert torch.equal(alone / others.step, (alone / others.step).round())


def test_coins_are_fair_follow_from_the_key_and_are_every_clients_own():
    """Coins that clients share say of one client's canaries what another's were, and count as many times as there are clients."""
    one, other = (Canaries(key, count=8000, clients=4, size=2000) for key in (b"a", b"b"))
    pairs = [(one.coins(k), one.coins(j)) for k in range(4) for j in range(k)]
    pairs.append((one.everywhere[1], other.everywhere[1]))
    assert one.commitment != other.commitment
    for mine, theirs in pairs:
        assert abs((mine == theirs).mean() - 0.5) < 0.05
        assert abs(mine.mean() - 0.5) < 0.05
    shared = Canaries(b"key", count=50, clients=7, size=50, shared=True)
    assert sorted(shared.everywhere[0].tolist()) == list(range(50))  # in one sum each has a coordinate of its own


def test_a_run_that_was_stopped_goes_on_with_its_coins_and_sees_the_same_in_other_processes_bit_for_bit(runs, tmp_path):
    def stop(record):
        if record["round"] == 2:
            raise KeyboardInterrupt

    out, chosen = tmp_path / "run", experiment(run={"workers": 2})
    with pytest.raises(KeyboardInterrupt):
        tacit.run(chosen, out=out, page=False, observe=stop)
    tacit.run(chosen, out=out, page=False, resume=True)
    for r in range(6):
        assert file_of(out, r).read_bytes() == file_of(runs("record"), r).read_bytes()


def test_clients_and_runs_with_other_epsilons_are_never_pooled(runs, tmp_path):
    run = finished(tmp_path, privacy={"kind": "local", "epsilon": [4, 4, 4, 8, 8, 8]})
    report = audit_run(run, level=DOUBT)
    assert [group.clients for group in report.groups] == [3, 3]
    assert sum(group.canaries for group in report.groups) == 500
    assert report.groups[0].promised == pytest.approx(4, rel=0.02)
    with pytest.raises(BadInput, match="audit each alone"):
        audit_run(runs("record"), run)


def test_the_coins_are_committed_to_before_anybody_trains(tmp_path):
    folder, seen = tmp_path / "run", []

    def ready(parts, past):
        seen.append(json.loads((folder / "run.json").read_text())["canaries"])
        assert not file_of(folder, 0).exists()

    tacit.run(experiment(), out=folder, page=False, ready=ready)
    assert json.loads((folder / "run.json").read_text())["canaries"] == seen[0]
    assert (folder / "canaries.json").stat().st_mode & 0o077 == 0


def test_coins_that_were_changed_are_refused_by_the_audit_and_by_a_resumed_run(copy):
    (copy / "canaries.json").write_text(json.dumps({"key": "00" * 16}))
    with pytest.raises(BadData, match="not those that were committed to"):
        audit_run(copy)
    (copy / "summary.json").unlink()
    with pytest.raises(BadData, match="not those that were committed to"):
        tacit.run(experiment(), out=copy, page=False, resume=True)


@pytest.mark.parametrize("gone", [auditing.LOOKS, auditing.AUDIT])
def test_looks_are_counted_and_not_forgotten_where_one_file_is_deleted(copy, gone):
    first, second = audit_run(copy), audit_run(copy)
    assert (first.looks, second.looks) == (1, 2)
    assert first.groups == second.groups
    assert "look 2" in second.sentence or second.alarming
    (copy / gone).unlink()
    assert audit_run(copy).looks == 3


def test_the_levels_of_all_runs_that_a_ledger_will_ever_hold_come_to_no_more_than_one():
    alone = [share([("ledger", place)]) for place in range(1, 2001)]
    assert 0.999 < sum(alone) < 1
    assert share([("ledger", place) for place in range(1, 2001)]) == pytest.approx(sum(alone))
    assert share([("own", None)]) == 1.0
    # whatever is pooled, and in whatever order, all choices of a run use at most twice its share
    assert sum(share([("ledger", 3)], earlier=before) for before in range(50)) <= 2 * alone[2]


def test_a_runs_level_follows_from_its_place_in_a_shared_ledger_and_not_from_when_it_is_audited(tmp_path):
    shared = {"kind": "local", "epsilon": 50.0, "noise_multiplier": 8.0, "delta_share": 0.2}
    shared["ledger"] = str(tmp_path / "all.db")
    folders = []
    for rate in (0.5, 0.4):
        train = {"rounds": 2, "local_steps": 2, "learning_rate": rate}
        folders.append(finished(tmp_path / str(rate), privacy=shared, train=train, audit={"canaries": 12}))
    reports = [audit_run(folder, level=DOUBT) for folder in (*folders, folders[0])]
    assert [(one.place, one.share) for one in reports] == [(1, 0.5), (2, 1 / 6), (1, 0.5)]
    assert reports[2].groups == reports[0].groups
    assert "number 2" in str(reports[1].table().caption)


@pytest.mark.parametrize(("kind", "most"), [("record", 6 * 650), ("central", 650)])
def test_more_canaries_than_fit_are_refused_with_the_number_that_fits(tmp_path, kind, most):
    with pytest.raises(BadInput, match=f"<= {most}"):
        tacit.run(experiment(kind, audit={"canaries": 100_000}), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"privacy": {"kind": "none"}}, "held against what is promised"),
        ({"train": {"momentum": 0.9}}, "train.momentum"),
        ({"audit": {"canaries": 1}}, "audit.canaries"),
    ],
)
def test_canaries_that_could_tell_nothing_are_refused(sections, words):
    with pytest.raises(BadInput, match=words):
        experiment(**sections)


def test_the_command_prints_three_numbers_and_exits_with_3_where_a_claim_is_rejected(copy, monkeypatch):
    done = CliRunner().invoke(app, ["audit", str(copy)])
    assert done.exit_code in (0, 3)  # at the usual level clean code may be accused
    for word in ("promised", "shown", "measured"):
        assert word in done.output
    monkeypatch.setattr(auditing, "shown", lambda *_, **__: (99.0, 99.0))
    done = CliRunner().invoke(app, ["audit", str(copy), "--json"])
    assert done.exit_code == 3
    assert json.loads(done.output)["rejected"] is True


def test_the_command_says_what_to_audit_and_audits_a_run_as_it_was(tmp_path):
    for words, sentence in (
        ([], "Say what to audit"),
        (["digits", "--set", "train.rond=3"], "Did you mean 'train.rounds'"),
        (["nowhere"], "There is no folder or experiment nowhere"),
        ([str(tmp_path), "--set", "train.rounds=3"], "leave out --set"),
    ):
        with pytest.raises(BadInput, match=sentence):
            CliRunner().invoke(app, ["audit", *words], catch_exceptions=False)


def test_the_page_shows_the_audit_and_refuses_a_damaged_one(copy):
    CliRunner().invoke(app, ["audit", str(copy)])
    audit = run_page(read(copy))["audit"]
    (group,), (shown,) = audit["groups"], audit["pictures"]
    assert group["promised"] > group["measured"]["low"]
    assert len(shown["roc"]["false"]) == len(shown["roc"]["true"]) == len(shown["roc"]["most"])
    assert shown["roc"]["most"][-1] == 1.0
    assert [name for name, *_ in shown["layers"]] == ["1.weight", "1.bias"]
    assert shown["by_round"]["promised"][-1] == pytest.approx(group["promised"], rel=0.01)
    assert '"audit":{' in (copy / "report.html").read_text()
    (copy / auditing.AUDIT).write_text(json.dumps(audit | {"groups": 3}))
    with pytest.raises(BadInput, match="audit the run again"):
        run_page(read(copy))


def test_a_look_at_another_choice_of_runs_halves_the_level_and_leaves_a_runs_own_audit_as_it_was(runs, copy, tmp_path):
    other = unlooked(runs("another"), tmp_path / "other")
    alone = audit_run(copy, level=DOUBT)
    kept = (copy / auditing.AUDIT).read_bytes()
    pooled, halved = audit_run(copy, other, level=DOUBT), audit_run(other, level=DOUBT)
    assert (alone.earlier, pooled.earlier, halved.earlier) == (0, 1, 1)
    assert "looked at once before" in pooled.sentence
    assert "2 runs" in pooled.sentence
    assert pooled.groups[0].canaries == 1000
    assert pooled.groups[0].measured.low > min(halved.groups[0].measured.low, pooled.groups[0].promised / 2)
    assert (copy / auditing.AUDIT).read_bytes() == kept
    again = audit_run(copy, other, level=DOUBT)
    assert (again.looks, again.earlier) == (2, 1)
    assert again.groups == pooled.groups  # the later look at the other one alone changes nothing of it


def test_an_audit_that_could_have_found_little_says_so_and_a_limit_that_is_none_is_null_in_a_file(tmp_path):
    run = finished(tmp_path, train={"rounds": 1, "local_steps": 1}, audit={"canaries": 2})
    report = audit_run(run, level=DOUBT)
    assert report.notes[-1].startswith(f"{auditing.FAINT} Plant more (up to 3,900 fit), audit several runs")
    assert (report.cannot_tell, report.alarming, report.record()["cannot_tell"]) == (True, False, True)
    assert report.sentence.startswith("This audit cannot tell: nothing contradicts the claim")
    done = CliRunner().invoke(app, ["audit", str(run), "--json"])
    assert "Infinity" not in done.output
    assert "NaN" not in done.output
    read(run).audit  # noqa: B018 - refuses what is damaged
