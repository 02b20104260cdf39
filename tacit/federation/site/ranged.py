"""The ranges of a run's private columns at a site: found from every site's noised counts, sent once, and bound before any training.

A range decides how rows are encoded, so it is part of what the site agrees to: it is on disk, as `runs/RUN/ranges.json`, before the
first question that reads encoded rows is answered, and no other is ever taken for the run. It is public, and made of noised counts
alone, so that whatever a server sends costs no privacy; that it could be the answer to the query is checked all the same.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from tacit import parse
from tacit.errors import BadInput, Refused
from tacit.experiment import Experiment
from tacit.experiment.asking import RANGES
from tacit.federation.site import layout, store
from tacit.federation.site.agreement import Agreement
from tacit.privacy.queries.ranges import Range, asked_ranges

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
    return {parse.text(name, what="A column's name", most=MOST_NAME): _range(ends) for name, ends in record.items()}


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
    if store.create(_file(site, agreed.run), json.dumps(record_of(ranges)).encode()):
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
        return ranges_from(
            parse.json_object(path.read_text("utf-8"), what="It", brackets=MOST_COLUMNS + 1, finite=True)
        )
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
        raise Refused("The ranges of the private columns are not known yet: the server must send them first.")


def _file(site: Path, run: str) -> Path:
    return layout.run_folder(site, run) / layout.RANGES


def _range(ends: object) -> Range:
    found = [parse.real(end, what="An end of a range") for end in parse.several(ends, what="A range", most=2)]
    if len(found) < 2 or not found[0] < found[1]:
        raise BadInput("A range is not two numbers, the first below the second.")
    return found[0], found[1]
