"""Audits as somebody runs them: the command, its exit codes and words, trainers that break their promise, and the two looks at
what fails: clean code is accused in 1 of 400 audits at most."""

import io
import json
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import ready
from audit.conftest import experiment, parts_of
from rich.console import Console
from scipy import stats
from typer.testing import CliRunner

import tacit
from tacit.cli.app import app
from tacit.engine import trainers as make
from tacit.engine.assemble import build
from tacit.errors import BadInput
from tacit.lab.audit import mechanism, trainers
from tacit.lab.audit.bugs import bug_of
from tacit.lab.audit.evidence import AGAIN, LEVEL, Audit, Check, confirmed, exact, judge, noise, spread, unsure
from tacit.lab.audit.mechanism import audit, prepared
from tacit.lab.audit.report import by_trainer
from tacit.privacy.distributed.records import RecordShare
from tacit.privacy.local import SampledGaussian
from tacit.types import Bounded

ONE = "one by one"
DOUBT = 1e-6  # of a false alarm
PARTS, COUNT, AUDITS = 8, 2000, 2000


@pytest.fixture
def audited(tmp_path):
    """Calls the command for an experiment's file; the exit code and what was printed."""

    def call(*, trainer=ONE, as_json=True, **options):
        path = tmp_path / "small.toml"
        path.write_text(experiment("client").toml())
        words = ["audit", str(path), "--trainer", trainer, *["--json"] * as_json]
        words += [word for name, value in options.items() for word in (f"--{name}", str(value))]
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        return done.exit_code, done.stdout

    return call


def test_a_rejected_claim_is_exit_code_3_with_one_sentence_and_nothing_is_written(tmp_path):
    (tmp_path / "small.toml").write_text(experiment("client").toml())
    done = ready.tacit("audit", "small.toml", "--plant", "layer", "--trainer", ONE, cwd=tmp_path).wait(300)
    assert done.returncode == 3, done.stderr
    assert "The claim is rejected: one by one: less noise than is priced" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.toml"]


def test_the_numbers_are_there_as_json_and_as_a_table(audited):
    checks = json.loads(audited()[1])["checks"]
    assert {"noise multiplier", "clip", "likeness of noises"} <= {check["quantity"] for check in checks}
    assert {check["part"] for check in checks} >= {"", "1.weight", "1.bias"}
    whole = next(check for check in checks if check["quantity"] == "noise multiplier" and not check["part"])
    assert whole["low"] < whole["as_run"] < whole["high"]
    assert whole["as_run"] == pytest.approx(whole["claimed"], rel=0.05)
    code, text = audited(plant="clip", as_json=False)
    text = " ".join(text.split())
    assert code == 3
    assert "the mechanism as run, with the bug clip planted" in text
    assert "The claim is rejected: one by one: " in text  # a true claim may come first: one in twenty fails by chance
    assert "a client changes more than its clip: clip 2, claimed 1" in text or "more)." in text


def test_a_model_that_cannot_be_stacked_is_refused_in_one_sentence():
    parts = build(
        tacit.Experiment(
            model={"name": "stacks:mixing"},
            privacy={"kind": "local", "unit": "client", "epsilon": 3.0},
            train={"rounds": 1},
        )
    )
    with pytest.raises(BadInput, match="this experiment cannot be stacked: A layer mixes the examples of a batch"):
        trainers.TRAINERS["stacked"](parts, lambda same: same).__enter__()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"plant": "nois"}, "Expected --plant to be one of"),
        ({"plant": "noise=1.5"}, "a factor of at least 0 and below 1"),
        ({"plant": "noise=much"}, "as in noise=0.95"),
        ({"plant": "share"}, "--plant share does not apply to this experiment: this kind of privacy has no such part"),
        ({"plant": "sampling"}, "does not apply to this experiment: nothing is sampled in it"),
        ({"trainer": "stack"}, "Did you mean 'stacked'?"),
        ({"seed": -1}, "Expected --seed >= 0"),
    ],
)
def test_a_word_that_is_wrong_is_one_sentence(audited, words, sentence):
    with pytest.raises(BadInput) as caught:
        audited(**words)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_experiment_that_promises_nothing_has_nothing_to_audit():
    with pytest.raises(BadInput, match="promises nothing"):
        prepared(tacit.Experiment(privacy={"kind": "none"}))


def test_weights_of_clients_of_one_size_are_no_bug():
    equal = prepared(experiment("central", data={"clients": 5, "partition": "iid", "examples_per_client": 60}))
    with pytest.raises(BadInput, match="the same number of records"):
        bug_of("weights", equal)


@pytest.mark.parametrize("trainer", [ONE, "site"])
def test_noise_of_the_operating_system_is_audited(trainer):
    real = prepared(experiment("record", run={"randomness": "os"}))
    assert not audit(real, trainers=[trainer], level=DOUBT).rejected
    assert only(audit(real, trainers=[trainer], level=DOUBT, plant="clip"), "clip") == {trainer}


