"""Agreeing with the sites on a run, at its beginning and with those that come, or come back, while it goes on."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from flwr.serverapp import Grid

import tacit
from tacit.errors import TacitError
from tacit.federation.flower.gather import AGAIN_SECONDS, gather
from tacit.federation.flower.muster import declaration, refuse_other_name, registered
from tacit.federation.site.agreement import Terms

GREET_SECONDS = 15.0  # for somebody new between two rounds, for whom the others wait
TURNED_AWAY_SECONDS = 120.0  # until a node is greeted again that did not answer or did not fit


@dataclass
class Door:
    """What every site of a run is asked to agree to, and who was turned away when."""

    grid: Grid
    names: Sequence[str]
    terms: dict[int, Terms]
    common: dict[str, Any]  # the question to agree, but for the site's own terms
    seconds: float
    away: dict[int, float] = field(default_factory=dict)  # node: when

    def agree(self, where: dict[int, int]) -> None:
        """Every site computes its own noise and price and compares. Raises TacitError naming who does not agree."""
        heard = gather(self.grid, self._asks(where), b"", seconds=self.seconds, again=AGAIN_SECONDS)
        for index, node in where.items():
            if node not in heard.answers:
                why = heard.refusals.get(node) or heard.lost.get(node) or f"no answer in {self.seconds:g} s"
                raise TacitError(f"Site {self.names[index]} does not agree to the run: {why}")

    def newcomers(self, where: dict[int, int]) -> dict[int, int]:
        """Greets who is here and not in `where`, and agrees with those whose place is empty. Nobody stops the run here.

        A place is empty while its node is not connected; a node under another name than its key's is not let in.
        """
        here = set(self.grid.get_node_ids()) if len(where) < len(self.names) or self._gone(where) else set[int]()
        fresh = [node for node in here - set(where.values()) if self._may_try(node)]
        if not fresh:
            return {}
        empty = {name: index for index, name in enumerate(self.names) if where.get(index) not in here}
        hello = {"kind": "hello", "experiment": self.common["experiment"]}
        heard = gather(self.grid, dict.fromkeys(fresh, hello), b"", seconds=GREET_SECONDS)
        known, found = registered(self.grid), dict[int, int]()
        for node in fresh:
            self.away[node] = time.monotonic()
            if node not in heard.answers:
                continue
            try:
                said = declaration(heard.answers[node][0])
                name = said["site"]
                refuse_other_name(known.get(node), name)
            except TacitError as error:
                print(error, flush=True)
                continue
            if name in empty and said["tacit"] == tacit.__version__ and empty[name] not in found:
                found[empty[name]] = node
        return self._agreed(found)

    def _agreed(self, found: dict[int, int]) -> dict[int, int]:
        heard = gather(self.grid, self._asks(found), b"", seconds=GREET_SECONDS) if found else None
        came = {index: node for index, node in found.items() if heard and node in heard.answers}
        for index, node in found.items():
            why = heard.refusals.get(node, "no answer") if heard else ""
            print(f"{self.names[index]} {'is here again' if index in came else f'stays out: {why}'}", flush=True)
        return came

    def _asks(self, where: dict[int, int]) -> dict[int, dict[str, Any]]:
        return {node: self.common | {"terms": asdict(self.terms[index])} for index, node in where.items()}

    def _gone(self, where: dict[int, int]) -> bool:
        return not set(where.values()) <= set(self.grid.get_node_ids())

    def _may_try(self, node: int) -> bool:
        return time.monotonic() - self.away.get(node, float("-inf")) > TURNED_AWAY_SECONDS
