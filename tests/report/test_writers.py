"""TensorBoard and MLflow get every round once, with its epsilon, also after a run was stopped and resumed. No log costs a run."""

import csv
import json
import re
import struct
import time
from collections import defaultdict

import pytest
from report_runs import changed
from trained import Stop, stop_after

import tacit
from tacit.engine.history import flat_records
from tacit.engine.run_folder import says_same
from tacit.errors import BadInput
from tacit.report import writers
from tacit.report.writers.prometheus import prometheus
from tacit.report.writers.tensorboard import tag
from tacit.store import csv_of

EPSILON = "epsilon_per_record_loosest"


def run(place, *names, resume=False, observe=None):
    return tacit.run(changed(run={"writers": names}), out=place, resume=resume, observe=observe, page=False)


def interrupted(place, *names):
    with pytest.raises(Stop):
        run(place, *names, observe=stop_after(2))
    return run(place, *names, resume=True)


def events(place):
    pytest.importorskip("tensorboard", reason='TensorBoard is not installed (pip install "tacit[tensorboard]")')
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(place / "tensorboard"))
    found.Reload()
    return found


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("how", [run, interrupted])
def test_tensorboard_has_every_round_once_with_its_epsilon(tmp_path, how):
    pytest.importorskip("tensorboard", reason='TensorBoard is not installed (pip install "tacit[tensorboard]")')
    history = how(tmp_path / "run", "tensorboard")
    found = events(tmp_path / "run")
    for key in ("accuracy", "loss", EPSILON, "seconds_train", "uplink_bytes"):
        scalars = found.Scalars(tag(key))
        assert [one.step for one in scalars] == [1, 2, 3, 4, 5, 6]
        assert [one.value for one in scalars] == pytest.approx([row[key] for row in history.records()], rel=1e-6)
    assert found.Tags()["scalars"].count("epsilon_per_record/loosest") == 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", [run, interrupted])
