"""A run's model in use: the run's own figures from raw columns, in any order, and nothing imported that a folder names."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import tacit
from tacit.data.sources import load as load_data
from tacit.errors import BadData, BadInput

RAW = {
    "thal": ["3", "7.0", None],
    "chol": [233, float("nan"), 0.0],
    "sex": ["m", "f", "m"],
    "age": np.array([63, 41, 57]),
}


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of the finished run, to be tampered with."""
    return shutil.copytree(finished, tmp_path / "run")


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def rows_of(folder):
    return load_data(tacit.Experiment.load(folder / "experiment.toml").data, seed=0)


def test_raw_columns_give_the_scores_of_the_rows_that_were_tested(finished):
    predictor, data = tacit.load(finished), rows_of(finished)
    lines = (finished.parent / "test.csv").read_text().splitlines()
    cells = list(zip(*(line.split(",") for line in lines[1:]), strict=True))
    columns = dict(zip(lines[0].split(","), cells, strict=True))
    with torch.no_grad():
        scores = predictor({name: columns[name] for name in ("thal", "sex", "chol", "age")})
        tested = torch.cat([predictor.model(part) for part in data.test_x.split(1000)])
    assert torch.equal(scores, tested)
    right = int((scores.argmax(1) == data.test_y).sum())
    assert right / len(data.test_y) == summary(finished)["test_accuracy"]
    assert 0.6 < summary(finished)["test_accuracy"] < 1  # it has learnt something, so that another order would show


def test_the_order_of_the_columns_given_does_not_matter(finished):
    predictor = tacit.load(finished)
    first, other = predictor.predict(RAW), predictor.predict(dict(reversed(RAW.items())))
    assert first.labels == other.labels
    assert np.array_equal(first.probabilities, other.probabilities)
    assert np.allclose(first.probabilities.sum(1), 1)
    assert first.records()[0]["prediction"] in first.classes == ("0", "1")


def test_a_tensor_has_the_raw_columns_in_the_encoders_order(finished):
    predictor = tacit.load(finished)
    raw = {"age": [63, 41], "sex": ["f", "f"], "chol": [233.0, None], "thal": [6, 7]}
    assert predictor.encoder.names == ("age", "sex", "chol", "thal")
    with pytest.raises(
        BadData, match=r"The rows given, row 0, column 'sex' is '0.0', which is none of its declared values"
    ):
        predictor(torch.zeros(1, 4))
    with pytest.raises(
        BadInput, match=r"shape \[rows, 4\], with the raw columns in the order age, sex, chol, thal; got \[2, 7\]"
    ):
        predictor(torch.zeros(2, 7))
    assert len(predictor.predict(raw)) == 2


def test_a_tensor_of_numbers_and_categories_reads_as_columns_do(tmp_path):
    (tmp_path / "a.csv").write_text("x,ward,label\n1,1,no\n2,2.0,yes\n3,1,no\n4,2,yes\n5,1,no\n")
    keys = {"numeric": {"x": [0, 5]}, "categorical": {"ward": [1, 2]}, "classes": ["no", "yes"], "missing": {"x": 2.5}}
    data = {"name": "csv", "path": str(tmp_path / "a.csv"), "clients": 1, **keys}
    tacit.run(tacit.Experiment(data=data, train={"rounds": 1}), out=tmp_path / "run", page=False)
    predictor = tacit.load(tmp_path / "run")
    by_name = predictor({"x": ["", "4"], "ward": ["1.0", "2"]})
    assert torch.equal(by_name, predictor(torch.tensor([[float("nan"), 1], [4, 2]])))
    assert torch.equal(by_name, predictor(np.array([[np.nan, 1], [4, 2]])))


def test_a_data_frame_is_taken_as_it_is_with_its_own_words_for_nothing(finished):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(RAW).assign(chol=lambda f: f["chol"].astype("Float64"))
    frame.index = [7, 7, 7]  # an index says nothing about rows
    predictor = tacit.load(finished)
    assert np.array_equal(predictor.predict(frame).probabilities, predictor.predict(RAW).probabilities)


