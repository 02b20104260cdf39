"""The `[attack]` table of an experiment file: malicious clients, in simulations alone. Absent, nothing changes."""

from typing import TYPE_CHECKING, ClassVar, Literal

from tacit import check
from tacit.errors import BadInput
from tacit.experiment.section import OpenSection

if TYPE_CHECKING:
    from tacit.experiment import Experiment

SHARE = 0.1  # of the clients, unless said
NOBODY_MALICIOUS = (
    "[attack] makes clients of a simulation malicious, and in a deployment nobody is on purpose: leave it out."
)


class AttackSection(OpenSection):
    """`kind` is a file of tacit/malicious, or "package.module:name"; the other keys are its options (`poison`, `boost`, `trigger`).

    `share` of the clients, or as many as `clients`, are malicious; for `start` rounds they are honest. They want what carries
    their trigger to be taken for the class `target`, by its name; the first class, unless said. Under local DP they add their
    own noise, unless `noise` is "none".
    """

    names_part: ClassVar[str] = "kind"

    kind: str = "replacement"  # replacement, dba, edge-case, neurotoxin, adaptive, or package.module:name
    share: float | None = None  # of the clients that are malicious
    clients: int | None = None  # the same as a number
    start: int = 0  # the first round in which they attack, counted from 0
    target: str | int | None = None  # the class that they want
    noise: Literal["own", "none"] = "own"  # whether they add the noise that local DP asks of them

    def possible(self) -> None:
        self.refuse_both("attack", "share", "clients")
        if self.share is not None:
            check.probability(**{"attack.share": self.share})
        if self.clients is not None:
            check.at_least(1, **{"attack.clients": self.clients})
        check.at_least(0, **{"attack.start": self.start})

    def count(self, everybody: int) -> int:
        """How many of all clients are malicious: at least one. Raises BadInput where nobody would be honest.

        >>> AttackSection(share=0.1).count(20), AttackSection(share=0.1).count(3), AttackSection(clients=2).count(3)
        (2, 1, 2)
        """
        wanted = self.clients or max(1, round((SHARE if self.share is None else self.share) * everybody))
        if wanted >= everybody:
            raise BadInput(
                f"Expected at least one honest client, and {wanted} of {everybody} would be malicious: lower"
                f" attack.{'clients' if self.clients else 'share'}, or have more clients."
            )
        return wanted


def refuse_attack(experiment: "Experiment") -> None:
    """Refuses malicious clients where what they do could not be simulated, or a promise about others be kept. Raises BadInput."""
    attack, privacy = experiment.attack, experiment.privacy
    if attack is None:
        return
    if privacy.kind not in ("none", "local", "central"):
        raise BadInput(
            "A malicious client under secret sums seals numbers that no grid bounds, which is not simulated: with [attack] set"
            ' privacy.kind to "none", "local" or "central".'
        )
    if privacy.ledger is not None:
        raise BadInput(
            "Malicious clients keep to no mechanism, so that what a shared ledger says of them would not hold in other runs: with"
            " [attack] leave out privacy.ledger."
        )
    if experiment.run.engine != "tacit":
        raise BadInput(
            f'run.engine = "{experiment.run.engine}" has no malicious clients: leave it out, or leave out [attack].'
        )
    if experiment.audit.canaries:
        raise BadInput(
            "Canaries are held against what honest clients are promised: leave out audit.canaries, or leave out [attack]."
        )
    if attack.noise == "none" and privacy.kind != "local":
        raise BadInput(
            'attack.noise = "none" is for the noise that clients add themselves (privacy.kind = "local"): leave it out.'
        )
    if attack.start >= experiment.train.rounds:
        raise BadInput(
            f"Expected attack.start < train.rounds = {experiment.train.rounds}, got {attack.start}: nobody would ever attack."
        )
