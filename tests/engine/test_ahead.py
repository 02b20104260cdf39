"""A device is set to work while its clients pay: nothing of it is read before they have, and nothing at all if they cannot."""

import sqlite3
from dataclasses import fields, replace

import pytest
import torch

import tacit
from tacit.engine import loop as engine
from tacit.engine import trainers
from tacit.engine.assemble import build
from tacit.engine.ledgers import open_ledger
from tacit.engine.run_folder import open_folder
from tacit.engine.stacked import noised_there, stacked, started
from tacit.engine.trainers import Trainer
from tacit.errors import BadInput, LedgerError
from tacit.privacy.local import SampledGaussian
from tacit.training.fused import DeviceStream

SETTINGS = {
    "data": {"name": "digits", "clients": 12},
    "model": {"name": "logr"},
    "train": {"rounds": 3, "clients_per_round": 4, "local_steps": 2, "batch_size": 8},
}
KINDS = {
    "central": {"kind": "central", "epsilon": 3.0, "clip": 0.5},
    "local": {"kind": "local", "epsilon": 3.0, "clip": 1.0},
}


class AtWork(Trainer):
    """As a device: it begins when it is told, and says when it was first read."""

    def __init__(self, parts, seen):
        self.trainer, self.seen = stacked(parts), seen

    def dispatch(self, message, round, cohort):
        self.seen("begun", round, cohort)
        return self._read(
            started(self.trainer._working(message, self.trainer.question(message), round, cohort)), round, cohort
        )

    def _read(self, working, round, cohort):
        self.seen("read", round, cohort)
        yield from working


def charged(path):
    with sqlite3.connect(path) as db:
        return {
            (table, *row)
            for table in ("everybody", "charges")
            for row in db.execute(f"SELECT round, COUNT(*) FROM {table} GROUP BY round")
        }


def started_run(tmp_path, kind, **changes):
    settings = SETTINGS | {"privacy": KINDS[kind], "run": {"workers": 1}} | changes
    experiment = tacit.Experiment(**settings)
    parts = build(experiment)
    parts = replace(parts, together=4)
    folder = open_folder(tmp_path / "run", experiment, resume=False, force=False)
    return parts, folder, open_ledger(parts, folder)


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_is_on_disk_before_the_first_answer_of_a_device_is_read(tmp_path, kind):
    parts, folder, ledger = started_run(tmp_path, kind)
    seen = []

    def note(what, round, cohort):
        paid = {(row[0], row[1]): row[2] for row in charged(ledger.path)}
        seen.append((what, round, paid.get(("everybody", round), 0) + paid.get(("charges", round), 0)))

    _, why = engine.loop(parts, ledger, folder, AtWork(parts, note), lambda record: None)
    assert why == "rounds"
    of_one = 1 if kind == "central" else 4  # rows: one for everybody, or one for each
    assert seen == [row for r in range(3) for row in (("begun", r, 0), ("read", r, of_one))]


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_device_was_set_to_work_for_gives_the_same_as_what_it_was_asked_for(tmp_path, kind):
    found = []
    for number, trainer in enumerate((stacked, lambda parts: AtWork(parts, lambda *_: None))):
        parts, folder, ledger = started_run(tmp_path / str(number), kind)
        found.append(engine.loop(parts, ledger, folder, trainer(parts), lambda record: None)[0].params)
    assert torch.equal(*found)


def test_nothing_of_a_device_is_read_where_the_charge_fails(tmp_path):
    parts, folder, ledger = started_run(tmp_path, "central")
    seen = []

    def refused(*_, **__):
        raise LedgerError("the disk is full")

    ledger.admit_everybody = refused
    with pytest.raises(LedgerError, match="the disk is full"):
        engine.loop(parts, ledger, folder, AtWork(parts, lambda *what: seen.append(what[0])), lambda record: None)
    assert seen == ["begun"]
    assert not charged(ledger.path)


def test_who_cannot_pay_is_not_read_and_the_others_are_asked_again(tmp_path):
    parts, folder, ledger = started_run(tmp_path, "local")
    seen, admit = [], ledger.admit
    ledger.admit = lambda clients, cost, hint: admit(clients[1:], cost, hint=hint)
    trainer = AtWork(parts, lambda what, round, cohort: seen.append((what, round, len(cohort))))
    records = []
    engine.loop(parts, ledger, folder, trainer, records.append)
    assert seen == [row for r in range(3) for row in (("begun", r, 4), ("begun", r, 3), ("read", r, 3))]
    assert [record["cohort"] for record in records] == [3, 3, 3]


def failing(*_):
    raise BadInput("no")
    yield


def test_what_goes_wrong_on_a_device_is_told_when_all_have_paid(tmp_path):
    parts, folder, ledger = started_run(tmp_path, "central")
    paid, trainer = [], AtWork(parts, lambda what, round, cohort: paid.append((what, len(charged(ledger.path)))))
    trainer.trainer._working = failing
    with pytest.raises(BadInput, match="no"):
        engine.loop(parts, ledger, folder, trainer, lambda record: None)
    assert paid == [("begun", 0), ("read", 1)]


@pytest.mark.parametrize("make", [stacked, trainers.alone])
def test_on_a_cpu_nobody_trains_before_the_first_reply_is_read(tmp_path, make, monkeypatch):
    parts, _, _ = started_run(tmp_path, "central")
    trained, train = [], type(parts.algorithm).train
    monkeypatch.setattr(type(parts.algorithm), "train", lambda *args: trained.append(1) or train(*args))
    monkeypatch.setattr("tacit.engine.stacked.Stacked._begin", lambda *args: trained.append(1) or 1 / 0)
    message = parts.algorithm.broadcast(parts.algorithm.init(parts.params), [], round=0)
    pending = make(parts).dispatch(message, 0, [0, 1])
    assert not trained
    next(pending)
    assert trained


def test_no_device_begins_with_noise_that_somebody_else_adds_before_all_have_paid(tmp_path):
    parts, _, _ = started_run(tmp_path, "local")
    trainer = stacked(parts)
    assert not trainer._noised_there([0, 1])  # the streams of a CPU, and of the operating system, are not the device's
    trainer.derive = lambda question, round, client, purpose: DeviceStream(bytes(32))
    assert trainer._noised_there([0, 1])

    class Somebody(SampledGaussian):
        pass

    own = parts.algorithm.mechanism(parts.population[0])
    foreign = Somebody(**{field.name: getattr(own, field.name) for field in fields(own) if field.init})
    assert noised_there([own, own], [DeviceStream(bytes(32))])
    assert not noised_there([own, foreign], [DeviceStream(bytes(32))])