def test_it_is_a_plain_module_whose_parameters_are_the_runs(finished):
    predictor = tacit.load(finished)
    kept = load_file(finished / "model.safetensors")
    assert isinstance(predictor, torch.nn.Module)
    assert not predictor.training
    assert {f"model.{name}": tensor.shape for name, tensor in kept.items()} == {
        name: p.shape for name, p in predictor.named_parameters()
    }
    predictor(RAW).sum().backward()
    assert all(p.grad is not None for p in predictor.parameters())


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ({"age": [1]}, r"The rows given have no column 'sex', which the model needs\. There are: age"),
        ({key.capitalize(): value for key, value in RAW.items()}, r"no column 'age'.*Did you mean 'Age'\?"),
        (RAW | {"age": [1, 2]}, "have 2 values in column 'age' and 3 in 'sex'"),
        (RAW | {"age": [1, 2, None]}, "The rows given, row 2, column 'age' is missing"),
        (RAW | {"age": [1, 2, float("inf")]}, "row 2, column 'age' is 'inf', which is not a finite"),
        (RAW | {"age": ["a", "2", "3"]}, "row 0, column 'age' is 'a', which is not a number"),
        (RAW | {"sex": ["f", "x", "m"]}, "row 1, column 'sex' is 'x', which is none of its declared values"),
        (RAW | {"age": [[1], [2], [3]]}, "have 2-dimensional values in column 'age'"),
        (RAW | {"age": [[1], [2, 3], [4]]}, "have 2-dimensional values in column 'age'"),
        (RAW | {"age": 63}, "have one value in column 'age', not a list"),
        ([1, 2, 3], "a mapping of column names to values, a DataFrame, a tensor or an array, got a list"),
    ],
)
def test_rows_that_cannot_be_read_are_refused_with_their_row_and_column(finished, rows, sentence):
    with pytest.raises(BadInput, match=sentence):
        tacit.load(finished).predict(rows)


def test_images_are_predicted_as_tensors_and_columns_are_not_guessed(tmp_path):
    experiment = tacit.Experiment(data={"clients": 2}, train={"rounds": 2})
    done = tacit.run(experiment, out=tmp_path / "run", page=False)
    predictor, data = tacit.load(tmp_path / "run"), load_data(experiment.data, seed=0)
    found = predictor.predict(data.test_x)
    truth = [data.class_names[code] for code in data.test_y.tolist()]
    right = sum(a == b for a, b in zip(found.labels, truth, strict=True))
    assert right / len(truth) == done.summary["test_accuracy"]
    with pytest.raises(BadInput, match=r"Expected rows as a tensor of shape \[rows, 1, 8, 8\], got \[3, 64\]"):
        predictor.predict(torch.zeros(3, 64))


