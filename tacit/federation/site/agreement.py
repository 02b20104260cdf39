"""What a site and the server agreed on when a run began. Whatever the server asks later is held against it."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dp_accounting import DpEvent

from tacit.errors import BadInput, Refused
from tacit.federation.site import layout, store
from tacit.privacy.accounting import price
from tacit.privacy.ledger.filter import NOTHING_ASKED


@dataclass(frozen=True)
class Terms:
    """What one round asks of a site.

    `event` is the mechanism of one release as the accountant prices it, noise included, in the ledger's text; empty where nothing
    is promised. `epsilon` is what the whole run may cost the site, `parameters` the length of what trains as one vector, `frozen`
    the hash of what of the model does not train (`tacit.train.frozen`), which never travels; `asked` has the queries that the site
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
    path = store.make_folder(layout.run_folder(folder, agreement.run)) / layout.AGREEMENT
    store.write(path, json.dumps(asdict(agreement), indent=1).encode())


def write_promise(folder: Path, run: str, text: str) -> str:
    """Puts what the site was promised, in words, beside the agreement, and returns it.

    Assumes: the agreement was written, which makes the folder.
    """
    store.write(layout.run_folder(folder, run) / layout.PROMISE, f"{text}\n".encode())
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
