"""What a site and the server agreed on when a run began. Whatever the server asks later is held against it."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dp_accounting import DpEvent

from tacit import wire
from tacit.deploy.site import layout, replies
from tacit.errors import BadInput, Refusal, Refused
from tacit.experiment import Experiment
from tacit.experiment.extras import RANGES
from tacit.privacy.accounting import price
from tacit.privacy.ledger.filter import NOTHING_ASKED
from tacit.privacy.queries.ranges import Range, asked_ranges


@dataclass(frozen=True)
class Terms:
    """What one round asks of a site.

    `event` is the mechanism of one release as the accountant prices it, noise included, in the ledger's text; empty where nothing
    is promised. `epsilon` is what the whole run may cost the site, `parameters` the length of what trains as one vector, `frozen`
    the hash of what of the model does not train (`tacit.training.flat`), which never travels; `asked` has the queries that the site
    answers beside its rounds, each once, with the price of each, as JSON; empty where there are none. Server and site each compute
    their own, from the experiment and the roster, and compare.
    """

    event: str
    epsilon: float
    rounds: int
    parameters: int
    frozen: str = ""
    asked: str = ""

    @property
    def queries(self) -> dict[str, str]:
        """The price of every query that was agreed, by its name."""
        return json.loads(self.asked) if self.asked else {}


@dataclass(frozen=True)
class Agreement:
    """One run as the site accepted it: its name, the experiment's TOML text, the roster's record, and the site's terms."""

    run: str
    experiment: str
    roster: dict[str, Any]
    terms: Terms


def terms_of(
    event: DpEvent | None,
    *,
    epsilon: float,
    rounds: int,
    parameters: int,
    frozen: str = "",
    asked: Mapping[str, DpEvent | None] = NOTHING_ASKED,
) -> Terms:
    """The terms of a client whose round costs `event`, and its answer to each query of `asked` what stands there.

    None costs nothing and promises nothing.

    >>> terms_of(None, epsilon=1.0, rounds=3, parameters=650, asked={"evaluation": None}).queries
    {'evaluation': ''}
    """
    queries = {query: _text(asked[query]) for query in sorted(asked)}
    return Terms(_text(event), epsilon, rounds, parameters, frozen, json.dumps(queries) if queries else "")


def _text(event: DpEvent | None) -> str:
    return "" if event is None else price.to_text(event)


def refuse_other(asked: Terms, agreed: Terms) -> None:
    """Refuses terms that are not the agreed ones to the letter, less of anything included.

    Raises: Refused, naming the first difference: a larger epsilon, rounds, parameters, the frozen part, queries, noise, a smaller
    epsilon.

    >>> refuse_other(Terms("", 1.0, 30, 650), Terms("", 1.0, 3, 650))
    Traceback (most recent call last):
    tacit.errors.Refused: The server asks for 30 rounds; 3 were agreed.
    """
    if asked.epsilon > agreed.epsilon:
        raise Refused(f"The server asks for epsilon {asked.epsilon:g}; the site allows {agreed.epsilon:g}.")
    if asked.rounds != agreed.rounds:
        raise Refused(f"The server asks for {asked.rounds} rounds; {agreed.rounds} were agreed.")
    if asked.parameters != agreed.parameters:
        raise Refused(f"The server asks for a model of {asked.parameters} parameters; {agreed.parameters} were agreed.")
    if asked.frozen != agreed.frozen:
        raise Refused(
            f"The frozen part of the server's model (hash {asked.frozen or 'of nothing'}) is not that of the model which this site"
            f" builds ({agreed.frozen or 'of nothing'}): give both the same file, factory and seed."
        )
    if asked.asked != agreed.asked:
        raise Refused(
            f"The server asks beside training for {asked.asked or 'nothing'}; {agreed.asked or 'nothing'} was agreed."
        )
    if asked.event != agreed.event:
        less = smallest_noise(asked.event) < smallest_noise(agreed.event)
        raise Refused(
            f"The server asks for {'less' if less else 'other'} noise ({asked.event}) than agreed ({agreed.event})."
        )
    if asked != agreed:
        raise Refused(f"The server asks for epsilon {asked.epsilon:g}; {agreed.epsilon:g} was agreed.")


def smallest_noise(event: str) -> float:
    """The smallest noise multiplier in an event's text; 0 where it names none. For the words of a refusal, not for a price.

    >>> smallest_noise('{"event": "gaussian", "noise_multiplier": 1.5}'), smallest_noise("")
    (1.5, 0.0)
    """
    return min(map(float, re.findall(r'"noise_multiplier": ([0-9.eE+-]+)', event)), default=0.0)


def refuse_changed(folder: Path, run: str, experiment: str, roster: dict[str, Any]) -> None:
    """Refuses a run that comes back with another experiment or other sites than it began with; a new run passes.

    Raises: Refused; BadInput where the agreement on disk is damaged.
    """
    known = read(folder, run)
    if known is not None and (known.experiment, known.roster) != (experiment, roster):
        raise Refused("The server came back with another experiment or other sites than this run began with.")


