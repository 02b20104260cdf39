"""TensorBoard and MLflow get every round once, with its epsilon, also after a run was stopped and resumed."""

import csv
import json

import pytest
from report_runs import Stop, changed

import tacit
from tacit.errors import BadInput
from tacit.report import writers
from tacit.report.writers.tensorboard import tag

EPSILON = "epsilon_per_record_loosest"


def stop(record):
    if record["round"] == 2:
        raise Stop


def run(place, *names, resume=False, observe=None):
    return tacit.run(changed(run={"writers": names}), out=place, resume=resume, observe=observe, page=False)


def interrupted(place, *names):
    with pytest.raises(Stop):
        run(place, *names, observe=stop)
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
        assert [one.step for one in scalars] == [0, 1, 2, 3, 4, 5]
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
        assert [one.step for one in logged] == [0, 1, 2, 3, 4, 5]
        assert [one.value for one in logged] == pytest.approx([row[key] for row in history.records()])


def test_a_missing_package_is_said_with_its_command_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(writers, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r'pip install "tacit\[mlflow\]"'):
        run(tmp_path / "run", "mlflow")
    assert not (tmp_path / "run").exists()


def test_a_writer_that_does_not_exist_and_one_named_twice_are_refused(tmp_path):
    with pytest.raises(BadInput, match="tensorboard"):
        run(tmp_path / "run", "wandb")
    with pytest.raises(BadInput, match=r"each of run\.writers once"):
        changed(run={"writers": ["mlflow", "mlflow"]})


def test_records_are_flat_and_equal_to_rounds_csv(ended, tmp_path):
    history = tacit.run(changed(), out=tmp_path / "run", page=False)
    records = history.records()
    assert all(not isinstance(value, list | dict) for row in records for value in row.values())
    assert len({tuple(row) for row in records}) == 1
    assert records[-1][EPSILON] == history.rounds[-1]["epsilon_loosest"]
    rows = list(csv.DictReader((tmp_path / "run" / "rounds.csv").read_text().splitlines()))
    assert list(rows[0]) == list(records[0])
    assert [float(row[EPSILON]) for row in rows] == [row[EPSILON] for row in records]


def test_a_run_without_rounds_has_a_table_with_a_heading(tmp_path):
    experiment = changed(privacy={"epsilon": 0.001, "noise_multiplier": 0.5})
    history = tacit.run(experiment, out=tmp_path / "run")
    assert history.records() == []
    assert (tmp_path / "run" / "rounds.csv").read_text() == "round\n"
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == 0
