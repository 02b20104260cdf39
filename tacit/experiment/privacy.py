"""`[privacy]` and `[protect]`: what is promised, to whom, by which noise, and how sums are encrypted. One class for each kind."""

# pyright: reportIncompatibleVariableOverride=false
# (a kind may narrow what its table takes: nothing is ever assigned)

import math
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from tacit import check
from tacit.errors import BadInput
from tacit.experiment.schema import Count, Part, Positive, Section, Share, Whole

KINDS = ("none", "local", "central", "distributed")
ADAPTIVE_START = 0.1  # the first clip of arXiv:1905.03871, from which it grows
ROWS_PER_PERSON = 8  # of a person with more; it costs time and no privacy
SMALLEST_CLIP = 1e-12  # below, norms and noise leave float32, and a clip means nothing (tacit/training/sgd.py)
ALL_OPT_OUT = (
    "privacy.epsilon = inf opts a client out, and here every client does, so nothing would be promised to anybody: set"
    ' privacy.kind = "none", or name a finite epsilon for some.'
)
Epsilon = float | tuple[float, ...] | str | dict[str, float] | dict[str, str]
Unit = Literal["record", "person", "client"]


class QueryShares(Section):
    """The share of every client's epsilon that a query may cost; those of training and of held-out rows are apart."""

    named: ClassVar[str] = "privacy.query_shares"

    ranges: Part | None = None  # the ranges of data.numeric (0.05)
    stats: Part | None = None  # the histograms of privacy.stats (0.1)
    evaluation: Share | None = None  # results on the rows of data.held_out (1: they pay for nothing else)


class AdaptiveClip(Section):
    """A clip that follows a quantile of the updates' norms, from `clip` on."""

    named: ClassVar[str] = "privacy.adaptive_clip"

    quantile: Part  # of the updates' norms
    learning_rate: Positive | None = None  # how fast the clip follows
    count_noise: Positive | None = None  # of the count that it follows by


