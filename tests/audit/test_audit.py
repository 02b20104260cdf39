"""Audits as somebody runs them: the command, its exit codes and words, and trainers that break their promise."""

import io
import json
from contextlib import contextmanager
from dataclasses import replace

import pytest
import ready
from audit.conftest import experiment, parts_of
from rich.console import Console
from typer.testing import CliRunner

import tacit
from tacit.cli.app import app
from tacit.engine import trainers as make
from tacit.engine.assemble import build
from tacit.errors import BadInput
from tacit.lab.audit import found as show
from tacit.lab.audit import plants, trainers
from tacit.lab.audit.evidence import Audit, Check, Exact, Noise, Spread, judge
from tacit.lab.audit.mechanism import audit, prepared, repeated
from tacit.lab.audit.plants import PLANTED, plant_of
from tacit.lab.audit.trainers import TRAINERS
from tacit.types import Bounded

SEEN = {"one by one"}


@pytest.fixture
def asked(tmp_path):
    """Calls the command for an experiment's file; the exit code and what was printed."""

    def ask(kind="client", *, trainer="one by one", as_json=True, **options):
        path = tmp_path / "small.toml"
        path.write_text(experiment(kind).toml())
        words = ["audit", str(path), "--trainer", trainer, *["--json"] * as_json]
        words += [word for name, value in options.items() for word in (f"--{name}", str(value))]
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        return done.exit_code, done.stdout

    return ask


def test_a_rejected_claim_is_exit_code_3_with_one_sentence(tmp_path):
    (tmp_path / "small.toml").write_text(experiment("client").toml())
    words = ["audit", "small.toml", "--plant", "layer", "--trainer", "one by one"]
    done = ready.tacit(*words, cwd=tmp_path).wait(300)
    assert done.returncode == 3, done.stderr
    assert "The claim is rejected: one by one: less noise than is priced" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.toml"]  # nothing is written


def test_without_a_word_what_to_audit_it_is_exit_code_2(tmp_path):
    done = ready.tacit("audit", cwd=tmp_path).wait(300)
    assert done.returncode == 2
    assert done.stderr.startswith("Say what to audit: `tacit audit FOLDER` the canaries of a run or a site")
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_numbers_are_there_as_json(asked):
    _, said = asked()
    found = json.loads(said)
    assert {"noise multiplier", "clip", "likeness of noises"} <= {check["quantity"] for check in found["checks"]}
    assert {check["part"] for check in found["checks"]} >= {"", "1.weight", "1.bias"}
    whole = next(check for check in found["checks"] if check["quantity"] == "noise multiplier" and not check["part"])
    assert whole["low"] < whole["as_run"] < whole["high"]
    assert whole["as_run"] == pytest.approx(whole["claimed"], rel=0.05)


def test_a_table_is_printed_for_people(asked):
    code, said = asked(plant="clip", as_json=False)
    assert code == 3
    said = " ".join(said.split())
    assert "the mechanism as run, with the bug clip planted" in said
    assert (
        "The claim is rejected: one by one: " in said
    )  # a true claim may come before it: one in twenty is rejected by chance
    assert "a client changes more than its clip: clip 2, claimed 1" in said or "more)." in said


def test_a_model_that_cannot_be_stacked_is_told_so_in_one_sentence():
    parts = build(
        tacit.Experiment(
            model={"name": "stacks:mixing"},
            privacy={"kind": "local", "unit": "client", "epsilon": 3.0},
            train={"rounds": 1},
        )
    )
    with pytest.raises(BadInput, match="this experiment cannot be stacked: A layer mixes the examples of a batch"):
        trainers.TRAINERS["stacked"](parts, lambda same: same).__enter__()


def test_a_bug_is_counted_over_seeds(asked):
    code, said = asked(plant="noise=0.9", repeat=2)
    assert code == 3
    assert json.loads(said)["alarms"] == 2
    code, said = asked(plant="noise=0.9", repeat=2, as_json=False)
    assert "The planted bug was found in 2 of 2 audits" in " ".join(said.split())


