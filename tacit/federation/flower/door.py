"""Agreeing with the sites on a run, at its beginning and with those that come, or come back, while it goes on."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from flwr.serverapp import Grid

import tacit
from tacit.errors import TacitError
from tacit.federation.flower.gather import AGAIN_SECONDS, Heard, gather
from tacit.federation.flower.muster import declaration, refuse_other_name, registered
from tacit.federation.site.agreement import Terms

GREET_SECONDS = 15.0  # for somebody new between two rounds, for whom the others wait
TURNED_AWAY_SECONDS = 120.0  # until a node is greeted again that did not answer or did not fit


@dataclass
class Door:
    """What every site of a run is asked to agree to, and who was turned away when.

    Clients are numbered as in the roster; `nodes` in what follows has the Flower node of each that is here.
    """

    grid: Grid
    names: Sequence[str]
    terms: dict[int, Terms]
    common: dict[str, Any]  # the question to agree, but for the site's own terms
    seconds: float
    away: dict[int, float] = field(default_factory=dict)  # node: when

    def agree(self, nodes: dict[int, int]) -> None:
        """Has every site compute its own noise and price and compare them with the server's.

        Guarantee: on return each of them has agreed, on its own disk, to the same run, experiment and roster.

        Raises: TacitError naming the first that does not agree, with its reason, or that does not answer in `seconds`.
        """
        heard = gather(self.grid, self._asks(nodes), b"", seconds=self.seconds, again=AGAIN_SECONDS)
        for index, node in nodes.items():
            if node not in heard.answers:
                why = heard.refusals.get(node) or heard.lost.get(node) or f"no answer in {self.seconds:g} s"
                raise TacitError(f"Site {self.names[index]} does not agree to the run: {why}")

    def hand_out(self, nodes: dict[int, int], body: bytes, *, seconds: float) -> list[str]:
        """Sends the model that the run left to every site that is connected, and returns the names of those that kept it.

        Nobody stops the run any more: who is gone or refuses has none, and is named in the server's log.
        """
        here = set(self.grid.get_node_ids())
        present = {index: node for index, node in nodes.items() if node in here}
        ask = {"kind": "keep", "run": self.common["run"]}
        heard = gather(self.grid, dict.fromkeys(present.values(), ask), body, seconds=seconds) if present else Heard()
        for index, node in present.items():
            if node not in heard.answers:
                why = heard.refusals.get(node) or heard.lost.get(node) or f"no answer in {seconds:g} s"
                print(f"{self.names[index]} did not keep the model: {why}", flush=True)
        return [self.names[index] for index, node in present.items() if node in heard.answers]

    def newcomers(self, nodes: dict[int, int]) -> dict[int, int]:
        """Greets who is here and not in `nodes`, agrees with those whose own node is gone, and returns them by client.

        Guarantee: only a site of the roster is let in, only while its own node is not connected, only with this version of
        Tacit, and under no other name than its key was registered with. Nobody stops the run here: who does not fit, or does
        not answer in `GREET_SECONDS`, stays out and is not greeted again for `TURNED_AWAY_SECONDS`.
        """
        here = set(self.grid.get_node_ids()) if len(nodes) < len(self.names) or self._gone(nodes) else set[int]()
        fresh = [node for node in here - set(nodes.values()) if self._may_try(node)]
        if not fresh:
            return {}
        missing = {name: index for index, name in enumerate(self.names) if nodes.get(index) not in here}
        hello = {"kind": "hello", "experiment": self.common["experiment"]}
        heard = gather(self.grid, dict.fromkeys(fresh, hello), b"", seconds=GREET_SECONDS)
        known, fitting = registered(self.grid), dict[int, int]()
        for node in fresh:
            self.away[node] = time.monotonic()
            if node not in heard.answers:
                continue
            try:
                declared = declaration(heard.answers[node][0])
                name = declared["site"]
                refuse_other_name(known.get(node), name)
            except TacitError as error:
                print(error, flush=True)
                continue
            if name in missing and declared["tacit"] == tacit.__version__ and missing[name] not in fitting:
                fitting[missing[name]] = node
        return self._agreed(fitting)

    def _agreed(self, nodes: dict[int, int]) -> dict[int, int]:
        heard = gather(self.grid, self._asks(nodes), b"", seconds=GREET_SECONDS) if nodes else None
        came = {index: node for index, node in nodes.items() if heard and node in heard.answers}
        for index, node in nodes.items():
            why = heard.refusals.get(node, "no answer") if heard else ""
            print(f"{self.names[index]} {'is here again' if index in came else f'stays out: {why}'}", flush=True)
        return came

    def _asks(self, nodes: dict[int, int]) -> dict[int, dict[str, Any]]:
        return {node: self.common | {"terms": asdict(self.terms[index])} for index, node in nodes.items()}

    def _gone(self, nodes: dict[int, int]) -> bool:
        return not set(nodes.values()) <= set(self.grid.get_node_ids())

    def _may_try(self, node: int) -> bool:
        return time.monotonic() - self.away.get(node, float("-inf")) > TURNED_AWAY_SECONDS