def test_mlflow_has_one_run_with_every_round_once_and_its_epsilon(tmp_path, how, monkeypatch):
    pytest.importorskip("mlflow", reason='MLflow is not installed (pip install "tacit[mlflow]")')
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    history = how(tmp_path / "run", "mlflow")
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'run' / 'mlflow.db'}")
    (found,) = client.search_runs([client.get_experiment_by_name("small").experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["privacy.delta"] == "1e-05"
    assert found.data.tags["tacit.guarantee"] == history.sentence
    for key in ("accuracy", EPSILON):
        logged = client.get_metric_history(found.info.run_id, key)
        assert [one.step for one in logged] == [1, 2, 3, 4, 5, 6]
        assert [one.value for one in logged] == pytest.approx([row[key] for row in history.records()])


def name_of(folder):
    return json.loads((folder / "run.json").read_text("utf-8"))["run"]


def read(file, kind):
    """The records of a file by their type."""
    found = defaultdict(list)
    for data in logged(file.read_bytes()):
        record = kind()
        record.ParseFromString(data)
        found[record.WhichOneof("record_type")].append(record)
    return found


def logged(raw, *, block=1 << 15):
    """The records of a log as LevelDB writes them, behind a head of 7 bytes."""
    at, whole = 7, b""
    while at + 7 <= len(raw):
        if block - at % block < 7:
            at += block - at % block
            continue
        _, size, kind = struct.unpack("<IHB", raw[at : at + 7])
        whole, at = whole + raw[at + 7 : at + 7 + size], at + 7 + size
        if kind in (1, 4):  # full, last
            yield whole
            whole = b""


@pytest.mark.parametrize("how", [run, interrupted])
def test_prometheus_has_the_last_round_and_what_became_of_the_run_in_its_text_format(tmp_path, how):
    history = how(tmp_path / "run", "prometheus")
    lines = (tmp_path / "run" / "metrics.prom").read_text("utf-8").splitlines()
    found = {}
    for kind, sample in zip(lines[::2], lines[1::2], strict=True):
        name, labels, value = re.fullmatch(r"(tacit_\w+)\{(.*)\} (\S+)", sample).groups()
        assert kind == f"# TYPE {name} gauge"
        own = f'run="{name_of(tmp_path / "run")}",experiment="small"'
        assert labels == (own if name != "tacit_guarantee" else f'{own},sentence="{history.sentence}"')
        assert name not in found
        found[name] = float(value)
    last = history.records()[-1]
    assert found["tacit_round"] == 6
    assert found["tacit_finished"] == found["tacit_guarantee"] == 1
    for key in ("accuracy", EPSILON):
        assert found[f"tacit_{key}"] == pytest.approx(last[key], rel=1e-4)


def test_a_name_adds_no_line_to_prometheus_text_and_no_epsilon_is_rounded_down_there(tmp_path):
    odd = "ls\u2028tacit_epsilon 0\x85tacit_epsilon 0\x0btacit_epsilon 0"
    writer = prometheus(tmp_path, writers.Facts(run="a", name=odd, settings={}))
    writer.round({"round": 0, "loss": 0.5, EPSILON: 1.2345642})
    writer.finish({"metric": "accuracy", "test_accuracy": 0.5, "rounds": 1, "sentence": "none"})
    lines = (tmp_path / "metrics.prom").read_text("utf-8").split("\n")
    assert not [line for line in lines if line.startswith("tacit_epsilon ")]
    (told,) = [line for line in lines if line.startswith(f"tacit_{EPSILON}{{")]
    assert float(told.rpartition(" ")[2]) >= 1.2345642


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", [run, interrupted])
def test_weights_and_biases_gets_every_round_once_and_stays_offline(tmp_path, how, monkeypatch):
    pytest.importorskip("wandb", reason='Weights & Biases is not installed (pip install "tacit[wandb]")')
    from wandb.proto import wandb_internal_pb2

    monkeypatch.delenv("WANDB_MODE", raising=False)
    history = how(tmp_path / "run", "wandb")
    newest = max((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns)
    rows, until = {}, time.monotonic() + 60
    while "exit" not in (records := dict(read(newest, wandb_internal_pb2.Record))):  # its own process writes the file
        assert time.monotonic() < until
        time.sleep(0.1)
    for record in records["history"]:
        values = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        rows[values["_step"]] = values
    assert sorted(rows) == [1, 2, 3, 4, 5, 6]
    for key in ("accuracy", EPSILON):
        assert [rows[step][key] for step in sorted(rows)] == pytest.approx([row[key] for row in history.records()])


class diary:
    """A writer of somebody's own, which raises where its class says so."""

    raises, wrote, closed = "", [], 0

    def __init__(self, folder):
        type(self).wrote, type(self).closed = [], 0
        self._do("made")

    def past(self, records):
        self._do("past")

    def round(self, record):
        self._do(f"round {record['round']}")

    def finish(self, summary):
        self._do("finish")

    def close(self):
        type(self).closed += 1
        self._do("close")

    def _do(self, what):
        self.wrote.append(what)
        if what in type(self).raises:
            raise ValueError(f"no {what}")


class other_diary(diary):
    pass


def no_writer(folder):
    """A factory of which nobody knows what it makes before it is called."""
    return folder


@pytest.fixture
def two(monkeypatch):
    """The names of two diaries; the first one's `raises` is for the test to set."""
    monkeypatch.setattr(diary, "raises", "")
    monkeypatch.setattr(other_diary, "raises", "")
    return f"{__name__}:diary", f"{__name__}:other_diary"


EVERY = ["made", "past", *(f"round {number}" for number in range(6)), "finish", "close"]


@pytest.mark.parametrize("raises", ["made", "past", "round 2", "round 2, close", "finish", "close"])
def test_a_writer_that_raises_is_told_of_once_and_left_out_while_the_run_goes_on(tmp_path, capsys, two, raises):
    diary.raises, first = raises, raises.partition(",")[0]
    history = run(tmp_path / "run", *two)
    assert (history.summary["rounds"], history.summary["stopped"]) == (6, "rounds")
    said = f"the writer {two[0]} failed (ValueError: no {first}) and was left out from there on"
    assert capsys.readouterr().err == f"Note: {said}; the run goes on.\n"
    assert (said in history.summary["notes"]) == (first not in ("finish", "close"))
    written = EVERY[: EVERY.index(first) + 1]
    assert diary.wrote == written + ["close"] * (first not in ("made", "close"))
    assert other_diary.wrote == EVERY


def test_a_factory_that_makes_no_writer_is_left_out(tmp_path, capsys):
    assert len(run(tmp_path / "run", f"{__name__}:no_writer").rounds) == 6
    assert "no_writer failed (AttributeError: it has no past()) and was left out" in capsys.readouterr().err


def test_what_cannot_be_opened_is_refused_before_anything_runs(tmp_path, monkeypatch, two):
    monkeypatch.setattr(diary, "wants", "no_such_package.part", raising=False)
    monkeypatch.setattr(writers, "find_spec", lambda name: None)
    for name, sentence in (
        ("mlflow", r'pip install "tacit\[mlflow\]"'),  # Tacit's own come with an extra each
        (two[0], r"diary, which wants the package no_such_package.part: install it, or leave the writer out\.$"),
        ("neptune", "tensorboard"),
    ):
        with pytest.raises(BadInput, match=sentence):
            run(tmp_path / "run", name)
    with pytest.raises(BadInput, match=r"each of run\.writers once"):
        changed(run={"writers": ["mlflow", "mlflow"]})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["past", "round", "finish", "close"])
def test_a_writer_without_a_method_is_refused_before_anything_is_made(tmp_path, monkeypatch, two, method):
    monkeypatch.delattr(diary, method)
    with pytest.raises(
        BadInput, match=rf"diary, which has no {method}\(\): a writer has past\(\), round\(\), finish\(\) and"
    ):
        run(tmp_path / "run", two[0])
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_may_have_other_writers_or_none_and_nothing_else_that_is_other(tmp_path, two):
    for names, resume in ((two[:1], False), ((), True), (two[1:], True)):
        with pytest.raises(Stop):
            run(tmp_path / "run", *names, resume=resume, observe=lambda record: (_ for _ in ()).throw(Stop))
    assert other_diary.wrote == ["made", "past", "round 2", "close"]
    with pytest.raises(BadInput, match="started with other settings"):
        tacit.run(changed(train={"rounds": 7}, run={"writers": two}), out=tmp_path / "run", resume=True)
    whole = tacit.run(changed(), out=tmp_path / "whole", page=False)
    assert run(tmp_path / "run", *two, resume=True).summary["test_loss"] == whole.summary["test_loss"]


def test_writers_are_looked_past_in_the_table_of_the_run_alone():
    experiment = changed(run={"writers": ["mlflow"]})
    assert says_same(changed().toml(), experiment)
    assert says_same(experiment.toml(), changed())
    assert not says_same(experiment.toml(), changed(run={"seed": 3}))
    text = experiment.toml()
    assert not says_same(text.replace("[model]\n", '[model]\nwriters = "mlflow"\n'), experiment)


def test_records_are_flat_and_equal_to_rounds_csv(ended, tmp_path):
    history = tacit.run(changed(), out=tmp_path / "run", page=False)
    records = history.records()
    assert all(not isinstance(value, list | dict) for row in records for value in row.values())
    assert len({tuple(row) for row in records}) == 1
    assert records[-1][EPSILON] == history.rounds[-1]["epsilon_loosest"]
    rows = list(csv.DictReader((tmp_path / "run" / "rounds.csv").read_text().splitlines()))
    assert list(rows[0]) == list(records[0])
    assert [float(row[EPSILON]) for row in rows] == [row[EPSILON] for row in records]


def test_a_run_without_rounds_has_a_table_with_a_heading():
    assert csv_of(flat_records([], unit="record"), ["round"]) == b"round\n"
