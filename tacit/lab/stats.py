"""`tacit stats`: the columns of a federation in numbers, asked once, noised by every client and charged to its ledger."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacit import check
from tacit.data.population import Population, rows_mark
from tacit.engine.assemble import Parts, build, written
from tacit.engine.ledgers import open_ledger
from tacit.engine.queries import FILE, Replies, called, described, histograms_of, keep, kept
from tacit.engine.run_folder import Folder, open_folder, refuse_taken
from tacit.errors import BadInput, BudgetExhausted, LedgerError
from tacit.experiment import Experiment
from tacit.experiment.extras import STATS as QUERY
from tacit.experiment.extras import refuse_per_client
from tacit.privacy.accounting.price import noise_multipliers
from tacit.privacy.guarantee import FLOATS, ONE_RECORD, Words, promise, sentence, spent_by
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.local.kind import OBSERVED
from tacit.privacy.queries.mechanism import NoisyCounts
from tacit.privacy.queries.ranges import Described
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
    """Counts, means and quantiles of the experiment's columns over all clients: of those that are named, else of all and the label.
    Each client's answer costs `share` of what is left of its epsilon. With `privacy.ledger` that is charged where training is.
    Guarantee: as for a round: paid on disk before noise is drawn, and drawn once; a folder that has answers is asked nothing again.
    Raises: BadInput for a column that cannot be counted and for a kind of privacy that has no price per record; BudgetExhausted
    where nobody can pay; LedgerError where answers and ledger do not fit together."""
    check.rate(share=share)
    refuse_per_client(experiment, "Statistics are priced per record")
    path = Path(out or new_folder(f"{experiment.name}-stats"))
    refuse_taken(path, resume=resume, force=force)
    before = before_of(experiment, path, resume=resume)
    parts = build(experiment, before=before)
    query = histograms_of(experiment, parts.dataset, columns)
    noises = _noises(parts, query, share)
    folder = open_folder(path, experiment, resume=resume, force=force, resolved=written(parts), before=before)
    try:
        ledger = open_ledger(parts, folder, once=True)
        answers = _answers(parts, ledger, folder, query, noises)
        told = _told(parts, ledger, query, answers, share)
        folder.write(FILE, json.dumps(told, indent=1).encode())
        return told | {"out": str(path)}
    finally:
        folder.close()


def _noises(parts: Parts, query: Described, share: float) -> list[NoisyCounts | None]:
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
    parts: Parts, ledger: Ledger | None, folder: Folder, query: Described, noises: list[NoisyCounts | None]
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
    streams, counts, stds = parts.releases.streams(), {}, {}
    for client in clients:
        true, noise = query.count(client.x.cpu().numpy(), client.y.cpu().numpy()), noises[client.index]
        stds[client.id] = 0.0 if noise is None else noise.noise_std
        counts[client.id] = true.values
        if noise is not None:
            stream = streams(question, 0, client, QUERY)
            counts[client.id] = noise.noise(noise.init(), stream, true)[1].vector.numpy()
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
        clients.append(replace(client, mark=rows_mark(client.x, client.y)))
    return clients


def _told(parts: Parts, ledger: Ledger | None, query: Described, answers: Replies, share: float) -> dict[str, Any]:
    guarantee = None
    if ledger is not None:
        words = Words(OBSERVED, ONE_RECORD, SAMPLER, assumes=FLOATS[1:])
        guarantee = spent_by(promise(parts.experiment, words), ledger, parts.population)
        ledger.close()
    return described(parts, query, answers) | {
        "share": share,
        "guarantee": guarantee.record() if guarantee else None,
        "sentence": sentence(guarantee),
    }
