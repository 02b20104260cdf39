"""The picture and the table of who holds what."""

import sys
from xml.etree import ElementTree

import matplotlib.image
import numpy as np
import pytest

from tacit.errors import BadInput
from tacit.report.data_view import picture, table


def counts(clients, classes=10):
    return np.random.default_rng(0).integers(0, 50, (clients, classes))


def names(word, count):
    return [f"{word} {index}" for index in range(count)]


def draw(path, clients, *, classes=10, epsilons=None):
    picture(path, counts(clients, classes), names("class", classes), names("client", clients), epsilons)
    return path


@pytest.mark.parametrize("clients", [1, 5, 1000])
def test_a_png_is_drawn_for_few_and_for_many_clients(tmp_path, clients):
    epsilons = np.random.default_rng(0).uniform(0.1, 10, clients)
    pixels = matplotlib.image.imread(draw(tmp_path / "a" / "data.png", clients, epsilons=epsilons))
    assert pixels.shape[1] == 1500
    assert pixels[..., :3].std() > 0.1


def test_a_cell_stands_above_its_client_and_beside_its_label(tmp_path):
    only = np.zeros((20, 4), int)
    only[19, 0] = 10
    picture(tmp_path / "a.png", only, names("class", 4), names("client", 20))
    red, _, blue = np.moveaxis(matplotlib.image.imread(tmp_path / "a.png")[:, :1350, :3], -1, 0)
    dark_y, dark_x = np.nonzero((blue > 0.3) & (red < 0.1))
    assert dark_x.mean() > 1300
    assert dark_y.mean() < red.shape[0] / 3


@pytest.mark.parametrize("epsilons", [None, np.full(20, np.inf), np.full(20, 3.0), np.r_[np.inf, np.full(19, 1e-3)]])
def test_budgets_may_be_absent_equal_or_without_limit(tmp_path, epsilons):
    text = draw(tmp_path / "data.svg", 20, epsilons=epsilons).read_text()
    assert ("no limit" in text) == (epsilons is not None and not np.isfinite(epsilons).all())
    assert ("log scale" in text) == (epsilons is not None)


def test_an_svg_names_clients_labels_and_axes_and_is_the_same_each_time(tmp_path):
    first = draw(tmp_path / "a.svg", 5, epsilons=np.ones(5)).read_text()
    ElementTree.fromstring(first)
    for word in ("client 4", "class 9", "label", "ε (log scale)", "examples of a client", "5 clients"):
        assert f"<!-- {word}" in first
    assert draw(tmp_path / "b.svg", 5, epsilons=np.ones(5)).read_text() == first


def test_the_title_names_the_data(tmp_path):
    picture(tmp_path / "a.svg", counts(3), names("class", 10), names("client", 3), name="own $data$")
    assert "own $data$: 3 clients" in (tmp_path / "a.svg").read_text()


def test_many_clients_share_columns_and_are_named_by_index(tmp_path):
    text = draw(tmp_path / "a.svg", 1000, classes=100).read_text()
    assert "each column is the mean of 2 clients" in text
    assert "client (by index)" in text
    assert "client 999" not in text


def test_names_with_mathematical_signs_are_only_text(tmp_path):
    picture(tmp_path / "a.png", counts(2, 2), ["$x", "a_$^$"], ["$\\frac$", "b"], np.ones(2))
    assert (tmp_path / "a.png").stat().st_size > 0


def test_no_window_system_is_touched(tmp_path):
    draw(tmp_path / "a.png", 3)
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def test_a_table_has_the_most_frequent_labels_first():
    rows = table(np.array([[0, 7, 2, 5, 1], [0, 0, 0, 0, 0]]), list("abcde"), ["x", "y"], np.array([1.0, np.inf]))
    assert rows == [
        {"client": "x", "examples": 15, "labels": "b: 7, d: 5, c: 2, 1 more", "epsilon": 1.0},
        {"client": "y", "examples": 0, "labels": "", "epsilon": np.inf},
    ]
    assert table(np.array([[3]]), ["a"], ["x"])[0]["epsilon"] is None


@pytest.mark.parametrize(
    ("file", "shape", "epsilons", "sentence"),
    [
        ("a.jpg", (3, 2), None, r"Expected a picture named .png or .svg, got 'a.jpg'"),
        ("a.png", (2, 3), None, r"label counts of 3 clients x 2 classes, got the shape \[2, 3\]"),
        ("a.png", (3, 2), np.ones(2), r"one epsilon per client, got 2 for 3 clients"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, file, shape, epsilons, sentence):
    with pytest.raises(BadInput, match=sentence):
        picture(tmp_path / file, np.zeros(shape, int), ["a", "b"], ["x", "y", "z"], epsilons)
