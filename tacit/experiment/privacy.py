"""The `[privacy]` table of an experiment file: what is promised, to whom, and by which noise."""

import math
from typing import Any, Literal

from pydantic import Field, model_validator

from tacit import check
from tacit.errors import BadInput
from tacit.experiment.schema import Section

KINDS = ("none", "local", "central", "distributed")
ADAPTIVE_START = 0.1  # the first clip of arXiv:1905.03871, from which it grows
SMALLEST_CLIP = 1e-12  # below, norms and noise leave float32, and a clip means nothing (tacit/training/clipping.py)
Epsilon = float | tuple[float, ...] | str | dict[str, float] | dict[str, str]


class PrivacySection(Section):
    """`[privacy]`: what is promised.

    `epsilon` is a number, a list, a table by client, a distribution's name or {file = "..."}; inf sets no limit. `level` gives
    every client the smallest or the largest of the budgets instead of its own: the bounds of a comparison.
    `delta` is for all runs of a ledger together; `delta_share` is this run's part of it, said beforehand: all of it where the run
    has a ledger of its own, and a must where `ledger` names one that runs share.
    `ranges_share` is the share of epsilon that asking for the ranges of `data.numeric` may cost (0.05), `evaluation_share` that of
    asking for results on held-out rows (all of it: nothing else is asked about those). `stats` names columns whose noised
    histograms every client releases once, before the first round, for `stats_share` of epsilon (0.1).
    `clip_quantile` makes the clip of central DP follow that quantile of the updates' norms, from `clip` (0.1) on.
    `bands` says over how many rounds the noise of central DP with train.sampler = "cyclic" is correlated: as many as there are
    groups, unless said; 1 is independent noise.
    `network = "unwatched"` is a deployment's word, without which it has no secret cohorts: that nobody whom the promise is against
    sees the network's traffic or the server's log, which both show who took part.
    Distributed DP adds shares of integer `noise`, sized for `fewest_reports` of which `colluding` may be known; `share` says
    how large each is: "even" shares make the smallest sum carry `noise_multiplier`; those of "note-2020" (docs/papers.md) are
    smaller by the root of the cohort, and are priced at what they are worth. `groups = 2` sums loose and tight clients apart.
    """

    kind: str = "none"  # none, local, central, distributed, or package.module:name
    unit: Literal["record", "client"] | None = None  # whom epsilon protects; needed where both are possible
    epsilon: Epsilon | None = (
        None  # a number for all, a table by client, a list, a distribution's name, or {file = ...}
    )
    epsilon_seed: int | None = Field(default=None, ge=0)  # of who draws which epsilon; nothing: run.seed
    delta: float = 1e-5  # of a client's whole ledger
    delta_share: float | None = None  # the share of delta that this run may use
    clip: float = 1.0  # the largest norm of a gradient or an update
    level: Literal["own", "minimum", "maximum"] = "own"  # everybody at its own epsilon, the smallest, or the largest
    strategy: Literal["spread", "same-noise"] | None = (
        None  # local: own noise for all rounds, or one noise, fewer rounds
    )
    noise_multiplier: float | None = None  # noise over clip, said instead of derived
    accountant: Literal["pld", "rdp"] = "pld"  # how releases are priced
    ledger: str | None = None  # a file that several runs share
    ranges_share: float | None = None  # the share of epsilon that private ranges of columns may cost
    evaluation_share: float | None = None  # the share that the query about held-out rows may cost
    stats: tuple[str, ...] | None = None  # columns of which noised histograms are asked before the first round
    stats_share: float | None = None  # the share that these may cost
    weight_cap: int | None = None  # central: clients weigh by their rows, up to so many
    clip_quantile: float | None = None  # central: the clip follows this quantile of the updates' norms
    clip_learning_rate: float | None = None  # how fast it follows
    count_noise: float | None = None  # of the count that it follows by
    bands: int | None = None  # cyclic cohorts: over how many rounds noise is correlated; nothing: as many as groups
    network: Literal["unwatched"] | None = None  # secret cohorts, deployed: nobody else sees the traffic and the log
    noise: Literal["skellam", "discrete-gaussian"] | None = None  # distributed: which integer noise
    share: Literal["even", "note-2020"] | None = None  # distributed: how clients share the noise
    fewest_reports: int | None = None  # distributed: with fewer, nothing is opened
    colluding: int | None = None  # distributed: so many clients may tell the server their shares
    groups: Literal[1, 2] | None = None  # distributed: 2 has everybody in one of two sums, by its epsilon

    @property
    def noise_said(self) -> bool:
        """Whether the noise is said, and does not follow from budgets."""
        return self.noise_multiplier is not None

    @model_validator(mode="before")
    @classmethod
    def _first_clip(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("clip_quantile") is not None:
            return {"clip": ADAPTIVE_START} | values
        return values

    @model_validator(mode="before")
    @classmethod
    def _renamed_share(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("share") == "seed":
            raise BadInput('privacy.share = "seed" is called "note-2020" now: write that.')
        return values

    def possible(self) -> None:
        if self.foreign:  # it is looked for when it is needed, not here
            if self.unit is None:
                raise BadInput(
                    f'privacy.kind = "{self.kind}" needs privacy.unit: say "record" or "client", whom its epsilon is about.'
                )
        else:
            check.one_of(KINDS, **{"privacy.kind": self.kind})
        self._possible_client_level()
        check.probability(**{"privacy.delta": self.delta})
        if self.ledger is not None and self.delta_share is None:
            raise BadInput(
                "privacy.ledger is for several runs, and each has its part of delta, said beforehand: set privacy.delta_share,"
                " for instance 0.1."
            )
        check.rate(**{"privacy.delta_share": 1.0 if self.delta_share is None else self.delta_share})
        check.positive(**{"privacy.clip": self.clip})
        if self.kind != "none":
            check.at_least(SMALLEST_CLIP, **{"privacy.clip": self.clip})
        if self.noise_multiplier is not None:
            check.positive(**{"privacy.noise_multiplier": self.noise_multiplier})
            if self.strategy == "spread":
                raise BadInput('strategy = "spread" derives the noise from epsilon: remove privacy.noise_multiplier.')
        if isinstance(self.epsilon, int | float) and self.epsilon != math.inf:
            check.positive(**{"privacy.epsilon": self.epsilon})
        if self.epsilon is not None and "kind" not in self.model_fields_set:
            raise BadInput(
                'privacy.epsilon is set but privacy.kind is not: say kind = "local", "central" or "distributed", or "none".'
            )
        if self.kind != "none" and self.epsilon is None:
            raise BadInput(f'privacy.kind = "{self.kind}" needs privacy.epsilon (inf sets no limit, and must be said).')

    def _possible_client_level(self) -> None:
        """What belongs to client-level DP is refused elsewhere."""
        if self.kind in ("central", "distributed") and self.unit == "record":
            raise BadInput(f'privacy.kind = "{self.kind}" protects whole clients: leave out privacy.unit.')
        if self.noise_multiplier == 0 and self.kind != "none":
            raise BadInput("privacy.noise_multiplier = 0 adds no noise, and without noise no epsilon holds: raise it.")
        for key in ("weight_cap", "clip_quantile", "clip_learning_rate", "count_noise"):
            if getattr(self, key) is not None and self.kind != "central":
                raise BadInput(f'privacy.{key} belongs to privacy.kind = "central": leave it out.')
        for key in ("clip_learning_rate", "count_noise"):
            if getattr(self, key) is not None and self.clip_quantile is None:
                raise BadInput(
                    f"privacy.{key} is for a clip that adapts: set privacy.clip_quantile too, or leave it out."
                )
        for key in ("weight_cap", "clip_quantile", "clip_learning_rate", "count_noise"):
            if getattr(self, key) is not None:
                (check.probability if key == "clip_quantile" else check.positive)(
                    **{f"privacy.{key}": getattr(self, key)}
                )

        for key in ("noise", "share", "fewest_reports", "colluding", "groups"):
            if getattr(self, key) is not None and self.kind != "distributed":
                raise BadInput(f'privacy.{key} belongs to privacy.kind = "distributed": leave it out.')
        check.at_least(1, **{"privacy.fewest_reports": 1 if self.fewest_reports is None else self.fewest_reports})
        check.at_least(0, **{"privacy.colluding": self.colluding or 0})

    @property
    def foreign(self) -> bool:
        """Whether the kind is somebody else's."""
        return ":" in self.kind

    @property
    def promises(self) -> bool:
        """Whether an epsilon is promised at all."""
        return self.kind != "none"

    @property
    def noises_records(self) -> bool:
        """Whether every client noises the gradients of its own records."""
        return self.kind == "local" and self.unit_kept == "record"

    @property
    def run_delta(self) -> float:
        """The delta that this run is calibrated and priced at: its part of all."""
        return self.delta * (1.0 if self.delta_share is None else self.delta_share)

    @property
    def unit_kept(self) -> Literal["record", "client"]:
        """Whom the promise is about."""
        return self.unit or ("client" if self.kind in ("central", "distributed") else "record")

    @property
    def rule(self) -> str:
        """The strategy that applies: a given noise is the same for all, otherwise budgets are spread."""
        return self.strategy or ("same-noise" if self.noise_said else "spread")
