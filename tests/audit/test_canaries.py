"""Canaries in real runs: what they cost, what they show, what they find, and what nobody can do to their coins."""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import tacit
from tacit.cli.app import app
from tacit.engine.canaries import Canaries, PlantedCohort, PlantedTraining, file_of
from tacit.engine.run_files import read
from tacit.errors import BadData, BadInput, TacitError
from tacit.lab.audit import estimate as power
from tacit.lab.audit import run as looks
from tacit.lab.audit import run as of_run
from tacit.lab.audit.estimate import Measured, share
from tacit.lab.audit.found import Alike, above
from tacit.lab.audit.found import of_run as of_run_table
from tacit.lab.audit.run import audit_run
from tacit.privacy.central.mechanism import CohortGaussian
from tacit.privacy.distributed.mechanism import SharedNoise
from tacit.privacy.ledger.reader import accounts
from tacit.privacy.local.mechanism import SampledGaussian
from tacit.privacy.mechanism import ExactSum
from tacit.random import seeded
from tacit.report.collect import run_page
from tacit.types import Bounded, Private, Shared

DOUBT = 1e-6  # of a false alarm: noise is another with every change of the code
KINDS = {
    "record": {"kind": "local", "epsilon": 8},
    "client": {"kind": "local", "unit": "client", "epsilon": 40},
    "central": {"kind": "central", "epsilon": 8},
    "distributed": {"kind": "distributed", "epsilon": 8},
}


