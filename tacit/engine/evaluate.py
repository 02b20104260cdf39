"""Accuracy and loss on the public test set."""

import torch
from torch.nn.functional import cross_entropy

from tacit.build import Parts

CHUNK = 1000  # rows at a time, so that activations stay in the cache


@torch.inference_mode()
def evaluate(parts: Parts, params: torch.Tensor) -> tuple[float, float]:
    """(accuracy, mean loss) of the model with these parameters."""
    model, data = parts.model, parts.dataset
    parts.theta.copy_(params)
    model.eval()
    right, loss = 0, 0.0
    for x, y in zip(data.test_x.split(CHUNK), data.test_y.split(CHUNK), strict=True):
        scores, y = model(x.to(parts.theta.device)), y.to(parts.theta.device)
        right += int((scores.argmax(1) == y).sum())
        loss += float(cross_entropy(scores, y, reduction="sum"))
    model.train()
    return right / len(data.test_y), loss / len(data.test_y)
