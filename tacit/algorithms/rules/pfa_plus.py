"""`pfa-plus`: PFA whose private clients upload k numbers per block (Liu et al., PVLDB 15(4), 2021, section 4.4). The first
round is PFA. After it the server broadcasts the basis it found last; a private client sends the coordinates of its update in
that basis and nothing else, the server rebuilds their mean in the same old basis, and the public updates of the round give the
next one. A round without a public client keeps the old basis. Uplink falls by the model's size over k; downlink grows by k + 1
models."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from tacit.algorithms import Applied, Memory
from tacit.algorithms.rules.pfa import Divided, pfa
from tacit.errors import BadInput
from tacit.types import Message


def coordinates(x: torch.Tensor, known: Memory, layout: Sequence[int]) -> torch.Tensor:
    """V^T (x - mu), (block, k), in the basis and around the centre that everybody was told."""
    x = x - known["centre"] if "centre" in known else x
    return torch.stack([known["basis"][start:stop].T @ x[start:stop] for start, stop in pairwise(layout)])


@dataclass(frozen=True)
class pfa_plus(pfa):
    """PFA+; the options are those of `pfa`. Every client needs the basis, so the broadcast carries it in full."""

    whole = False

    def tell(self, memory: Memory, epsilons: np.ndarray) -> Message:
        """The threshold, and after the first round the basis, its centre and the blocks."""
        message = super().tell(memory, epsilons)
        basis = {name: memory[name] for name in ("basis", "centre") if name in memory}
        return Message("server", basis, {**message.facts, "layout": self.offsets(memory)} if basis else message.facts)

    def refuse(self, received: Message, *, size: int) -> None:
        """Raises: BadInput for a basis, centre or layout of another size or type than the model and the rank allow."""
        super().refuse(received, size=size)
        if "basis" not in received.tensors:
            return
        basis, layout, centre = received.tensors["basis"], received.facts.get("layout"), received.tensors.get("centre")
        fits = basis.dtype == torch.float32 and basis.dim() == 2 and basis.shape[0] == size
        if not fits or not 1 <= basis.shape[1] <= self.rank:
            raise BadInput(f"The basis is not at most {self.rank} vectors of {size} numbers.")
        if centre is not None and (centre.dtype, centre.shape) != (torch.float32, (size,)):
            raise BadInput(f"The centre is not one vector of {size} numbers.")
        if not isinstance(layout, list) or not all(type(offset) is int for offset in layout):
            raise BadInput("The layout is not a list of whole numbers.")
        if layout[:1] != [0] or layout[-1] != size or any(stop <= start for start, stop in pairwise(layout)):
            raise BadInput(f"The layout does not cut {size} numbers into blocks.")

    def send(
        self, update: torch.Tensor, facts: dict[str, Any], received: Message
    ) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """A public client's whole update; a private one's coordinates in the received basis, k numbers a block."""
        tensors, group = super().send(update, facts, received)
        if "basis" not in received.tensors or group["group"] == "public":
            return tensors, group
        return {"coordinates": coordinates(update, received.tensors, received.facts["layout"])}, group

    def apply(self, memory: Memory, gathered: Divided) -> Applied:
        """Puts the private mean back by the basis that its coordinates are in, and takes the next one from the public updates."""
        if "basis" not in memory:  # warm-up: private clients sent whole updates
            applied = super().apply(memory, gathered)
            return Applied(applied.update, self._refreshed(memory, gathered.rows, gathered.weights), applied.info)
        private = gathered.private_mean()
        after, info = self._refreshed(memory, gathered.rows, gathered.weights), gathered.info(memory["basis"].shape[1])
        if private is None:
            return Applied(gathered.public_mean(), after, info)
        mean, offsets = private[1], self.offsets(memory)
        if mean.dim() == 1:  # of a secret sum: nobody sends coordinates, and the mean has those that theirs would have
            mean = coordinates(mean, memory, offsets)
        blocks = pairwise(offsets)
        sizes = torch.tensor([stop - start for start, stop in blocks], device=mean.device)
        point = (memory["basis"] * mean.repeat_interleave(sizes, dim=0)).sum(1)
        rebuilt = point + memory["centre"] if "centre" in memory else point
        return Applied(gathered.with_private(private[0], rebuilt), after, info)

    def _refreshed(self, memory: Memory, rows: list[torch.Tensor], weights: list[float]) -> Memory:
        if not rows:
            return memory
        spaces = self.spaces(memory, rows, weights)
        k = max(1, *(s.mix.shape[1] for s in spaces))
        padded = [torch.nn.functional.pad(s.basis(), (0, k - s.mix.shape[1])) for s in spaces]
        fresh = {name: memory[name] for name in ("layout", "threshold") if name in memory} | {
            "basis": torch.cat(padded)
        }
        centres = [s.centre for s in spaces if s.centre is not None]
        return fresh | ({"centre": torch.cat(centres)} if centres else {})
