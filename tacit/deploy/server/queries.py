"""A query over Flower: every site that is here is asked once, and what came back is held against what was agreed.

It stands in the place of a simulation's `ask` (tacit/engine/queries.py): what is made of the answers is the same."""

import json
import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from flwr.serverapp import Grid

from tacit import wire
from tacit.data.population import Population
from tacit.deploy.server import trainer
from tacit.deploy.server.gather import ANSWER_BYTES, gather
from tacit.deploy.server.trainer import listed, spent_of
from tacit.deploy.site.agreement import record_of
from tacit.deploy.site.requests import MOST_COLUMNS, ranges_of
from tacit.deploy.site.rows import public_rows
from tacit.engine.assemble import Parts, assemble
from tacit.engine.queries import Query, Replies, found, keep, kept, paid_for
from tacit.engine.run_folder import Folder
from tacit.errors import BadInput, BudgetExhausted, TacitError, Unanswered
from tacit.experiment.extras import HELD_OUT, SIDES, read_with
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.queries.ranges import Range, Ranges
from tacit.privacy.wiring import Seals
from tacit.wire import digest_of, tensor_bytes, unpack

ONLY = 0  # a query has one request, where those of training are counted by rounds
MORE_ROWS, SPARE_ROWS = 10, 1000  # than a site's size leads to expect: beyond, an answer is not believed
COUNT_BYTES = 8  # of a whole number
FAR = 40.0  # standard deviations, which no noise is


def was_asked(folder: Folder, query: str) -> bool:
    """Whether sites may have been asked the query already, which ends their part in the run's rounds."""
    return trainer.find(folder, f"asked-{query}.bin", ONLY) is not None


@dataclass
class AtSites:
    """Asks sites a query, as `ask` asks clients: called with parts, ledger, folder and query, it returns what came back.

    Guarantee: the server's own ledger is charged, and the request is on disk, before anybody is asked. Who has no answer is in
    `missing`, with the reason; `spent` is what sites say, which nobody checks.
    """

    grid: Grid
    nodes: dict[int, int]  # client index -> Flower node
    seconds: float
    about: bytes = field(default=b"", repr=False)  # the model that sites are asked about, where there is one
    missing: dict[str, str] = field(default_factory=dict)
    spent: dict[str, float] = field(default_factory=dict)

    def __call__(
        self,
        parts: Parts,
        ledger: Ledger | None,
        folder: Folder,
        query: Query,
        *,
        question: str = "",
        about: Population | None = None,
    ) -> Replies:
        """The sites' answers: those in the folder, and those of who is asked now. Raises: Unanswered, BudgetExhausted,
        AnsweredOnce.
        """
        file, names = f"asked-{query.name}.bin", parts.population.names
        before = trainer.find(folder, file, ONLY)
        body = trainer.keep(folder, file, ONLY, self.about) if before is None else before
        if body:  # what is asked about, whatever is trained by now
            question = digest_of("model", tensor_bytes(unpack(body).tensors["params"]))
        attempt = digest_of("deployed query", folder.run, repr(query), question)
        called = ledger.keyed(attempt) if ledger else attempt
        known = kept(folder.path).get(query.name, Replies(called, {}, {}, question))
        if paid_for(known, ledger, folder, query).attempt != called:
            return known
        clients = [parts.population[index] for index in range(len(parts.population))]
        if ledger is not None:  # who can pay, by the server's own ledger, which is charged for them
            clients = ledger.answer(query.name, attempt, clients, parts.cost, hint=parts.plan.participations)
            if not clients:
                raise BudgetExhausted(f"No site can pay for the query {query.name!r}; nothing was released.")
        paying, connected = {client.index for client in clients}, set(self.grid.get_node_ids())
        here = {index: node for index, node in sorted(self.nodes.items()) if node in connected}
        asked = {node: index for index, node in here.items() if index in paying and names[index] not in known.counts}

        def accept(node: int, facts: dict[str, Any], raw: bytes) -> tuple[Any, np.ndarray]:
            return facts, counts_of(raw, parts, query, asked[node])

        ask = {"kind": "count", "run": folder.run, "query": query.name}
        most = ANSWER_BYTES + COUNT_BYTES * query.cells
        heard = gather(self.grid, dict.fromkeys(asked, ask), body, seconds=self.seconds, most=most, accept=accept)
        counts, stds = dict(known.counts), dict(known.stds)
        for node, (facts, numbers) in sorted(heard.answers.items(), key=lambda answer: asked[answer[0]]):
            name = names[asked[node]]
            counts[name], stds[name] = numbers, noise_std(parts, query, asked[node])
            if (epsilon := spent_of(facts)) is not None:
                self.spent[name] = epsilon
        self.missing = {
            name: heard.why(here.get(index)) if index in paying else "cannot pay for it"
            for index, name in enumerate(names)
            if name not in counts
        }
        if not counts:
            raise Unanswered(f"No site answered ({listed(self.missing)}).")
        answers = Replies(called, counts, stds, question)
        keep(folder, query.name, answers)
        return answers


