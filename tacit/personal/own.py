"""The type of a client's own model: it can be judged, and kept in a file for its owner alone, and nothing else."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from safetensors.torch import save
from torch import nn

from tacit.engine.folder import replace
from tacit.errors import Refused
from tacit.metrics import Answers
from tacit.train.flat import named

Said = TypeVar("Said", float, Answers)  # what a judge may say

STAYS = (
    "A client's own model stays where it was made: it carries no noise, so no epsilon covers it, and it is neither sent nor"
    " published."
)
OWNER = 0o600  # who may read the file


class Personal:
    """A model made of one client's rows without noise, and how it was chosen.

    Guarantee: it is no tensor and has none to hand out. A message that holds it cannot be packed, and it is not pickled. A judge
    says a number or answers, or is refused, and what it was lent is no number any more when it has spoken; the one file that it is
    kept in is its owner's. (Code at home that copies what it is lent can do what it likes: no type stops that.)

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

    def judged(self, judge: Callable[[torch.Tensor], Said]) -> Said:
        """What a judge at home says of the model. Raises Refused for anything but a number or answers."""
        lent = self.__vector.clone()
        try:
            said = judge(lent)
        finally:
            lent.fill_(torch.nan)
        if type(said) not in (float, Answers):
            raise Refused(STAYS)
        return said

    def keep(self, path: Path, model: nn.Module, mark: dict[str, str]) -> None:
        """Writes the model into a file for its owner alone, whole or not at all: the only way to a disk. Raises: OSError."""
        replace(path, save(named(model, self.__vector), mark), mode=OWNER)

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
