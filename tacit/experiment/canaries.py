"""`[audit]`: canaries in a real run. Left out, not one bit of a run changes."""

from typing import TYPE_CHECKING, Literal

from tacit import check
from tacit.errors import BadInput
from tacit.experiment.section import Section

if TYPE_CHECKING:
    from tacit.experiment import Experiment

UNPLAIN = ("momentum", "weight_decay", "proximal", "control")


class AuditSection(Section):
    """`[audit]`: so many `canaries` are planted, each with a coin that decides whether it takes part.

    They are records under local DP with unit = "record", and clients where a client is what is protected. `placement = "gradient"`,
    the default, plants what a record's clipped gradient could be, and "record" rows that are clipped like any other.
    """

    canaries: int | None = None  # how many are planted; nothing: none
    placement: Literal["gradient", "record"] | None = None  # in gradients, or as rows that are made up

    def possible(self) -> None:
        if self.canaries is not None:
            check.at_least(2, **{"audit.canaries": self.canaries})
        elif self.placement is not None:
            raise BadInput("audit.placement says where audit.canaries are planted: set those too, or leave it out.")


def refuse_unauditable(experiment: "Experiment") -> None:
    """Refuses canaries where nothing is promised, and where nobody could read off what they did. Raises BadInput."""
    audit, privacy, train = experiment.audit, experiment.privacy, experiment.train
    if audit.canaries is None:
        return
    if privacy.kind not in ("local", "central", "distributed"):
        raise BadInput(
            'audit.canaries are held against what is promised: set privacy.kind to "local", "central" or "distributed",'
            " or leave out [audit]."
        )
    if experiment.run.engine != "tacit":
        raise BadInput("audit.canaries are planted where Tacit itself trains: leave out run.engine.")
    if privacy.noise_formula is not None:
        raise BadInput("privacy.noise_formula promises nothing that canaries could be held against: leave out [audit].")
    by_record = privacy.kind == "local" and privacy.unit_kept == "record"
    if audit.placement is not None and not by_record:
        raise BadInput('audit.placement is for records (privacy.kind = "local", unit = "record"): leave it out.')
    if audit.placement == "record":
        if train.views is not None or experiment.run.at_once or experiment.run.device != "cpu":
            raise BadInput(
                'audit.placement = "record" is for rows as they are, trained one by one on a CPU: leave out train.views,'
                " run.at_once and run.device."
            )
        return  # read off every step, whatever is made of it
    refuse_unplain(experiment, "[audit]")
    if privacy.kind == "central" and train.sampler == "fixed":
        raise BadInput(
            "With cohorts of a fixed size a client is replaced, never added: canaries that come or go measure another promise."
            ' Set train.sampler = "poisson", or leave out [audit].'
        )


def refuse_unplain(experiment: "Experiment", what: str) -> None:
    """Refuses canary records where an update is not made of plain steps: nobody could read off what they did. Raises BadInput.

    A whole update that is clipped and noised at the end may have been trained in any way.
    """
    for key in UNPLAIN if experiment.privacy.unit_kept == "record" else ():
        if getattr(experiment.train, key):
            raise BadInput(
                f"What a canary did is read off an update made of plain steps: leave out train.{key}, or {what}."
            )