def noise_std(parts: Parts, query: Query, index: int) -> float:
    """The noise on each of a site's counts, as the site computes it; 0 where nothing is promised."""
    noise = parts.plan.queries.mechanism(query.name, index, l2_squared=query.l2_squared, cells=query.cells)
    return 0.0 if noise is None else noise.noise_std


def counts_of(raw: bytes, parts: Parts, query: Query, index: int) -> np.ndarray:
    """The noised counts of a site's answer: as many whole numbers as the query has cells, in the site's own name, none of them
    larger than ten times the rows that a site of its size is expected to count, and a thousand, and any noise. Raises: BadInput.
    """
    message, client = unpack(raw), parts.population[index]
    if message.sender != client.id:
        raise BadInput("it answered in another's name")
    counts = message.tensors.get("counts")
    if set(message.tensors) != {"counts"} or counts is None or message.facts:
        raise BadInput("it sent something else than counts")
    if counts.dtype != torch.int64 or counts.shape != (query.cells,):
        raise BadInput(f"it sent {list(counts.shape)[:4]} of {counts.dtype} where {query.cells} counts belong")
    share = parts.experiment.data.held_out or 0.0
    expected = client.size * share / (1 - share) if SIDES[query.name] == HELD_OUT else client.size
    rows = MORE_ROWS * expected + SPARE_ROWS
    most = math.sqrt(query.l2_squared) * rows + FAR * noise_std(parts, query, index)
    if int(counts.max()) > most or int(counts.min()) < -most:
        raise BadInput("it sent a count that is larger than any honest one")
    return counts.numpy()


# Private ranges: asked of the sites before the first round, kept by the server, and sent back to every site.

FILE = "ranges.json"
MOST_NOTE = 1 << 20  # characters


@dataclass(frozen=True)
class Known:
    ranges: dict[str, Range]
    note: str


def known(folder: Folder) -> Known | None:
    """What the run's folder has of its ranges; None where they are not known yet. Raises: BadInput for a damaged file."""
    path = folder.path / FILE
    if not path.exists():
        return None
    try:
        record = wire.json_object(path.read_text("utf-8"), what="It", brackets=MOST_COLUMNS + 2, finite=True)
        ranges, note = wire.fields(record, "ranges", "note", what="It")
        return Known(ranges_of(ranges), wire.text(note, what="Its note", most=MOST_NOTE))
    except (OSError, UnicodeDecodeError, BadInput) as error:
        raise BadInput(f"{path} is damaged ({error}): put it back, for sites take no other ranges.") from None


def learn(parts: Parts, ledger: Ledger | None, folder: Folder, query: Ranges, asking: AtSites, *, least: int) -> Known:
    """Asks the sites, and puts what their answers say into the run's folder before anybody is told. Raises: TacitError."""
    answers = asking(parts, ledger, folder, query)
    if len(answers.counts) < least:
        raise TacitError(
            f"{len(answers.counts)} sites answered for the ranges of private columns, and {least} are needed"
            f" ({listed(asking.missing)}): bring the sites back, then go on with --resume."
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
    return assemble(experiment, rows, parts.population, place="server", seals=seals)
