"""What people type at first: `tacit.run("digits", epsilon=3)`, tables as a dict, `tacit.compare`, and wrong types."""

import sys
import xml.etree.ElementTree as ElementTree

import pytest

import tacit
from tacit.errors import BadInput
from tacit.experiment import Experiment

SMALL = {"rounds": 2, "clients": 4, "page": False}


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    return tacit.run("digits", **SMALL, epsilon=3, out=tmp_path_factory.mktemp("run") / "run")


def test_a_run_takes_a_name_a_file_tables_or_an_experiment_and_keys_to_change(history, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("[privacy]\nkind = 'local'\nepsilon = 8.0\n")
    for source in (file, str(file), {"name": "mine", "privacy": {"kind": "local", "epsilon": 8.0}}):
        made = Experiment.of(source, epsilon=3, **{"train.rounds": 7})
        assert (made.name, made.privacy.epsilon, made.train.rounds) == ("mine", 3, 7)
        assert Experiment.of(made) is made
        again = Experiment.of(made, rounds=2)
        assert (again.privacy.epsilon, again.train.rounds) == (3, 2)
        assert Experiment.of(made, rounds=None).train.rounds == Experiment().train.rounds
    assert history.guarantee.epsilon_max <= 3.0


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"observe": 3}, "Expected observe to be a function"),
        ({"out": 3}, "Expected out to be a path, got 3"),
        ({"page": "no"}, "Expected page to be True or False"),
        ({"resume": 1}, "Expected resume to be True or False"),
        ({"epsilom": 3}, "Did you mean 'epsilon'?"),
        ({"name": "mnist"}, "is a key of several tables"),
        ({"epsilon": -1}, "Expected privacy.epsilon > 0"),
        ({"experiment": 3}, "Expected an experiment, a mapping of its tables, a file or a shipped name, got a int"),
        ({"experiment": {"train": 3}, "rounds": 2}, "train"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(tmp_path, monkeypatch, wrong, sentence):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=sentence.replace("?", r"\?")):
        tacit.run(**wrong)
    assert list(tmp_path.iterdir()) == []


def test_progress_is_one_line_on_standard_error_and_only_where_somebody_watches(tmp_path, capsys, monkeypatch):
    seen = []
    tacit.run("digits", **SMALL, out=tmp_path / "quiet")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    tacit.run("digits", **SMALL, out=tmp_path / "off", progress=False)
    assert capsys.readouterr().err == ""
    tacit.run("digits", **SMALL, out=tmp_path / "on", observe=seen.append)
    said = capsys.readouterr().err
    assert said.startswith("\rround 1/2  accuracy 0.")
    assert said.count("\n") == 1
    assert len(seen) == 2


def test_a_history_shows_its_metrics_its_curve_and_the_guarantee_in_a_notebook(history):
    score = f"{history.summary['test_accuracy']:.4f}"
    count = len(history.rounds)
    assert (
        repr(history)
        == f"History({str(history.out)!r}: {count} rounds, accuracy {score}; sentence says what is promised)"
    )
    html = history._repr_html_()
    page = ElementTree.fromstring(f"<body>{html}</body>")
    shown = dict(row[:2] for row in ([cell.text for cell in line] for line in page.iter("tr")))
    assert shown["accuracy"] == f"{history.summary['test_accuracy']:.4f}"
    points = page.find(".//polyline").get("points").split()
    assert len(points) == len(history.rounds)
    assert page.find("p").text == history.sentence


def test_a_comparison_is_a_table_in_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = {"rounds": 2, "clients": 4, "examples_per_client": 40}
    found = tacit.compare("digits", {"clip": [0.5, 1.0]}, seeds=1, jobs=1, **settings)
    assert [one["privacy.clip"] for one in found.records()] == [0.5, 1.0]
    assert found.out.parent.name == "runs"
    assert (found.out / "table.csv").is_file()
    assert str(found).startswith("| clip | accuracy")
    assert "<table>" in found._repr_html_()
    assert repr(found) == str(found)
    with pytest.raises(BadInput, match=r"Expected vary to be a dict of lists by key.*got \['aggregate.rule'\]"):
        tacit.compare("digits", ["aggregate.rule"])
    with pytest.raises(BadInput, match="to be a list of values, got 'mean'"):
        tacit.compare("digits", {"aggregate.rule": "mean"})
