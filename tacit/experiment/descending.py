"""The keys of `[train]` that say how a client descends: momentum, weight decay, FedProx, SCAFFOLD, and rates over rounds."""

from typing import Literal

from pydantic import field_validator

from tacit import check
from tacit.errors import BadInput
from tacit.experiment.section import Section

SMALLEST_RATE = 1e-12  # what noise is still weighed by
STEP_FACTOR = 0.1  # as torch.optim.lr_scheduler.StepLR has it


class Descending(Section):
    """`momentum` and `weight_decay` are torch.optim.SGD's; momentum starts at zero in every round. `proximal` is FedProx's mu.

    `schedule` moves the learning rate over rounds: "cosine" to `final_learning_rate` (0), or "step", times `step_factor` (0.1)
    after every `step_rounds`. `control = "scaffold"` corrects each client's drift. Left out, 0, "constant" and "none" are one.
    """

    momentum: float | None = None  # of a client's steps, from zero in every round
    weight_decay: float | None = None  # how strongly a step pulls towards zero
    proximal: float | None = None  # FedProx: how strongly towards the round's first model
    schedule: Literal["constant", "cosine", "step"] | None = None  # how the learning rate changes over rounds
    final_learning_rate: float | None = None  # of cosine: that of the last round
    step_rounds: int | None = None  # of step: after so many rounds the rate falls
    step_factor: float | None = None  # of step: to this share of it
    control: Literal["none", "scaffold"] | None = None  # scaffold: clients correct their drift by control variates

    @field_validator("momentum", "weight_decay", "proximal")
    @classmethod
    def _nothing(cls, value: float | None) -> float | None:
        """Zero is as if it had not been said, so that noise is keyed alike."""
        return value or None

    @field_validator("schedule", "control")
    @classmethod
    def _nothing_named(cls, value: str | None) -> str | None:
        return None if value in ("constant", "none") else value

    def possible_descent(self, learning_rate: float, rounds: int) -> None:
        """Raises BadInput for numbers with which no training ends well, and for keys without effect."""
        for key in ("momentum", "weight_decay", "proximal"):
            check.at_least(0, **{f"train.{key}": getattr(self, key) or 0})
        momentum, pulled = self.momentum or 0.0, (self.weight_decay or 0.0) + (self.proximal or 0.0)
        if momentum >= 1:
            raise BadInput(f"Expected 0 <= train.momentum < 1, got {self.momentum!r}.")
        if learning_rate * pulled >= 2 * (1 + momentum):  # the heavy ball leaves every bound
            raise BadInput(
                "Expected train.learning_rate * (weight_decay + proximal) < 2 * (1 + momentum), got"
                f" {learning_rate * pulled:g}: steps would overshoot further and further, whatever the data."
            )
        self._possible_schedule(learning_rate, rounds)

    def _possible_schedule(self, learning_rate: float, rounds: int) -> None:
        for key, schedule in (("final_learning_rate", "cosine"), ("step_rounds", "step"), ("step_factor", "step")):
            if getattr(self, key) is not None and self.schedule != schedule:
                raise BadInput(f'train.{key} is for train.schedule = "{schedule}": set that, or leave it out.')
        if self.schedule == "cosine":
            check.at_least(0, **{"train.final_learning_rate": self.final_learning_rate or 0})
            if (self.final_learning_rate or 0) > learning_rate:
                raise BadInput("Expected train.final_learning_rate <= train.learning_rate: a schedule goes down.")
        if self.schedule == "step":
            if self.step_rounds is None:
                raise BadInput(
                    'train.schedule = "step" lowers the learning rate after every train.step_rounds: set them.'
                )
            check.at_least(1, **{"train.step_rounds": self.step_rounds})
            factor = STEP_FACTOR if self.step_factor is None else self.step_factor
            check.rate(**{"train.step_factor": factor})
            if learning_rate * factor ** ((rounds - 1) // self.step_rounds) < SMALLEST_RATE:
                raise BadInput(
                    f"In round {rounds} the learning rate would be below {SMALLEST_RATE:g}: raise train.step_rounds or"
                    " train.step_factor."
                )