class PrivacySection(Section):
    """What every kind has. `epsilon` is a number, a list, a table by client, a distribution's name or {file = "..."}; inf sets
    no limit, and beside finite ones opts a client out of local noise that is made for each epsilon. `delta` is for all runs of
    a ledger together; `delta_share` is this run's part of it, and a must where `ledger` names one that runs share."""

    public_cohorts: ClassVar[bool] = False  # whether everybody may know who takes part in a round: of the sampler

    kind: str = "none"  # none, local, central, distributed, or package.module:name
    unit: Unit | None = None  # whom epsilon protects; needed where several are possible
    rows_per_person: Count | None = None  # with unit = "person": a gradient is the mean over at most so many rows (8)
    epsilon: Epsilon | None = None  # a number for all, a table by client, a list, a distribution, or {file = ...}
    delta: Part = 1e-5  # of a client's whole ledger
    delta_share: Share | None = None  # the share of delta that this run may use
    clip: Annotated[float, Field(ge=SMALLEST_CLIP, allow_inf_nan=False)] = (
        1.0  # the largest norm of a gradient or update
    )
    level: Literal["own", "minimum", "maximum"] = "own"  # everybody at its own epsilon, the smallest, or the largest
    strategy: Literal["spread", "same-noise"] | None = None  # own noise for all rounds, or one noise and fewer rounds
    noise_multiplier: Positive | None = None  # noise over clip, said instead of derived
    ledger: str | None = None  # a file that several runs share

    if TYPE_CHECKING:  # keys of other kinds than this one are None
        stats: tuple[str, ...] | None = None
        query_shares: QueryShares | None = None
        weight_cap: int | None = None
        sampler: Literal["poisson", "cyclic"] | None = None
        adaptive_clip: AdaptiveClip | None = None
        network: Literal["unwatched"] | None = None
        bands: int | None = None
        noise: Literal["skellam", "discrete-gaussian"] | None = None
        share: Literal["even", "note-2020"] | None = None
        fewest_reports: int | None = None
        colluding: int | None = None
        groups: Literal[1, 2] | None = None
        bits: Literal[8, 12, 16] | None = None
        rotation: Literal["none", "hadamard"] | None = None
        rate_cap: float | None = None

    def possible(self) -> None:
        if self.ledger is not None and self.delta_share is None:
            raise BadInput(
                "privacy.ledger is for several runs, and each has its part of delta, said beforehand: set privacy.delta_share,"
                " for instance 0.1."
            )
        if self.noise_said and self.strategy == "spread":
            raise BadInput('strategy = "spread" derives the noise from epsilon: remove privacy.noise_multiplier.')
        for name, value in self._named().items():
            if value != math.inf:
                check.positive(**{f"privacy.epsilon{name}": value})
        if self.kind != "none" and self.epsilon is None:
            raise BadInput(f'privacy.kind = "{self.kind}" needs privacy.epsilon (inf sets no limit, and must be said).')
        if math.inf in self.listed:
            self._refuse_endless()

    def _refuse_endless(self) -> None:
        endless = self.level == "maximum" or all(value == math.inf for value in self.listed)
        if self.opts_out and endless:
            raise BadInput(ALL_OPT_OUT)
        if self.kind not in ("central", "distributed") or (self.level == "minimum" and not endless):
            return
        if self.own_rates or self.sums_records or not (endless or self.noise_said):
            raise BadInput(
                "privacy.epsilon = inf sets no limit: no noise or sampling rate follows from it, and nobody can opt out of a sum:"
                " give every client a number."
            )
        if not self.noise_said:
            raise BadInput(
                "privacy.epsilon = inf sets no limit, so there is no noise to derive: set privacy.noise_multiplier."
            )

    @property
    def opts_out(self) -> bool:
        """Whether a client whose epsilon is infinite opts out: each has its own noise, made for its own epsilon. Where the noise is
        given, or one for all, such a client is noised and charged like any other, and sets no limit."""
        return self.kind == "local" and self.rule == "spread"

    @property
    def foreign(self) -> bool:
        return ":" in self.kind

    @property
    def promises(self) -> bool:
        return self.kind != "none"

    @property
    def noise_said(self) -> bool:
        return self.noise_multiplier is not None

    @property
    def noises_records(self) -> bool:
        """Whether every client noises the gradients of its own records, or persons."""
        return self.kind == "local" and self.unit_kept != "client"

    @property
    def sums_records(self) -> bool:
        """Whether clients send sums of clipped gradients of records or persons, which are noised once all of them are added."""
        return self.kind in ("central", "distributed") and self.unit in ("record", "person")

    @property
    def person_rows(self) -> int | None:
        """At most how many rows of a person are drawn at a time; None where a person is not the unit."""
        return (self.rows_per_person or ROWS_PER_PERSON) if self.promises and self.unit == "person" else None

    @property
    def own_rates(self) -> bool:
        """Whether whole clients are drawn in secret, each as often as its own epsilon pays for."""
        if self.kind != "central" or self.sums_records or self.public_cohorts or self.level != "own":
            return False
        return (self.epsilon is not None and not self.listed) or len(set(self.listed)) > 1

    @property
    def listed(self) -> tuple[Any, ...]:
        """The epsilons that are written in the experiment itself: one for all, or each client's; empty where they are elsewhere."""
        return tuple(self._named().values())

    def _named(self) -> dict[str, Any]:
        if isinstance(self.epsilon, dict):
            in_file = set(self.epsilon) == {"file"} and isinstance(self.epsilon["file"], str)
            return {} if in_file else {f" of {name}": value for name, value in self.epsilon.items()}
        if isinstance(self.epsilon, tuple):
            return {f"[{place}]": value for place, value in enumerate(self.epsilon)}
        return {"": self.epsilon} if isinstance(self.epsilon, int | float) else {}

    @property
    def run_delta(self) -> float:
        """The delta that this run is calibrated and priced at: its part of all."""
        return self.delta * (1.0 if self.delta_share is None else self.delta_share)

    @property
    def unit_kept(self) -> Unit:
        return self.unit or ("client" if self.kind in ("central", "distributed") else "record")

    @property
    def known_shares(self) -> int:
        """How many clients may tell the server their shares of the noise: of records one at least, since every client reads the
        model and knows its own.
        """
        return self.colluding or int(self.sums_records)

    @property
    def rule(self) -> str:
        """The strategy that applies: a given noise is the same for all, otherwise budgets are spread."""
        return self.strategy or ("same-noise" if self.noise_said else "spread")


class Asking(PrivacySection):
    """The kinds under which clients may be asked for more than training."""

    stats: tuple[str, ...] | None = None  # columns of which noised histograms are asked before the first round
    query_shares: QueryShares | None = None  # the share of epsilon that each query may cost