def experiment(kind="record", **more):
    sections = {
        "name": "audited",
        "data": {"clients": 6, "examples_per_client": 40},
        "train": {"rounds": 6, "local_steps": 2} | ({"clients_per_round": 3} if kind == "central" else {}),
        "privacy": KINDS[kind],
        "audit": {"canaries": 500},
        "run": {"workers": 1},
    }
    return tacit.Experiment(**(sections | more))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of every kind, each made when it is first asked for."""
    made = {}

    def of(kind):
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(kind) / "run"
            tacit.run(experiment(kind), out=made[kind], page=False)
        return made[kind]

    return of


@pytest.mark.parametrize("kind", KINDS)
def test_clean_code_is_not_accused_and_its_noise_is_measured(runs, kind):
    found = audit_run(runs(kind), level=DOUBT)
    (group,) = found.groups
    assert not found.alarming, found.sentence
    assert group.canaries == 500
    assert group.promised == pytest.approx(KINDS[kind]["epsilon"], rel=0.02)
    # the sum of all clients carries the shares of those beyond the fewest too
    assert group.measured.epsilon == pytest.approx(group.promised, rel=0.4)
    assert 0 < group.measured.low < group.promised
    assert max(group.no_assumption, group.within_family) < group.promised


@pytest.mark.parametrize("kind", KINDS)
def test_less_noise_than_is_paid_for_is_found(monkeypatch, tmp_path, kind):
    owner = {"central": CohortGaussian, "distributed": SharedNoise}.get(kind, SampledGaussian)
    whole = owner.noise

    def less(self, state, stream, bounded):
        state, noised = whole(self, state, stream, bounded)
        if isinstance(noised, Shared):
            own = torch.from_numpy(bounded.values)
            return state, Shared((own + 0.4 * (noised.vector - own)).round().to(noised.vector.dtype))
        return state, Private(bounded.vector + 0.4 * (noised.vector - bounded.vector), noised.noise_std)

    monkeypatch.setattr(owner, "noise", less)
    tacit.run(experiment(kind), out=tmp_path / "run", page=False)
    found = audit_run(tmp_path / "run", level=DOUBT)
    assert found.alarming
    assert "measured" in found.sentence


def test_a_record_that_is_in_every_batch_although_sampling_is_priced_is_found(monkeypatch, tmp_path):
    monkeypatch.setattr(SampledGaussian, "sample", lambda self, state, stream, size: (state, np.arange(size)))
    tacit.run(experiment(), out=tmp_path / "run", page=False)
    found = audit_run(tmp_path / "run", level=DOUBT)
    assert found.alarming
    assert found.groups[0].measured.rate == 1.0


def test_noise_that_is_used_in_two_rounds_is_found(monkeypatch, tmp_path):
    whole = SampledGaussian.noise
    stuck = lambda self, state, stream, bounded: whole(self, state, seeded(1)("stuck", int(self.steps)), bounded)  # noqa: E731
    monkeypatch.setattr(SampledGaussian, "noise", stuck)
    tacit.run(experiment(), out=tmp_path / "run", page=False)
    found = audit_run(tmp_path / "run", level=DOUBT)
    assert found.groups[0].measured.dependent
    assert found.alarming


def test_batches_that_are_the_same_in_every_round_are_found(monkeypatch, tmp_path):
    def same(self, state, stream, size):
        return state, seeded(1)("stuck").bernoulli(size, self.sampling_rate)

    monkeypatch.setattr(SampledGaussian, "sample", same)
    tacit.run(experiment(), out=tmp_path / "run", page=False)
    assert audit_run(tmp_path / "run", level=DOUBT).groups[0].measured.dependent


def test_canaries_cost_nothing_and_without_them_a_run_has_none_of_it(runs, tmp_path):
    plain = experiment(audit={})
    tacit.run(plain, out=tmp_path / "plain", page=False)
    (one, *_), (other, *_) = (accounts(out / "ledger.db") for out in (runs("record"), tmp_path / "plain"))
    assert (one.sealed, one.used, one.releases) == (other.sealed, other.used, other.releases)
    known = json.loads((tmp_path / "plain" / "run.json").read_text())
    assert "canaries" not in known
    assert not list((tmp_path / "plain").glob("canaries*"))
    assert "[audit]" not in plain.toml()


def test_with_no_coin_fallen_for_them_not_one_bit_changes():
    own = SampledGaussian(1.0, clip=0.5, sampling_rate=0.3, steps=2)
    planted = PlantedTraining(own, np.arange(20), np.zeros(20, dtype=bool))
    stream, other, total = seeded(3)("a"), seeded(3)("a"), torch.rand(30)
    for _ in range(2):
        assert (own.sample({}, stream, 50)[1] == planted.sample({}, other, 50)[1]).all()
        one = own.noise({}, stream, Bounded(total, 0.5))[1].vector
        assert torch.equal(one, planted.noise({}, other, Bounded(total, 0.5))[1].vector)


def test_a_canary_that_is_drawn_adds_its_clip_at_its_own_coordinate_and_the_sum_it_was_given_stays():
    own = SampledGaussian(1.0, clip=0.5, sampling_rate=1.0)
    planted = PlantedTraining(own, np.array([4, 2]), np.array([True, False]))
    total = torch.zeros(6)
    planted.sample({}, seeded(3)("a"), 5)
    _, noised = planted.noise({}, seeded(3)("b"), Bounded(total, 0.5))
    _, plain = own.noise({}, seeded(3)("b"), Bounded(total, 0.5))
    assert (noised.vector - plain.vector).tolist() == pytest.approx([0, 0, 0, 0, 0.5, 0], abs=1e-6)
    assert total.tolist() == [0.0] * 6
    assert planted.drawn.tolist() == [1, 0]


def test_canaries_of_one_sum_have_coordinates_of_their_own():
    canaries = Canaries(b"key", count=50, clients=7, size=50, shared=True)
    assert sorted(np.concatenate([canaries.places(k) for k in range(7)]).tolist()) == list(range(50))


def test_the_coins_are_fair_and_follow_from_the_key():
    one, other = (Canaries(key, count=4000, clients=4, size=1000) for key in (b"a", b"b"))
    coins = np.concatenate([one.coins(k) for k in range(4)])
    assert abs(coins.mean() - 0.5) < 0.05
    assert one.commitment != other.commitment
    assert abs((coins == np.concatenate([other.coins(k) for k in range(4)])).mean() - 0.5) < 0.05


@dataclass(frozen=True)
class Shown(CohortGaussian):
    """Keeps the sum that it is given to noise."""

    kept: list = field(default_factory=list, compare=False)

    def noise(self, state, stream, bounded):
        self.kept.append(bounded.vector)
        return super().noise(state, stream, bounded)


def test_a_canary_in_an_exact_sum_leaves_it_exact():
    own = Shown(1.0, clip=0.7, population=3, cohort=3)
    planted = PlantedCohort(own, np.array([1, 4]), np.array([True, True]), lambda seen: None)
    others = ExactSum(torch.zeros(6), clip=0.7, most=3)
    others.add(torch.full((6,), 0.123456789), weight=1.0)
    for total in (torch.zeros(6, dtype=torch.float64), others.value()):
        planted.noise({}, seeded(3)("b"), Bounded(total, 0.7))
    alone, together = own.kept
    assert int((alone != 0).sum()) == 2
    assert torch.equal(together - others.value(), alone)
    assert torch.equal(alone / others.step, (alone / others.step).round())


def test_every_client_has_coins_of_its_own():
    """Coins that clients share say of one client's canaries what another's were, and count as many times as there are clients."""
    canaries = Canaries(b"a", count=8000, clients=4, size=2000)
    for k in range(4):
        for other in range(k):
            assert abs((canaries.coins(k) == canaries.coins(other)).mean() - 0.5) < 0.05


def test_a_run_that_was_stopped_goes_on_with_its_coins_and_sees_the_same_bit_for_bit(runs, tmp_path):
    def stop(record):
        if record["round"] == 2:
            raise KeyboardInterrupt

    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        tacit.run(experiment(), out=out, page=False, observe=stop)
    tacit.run(experiment(), out=out, page=False, resume=True)
    for r in range(6):
        assert file_of(out, r).read_bytes() == file_of(runs("record"), r).read_bytes()


def test_clients_side_by_side_give_the_very_same_traces(runs, tmp_path):
    tacit.run(experiment(run={"workers": 2}), out=tmp_path / "run", page=False)
    for r in range(6):
        assert file_of(tmp_path / "run", r).read_bytes() == file_of(runs("record"), r).read_bytes()


def test_clients_at_once_are_audited_too(tmp_path):
    tacit.run(experiment(run={"at_once": True}), out=tmp_path / "run", page=False)
    found = audit_run(tmp_path / "run", level=DOUBT)
    assert not found.alarming
    assert found.groups[0].measured.epsilon == pytest.approx(8, rel=0.4)


def test_clients_with_other_epsilons_are_never_pooled(tmp_path):
    budgets = {"kind": "local", "epsilon": [4, 4, 4, 8, 8, 8]}
    tacit.run(experiment(privacy=budgets), out=tmp_path / "run", page=False)
    found = audit_run(tmp_path / "run", level=DOUBT)
    assert [group.clients for group in found.groups] == [3, 3]
    assert sum(group.canaries for group in found.groups) == 500
    assert found.groups[0].promised == pytest.approx(4, rel=0.02)


def test_the_coins_are_committed_to_before_anybody_trains(tmp_path):
    seen = []

    def ready(parts, past):
        folder = tmp_path / "run"
        seen.append(json.loads((folder / "run.json").read_text())["canaries"])
        assert not file_of(folder, 0).exists()

    tacit.run(experiment(), out=tmp_path / "run", page=False, ready=ready)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["canaries"] == seen[0]
    assert (tmp_path / "run" / "canaries.json").stat().st_mode & 0o077 == 0


@pytest.fixture
def copy(runs, tmp_path):
    """A copy of a finished run that nobody has looked at, to be spoilt."""
    made = Path(shutil.copytree(runs("record"), tmp_path / "copy"))
    for file in (of_run.AUDIT, looks.LOOKS, of_run.POOLED):
        (made / file).unlink(missing_ok=True)
    return made


def test_coins_that_were_changed_are_refused_by_the_audit_and_by_a_resumed_run(copy):
    (copy / "canaries.json").write_text(json.dumps({"key": "00" * 16}))
    with pytest.raises(BadData, match="not those that were committed to"):
        audit_run(copy)
    (copy / "summary.json").unlink()
    with pytest.raises(BadData, match="not those that were committed to"):
        tacit.run(experiment(), out=copy, page=False, resume=True)


@pytest.mark.parametrize("content", ['{"key": 5}', "[]", "{", '{"key": "zz"}'])
def test_a_damaged_key_is_one_sentence(copy, content):
    (copy / "canaries.json").write_text(content)
    with pytest.raises(TacitError):
        audit_run(copy)


def test_a_trace_that_is_missing_or_damaged_is_named(copy):
    file_of(copy, 3).write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(BadData, match="round-00003"):
        audit_run(copy)
    file_of(copy, 3).unlink()
    with pytest.raises(BadData, match="missing"):
        audit_run(copy)


def test_looks_are_counted_and_a_second_one_sees_what_the_first_saw(copy):
    first, second = audit_run(copy), audit_run(copy)
    assert (first.looks, second.looks) == (1, 2)
    assert first.groups == second.groups
    assert "look 2" in second.sentence or second.alarming


@pytest.mark.parametrize("gone", [looks.LOOKS, of_run.AUDIT])
def test_a_look_is_not_forgotten_where_one_file_is_deleted(copy, gone):
    audit_run(copy)
    audit_run(copy)
    (copy / gone).unlink()
    assert audit_run(copy).looks == 3


def test_the_levels_of_all_runs_that_a_ledger_will_ever_hold_come_to_no_more_than_one():
    alone = [share([("ledger", place)]) for place in range(1, 2001)]
    assert 0.999 < sum(alone) < 1
    assert share([("ledger", place) for place in range(1, 2001)]) == pytest.approx(sum(alone))
    assert share([("own", None)]) == 1.0
    # whatever is taken together, and in whatever order, all choices of a run use at most twice its share
    assert sum(share([("ledger", 3)], earlier=before) for before in range(50)) <= 2 * alone[2]


def test_a_runs_level_follows_from_its_place_in_a_shared_ledger_and_not_from_when_it_is_audited(tmp_path):
    shared = {
        "kind": "local",
        "epsilon": 50.0,
        "noise_multiplier": 8.0,
        "ledger": str(tmp_path / "all.db"),
        "delta_share": 0.2,
    }
    found = []
    for number in (0, 1):
        train = {"rounds": 2, "local_steps": 2, "learning_rate": 0.5 - 0.1 * number}
        few = experiment(privacy=shared, train=train, audit={"canaries": 12})
        tacit.run(few, out=tmp_path / str(number), page=False)
        found.append(audit_run(tmp_path / str(number), level=DOUBT))
    again = audit_run(tmp_path / "0", level=DOUBT)
    assert [(one.place, one.share) for one in (*found, again)] == [(1, 0.5), (2, 1 / 6), (1, 0.5)]
    assert again.groups == found[0].groups
    assert "number 2" in str(of_run_table(found[1]).caption)


def test_a_run_without_canaries_cannot_be_audited_and_says_how(tmp_path):
    tacit.run(experiment(audit={}, train={"rounds": 1}), out=tmp_path / "run", page=False)
    with pytest.raises(BadInput, match=r"audit\.canaries=1000"):
        audit_run(tmp_path / "run")


def test_a_run_that_has_not_ended_is_not_looked_at(copy):
    (copy / "summary.json").unlink()
    with pytest.raises(BadInput, match="has not ended"):
        audit_run(copy)
    assert not (copy / of_run.AUDIT).exists()


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
    monkeypatch.setattr(of_run, "shown", lambda *_, **__: (99.0, 99.0))
    done = CliRunner().invoke(app, ["audit", str(copy), "--json"])
    assert done.exit_code == 3
    assert json.loads(done.output)["rejected"] is True


def test_the_command_says_what_to_audit():
    for words, said in (
        ([], "Say what to audit"),
        (["digits", "--set", "train.rond=3"], "Did you mean 'train.rounds'"),
        (["nowhere"], "There is no folder or experiment nowhere"),
    ):
        with pytest.raises(BadInput, match=said):
            CliRunner().invoke(app, ["audit", *words], catch_exceptions=False)


def test_a_run_is_audited_as_it_was(copy):
    with pytest.raises(BadInput, match="leave out --set"):
        CliRunner().invoke(app, ["audit", str(copy), "--set", "train.rounds=3"], catch_exceptions=False)


def test_the_page_shows_what_the_audit_found_and_refuses_a_damaged_one(copy):
    CliRunner().invoke(app, ["audit", str(copy)])
    found = run_page(read(copy))["audit"]
    (group,), (shown,) = found["groups"], found["pictures"]
    assert group["promised"] > group["measured"]["low"]
    assert len(shown["roc"]["false"]) == len(shown["roc"]["true"]) == len(shown["roc"]["most"])
    assert shown["roc"]["most"][-1] == 1.0
    assert [name for name, *_ in shown["layers"]] == ["1.weight", "1.bias"]
    assert shown["by_round"]["promised"][-1] == pytest.approx(group["promised"], rel=0.01)
    assert '"audit":{' in (copy / "report.html").read_text()
    (copy / of_run.AUDIT).write_text(json.dumps(found | {"groups": 3}))
    with pytest.raises(BadInput, match="audit the run again"):
        run_page(read(copy))


def test_canaries_of_several_runs_are_audited_together(runs, tmp_path):
    other = tmp_path / "other"
    tacit.run(experiment(run={"workers": 1, "seed": 1}), out=other, page=False)
    alone, together = audit_run(other, level=DOUBT), audit_run(runs("record"), other, level=DOUBT)
    assert together.groups[0].canaries == 1000
    assert together.groups[0].measured.low > min(alone.groups[0].measured.low, together.groups[0].promised / 2)
    assert "2 runs" in together.sentence


def test_runs_that_promise_different_epsilons_are_never_pooled(runs, tmp_path):
    tacit.run(experiment(privacy={"kind": "local", "epsilon": 4}), out=tmp_path / "other", page=False)
    with pytest.raises(BadInput, match="audit each alone"):
        audit_run(runs("record"), tmp_path / "other")


def test_a_limit_that_is_none_is_null_in_a_file(tmp_path):
    tacit.run(
        experiment(train={"rounds": 1, "local_steps": 1}, audit={"canaries": 2}), out=tmp_path / "run", page=False
    )
    done = CliRunner().invoke(app, ["audit", str(tmp_path / "run"), "--json"])
    assert "Infinity" not in done.output
    assert "NaN" not in done.output
    read(tmp_path / "run").audit  # noqa: B018 - refuses what is damaged


def test_a_look_at_another_choice_of_runs_halves_the_level_and_leaves_a_runs_own_audit_as_it_was(copy, tmp_path):
    tacit.run(experiment(run={"workers": 1, "seed": 1}), out=tmp_path / "other", page=False)
    alone = audit_run(copy, level=DOUBT)
    kept = (copy / of_run.AUDIT).read_bytes()
    together, halved = audit_run(copy, tmp_path / "other", level=DOUBT), audit_run(tmp_path / "other", level=DOUBT)
    assert (alone.earlier, together.earlier, halved.earlier) == (0, 1, 1)
    assert "looked at once before" in together.sentence
    assert (copy / of_run.AUDIT).read_bytes() == kept
    assert (copy / of_run.POOLED).exists()
    again = audit_run(copy, tmp_path / "other", level=DOUBT)
    assert (again.looks, again.earlier) == (2, 1)
    assert again.groups == together.groups  # the later look at the other one alone changes nothing of it


def test_an_audit_that_could_have_found_little_says_so(tmp_path):
    tacit.run(experiment(audit={"canaries": 12}), out=tmp_path / "run", page=False)
    found = audit_run(tmp_path / "run", level=DOUBT)
    assert found.notes[-1] == f"{of_run.FAINT} Plant more (up to 3,900 fit), or audit several runs together."
    assert (found.cannot_tell, found.alarming, found.record()["cannot_tell"]) == (True, False, True)
    assert found.sentence.startswith("This audit cannot tell: nothing contradicts the claim")


def test_an_audit_that_could_have_found_a_fault_says_that_the_claim_stands(runs):
    found = audit_run(runs("record"), level=0.05)
    assert found.alarming or found.sentence.startswith("The claim stands. ")
    assert not found.cannot_tell
    assert not found.record()["cannot_tell"]


@pytest.mark.parametrize(("kind", "canaries"), [("record", 500), ("central", 500)])
def test_what_an_audit_could_show_is_foretold_as_it_is_measured(runs, kind, canaries):
    (charged,) = of_run._seen(runs(kind)).groups
    (group,) = audit_run(runs(kind), level=0.05).groups
    assert power.lower_limit(charged, canaries=canaries, level=0.05) == pytest.approx(group.measured.low, rel=0.25)


def found_with(estimate, low, promised=1.0):
    measured = Measured(1.0, (0.9, 1.1), 1.0, estimate, low, 9.0, alike=1.0, repeated=1.0, dependent=False)
    return Alike(3, 90, promised, 0.0, 0.0, measured)


def test_an_estimate_above_a_promise_that_stands_is_explained_and_no_other_is():
    assert "only its lower limit (0.714) accuses" in above([found_with(1.3, 0.7149), found_with(0.9, 0.5)])
    assert above([found_with(0.9, 0.5)]) == ""
    assert above([found_with(3.0, 2.0)]) == "", "a rejection speaks for itself"


def tiny(folder, *, seed=0, **more):
    """A run whose model has few parameters: 3 x 6, for three clients."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    rows = [",".join(map(str, [*rng.random(5).round(3), i % 3, f"c{i % 3}"])) for i in range(150)]
    (folder / "rows.csv").write_text("\n".join(["a,b,c,d,e,ill,who", *rows]) + "\n")
    data = {"name": "csv", "path": str(folder / "rows.csv"), "partition": "natural", "client_column": "who"}
    data |= {"label": "ill", "classes": ["0", "1", "2"], "numeric": {name: [0, 1] for name in "abcde"}}
    privacy = {"kind": "local", "epsilon": 1.0}
    sections = {"name": "tiny", "data": data, "train": {"rounds": 2, "local_steps": 1}, "privacy": privacy}
    tacit.run(tacit.Experiment(**sections, run={"workers": 1, "seed": seed}, **more), out=folder / "run", page=False)
    return folder / "run"


