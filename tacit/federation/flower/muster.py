"""Who takes part: the server greets every node until the sites it expects are here."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

import tacit
from tacit import parse
from tacit.errors import BadInput, TacitError
from tacit.experiment import Experiment
from tacit.federation.flower.gather import AGAIN_SECONDS, gather
from tacit.federation.operate.serve import FEDERATION
from tacit.federation.site.roster import MOST_ROWS

DECLARED = ("site", "examples", "shape", "classes", "epsilon", "unit", "tacit", "torch")
MOST_SITES = 1 << 20  # characters of all their names
MOST_SIDES = 16  # of a row
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


def call_of(config: Mapping[str, Any]) -> Call:
    """The call that `flwr run` makes with a run config.

    Raises: BadInput for a value of another type, for `resume` together with `force`, and where neither the run config nor the
    environment says where the federation lies.

    >>> call_of({"sites": "north,coast", "out": "results", "keys": "server"}).sites
    ('north', 'coast')
    """
    sites = parse.text(config.get("sites"), what="`sites` of the run config", most=MOST_SITES)
    resume, force = _flag(config, "resume"), _flag(config, "force")
    if resume and force:
        raise BadInput("`resume` goes on with a run and `force` starts a new one: set one of them.")
    return Call(
        out=_folder(config.get("out"), "results"),
        sites=tuple(sites.split(",")),
        resume=resume,
        force=force,
        join_seconds=_seconds(config, "join-seconds", Call.join_seconds),
        round_seconds=_seconds(config, "round-seconds", Call.round_seconds),
        keys=_folder(config.get("keys"), "server"),
    )


def _flag(config: Mapping[str, Any], name: str) -> bool:
    value = config.get(name, False)
    if not isinstance(value, bool):
        raise BadInput(f"`{name}` of the run config is {parse.shown(value)}: expected true or false.")
    return value


def _seconds(config: Mapping[str, Any], name: str, usual: float) -> float:
    return parse.number(config.get(name, usual), what=f"`{name}` of the run config")


def _folder(chosen: Any, name: str) -> Path:
    """A folder of the run config, or the one of the federation that `tacit deploy server` serves. Raises BadInput."""
    home = os.environ.get(FEDERATION)
    if chosen:
        return Path(str(chosen))
    if home is None:
        raise BadInput("Nothing says where the federation lies: start the server with `tacit deploy server FOLDER`.")
    return Path(home) / name


def muster(
    grid: Grid, experiment: Experiment, call: Call, *, tell: Callable[[list[str]], None] = lambda missing: None
) -> tuple[dict[str, int], dict[str, dict[str, Any]]]:
    """Greets every node until the expected sites are here. Returns their nodes and what they declared, by name.

    `tell` is told who is still missing whenever somebody has spoken.

    Guarantee: every site is one of `call.sites`, has one node, runs this version of Tacit, and calls itself what its key was
    registered as, where it was given a name; what it declared is well-formed (`declaration`), not necessarily true. A run that
    is resumed goes on with `train.min_clients` of them.

    Raises: TacitError naming who is missing and why others refused, after `call.join_seconds`, or as soon as all have spoken;
    and at once for a node with a stranger's or another's name, or another version.
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
        known = registered(grid)
        for node, (head, _) in heard.answers.items():
            try:
                declared = declaration(head)
            except BadInput as error:
                heard.refusals[node] = f"{known.get(node, f'node {node}')} says of itself what cannot be used: {error}"
                continue
            _welcome(declared, node, nodes, facts, call.sites)
            refuse_other_name(known.get(node), declared["site"])
        refusals |= heard.refusals
        tell([name for name in call.sites if name not in nodes])
    missing = [name for name in call.sites if name not in nodes]
    if missing and (not call.resume or len(nodes) < experiment.train.min_clients):
        why = "".join(f" A site refused: {text}" for text in refusals.values())
        raise TacitError(f"{len(missing)} of {len(call.sites)} sites did not join ({', '.join(missing)}).{why}")
    return nodes, facts


def declaration(head: object) -> dict[str, Any]:
    """What a site says of itself (`tacit.federation.site.greeting`), as it may be used in a roster.

    Guarantee: exactly the parts of `DECLARED`, with texts that are short and printable, at least one example, and an epsilon
    above zero (infinity is one). Whether it is true nobody can check: a site's weight in the average follows from the size it
    declares.

    Raises: BadInput for anything else.

    >>> head = {"site": "a", "examples": 3, "shape": [8], "classes": 2, "epsilon": 1.0, "unit": "record"}
    >>> declaration(head | {"tacit": "1", "torch": "2"})["examples"]
    3
    """
    site, examples, shape, classes, epsilon, unit, mine, torch = parse.fields(
        head, *DECLARED, what="A greeting's answer"
    )
    return {
        "site": parse.text(site, what="Its name"),
        "examples": parse.whole(examples, what="Its number of examples", least=1, most=MOST_ROWS),
        "shape": [
            parse.whole(side, what="Its shape") for side in parse.several(shape, what="Its shape", most=MOST_SIDES)
        ],
        "classes": parse.whole(classes, what="Its number of classes"),
        "epsilon": parse.number(epsilon, what="Its epsilon", infinite=True),
        "unit": parse.text(unit, what="Its unit"),
        "tacit": parse.text(mine, what="Its version"),
        "torch": parse.text(torch, what="Its version"),
    }


def _welcome(
    declared: dict[str, Any],
    node: int,
    nodes: dict[str, int],
    facts: dict[str, dict[str, Any]],
    expected: Sequence[str],
) -> None:
    name = str(declared.get("site"))
    if name not in expected:
        raise TacitError(f"A node calls itself {name}, which is none of the sites ({', '.join(expected)}).")
    if name in nodes and nodes[name] != node:
        raise TacitError(f"Two nodes call themselves {name}: give each site its own folder and key.")
    if declared.get("tacit") != tacit.__version__:
        raise TacitError(
            f"Site {name} runs Tacit {declared.get('tacit')}, the server {tacit.__version__}: install the same."
        )
    nodes[name], facts[name] = node, declared


def registered(grid: Grid) -> dict[int, str]:
    """The names under which the server's people registered the keys of the nodes that are here, by node, where they gave names."""
    return {node.node_id: node.name for node in grid.get_nodes() if node.name}


def refuse_other_name(registered: str | None, declared: str) -> None:
    """Refuses a node that calls itself otherwise than its key was registered; without a registered name any will do.

    Raises: TacitError.
    """
    if registered and registered != declared:
        raise TacitError(
            f"The node that was registered as {registered} calls itself {declared}: one of them has the other's folder."
        )
