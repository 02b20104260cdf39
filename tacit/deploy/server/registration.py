"""Who takes part: the server greets every node until the sites it expects are here."""

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

import tacit
from tacit import wire
from tacit.deploy.operate.serve import FEDERATION
from tacit.deploy.server.gather import AGAIN_SECONDS, Heard, gather
from tacit.deploy.site.agreement import Terms
from tacit.deploy.site.limits import MOST_ROWS
from tacit.deploy.site.schedule import proposed
from tacit.errors import BadInput, Refused, TacitError
from tacit.experiment import Experiment

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
    sites = wire.text(config.get("sites"), what="`sites` of the run config", most=MOST_SITES)
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
        raise BadInput(f"`{name}` of the run config is {wire.shown(value)}: expected true or false.")
    return value


def _seconds(config: Mapping[str, Any], name: str, usual: float) -> float:
    return wire.number(config.get(name, usual), what=f"`{name}` of the run config")


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
    registered as, where it was given a name; what it declared is well-formed (`declaration`), not necessarily true, and its
    epsilon at most what the experiment names for it. A run that is resumed goes on with `train.min_clients` of them.

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
        named = {node: known.get(node, f"node {node}") for node in fresh}
        refusals |= {node: f"{named[node]}: {text}" for node, text in heard.refusals.items()}
        for node, (head, _) in heard.answers.items():
            try:
                declared = declaration(head)
                refuse_more(declared, experiment, call.sites)
            except (BadInput, Refused) as error:
                refusals[node] = f"{named[node]} says of itself what cannot be used: {error}"
                continue
            _welcome(declared, node, nodes, facts, call.sites)
            refuse_other_name(known.get(node), declared["site"])
        tell([name for name in call.sites if name not in nodes])
    missing = [name for name in call.sites if name not in nodes]
    if missing and (not call.resume or len(nodes) < experiment.train.min_clients):
        why = "".join(f" A site refused: {text}" for text in refusals.values())
        raise TacitError(f"{len(missing)} of {len(call.sites)} sites did not join ({', '.join(missing)}).{why}")
    return nodes, facts


def declaration(head: object) -> dict[str, Any]:
    """What a site says of itself (`tacit.deploy.site.schedule`), as it may be used in a roster.

    Guarantee: exactly the parts of `DECLARED`, with texts that are short and printable, at least one example, and an epsilon
    above zero (infinity is one). Whether it is true nobody can check: a site's weight in the average follows from the size it
    declares.

    Raises: BadInput for anything else.

    >>> head = {"site": "a", "examples": 3, "shape": [8], "classes": 2, "epsilon": 1.0, "unit": "record"}
    >>> declaration(head | {"tacit": "1", "torch": "2"})["examples"]
    3
    """
    site, examples, shape, classes, epsilon, unit, mine, torch = wire.fields(
        head, *DECLARED, what="A greeting's answer"
    )
    return {
        "site": wire.text(site, what="Its name"),
        "examples": wire.whole(examples, what="Its number of examples", least=1, most=MOST_ROWS),
        "shape": [
            wire.whole(side, what="Its shape") for side in wire.several(shape, what="Its shape", most=MOST_SIDES)
        ],
        "classes": wire.whole(classes, what="Its number of classes"),
        "epsilon": wire.number(epsilon, what="Its epsilon", infinite=True),
        "unit": wire.text(unit, what="Its unit"),
        "tacit": wire.text(mine, what="Its version"),
        "torch": wire.text(torch, what="Its version"),
    }


def refuse_more(declared: Mapping[str, Any], experiment: Experiment, sites: Sequence[str]) -> None:
    """Refuses a site's epsilon above the one that all agree to: what it declares is what it weighs. Raises Refused."""
    most = proposed(experiment, declared["site"]) if declared["site"] in sites else math.inf
    if declared["epsilon"] > most:
        raise Refused(f"epsilon {declared['epsilon']:g}, where the experiment names {most:g} for it")


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


# Agreeing with the sites on a run, at its beginning and with those that come, or come back, while it goes on.

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
