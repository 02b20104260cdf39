"""Who takes part: the server greets every node until the sites it expects are here."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

import tacit
from tacit.engine.flower.gather import AGAIN_SECONDS, gather
from tacit.engine.flower.inbound import declared
from tacit.errors import BadInput, TacitError
from tacit.experiment import Experiment

LOOK_SECONDS = 1.0  # between two looks at who has connected


@dataclass(frozen=True)
class Call:
    """One call of the server: where the results go, who is expected, and for how long it waits."""

    out: Path
    sites: tuple[str, ...]
    resume: bool = False
    force: bool = False
    join_seconds: float = 120.0
    round_seconds: float = 600.0
    keys: Path = Path()  # the folder that holds keys/public.json and the members, for encrypted sums


def muster(grid: Grid, experiment: Experiment, call: Call) -> tuple[dict[str, int], dict[str, dict[str, Any]]]:
    """Greets every node until the expected sites are here. Returns their nodes and what they declared.

    Raises TacitError naming who is missing or refused. A run that is resumed goes on with whoever is here.
    """
    nodes: dict[str, int] = {}
    facts: dict[str, dict[str, Any]] = {}
    refusals: dict[int, str] = {}
    greeted: set[int] = set()
    ask = {"kind": "hello", "experiment": experiment.toml()}
    ends = time.monotonic() + call.join_seconds
    while len(nodes) < len(call.sites) and len(nodes) + len(refusals) < len(call.sites) and time.monotonic() < ends:
        fresh = [node for node in grid.get_node_ids() if node not in greeted]
        if not fresh:
            time.sleep(LOOK_SECONDS)
            continue
        greeted |= set(fresh)
        seconds = max(1.0, ends - time.monotonic())
        heard = gather(grid, dict.fromkeys(fresh, ask), b"", seconds=seconds, again=AGAIN_SECONDS)
        refusals |= heard.refusals
        known = registered(grid)
        for node, (head, _) in heard.answers.items():
            try:
                said = declared(head)
            except (
                BadInput
            ) as error:  # crafted, or of another version: like a refusal, in the name it was registered under
                refusals[node] = f"{known.get(node) or 'a node'} declares what cannot be read ({error})"
                continue
            _welcome(said, node, nodes, facts, call.sites)
            refuse_other_name(known.get(node), said["site"])
    missing = [name for name in call.sites if name not in nodes]
    if missing and (not call.resume or len(nodes) < experiment.train.min_clients):
        why = "".join(f" A site refused: {text}" for text in refusals.values())
        raise TacitError(f"{len(missing)} of {len(call.sites)} sites did not join ({', '.join(missing)}).{why}")
    return nodes, facts


def _welcome(
    said: dict[str, Any], node: int, nodes: dict[str, int], facts: dict[str, dict[str, Any]], expected: Sequence[str]
) -> None:
    name = str(said.get("site"))
    if name not in expected:
        raise TacitError(f"A node calls itself {name}, which is none of the sites ({', '.join(expected)}).")
    if name in nodes and nodes[name] != node:
        raise TacitError(f"Two nodes call themselves {name}: give each site its own folder and key.")
    if said.get("tacit") != tacit.__version__:
        raise TacitError(
            f"Site {name} runs Tacit {said.get('tacit')}, the server {tacit.__version__}: install the same."
        )
    nodes[name], facts[name] = node, said


def registered(grid: Grid) -> dict[int, str]:
    """The names under which the server's people registered the keys of the nodes that are here, where they gave names."""
    return {node.node_id: node.name for node in grid.get_nodes() if node.name}


def refuse_other_name(known: str | None, said: str) -> None:
    """Raises TacitError for a node that takes another site's name."""
    if known and known != said:
        raise TacitError(
            f"The node that was registered as {known} calls itself {said}: one of them has the other's folder."
        )
