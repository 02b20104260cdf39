"""Who takes part: the server greets every node until the sites it expects are here, and has them agree on the run."""

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

import tacit
from tacit import wire
from tacit.deploy.operate.layout import FEDERATION
from tacit.deploy.server.gather import AGAIN_SECONDS, Heard, gather
from tacit.deploy.site.consent import proposed
from tacit.deploy.site.requests import MOST_ROWS, Terms
from tacit.errors import BadInput, Refused, TacitError
from tacit.experiment import Experiment

MOST_SITES = 1 << 20  # characters of all their names
MOST_SIDES = 16  # of a row
LOOK_SECONDS = 1.0  # between two looks at who has connected
GREET_SECONDS = 15.0  # for somebody new between two rounds, for whom the others wait
TURNED_AWAY_SECONDS = 120.0  # until a node is greeted again that did not answer or did not fit


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
    """The call that `flwr run` makes with a run config. Raises: BadInput.

    >>> call_of({"sites": "north,coast", "out": "results", "keys": "server"}).sites
    ('north', 'coast')
    """

    def flag(name: str) -> bool:
        value = config.get(name, False)
        if not isinstance(value, bool):
            raise BadInput(f"`{name}` of the run config is {wire.shown(value)}: expected true or false.")
        return value

    def seconds(name: str, usual: float) -> float:
        return wire.number(config.get(name, usual), what=f"`{name}` of the run config")

    def folder(key: str, name: str) -> Path:
        home = os.environ.get(FEDERATION)
        if config.get(key):
            return Path(str(config[key]))
        if home is None:
            raise BadInput("Nothing says where the federation lies: start it with `tacit deploy server FOLDER`.")
        return Path(home) / name

    sites = wire.text(config.get("sites"), what="`sites` of the run config", most=MOST_SITES)
    resume, force = flag("resume"), flag("force")
    if resume and force:
        raise BadInput("`resume` goes on with a run and `force` starts a new one: set one of them.")
    patience = seconds("join-seconds", Call.join_seconds), seconds("round-seconds", Call.round_seconds)
    return Call(folder("out", "results"), tuple(sites.split(",")), resume, force, *patience, folder("keys", "server"))


def registered_sites(
    grid: Grid, experiment: Experiment, call: Call, *, tell: Callable[[list[str]], None] = lambda missing: None
) -> tuple[dict[str, int], dict[str, dict[str, Any]]]:
    """Greets every node until the expected sites are here. Returns their nodes and what they declared, by name.

    Every site is one of `call.sites`, has one node, runs this version of Tacit, and calls itself what its key was registered as;
    its epsilon is at most what the experiment names for it. Raises: TacitError naming who is missing and why others refused.
    """

    def refuse_more(declared: dict[str, Any]) -> None:  # what a site declares is what it weighs
        name = declared["site"]
        most = proposed(experiment, name) if name in call.sites else math.inf
        if declared["epsilon"] > most:
            raise Refused(f"epsilon {declared['epsilon']:g}, where the experiment names {most:g} for it")

    nodes: dict[str, int] = {}
    facts: dict[str, dict[str, Any]] = {}
    refusals: dict[int, str] = {}
    greeted: set[int] = set()
    ends = time.monotonic() + call.join_seconds
    while len(nodes) + len(refusals) < len(call.sites) and time.monotonic() < ends:
        fresh = [node for node in grid.get_node_ids() if node not in greeted]
        if not fresh:
            time.sleep(LOOK_SECONDS)
            continue
        greeted |= set(fresh)
        patience = max(1.0, ends - time.monotonic())
        heard = _greet(grid, fresh, experiment.toml(), seconds=patience, again=AGAIN_SECONDS, judge=refuse_more)
        known = registered(grid)
        refusals |= {node: f"{known.get(node, f'node {node}')}: {text}" for node, text in heard.refusals.items()}
        for node, declared in heard.answers.items():
            name, version = declared["site"], declared["tacit"]
            if name not in call.sites:
                raise TacitError(f"A node calls itself {name}, which is none of the sites ({', '.join(call.sites)}).")
            if nodes.get(name, node) != node:
                raise TacitError(f"Two nodes call themselves {name}: give each site its own folder and key.")
            if version != tacit.__version__:
                raise TacitError(f"Site {name} runs Tacit {version}, the server {tacit.__version__}: install the same.")
            refuse_other_name(known.get(node), name)
            nodes[name], facts[name] = node, declared
        tell([name for name in call.sites if name not in nodes])
    missing = [name for name in call.sites if name not in nodes]
    if missing and (not call.resume or len(nodes) < experiment.train.min_clients):
        why = "".join(f" A site refused: {text}" for text in refusals.values())
        raise TacitError(f"{len(missing)} of {len(call.sites)} sites did not join ({', '.join(missing)}).{why}")
    return nodes, facts


def _greet(
    grid: Grid,
    nodes: Iterable[int],
    experiment: str,
    *,
    seconds: float,
    again: float | None = None,
    judge: Callable[[dict[str, Any]], None] = lambda declared: None,
) -> Heard:
    """What nodes declare of themselves; what cannot be used, or what `judge` raises TacitError at, is a refusal."""

    def accept(node: int, head: dict[str, Any], body: bytes) -> dict[str, Any]:
        del node, body
        try:
            declared = declaration(head)
            judge(declared)
        except TacitError as error:
            raise BadInput(f"it says of itself what cannot be used: {error}") from error
        return declared

    ask = {"kind": "hello", "experiment": experiment}
    return gather(grid, dict.fromkeys(nodes, ask), b"", seconds=seconds, again=again, accept=accept)


