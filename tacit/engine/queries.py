"""A query in a run: paid for by every client that can, noised, kept in the run's folder, and never answered twice."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacit import check, store
from tacit.data.dataset import Dataset
from tacit.data.population import Population
from tacit.engine.assemble import Parts, build
from tacit.engine.ledgers import open_ledger
from tacit.engine.run_folder import Folder
from tacit.errors import AnsweredOnce, BadData, BadInput, BudgetExhausted, LedgerError, Unanswered
from tacit.experiment import Experiment
from tacit.experiment.extras import EVALUATION, RANGES, STATS, shares
from tacit.parts import metrics, tasks
from tacit.privacy.ledger.disk import QUERY
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.plan import Plan
from tacit.privacy.queries import ranges
from tacit.privacy.queries.evaluation import Judgement, combine, judgement
from tacit.privacy.queries.mechanism import Counts, NoisyCounts
from tacit.privacy.queries.ranges import Described, Range, Ranges, asked_ranges
from tacit.training.flat import answers_apart, training
from tacit.types import Client
from tacit.wire import digest_of, tensor_bytes

NAME, FILE = "queries.json", "stats.json"
ENDS = (
    BudgetExhausted,
    AnsweredOnce,
    Unanswered,
)  # of a query without which a run goes on, and says why nothing is known


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The query: what the judgement counts of a model's answers to a client's held-out rows."""

    judged: Judgement
    parts: Parts
    params: torch.Tensor = field(repr=False)
    name: str = EVALUATION

    @property
    def cells(self) -> int:
        return self.judged.cells

    @property
    def l2_squared(self) -> int:
        return self.judged.l2_squared

    def __repr__(self) -> str:
        return f"Evaluation({self.judged!r})"  # which model is judged is in the question

    def count(self, client: Client) -> Counts:
        """The true counts of a client's held-out rows; zeros where it has none.
        Guarantee: what a record adds depends on that record and the model alone, whatever the model does with batches."""
        parts = self.parts
        if not client.size:
            return Counts(np.zeros(self.cells, np.int64), self.l2_squared)
        parts.theta.copy_(self.params)
        outputs = answers_apart(parts.model.eval(), client.x.to(parts.theta.device), answer=parts.task.answer)
        training(parts.model)
        return self.judged.count(client.y.cpu().numpy(), parts.task.predictions(outputs).numpy())


@dataclass(frozen=True)
class Columns:
    """The query: what `Described` counts of a client's rows."""

    described: Described
    name: str = STATS

    @property
    def cells(self) -> int:
        return self.described.cells

    @property
    def l2_squared(self) -> int:
        return self.described.l2_squared

    def count(self, client: Client) -> Counts:
        return self.described.count(client.x.cpu().numpy(), client.y.cpu().numpy())


# Something that is counted over a client's records. Its repr names all that counts are a function of but the rows.
# Guarantee asked: one record, coming or going, changes `count` by a vector of squared length at most `l2_squared`.
Query = Evaluation | Columns | Ranges


