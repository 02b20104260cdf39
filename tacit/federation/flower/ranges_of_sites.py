"""Private ranges in a deployment: asked of the sites before the first round, kept by the server, and sent back to every site."""

import json
from dataclasses import dataclass, replace

from tacit import parse
from tacit.build.parts import Parts, assemble
from tacit.engine.folder import Folder
from tacit.engine.ranges import found, query_of
from tacit.errors import BadInput, TacitError
from tacit.experiment.asking import read_with
from tacit.federation.flower.at_sites import AtSites
from tacit.federation.site.own_rows import public_rows
from tacit.federation.site.ranged import MOST_COLUMNS, ranges_from, record_of
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.queries.ranges import Range, Ranges
from tacit.privacy.wiring import Seals

FILE = "ranges.json"
MOST_NOTE = 1 << 20  # characters


@dataclass(frozen=True)
class Known:
    """The ranges of a run, and the note that its reader finds of them."""

    ranges: dict[str, Range]
    note: str


def asked_of_sites(parts: Parts) -> Ranges | None:
    """The query for the private ranges of a deployment; None where there are none. Raises BadInput where noise would hide them."""
    return query_of(parts.experiment, parts.dataset, parts.plan, parts.population)


def known(folder: Folder) -> Known | None:
    """What the run's folder has of its ranges; None where they are not known yet. Raises BadInput where the file is damaged."""
    path = folder.path / FILE
    if not path.exists():
        return None
    try:
        record = parse.json_object(path.read_text("utf-8"), what="It", brackets=MOST_COLUMNS + 2, finite=True)
        ranges, note = parse.fields(record, "ranges", "note", what="It")
        return Known(ranges_from(ranges), parse.text(note, what="Its note", most=MOST_NOTE))
    except (OSError, UnicodeDecodeError, BadInput) as error:
        raise BadInput(f"{path} is damaged ({error}): put it back, for sites take no other ranges.") from None


def learn(parts: Parts, ledger: Ledger | None, folder: Folder, query: Ranges, asking: AtSites, *, least: int) -> Known:
    """Asks the sites, and puts what their answers say into the run's folder before anybody is told.

    Guarantee: what the sites are told is on disk, and a restarted server tells them the very same. From the same counts the ranges
    are those of a simulation.

    Raises: as `AtSites`; TacitError, by name and reason, where fewer than `least` have answered.
    """
    answers = asking(parts, ledger, folder, query)
    if len(answers.counts) < least:
        why = "; ".join(f"{name}: {text}" for name, text in asking.missing.items())
        raise TacitError(
            f"{len(answers.counts)} sites answered for the ranges of private columns, and {least} are needed ({why}): bring the"
            " sites back, then go on with --resume."
        )
    ranges, note = found(parts, query, answers)
    folder.write(FILE, json.dumps({"ranges": record_of(ranges), "note": note}).encode())
    return Known(ranges, note)


def with_ranges(parts: Parts, told: Known, seals: Seals | None) -> Parts:
    """The parts as they are once the ranges are known: the public rows are read with them, and so is whatever is predicted."""
    experiment = parts.experiment
    read = experiment.model_copy(update={"data": read_with(experiment.data, told.ranges)})
    rows = public_rows(read)
    rows = replace(rows, notes=(*rows.notes, told.note))
    return assemble(experiment, rows, parts.population, elsewhere=True, seals=seals)
