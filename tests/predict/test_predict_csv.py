"""`tacit predict RUN new.csv`: the run's own figures on its test file, every row in its place, and no cell that computes."""

import csv
import json
import re

import pytest
import ready
from terminal import refused
from typer.testing import CliRunner

import tacit
from tacit.cli.app import app
from tacit.data import texts


@pytest.fixture
def predict(finished, tmp_path):
    """Writes rows as new.csv and predicts them: predict(text, "--out", path)."""

    def call(text, *words, run=finished):
        (tmp_path / "new.csv").write_text(text)
        return CliRunner().invoke(app, ["predict", str(run), str(tmp_path / "new.csv"), *map(str, words)])

    return call


def test_the_test_file_gives_the_runs_own_figure_exactly(predict, finished, tmp_path):
    from tacit.report.predictions import predict_file

    summary, test = json.loads((finished / "summary.json").read_text()), finished.parent / "test.csv"
    done = predict(test.read_text())
    assert f"Accuracy {summary['test_accuracy']:.4f} on the 2345" in " ".join(done.stderr.split())
    with (tmp_path / "out.csv").open("w") as file:
        told = predict_file(tacit.load(finished), test, file)
    assert told.score == ("accuracy", summary["test_accuracy"])


def test_other_orders_more_columns_and_no_labels_give_the_same_predictions(predict):
    whole = predict("age,sex,chol,thal,num\n63,m,233,6,0\n41,f,,?,1\n").stdout
    done = predict("id,chol,thal,sex,age\n=1+1,233,6.0,m,63\nb,,,f,41\n")
    assert done.stdout == whole
    assert "Passed over columns that are no features: 'id'." in done.stderr
    assert "Accuracy" not in done.stderr
    rows = list(csv.DictReader(whole.splitlines()))
    assert [row["line"] for row in rows] == ["2", "3"]
    assert set(rows[0]) == {"line", "prediction", "probability_0", "probability_1"}
    assert all(abs(float(row["probability_0"]) + float(row["probability_1"]) - 1) < 1e-5 for row in rows)


def test_what_reading_changed_is_said(predict):
    done = predict("age,sex,chol,thal\n263,m,233,6\n41,f,,?\n")
    assert "clamped 1 value of 'age' into its declared range [20, 100]" in done.stderr
    assert "filled in 1 missing value of 'chol'" in done.stderr


def test_blocks_of_any_size_give_the_same_file(predict, finished, monkeypatch):
    text = (finished.parent / "test.csv").read_text()
    whole = predict(text).stdout
    monkeypatch.setattr(texts, "BLOCK_ROWS", 1000)
    assert predict(text).stdout == whole


def test_predictions_go_to_a_file_that_is_written_whole_or_not_at_all(predict, tmp_path):
    text = "age,sex,chol,thal\n63,m,233,6\n"
    done = predict(text, "--out", tmp_path / "out.csv")
    assert (done.exit_code, done.stdout) == (0, "")
    assert (tmp_path / "out.csv").read_text().startswith("line,prediction,")
    again = predict(text, "--out", tmp_path / "out.csv")
    assert "exists already" in str(again.exception)
    predict(f"{text}41,x,1,3\n", "--out", tmp_path / "bad.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv", "out.csv"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("age,chol,thal\n1,2,3\n", r"new.csv has no column 'sex'"),
        ("Age,sex,chol,thal\n1,f,2,3\n", r"has no column 'age'.*Did you mean 'Age'\?"),
        (
            "age,sex,chol,thal\n1,x,2,3\n",
            r"new.csv, line 2, column 'sex' is 'x', which is none of its declared values: leave the row out, or write one of those"
            r" that the model was trained with: 'f', 'm'\.$",
        ),
        (
            "age,sex,chol,thal\n,f,2,3\n",
            r"new.csv, line 2, column 'age' is missing: fill it in, or leave the row out\.$",
        ),
        (
            "age,sex,chol,thal\nold,f,2,3\n",
            r"'age' is 'old', which is not a number: correct it, or leave the row out\.$",
        ),
        ("age,sex,chol,thal,num\n1,f,2,3,2\n", r"line 2 has the label '2', which is no class of the model"),
        ("age,sex,chol,thal\n", "holds no rows"),
        ("", "is empty"),
        ("63,1,233,6\n", "begins with a record"),
    ],
)
def test_rows_that_cannot_be_predicted_are_refused_by_line_and_nothing_is_printed(predict, text, sentence):
    done = predict(text)
    assert done.exit_code != 0
    assert done.stdout == ""
    assert re.search(sentence, str(done.exception)), str(done.exception)


