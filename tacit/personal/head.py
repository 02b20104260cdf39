"""`head`: a common body and an own last layer, for networks.

After Collins, Hassani, Mokhtari and Shakkottai 2021 (arXiv:2102.07078), who learn the body together and heads apart in every round;
here the common model's body is kept as it was released, and its last linear layer adapted at home once: ridge towards the common
one, lambda by cross-validation (`mean_regularised.py`), on what the body makes of the rows, computed once.
"""

import torch

from tacit.personal import mean_regularised
from tacit.personal.home import Adapted, Home
from tacit.personal.last import last_of


def adapt(home: Home, centre: torch.Tensor) -> Adapted:
    """The client's own model. Raises BadInput where the model does not end in a linear layer that trains."""
    last = last_of(home, centre)
    found = mean_regularised.by_last_layer(last) if home.size > 1 else Adapted(last.vector, {"strength": None})
    return Adapted(last.within(found.vector), found.chosen, found.score)