def test_momentum_decay_and_a_schedule_come_after_the_noise_and_are_no_bug():
    settings = {"momentum": 0.5, "weight_decay": 0.01, "proximal": 0.1, "schedule": "cosine", "local_steps": 3}
    moved = prepared(experiment("record", train=settings))
    assert not audit(moved, trainers=[ONE, "stacked"], level=DOUBT).rejected


def only(report, quantity):
    return {one.check.where for one in report.rejected if one.check.quantity == quantity}


def test_a_trainer_that_sends_an_answer_twice_is_found(monkeypatch):
    @contextmanager
    def stuck(parts, prepare):
        trainer, sent = make.alone(prepare(parts)), {}

        def again(received, round, cohort):
            for index, reply in zip(cohort, trainer(received, round, cohort), strict=True):
                yield sent.setdefault(index, reply)

        yield again

    monkeypatch.setitem(trainers.TRAINERS, ONE, stuck)
    assert only(audit(parts_of("client"), trainers=[ONE], level=DOUBT), "likeness of noises") == {ONE}


def bounding(monkeypatch, change):
    """A trainer whose sums are changed before they are noised, under the label of the clip that is priced."""
    real = make.workspace_of

    def changed(parts, *, model=None):
        work = real(parts, model=model)
        vars(work)["clipped_sum"] = change(work)
        return work

    monkeypatch.setattr(make, "workspace_of", changed)


def test_a_trainer_that_clips_by_itself_is_found_whatever_it_says_to_the_mechanism(monkeypatch):
    def longer(work):
        own = replace(work, clip=3 * work.clip).clipped_sum

        def summed(*rows, **more):
            bounded, info = own(*rows, **more)
            return Bounded(bounded.vector, work.clip), info

        return summed

    bounding(monkeypatch, longer)
    assert only(audit(parts_of("record"), trainers=[ONE], level=DOUBT), "clip") == {ONE}


def test_a_sum_that_counts_every_record_twice_is_found_where_all_of_them_are_in_it(monkeypatch):
    def twice(work):
        own = work.clipped_sum

        def summed(*rows, **more):
            bounded, info = own(*rows, **more)
            return Bounded(2 * bounded.vector, work.clip), info

        return summed

    bounding(monkeypatch, twice)
    whole = prepared(experiment("record", train={"sampling_rate": 1.0}))
    assert only(audit(whole, trainers=[ONE], level=DOUBT), "sampling rate") == {ONE}


@pytest.mark.parametrize("kind", ["central-records", "secret-records"])
def test_batches_of_a_fixed_size_in_sums_of_records_are_found(monkeypatch, kind):
    def fixed(self, state, stream, size):
        mixed = stream.uniform(size).argsort()
        return state, np.sort(mixed[: round(self.sampling_rate * size)])

    for owner in (SampledGaussian, RecordShare):
        monkeypatch.setattr(owner, "sample", fixed)
    assert only(audit(parts_of(kind), trainers=[ONE]), "spread of batches") == {ONE}


@pytest.mark.parametrize("kind", ["central-records", "secret-records"])
def test_two_thirds_of_the_noise_on_a_sum_of_records_is_found_at_its_owner(kind):
    found = audit(parts_of(kind), trainers=[ONE], plant="noise=0.6667", level=DOUBT)
    place = "server" if kind == "central-records" else ONE
    assert {one.check.where for one in found.rejected if "noise" in one.check.quantity} == {place}