@dataclass(frozen=True, eq=False)
class Replies:
    """What was released: by client its noised counts, and the standard deviation of their noise (0: nothing was promised).
    `attempt` is what the ledger calls the release; empty where nothing is charged."""

    attempt: str
    counts: dict[str, np.ndarray] = field(repr=False)
    stds: dict[str, float] = field(repr=False)
    question: str = ""

    def table(self, population: Population) -> tuple[list[str], list[np.ndarray], np.ndarray, np.ndarray]:
        """Who has answered, their counts, the noise on them, and how many rows they trained on."""
        names, sizes = list(self.counts), dict(zip(population.names, population.sizes.tolist(), strict=True))
        stds = np.array([self.stds[name] for name in names])
        return names, [self.counts[name] for name in names], stds, np.array([sizes[name] for name in names])


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
    """The clients' answers to a query over the rows of `about` (or those trained on): those in the folder, or new ones.
    `question` is a digest of what they are asked about. Raises BudgetExhausted, or LedgerError for answers that were not charged,
    or were charged and are lost. Guarantee: every client whose counts are released has paid for them on disk before its noise is
    drawn. What the folder has is never drawn again; where it is missing and cannot be repeated bit for bit, that is refused."""
    known = kept(folder.path).get(query.name)
    if known is not None:
        return paid_for(known, ledger, folder, query)
    population = about or parts.population
    attempt = digest_of("query", parts.releases.digest, population.digest(), repr(query), question)
    clients = [replace(population[index], digest=rows.tobytes()) for index, rows in enumerate(population.row_digests)]
    sensitive = {"l2_squared": query.l2_squared, "cells": query.cells}
    noises = {client.id: parts.plan.queries.mechanism(query.name, client.index, **sensitive) for client in clients}
    if ledger is not None:
        clients = ledger.answer(query.name, attempt, clients, parts.cost, hint=parts.plan.participations)
    if not clients:
        raise BudgetExhausted(
            f"No client can pay for the query {query.name!r} and one round of training: `tacit plan` says what is left; nothing"
            " was released."
        )
    counts = {client.id: released(parts, query, client, noises[client.id], question) for client in clients}
    stds = {client.id: 0.0 if (noise := noises[client.id]) is None else noise.noise_std for client in clients}
    answers = Replies(called(ledger, attempt), counts, stds, question)
    keep(folder, query.name, answers)
    return answers


def called(ledger: Ledger | None, attempt: str) -> str:
    return ledger.keyed(attempt) if ledger else ""


def in_summary(parts: Parts, folder: Path) -> dict[str, Any]:
    planned, found = shares(parts.experiment), kept(folder)
    stds = {query: answers.stds.values() for query, answers in found.items()}
    return {
        query: {
            "share": planned.get(query),
            "answered": len(answers.counts),
            "clients": len(parts.population),
            "noise_std": [min(stds[query]), max(stds[query])],
        }
        for query, answers in found.items()
    }