def test_clean_code_over_seeds_is_no_alarm(asked):
    code, said = asked(repeat=1, as_json=False)  # a single false alarm is within what the level explains
    assert code == 0
    assert "that true claims may be" in " ".join(said.split())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"plant": "nois"}, "Expected --plant to be one of"),
        ({"plant": "noise=1.5"}, "a factor of at least 0 and below 1"),
        ({"plant": "noise=much"}, "as in noise=0.95"),
        ({"plant": "share"}, "--plant share does not apply to this experiment: this kind of privacy has no such part"),
        ({"plant": "sampling"}, "does not apply to this experiment: nothing is sampled in it"),
        ({"trainer": "stack"}, "Did you mean 'stacked'?"),
        ({"repeat": 0}, "Expected --repeat >= 1"),
        ({"seed": -1}, "Expected --seed >= 0"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(asked, words, sentence):
    with pytest.raises(BadInput) as caught:
        asked(**words)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_experiment_that_promises_nothing_has_nothing_to_audit():
    with pytest.raises(BadInput, match="promises nothing"):
        prepared(tacit.Experiment(privacy={"kind": "none"}))


def test_weights_of_clients_of_one_size_are_no_bug():
    equal = prepared(experiment("central", data={"clients": 5, "partition": "iid", "examples_per_client": 60}))
    with pytest.raises(BadInput, match="the same number of records"):
        plant_of("weights", equal)


@pytest.mark.parametrize("trainer", ["one by one", "site"])
def test_noise_of_the_operating_system_is_audited_too(trainer):
    real = prepared(experiment("record", run={"randomness": "os"}))
    assert not audit(real, trainers=[trainer], level=1e-6).rejected
    assert only(audit(real, trainers=[trainer], level=1e-6, plant="clip"), "clip") == {trainer}


def test_momentum_decay_and_a_schedule_come_after_the_noise_and_are_no_bug():
    settings = {"momentum": 0.5, "weight_decay": 0.01, "proximal": 0.1, "schedule": "cosine", "local_steps": 3}
    moved = prepared(experiment("record", train=settings))
    assert not audit(moved, trainers=["one by one", "stacked"], level=1e-6).rejected


def only(found, quantity):
    return {one.check.where for one in found.rejected if one.check.quantity == quantity}


def test_a_trainer_that_sends_an_answer_twice_is_found(monkeypatch):
    @contextmanager
    def stuck(parts, prepare):
        trainer, sent = make.alone(prepare(parts)), {}

        def again(received, round, cohort):
            for index, reply in zip(cohort, trainer(received, round, cohort), strict=True):
                yield sent.setdefault(index, reply)

        yield again

    monkeypatch.setitem(trainers.TRAINERS, "one by one", stuck)
    assert only(audit(parts_of("client"), trainers=["one by one"], level=1e-6), "likeness of noises") == SEEN


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
            bounded, told = own(*rows, **more)
            return Bounded(bounded.vector, work.clip), told

        return summed

    bounding(monkeypatch, longer)
    assert only(audit(parts_of("record"), trainers=["one by one"], level=1e-6), "clip") == SEEN


def test_a_sum_that_counts_every_record_twice_is_found_where_all_of_them_are_in_it(monkeypatch):
    def twice(work):
        own = work.clipped_sum

        def summed(*rows, **more):
            bounded, told = own(*rows, **more)
            return Bounded(2 * bounded.vector, work.clip), told

        return summed

    bounding(monkeypatch, twice)
    whole = prepared(experiment("record", train={"sampling_rate": 1.0}))
    assert only(audit(whole, trainers=["one by one"], level=1e-6), "sampling rate") == SEEN


def test_an_audit_leaves_the_parts_as_they_were():
    parts = parts_of("record")
    before, model = parts.theta.clone(), parts.initial_model_digest
    audit(parts, trainers=["one by one"])
    assert (parts.theta == before).all()
    assert parts.initial_model_digest == model
    assert parts.nonce == ""


def test_the_same_seed_gives_the_same_numbers_and_another_others():
    runs = [audit(parts_of("client"), trainers=["one by one"], seed=seed).record()["checks"] for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_repeated_audits_count_their_reasons():
    found = repeated(parts_of("client"), seeds=range(2), plant="layer", trainers=["one by one"])
    assert found.alarms == 2
    assert found.reasons["one by one", "noise multiplier", "1.bias"] == 2


def test_the_words_of_trainers_and_bugs_are_those_that_there_are():
    assert tuple(TRAINERS) == plants.TRAINERS
    assert tuple(PLANTED) == plants.PLANTS


def found_by(places, *, std):
    """An audit of these trainers, whose noise and clip are `std` and twice what is claimed."""
    noise = Noise(1000 * std**2, 1000)
    rows = [("noise multiplier", part, 1.0, noise) for part in ("", "1.weight", "least client")]
    rows += [("clip", "", 1.0, Exact(2.0)), ("divisor off by", "", 0.0, Exact(0.0))]
    checks = [
        Check(place, what, claimed, seen, "as claimed", part) for place in places for what, part, claimed, seen in rows
    ]
    return Audit("digits", judge(checks))


def printed(found, width):
    file = io.StringIO()
    Console(width=width, color_system=None, file=file).print(show.fitting(found, width=width))
    return file.getvalue()


def test_every_number_says_its_limits_or_what_it_is_held_against():
    spread = Spread((5, 6), (10, 10), (0.5, 0.5))
    rows = [
        ("clip", 1.0, Exact(1.0)),
        ("divisor off by", 0.0, Exact(0.0, slack=0.05)),
        ("spread of batches", 1.0, spread),
    ]
    rows += [("opened sum off by", 0.0, Exact(0.0)), ("noise multiplier", 1.0, Noise(1000.0, 1000))]
    found = Audit("digits", judge([Check("site", what, claimed, seen, "as claimed") for what, claimed, seen in rows]))
    by = {one.check.quantity: one for one in found.judged}
    assert [by[name].against for name in ("clip", "divisor off by", "opened sum off by")] == [
        "≤ 1.01",
        "≤ 0.05",
        "≤ 0",
    ]
    assert by["spread of batches"].against.startswith("≥ 0")
    assert by["noise multiplier"].against == ""
    assert "≤ 1.01" in printed(found, 80)
    assert {one["held_against"] for one in found.record()["checks"]} >= {"≤ 1.01", ""}


def test_what_no_draw_could_refute_is_shown_and_not_judged():
    one, *_ = judge([Check("site", "spread of batches", 1.0, Spread((5,), (10,), (0.5,)), "as claimed")], level=1e-6)
    assert (one.verdict, one.against) == ("–", "shown, not judged")
    assert "stands" not in printed(Audit("digits", (one,)), 80)


def test_the_least_spread_that_stands_is_where_rejection_ends():
    spread = Spread((5, 6, 3), (10, 12, 9), (0.5, 0.4, 0.5))
    for level in (0.001, 0.05, 0.4):
        assert spread.rejects(1.0, level) == (spread.value < (spread.least(level) or 0.0) - 1e-12)


def test_verdicts_are_words_that_fit_a_narrow_terminal():
    found = found_by(plants.TRAINERS, std=0.5)
    narrow, wide = printed(found, 80), printed(found, 200)
    assert max(map(len, narrow.splitlines())) <= 80
    assert narrow.count("rejected") - narrow.count("is rejected") == 4 * 4  # without any colour
    assert narrow.count("stands") == 4
    for place in plants.TRAINERS:
        assert narrow.count(f": {place}") == 1
    assert "…" not in narrow
    assert wide.count("rejected") - wide.count("is rejected") == 4 * 4
    assert len(wide.splitlines()) < len(narrow.splitlines())
    assert "stands" in printed(found_by(["one by one"], std=1.0), 40)
