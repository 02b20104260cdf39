"""What a server may ask a site, as four frozen values: nothing behind this file meets a crafted type, size or depth."""

from dataclasses import dataclass
from typing import Any

from tacit import parse
from tacit.errors import BadInput, Refused
from tacit.federation.site.agreement import RUN_NAME, Terms
from tacit.federation.site.roster import Roster

MOST_EXPERIMENT = 1 << 17  # characters of an experiment's text
MOST_EVENT = 2_000
MOST_ROUNDS = 10**6


@dataclass(frozen=True)
class Hello:
    """Who is there, for this experiment?"""

    experiment: str


@dataclass(frozen=True)
class Agree:
    """Will you take part in this run, with these sites, on these terms?"""

    run: str
    experiment: str
    roster: Roster
    terms: Terms
    releases: int | None


@dataclass(frozen=True)
class Train:
    """Train one round from the parameters that came along."""

    run: str
    round: int
    terms: Terms


@dataclass(frozen=True)
class Open:
    """Give your part of opening the sum of the reports that came along."""

    run: str
    round: int
    group: str


Asked = Hello | Agree | Train | Open


def question(ask: object) -> Asked:
    """The question that a message asks. Raises Refused, in words that quote next to nothing of it."""
    kind = ask.get("kind") if isinstance(ask, dict) else None
    if not isinstance(ask, dict) or type(kind) is not str or kind not in KINDS:
        raise Refused(f"The server asks for {parse.shown(kind)}, which is nothing that a site does.")
    try:
        return KINDS[kind]({key: value for key, value in ask.items() if key != "kind"})
    except BadInput as error:
        raise Refused(f"The server's question cannot be read: {error}") from None


def facts(ask: object) -> dict[str, Any]:
    """What a log line says of a question before it was read: its kind, run and round, where they are plain."""
    found: dict[str, Any] = {}
    if isinstance(ask, dict):
        if type(ask.get("kind")) is str and ask["kind"] in KINDS:
            found["kind"] = ask["kind"]
        if type(ask.get("run")) is str and RUN_NAME.fullmatch(ask["run"]):
            found["run"] = ask["run"]
        if type(ask.get("round")) is int and 0 <= ask["round"] <= MOST_ROUNDS:
            found["round"] = ask["round"]
    return found


def _hello(ask: dict[str, Any]) -> Hello:
    (text,) = parse.fields(ask, "experiment", what="A greeting")
    return Hello(_experiment(text))


def _agree(ask: dict[str, Any]) -> Agree:
    releases = ask.pop("releases", None)
    run, text, roster, terms = parse.fields(ask, "run", "experiment", "roster", "terms", what="A proposal")
    if releases is not None:
        releases = parse.whole(releases, what="The number of releases", most=MOST_ROUNDS)
    return Agree(_run(run), _experiment(text), Roster.of(roster), terms_from(terms), releases)


def _train(ask: dict[str, Any]) -> Train:
    run, round, terms = parse.fields(ask, "run", "round", "terms", what="A question")
    return Train(_run(run), _round(round), terms_from(terms))


def _open(ask: dict[str, Any]) -> Open:
    run, round, group = parse.fields(ask, "run", "round", "group", what="A question")
    return Open(_run(run), _round(round), parse.text(group, what="The group"))


KINDS = {"hello": _hello, "agree": _agree, "train": _train, "open": _open}


def terms_from(record: object) -> Terms:
    """The terms of a record from outside. Raises BadInput."""
    names = ("event", "epsilon", "rounds", "parameters")
    event, epsilon, rounds, parameters = parse.fields(record, *names, what="The terms")
    return Terms(
        parse.text(event, what="The price of a round", most=MOST_EVENT),
        parse.number(epsilon, what="The terms' epsilon", infinite=True),
        parse.whole(rounds, what="The terms' rounds", least=1, most=MOST_ROUNDS),
        parse.whole(parameters, what="The terms' parameters"),
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
        raise BadInput(f"The round is {parse.shown(value)}, not a whole number.")
    if not 0 <= value <= MOST_ROUNDS:
        raise BadInput(
            f"The server asks for round {parse.shown(value)}, and rounds are counted from 0 to {MOST_ROUNDS}."
        )
    return value