def test_a_model_too_small_for_canaries_is_sent_to_the_mechanism_and_not_told_to_plant_what_cannot_fit(tmp_path):
    with pytest.raises(
        BadInput, match=r"too small to be audited by canaries: even the 54 that fit .*tacit audit EXPERIMENT"
    ):
        audit_run(tiny(tmp_path))


def test_an_audit_of_a_model_too_small_for_canaries_says_so_too(tmp_path):
    runs = [tiny(tmp_path / str(seed), seed=seed, audit={"canaries": 54}) for seed in range(5)]
    found = [audit_run(run).notes for run in runs]
    faint = [note for notes in found for note in notes if note.startswith(of_run.FAINT)]
    assert len(faint) >= 2, "by chance one of them sees more than it should"
    assert all("the model is too small to be audited by canaries: even the 54 that fit" in note for note in faint)


def test_no_more_canaries_are_advised_than_fit(tmp_path):
    plain = {"data": {"clients": 1, "examples_per_client": 400}, "audit": {}}
    tacit.run(experiment(**plain), out=tmp_path / "run", page=False)
    with pytest.raises(BadInput, match=r"--set audit\.canaries=650, or audit the mechanism alone"):
        audit_run(tmp_path / "run")


def test_where_everybody_pays_all_clients_are_counted(runs):
    assert audit_run(runs("central"), level=DOUBT).groups[0].clients == 6


def test_coins_that_are_gone_cannot_be_made_again(copy):
    (copy / "canaries.json").unlink()
    with pytest.raises(BadData, match="cannot be made again"):
        audit_run(copy)
