"""What a run says of its rows and settings before it begins, and of what may have made it fail."""

import pytest

import tacit
from tacit.engine.assemble import clients
from tacit.errors import TrainingDiverged
from tacit.experiment import Experiment


def notes(**privacy):
    data = {"name": "digits", "clients": 10}
    return clients(Experiment(data=data, privacy=privacy))[0].notes


def test_a_delta_above_one_over_the_number_of_records_is_noted():
    (note,) = notes(kind="local", epsilon=3.0, delta=0.01)
    assert (
        note == "delta = 0.01 is more than 1/144, and the largest client has 144 records: set privacy.delta below 0.007"
    )
    assert notes(kind="local", epsilon=3.0, delta=0.006) == ()
    assert notes(kind="none") == ()


def test_under_client_level_privacy_delta_is_held_against_the_number_of_clients():
    (note,) = notes(kind="central", epsilon=3.0, delta=0.2)
    assert "there are 10 clients" in note
    assert notes(kind="central", epsilon=3.0, delta=0.05) == ()


def test_training_that_diverges_names_the_columns_that_are_not_scaled(tmp_path):
    (tmp_path / "a.csv").write_text("big,small,label\n" + "1e30,0.5,0\n1e30,0.1,1\n" * 20)
    data = {"name": "csv", "path": str(tmp_path / "a.csv"), "classes": 2, "clients": 2}
    data |= {"numeric": {"big": "unscaled", "small": [0, 1]}}
    experiment = tacit.Experiment(data=data, train={"rounds": 5, "learning_rate": 1e6}, run={"workers": 1})
    with pytest.raises(TrainingDiverged, match=r"Or declare ranges in data.numeric for the unscaled 'big'"):
        tacit.run(experiment, out=tmp_path / "run", page=False)
