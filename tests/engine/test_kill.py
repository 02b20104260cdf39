"""A run is killed with SIGKILL at random moments and resumed until it ends. Real processes, real files."""

import multiprocessing
import os
import random
import signal
import sqlite3
import time

import pytest
import torch
from report.test_page import data_of
from trained import same_model

import tacit
from tacit.engine import loop as loop_module

KILLS = 8


def attempt(experiment, out, log):
    """Runs or resumes in this (forked) process, noting on disk every message that reached the server."""
    torch.set_num_threads(1)  # the parent may have started threads that a fork does not have
    real = loop_module.Traffic.receive

    def wire(traffic, raw, info, round, **how):
        message = real(traffic, raw, info, round, **how)
        with open(log, "a") as file:
            file.write(f"{round} {message.sender}\n")
            file.flush()
            os.fsync(file.fileno())
        return message

    loop_module.Traffic.receive = wire
    tacit.run(experiment, out=out, resume=(out / "experiment.toml").exists(), page=False)
    os._exit(0)


def released(log):
    lines = log.read_text().splitlines() if log.exists() else []
    return {(int(line.split()[0]), line.split()[1]) for line in lines if len(line.split()) == 2}


def charged(out):
    if not (out / "ledger.db").exists():
        return set()
    with sqlite3.connect(out / "ledger.db") as book:
        try:
            return set(book.execute("SELECT round, client FROM charges").fetchall())
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):  # killed before the ledger was laid out
                return set()
            raise


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_killed_again_and_again_equals_one_that_was_not_and_its_ledger_never_reports_less(
    small, tmp_path, workers
):
    experiment = small(
        train={"rounds": 40, "clients_per_round": 4, "local_steps": 2},
        run={"workers": workers},
        data={"examples_per_client": 100},
    )
    tacit.run(experiment, out=tmp_path / "whole", page=False)
    out, log, dice = tmp_path / "killed", tmp_path / "released.log", random.Random(workers)
    kills = killed_until_done(experiment, out, log, dice, lambda: released(log) <= charged(out))
    assert kills >= 5
    assert same_model(tmp_path / "whole", out)
    assert charged(out) == charged(tmp_path / "whole")
    assert released(log) == charged(out)


def killed_in_its_first_round(experiment, out, log):
    """Runs in this (forked) process and comes to no second message."""
    torch.set_num_threads(1)

    def wire(*_, **__):
        log.touch()
        time.sleep(600)

    loop_module.Traffic.receive = wire
    tacit.run(experiment, out=out)


def test_a_run_killed_in_its_first_round_has_a_page_that_says_so(small, tmp_path):
    out, log = tmp_path / "run", tmp_path / "released.log"
    process = multiprocessing.get_context("fork").Process(
        target=killed_in_its_first_round, args=(small(run={"workers": 1}), out, log)
    )
    process.start()
    until(log.exists)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    data = data_of((out / "report.html").read_text("utf-8"))
    assert (data["done"], data["finished"], data["known"]) == (0, False, True)
    assert data["guarantee"]["unit"] == "record"


def paid_rounds(out):
    if not (out / "ledger.db").exists():
        return set()
    with sqlite3.connect(out / "ledger.db") as book:
        known = book.execute("SELECT name FROM sqlite_master WHERE name = 'everybody'").fetchall()
        return {r for (r,) in book.execute("SELECT round FROM everybody")} if known else set()


def test_a_central_run_killed_again_and_again_has_charged_everybody_before_any_answer(tmp_path):
    experiment = tacit.Experiment(
        data={"clients": 12, "examples_per_client": 60},
        train={"rounds": 80, "clients_per_round": 4, "local_steps": 2},
        privacy={"kind": "central", "epsilon": 8.0, "adaptive_clip": {"quantile": 0.5, "count_noise": 20.0}},
        run={"workers": 1},
    )
    tacit.run(experiment, out=tmp_path / "whole", page=False)
    out, log = tmp_path / "killed", tmp_path / "released.log"
    paid = lambda: {round for round, _ in released(log)} <= paid_rounds(out)  # noqa: E731
    assert killed_until_done(experiment, out, log, random.Random(3), paid) >= 5
    assert same_model(tmp_path / "whole", out)
    assert paid_rounds(out) == set(range(80))


def until(true):
    """Waits for something to become true."""
    for _ in range(6000):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("It never came true.")


def killed_until_done(experiment, out, log, dice, holds):
    """Kills and resumes until the run ends; `holds` is asked after every kill. Returns the number of kills."""
    context = multiprocessing.get_context("fork")
    kills = 0
    while True:
        process = context.Process(target=attempt, args=(experiment, out, log))
        before = released(log)
        process.start()
        if kills < KILLS and kills % 2:  # in the middle of a round, however long the start took
            until(lambda before=before, process=process: released(log) > before or not process.is_alive())
        process.join(timeout=dice.uniform(0.02, 0.2) if kills < KILLS else 120)
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            kills += 1
        assert holds()
        if process.exitcode == 0:
            return kills
        assert process.exitcode == -signal.SIGKILL
        time.sleep(0.01)
