"""LoRA adapters of `peft`, and Hugging Face models from a folder: which factor trains, and that everything else stays."""

import numpy as np
import pytest
import torch

import tacit
from tacit.engine.assemble import build, model_of
from tacit.errors import BadInput
from tacit.parts.models import build as build_model
from tacit.training.flat import trainable
from tacit.training.sgd import Clipper, clipped_sum_slow

LENGTH, VOCABULARY = 8, 40
FACTS = {"input_shape": (LENGTH,), "classes": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny BERT that nobody has trained, as `save_pretrained` writes it."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("peft")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=VOCABULARY, max_position_embeddings=LENGTH, num_labels=3, **sizes)
    path = tmp_path_factory.mktemp("model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TQDM_DISABLE", "1")
        transformers.BertForSequenceClassification(config).save_pretrained(path)
    return path


def rows(count, seed=0):
    """Sentences that are about whether one word comes before another, filled up with padding."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, count)
    x = rng.integers(4, VOCABULARY, (count, LENGTH))
    x[:, 0], x[:, 1], x[:, 6:] = 1 + y, 1 + y, 0
    return x.astype(np.float32), y


def experiment(folder, *, privacy=None, **model):
    return tacit.Experiment(
        model={"name": "hugging-face", "path": str(folder), "rank": 2} | model,
        data={"clients": 2},
        train={"rounds": 1, "local_steps": 1, "sampling_rate": 0.2, "learning_rate": 0.5},
        privacy=privacy or {"kind": "local", "epsilon": 5.0},
        run={"workers": 1},
    )


def data():
    return tacit.Dataset(*rows(60), classes=3, test=rows(30, seed=1))


def names(model):
    return [name for name, _ in trainable(model)]


@pytest.mark.parametrize("tune", ["head", "lora", "all"])
def test_what_trains_is_what_was_asked_for(folder, tune):
    model = model_of(experiment(folder, tune=tune), **FACTS)
    found = names(model)
    assert any("classifier" in name for name in found)
    assert any("lora_B" in name for name in found) == (tune == "lora")
    assert any("embeddings" in name for name in found) == (tune == "all")


def test_the_scores_are_those_of_transformers(folder):
    import transformers

    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    ours, x = (
        build_model("hugging-face", **FACTS, seed=0, options={"path": str(folder), "tune": "head"}).eval(),
        rows(5)[0],
    )
    tokens = torch.from_numpy(x).long()
    with torch.no_grad():
        expected = theirs(input_ids=tokens, attention_mask=(tokens != 0).long()).logits
        torch.testing.assert_close(ours(torch.from_numpy(x)), expected)


def test_under_privacy_the_first_factor_is_frozen_unless_both_are_wanted(folder):
    none = {"kind": "none"}
    for how, first in (({}, False), ({"lora": "both"}, True), ({"privacy": none}, True)):
        found = names(model_of(experiment(folder, **how), **FACTS))
        assert any("lora_A" in name for name in found) == first
        assert any("lora_B" in name for name in found)
    assert not any(
        "lora_A" in n for n in names(model_of(experiment(folder, lora="first-frozen", privacy=none), **FACTS))
    )


def test_a_run_says_that_a_factor_was_frozen_and_is_silent_where_that_was_chosen(folder, tmp_path):
    history = tacit.run(experiment(folder), data=data(), out=tmp_path / "run", page=False)
    (note,) = [note for note in history.summary["notes"] if "LoRA" in note]
    assert note.startswith("of 2 LoRA adapters the first factor is frozen")
    assert history.summary["parameters"] == 2 * 2 * 16 + 16 * 3 + 3
    assert history.summary["uplink_bytes"] < 2 * (4 * history.summary["parameters"] + 400)


def test_an_adapters_gradients_are_those_of_single_examples(folder):
    model = model_of(experiment(folder), **FACTS).eval()  # without dropout
    x, y = (torch.from_numpy(part) for part in rows(6))
    clipper = Clipper(model, clip=0.1)
    bounded, _ = clipper(x, y)
    assert clipper.path == "vmap"
    torch.testing.assert_close(bounded.vector, clipped_sum_slow(model, x, y, clip=0.1), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", ["client", "central", "distributed"])
def test_an_adapter_trains_under_every_kind_of_privacy(folder, tmp_path, kind):
    privacy = {"kind": "local", "unit": "client"} if kind == "client" else {"kind": kind}
    chosen = experiment(folder, privacy=privacy | {"epsilon": 5.0}, lora="first-frozen")
    history = tacit.run(chosen, data=data(), out=tmp_path / "run", page=False)
    assert not [note for note in history.summary["notes"] if "LoRA" in note]
    assert history.summary["frozen_parameters"] > history.summary["parameters"]


def test_a_tuned_model_is_loaded_from_the_folder_and_its_adapter(folder, tmp_path):
    history = tacit.run(experiment(folder), data=data(), out=tmp_path / "run", page=False)
    with pytest.raises(BadInput, match="weights lie in"):
        tacit.load(tmp_path / "run")
    x, y = rows(30, seed=1)
    found = tacit.load(tmp_path / "run", trust=True).predict(x)
    right = np.mean([int(label) == truth for label, truth in zip(found.labels, y, strict=True)])
    assert right == pytest.approx(history.summary["test_accuracy"])


def test_lora_is_refused_where_there_are_no_adapters():
    chosen = tacit.Experiment(model={"lora": "both"}, privacy={"kind": "local", "epsilon": 1.0})
    with pytest.raises(BadInput, match="has none: leave it out"):
        build(chosen)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"path": "nowhere"}, "nowhere holds no model"),
        ({"tune": "everything"}, "Expected model.tune to be one of"),
        ({"rank": 0}, "model.rank"),
        ({"targets": ["no_such_layer"]}, "cannot be made"),
    ],
)
def test_what_is_no_model_is_said_in_one_sentence(folder, change, words):
    with pytest.raises(BadInput, match=words):
        model_of(experiment(folder, **change), **FACTS)


def test_without_the_package_one_sentence_says_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(BadInput, match=r'pip install "tacit\[transformers\]"'):
        model_of(experiment(folder), **FACTS)