def write(folder: Path, agreement: Agreement) -> None:
    """Puts an agreement on disk; one that stands already is left as it is, and must have the same terms.

    Guarantee: an agreement is written once, and has reached the disk on return; no later question can change it.

    Assumes: `refuse_changed` has held experiment and roster against the one that stands.

    Raises: Refused where its terms are others; BadInput where it is damaged; OSError where the disk does not take it.
    """
    known = read(folder, agreement.run)
    if known is not None:
        refuse_other(agreement.terms, known.terms)
        return
    path = replies.make_folder(layout.run_folder(folder, agreement.run)) / layout.AGREEMENT
    replies.write(path, json.dumps(asdict(agreement), indent=1).encode())


def write_promise(folder: Path, run: str, text: str) -> str:
    """Puts what the site was promised, in words, beside the agreement, and returns it.

    Assumes: the agreement was written, which makes the folder.
    """
    replies.write(layout.run_folder(folder, run) / layout.PROMISE, f"{text}\n".encode())
    return text


def read(folder: Path, run: str) -> Agreement | None:
    """The agreement on a run, or None where there is none.

    Raises: Refused for what is no run's name; BadInput for a file that is damaged, since without it nothing can be held
    against what the server asks.
    """
    path = layout.run_folder(folder, run) / layout.AGREEMENT
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text("utf-8"))
        return Agreement(record["run"], record["experiment"], record["roster"], Terms(**record["terms"]))
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{path} is damaged ({type(error).__name__}): restore it, or take no part in this run."
        ) from None


def refuse_many(folder: Path, run: str, *, most: int) -> None:
    """Refuses a new run where the site has agreed to `most` already; a run that is known passes. Raises: Refused."""
    if len(layout.runs(folder)) >= most and read(folder, run) is None:
        raise Refused(f"The site has agreed to {most} runs, and its budget.toml allows no more (most_runs).")


# The ranges of a run's private columns at a site: found from every site's noised counts, sent once, and bound before
# any training.

MOST_COLUMNS = 20_000
MOST_NAME = 500
OTHERS = "The server gives other ranges for the private columns than this run has at this site: one run reads rows in one way."


def ranges_from(record: object) -> dict[str, Range]:
    """The ranges of a record from outside, as {column: [low, high]}; whether they may be those of a run is `bind`'s question.

    Raises: BadInput unless every name is a short printable text and every range two finite numbers, the first below the second.

    >>> ranges_from({"chol": [0, 512.0]})
    {'chol': (0.0, 512.0)}
    """
    if not isinstance(record, dict) or not 0 < len(record) <= MOST_COLUMNS:
        raise BadInput(f"The ranges are not those of 1 to {MOST_COLUMNS} columns.")
    return {wire.text(name, what="A column's name", most=MOST_NAME): _range(ends) for name, ends in record.items()}


def record_of(ranges: Mapping[str, Range]) -> dict[str, list[float]]:
    """Plain values for the wire and for the disk, which `ranges_from` reads back."""
    return {name: list(ends) for name, ends in sorted(ranges.items())}


def bind(site: Path, agreed: Agreement, experiment: Experiment, ranges: Mapping[str, Range]) -> bool:
    """Makes the ranges the run's own at this site; whether it is so for the first time.

    Guarantee: on return they have reached the disk; they are of the private columns and of no others, each from the beginning of a
    public bin to the end of one. No row decides whether they are taken. Assumes: the agreement is on disk.

    Raises: Refused for ranges that no answers to the query lead to, for others than those that are bound, and for a run without
    private columns; OSError.
    """
    columns = experiment.data.options().get("columns")
    named = [(str(name), 1) for name in columns] if isinstance(columns, list | tuple) else []
    query = asked_ranges(experiment.data.options(), named)
    if query is None:
        raise Refused("The server gives ranges, and this run asks for none.")
    try:
        query.refuse_impossible(ranges)
    except BadInput as error:
        raise Refused(f"The server's ranges cannot be used: {error}.") from None
    if replies.create(_file(site, agreed.run), json.dumps(record_of(ranges)).encode()):
        return True
    if bound(site, agreed.run) != dict(ranges):
        raise Refused(OTHERS)
    return False


def bound(site: Path, run: str) -> dict[str, Range]:
    """The ranges that are bound for a run; none where there are none yet. Raises: BadInput where the file is damaged."""
    path = _file(site, run)
    if not path.exists():
        return {}
    try:
        return ranges_from(wire.json_object(path.read_text("utf-8"), what="It", brackets=MOST_COLUMNS + 1, finite=True))
    except (BadInput, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is damaged ({error}): restore it, or take no part in this run.") from None


def refuse_unbound(site: Path, agreed: Agreement, *, query: str = "") -> None:
    """Refuses whatever reads encoded rows while their ranges are not known, and to be asked for them once they are.

    Raises: Refused.
    """
    if RANGES not in agreed.terms.queries:
        return
    known = bool(bound(site, agreed.run))
    if query == RANGES and known:
        raise Refused("The ranges of this run are known already, so that nothing is counted for them any more.")
    if query != RANGES and not known:
        raise Refused(
            "The ranges of the private columns are not known yet: the server must send them first.", Refusal.LATER
        )


def _file(site: Path, run: str) -> Path:
    return layout.run_folder(site, run) / layout.RANGES


def _range(ends: object) -> Range:
    found = [wire.real(end, what="An end of a range") for end in wire.several(ends, what="A range", most=2)]
    if len(found) < 2 or not found[0] < found[1]:
        raise BadInput("A range is not two numbers, the first below the second.")
    return found[0], found[1]
