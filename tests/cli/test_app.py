"""The commands as a person types them: real processes, their output, their exit codes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ready
from terminal import refused

import tacit
from tacit.experiment.file import shipped

SHARED = ["--set", "privacy.delta_share=0.1"]
SMALL = ["--set", "train.rounds=3", "--set", "train.local_steps=2", "--set", "data.clients=4"]


@pytest.fixture
def command(tmp_path):
    """Runs `tacit ...` in an empty folder."""

    return lambda *words, **options: ready.tacit(*words, cwd=tmp_path, **options).wait()


def test_version():
    line = [sys.executable, "-m", "tacit", "--version"]
    assert (
        subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip() == f"tacit {tacit.__version__}"
    )


def test_run_shows_progress_a_table_the_guarantee_and_the_files(command, tmp_path):
    done = command("run", "digits", *SMALL, "--out", "here")
    assert done.returncode == 0, done.stderr
    for words in (
        "round 3/3",
        "accuracy",
        "tightest",
        "loosest",
        "out of budget",
        "epsilon spent",
        "noise multiplier",
        "here",
    ):
        assert words in done.stdout
    said = " ".join(done.stdout.split()).replace("│ ", "").replace(" │", "")
    assert "add or remove one record of one client" in said
    assert (tmp_path / "here" / "summary.json").is_file()


def test_run_without_a_name_runs_digits_in_a_new_folder(command, tmp_path):
    done = command("run", *SMALL, "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["name"] == "digits"
    assert {
        "test_accuracy",
        "rounds",
        "stopped",
        "clients",
        "seconds",
        "uplink_bytes",
        "downlink_bytes",
        "guarantee",
    } <= set(summary)
    assert len(list((tmp_path / "runs").glob("digits-*"))) == 1


def test_an_experiment_file_and_a_custom_model_are_run(command, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from torch import nn\ndef net(input_shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, classes))\n"
    )
    (tmp_path / "mine.toml").write_text(
        '[model]\nname = "mine:net"\n[train]\nrounds = 2\n[data]\nclients = 3\n[privacy]\nkind = "local"\nepsilon = 5\n'
    )
    done = command("run", "mine.toml", "--json", env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["parameters"] == 64 * 16 + 16 + 160 + 10


def left_in(group):
    """The processes of a group that still run."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            words = place.read_text().rpartition(")")[2].split()
            found += [place.parent.name] if int(words[2]) == group and words[0] != "Z" else []
    return found


