"""A query in a run: paid for by every client that can, noised, kept in the run's folder, and never answered twice."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from dataclasses import replace as with_mark
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from dp_accounting import DpEvent

from tacit.build.parts import Parts
from tacit.data.population import Population
from tacit.digest import mark
from tacit.engine.folder import Folder
from tacit.engine.folder import replace as write
from tacit.errors import BadInput, BudgetExhausted, LedgerError
from tacit.experiment.asking import shares
from tacit.privacy.ledger.ledger import Cost, Ledger
from tacit.privacy.ledger.tables import QUERY
from tacit.privacy.queries.mechanism import Counts, NoisyCounts
from tacit.types import Client

NAME = "queries.json"


class Query(Protocol):
    """Something that is counted over a client's records. Its repr names everything that the counts are a function of but the rows.

    Guarantee asked: one record, coming or going, changes `count` by a vector of squared length at most `l2_squared`.
    """

    @property
    def name(self) -> str:
        """Under which it is charged and kept."""
        ...

    @property
    def cells(self) -> int:
        """How many counts there are."""
        ...

    @property
    def l2_squared(self) -> int:
        """What one record changes at most, squared."""
        ...

    def count(self, client: Client) -> Counts:
        """The counts of one client's records, before any noise."""
        ...


@dataclass(frozen=True, eq=False)
class Replies:
    """What was released: by client its noised counts, and the standard deviation of their noise (0: nothing was promised)."""

    attempt: str
    counts: dict[str, np.ndarray] = field(repr=False)
    stds: dict[str, float] = field(repr=False)
    question: str = ""

    def record(self) -> dict[str, Any]:
        """As plain values for the folder."""
        counts = {client: values.tolist() for client, values in self.counts.items()}
        return {"attempt": self.attempt, "question": self.question, "noise_std": self.stds, "counts": counts}


Asking = Callable[..., Replies]  # as `ask`


def ask(
    parts: Parts,
    ledger: Ledger | None,
    folder: Folder,
    query: Query,
    *,
    question: str = "",
    about: Population | None = None,
) -> Replies:
    """The clients' answers to a query: those in the folder, or new ones. `question` is a digest of what they are asked about.

    The rows that are counted are those of `about`, or those that are trained on.

    Guarantee: every client whose counts are released has paid for them on disk before its noise is drawn. A run answers a query
    once: what the folder has is never drawn again, and where it is missing and cannot be repeated bit for bit, that is refused.

    Raises: BudgetExhausted where nobody can pay, LedgerError for answers in the folder that the ledger was not charged for, and
    for a query that was charged and whose answers are lost.
    """
    known = kept(folder.path).get(query.name)
    if known is not None:
        return paid_for(known, ledger, folder, query)
    population = about or parts.population
    attempt = mark("query", parts.releases.digest, population.digest(), repr(query), question)
    marks = (one.tobytes() for one in population.marks)
    clients = [with_mark(population[index], mark=rows) for index, rows in enumerate(marks)]
    sensitive = {"l2_squared": query.l2_squared, "cells": query.cells}
    noises = {client.id: parts.plan.query_noise(query.name, client.index, **sensitive) for client in clients}
    if ledger is not None:
        clients = ledger.answer(query.name, attempt, clients, cost_of(parts), hint=parts.plan.participations)
    if not clients:
        raise BudgetExhausted(
            f"No client can pay for the query {query.name!r} and one round of training: `tacit plan` says what is left; nothing"
            " was released."
        )
    counts = {client.id: released(parts, query, client, noises[client.id], question) for client in clients}
    stds = {client.id: 0.0 if (noise := noises[client.id]) is None else noise.noise_std for client in clients}
    answers = Replies(attempt, counts, stds, question)
    keep(folder, query.name, answers)
    return answers


def told(parts: Parts, folder: Path) -> dict[str, Any]:
    """What a run's summary says of its queries: the planned share of epsilon, how many answered, and the noise (least, most)."""
    planned, names = shares(parts.experiment), parts.population.names
    return {
        query: {
            "share": planned.get(query),
            "answered": len(answers.counts),
            "clients": len(names),
            "noise_std": [min(answers.stds.values()), max(answers.stds.values())],
        }
        for query, answers in kept(folder).items()
    }


def kept(folder: Path) -> dict[str, Replies]:
    """The answers that a run's folder has, by query. Raises BadInput where the file is damaged."""
    file = folder / NAME
    if not file.exists():
        return {}
    try:
        records = json.loads(file.read_text("utf-8"))
        return {name: _read(record) for name, record in records.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{file} is damaged ({error}): put it back, for a query is answered once.") from None


def _read(record: dict[str, Any]) -> Replies:
    counts = {str(client): np.array(values, dtype=np.int64) for client, values in record["counts"].items()}
    stds = {client: float(record["noise_std"][client]) for client in counts}
    return Replies(str(record["attempt"]), counts, stds, str(record["question"]))


def cost_of(parts: Parts) -> Cost:
    """What a round costs a client."""

    def cost(client: Client) -> DpEvent:
        event = parts.algorithm.cost(client)
        if event is None:
            raise TypeError("a ledger is kept only for an algorithm that has a price")
        return event

    return cost


def released(parts: Parts, query: Query, client: Client, noise: NoisyCounts | None, question: str) -> np.ndarray:
    """A client's counts with its noise, which is keyed by the query, the question and the client's rows; None adds none.

    Assumes: the client has paid, on disk, and `client.mark` is that of the rows which are counted.
    """
    counts = query.count(client)
    if noise is None:
        return counts.values
    derive = partial(parts.releases.streams(), mark(repr(query), question), QUERY, client)
    return noise.noise(noise.init(), derive(f"query {query.name}"), counts)[1].vector.numpy()


def paid_for(known: Replies, ledger: Ledger | None, folder: Folder, query: Query) -> Replies:
    """The answers of a folder, if they are to this query and the ledger was charged for them. Raises LedgerError, BadInput."""
    if ledger is not None and not known.counts.keys() <= ledger.answered(query.name, known.attempt):
        raise LedgerError(
            f"{folder.path / NAME} holds answers to the query {query.name!r}, and the ledger {ledger.path} knows no charge for"
            " them: restore the ledger that was charged; nothing was released."
        )
    if any(len(counts) != query.cells for counts in known.counts.values()):
        raise BadInput(f"{folder.path / NAME} holds answers to another query {query.name!r} than this run asks.")
    return known


def keep(folder: Folder, name: str, answers: Replies) -> None:
    """Writes what was released into the run's folder, beside what other queries were answered."""
    records = {query: one.record() for query, one in kept(folder.path).items()} | {name: answers.record()}
    write(folder.path / NAME, json.dumps(records).encode())
