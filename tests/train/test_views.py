"""Several views of a record are one gradient: clipped once, priced once."""

import dataclasses

import pytest
import torch
from torch import nn

import tacit
from tacit.engine.assemble import build
from tacit.errors import BadInput
from tacit.parts import models
from tacit.parts.losses import cross_entropy
from tacit.privacy.wiring import Wiring
from tacit.random import seeded
from tacit.training.batches import Shifts, Viewed, over_views
from tacit.training.per_example import MARGIN
from tacit.training.sgd import Clipper

VIEWS = Shifts(4, 2)


def images(count=6, side=8, channels=1):
    torch.manual_seed(0)
    return torch.rand(count, channels, side, side), torch.randint(10, (count,))


def moved_slowly(image, row, column, reach):
    """The slow twin: pixel by pixel."""
    out = torch.zeros_like(image)
    channels, height, width = image.shape
    for c in range(channels):
        for i in range(height):
            for j in range(width):
                a, b = i + row - reach, j + column - reach
                if 0 <= a < height and 0 <= b < width:
                    out[c, i, j] = image[c, a, b]
    return out


def test_views_are_the_image_and_copies_moved_by_up_to_the_reach():
    x, _ = images(count=5, channels=2)
    offsets = VIEWS.offsets(seeded(1)("a"), 5)
    views = VIEWS.of(x, offsets)
    assert views.shape == (5, 4, 2, 8, 8)
    assert torch.equal(views[:, 0], x)
    for i in range(5):
        for k in range(4):
            assert torch.equal(views[i, k], moved_slowly(x[i], *offsets[i, k].tolist(), reach=2))


def test_every_move_within_the_reach_is_drawn_and_none_beyond():
    drawn = VIEWS.offsets(seeded(2)("a"), 400)[:, 1:].reshape(-1, 2)
    assert {tuple(pair) for pair in drawn.tolist()} == {(i, j) for i in range(5) for j in range(5)}


def mean_gradient_clipped(model, views, y, clip):
    """The slow twin of the whole: autograd on each view, the mean, then one clip."""
    total = 0
    for record, label in zip(views, y, strict=True):
        loss = nn.functional.cross_entropy(model(record), label.expand(len(record)))
        gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))])
        total = total + gradient * min(1.0, clip * (1 - MARGIN) / float(gradient.norm()))
    return total


@pytest.mark.parametrize("name", ["logr", "mlp", "cnn"])
@pytest.mark.parametrize("path", [None, "book-keeping", "vmap", "loop"])
def test_the_sum_clips_the_mean_over_the_views_of_each_record(name, path):
    x, y = images()
    model = models.build(name, input_shape=(1, 8, 8), classes=10, seed=3)
    views = VIEWS.of(x, VIEWS.offsets(seeded(4)("a"), len(x)))
    clipper = Clipper(Viewed(model), clip=0.3, path=path, losses=over_views(cross_entropy))
    bounded, _ = clipper(views, y)
    assert clipper.path == (path or "book-keeping")
    assert torch.allclose(bounded.vector, mean_gradient_clipped(model, views, y, 0.3), atol=1e-5)


@pytest.mark.parametrize("path", ["book-keeping", "vmap", "loop"])
def test_one_arbitrary_record_with_all_its_views_moves_the_sum_by_at_most_the_clip(path):
    x, y = images()
    x[0] = 1e4
    views = VIEWS.of(x, VIEWS.offsets(seeded(5)("a"), len(x)))
    model = models.build("logr", input_shape=(1, 8, 8), classes=10, seed=3)
    clipper = Clipper(Viewed(model), clip=0.5, path=path, losses=over_views(cross_entropy))
    with_it, without = clipper(views, y)[0].vector, clipper(views[1:], y[1:])[0].vector
    assert 0.5 * 0.99 < (with_it - without).norm() <= 0.5  # views clipped one by one could move it by more


def parts_of(**train):
    return build(
        tacit.Experiment(
            data={"clients": 4, "examples_per_client": 60},
            model={"name": "cnn"},
            train={"rounds": 2, "local_steps": 3, "sampling_rate": 0.3, "views": 4, **train},
            privacy={"kind": "local", "epsilon": [0.3, 1.0, 3.0, 9.0], "clip": 0.7},
        )
    )


def test_views_cost_what_one_view_costs():
    plain, viewed = parts_of(views=None), parts_of(views=8)
    for index in range(4):
        client = plain.population[index]
        assert plain.algorithm.cost(client) == viewed.algorithm.cost(client)


def test_views_change_what_is_learnt_and_are_drawn_again_from_the_same_seed(tmp_path):
    def model(out, **train):
        settings = {"data": {"clients": 3, "examples_per_client": 60}, "privacy": {"kind": "local", "epsilon": 8.0}}
        experiment = tacit.Experiment(**settings, train={"rounds": 2, "local_steps": 2, **train})
        tacit.run(experiment, out=tmp_path / out, page=False)
        return (tmp_path / out / "model.safetensors").read_bytes()

    first = model("a", views=3)
    assert first == model("b", views=3)
    assert first != model("c")


@pytest.mark.parametrize(
    ("views", "privacy", "words"),
    [
        (1, {"kind": "local", "epsilon": 1.0}, r"train.views to be .* at least 2"),
        (4, {"kind": "central", "epsilon": 1.0}, r"train.views averages gradients"),
        (4, {"kind": "none"}, r"train.views averages gradients"),
        (4, {"kind": "local", "unit": "client", "epsilon": 1.0}, r"train.views averages gradients"),
    ],
)
def test_views_without_effect_or_without_images_are_refused(views, privacy, words):
    with pytest.raises(BadInput, match=words):
        build(tacit.Experiment(train={"views": views}, privacy=privacy))


def test_rows_that_are_no_images_are_refused():
    parts = parts_of()
    flat = dataclasses.replace(parts.population, x=parts.population.x.flatten(1))
    with pytest.raises(BadInput, match=r"these examples have the shape \(64,\)"):
        Wiring(parts.experiment, flat, parts.model).views  # noqa: B018 - it is what raises
