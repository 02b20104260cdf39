"""The `[task]` and `[metric]` tables of an experiment file: what a model is trained for, and how it is measured."""

from typing import Annotated, ClassVar

from pydantic import Strict

from tacit import check
from tacit.experiment.section import OpenSection, Section


class TaskSection(OpenSection):
    """`[task]`: classification, binary, multilabel, regression or tokens, or anybody's as "package.module:name".

    `loss` names the loss that trains it, by a file of tacit/losses or "package.module:name"; the other keys are its options.
    """

    names_part: ClassVar[str] = "kind"

    kind: str = "classification"  # classification, binary, multilabel, regression, tokens, or package.module:name
    loss: str | None = None  # the loss, where the task's own is not meant


class MetricSection(Section):
    """`[metric]`: `choose` names the metric that stands for the run everywhere; the task's own unless it is said.

    With `per_client` a simulation also measures its final model on every client's own rows (those it keeps by `data.own_share`,
    else those it trained on), and how clients differ: numbers from raw data, for the researcher, which no epsilon covers.
    `largest_error` is where the errors of a regression, and the log loss of a row, are cut on clients' held-out rows: no noise
    covers a number without bound.
    """

    choose: str | None = None  # the headline metric, where the task's own is not meant
    per_client: Annotated[bool, Strict()] = False  # also each client's metric on its rows, for the researcher
    largest_error: float | None = None  # of a regression: beyond it an error counts as this one when clients are asked

    def possible(self) -> None:
        """An error is cut above zero."""
        if self.largest_error is not None:
            check.positive(**{"metric.largest_error": self.largest_error})
