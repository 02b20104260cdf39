"""The type of a client's own model."""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

import torch

from tacit.errors import Refused

T = TypeVar("T")

STAYS = (
    "A client's own model stays where it was made: it carries no noise, so no epsilon covers it, and it is neither sent nor"
    " published."
)


class Personal:
    """A model made of one client's rows without noise, and how it was chosen.

    Guarantee: it is no tensor and has none to hand out by name; a message that holds it cannot be packed, and it is not pickled.

    >>> own = Personal("north", torch.ones(2), {"strength": 0.1})
    >>> own, own.judged(lambda vector: float(vector.sum()))
    (Personal('north', {'strength': 0.1}), 2.0)
    """

    __slots__ = ("__vector", "chosen", "client")

    def __init__(self, client: str, vector: torch.Tensor, chosen: Mapping[str, float | None]):
        self.client, self.chosen = client, dict(chosen)
        self.__vector = vector.detach().clone()

    def __repr__(self) -> str:
        return f"Personal({self.client!r}, {self.chosen!r})"

    def judged(self, judge: Callable[[torch.Tensor], T]) -> T:
        """What a judge at home says of the model."""
        return judge(self.__vector)

    def __reduce__(self) -> NoReturn:
        raise Refused(STAYS)

    def cpu(self) -> NoReturn:
        """What packing a message asks of its tensors. Raises Refused."""
        raise Refused(STAYS)

    def to(self, *_: Any) -> NoReturn:
        """What moving a message asks of its tensors. Raises Refused."""
        raise Refused(STAYS)

    @property
    def device(self) -> NoReturn:
        """What moving a message asks first. Raises Refused."""
        raise Refused(STAYS)

    @property
    def dtype(self) -> NoReturn:
        """What the size of a message is made of. Raises Refused."""
        raise Refused(STAYS)