def test_an_audit_leaves_the_parts_as_they_were_and_follows_from_its_seed():
    parts = parts_of("client")
    before, model = parts.theta.clone(), parts.initial_model_digest
    runs = [audit(parts, trainers=[ONE], seed=seed).record()["checks"] for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    assert (parts.theta == before).all()
    assert (parts.initial_model_digest, parts.nonce) == (model, "")


def report_of(places, *, std):
    """An audit of these trainers, whose noise and clip are `std` and twice what is claimed."""
    released, batches = noise(1000 * std**2, 1000), spread((5, 6), (10, 10), (0.5, 0.5))
    rows = [("noise multiplier", part, 1.0, released) for part in ("", "1.weight", "least client")]
    rows += [("clip", "", 1.0, exact(2.0)), ("divisor off by", "", 0.0, exact(0.0, slack=0.05))]
    rows += [("spread of batches", "", 1.0, batches)]
    checks = [Check(place, what, due, seen, "as claimed", part) for place in places for what, part, due, seen in rows]
    return Audit("digits", judge(checks))


def printed(report, width):
    file = io.StringIO()
    Console(width=width, color_system=None, file=file).print(by_trainer(report))
    return file.getvalue()


def test_every_number_says_its_limits_or_what_it_is_held_against():
    report = report_of(["site"], std=1.0)
    against = {one.check.quantity: one.against for one in report.judged}
    assert (against["clip"], against["divisor off by"], against["noise multiplier"]) == ("≤ 1.01", "≤ 0.05", "")
    assert against["spread of batches"].startswith("≥ 0")
    assert "≤ 1.01" in printed(report, 80)
    assert {one["held_against"] for one in report.record()["checks"]} >= {"≤ 1.01", ""}


def test_what_no_draw_could_refute_is_shown_and_not_judged():
    one, *_ = judge([Check("site", "spread of batches", 1.0, spread((5,), (10,), (0.5,)), "as claimed")], level=DOUBT)
    assert (one.verdict, one.against) == ("–", "shown, not judged")
    assert "stands" not in printed(Audit("digits", (one,)), 80)


def test_verdicts_are_words_that_fit_a_narrow_terminal():
    text = printed(report_of(trainers.TRAINERS, std=0.5), 80)
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("rejected") - text.count("is rejected") == 4 * 4  # without any colour
    assert text.count("stands") == 2 * 4
    assert all(text.count(f": {place}") == 1 for place in trainers.TRAINERS)
    assert "…" not in text


# Two looks, each independent of the other


def look(rng, *, std=1.0):
    """What an audit sees of noise of this standard deviation, in several parts, where 1 is claimed."""
    squares = std**2 * rng.chisquare(COUNT, size=PARTS)
    return [
        Check("server", "noise", 1.0, noise(float(s), COUNT), "less noise", part=str(k)) for k, s in enumerate(squares)
    ]


def test_clean_code_fails_a_first_look_as_often_as_its_level_and_is_rejected_as_often_as_both_together():
    rng, once, twice = np.random.default_rng(3), 0, 0
    for _ in range(AUDITS):
        first = judge(look(rng))
        once += unsure(first)
        twice += any(one.rejected for one in confirmed(first, look(rng))) if unsure(first) else 0
    assert stats.binom.cdf(once, AUDITS, LEVEL) > 1e-4  # the level is used, so that what is wrong is found
    assert stats.binom.sf(once - 1, AUDITS, LEVEL) > 1e-4
    assert stats.binom.sf(twice - 1, AUDITS, LEVEL * AGAIN) > 1e-4
    assert stats.binom.sf(round(LEVEL * AUDITS) - 1, AUDITS, LEVEL * AGAIN) < 1e-9  # one look would be found out here


def test_what_is_wrong_fails_the_second_look_at_least_as_surely_as_the_first():
    rng, once, twice = np.random.default_rng(4), 0, 0
    for _ in range(400):
        first = judge(look(rng, std=0.96))
        once += unsure(first)
        twice += any(one.rejected for one in confirmed(first, look(rng, std=0.96))) if unsure(first) else 0
    assert once > 200
    assert twice / once > once / 400 - 0.05


def test_a_second_look_takes_back_what_it_does_not_see_and_nothing_else():
    low, right = noise(0.5 * COUNT, COUNT), noise(1.0 * COUNT, COUNT)
    both = [Check("server", "noise", 1.0, low, "less", part=part) for part in ("a", "b")]
    seen = confirmed(judge(both), [Check("server", "noise", 1.0, right, "less", part="a"), both[1]])
    assert [one.rejected for one in seen] == [False, True]
    assert all(one.rejected for one in confirmed(judge(both), []))  # what was not measured again is not taken back
    fine = judge([Check("server", "noise", 1.0, right, "less")])
    assert not confirmed(fine, [Check("server", "noise", 1.0, low, "less")])[
        0
    ].rejected  # only what failed is looked at


def test_what_has_no_chance_in_it_is_not_looked_at_again(monkeypatch):
    assert not unsure(judge([Check("stacked", "clip", 1.0, exact(2.0), "more")]))
    looks = counted(monkeypatch)
    assert audit(parts_of("client"), plant="clip", trainers=[ONE]).rejected
    assert len(looks) == 1


def counted(monkeypatch):
    looks, real = [], mechanism._look
    monkeypatch.setattr(mechanism, "_look", lambda *how, **named: looks.append(how[2]) or real(*how, **named))
    return looks


def test_a_bug_in_the_noise_is_found_by_two_looks_of_other_randomness(monkeypatch):
    looks = counted(monkeypatch)
    found = audit(parts_of("cyclic"), plant="noise=0.95", trainers=[ONE])
    assert {one.check.where for one in found.rejected} == {"server"}
    first, second = looks
    assert noise_of(first) != noise_of(second)


def noise_of(nonce):
    checks, _ = mechanism._look(parts_of("cyclic"), lambda parts: parts, nonce, [ONE])
    return next(check.evidence.value for check in checks if check.quantity == "noise multiplier")


def test_what_failed_once_is_a_note_and_no_alarm(monkeypatch):
    looks = [[Check("server", "noise", 1.0, noise(part * COUNT, COUNT), "less noise")] for part in (0.5, 1.0)]
    given = iter(looks)
    monkeypatch.setattr(mechanism, "_look", lambda *_, **__: (next(given), []))
    report = audit(parts_of("client"))
    assert (report.alarming, len(report.withdrawn)) == (False, 1)
    assert "failed at a first look" in report.notes[0]
    assert "The claim stands: 1 checks, none rejected" in report.sentence
    assert report.record()["false_alarm"] == pytest.approx(LEVEL * AGAIN)
