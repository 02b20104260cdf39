"""Comparisons as they are really run: worker processes, killed ones, resumed ones, and the files they leave."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import ready
from rich.console import Console
from scipy import stats
from terminal import compare as command

import tacit
from tacit.errors import BadInput, RunExists
from tacit.lab.grid import compare
from tacit.lab.worker import Display

VARY = {"aggregate.rule": ["mean", "pfa"], "train.learning_rate": [0.5, 3e38]}
FREE = {"settings": ["privacy.kind=none"]}  # no noise to calibrate
DIVERGES = "lower train.learning_rate"


@pytest.fixture
def quick():
    """Workers that have torch loaded when they start."""
    with ready.workers():
        yield


class Watching(Display):
    """A display that prints nothing, notes what was started, and calls `act(task)` at every round."""

    def __init__(self, act=lambda task, rounds: None):
        super().__init__(Console(quiet=True))
        self.act, self.started = act, []

    def watch(self, task, event):
        if task and event["kind"] == "started":
            self.started.append(task.folder)
        if task and event["kind"] == "round":
            self.act(task, event["rounds"])


def kill_one(task, rounds):
    """Kills the worker of pfa's last seed in its second round."""
    if (task.experiment.aggregate.rule, task.experiment.run.seed, rounds) == ("pfa", 7, 2):
        (worker,) = (pid for pid in children(os.getpid()) if holds(pid, task.folder / ".lock"))
        os.kill(worker, signal.SIGKILL)


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def holds(pid, path):
    """Whether a process has this file open; it may close others, or end, while it is being looked at."""
    with suppress(FileNotFoundError):
        return path in [Path(os.readlink(link)) for link in Path(f"/proc/{pid}/fd").iterdir() if os.path.lexists(link)]
    return holds(pid, path) if Path(f"/proc/{pid}").exists() else False


@pytest.fixture(scope="module")
def done(small, tmp_path_factory):
    """Four cells, three seeds: two cells diverge, and of a third one run is killed in its second round."""
    out = tmp_path_factory.mktemp("compare") / "here"
    values = small | {"aggregate": {"rank": 2}}
    return out, compare(values, VARY, seeds=3, out=out, jobs=2, display=Watching(kill_one))


def test_runs_that_failed_or_were_killed_are_in_the_sum_with_what_they_sealed(done):
    out, rows = done
    (sums,) = json.loads((out / "total.json").read_text())
    assert (sums["runs"], sums["left_out"]) == (12, 0)
    spent = [run.guarantee["epsilon"]["max"] for row in rows for run in row.ended]
    assert len(spent) == 5  # of 12: six diverged, one was killed
    assert sums["epsilon"] > sum(spent)
    assert sums["delta"] == pytest.approx(12e-5)


@pytest.fixture
def copy(done, tmp_path):
    """A copy of the finished comparison, to be spoilt."""
    return shutil.copytree(done[0], tmp_path / "copy")


