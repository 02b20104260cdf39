"""Sources by name, and the digits that need no file."""

import numpy as np
import torch
from sklearn.datasets import load_digits

from tacit.data.load import load
from tacit.experiment.data import DataSection


def test_digits_are_images_between_zero_and_one_with_the_same_test_set_for_every_seed():
    first, second = (load(DataSection(name="digits"), seed=seed) for seed in (0, 1))
    assert first.x.shape == (1438, 1, 8, 8)
    assert first.test_x.shape == (359, 1, 8, 8)
    assert (first.x.dtype, first.y.dtype) == (torch.float32, torch.int64)
    assert (first.x.min(), first.x.max()) == (0, 1)
    assert torch.equal(first.test_x, second.test_x)


def test_digits_are_shuffled_before_they_are_split():
    data = load(DataSection(name="digits"), seed=0)
    assert data.test_y.tolist() != load_digits().target[1438:].tolist()
    assert np.bincount(data.test_y, minlength=10).min() > 0.05 * len(data.test_y)
    assert len(torch.unique(torch.cat([data.x, data.test_x]).flatten(1), dim=0)) == 1797


def test_each_name_reaches_its_source(real):
    digit = load(DataSection(name="mnist", path=str(real("mnist"))), seed=0)
    clothes = load(DataSection(name="fashion-mnist", path=str(real("fashion-mnist"))), seed=0)
    assert digit.class_names[3] == "3"
    assert clothes.class_names[9] == "Ankle boot"
    assert digit.x.shape == clothes.x.shape == (60_000, 1, 28, 28)
    assert digit.test_x.shape == (10_000, 1, 28, 28)
    assert digit.y[:5].tolist() == [5, 0, 4, 1, 9]
    assert abs(float(digit.x.mean()) - 0.1307) < 1e-4  # the mean that everyone publishes
    assert abs(float(clothes.x.mean()) - 0.2860) < 1e-4


def test_the_digits_file_is_read_as_scikit_learn_reads_it():
    from tacit.data.images import digits_table

    for ours, theirs in zip(digits_table(), load_digits(return_X_y=True), strict=True):
        assert ours.tolist() == theirs.tolist()
