"""Cross-entropy of one class out of several, from one score per class."""

import torch
import torch.nn.functional as F


def cross_entropy(
    outputs: torch.Tensor,
    targets: torch.Tensor,
    *,
    class_weights: tuple[float, ...] | None = None,  # public numbers, one for each class; nothing: all weigh the same
) -> torch.Tensor:
    """-w_y log softmax(outputs)_y. An example with several targets counts their mean. `class_weights` are public numbers.

    >>> cross_entropy(torch.zeros(2, 2), torch.tensor([0, 1]), class_weights=(1.0, 3.0))
    tensor([0.6931, 2.0794])
    """
    weight = None if class_weights is None else torch.tensor(class_weights, dtype=outputs.dtype, device=outputs.device)
    losses = F.cross_entropy(outputs, targets, weight, reduction="none")
    return losses if losses.dim() == 1 else losses.flatten(1).mean(1)
