"""The trainer that a clock decides about: which one is taken, what of it is said, and that the trial is no release."""

import itertools
import json

import pytest

import tacit
from tacit import simulation
from tacit.engine import trainers
from tacit.engine.assemble import build


def ticking(*steps):
    """A clock that goes on by so much with every second look: what is timed takes each step in turn."""
    waits = itertools.chain.from_iterable((0.0, step) for step in steps)
    return itertools.accumulate(waits).__next__


def kept(folder):
    return json.loads((folder / "run.json").read_text())[simulation.KEY]


def notes(history):
    return " ".join(history.summary["notes"])


@pytest.mark.parametrize(
    ("times", "together", "words"),
    [(3.0, 6, "3.0 times as fast"), (0.5, 0, "2 times as long"), (0.0, 0, "cannot be done")],
)
def test_the_faster_trainer_is_taken_kept_and_said(small, tmp_path, monkeypatch, times, together, words):
    monkeypatch.setattr(simulation, "gain", lambda parts: times)
    history = tacit.run(small(run={"at_once": "measured"}), out=tmp_path / "run", page=False)
    assert kept(tmp_path / "run") == together
    assert words in notes(history)


@pytest.mark.parametrize(("randomness", "asked"), [("seeded", 0), ("os", 1)])
def test_without_a_word_a_clock_decides_only_where_no_start_repeats_another(
    small, tmp_path, monkeypatch, randomness, asked
):
    looked = []
    monkeypatch.setattr(simulation, "gain", lambda parts: looked.append(parts) or 2.0)
    tacit.run(small(run={"randomness": randomness}), out=tmp_path / "run", page=False)
    assert len(looked) == asked
    assert (kept(tmp_path / "run") > 0) == bool(asked)


def test_canary_records_are_for_clients_by_themselves_and_no_clock_is_asked(small, tmp_path, monkeypatch):
    monkeypatch.setattr(simulation, "gain", lambda parts: pytest.fail("nothing to decide"))
    audited = small(run={"randomness": "os"}, audit={"canaries": 20, "placement": "record"})
    tacit.run(audited, out=tmp_path / "run", page=False)
    assert kept(tmp_path / "run") == 0


def test_a_run_goes_on_with_the_trainer_it_began_with_whatever_the_clock_says_then(small, tmp_path, monkeypatch):
    monkeypatch.setattr(simulation, "gain", lambda parts: 2.0)
    asked = small(run={"at_once": "measured"}, train={"rounds": 3})

    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tacit.run(asked, out=tmp_path / "run", observe=stop, page=False)
    monkeypatch.setattr(simulation, "gain", lambda parts: pytest.fail("it was decided"))
    assert len(tacit.run(asked, out=tmp_path / "run", resume=True, page=False).rounds) == 3


def test_the_gain_is_the_best_time_apart_over_the_best_time_at_once_after_a_first_turn(small):
    parts = simulation.replace(build(small(run={"at_once": "measured"})), together=6)
    clock = ticking(1.0, 0.9, 0.8, 0.1, 0.4, 0.2)  # three turns each; the first of either does not count
    assert simulation.gain(parts, clock=clock) == pytest.approx(0.8 / 0.2)


def test_a_turn_that_takes_long_is_not_repeated(small):
    parts = simulation.replace(build(small(run={"at_once": "measured"})), together=6)
    assert simulation.gain(parts, clock=ticking(10.0, 5.0)) == pytest.approx(2.0)


def test_training_that_fails_in_the_trial_is_left_to_the_run_to_tell(small):
    asked = small(run={"at_once": "measured"}, privacy={"kind": "none", "epsilon": 3.0}, train={"learning_rate": 1e38})
    assert simulation.gain(simulation.replace(build(asked), together=6)) == 0


def test_a_model_that_cannot_be_stacked_trains_by_itself_and_says_why(small, tmp_path):
    asked = small(
        run={"at_once": "measured"}, model={"name": "stacks:mixing"}, privacy={"kind": "central", "epsilon": 8.0}
    )
    history = tacit.run(asked, out=tmp_path / "run", page=False)
    assert kept(tmp_path / "run") == 0
    assert "the model cannot be stacked" in notes(history)


def test_the_trial_draws_from_streams_that_no_release_has(small, monkeypatch):
    draws, real = [], trainers.stacked
    monkeypatch.setattr(trainers, "stacked", lambda parts: draws.append(parts) or real(parts))
    parts = simulation.replace(build(small(run={"at_once": "measured"})), together=6)
    simulation.gain(parts)
    (tried,) = draws
    client = parts.population[0]
    own, released = (found.derive("q", 0, client, "train").torch_seed() for found in (tried, parts))
    assert own != released