def table(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def words(**changes):
    base = {"vary": [], "settings": [], "seeds": None, "out": None, "resume": False, "force": False, "jobs": None}
    return base | {"as_json": True} | changes


def test_a_run_that_fails_or_is_killed_shows_its_sentence_and_the_others_go_on(done):
    out, rows = done
    assert [row.cell.label for row in rows] == [
        "mean, learning rate 0.5",
        "mean, learning rate 3e+38",
        "pfa, learning rate 0.5",
        "pfa, learning rate 3e+38",
    ]
    assert [len(row.ended) for row in rows] == [3, 0, 2, 0]
    assert all(DIVERGES in run.failure for row in rows[1::2] for run in row.runs)
    assert "ended by signal 9" in rows[2].runs[2].failure
    assert DIVERGES in (out / "table.md").read_text()
    failed = [bool(line["failed"]) for line in table(out / "compare.csv")]
    assert failed == [False] * 3 + [True] * 3 + [False] * 2 + [True] * 4
    assert not list((out / "log").iterdir())  # no worker had anything to say


def test_the_table_equals_what_the_runs_say(done):
    out, _ = done
    for line in table(out / "table.csv")[::2]:
        cell = out / "runs" / f"aggregate.rule={line['aggregate.rule']},train.learning_rate=0.5"
        folders = sorted(path.parent for path in cell.glob("seed-*/summary.json"))
        summaries = [json.loads((folder / "summary.json").read_text()) for folder in folders]
        logs = [(folder / "rounds.jsonl").read_text().splitlines() for folder in folders]
        last = [np.mean([json.loads(record)["accuracy"] for record in log[-10:]]) for log in logs]
        assert float(line["accuracy_last_10"]) == pytest.approx(np.mean(last))
        if len(last) < 3:
            assert line["accuracy_last_10_interval"] == ""
        else:
            low, high = stats.t.interval(0.95, len(last) - 1, np.mean(last), stats.sem(last))
            assert float(line["accuracy_last_10_interval"]) == pytest.approx((high - low) / 2)
        assert float(line["accuracy_final"]) == pytest.approx(np.mean([one["test_accuracy"] for one in summaries]))
        for key in ("uplink_bytes", "downlink_bytes", "seconds"):
            assert float(line[key]) == pytest.approx(np.mean([one[key] for one in summaries]))
        spent = [one["guarantee"]["epsilon"] for one in summaries]
        assert float(line["epsilon_per_record_min"]) == min(one["min"] for one in spent)
        assert float(line["epsilon_per_record_max"]) == max(one["max"] for one in spent)
        assert (line["unit"], int(line["ended"])) == ("record", len(folders))
        of_cell = [row for row in table(out / "compare.csv") if row["cell"] == line["cell"] and not row["failed"]]
        assert [float(row["accuracy_last_10"]) for row in of_cell] == pytest.approx(last)
        assert [out / row["folder"] for row in of_cell] == folders


def test_a_run_of_a_comparison_is_an_ordinary_run(done, tmp_path):
    out, rows = done
    folder = rows[2].runs[0].folder
    experiment = tacit.Experiment.load(folder / "experiment.toml")
    assert experiment.run.workers == 1
    again = tacit.run(experiment, out=tmp_path / "alone")
    assert [record["accuracy"] for record in again.rounds] == [record["accuracy"] for record in rows[2].runs[0].rounds]
    assert folder.is_relative_to(out)


@pytest.mark.usefixtures("quick")
def test_finished_runs_are_kept_a_killed_one_goes_on_and_the_grid_may_grow(copy, capsys):
    finished, killed = sorted(copy.glob("runs/*/*/summary.json")), next(copy.glob("runs/*pfa*=0.5/seed-7/rounds.jsonl"))
    marks, before = marks_of(finished), killed.read_text().splitlines()
    assert len(finished) == 5
    assert 2 <= len(before) < 15
    vary = ["aggregate.rule=pfa", "train.learning_rate=0.5,0.25"]
    assert command(None, **words(resume=True, out=copy, vary=vary)) == 0
    said = json.loads(capsys.readouterr().out)
    assert [(row["runs"], row["ended"]) for row in said] == [(3, 3)] * 2
    assert marks_of(finished) == marks
    assert "In no sum: 9 runs in runs/ of a grid before this one" in (copy / "table.md").read_text("utf-8")
    assert {one["outside"] for one in json.loads((copy / "total.json").read_text("utf-8"))} == {9}
    after = killed.read_text().splitlines()
    assert len(after) == 15
    assert after[:2] == before[:2]  # with their seconds: they were not run again
    new = sorted(copy.glob("runs/*/*/summary.json"))
    marks = marks_of(new)
    assert command(None, **words(resume=True, out=copy)) == 0  # all from the folder, and nothing left to do
    again = json.loads(capsys.readouterr().out)
    assert [row["cell"] for row in again] == [row["cell"] for row in said]
    assert [row["accuracy_last_10"] for row in again] == [row["accuracy_last_10"] for row in said]
    assert marks_of(new) == marks


def marks_of(paths):
    """When each file was written, and which one it is."""
    return {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in paths}


def test_force_sets_a_comparison_aside_and_ctrl_c_stops_its_workers_and_says_how_to_go_on(copy):
    line = ["compare", "--seeds", "2", "--jobs", "2", "--out", "copy", "--force"]
    line += ["--set", "train.rounds=400", "--set", "privacy.epsilon=3", "--set", "data.clients=4"]
    process = ready.tacit(*line, cwd=copy.parent)
    logs = [copy / "runs" / "as-given" / f"seed-{seed}" / "rounds.jsonl" for seed in (0, 1)]
    until(lambda: all(log.exists() and log.read_text().count("\n") >= 2 for log in logs))
    workers = children(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    ended = process.wait(30)
    assert ended.returncode == 130
    assert ended.stderr.strip() == "Stopped. Nothing is lost: go on with `tacit compare --resume --out copy`."
    assert "1 cell, 2 runs" in ended.stdout
    assert len(workers) == 2
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    assert len(list(copy.with_name("copy.1").glob("runs/*/*/ledger.db"))) == 12


def test_a_worker_ends_when_the_comparison_is_gone(small, tmp_path):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    worker = subprocess.Popen([sys.executable, "-m", "tacit.lab.worker"], text=True, **pipes)
    experiment = tacit.Experiment(**small | {"train": {"rounds": 2000}, "run": {"workers": 1}})
    worker.stdin.write(
        json.dumps({"experiment": experiment.toml(), "folder": str(tmp_path / "here"), "trial_id": ""}) + "\n"
    )
    worker.stdin.flush()
    assert [json.loads(worker.stdout.readline())["rounds"] for _ in range(3)] == [0, 1, 2]
    worker.stdin.close()
    assert worker.wait(20) == 0
    worker.stdout.close()


def until(true, seconds=60):
    """Waits for something to become true."""
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert true()


def test_a_second_comparison_or_other_settings_are_refused(done, small):
    out, rows = done
    with pytest.raises(RunExists, match="a comparison: use --resume to go on, or use --force"):
        compare(small, VARY, seeds=1, out=out)
    with pytest.raises(BadInput, match="has other settings"):
        compare(small | {"train": {"rounds": 4}}, VARY, seeds=1, out=out, resume=True)
    with pytest.raises(BadInput, match="one of them"):
        compare(small, VARY, seeds=1, out=out, resume=True, force=True)
    with pytest.raises(RunExists, match="already holds a run"):
        compare(small, {}, seeds=1, out=rows[0].runs[0].folder)


@pytest.mark.parametrize(
    ("line", "changes", "sentence"),
    [
        ("digit", {}, "Did you mean 'digits'"),
        ("digits", {"vary": ["train.rounds=1,"]}, "before and after every comma"),
        ("digits", {**FREE, "vary": ["train.clients_per_round=5,500"]}, "clients per round 500: Expected"),
        ("digits", {"settings": ["privacy.clip=0"]}, "privacy.clip to be a number of at least 1e-12"),
        ("digits", {"jobs": 0, "seeds": 1}, "jobs >= 1"),
        ("digits", {}, "Nothing is varied, so there is nothing to compare: add --vary"),
        (None, {"resume": True, "out": None}, "--resume needs --out"),
        (None, {"resume": True}, "no comparison to resume"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(tmp_path, line, changes, sentence):
    with pytest.raises(BadInput, match=sentence) as refusal:
        command(line, **words(**{"out": tmp_path / "here"} | changes))
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "here").exists()


@pytest.mark.usefixtures("quick")
def test_kinds_and_units_at_one_epsilon_are_compared_with_their_unit_and_adversary_and_without_an_epsilon_axis(
    small, tmp_path
):
    vary = {"privacy.kind": ["local", "central"], "privacy.unit": ["record", "client"], "privacy.epsilon": [3, 8]}
    train = {"rounds": 2, "local_steps": 1}
    rows = compare({**small, "train": train}, vary, seeds=1, out=tmp_path / "out", jobs=1)
    assert [row.cell.label for row in rows][::2] == [
        "local, record, epsilon 3",
        "local, client, epsilon 3",
        "central, record, epsilon 3",
        "central, client, epsilon 3",
    ]
    lines = table(tmp_path / "out" / "table.csv")
    assert [line["unit"] for line in lines] == ["record", "record", "client", "client"] * 2
    assert all("server is trusted" in line["adversary"] for line in lines[4:])
    for line in lines:
        other = "client" if line["unit"] == "record" else "record"
        assert line[f"epsilon_per_{other}_max"] == ""
        assert line[f"epsilon_per_{line['unit']}_max"] != ""
    words = (tmp_path / "out" / "table.md").read_text()
    assert all(f"({number}) per" in words for number in range(1, 4))
    assert all(what in words for what in ("add or remove one record", "empty one client"))
    assert "like for like" not in words
    assert not (tmp_path / "out" / "accuracy-by-epsilon.png").exists()
    assert (tmp_path / "out" / "accuracy-by-round.png").exists()


@pytest.mark.usefixtures("quick")
def test_noise_once_is_compared_with_noise_at_every_client_in_one_unit_and_the_table_says_so(small, tmp_path):
    privacy = {"unit": "record", "epsilon": (1.0, 4.0, 8.0)}
    values = {**small, "train": {"rounds": 2, "local_steps": 1}, "privacy": privacy}
    values["data"] = {"clients": 3, "examples_per_client": 40}
    rows = compare(values, {"privacy.kind": ["local", "central", "distributed"]}, seeds=1, out=tmp_path / "out", jobs=1)
    assert [row.cell.label for row in rows] == ["local", "central", "distributed"]
    lines = table(tmp_path / "out" / "table.csv")
    assert [line["unit"] for line in lines] == ["record"] * 3
    assert all(0 < float(line["epsilon_per_record_max"]) <= 8.0 for line in lines)
    assert len({line["adversary"] for line in lines}) == 3
    words = (tmp_path / "out" / "table.md").read_text()
    assert (
        "All epsilons are per record (add or remove one record of one client), so they are compared like for like"
        in words
    )


@pytest.fixture
def numbers(tmp_path):
    """An experiment that predicts numbers, of 4 clients."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(160, 3)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=x, y=(x @ [1.0, 2.0, 3.0]).astype(np.float32), client=np.arange(160) % 4)
    return {
        "data": {"name": "npz", "classes": "numbers", "partition": "natural", "path": str(tmp_path / "rows.npz")},
        "task": {"kind": "regression"},
        "model": {"name": "logr"},
        "privacy": {"kind": "none"},
        "train": {"rounds": 2},
    }


@pytest.mark.usefixtures("quick")
def test_a_comparison_is_in_the_words_of_its_metric(tmp_path, numbers):
    out = tmp_path / "out"
    rows = compare(numbers, {"train.learning_rate": [0.01, 0.1]}, seeds=1, out=out, jobs=1)
    assert [row.metric for row in rows] == ["rmse", "rmse"]
    assert rows[1].score.mean < rows[0].score.mean
    assert {path.stem for path in out.glob("*.png")} == {
        f"rmse-by-{what}" for what in ("round", "cell", "uplink", "train-learning-rate")
    }
    assert {"rmse_last_10", "rmse_final"} <= set(table(out / "compare.csv")[0])
    words = (out / "table.md").read_text()
    assert "RMSE (last 2 rounds)" in words
    assert "accuracy" not in words.lower()
    summary = next(out.glob("runs/*/*/summary.json"))
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"metrics": {"rmse": "small"}}))
    with pytest.raises(BadInput, match=r"summary\.json is damaged"):
        compare(numbers, {"train.learning_rate": [0.01, 0.1]}, seeds=1, out=out, jobs=1, resume=True)


def test_cells_that_are_judged_by_two_metrics_are_refused_before_anything_runs(tmp_path, numbers):
    with pytest.raises(BadInput, match=r"compared by one metric, not by MAE and by RMSE: set metric\.choose"):
        compare(numbers, {"metric.choose": ["rmse", "mae"]}, seeds=1, out=tmp_path / "out", jobs=1)
    assert not (tmp_path / "out").exists()
