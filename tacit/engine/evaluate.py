"""Accuracy and loss on the public test set."""

import torch
from torch.nn.functional import cross_entropy

from tacit.build.parts import Parts

CHUNK = 1000  # rows at a time, so that activations stay in the cache
WORTH_THREADS = 2e7  # rows x parameters: below, waking threads costs more than they do


def evaluate(parts: Parts, params: torch.Tensor) -> tuple[float, float]:
    """(accuracy, mean loss) of the model with these parameters."""
    before = torch.get_num_threads()
    worth = len(parts.dataset.test_y) * params.numel() > WORTH_THREADS
    torch.set_num_threads(parts.threads if worth else before)
    try:
        return _evaluate(parts, params)
    finally:
        torch.set_num_threads(before)


@torch.inference_mode()
def _evaluate(parts: Parts, params: torch.Tensor) -> tuple[float, float]:
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