def declaration(head: object) -> dict[str, Any]:
    """What a site says of itself, as it may be used in a roster; nobody can check whether it is true. Raises: BadInput."""
    names = ("site", "examples", "shape", "classes", "epsilon", "unit", "tacit", "torch")
    said = dict(zip(names, wire.fields(head, *names, what="A greeting's answer"), strict=True))
    sides = wire.several(said["shape"], what="Its shape", most=MOST_SIDES)
    return {
        "site": wire.text(said["site"], what="Its name"),
        "examples": wire.whole(said["examples"], what="Its number of examples", least=1, most=MOST_ROWS),
        "shape": [wire.whole(side, what="Its shape") for side in sides],
        "classes": wire.whole(said["classes"], what="Its number of classes"),
        "epsilon": wire.number(said["epsilon"], what="Its epsilon", infinite=True),
        "unit": wire.text(said["unit"], what="Its unit"),
        "tacit": wire.text(said["tacit"], what="Its version"),
        "torch": wire.text(said["torch"], what="Its version"),
    }


def registered(grid: Grid) -> dict[int, str]:
    """The names under which the server's people registered the keys of the nodes that are here, where they gave names."""
    return {node.node_id: node.name for node in grid.get_nodes() if node.name}


def refuse_other_name(registered: str | None, declared: str) -> None:
    """Refuses a node that calls itself otherwise than its key was registered; without a registered name any will do."""
    if registered and registered != declared:
        raise TacitError(
            f"The node that was registered as {registered} calls itself {declared}: one of them has the other's folder."
        )


@dataclass
class Registration:
    """What every site of a run is asked to agree to, at its beginning and when it comes back; `nodes` are by client."""

    grid: Grid
    names: Sequence[str]
    terms: dict[int, Terms]
    common: dict[str, Any]  # the question to agree, but for the site's own terms
    seconds: float
    away: dict[int, float] = field(default_factory=dict)  # node: when

    def agree(self, nodes: dict[int, int]) -> None:
        """Has every site agree, on its own disk, to the same run, experiment and roster. Raises: TacitError naming who does not."""
        heard = self._asked_to_agree(nodes, seconds=self.seconds, again=AGAIN_SECONDS)
        for index, node in nodes.items():
            if node not in heard.answers:
                raise TacitError(f"Site {self.names[index]} does not agree to the run: {heard.why(node)}")

    def hand_out(self, nodes: dict[int, int], body: bytes, *, seconds: float) -> list[str]:
        """Sends the model that the run left to every site that is connected, and returns the names of those that kept it."""
        here = set(self.grid.get_node_ids())
        present = {node: self.names[index] for index, node in nodes.items() if node in here}
        ask = {"kind": "keep", "run": self.common["run"]}
        heard = gather(self.grid, dict.fromkeys(present, ask), body, seconds=seconds)
        for node, name in present.items():
            if node not in heard.answers:
                print(f"{name} did not keep the model: {heard.why(node)}", flush=True)
        return [name for node, name in present.items() if node in heard.answers]

    def newcomers(self, nodes: dict[int, int]) -> dict[int, int]:
        """Greets who is here and not in `nodes`, agrees with those whose own node is gone, and returns them by client.

        Only a site of the roster is let in, with this version of Tacit, and under the name of its key. Who does not fit stops
        nobody, and is not greeted again for `TURNED_AWAY_SECONDS`.
        """
        here = set(self.grid.get_node_ids())
        missing = {name: index for index, name in enumerate(self.names) if nodes.get(index) not in here}
        now = time.monotonic()
        fresh = [
            node
            for node in here - set(nodes.values())
            if missing and now - self.away.get(node, -math.inf) > TURNED_AWAY_SECONDS
        ]
        if not fresh:
            return {}
        heard, known = _greet(self.grid, fresh, self.common["experiment"], seconds=GREET_SECONDS), registered(self.grid)
        self.away |= dict.fromkeys(fresh, time.monotonic())
        fitting: dict[int, int] = {}
        for node, declared in heard.answers.items():
            name = declared["site"]
            try:
                refuse_other_name(known.get(node), name)
            except TacitError as error:
                print(error, flush=True)
                continue
            if name in missing and declared["tacit"] == tacit.__version__:
                fitting.setdefault(missing[name], node)
        heard = self._asked_to_agree(fitting, seconds=GREET_SECONDS)
        for index, node in fitting.items():
            said = "is here again" if node in heard.answers else f"stays out: {heard.why(node)}"
            print(f"{self.names[index]} {said}", flush=True)
        return {index: node for index, node in fitting.items() if node in heard.answers}

    def _asked_to_agree(self, nodes: dict[int, int], *, seconds: float, again: float | None = None) -> Heard:
        asks = {node: self.common | {"terms": asdict(self.terms[index])} for index, node in nodes.items()}
        return gather(self.grid, asks, b"", seconds=seconds, again=again)