def kept(folder: Path) -> dict[str, Replies]:
    """The answers that a run's folder has, by query. Raises BadInput where the file is damaged."""
    file, found = folder / NAME, {}
    if not file.exists():
        return found
    try:
        for name, record in json.loads(file.read_text("utf-8")).items():
            counts = {str(client): np.array(values, dtype=np.int64) for client, values in record["counts"].items()}
            stds = {client: float(record["noise_std"][client]) for client in counts}
            found[name] = Replies(str(record["attempt"]), counts, stds, str(record["question"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{file} is damaged ({error}): put it back, for a query is answered once.") from None
    return found


def released(parts: Parts, query: Query, client: Client, noise: NoisyCounts | None, question: str) -> np.ndarray:
    """A client's counts with its noise, which is keyed by the query, the question and the client's rows; None adds none.
    Assumes: the client has paid, on disk, and `client.digest` is that of the rows which are counted."""
    counts = query.count(client)
    if noise is None:
        return counts.values
    derive = partial(parts.releases.streams(), digest_of(repr(query), question), QUERY, client)
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
    records = {}
    for query, one in (kept(folder.path) | {name: answers}).items():
        counts = {client: values.tolist() for client, values in one.counts.items()}
        records[query] = {"attempt": one.attempt, "question": one.question, "noise_std": one.stds, "counts": counts}
    store.write(folder.path / NAME, json.dumps(records).encode())


# Evaluation where the rows are: every client judges the model on rows that it held out, and answers once, with noise.


def judged_by(experiment: Experiment, dataset: Dataset) -> Judgement | None:
    """What clients count of their held-out rows; None where there are none. Raises BadInput for a metric they cannot be asked."""
    if experiment.data.held_out is None:
        return None
    numbers = tasks.load(experiment, dataset).answer[-1]
    settings = {"classes": dataset.classes, "numbers": numbers, "largest_error": experiment.metric.largest_error}
    return judgement(experiment.task.kind, metrics.key(tasks.chosen(experiment)), **settings)


def evaluate_at_clients(
    parts: Parts, ledger: Ledger | None, folder: Folder, params: torch.Tensor, *, asking: Asking = ask
) -> dict[str, Any] | None:
    """What held-out rows say of the final model, for the summary; None where none are held out. `asking` asks the clients.
    Guarantee: as `ask`. A run that has ended is not lost by a query that nobody pays for or answers: it says why none is known."""
    judged, held = judged_by(parts.experiment, parts.dataset), parts.population.held
    if judged is None or (held is None and not parts.is_deployed):
        return None
    question = digest_of("model", tensor_bytes(params))
    try:
        answers = asking(parts, ledger, folder, Evaluation(judged, parts, params), question=question, about=held)
    except ENDS as error:
        return {"unknown": str(error)}
    if answers.question != question:
        return {
            "unknown": "The clients have answered about an earlier model of this run, and a query is answered once."
        }
    share = parts.experiment.data.held_out or 0.0
    names, counts, stds, sizes = answers.table(parts.population)
    found = combine(judged, counts, stds, np.maximum(1.0, sizes * share / (1 - share)))
    headline = metrics.key(parts.metric)
    result: dict[str, Any] = {
        "metric": headline,
        "metrics": dict(found.values),
        "rows": round(found.rows),
        "answered": len(names),
        "clients": len(parts.population),
    }
    if found.values[headline]["value"] is None:
        result["unknown"] = (
            f"The held-out rows are too few beside the noise, or of one class only, to tell {metrics.words(headline)}."
        )
    return result


def in_words(result: dict[str, Any]) -> str:
    """What a run found out at its clients, in one line.

    >>> in_words({"unknown": "Nobody answered."})
    'not known: Nobody answered.'
    """
    missing = "; ".join(f"{name}: {why}" for name, why in result.get("missing", {}).items())
    without = f"; without {missing}" if missing and missing not in result.get("unknown", "") else ""
    if "unknown" in result:
        return f"not known: {result['unknown']}{without}"
    known = result["metrics"][result["metric"]]
    ends = known["interval"]
    interval = f" (95 % over noise and rows {ends[0]:.4f} to {ends[1]:.4f})" if ends else ""
    whose = f"{result['answered']} of {result['clients']} clients, about {result['rows']} rows"
    return f"{known['value']:.4f}{interval}; {whose}{without}"


# Statistics that come with a run: histograms of some columns, asked for before round 1, noised, and paid for beside training.


def columns_asked(experiment: Experiment, dataset: Dataset) -> Columns | None:
    """The statistics that an experiment asks for; None where there are none. Raises BadInput for what cannot be counted."""
    return Columns(histograms_of(experiment, dataset, experiment.privacy.stats)) if experiment.privacy.stats else None


def histograms_of(experiment: Experiment, dataset: Dataset, columns: Sequence[str]) -> Described:
    """The histograms of the columns that are named, or of all that can be counted, the label included. Raises BadInput."""
    encoder, private, found, start = dataset.encoder, experiment.data.private_columns, {}, 0
    for column in encoder.columns if encoder else ():
        if column.known:
            found[column.name] = ranges.CategoricalColumn(column.name, column.known, start)
        elif column.is_number and (not columns or column.name in columns):
            wide = private.get(column.name)
            found[column.name] = ranges.numbers(column.name, start, limits=column.span, wide=wide)
        elif column.name in columns:
            raise BadInput(
                f"Column {column.name!r} is of the type {column.kind!r}, which has no histogram: leave it out of privacy.stats."
            )
        start += column.width
    if dataset.classified:
        label = encoder.label if encoder and encoder.label else "label"
        found[label] = ranges.CategoricalColumn(label, tuple(map(str, dataset.class_names)), None)
    for name in columns:
        if name not in found:
            known = [*(encoder.names if encoder else ()), *found]
            hint = check.nearest(name, known) or check.listed(dict.fromkeys(known))
            raise BadInput(f"There is no column {name!r} to count.{hint}")
    chosen = tuple(found[name] for name in dict.fromkeys(columns)) or tuple(found.values())
    if not chosen:
        raise BadInput("This data has neither columns nor classes to count.")
    return Described(chosen)


def describe(parts: Parts, ledger: Ledger | None, folder: Folder, *, asking: Asking = ask) -> None:
    """Asks for the statistics of a run and writes them into its folder (`stats.json`), or why nothing is known.
    Guarantee: as `ask`. `asking` asks the clients; in a deployment it may say who is `missing`."""
    query = columns_asked(parts.experiment, parts.dataset)
    if query is None:
        return
    try:
        result = described(parts, query.described, asking(parts, ledger, folder, query))
    except ENDS as error:
        result = {"columns": [], "unknown": str(error), "answered": 0, "clients": len(parts.population)}
    missing = getattr(asking, "missing", {})
    folder.write(FILE, json.dumps(result | {"missing": missing}, indent=1).encode())


def read_stats(folder: Path) -> dict[str, Any]:
    """The statistics that a run's folder, or that of a federation, has. Raises BadInput where there are none."""
    for file in (folder / FILE, folder / "results" / FILE):
        if file.is_file():
            try:
                return json.loads(file.read_text("utf-8"))
            except (OSError, ValueError) as error:
                raise BadInput(f"{file} is damaged ({error}).") from None
    raise BadInput(
        f"{folder} has no statistics: a run or a deployment asks for them where its experiment names columns, as in"
        ' privacy.stats = ["age"]; for a simulation name its file here.'
    )


def described(parts: Parts, query: Described, answers: Replies) -> dict[str, Any]:
    names, counts, stds, sizes = answers.table(parts.population)
    known = {"answered": len(names), "clients": len(parts.population)}
    noise = [float(stds.min()), float(stds.max())]
    return {"columns": query.statistics(counts, stds, sizes), **known, "noise_std": noise}


# Private ranges: asked for before the first round, and then as good as declared.


def ranges_asked(experiment: Experiment, dataset: Dataset) -> Ranges | None:
    """The query for the ranges that an experiment calls private, whatever its noise hides; None where there are none."""
    columns = dataset.encoder.columns if dataset.encoder else ()
    return asked_ranges(experiment.data.private_columns, [(column.name, column.width) for column in columns])


def query_of(experiment: Experiment, dataset: Dataset, plan: Plan, population: Population) -> Ranges | None:
    """The query for the ranges that an experiment calls private, of rows that are read unscaled; None where there are none.
    Raises: BadInput where the noise would hide all but the very common values."""
    query = ranges_asked(experiment, dataset)
    if query is not None and plan.priced:
        sensitive = {"l2_squared": query.l2_squared, "cells": query.cells}
        noises = (plan.queries.mechanism(RANGES, index, **sensitive) for index in range(len(population)))
        query.refuse_coarse(population.sizes, np.array([noise.noise_std for noise in noises if noise]))
    return query


def ranged(parts: Parts, folder: Folder) -> Parts:
    """The parts with every private range found, asked for and paid, or as the folder has it; rows are read again with them.
    Guarantee: as `ask`. What is trained on are the rows that were asked about. Raises as `ask`; BadData for files that changed."""
    query = query_of(parts.experiment, parts.dataset, parts.plan, parts.population)
    if query is None:
        return parts
    ledger = open_ledger(parts, folder)
    try:
        ranges, note = found(parts, query, ask(parts, ledger, folder, query))
    finally:
        if ledger is not None:
            ledger.close()
    made = build(parts.experiment, before=parts.before, ranges=ranges, mask=parts.population.mask)
    if not np.array_equal(made.population.offsets, parts.population.offsets):
        raise BadData("The data files have changed while they were read: start again when they are at rest.")
    notes = list(made.dataset.notes)
    for name in ranges:
        declared, asked = f"of {name!r} into its declared range", f"of {name!r} into the range that was asked for,"
        notes = [one.replace(declared, asked) for one in notes]
    return replace(made, trial_id=parts.trial_id, dataset=replace(made.dataset, notes=(*notes, note)))


def found(parts: Parts, query: Ranges, answers: Replies) -> tuple[dict[str, Range], str]:
    """The ranges that the clients' answers say, and a note of them for whoever reads the run."""
    names, counts, stds, sizes = answers.table(parts.population)
    ranges = query.found(counts, sizes, stds)
    listed = "; ".join(f"{name} {low:g} to {high:g}" for name, (low, high) in ranges.items())
    whose = f"{len(names)} of {len(parts.population)} clients"
    priced = "noised histograms, which are in the guarantee" if parts.plan.priced else "exact histograms, not protected"
    return ranges, f"ranges asked of {whose} by {priced}: {listed}"
