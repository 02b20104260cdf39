"""Models of every task in use: a regression and a yes-or-no by csv, several labels and tokens by tensors."""

import csv
import io
import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import tacit
from tacit.cli.app import app
from tacit.errors import BadData, BadInput

TRAIN = {"rounds": 3, "local_steps": 5, "learning_rate": 0.1}


def rows(seed, target, count=90):
    rng = np.random.default_rng(seed)
    lines = [f"age,dose,{target}"]
    for _ in range(count):
        age, dose = rng.integers(20, 80), rng.random()
        number = 0.1 * age + 3 * dose
        lines.append(
            f"{age},{'' if rng.random() < 0.1 else f'{dose:.3f}'},{number if target == 'days' else int(number > 6)}"
        )
    return "\n".join(lines) + "\n"


def ran(home, target, task, **more):
    for index, name in enumerate(("north", "south")):
        (home / "sites").mkdir(exist_ok=True)
        (home / "sites" / f"{name}.csv").write_text(rows(index, target))
    (home / "test.csv").write_text(rows(7, target, count=2100))
    data = {
        "name": "csv",
        "path": str(home / "sites"),
        "test_path": str(home / "test.csv"),
        "label": target,
        "classes": "numbers" if target == "days" else 2,
        "numeric": {"age": [0, 100], "dose": [0, 1]},
        "missing": {"dose": "drop"},
    }
    experiment = tacit.Experiment(
        data=data, task={"kind": task} | more, train=TRAIN, model={"name": "logr"}, run={"workers": 1}
    )
    tacit.run(experiment, out=home / "run", page=False)
    return home / "run"


def predicted(run, path):
    done = CliRunner().invoke(app, ["predict", str(run), str(path)])
    assert done.exit_code == 0, done.output
    return list(csv.DictReader(io.StringIO(done.stdout))), " ".join(done.stderr.split())


def test_a_regression_predicts_numbers_and_the_test_file_gives_the_runs_own_figures(tmp_path):
    run = ran(tmp_path, "days", "regression")
    summary = json.loads((run / "summary.json").read_text())
    found, said = predicted(run, tmp_path / "test.csv")
    assert f"RMSE {summary['test_rmse']:.4f} on the" in said
    assert set(found[0]) == {"line", "prediction"}
    assert sum(row["prediction"] == "" for row in found) > 100  # rows without a dose, in their places
    model = tacit.load(run)
    alone = model.predict({"age": [50, 30], "dose": [0.5, None]})
    assert alone.values.shape == (2, 1)
    assert alone.records()[0] == {"prediction": pytest.approx(model({"age": [50], "dose": [0.5]}).item())}
    assert alone.records()[1] == {"prediction": None}


def test_yes_or_no_is_a_label_with_both_probabilities_and_the_runs_auroc(tmp_path):
    run = ran(tmp_path, "ill", "binary")
    summary = json.loads((run / "summary.json").read_text())
    found, said = predicted(run, tmp_path / "test.csv")
    assert f"AUROC {summary['test_auroc']:.4f} on the" in said
    sure = [row for row in found if row["prediction"]]
    for row in sure[:50]:
        assert float(row["probability_0"]) + float(row["probability_1"]) == pytest.approx(1, abs=1e-5)
        assert row["prediction"] == str(int(float(row["probability_1"]) > 0.5))


def test_a_target_that_is_no_number_is_named_by_its_line(tmp_path):
    run = ran(tmp_path, "days", "regression")
    (tmp_path / "odd.csv").write_text("age,dose,days\n50,0.5,3\n40,0.5,many\n")
    done = CliRunner().invoke(app, ["predict", str(run), str(tmp_path / "odd.csv")])
    assert "line 3 has the target 'many', which is no finite number" in str(done.exception)
    sites = tmp_path / "sites" / "north.csv"
    for cell in ("many", "inf", "1e39"):
        sites.write_text(f"age,dose,days\n50,0.5,3\n40,0.5,{cell}\n")
        with pytest.raises(BadData, match=rf"line 3 has the target '{cell}', which is no finite number"):
            tacit.run(tacit.Experiment.load(run / "experiment.toml"), out=tmp_path / "again")


def test_several_labels_are_probabilities_and_tokens_are_scores(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 4)).astype(np.float32)
    np.savez(tmp_path / "labels.npz", x=x, y=(x[:, :3] > 0).astype(np.float32), client=np.arange(80) % 2)
    data = {"name": "npz", "path": str(tmp_path / "labels.npz"), "classes": "numbers", "partition": "natural"}
    data |= {"divide_by": 2.0}
    experiment = tacit.Experiment(data=data, task={"kind": "multilabel"}, model={"name": "logr"}, train=TRAIN)
    history = tacit.run(experiment, out=tmp_path / "labels")
    found = tacit.load(tmp_path / "labels").predict(x[:5])
    with torch.inference_mode():
        expected = history.model(torch.from_numpy(x[:5]) / 2).sigmoid()
    assert found.values == pytest.approx(expected.numpy())
    assert list(found.records()[0]) == ["probability_1", "probability_2", "probability_3"]


def test_a_model_of_tokens_gives_scores_and_says_so(tmp_path):
    x = np.arange(240).reshape(60, 4) % 5
    np.savez(tmp_path / "tokens.npz", x=x, y=(x + 1) % 5, client=np.arange(60) % 2)
    data = {"name": "npz", "path": str(tmp_path / "tokens.npz"), "classes": 5, "partition": "natural"}
    model = {"name": "tasks.test_tasks:reader"}
    experiment = tacit.Experiment(data=data, task={"kind": "tokens"}, model=model, train=TRAIN)
    tacit.run(experiment, out=tmp_path / "run")
    predictor = tacit.load(tmp_path / "run", trust=True)
    assert predictor(x[:3]).shape == (3, 4, 5)
    with pytest.raises(BadInput, match="answers at every position of a row"):
        predictor.predict(x[:3])


@pytest.mark.parametrize(
    ("kind", "words"),
    [("mischief:task", r"names the task 'mischief:task', which is code"), ("regression", "answers something else")],
)
def test_a_task_that_is_somebodys_code_or_is_not_the_encoders_is_refused(tmp_path, kind, words):
    run = ran(tmp_path, "ill", "binary")
    text = (run / "experiment.toml").read_text().replace('kind = "binary"', f'kind = "{kind}"')
    (run / "experiment.toml").write_text(text)
    with pytest.raises(BadInput, match=words):
        tacit.load(run)
