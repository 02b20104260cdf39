"""A Hugging Face model from a folder, tuned by LoRA under DP-SGD. Needs pip install "tacit[transformers]"."""

import tempfile
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification  # pyright: ignore[reportMissingImports]

import tacit

WORDS, LENGTH = 50, 10
rng = np.random.default_rng(0)


def sentences(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of token numbers, 0 is padding: a sentence is kind if it holds more of the words below 25 than of the others."""
    rows, lengths = rng.integers(1, WORDS, (count, LENGTH)), rng.integers(6, LENGTH + 1, count)
    rows[np.arange(LENGTH) >= lengths[:, None]] = 0
    kind = ((rows < 25) & (rows > 0)).sum(1) > (rows >= 25).sum(1)
    return rows, np.where(kind, "kind", "unkind")


folder = tempfile.mkdtemp()  # yours is what model.save_pretrained(...) wrote; this one has learned nothing yet
torch.manual_seed(0)
sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
BertForSequenceClassification(BertConfig(vocab_size=WORDS, **sizes)).save_pretrained(folder)

experiment = tacit.Experiment(
    data={"clients": 2},
    model={"name": "hugging-face", "path": folder, "tune": "lora", "rank": 4, "lora": "first-frozen"},
    train={"rounds": 4, "local_steps": 4, "sampling_rate": 0.2, "learning_rate": 1.0},
    privacy={"kind": "local", "epsilon": 8.0, "delta": 1e-3},
)
data = tacit.Dataset(*sentences(400), classes=["unkind", "kind"], test=sentences(300))
history = tacit.run(experiment, data=data, out=tempfile.mkdtemp() + "/run")
summary = history.summary
print(
    f"accuracy {summary['test_accuracy']:.3f}: {summary['parameters']} trained, {summary['frozen_parameters']} frozen"
)
print(history.sentence)
