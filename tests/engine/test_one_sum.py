"""Of one charge one sum is told: where sites keep their answers, a round is on disk before its record is."""

from dataclasses import replace

import pytest

import tacit
from tacit.engine import loop as engine
from tacit.engine import trainers
from tacit.engine.assemble import build
from tacit.engine.ledgers import open_ledger
from tacit.engine.run_folder import Folder, open_folder

SETTINGS = {
    "data": {"name": "digits", "clients": 6},
    "model": {"name": "logr"},
    "train": {"rounds": 3, "local_steps": 1, "batch_size": 8, "min_clients": 4},
    "privacy": {"kind": "distributed", "epsilon": 3.0, "clip": 0.5, "delta": 1e-5},
    "run": {"workers": 1},
}


class Killed(Exception):
    pass


@pytest.mark.parametrize(("place", "asked_then"), [("server", [2]), ("simulation", [1, 2])])
def test_a_server_that_is_killed_when_a_sum_was_told_asks_nobody_for_that_round_again(
    tmp_path, monkeypatch, place, asked_then
):
    experiment = tacit.Experiment(**SETTINGS)
    parts = replace(build(experiment), place=place)
    asked, log = [], Folder.log

    def start(*, resume):
        folder = open_folder(tmp_path / "run", experiment, resume=resume, force=False)
        train = trainers.task_of(parts)

        def noted(message, question, round, index):
            asked.extend([round] * (round not in asked))
            return train(message, question, round, index)

        trainer = trainers.OneByOne(noted)
        try:
            return engine.loop(parts, open_ledger(parts, folder), folder, trainer, lambda record: None)
        finally:
            folder.close()

    def told_and_killed(folder, record):
        log(folder, record)
        if record["round"] == 1:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "log", told_and_killed)
        with pytest.raises(Killed):
            start(resume=False)
    assert asked == [0, 1]
    asked.clear()
    assert start(resume=True)[1] == "rounds"
    assert asked == asked_then