class NoPrivacy(Asking):
    """Nothing is promised; an epsilon is still what rules weigh clients by."""

    kind: Literal["none"] = "none"

    def possible(self) -> None:
        super().possible()
        if self.epsilon is not None and "kind" not in self.model_fields_set:
            raise BadInput(
                'privacy.epsilon is set but privacy.kind is not: say kind = "local", "central" or "distributed", or "none".'
            )


class Local(Asking):
    """Every client clips and noises: the gradients of its records or persons, or with unit = "client" its whole update."""

    kind: Literal["local"] = "local"


class Trusted(PrivacySection):
    """A trusted server noises the sum of clipped updates."""

    kind: Literal["central"] = "central"
    unit: Literal["client"] | None = None
    weight_cap: Count | None = None  # clients weigh by their rows, up to so many


class Central(Trusted):
    """Cohorts are drawn in secret; where budgets differ, each client at the rate that its own pays for, and
    `train.clients_per_round` is the expected cohort. `network = "unwatched"` is a deployment's word, without which it has no
    secret cohorts: nobody whom the promise is against sees the network's traffic or the server's log, which both show who took
    part."""

    sampler: Literal["poisson"] | None = None  # each client by a coin of its own, in every round
    rate_cap: Annotated[float, Field(ge=1)] | None = None  # the largest ratio of sampling rates
    adaptive_clip: AdaptiveClip | None = None  # the clip follows a quantile of the updates' norms
    network: Literal["unwatched"] | None = None  # secret cohorts, deployed: nobody else sees the traffic and the log

    @model_validator(mode="before")
    @classmethod
    def _first_clip(cls, values: Any) -> Any:
        adapts = isinstance(values, dict) and values.get("adaptive_clip") is not None
        return {"clip": ADAPTIVE_START} | values if adapts else values


class Cyclic(Trusted):
    """Clients take turns in public, and the noise of rounds is correlated."""

    public_cohorts: ClassVar[bool] = True

    sampler: Literal["cyclic"] = "cyclic"  # in public, by turns
    bands: Count | None = None  # over how many rounds noise is correlated; default: as many as there are groups


class Distributed(PrivacySection):
    """Clients add shares of integer noise, sized for `fewest_reports` of which `colluding` may be known. "even" shares make the
    smallest sum carry `noise_multiplier`; those of "note-2020" (docs/papers.md) are smaller by the root of the cohort, and are
    priced at what they are worth. `groups = 2` sums loose and tight clients apart."""

    kind: Literal["distributed"] = "distributed"
    unit: Literal["client"] | None = None
    noise: Literal["skellam", "discrete-gaussian"] | None = None  # which integer noise (skellam)
    share: Literal["even", "note-2020"] | None = None  # how clients share the noise (even)
    fewest_reports: Count | None = None  # with fewer, nothing is opened
    colluding: Whole | None = None  # so many clients may tell the server their shares
    groups: Literal[1, 2] | None = None  # 2 has everybody in one of two sums, by its epsilon
    bits: Literal[8, 12, 16] | None = None  # of one coordinate on the grid (16)
    rotation: Literal["none", "hadamard"] | None = None  # what is done to updates before the grid (none)


class CentralRecords(PrivacySection):
    """A trusted server noises the sum of all clients' clipped gradients once: one step a round, record level. Every client has
    its own epsilon by its own sampling rate; `rate_cap` is how many times as often as another's a record may be drawn (unless
    said, the ratio by which noise and the bias of weights together are least)."""

    kind: Literal["central"] = "central"
    unit: Literal["record", "person"] = "record"
    rate_cap: Annotated[float, Field(ge=1)] | None = None  # the largest ratio of sampling rates


class DistributedRecords(PrivacySection):
    """The same where the server is not trusted: every client adds a share of integer noise to its sum, and only the sum of all
    is opened. Every member reads the model and knows its own share, so at least one is taken to collude."""

    kind: Literal["distributed"] = "distributed"
    unit: Literal["record", "person"] = "record"
    rate_cap: Annotated[float, Field(ge=1)] | None = None  # the largest ratio of sampling rates
    noise: Literal["skellam", "discrete-gaussian"] | None = None  # which integer noise (discrete-gaussian)
    fewest_reports: Count | None = None  # with fewer, nothing is opened
    colluding: Count | None = None  # so many clients may tell the server their shares (1)


