"""What a site and the server agreed on when a run began. Whatever the server asks later is held against it."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tacit import store, wire
from tacit.deploy.site import layout
from tacit.deploy.site.requests import MOST_COLUMNS, Terms, ranges_of
from tacit.errors import BadInput, Refusal, Refused
from tacit.experiment import Experiment
from tacit.experiment.extras import RANGES
from tacit.privacy.queries.ranges import Range, asked_ranges


@dataclass(frozen=True)
class Agreement:
    """One run as the site accepted it: its name, the experiment's TOML text, the roster's record, and the site's terms."""

    run: str
    experiment: str
    roster: dict[str, Any]
    terms: Terms


def refuse_other(asked: Terms, agreed: Terms) -> None:
    """Refuses terms that are not the agreed ones to the letter, less of anything included. Raises: Refused, naming a difference.

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


def write(site: Path, agreement: Agreement, promise: str) -> None:
    """Puts an agreement on disk, and what the site was promised in words; an agreement that stands is never changed.

    Raises: Refused where the one that stands has other terms; BadInput where it is damaged; OSError.
    """
    known, folder = read(site, agreement.run), layout.run_folder(site, agreement.run)
    if known is not None:
        refuse_other(agreement.terms, known.terms)
    else:
        path = layout.make_folder(folder) / layout.AGREEMENT
        layout.write(path, json.dumps(asdict(agreement), indent=1).encode())
    layout.write(folder / layout.PROMISE, f"{promise}\n".encode())


def read(site: Path, run: str) -> Agreement | None:
    """The agreement on a run, or None where there is none. Raises: Refused for what is no run's name; BadInput for a
    damaged file.
    """
    path = layout.run_folder(site, run) / layout.AGREEMENT
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text("utf-8"))
        return Agreement(record["run"], record["experiment"], record["roster"], Terms(**record["terms"]))
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{path} is damaged ({type(error).__name__}): restore it, or take no part in this run."
        ) from None


def standing(site: Path, run: str) -> Agreement:
    """The agreement on a run. Raises: Refused where there is none; as `read`."""
    agreed = read(site, run)
    if agreed is None:
        raise Refused("There is no agreement on this run: the server must ask for one first.", Refusal.LATER)
    return agreed


# The ranges of a run's private columns at a site: found from every site's noised counts, sent once, and bound before training.


def record_of(ranges: Mapping[str, Range]) -> dict[str, list[float]]:
    """Plain values for the wire and for the disk, which `requests.ranges_of` reads back."""
    return {name: list(ends) for name, ends in sorted(ranges.items())}


def bind_ranges(site: Path, agreed: Agreement, experiment: Experiment, ranges: Mapping[str, Range]) -> bool:
    """Makes the ranges the run's own at this site; whether it is so for the first time.

    Guarantee: on return they have reached the disk; they are of the private columns and of no others, each from the beginning of a
    public bin to the end of one. No row decides whether they are taken. Raises: Refused, also for others than those that are bound.
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
    if store.create(_ranges_file(site, agreed.run), json.dumps(record_of(ranges)).encode()):
        return True
    if bound_ranges(site, agreed.run) != dict(ranges):
        raise Refused(
            "The server gives other ranges for the private columns than this run has at this site: one run reads rows in one way."
        )
    return False


def bound_ranges(site: Path, run: str) -> dict[str, Range]:
    """The ranges that are bound for a run; none where there are none yet. Raises: BadInput where the file is damaged."""
    path = _ranges_file(site, run)
    if not path.exists():
        return {}
    try:
        return ranges_of(wire.json_object(path.read_text("utf-8"), what="It", brackets=MOST_COLUMNS + 1, finite=True))
    except (BadInput, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is damaged ({error}): restore it, or take no part in this run.") from None


def refuse_unbound(site: Path, agreed: Agreement, *, query: str = "") -> None:
    """Refuses whatever reads encoded rows while their ranges are not known, and a query for them afterwards. Raises: Refused."""
    if RANGES not in agreed.terms.queries:
        return
    known = bool(bound_ranges(site, agreed.run))
    if query == RANGES and known:
        raise Refused("The ranges of this run are known already, so that nothing is counted for them any more.")
    if query != RANGES and not known:
        raise Refused(
            "The ranges of the private columns are not known yet: the server must send them first.", Refusal.LATER
        )


def _ranges_file(site: Path, run: str) -> Path:
    return layout.run_folder(site, run) / layout.RANGES
