"""The models: their sizes, their seeds, and what is refused."""

import sys
import types

import pytest
import torch
from torch import nn

from tacit import plugin
from tacit.errors import BadInput, ModelRefused, PartFailed
from tacit.parts import models
from tacit.parts.models import ROOM, build, check_output

SIZES = {
    ("logr", (1, 28, 28)): 7_850,
    ("mlp", (1, 28, 28)): 159_010,
    ("cnn", (1, 28, 28)): 26_010,
    ("cifar-cnn", (3, 32, 32)): 1_626_442,
}


def size(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("name", "shape"), SIZES)
def test_a_model_has_its_published_size(name, shape):
    model = build(name, input_shape=shape, classes=10, seed=1)
    assert size(model) == models.size(name, input_shape=shape, classes=10) == SIZES[name, shape]
    check_output(model, torch.zeros(2, *shape), (10,))


@pytest.mark.parametrize("shape", [(13,), (1, 8, 8), (1, 6, 6), (3, 15, 17), (1, 16, 16), (3, 32, 32)])
@pytest.mark.parametrize("name", sorted({*plugin.names(ROOM)} - {"hugging-face"}))
def test_a_model_adapts_to_its_input(name, shape):
    if len(shape) > 1 or "cnn" not in name:
        check_output(build(name, input_shape=shape, classes=7, seed=1), torch.zeros(3, *shape), (7,))


@pytest.mark.parametrize("name", ["cnn", "cifar-cnn"])
@pytest.mark.parametrize("shape", [(64,), (1, 5, 9), (8, 8)])
def test_a_convolution_refuses_what_is_no_image_and_names_the_alternative(name, shape):
    with pytest.raises(BadInput, match="'mlp'"):
        build(name, input_shape=shape, classes=10, seed=1)


def test_weights_are_a_function_of_the_seed():
    first, again, other = (build("mlp", input_shape=(9,), classes=3, seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


def test_building_does_not_touch_the_global_generator():
    before = torch.get_rng_state()
    build("cnn", input_shape=(1, 8, 8), classes=10, seed=1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.fixture
def factories(monkeypatch):
    module = types.ModuleType("some_factories")
    module.settings = lambda input_shape, classes: nn.Linear(input_shape[0], classes)
    module.anything = lambda **settings: nn.Linear(settings["input_shape"][0], settings["classes"])
    module.nothing = lambda: nn.Linear(4, 3)
    module.classes = lambda classes, width=4: nn.Linear(width, classes)
    module.wrong = lambda: "a model"
    monkeypatch.setitem(sys.modules, "some_factories", module)


@pytest.mark.parametrize("function", ["settings", "anything", "nothing", "classes"])
def test_a_factory_is_called_with_what_it_accepts(factories, function):
    model = build(f"some_factories:{function}", input_shape=(4,), classes=3, seed=1)
    check_output(model, torch.zeros(2, 4), (3,))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("some_factories:wrong", "Expected 'some_factories:wrong' to return a torch module, got str"),
        ("some_factories:missing", "some_factories has none named 'missing'"),
        ("no_such_module:make", "cannot be imported .*No module named 'no_such_module'"),
        (":make", "Expected model.name to be package.module:name, got ':make'"),
        ("os:", "Expected model.name to be package.module:name, got 'os:'"),
    ],
)
def test_a_factory_that_makes_no_model_is_refused(factories, name, sentence):
    with pytest.raises(BadInput, match=sentence):
        build(name, input_shape=(4,), classes=3, seed=1)


def test_scores_that_do_not_match_the_classes_are_refused():
    with pytest.raises(ModelRefused, match=r"\(2, 10\)"):
        check_output(nn.Linear(4, 3), torch.zeros(2, 4), (10,))
    with pytest.raises(ModelRefused, match="inputs of shape"):
        check_output(nn.Linear(4, 3), torch.zeros(2, 5), (3,))


def test_checking_leaves_the_mode_alone():
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)).train()
    check_output(model, torch.zeros(2, 4), (3,))
    assert model.training
    assert model[1].training


class Mistaken(torch.nn.Module):
    def forward(self, x):
        return x.logits


def test_a_mistake_in_somebodys_model_is_one_sentence_with_its_line():
    with pytest.raises(
        PartFailed, match=r"test_models:Mistaken cannot answer a row \(AttributeError: .*test_models.py, line \d+"
    ):
        check_output(Mistaken(), torch.zeros(2, 4), (3,))
