"""What `datasets` saved on disk: read without a network, splits and class names as it has them."""

import importlib.util
import sys

import numpy as np
import pytest

from tacit import Dataset
from tacit.errors import BadInput


def test_without_the_package_one_sentence_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(BadInput, match=r"pip install \"tacit\[hf\]\""):
        Dataset.from_hf(tmp_path)


pytestmark = pytest.mark.filterwarnings("ignore")  # of the package's own making
needs = pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="needs datasets")
X = np.arange(80, dtype=np.float32).reshape(20, 2, 2)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Images with a ClassLabel whose names are numbers in another order, and a text."""
    import datasets

    columns = {"px": datasets.Array2D((2, 2), "float32"), "label": datasets.ClassLabel(names=["10", "9", "x"])}
    columns |= {"who": datasets.Value("string"), "words": datasets.Value("string"), "age": datasets.Value("float32")}

    def rows(n):
        texts = {"who": [["u", "v"][k % 2] for k in range(n)], "words": ["a"] * n, "age": list(range(n))}
        values = {"px": X[:n].tolist(), "label": [k % 3 for k in range(n)], **texts}
        return datasets.Dataset.from_dict(values, features=datasets.Features(columns))

    folder = tmp_path_factory.mktemp("saved")
    datasets.DatasetDict(train=rows(20), test=rows(8)).save_to_disk(folder / "splits")
    rows(20).save_to_disk(folder / "whole")
    return folder


@needs
def test_the_split_test_is_public_and_class_labels_are_positions(saved):
    data = Dataset.from_hf(saved / "splits", client="who", columns=["px"]).rows
    assert (data.x.shape, len(data.test_y), data.client_names) == ((20, 2, 2), 8, ("u", "v"))
    assert (data.class_names, data.y[:4].tolist()) == (("10", "9", "x"), [0, 1, 2, 0])
    assert np.array_equal(data.x.numpy(), X)


@needs
def test_several_columns_stand_side_by_side(saved):
    data = Dataset.from_hf(saved / "whole", columns=["age", "px"], test_share=0.3).rows
    assert data.x.shape[1:] == (5,)
    assert data.x[0].tolist()[1:] == X.reshape(20, 4)[int(data.x[0][0])].tolist()


@needs
@pytest.mark.parametrize(
    ("name", "how", "sentence"),
    [
        ("splits", {"client": "who"}, r"^Column 'words' of .* does not hold numbers of one shape"),
        ("splits", {"columns": ["pix"]}, r"has no column 'pix'. Did you mean 'px'\?"),
        ("splits", {"split": "tain"}, r"has no split 'tain': it has train, test"),
        ("splits", {"test_split": "train"}, r"both 'train'"),
        ("whole", {"columns": ["px"]}, r"^There are no test rows"),
        ("whole", {"columns": ["px"], "test_split": "test"}, r"has no splits"),
        ("nowhere", {}, r"is no folder"),
        (".", {}, r"cannot be read as what `dataset.save_to_disk"),
    ],
)
def test_what_was_not_saved_that_way_is_refused(saved, name, how, sentence):
    with pytest.raises(BadInput, match=sentence):
        Dataset.from_hf(saved / name, **how)