def test_rows_without_a_label_are_predicted_and_not_judged(predict):
    done = predict("age,sex,chol,thal,num\n63,m,233,6,1.0\n41,f,100,3,\n")
    assert "on the 1 that have a label" in " ".join(done.stderr.split())


def trained(home, text, **data):
    (home / "a.csv").write_text(text)
    path = str(home / "a.csv")
    data = {"name": "csv", "path": path, "test_path": path, "clients": 1, "numeric": "unscaled"} | data
    tacit.run(tacit.Experiment(data=data, train={"rounds": 1}), out=home / "run", page=False)
    return home / "run"


def test_a_class_that_begins_like_a_formula_is_written_as_text_and_a_number_stays_one(predict, tmp_path):
    run = trained(tmp_path, "x,label\n" + "1,=A1\n-1,@b\n" * 5, classes=["=A1", "@b"])
    done = predict("x\n1\n-1\n", run=run)
    assert {row["prediction"] for row in csv.DictReader(done.stdout.splitlines())} <= {"'=A1", "'@b"}
    assert done.exit_code == 0
    (tmp_path / "numbers").mkdir()
    run = trained(tmp_path / "numbers", "x,label\n" + "1,-1\n-1,1\n" * 5, classes=["-1", "1"])
    assert {row["prediction"] for row in csv.DictReader(predict("x\n1\n-1\n", run=run).stdout.splitlines())} <= {
        "-1",
        "1",
    }


def test_files_without_a_first_line_of_names_are_predicted_with_and_without_labels(predict, tmp_path):
    run = trained(tmp_path, "1,2,no\n-1,0,yes\n" * 5, classes=["no", "yes"], header=["x", "y", "label"])
    with_labels, without = predict("1,2,no\n-1,0,yes\n", run=run), predict("1,2\n-1,0\n", run=run)
    assert with_labels.stdout == without.stdout
    assert [line.split(",")[0] for line in without.stdout.splitlines()] == ["line", "1", "2"]


def test_rows_that_are_dropped_keep_their_place_without_a_prediction(predict, tmp_path):
    run = trained(
        tmp_path,
        "x,label\n" + "".join(f"{k},no\n-{k},yes\n" for k in range(1, 31)),
        classes=["no", "yes"],
        missing="drop",
    )
    done = predict("x\n1\n?\n-1\n", run=run)
    assert done.stdout.splitlines()[2] == "3,,,"
    assert "1 row lacks a value that it must have, and has no prediction." in done.stderr


def test_a_run_on_images_says_how_it_is_used(predict, tmp_path):
    tacit.run(tacit.Experiment(data={"clients": 2}, train={"rounds": 1}), out=tmp_path / "run", page=False)
    done = predict("x\n1\n", run=tmp_path / "run")
    assert "reads tensors of shape [1, 8, 8], not csv columns" in str(done.exception)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere", "new.csv"], "nowhere is not the folder of a run"),
        (["nowhere", "gone.csv"], "gone.csv is not a file"),
    ],
)
def test_what_is_not_there_is_refused_with_exit_code_2(tmp_path, words, sentence):
    (tmp_path / "new.csv").write_text("x\n1\n")
    assert sentence in refused(ready.tacit("predict", *words, cwd=tmp_path).wait())
