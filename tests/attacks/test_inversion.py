"""Inversion: an imprint is exact without noise, and what noise leaves is weighed against what is known beforehand."""

import math

import numpy as np
import pytest
import torch

from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.lab import attacks
from tacit.lab.attacks.inversion import (
    Prior,
    bins_of,
    edges_of,
    imprinted,
    measurement,
    posterior_means,
    ratios,
)
from tacit.parts import models

SMALL = Experiment(name="small", data={"clients": 4, "examples_per_client": 30}, model={"name": "mlp"})


def test_the_layer_changes_next_to_nothing_and_each_record_moves_one_bin():
    rows = torch.rand(200, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    made = imprinted(input_shape=(1, 6, 6), classes=10, base="mlp", edges=edges_of(rows, 20))
    plain = models.build("mlp", input_shape=(1, 6, 6), classes=10, seed=0)
    layer, behind = made.children()
    assert [p.shape for p in behind.parameters()] == [p.shape for p in plain.parameters()]
    assert (layer(rows) - rows).abs().max() < 0.05
    for row in rows[:10]:
        layer.zero_grad()
        layer(row[None]).sum().backward()
        assert int((layer.first.bias.grad != 0).sum()) == 1


def test_a_bin_with_one_record_is_that_record():
    rows = torch.rand(300, 6, generator=torch.Generator().manual_seed(0))
    model = imprinted(input_shape=(6,), classes=3, base="logr", edges=edges_of(rows, 50))
    loss = torch.nn.functional.cross_entropy(model(rows[:1]), torch.tensor([1]))
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    update = -torch.cat([part.reshape(-1) for part in gradients])
    found = ratios(*bins_of(model, update))
    assert found.shape == (1, 6)
    assert np.allclose(found[0], rows[0].numpy(), atol=1e-4)


def test_equal_public_rows_still_make_edges_that_rise():
    edges = np.array(edges_of(torch.zeros(50, 4), 8))
    assert (np.diff(edges) > 0).all()
    assert float(measurement(4).norm()) == pytest.approx(1)


@pytest.fixture(scope="module")
def public():
    """Rows of a low rank, as pictures nearly are."""
    rng = np.random.default_rng(0)
    return torch.from_numpy(3 + rng.normal(size=(4000, 5)) @ rng.normal(size=(5, 40)))


def noised(public, noise_std):
    """What bins hold of 50 rows with strengths that vary, and 150 empty ones."""
    rng = np.random.default_rng(1)
    rows, a = public[-50:].numpy(), rng.uniform(0.3, 1.0, 50) * rng.choice([-1, 1], 50)
    weights = np.concatenate([a[:, None] * rows, np.zeros((150, 40))]) + noise_std * rng.normal(size=(200, 40))
    biases = np.concatenate([a, np.zeros(150)]) + noise_std * rng.normal(size=200)
    known = {"noise_std": noise_std, "largest": 1.0, "filled": 0.25}
    return rows, *posterior_means(Prior.of(public), weights, biases, **known), weights / biases[:, None]


def test_little_noise_leaves_the_record_and_shows_which_bins_are_empty(public):
    rows, means, odds, _ = noised(public, 1e-3)
    assert np.abs(means[:50] - rows).max() < 0.1
    assert odds[:50].min() > 0 > odds[50:].max()


def test_what_is_known_of_the_noise_brings_a_reconstruction_nearer(public):
    rows, means, _, divided = noised(public, 0.3)
    aware, plain = (np.mean((found[:50] - rows) ** 2) for found in (means, divided))
    guess = np.mean((public.numpy().mean(0) - rows) ** 2)
    assert aware < 0.5 * plain
    assert aware < 0.5 * guess


def test_much_noise_leaves_what_was_known_beforehand(public):
    rows, means, odds, _ = noised(public, 1e3)
    guess = np.mean((public.numpy().mean(0) - rows) ** 2)
    assert np.mean((means[:50] - rows) ** 2) == pytest.approx(guess, rel=0.05)
    assert np.abs(odds + math.log(3)).max() < 0.5  # a quarter was filled before


def test_an_imprint_gives_records_away_without_noise_and_not_with_it(tmp_path):
    options = {"records": 16, "levels": [math.inf, 1.0]}
    found = attacks.attack("inversion", SMALL, out=tmp_path, options=options)
    assert found.number("recovered, of 16", "ε = ∞").value >= 8
    assert found.number("recovered, of 16", "ε = 1").value <= 2
    assert found.number("PSNR (dB)", "ε = ∞").value > found.number("PSNR (dB)", "ε = 1").value + 10
    assert found.number("public rows taken for its own, of 16", "ε = ∞").value <= 2
    assert [name for name, _ in found.strip.rows] == ["records", "ε = ∞", "ε = 1"]


def test_rows_that_are_no_pictures_have_numbers_and_no_strip(tmp_path):
    rng = np.random.default_rng(0)
    lines = [",".join([*(f"{value:.4f}" for value in rng.random(6)), str(n % 2)]) for n in range(200)]
    (tmp_path / "rows.csv").write_text("\n".join(["a,b,c,d,e,f,label", *lines]) + "\n", "utf-8")
    numeric = {key: [0.0, 1.0] for key in "abcdef"}
    data = {"name": "csv", "path": str(tmp_path / "rows.csv"), "classes": ["0", "1"], "numeric": numeric}
    experiment = Experiment(name="rows", data=data | {"clients": 2, "test_share": 0.3})
    found = attacks.attack("inversion", experiment, out=tmp_path, options={"records": 8, "levels": [math.inf]})
    assert found.number("recovered, of 8", "ε = ∞").value >= 3
    assert found.strip is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"records": 0}, "with.records >= 1"),
        ({"levels": []}, "each once"),
        ({"levels": [1.0, 1.0]}, "each once"),
        ({"levels": [-1.0]}, "with.levels"),
        ({"client": 4}, "with.client < 4"),
        ({"records": 31}, "--with records=30"),
    ],
)
def test_what_cannot_be_inverted_is_one_sentence(tmp_path, options, words):
    with pytest.raises(BadInput, match=words):
        attacks.attack("inversion", SMALL, out=tmp_path, options=options)
