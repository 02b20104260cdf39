"""The epsilon of each client: numbers, lists, files and the distributions of the paper."""

import numpy as np
import pytest

from tacit.data.partition import DISTRIBUTIONS, MIXTURES, budgets
from tacit.errors import BadInput

NAMES = ["ann", "bob", "cy"]


def drawn(spec, clients=3, seed=0, names=None):
    return budgets(spec, clients=clients, rng=np.random.default_rng(seed), names=names)


def test_a_number_is_everyones_epsilon_and_a_list_is_in_the_order_of_the_clients():
    assert drawn(3).tolist() == [3.0, 3.0, 3.0]
    assert drawn([1, 2.5, float("inf")]).tolist() == [1, 2.5, np.inf]


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_every_draw_is_above_zero_and_the_seed_decides(name):
    values = drawn(name, clients=20_000)
    assert values.min() > 0
    assert np.isfinite(values).all()
    assert np.array_equal(values, drawn(name, clients=20_000))
    assert not np.array_equal(values, drawn(name, clients=20_000, seed=1))


def test_uniform_and_gauss_and_pareto_are_those_of_the_paper():
    """U(1,10), N(3,1), Pareto(0.5, 1): the quantiles are known, and those of 2/3 and 3/2 of the scale are refused."""
    quartiles = {"uniform": (3.25, 5.5, 7.75), "gauss": (2.326, 3.0, 3.674), "pareto": (2 / 3, 1.0, 2.0)}
    for name, expected in quartiles.items():
        found = np.quantile(drawn(name, clients=100_000), [0.25, 0.5, 0.75])
        assert np.allclose(found, expected, rtol=0.03)
        for wrong in (2 / 3, 3 / 2):
            assert not np.allclose(found * wrong, expected, rtol=0.03)
    assert drawn("uniform", clients=100_000).min() >= 1
    assert drawn("uniform", clients=100_000).max() <= 10
    assert drawn("pareto", clients=100_000).min() >= 0.5


@pytest.mark.parametrize("name", MIXTURES)
def test_each_component_has_the_share_mean_and_deviation_of_the_paper(name):
    values = drawn(name, clients=100_000)
    for share, mean, deviation in MIXTURES[name]:
        mine = values[np.abs(values - mean) < 6 * deviation]
        assert len(mine) / len(values) == pytest.approx(share, abs=0.01)
        assert mine.mean() == pytest.approx(mean, rel=0.01)
        assert mine.std() == pytest.approx(deviation, rel=0.05)


def test_the_mixtures_are_the_papers():
    assert MIXTURES["mixgauss1"] == ((0.9, 0.1, 0.01), (0.1, 10.0, 0.1))
    assert MIXTURES["mixgauss2"] == ((0.9, 0.5, 0.01), (0.1, 10.0, 0.1))
    assert MIXTURES["mixgauss3"] == ((0.9, 1.0, 0.1), (0.1, 10.0, 0.1))
    assert MIXTURES["mixgauss4"] == ((0.5, 0.1, 0.01), (0.4, 1.0, 0.1), (0.1, 10.0, 1.0))


@pytest.mark.parametrize("name", MIXTURES)
def test_a_mixture_always_has_a_public_client(name):
    assert all(drawn(name, clients=2, seed=seed).max() > 5 for seed in range(100))


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (0, "Expected privacy.epsilon > 0 for every client, got 0"),
        (float("nan"), "Expected privacy.epsilon > 0 for every client, got nan"),
        (True, "Expected privacy.epsilon > 0 for every client, got True"),
        ([1, 2], "Expected one number per client in privacy.epsilon, got 2 for 3 clients"),
        ([1, -2, 3], "Expected privacy.epsilon > 0 for bob, got -2"),
        ([1, 2, float("nan")], "Expected privacy.epsilon > 0 for cy, got nan"),
        ([1, "2", 3], "Expected privacy.epsilon > 0 for bob, got '2'"),
        ("mixgaus1", r"Expected privacy\.epsilon to be a number, .*Did you mean 'mixgauss1'\?"),
        (None, "Expected privacy.epsilon to be a number, a list, a file or the name of a distribution, got None"),
        ({"file": 3}, "names file, not among the clients"),
        ({"ann": 1.0, "bob": 2.0}, "gives no epsilon for cy"),
        ({"ann": 1.0, "bob": 2.0, "cy": 3.0, "dee": 4.0}, "names dee, not among the clients"),
    ],
)
def test_what_is_no_budget_is_refused_by_client(spec, sentence):
    with pytest.raises(BadInput, match=sentence):
        drawn(spec, names=NAMES)


def test_a_file_gives_each_client_its_own_in_any_order(tmp_path):
    values = {"cy": 3.5, "ann": "inf", "bob": 0.5}
    lines = "\n".join(["client,epsilon", *(f"{name}, {value}" for name, value in values.items()), ""])
    path = tmp_path / "budgets.csv"
    path.write_text(lines)
    assert drawn({"file": str(path)}, names=NAMES).tolist() == [np.inf, 0.5, 3.5]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("a.csv", "client,epsilon\nann,1\n", "a.csv gives no epsilon for bob, cy: add it"),
        (
            "a.csv",
            "client,epsilon\nann,1\nbob,1\ncy,1\ndi,1\n",
            "a.csv names di, not among the clients .* remove or rename that",
        ),
        ("a.csv", "client,epsilon\nann,1\nbob,1\ncy,1\nann,2\n", "a.csv names ann twice"),
        ("a.csv", "client,epsilon\nann,1\nbob,x\ncy,1\n", "a.csv, line 3: expected a client and a number, got 'bob,x'"),
        ("a.csv", "client,epsilon\nann,1,2\n", "a.csv, line 2: expected a client and a number"),
        ("a.csv", "client,epsilon\nann,1\nbob,0\ncy,1\n", "Expected privacy.epsilon > 0 for bob, got 0.0"),
        ("a.csv", "name,eps\nann,1\n", "a.csv must begin with the line client,epsilon; found name,eps"),
        ("a.csv", "", "a.csv must begin with the line client,epsilon; found nothing"),
    ],
)
def test_a_bad_file_is_refused_by_client_or_line(tmp_path, name, text, sentence):
    (tmp_path / name).write_text(text)
    with pytest.raises(BadInput, match=sentence):
        drawn({"file": str(tmp_path / name)}, names=NAMES)
