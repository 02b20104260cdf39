"""Evaluation where the rows are: every client judges the model on rows that it held out, and answers once, with noise."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tacit import metrics, tasks
from tacit.build.parts import Parts
from tacit.data.dataset import Dataset
from tacit.digest import mark, tensor_bytes
from tacit.engine.asking import Asking, Replies, ask
from tacit.engine.folder import Folder
from tacit.errors import AnsweredOnce, BudgetExhausted, Unanswered
from tacit.experiment import Experiment
from tacit.experiment.asking import EVALUATION
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.queries.evaluation import Judgement, combine, judgement
from tacit.privacy.queries.mechanism import Counts
from tacit.train.apart import answers_apart
from tacit.train.frozen import training
from tacit.types import Client


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The query: what the judgement counts of a model's answers to a client's held-out rows."""

    judged: Judgement
    parts: Parts
    params: torch.Tensor = field(repr=False)
    name: str = EVALUATION

    @property
    def cells(self) -> int:
        """How many counts a client answers with."""
        return self.judged.cells

    @property
    def l2_squared(self) -> int:
        """How far one record can move them, squared."""
        return self.judged.l2_squared

    def __repr__(self) -> str:
        """What is counted; which model is judged is in the question."""
        return f"Evaluation({self.judged!r})"

    def count(self, client: Client) -> Counts:
        """The true counts of a client's held-out rows; zeros where it has none.

        Guarantee: what a record adds depends on that record and the model alone, whatever the model does with batches.
        """
        parts = self.parts
        if not client.size:
            return Counts(np.zeros(self.cells, np.int64), self.l2_squared)
        parts.theta.copy_(self.params)
        outputs = answers_apart(parts.model.eval(), client.x.to(parts.theta.device), answer=parts.task.answer)
        training(parts.model)
        return self.judged.count(client.y.cpu().numpy(), parts.task.predictions(outputs).numpy())


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
    """What the clients' held-out rows say of the final model, for the summary; None where none are held out.

    `asking` is how clients are asked: in this process, or, in a deployment, where their rows are.

    Guarantee: as `ask`. A run that has ended is not lost by a query that nobody can pay for or answers, or whose answer was lost
    after it was paid for: then it says why nothing is known.
    """
    judged, held = judged_by(parts.experiment, parts.dataset), parts.population.held
    if judged is None or (held is None and not parts.elsewhere):
        return None
    question = mark("model", tensor_bytes(params))
    try:
        answers = asking(parts, ledger, folder, Evaluation(judged, parts, params), question=question, about=held)
    except (BudgetExhausted, AnsweredOnce, Unanswered) as error:
        return {"unknown": str(error)}
    if answers.question != question:
        return {
            "unknown": "The clients have answered about an earlier model of this run, and a query is answered once."
        }
    return _told(parts, judged, answers)


def _told(parts: Parts, judged: Judgement, answers: Replies) -> dict[str, Any]:
    share, sizes = (
        parts.experiment.data.held_out or 0.0,
        dict(zip(parts.population.names, parts.population.sizes, strict=True)),
    )
    names = list(answers.counts)
    expected = np.array([max(1.0, float(sizes[name]) * share / (1 - share)) for name in names])
    stds = np.array([answers.stds[name] for name in names])
    found = combine(judged, [answers.counts[name] for name in names], stds, expected)
    headline = metrics.key(tasks.chosen(parts.experiment))
    told: dict[str, Any] = {
        "metric": headline,
        "metrics": dict(found.values),
        "rows": round(found.rows),
        "answered": len(names),
        "clients": len(parts.population),
    }
    if found.values[headline]["value"] is None:
        told["unknown"] = (
            f"The held-out rows are too few beside the noise, or of one class only, to tell {metrics.words(headline)}."
        )
    return told


def in_words(told: dict[str, Any]) -> str:
    """What a run found out at its clients, in one line.

    >>> in_words({"unknown": "Nobody answered."})
    'not known: Nobody answered.'
    """
    if "unknown" in told:
        return f"not known: {told['unknown']}{_without(told)}"
    known = told["metrics"][told["metric"]]
    ends = known["interval"]
    interval = f" (95 % over noise and rows {ends[0]:.4f} to {ends[1]:.4f})" if ends else ""
    whose = f"{told['answered']} of {told['clients']} clients, about {told['rows']} rows"
    return f"{known['value']:.4f}{interval}; {whose}{_without(told)}"


def _without(told: dict[str, Any]) -> str:
    """Who did not answer in a deployment, and why."""
    missing = "; ".join(f"{name}: {why}" for name, why in told.get("missing", {}).items())
    return f"; without {missing}" if missing and missing not in told.get("unknown", "") else ""
