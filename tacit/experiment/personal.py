"""`[personal]`: a model for every client, made at home after the last round, or kept during training.

Left out, not one bit of a run changes; nor by what is made after the last round.
"""

from typing import TYPE_CHECKING, Literal

from pydantic import field_validator

from tacit import check
from tacit.errors import BadInput
from tacit.experiment.section import Section

if TYPE_CHECKING:
    from tacit.experiment import Experiment


class PersonalSection(Section):
    """`[personal]`: how each client adapts the common model at home (`kind`, a file in tacit/personal).

    `strength` is lambda of `mean-regularised`; left out, each client finds its own by cross-validation. With `when = "during"` each
    client keeps an own model from round to round (MR-MTL), which is made of what it sends: it has the noise, and the epsilon, of
    that; `strength` is then in what is sent, and has to be said.
    """

    kind: Literal["alone", "finetune", "mean-regularised", "shrinkage", "head"] | None = (
        None  # how it is made (alone: nothing is adapted, a control); nothing: none
    )
    strength: float | None = None  # how strongly it is held to the common one; nothing: chosen at home
    when: Literal["after", "during"] | None = None  # made after the last round, or kept from round to round

    @field_validator("when")
    @classmethod
    def _nothing(cls, value: str | None) -> str | None:
        """After is as if it had not been said."""
        return None if value == "after" else value

    @property
    def during(self) -> bool:
        """Whether own models are trained in rounds, and so are a part of what is sent."""
        return self.when == "during"

    def possible(self) -> None:
        if self.during and self.kind != "mean-regularised":
            raise BadInput('personal.when = "during" is for personal.kind = "mean-regularised": leave it out.')
        if self.during and self.strength is None:
            raise BadInput(
                "During training personal.strength is in every update that is sent, and to choose it by clients' rows would have a"
                " price: say it, such as 0.1."
            )
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


def refuse_unkept(experiment: "Experiment") -> None:
    """Refuses own models during training where nobody could keep them, or something else moves the same steps. Raises BadInput."""
    if not experiment.personal.during:
        return
    train, strength = experiment.train, experiment.personal.strength or 0.0
    if experiment.privacy.kind not in ("local", "none"):
        raise BadInput(
            'personal.when = "during" follows what each client has released by itself: set privacy.kind = "local" or "none", or'
            " leave it out."
        )
    for key in ("proximal", "control"):
        if getattr(train, key):
            raise BadInput(f'personal.when = "during" and train.{key} pull the same steps elsewhere: leave one out.')
    for table in ("attack", "audit"):
        if experiment.said().get(table):
            raise BadInput(f"[{table}] is not known to own models during training: leave it out, or personal.when.")
    momentum, pulled = train.momentum or 0.0, (train.weight_decay or 0.0) + strength
    if train.learning_rate * pulled >= 2 * (1 + momentum):
        raise BadInput(
            "Expected train.learning_rate * (weight_decay + personal.strength) < 2 * (1 + momentum), got"
            f" {train.learning_rate * pulled:g}: steps would overshoot further and further, whatever the data."
        )


def refuse_deployed(experiment: "Experiment") -> None:
    """Refuses own models, and rows kept for them, where clients are sites of their own. Raises BadInput."""
    if experiment.personal.kind is not None or experiment.data.own_share is not None:
        raise BadInput(
            "In a deployment own models ([personal], data.own_share) are each site's own choice: leave them out, and set [personal]"
            " in the site.toml of whoever wants them."
        )