def test_sigterm_before_a_run_has_begun_says_that_nothing_had(tmp_path):
    words = ["tacit", "run", "digits", "--out", "here"]
    code = f"import sys; sys.argv = {words!r}\nimport os, signal, tacit\nfrom tacit.cli import main\n"
    code += "tacit.run = lambda *a, **k: os.kill(os.getpid(), signal.SIGTERM)\nmain()\n"
    (tmp_path / "stopped.py").write_text(code)
    done = ready.script(tmp_path / "stopped.py", cwd=tmp_path).wait()
    assert (done.returncode, done.stderr) == (143, "Stopped. Nothing had begun yet.\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_leave_a_resumable_run_and_say_so_in_one_sentence(command, tmp_path, number, code):
    process = ready.tacit("run", "digits", "--out", "here", *SMALL, "--set", "train.rounds=500", cwd=tmp_path)
    log = tmp_path / "here" / "rounds.jsonl"
    for _ in range(3000):
        if log.exists() and log.read_text().count("\n") >= 2:
            break
        time.sleep(0.02)
    os.killpg(process.pid, number)
    ended = process.wait()
    assert ended.returncode == code
    assert ended.stderr == "Stopped. Nothing is lost: go on with `tacit run --resume --out here`.\n"
    assert left_in(process.pid) == []
    done = log.read_text().count("\n")
    process = ready.tacit("run", "--resume", "--out", "here", cwd=tmp_path)
    for _ in range(3000):
        if log.read_text().count("\n") >= done + 2:
            break
        time.sleep(0.02)
    process.kill()
    assert log.read_text().count("\n") >= done + 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "digit"], "Did you mean 'digits'?"),
        (["run", "--set", "train.rond=3"], "Did you mean 'train.rounds'?"),
        (["run", "--set", "privacy.epsilon=-1"], "privacy.epsilon > 0"),
        (["run", "--set", "train.clients_per_round=21"], "20 clients"),
        (["run", "--resume"], "--out"),
        (["run", "--resume", "--out", "nowhere"], "no run to resume"),
        (["run", "--resume", "--force", "--out", "x"], "one of them"),
        (["run", "--frobnicate"], "--frobnicate"),
        (["runn"], "runn"),
        (["data", "mnits"], "Did you mean 'mnist'?"),
        (["plan", "epsilon=3", "sampling_rate=0.1"], "steps=N is needed"),
        (["plan", "epsilon=-3", "sampling_rate=0.1", "steps=5"], "epsilon > 0"),
        (["plan", "epsilon=3", "steps=5"], "sampling_rate=Q"),
        (["plan", "epsilon=3", "steps=5.5"], "steps to be a whole number"),
        (["plan", "epsilon=x", "steps=5"], "epsilon to be a number"),
        (["plan", "epsilom=3"], "Did you mean 'epsilon'?"),
        (["plan", "sampling_rate=0.1", "steps=5"], "noise_multiplier=Z"),
        (["plan", "--epsilon", "3"], "--set privacy.epsilon=VALUE"),
        (["plan", "digits", "epsilon=3"], "leave out epsilon or use --set"),
        (["predict", "--json", "old", "file"], "`tacit predict` prints no JSON: leave out --json"),
        (["plan", "digits", "--set", "privacy.kind=none"], "nothing to plan"),
        (["plan", "digits", *SHARED, "--set", "privacy.ledger=."], "is a folder: name a file"),
        (["run", "digits", *SHARED, "--set", "privacy.ledger=file/x.db"], "file is a file, not a folder"),
        (["run", "digits", *SHARED, "--set", "privacy.ledger=file"], "cannot be read as a ledger"),
        (["run", "--out", "old"], "old already holds a run: use --resume to go on with it, or --force"),
        (["run", "--out", "file"], "choose another --out"),
        (["run", "--out", "file/below"], "choose another --out"),
        (["run", "bytes.toml"], "no UTF-8 text"),
        (["run", "old"], "tacit run --resume --out old"),
        (["plan", "old"], "old/experiment.toml"),
        (["run", "--resume", "--out", "old"], "old/run.json is missing or damaged"),
        (["run", "--resume", "--out", "trial"], "goes on with `tacit deploy up trial --resume`"),
        (["predict", "trial", "file"], "its model is that of trial/results"),
        (
            ["run", "digits-pfa", "--resume", "--out", "old"],
            "old holds a run of the experiment 'digits', not of 'digits-pfa'",
        ),
        (["report", "file"], "file is a file: name the folder of a run"),
        (["compare", "digits", "--vary", "aggregate.rule="], "--vary KEY=VALUE,VALUE"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(command, tmp_path, words, expected):
    (tmp_path / "file").write_text("a text, long enough to be no empty database and no page of one")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial" / "federation.toml").write_text("")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "experiment.toml").write_text(tacit.Experiment.load("digits").toml())
    (tmp_path / "old" / "run.json").write_text("{")
    assert expected in refused(command(*words))


def test_debug_shows_the_traceback(command):
    done = command("--debug", "run", "digit")
    assert "Traceback" in done.stderr


def test_plan_computes_the_noise_the_epsilon_or_the_steps(command):
    common = ["plan", "delta=1e-5", "sampling_rate=0.05", "--json"]
    noise = json.loads(command(*common, "epsilon=3", "steps=150").stdout)
    assert 1.18 < noise["noise_multiplier"] < 1.2
    assert noise["epsilon_spent"] <= 3
    spent = json.loads(command(*common, "noise_multiplier=1", "steps=150").stdout)
    assert spent["epsilon"] == pytest.approx(4.18, abs=0.005)
    steps = json.loads(command(*common, "noise_multiplier=1", "epsilon=4.18").stdout)
    assert steps["steps"] == 150
    assert {"epsilon", "delta", "noise_multiplier", "sampling_rate", "steps", "guarantee"} <= set(steps)


def test_plan_of_an_experiment_has_a_row_per_budget_group(command):
    rows = json.loads(
        command("plan", "digits", "--set", "privacy.epsilon=[1,1,2,2,2]", "--set", "data.clients=5", "--json").stdout
    )
    assert [row["clients"] for row in rows] == [2, 3]
    assert [row["names"] for row in rows] == [["client-0", "client-1"], ["client-2", "client-3", "client-4"]]
    assert rows[0]["noise_multiplier"][0] > rows[1]["noise_multiplier"][0]
    assert all(row["affordable_rounds"][0] >= row["planned_rounds"] for row in rows)
    many = command("plan", "digits", "--set", "privacy.kind=central", "--set", f"privacy.epsilon={[1] * 10 + [2] * 10}")
    assert "client-10, client-11, client-12 and 7 more" in many.stdout
    assert "epsilon spent" in many.stdout  # the last column of a table that is wider than a terminal
    assert "noise over cohort" in many.stdout
    shown = command("plan", "digits").stdout
    assert "paid" in shown
    assert all(f"client-{index}" in shown for index in range(20))


def test_data_shows_who_has_what(command):
    words = ["data", "digits", "--set", "data.clients=50", "--set", "data.examples_per_client=20"]
    done = command(*words)
    assert done.returncode == 0, done.stderr
    assert "client-0" in done.stdout
    assert "10 more" in done.stdout  # the middle of a long table
    rows = json.loads(command(*words, "--json").stdout)["clients"]
    assert [rows[0]["client"], rows[0]["examples"], len(rows)] == ["client-0", 20, 50]
    counts = [int(one.rpartition(": ")[2]) for one in rows[0]["labels"].split(", ")[:3]]
    assert counts == sorted(counts, reverse=True)


def test_the_help_of_run_names_the_experiments_that_ship(command):
    said = " ".join(command("run", "--help").stdout.split())
    assert all(name in said for name in shipped())


def test_a_run_that_is_stopped_before_it_began_is_not_said_to_be_resumable(command, tmp_path):
    (tmp_path / "mine.py").write_text("def net(input_shape, classes):\n    raise KeyboardInterrupt\n")
    words = ["run", "digits", "--set", "model.name=mine:net", "--out", "here"]
    done = command(*words, env=os.environ | {"PYTHONPATH": os.pathsep.join(["", *sys.path, str(tmp_path)])})
    assert (done.returncode, done.stderr) == (130, "Stopped. Nothing had begun yet.\n")
    assert not (tmp_path / "here").exists()


def test_lines_of_the_log_that_are_no_rounds_are_dropped_when_a_run_goes_on(command, tmp_path):
    command("run", *SMALL, "--out", "here")
    with (tmp_path / "here" / "rounds.jsonl").open("a") as log:
        log.write('5\n{"round": "x"}\n{"round": null}\n[]\n')
    done = command("run", "--resume", "--out", "here", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rounds"] == 3
