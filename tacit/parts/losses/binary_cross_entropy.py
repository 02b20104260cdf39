"""Cross-entropy of yes or no, from one score for yes: for one label, or for several at once."""

import torch
import torch.nn.functional as F


def binary_cross_entropy(
    outputs: torch.Tensor,
    targets: torch.Tensor,
    *,
    class_weights: tuple[float, ...] | None = None,  # public numbers, one for each class; nothing: all weigh the same
) -> torch.Tensor:
    """The mean over labels of -log sigmoid(o) where the label holds, else -log sigmoid(-o).

    `class_weights`, public numbers, are (no, yes) for one label, and the weight of yes for each of several.

    >>> binary_cross_entropy(torch.zeros(2, 1), torch.tensor([0, 1]), class_weights=(1.0, 3.0))
    tensor([0.6931, 2.0794])
    """
    targets = targets.reshape(outputs.shape).to(outputs.dtype)
    losses = F.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
    if class_weights is not None:
        weights = torch.tensor(class_weights, dtype=outputs.dtype, device=outputs.device)
        no, yes = weights if outputs.shape[1:].numel() == 1 else (torch.ones_like(weights), weights)
        losses = losses * (no + (yes - no) * targets)
    return losses.flatten(1).mean(1)
