"""What other runs have sealed in a ledger before a run is planned: noise is sized for what they have left. Nothing is written.

A run keeps in its own folder (`run.json`) what it found here when it began, so that resuming it gives the same noise.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tacit.errors import LedgerError
from tacit.privacy.ledger import reader, secret
from tacit.privacy.ledger import reader as witness
from tacit.privacy.ledger.filter import Spent
from tacit.privacy.ledger.sql import ALL, Condition, refuse_older_format, refuse_other_population, tables_of


@dataclass(frozen=True)
class Before:
    """The seals of other runs in one unit, by client; what everybody was sealed for stands under the empty name.

    >>> before = Before(1, {"": Spent(1.0, 1e-6), "north": Spent(0.5, 1e-6)})
    >>> before.of("north").epsilon, before.of("south").epsilon, before.of("").epsilon
    (1.5, 1.0, 1.5)
    """

    runs: int = 0
    sealed: Mapping[str, Spent] = field(default_factory=dict, repr=False)

    def of(self, client: str) -> Spent:
        """As `Ledger.before`: what counts for a client; of the empty name, for whoever has sealed most.

        For the empty name the largest epsilon and the largest delta are taken, which may be two clients': together they bound
        every client.
        """
        shared = self.sealed.get(ALL, Spent())
        if client != ALL:
            own = self.sealed.get(client, Spent())
            return Spent(shared.epsilon + own.epsilon, shared.delta + own.delta)
        alone = [spent for name, spent in self.sealed.items() if name != ALL] or [Spent()]
        most = max(spent.epsilon for spent in alone), max(spent.delta for spent in alone)
        return Spent(shared.epsilon + most[0], shared.delta + most[1])

    def epsilons(self, names: Sequence[str], *, together: bool) -> np.ndarray:
        """The epsilon that is gone for each client; where all pay together, for each what is gone for the one with least left.

        One noise protects all who pay together, so it is sized for that one.

        >>> Before(1, {"north": Spent(0.5, 1e-6)}).epsilons(["north", "south"], together=True).tolist()
        [0.5, 0.5]
        """
        if together:
            return np.full(len(names), self.of(ALL).epsilon)
        return np.array([self.of(name).epsilon for name in names])

    def record(self) -> dict[str, Any]:
        """For a run's folder: a resumed run keeps the noise it began with, whatever others have sealed meanwhile."""
        return {"runs": self.runs, "sealed": {name: [s.epsilon, s.delta] for name, s in self.sealed.items()}}


NOTHING = Before()


def read(path: Path, *, unit: str) -> Before:
    """What a ledger's runs have sealed in one unit; nothing where there is no ledger yet.

    Guarantee: the file is opened for reading alone.

    Raises: LedgerError for a path where there can be no ledger, a file that is none, and one of a format that seals no prices.
    """
    _refuse_path(path)
    if not secret.begun_at(path):
        return NOTHING
    with reader.reading(path) as db:
        refuse_older_format(db, path)
        if "seals" not in tables_of(db):
            return NOTHING
        query = "SELECT client, TOTAL(epsilon), TOTAL(delta) FROM seals WHERE unit = ? GROUP BY client"
        sealed = {client: Spent(epsilon, delta) for client, epsilon, delta in db.execute(query, (unit,))}
        (runs,) = db.execute("SELECT COUNT(DISTINCT run) FROM seals WHERE unit = ?", (unit,)).fetchone()
    return Before(runs, sealed)


def refuse(path: Path, *, population: str, conditions: Iterable[Callable[[bytes], Condition]] = ()) -> None:
    """Refuses what a run on this ledger would be refused for: a lost or older copy, other data, rows that changed hands.

    It is for plans, which write nothing: the run itself asks again, within the transaction of its first charge.

    Raises: LedgerError.
    """
    mark = path.with_name(f"{path.name}.mark")
    witness.refuse_lost(path, mark)
    if not secret.begun_at(path):
        return
    key = secret.key_of(path)
    for fault in reader.marked(path, mark):
        raise LedgerError(f"{path}: {fault}.")
    with reader.reading(path) as db:
        refuse_other_population(db, path, population, key)
        for condition in conditions:
            condition(key).refuse(db, path)


def recorded(record: Mapping[str, Any]) -> Before:
    """The inverse of `Before.record`. Raises KeyError, TypeError, ValueError or AttributeError for what is no such record.

    >>> recorded(Before(1, {"north": Spent(0.5, 1e-6)}).record())
    Before(runs=1)
    """
    sealed = {str(name): Spent(float(epsilon), float(delta)) for name, (epsilon, delta) in record["sealed"].items()}
    return Before(int(record["runs"]), sealed)


def noted(path: Path) -> Before:
    """What a run's folder notes (`run.json`); nothing in a folder of an earlier version.

    Raises: LedgerError where the file is missing or damaged: without it nobody knows for what the run's noise was sized.
    """
    try:
        return recorded(json.loads(path.read_text("utf-8")).get("before", NOTHING.record()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise LedgerError(f"{path} is missing or damaged, so nobody knows the run's noise: put it back.") from None


def _refuse_path(path: Path) -> None:
    """Raises LedgerError for a path where there can never be a ledger."""
    if path.is_dir():
        raise LedgerError(
            f"privacy.ledger = {str(path)!r} is a folder: name a file, for instance {path / 'ledger.db'}."
        )
    above = next(parent for parent in path.absolute().parents if parent.exists())
    if not above.is_dir():
        raise LedgerError(f"privacy.ledger = {str(path)!r} cannot be made: {above} is a file, not a folder.")