def test_arrays_from_a_file_are_divided_as_in_training(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", x=rng.normal(0, 255, (50, 3)), y=rng.integers(0, 2, 50))
    data = {"name": "npz", "path": str(tmp_path / "a.npz"), "classes": 2, "divide_by": 255.0, "clients": 2}
    tacit.run(tacit.Experiment(data=data, train={"rounds": 1}), out=tmp_path / "run", page=False)
    predictor = tacit.load(tmp_path / "run")
    raw = torch.full((1, 3), 255.0)
    assert torch.equal(predictor(raw), predictor.model(torch.ones(1, 3)))


def test_rows_that_lack_what_they_must_have_get_no_label(tmp_path):
    (tmp_path / "a.csv").write_text("x,label\n1,no\n2,yes\n3,no\n4,yes\n5,no\n")
    data = {"name": "csv", "path": str(tmp_path / "a.csv"), "numeric": {"x": [0, 5]}, "classes": ["no", "yes"]}
    data |= {"missing": "drop", "clients": 1}
    tacit.run(tacit.Experiment(data=data, train={"rounds": 1}), out=tmp_path / "run", page=False)
    found = tacit.load(tmp_path / "run").predict({"x": [1, None, 3]})
    assert [label is None for label in found.labels] == [False, True, False]
    assert np.isnan(found.probabilities).any(1).tolist() == [False, True, False]


MARKED = "import pathlib\npathlib.Path(__file__).with_name('imported').touch()\nfrom tacit.parts.models import mlp\n"


def test_code_that_a_folder_names_is_imported_only_where_it_is_trusted(copied, tmp_path, monkeypatch):
    (tmp_path / "sent_model.py").write_text(MARKED)
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = copied / "experiment.toml"
    settings.write_text(settings.read_text().replace('name = "mlp"', 'name = "sent_model:mlp"'))
    with pytest.raises(
        BadInput, match=r"names the model 'sent_model:mlp', which is code of somebody's own: .*trust=True"
    ):
        tacit.load(copied)
    assert not (tmp_path / "imported").exists()
    assert "sent_model" not in sys.modules
    trusted = tacit.load(copied, trust=True)
    assert (tmp_path / "imported").exists()
    del sys.modules["sent_model"]
    assert len(trusted.predict(RAW)) == 3


def test_other_code_that_a_folder_names_is_never_imported(copied, tmp_path, monkeypatch):
    (tmp_path / "sent_parts.py").write_text(MARKED)
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = copied / "experiment.toml"
    text = settings.read_text().replace('name = "csv"', 'name = "sent_parts:mlp"')
    settings.write_text(text.replace('rule = "mean"', 'rule = "sent_parts:mlp"'))
    tacit.load(copied, trust=True)
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("encoder.json", b"{}", "encoder.json cannot be used: The encoder does not have exactly the parts"),
        ("encoder.json", b"\xff\xfe", "encoder.json cannot be used|cannot be read as text"),
        ("encoder.json", None, "lacks encoder.json or model.safetensors"),
        ("model.safetensors", None, "lacks encoder.json or model.safetensors"),
        ("model.safetensors", b"no tensors", "cannot be read as a model"),
        ("experiment.toml", None, "is not the folder of a run"),
        ("experiment.toml", b"1 = 2\n", "Unknown key '1'|not the text of an experiment"),
        ("experiment.toml", b"= 2\n", "not valid TOML"),
    ],
)
def test_a_folder_that_is_damaged_is_refused_in_one_sentence(copied, name, content, sentence):
    (copied / name).unlink()
    if content is not None:
        (copied / name).write_bytes(content)
    with pytest.raises(BadInput, match=sentence) as refusal:
        tacit.load(copied)
    assert "\n" not in str(refusal.value)


def test_a_model_of_another_size_shape_or_kind_is_refused_before_it_is_built(copied, monkeypatch):
    path = copied / "model.safetensors"
    kept = load_file(path)
    save_file({name: tensor[:1] for name, tensor in kept.items()}, path)
    monkeypatch.setattr("tacit.predict.model_of", lambda *_, **__: pytest.fail("it was built"))
    with pytest.raises(BadInput, match="another number of parameters"):
        tacit.load(copied)
    save_file({name: tensor.double() for name, tensor in kept.items()}, path)
    with pytest.raises(BadInput, match="not 32-bit numbers"):
        tacit.load(copied)
    encoder = json.loads((copied / "encoder.json").read_text())
    (copied / "encoder.json").write_text(json.dumps(encoder | {"columns": [], "shape": [1 << 24]}))
    save_file(kept, path)
    with pytest.raises(BadInput, match="another number of parameters"):  # 13 GB are never asked for
        tacit.load(copied)


def test_parameters_of_other_names_or_without_a_finite_value_are_refused(copied):
    path = copied / "model.safetensors"
    kept = load_file(path)
    save_file({f"{name}.x": tensor for name, tensor in kept.items()}, path)
    with pytest.raises(BadInput, match="its parameters have other shapes"):
        tacit.load(copied)
    save_file({name: tensor * float("nan") for name, tensor in kept.items()}, path)
    with pytest.raises(BadInput, match="not finite"):
        tacit.load(copied)


def test_the_encoder_of_a_run_is_that_of_its_source(finished):
    assert tacit.load(finished).encoder == rows_of(finished).encoder
