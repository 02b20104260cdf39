"""What a server may ask a site, as frozen values: nothing behind this file meets a crafted type, size or depth.

A request is a JSON object with a `kind` and exactly the parts of that kind; texts are short and printable, numbers finite and in
range, runs are named as folders may be. What it says may still be refused."""

import json
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, get_args

import numpy as np
import torch

from tacit import wire
from tacit.data.population import Population
from tacit.deploy.site.layout import RUN_NAME
from tacit.errors import BadInput, Refused
from tacit.privacy.queries.ranges import Range
from tacit.types import Message, Unit
from tacit.wire import all_finite, pack, unpack

MOST_EXPERIMENT = 1 << 17  # characters of an experiment's text
MOST_EVENT = 2_000
MOST_HASH = 64
MOST_ROUNDS = 10**6
MOST_SITES = 100_000
MOST_ROWS = 10**9  # of one site
MOST_COLUMNS = 20_000
MOST_NAME = 500  # characters of a column's name


@dataclass(frozen=True)
class Terms:
    """What one round asks of a site; server and site each compute their own, from the experiment and the roster, and compare."""

    event: str  # the price of one release in the ledger's text, empty where nothing is promised
    epsilon: float  # what the run may cost
    rounds: int
    parameters: int  # the length of what trains
    frozen: str = ""  # the hash of what does not train and never travels
    asked: str = ""  # the price of each query that is answered beside the rounds, as JSON

    @property
    def queries(self) -> dict[str, str]:
        return json.loads(self.asked) if self.asked else {}

    @classmethod
    def of(cls, record: object) -> "Terms":
        """The terms of a record from outside. Raises: BadInput."""
        names = ("event", "epsilon", "rounds", "parameters", "frozen", "asked")
        event, epsilon, rounds, parameters, frozen, asked = wire.fields(record, *names, what="The terms")
        return cls(
            wire.text(event, what="The price of a round", most=MOST_EVENT),
            wire.number(epsilon, what="The terms' epsilon", infinite=True),
            wire.whole(rounds, what="The terms' rounds", least=1, most=MOST_ROUNDS),
            wire.whole(parameters, what="The terms' parameters"),
            wire.text(frozen, what="The hash of what does not train", most=MOST_HASH),
            wire.text(asked, what="The price of the queries", most=MOST_EVENT),
        )


@dataclass(frozen=True)
class Roster:
    """Names, sizes and epsilons of a run's sites in one order, which numbers the clients; one delta and one unit hold for all.

    It is public among server and sites: noise, weights and prices are computed from it everywhere.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    epsilons: tuple[float, ...]
    delta: float
    unit: Unit = "record"

    def population(self, shape: tuple[int, ...]) -> Population:
        """Clients without their rows: one zero of a row's `shape` stands for all of them, so no memory is taken."""
        offsets = np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)
        rows = int(offsets[-1])
        x = torch.zeros((1,) * (len(shape) + 1)).expand(rows, *shape)
        y = torch.zeros(1, dtype=torch.int64).expand(rows)
        return Population(x, y, offsets, self.names, np.array(self.epsilons), self.delta, self.unit)

    def record(self) -> dict[str, Any]:
        """Plain values for the wire and for the disk, which `of` reads back."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def of(cls, record: object) -> "Roster":
        """The roster of a record from outside: each site named once, sizes and epsilons above zero. Raises: BadInput."""
        parts = wire.fields(record, "names", "sizes", "epsilons", "delta", "unit", what="The list of sites")
        lists = [wire.several(part, what="A column of the list of sites", most=MOST_SITES) for part in parts[:3]]
        if not lists[0] or len({len(column) for column in lists}) > 1:
            raise BadInput("The list of sites is empty, or does not have one size and one epsilon for each name.")
        names = tuple(wire.text(name, what="A site's name") for name in lists[0])
        if len(set(names)) < len(names):
            raise BadInput("The list of sites names one of them twice.")
        sizes = tuple(wire.whole(size, what="A site's size", least=1, most=MOST_ROWS) for size in lists[1])
        epsilons = tuple(wire.number(value, what="A site's epsilon", infinite=True) for value in lists[2])
        delta, unit = wire.number(parts[3], what="The list's delta"), parts[4]
        if unit not in get_args(Unit) or delta >= 1:
            raise BadInput("The list of sites has no unit (record, person or client), or a delta that is not below 1.")
        return cls(names, sizes, epsilons, delta, unit)


@dataclass(frozen=True)
class Hello:
    """Who is there, for this experiment? The answer is free."""

    experiment: str


@dataclass(frozen=True)
class Agree:
    """Will you take part in this run, with these sites, on these terms?"""

    run: str
    experiment: str
    roster: Roster
    terms: Terms
    releases: int | None = (
        None  # models that a run of central DP releases at most: more than its rounds where some are repeated
    )
    ranges: dict[str, Range] | None = None  # of the run's private columns, once they are known


@dataclass(frozen=True)
class Train:
    """Train one round from the parameters that came along: the one question that is paid for."""

    run: str
    round: int


@dataclass(frozen=True)
class Open:
    """Give your part of opening the sum of the reports that came along, which are all of one group of the run."""

    run: str
    round: int
    group: str


@dataclass(frozen=True)
class Prepare:
    """Give your setup for a round under masks: it rides on the report before, where there was one. The answer is free."""

    run: str
    round: int
    group: str


@dataclass(frozen=True)
class Sign:
    """Sign the list of those who reported, which came along."""

    run: str
    round: int
    group: str


@dataclass(frozen=True)
class Unmask:
    """Give your shares of the masks in the sum of the list that came along, with its signatures."""

    run: str
    round: int
    group: str


@dataclass(frozen=True)
class Count:
    """Answer an agreed query, about the model that came along where one is judged: noised counts of the site's rows, once."""

    run: str
    query: str


