"""Audits as somebody runs them: the command, its exit codes and words, trainers that break their promise, and the two looks at
what fails: clean code is accused in 1 of 400 audits at most."""

import io
import json
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
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
PARTS, COUNT, AUDITS = 8, 2000, 800


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


def test_numbers_are_there_as_json_and_as_a_table_a_rejected_claim_is_exit_code_3_and_nothing_is_written(
    audited, tmp_path
):
    checks = json.loads(audited()[1])["checks"]
    assert {"noise multiplier", "clip", "likeness of noises"} <= {check["quantity"] for check in checks}
    assert {check["part"] for check in checks} >= {"", "1.weight", "1.bias"}
    whole = next(check for check in checks if check["quantity"] == "noise multiplier" and not check["part"])
    assert whole["low"] < whole["as_run"] < whole["high"]
    assert whole["as_run"] == pytest.approx(whole["claimed"], rel=0.05)
    code, text = audited(plant="clip", as_json=False)
    text = " ".join(text.split())
    assert (code, [path.name for path in tmp_path.iterdir()]) == (3, ["small.toml"])
    assert "the mechanism as run, with the bug clip planted" in text
    assert "The claim is rejected: one by one: " in text  # a true claim may come first: one in twenty fails by chance
    assert "a client changes more than its clip: clip 2, claimed 1" in text or "more)." in text


def test_what_cannot_be_audited_stacked_or_planted_is_refused_in_one_sentence():
    privacy = {"kind": "local", "unit": "client", "epsilon": 3.0}
    mixing = build(tacit.Experiment(model={"name": "stacks:mixing"}, privacy=privacy, train={"rounds": 1}))
    with pytest.raises(BadInput, match="this experiment cannot be stacked: A layer mixes the examples of a batch"):
        trainers.TRAINERS["stacked"](mixing, lambda same: same).__enter__()
    with pytest.raises(BadInput, match="promises nothing"):
        prepared(tacit.Experiment(privacy={"kind": "none"}))
    equal = prepared(experiment("central", data={"clients": 5, "partition": "iid", "examples_per_client": 60}))
    with pytest.raises(BadInput, match="the same number of records"):
        bug_of("weights", equal)


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


def test_noise_of_the_operating_system_is_audited():
    real = prepared(experiment("record", run={"randomness": "os"}))
    assert not audit(real, trainers=[ONE, "site"], level=DOUBT).rejected
    assert only(audit(real, trainers=["site"], level=DOUBT, plant="clip"), "clip") == {"site"}


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


def printed(report, width=80):
    file = io.StringIO()
    Console(width=width, color_system=None, file=file).print(by_trainer(report))
    return file.getvalue()


def test_every_number_says_its_limits_or_what_it_is_held_against_in_words_that_fit_a_narrow_terminal():
    released, batches = noise(1000 * 0.5**2, 1000), spread((5, 6), (10, 10), (0.5, 0.5))
    rows = [("noise multiplier", part, 1.0, released) for part in ("", "1.weight", "least client")]
    rows += [("clip", "", 1.0, exact(2.0)), ("divisor off by", "", 0.0, exact(0.0, slack=0.05))]
    rows += [("spread of batches", "", 1.0, batches)]
    checks = [Check(place, *row[::2], row[3], "as claimed", row[1]) for place in trainers.TRAINERS for row in rows]
    report = Audit("digits", judge(checks))
    against = {one.check.quantity: one.against for one in report.judged}
    assert (against["clip"], against["divisor off by"], against["noise multiplier"]) == ("≤ 1.01", "≤ 0.05", "")
    assert against["spread of batches"].startswith("≥ 0")
    assert {one["held_against"] for one in report.record()["checks"]} >= {"≤ 1.01", ""}
    text = printed(report)
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("rejected") - text.count("is rejected") == 4 * 4  # without any colour
    assert text.count("stands") == 2 * 4
    assert all(text.count(f": {place}") == 1 for place in trainers.TRAINERS)
    assert "…" not in text
    one, *_ = judge([Check("site", "spread of batches", 1.0, spread((5,), (10,), (0.5,)), "as claimed")], level=DOUBT)
    assert (one.verdict, one.against) == ("–", "shown, not judged")
    assert "stands" not in printed(Audit("digits", (one,)))


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
    (fine,) = confirmed(judge([Check("server", "noise", 1.0, right, "less")]), both)
    assert not fine.rejected  # only what failed is looked at
    assert not unsure(judge([Check("stacked", "clip", 1.0, exact(2.0), "more")]))


def test_what_fails_by_chance_alone_is_looked_at_again_with_other_randomness(monkeypatch):
    looks, real = [], mechanism._look
    monkeypatch.setattr(mechanism, "_look", lambda *how, **named: looks.append(how[2]) or real(*how, **named))
    assert audit(parts_of("client"), plant="clip", trainers=[ONE]).rejected
    assert len(looks) == 1
    found = audit(parts_of("cyclic"), plant="noise=0.95", trainers=[ONE])
    assert {one.check.where for one in found.rejected} == {"server"}
    _, first, second = looks
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