class Foreign(PrivacySection):
    """Somebody else's kind; it is looked for when it is needed, not here."""

    def possible(self) -> None:
        super().possible()
        if self.unit is None:
            raise BadInput(
                f'privacy.kind = "{self.kind}" needs privacy.unit: say "record" or "client", whom its epsilon is about.'
            )


def _kind(values: Any) -> str | None:
    said = values if isinstance(values, dict) else vars(values) if isinstance(values, PrivacySection) else None
    kind = "none" if said is None else said.get("kind", "none")
    if kind in ("central", "distributed") and said is not None and said.get("unit") in ("record", "person"):
        return f"{kind}-records"
    if kind == "central" and said is not None and said.get("sampler") == "cyclic":
        return "cyclic"
    return None if not isinstance(kind, str) else "foreign" if ":" in kind else kind


Privacy = Annotated[
    Annotated[NoPrivacy, Tag("none")]
    | Annotated[Local, Tag("local")]
    | Annotated[Central, Tag("central")]
    | Annotated[Cyclic, Tag("cyclic")]
    | Annotated[CentralRecords, Tag("central-records")]
    | Annotated[Distributed, Tag("distributed")]
    | Annotated[DistributedRecords, Tag("distributed-records")]
    | Annotated[Foreign, Tag("foreign")],
    Discriminator(_kind),
]
PrivacySection.elsewhere = frozenset(
    {
        key
        for kind in (Local, Central, Cyclic, CentralRecords, Distributed, DistributedRecords)
        for key in kind.model_fields
    }
    - set(PrivacySection.model_fields)
)


class NewKey(Section):
    """The size and shape of a key that is made."""

    named: ClassVar[str] = "protect.key"

    bits: Literal[2048, 3072, 4096] = 3072
    shape: Literal["ordinary", "short-exponent", "safe-prime"] | None = (
        None  # default: ordinary, or safe-prime if split
    )


class ProtectSection(Section):
    """`[protect]`: how reports are encrypted on their way; unless it is said, they are not."""

    kind: Literal["none", "paillier", "masks"] = "none"  # how the server adds what it cannot read

    if TYPE_CHECKING:
        key: "str | NewKey | None" = None
        threshold: int | None = None

    @property
    def split(self) -> bool:
        """Whether every client has a share of the key instead of the whole."""
        return (self.threshold or 1) > 1

    @property
    def key_file(self) -> str | None:
        return self.key if isinstance(self.key, str) else None

    @property
    def new_key(self) -> NewKey:
        """The key that is made where no file has one, its shape included."""
        made = self.key if isinstance(self.key, NewKey) else NewKey()
        return NewKey(bits=made.bits, shape=made.shape or ("safe-prime" if self.split else "ordinary"))


class Unprotected(ProtectSection):
    """Reports are as they are."""

    kind: Literal["none"] = "none"


class Paillier(ProtectSection):
    """Encrypted sums. Without `key`, the file of a secret key, every start of a run makes a key of its own. `threshold = t`
    splits it: every client has a share, and t of them open a sum together; without it they have one key."""

    kind: Literal["paillier"] = "paillier"
    key: str | NewKey | None = (
        None  # the file of a key that is there already, or {bits = 3072, shape = "ordinary"} of a new one
    )
    threshold: Count | None = None  # how many holders must open a sum together

    def possible(self) -> None:
        if self.split and self.new_key.shape != "safe-prime":
            raise BadInput(
                f"Only safe-prime keys can be split, and protect.key.shape is {self.new_key.shape}: leave it out, or set"
                " protect.threshold = 1 for one key that all clients have."
            )


class Masks(ProtectSection):
    """Masks that cancel in the sum: far cheaper than ciphertexts, and nothing proves that a report is in range."""

    kind: Literal["masks"] = "masks"


def _protect(values: Any) -> str | None:
    kind = values.get("kind", "none") if isinstance(values, dict) else getattr(values, "kind", None)
    return kind if isinstance(kind, str) else None


Protect = Annotated[
    Annotated[Unprotected, Tag("none")] | Annotated[Paillier, Tag("paillier")] | Annotated[Masks, Tag("masks")],
    Discriminator(_protect),
]
ProtectSection.elsewhere = frozenset(set(Paillier.model_fields) - set(ProtectSection.model_fields))
