"""FedProx: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith 2020 (arXiv:1812.06127v5), Algorithm 2.

A client minimises h(w; w^t) = F(w) + (mu / 2) |w - w^t|^2, which keeps it near the model that it was sent. Guarantee: the term
is a function of parameters alone, so that it changes neither what a record can move nor what that costs.
"""

import torch


def pull(w: torch.Tensor, w_t: torch.Tensor, *, mu: float | torch.Tensor) -> torch.Tensor:
    """The gradient of the proximal term, mu (w - w^t).

    >>> pull(torch.tensor([3.0]), torch.tensor([1.0]), mu=0.5)
    tensor([1.])
    """
    return mu * (w - w_t)
