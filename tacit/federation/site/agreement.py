"""What a site and the server agreed on when a run began. Whatever the server asks later is held against it."""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dp_accounting import DpEvent

from tacit.errors import BadInput, Refused
from tacit.federation.site import store
from tacit.privacy.accounting import price

PROMISE = "promise.txt"
RUN_NAME = re.compile(r"[0-9a-f]{32}")  # it becomes a folder's name


@dataclass(frozen=True)
class Terms:
    """What one round asks of a site: the noise and its price (`event`), and the frame it stands in."""

    event: str
    epsilon: float
    rounds: int
    parameters: int


@dataclass(frozen=True)
class Agreement:
    """One run as the site accepted it."""

    run: str
    experiment: str
    roster: dict[str, Any]
    terms: Terms


def terms_of(event: DpEvent | None, *, epsilon: float, rounds: int, parameters: int) -> Terms:
    """The terms of a client whose round costs `event`; None costs nothing and promises nothing."""
    return Terms("" if event is None else price.to_text(event), epsilon, rounds, parameters)


def refuse_other(asked: Terms, agreed: Terms) -> None:
    """Refuses terms that are not the agreed ones, naming the first that differs. Raises Refused."""
    if asked.epsilon > agreed.epsilon:
        raise Refused(f"The server asks for epsilon {asked.epsilon:g}; the site allows {agreed.epsilon:g}.")
    if asked.rounds != agreed.rounds:
        raise Refused(f"The server asks for {asked.rounds} rounds; {agreed.rounds} were agreed.")
    if asked.parameters != agreed.parameters:
        raise Refused(f"The server asks for a model of {asked.parameters} parameters; {agreed.parameters} were agreed.")
    if asked.event != agreed.event:
        less = noise(asked.event) < noise(agreed.event)
        raise Refused(
            f"The server asks for {'less' if less else 'other'} noise ({asked.event}) than agreed ({agreed.event})."
        )
    if asked != agreed:
        raise Refused(f"The server asks for epsilon {asked.epsilon:g}; {agreed.epsilon:g} was agreed.")


def noise(event: str) -> float:
    """The smallest noise multiplier in an event's text; no event is no noise."""
    return min(map(float, re.findall(r'"noise_multiplier": ([0-9.eE+-]+)', event)), default=0.0)


def place(folder: Path, run: str) -> Path:
    """The folder of one run at a site. Raises Refused for a name that is none."""
    if not RUN_NAME.fullmatch(run):
        raise Refused("The server named a run that is no run's name.")
    return folder / "runs" / run


def refuse_changed(folder: Path, run: str, experiment: str, roster: dict[str, Any]) -> None:
    """Refuses a run that comes back as another one. Raises Refused."""
    known = read(folder, run)
    if known is not None and (known.experiment, known.roster) != (experiment, roster):
        raise Refused("The server came back with another experiment or other sites than this run began with.")


def write(folder: Path, agreement: Agreement) -> None:
    """Puts an agreement on disk; one that stands already must be the same. Raises Refused."""
    known = read(folder, agreement.run)
    if known is not None:
        refuse_other(agreement.terms, known.terms)
        return
    path = store.make_folder(place(folder, agreement.run))
    store.write(path / "agreement.json", json.dumps(asdict(agreement), indent=1).encode())


def write_promise(folder: Path, run: str, text: str) -> str:
    """Keeps what the site was promised, in words, beside the agreement, and returns it."""
    store.write(place(folder, run) / PROMISE, f"{text}\n".encode())
    return text


def read(folder: Path, run: str) -> Agreement | None:
    """The agreement on a run, or None."""
    path = place(folder, run) / "agreement.json"
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text("utf-8"))
        return Agreement(record["run"], record["experiment"], record["roster"], Terms(**record["terms"]))
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{path} is damaged ({type(error).__name__}): restore it, or take no part in this run."
        ) from None


def runs(folder: Path) -> list[str]:
    """The runs that the site has agreed to."""
    return sorted(path.parent.name for path in (folder / "runs").glob("*/agreement.json"))


def refuse_many(folder: Path, run: str, *, most: int) -> None:
    """Refuses a new run where as many as the site allows have left a folder. Raises Refused."""
    if len(runs(folder)) >= most and read(folder, run) is None:
        raise Refused(f"The site has agreed to {most} runs, and its budget.toml allows no more (most_runs).")
