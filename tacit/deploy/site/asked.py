"""What a server may ask a site, as six frozen values: nothing behind this file meets a crafted type, size or depth.

A question is a JSON object with a `kind` and exactly the parts of that kind. What it says may still be refused; what it is may
not surprise anybody: texts are short and printable, numbers finite and in range, runs are named as folders may be."""

from dataclasses import dataclass
from typing import Any

from tacit import wire
from tacit.deploy.site.agreement import Terms, ranges_from
from tacit.deploy.site.layout import RUN_NAME
from tacit.deploy.site.limits import Roster
from tacit.errors import BadInput, Refused
from tacit.privacy.queries.ranges import Range

MOST_EXPERIMENT = 1 << 17  # characters of an experiment's text
MOST_EVENT = 2_000
MOST_HASH = 64
MOST_ROUNDS = 10**6


@dataclass(frozen=True)
class Hello:
    """Who is there, for this experiment? The answer is free, so only an experiment that was accepted beforehand gets one."""

    experiment: str


@dataclass(frozen=True)
class Agree:
    """Will you take part in this run, with these sites, on these terms?

    `releases` is how many models the run will have released at most, where everybody pays for all of them (central DP): more
    than the agreed rounds where a server had to repeat some. `ranges` are those of the run's private columns, once they are known.
    """

    run: str
    experiment: str
    roster: Roster
    terms: Terms
    releases: int | None
    ranges: dict[str, Range] | None = None


@dataclass(frozen=True)
class Train:
    """Train one round from the parameters that came along: the one question that is paid for."""

    run: str
    round: int
    terms: Terms


@dataclass(frozen=True)
class Open:
    """Give your part of opening the sum of the reports that came along, which are all of one group of the run."""

    run: str
    round: int
    group: str


@dataclass(frozen=True)
class Count:
    """Answer an agreed query, about the model that came along where one is judged: noised counts of the site's rows, once for ever.

    What is counted, of which rows and with which noise, is not in the question: the site has it from its agreement.
    """

    run: str
    query: str


@dataclass(frozen=True)
class Keep:
    """Keep the model that came along: the run has ended."""

    run: str


Asked = Hello | Agree | Train | Open | Count | Keep


def question(ask: object) -> Asked:
    """The question that a message asks.

    Guarantee: the time it takes is linear in the size of `ask`, and nothing of it is imported, opened or built.

    Raises: Refused for anything that is none of the six, with a part too many, too few, or of another type or size; its words
    repeat at most a few dozen characters of what was sent.

    >>> question({"kind": "open", "run": "0" * 32, "round": 3, "group": "public"}).round
    3
    """
    kind = ask.get("kind") if isinstance(ask, dict) else None
    if not isinstance(ask, dict) or type(kind) is not str or kind not in KINDS:
        raise Refused(f"The server asks for {wire.shown(kind)}, which is nothing that a site does.")
    try:
        return KINDS[kind]({key: value for key, value in ask.items() if key != "kind"})
    except BadInput as error:
        raise Refused(f"The server's question cannot be read: {error}") from None


def facts(ask: object) -> dict[str, Any]:
    """What a log line says of a question before it was read: its kind, run and round, where they are plain; nothing is raised.

    >>> facts({"kind": "train", "round": -1, "run": "../.."})
    {'kind': 'train'}
    """
    plain: dict[str, Any] = {}
    if isinstance(ask, dict):
        if type(ask.get("kind")) is str and ask["kind"] in KINDS:
            plain["kind"] = ask["kind"]
        if type(ask.get("run")) is str and RUN_NAME.fullmatch(ask["run"]):
            plain["run"] = ask["run"]
        if type(ask.get("round")) is int and 0 <= ask["round"] <= MOST_ROUNDS:
            plain["round"] = ask["round"]
    return plain


def _hello(ask: dict[str, Any]) -> Hello:
    (text,) = wire.fields(ask, "experiment", what="A greeting")
    return Hello(_experiment(text))


def _agree(ask: dict[str, Any]) -> Agree:
    releases, ranges = ask.pop("releases", None), ask.pop("ranges", None)
    run, text, roster, terms = wire.fields(ask, "run", "experiment", "roster", "terms", what="A proposal")
    if releases is not None:
        releases = wire.whole(releases, what="The number of releases", most=MOST_ROUNDS)
    found = None if ranges is None else ranges_from(ranges)
    return Agree(_run(run), _experiment(text), Roster.of(roster), terms_from(terms), releases, found)


def _train(ask: dict[str, Any]) -> Train:
    run, round, terms = wire.fields(ask, "run", "round", "terms", what="A question")
    return Train(_run(run), _round(round), terms_from(terms))


def _open(ask: dict[str, Any]) -> Open:
    run, round, group = wire.fields(ask, "run", "round", "group", what="A question")
    return Open(_run(run), _round(round), wire.text(group, what="The group"))


def _count(ask: dict[str, Any]) -> Count:
    run, query = wire.fields(ask, "run", "query", what="A question")
    return Count(_run(run), wire.text(query, what="The query"))


def _keep(ask: dict[str, Any]) -> Keep:
    (run,) = wire.fields(ask, "run", what="A last word")
    return Keep(_run(run))


KINDS = {"hello": _hello, "agree": _agree, "train": _train, "open": _open, "count": _count, "keep": _keep}


def terms_from(record: object) -> Terms:
    """The terms of a record from outside; whether they are the agreed ones is another question (`agreement.refuse_other`).

    Raises: BadInput unless it has exactly the six parts: a text of at most `MOST_EVENT` characters, an epsilon above zero
    (infinity is one), rounds from 1 to `MOST_ROUNDS`, a number of parameters, a hash of at most `MOST_HASH` characters, and a text
    for the queries, which is compared and never read.
    """
    names = ("event", "epsilon", "rounds", "parameters", "frozen", "asked")
    event, epsilon, rounds, parameters, frozen, asked = wire.fields(record, *names, what="The terms")
    return Terms(
        wire.text(event, what="The price of a round", most=MOST_EVENT),
        wire.number(epsilon, what="The terms' epsilon", infinite=True),
        wire.whole(rounds, what="The terms' rounds", least=1, most=MOST_ROUNDS),
        wire.whole(parameters, what="The terms' parameters"),
        wire.text(frozen, what="The hash of what does not train", most=MOST_HASH),
        wire.text(asked, what="The price of the queries", most=MOST_EVENT),
    )


def _experiment(value: object) -> str:
    if type(value) is not str or len(value) > MOST_EXPERIMENT:
        raise BadInput(f"The experiment is not a text of at most {MOST_EXPERIMENT} characters.")
    return value


def _run(value: object) -> str:
    if type(value) is not str or not RUN_NAME.fullmatch(value):
        raise BadInput("The server named a run that is no run's name.")
    return value


def _round(value: object) -> int:
    if type(value) is not int:
        raise BadInput(f"The round is {wire.shown(value)}, not a whole number.")
    if not 0 <= value <= MOST_ROUNDS:
        raise BadInput(
            f"The server asks for round {wire.shown(value + 1)}, and rounds are counted from 1 to {MOST_ROUNDS + 1}."
        )
    return value
