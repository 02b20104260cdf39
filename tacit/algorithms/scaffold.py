"""SCAFFOLD: Karimireddy et al. 2020 (arXiv:1910.06378v4), Algorithm 1, with option II of line 12. Under local DP it is
DP-SCAFFOLD: Noble, Bellet, Dieuleveut 2022 (arXiv:2111.09278v3), Algorithm 1. A client steps along g - c_i + c. Option II of
line 12, c_i+ = c_i - c + (x - y_i) / (K eta_l), follows from c and from the update y_i - x that the client sends anyway: so the
server does that line, clients keep nothing between rounds and send one vector instead of two. Guarantee: control variates are
functions of released updates, and what a client does with them comes after its noise: all of it is post-processing. Where the
server has only sums (central and distributed DP), there is none: see docs/decisions.md."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from tacit.errors import BadInput
from tacit.types import Client, Message

Controls = Mapping[str, torch.Tensor]  # c, and c_i for all clients (client, parameter)
CORRECTION, CORRECTED = "correction", "corrected"  # c - c_i of a round's clients, and who they are, in a broadcast


@dataclass(frozen=True, eq=False)
class Scaffold:
    """`reach(round)` is K eta_l of every client: how far a gradient of one in all of its steps moves it in that round.
    `weights` are the clients' shares in c, where the paper has 1/N: those of the rule, because all clients want the same along
    g - c_i + c, and the shares decide whose optimum is found."""

    places: Mapping[str, int] = field(repr=False)  # of all N clients, by name
    weights: np.ndarray = field(repr=False)
    reach: Callable[[int], np.ndarray] = field(repr=False)

    def init(self, params: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"c": torch.zeros_like(params), "clients": params.new_zeros(len(self.places), params.numel())}

    def tell(self, message: Message, controls: Controls, cohort: Sequence[Client]) -> Message:
        """Line 4, communicate (x, c), and the c_i that clients need not keep."""
        places = [self.places[client.id] for client in cohort]
        tensors = message.tensors | {CORRECTION: controls["c"] - controls["clients"][places]}
        return replace(message, tensors=tensors, facts=message.facts | {CORRECTED: [client.id for client in cohort]})

    def start(self, x: torch.Tensor, correction: torch.Tensor) -> torch.Tensor:
        return x

    def correction(self, correction: torch.Tensor) -> torch.Tensor:
        return correction

    def own(self, controls: Controls, message: Message, *, round: int, share: float) -> dict[int, torch.Tensor]:
        """Line 12, option II, of who sent the message: its place and its c_i+."""
        if "update" not in message.tensors:
            raise BadInput(f"Client {message.sender} sent no whole update for SCAFFOLD to follow: use the rule mean.")
        i = self.places[message.sender]
        moved = message.tensors["update"] * (share / float(self.reach(round)[i]))  # (y_i - x) / (K eta_l)
        return {i: controls["clients"][i] - controls["c"] - moved}

    def after(self, controls: Controls, new: Mapping[int, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Line 17: c <- c + the sum of p_i (c_i+ - c_i) over those who took part."""
        c, clients = controls["c"].clone(), controls["clients"].clone()
        for i, c_i in new.items():
            c += (c_i - clients[i]) * float(self.weights[i])
            clients[i] = c_i
        return {"c": c, "clients": clients}


def correction_of(received: Message, client: Client) -> torch.Tensor:
    return received.tensors[CORRECTION][received.facts[CORRECTED].index(client.id)]
