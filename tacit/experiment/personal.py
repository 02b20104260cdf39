"""`[personal]`: a model for every client, made at home after the last round. Left out, not one bit of a run changes."""

from typing import TYPE_CHECKING, Literal

from tacit import check
from tacit.errors import BadInput
from tacit.experiment.section import Section

if TYPE_CHECKING:
    from tacit.experiment import Experiment


class PersonalSection(Section):
    """`[personal]`: how each client adapts the common model at home (`kind`, a file in tacit/personal).

    `strength` is lambda of `mean-regularised`; left out, each client finds its own by cross-validation.
    """

    kind: Literal["finetune", "mean-regularised", "shrinkage", "head"] | None = None  # how it is made; nothing: none
    strength: float | None = None  # how strongly it is held to the common one; nothing: chosen at home

    def possible(self) -> None:
        if self.strength is None:
            return
        check.at_least(0, **{"personal.strength": self.strength})
        if self.kind != "mean-regularised":
            raise BadInput('personal.strength is for personal.kind = "mean-regularised": leave it out.')


def refuse_unjudged(experiment: "Experiment") -> None:
    """Refuses own models that nobody could judge. Raises BadInput."""
    if experiment.personal.kind is not None and experiment.data.own_share is None:
        raise BadInput(
            "Own models are judged on rows that their client never trained on: set data.own_share, such as 0.2, or leave out"
            " [personal]."
        )


def refuse_deployed(experiment: "Experiment") -> None:
    """Refuses own models, and rows kept for them, where clients are sites of their own. Raises BadInput."""
    if experiment.personal.kind is not None or experiment.data.own_share is not None:
        raise BadInput(
            "In a deployment own models ([personal], data.own_share) are each site's own choice: leave them out, and set [personal]"
            " in the site.toml of whoever wants them."
        )
