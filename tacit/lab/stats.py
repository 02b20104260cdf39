"""`tacit stats`: the columns of a federation in numbers, asked once, noised by every client and charged to its ledger."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacit import check, store
from tacit.data.population import Population, rows_digest
from tacit.engine.assemble import Parts, build, written
from tacit.engine.ledgers import open_ledger
from tacit.engine.queries import FILE, Columns, Replies, called, described, histograms_of, keep, kept, released
from tacit.engine.run_folder import Folder, open_folder
from tacit.errors import BadInput, BudgetExhausted, LedgerError
from tacit.experiment import Experiment
from tacit.experiment.extras import STATS as QUERY
from tacit.experiment.extras import refuse_per_client
from tacit.privacy.accounting.price import noise_multipliers
from tacit.privacy.guarantee import FLOATS, ONE_RECORD, Words, promise, sentence, spent_by
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.local import OBSERVED
from tacit.privacy.queries.mechanism import NoisyCounts
from tacit.simulation import before_of, new_folder
from tacit.types import Client
from tacit.wire import digest_of

SHARE = 0.1  # of what is left of every client's epsilon
SAMPLER = "one noised count of each cell of each column's histogram, released once"


def stats(
    experiment: Experiment,
    *,
    columns: Sequence[str] = (),
    share: float = SHARE,
    out: Path | str | None = None,
    resume: bool = False,
    force: bool = False,
) -> dict[str, Any]:
    """Counts, means and quantiles over all clients of the columns that are named, else of all and the label.
    Guarantee: each answer costs `share` of what is left of a client's epsilon, paid on disk before its noise is drawn, once.
    Raises: BadInput for what cannot be counted or has no price per record; BudgetExhausted; LedgerError where answers and ledger
    disagree."""
    check.rate(share=share)
    refuse_per_client(experiment, "Statistics are priced per record")
    path = Path(out or new_folder(f"{experiment.name}-stats"))
    store.refuse_taken(path, resume=resume, force=force)
    before = before_of(experiment, path, resume=resume)
    parts = build(experiment, before=before)
    query = Columns(histograms_of(experiment, parts.dataset, columns))
    noises = _noises(parts, query, share)
    folder = open_folder(path, experiment, resume=resume, force=force, resolved=written(parts), before=before)
    try:
        ledger = open_ledger(parts, folder, once=True)
        answers = _answers(parts, ledger, folder, query, noises)
        result = _result(parts, ledger, query, answers, share)
        folder.write(FILE, json.dumps(result, indent=1).encode())
        return result | {"out": str(path)}
    finally:
        folder.close()


def _noises(parts: Parts, query: Columns, share: float) -> list[NoisyCounts | None]:
    """Every client's noise, by its share of what is left of its epsilon. Raises BadInput for a client that sets no limit."""
    population = parts.population
    if not parts.plan.priced:
        return [None] * len(population)
    for index in np.flatnonzero(np.isinf(population.epsilons))[:1]:
        name = population.names[int(index)]
        raise BadInput(f"Client {name} sets no limit (epsilon = inf), which has no share: name a finite epsilon.")
    settings = {"delta": population.delta, "sampling_rate": 1.0, "steps": 1}
    multipliers = noise_multipliers(share * population.to_spread, **settings)
    return [NoisyCounts(float(z), query.l2_squared, query.cells) for z in multipliers]


def _answers(
    parts: Parts, ledger: Ledger | None, folder: Folder, query: Columns, noises: list[NoisyCounts | None]
) -> Replies:
    question = digest_of(QUERY, repr(query), repr(noises))
    known = kept(folder.path).get(QUERY)
    if known is not None:
        if known.question != question:
            raise BadInput(f"{folder.path} has answers to other questions: ask them again, or choose another --out.")
        if ledger is not None and not ledger.knows(0):
            raise LedgerError(f"{folder.path} has answers that {ledger.path} has no charge for: restore the ledger.")
        return known
    counted = parts.population if parts.experiment.data.own_share is None else replace(parts.population, held=None)
    clients, attempt = _clients(counted), digest_of("stats", parts.releases.digest, question)
    if ledger is not None:
        ledger.open_round(0, attempt)
        prices = {client.id: noise.event() for client, noise in zip(clients, noises, strict=True) if noise}
        clients = ledger.admit(clients, lambda client: prices[client.id])
    if not clients:
        raise BudgetExhausted("No client's remaining budget pays for these statistics; nothing was released.")
    counts = {client.id: released(parts, query, client, noises[client.index], question) for client in clients}
    stds = {client.id: 0.0 if (noise := noises[client.index]) is None else noise.noise_std for client in clients}
    answers = Replies(called(ledger, attempt), counts, stds, question)
    keep(folder, QUERY, answers)
    return answers


def _clients(population: Population) -> list[Client]:
    """Every client with all its rows, those that it holds out of training included."""
    clients = []
    for index in range(len(population)):
        client = population[index]
        if population.held is not None:
            more = population.held[index]
            client = replace(client, x=torch.cat([client.x, more.x]), y=torch.cat([client.y, more.y]))
        clients.append(replace(client, digest=rows_digest(client.x, client.y)))
    return clients


def _result(parts: Parts, ledger: Ledger | None, query: Columns, answers: Replies, share: float) -> dict[str, Any]:
    guarantee = None
    if ledger is not None:
        words = Words(OBSERVED, ONE_RECORD, SAMPLER, assumes=FLOATS[1:])
        guarantee = spent_by(promise(parts.experiment, words), ledger, parts.population)
        ledger.close()
    return described(parts, query.described, answers) | {
        "share": share,
        "guarantee": guarantee.record() if guarantee else None,
        "sentence": sentence(guarantee),
    }