@dataclass(frozen=True)
class Keep:
    """Keep the model that came along: the run has ended."""

    run: str


Request = Hello | Agree | Train | Open | Prepare | Sign | Unmask | Count | Keep
KINDS: dict[str, type[Request]] = {kind.__name__.lower(): kind for kind in get_args(Request)}


def parse(ask: object) -> Request:
    """The request that a message makes, read in linear time; nothing of it is imported, opened or built. Raises: Refused."""
    name = ask.get("kind") if isinstance(ask, dict) else None
    if not isinstance(ask, dict) or type(name) is not str or name not in KINDS:
        raise Refused(f"The server asks for {wire.shown(name)}, which is nothing that a site does.")
    kind = KINDS[name]
    optional = {part.name for part in fields(kind) if part.default is not MISSING and ask.get(part.name) is None}
    parts = [part.name for part in fields(kind) if part.name not in optional]
    try:
        said = {key: value for key, value in ask.items() if key != "kind" and key not in optional}
        return kind(
            **{part: READ[part](value) for part, value in zip(parts, wire.fields(said, *parts, what="It"), strict=True)}
        )
    except BadInput as error:
        raise Refused(f"The server's question cannot be read: {error}") from None


def facts(ask: object) -> dict[str, Any]:
    """What a log line says of a request before it was parsed: its kind, run and round, where they are plain; nothing is raised."""
    said = {part: ask.get(part) for part in ("kind", "run", "round")} if isinstance(ask, dict) else {}
    plain = {
        "kind": lambda kind: type(kind) is str and kind in KINDS,
        "run": lambda run: type(run) is str and RUN_NAME.fullmatch(run),
        "round": lambda round: type(round) is int and 0 <= round <= MOST_ROUNDS,
    }
    return {part: value for part, value in said.items() if plain[part](value)}


def _text_of(value: object) -> str:
    if type(value) is not str or len(value) > MOST_EXPERIMENT:
        raise BadInput(f"The experiment is not a text of at most {MOST_EXPERIMENT} characters.")
    return value


def _run(value: object) -> str:
    if type(value) is not str or not RUN_NAME.fullmatch(value):
        raise BadInput("The server named a run that is no run's name.")
    return value


def ranges_of(record: object) -> dict[str, Range]:
    """The ranges of a record from outside: short printable names, and two finite numbers for each. Raises: BadInput."""
    if not isinstance(record, dict) or not 0 < len(record) <= MOST_COLUMNS:
        raise BadInput(f"The ranges are not those of 1 to {MOST_COLUMNS} columns.")
    return {wire.text(name, what="A column's name", most=MOST_NAME): _range(ends) for name, ends in record.items()}


def _range(ends: object) -> Range:
    found = [wire.real(end, what="An end of a range") for end in wire.several(ends, what="A range", most=2)]
    if len(found) < 2 or not found[0] < found[1]:
        raise BadInput("A range is not two numbers, the first below the second.")
    return found[0], found[1]


def sent(params: torch.Tensor) -> bytes:
    """A broadcast of parameters alone."""
    return pack(Message("server", {"params": params}))


def read_broadcast(body: bytes, parameters: int) -> Message:
    """The message of a round's request, whose `params` are one finite float32 vector of the agreed length. Raises: Refused."""
    try:
        received = unpack(body)
    except BadInput as error:
        raise Refused(f"The server's parameters cannot be read: {error}") from None
    params = received.tensors.get("params")
    if params is None or params.shape != (parameters,) or params.dtype != torch.float32:
        found = "none" if params is None else f"{list(params.shape)} of {params.dtype}"
        raise Refused(f"The server sent other parameters ({found}) than the {parameters} that were agreed.")
    if not all_finite(params):
        raise Refused("The server sent parameters that are not finite.")
    return received


READ = {  # how each part of a request is read; whatever it is not raises BadInput
    "run": _run,
    "experiment": _text_of,
    "roster": Roster.of,
    "terms": Terms.of,
    "round": lambda round: wire.whole(round, what="The round", most=MOST_ROUNDS),
    "releases": lambda releases: wire.whole(releases, what="The number of releases", most=MOST_ROUNDS),
    "ranges": ranges_of,
    "group": lambda group: wire.text(group, what="The group"),
    "query": lambda query: wire.text(query, what="The query"),
}
