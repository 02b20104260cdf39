"""What a run does beside training: canaries, malicious clients, models of clients' own, and what clients are asked for a price."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from tacit.errors import BadInput
from tacit.experiment.data import DataSection
from tacit.experiment.schema import Count, NotNegative, OpenSection, Part, Section, Whole
from tacit.experiment.training import refuse_overshooting
from tacit.wire import digest_of

if TYPE_CHECKING:
    from tacit.experiment import Experiment

UNPLAIN = ("momentum", "weight_decay", "proximal", "control")


class AuditSection(Section):
    """`[audit]`: so many `canaries` are planted, each with a coin that decides whether it takes part. They are records with
    unit = "record", persons with "person", and clients where a client is what is protected."""

    canaries: Annotated[int, Field(ge=2)] | None = None  # how many are planted; default: none


class AttackSection(OpenSection):
    """`kind` is a class of tacit/engine/malicious.py, or "package.module:name"; the other keys are its options (`poison`,
    `boost`, `trigger`). As many as `clients` are malicious, or such a share of all; for `start` rounds they are honest. They
    want what carries their trigger to be taken for the class `target`, by its name; the first class, unless said. Under local
    DP they add their own noise, unless `noise` is "none"."""

    names_part: ClassVar[str] = "kind"

    kind: str = "replacement"  # replacement, dba, edge-case, adaptive, or package.module:name
    clients: Count | Part = 0.1  # how many are malicious: their number, or below 1 their share
    start: Whole = 0  # the first round in which they attack, counted from 0
    target: str | int | None = None  # the class that they want
    noise: Literal["own", "none"] = "own"  # whether they add the noise that local DP asks of them

    def count(self, everybody: int) -> int:
        """How many of all clients are malicious: at least one. Raises BadInput where nobody would be honest.

        >>> AttackSection(clients=0.1).count(20), AttackSection(clients=0.1).count(3), AttackSection(clients=2).count(3)
        (2, 1, 2)
        """
        wanted = self.clients if isinstance(self.clients, int) else max(1, round(self.clients * everybody))
        if wanted >= everybody:
            raise BadInput(
                f"Expected at least one honest client, and {wanted} of {everybody} would be malicious: lower"
                " attack.clients, or have more clients."
            )
        return wanted


class PersonalSection(Section):
    """`[personal]`: how each client adapts the global model on its own (`kind`, a file in tacit/personal). `strength` is lambda
    of `mean-regularised`; left out, each client finds its own by cross-validation. With `when = "during"` each client keeps an
    own model from round to round (MR-MTL), which is made of what it sends: it has the noise, and the epsilon, of that;
    `strength` is then in what is sent, and has to be said."""

    kind: Literal["alone", "mean-regularised", "head"] | None = None  # default: none is made
    strength: NotNegative | None = None  # how strongly it is held to the global one; default: chosen on the client
    when: Literal["after", "during"] | None = (
        None  # made after the last round (the default), or kept from round to round
    )

    @property
    def during(self) -> bool:
        """Whether own models are trained in rounds, and so are a part of what is sent."""
        return self.when == "during"

    def possible(self) -> None:
        if self.during and self.kind == "mean-regularised" and self.strength is None:
            raise BadInput(
                "During training personal.strength is in every update that is sent, and to choose it by clients' rows would have a"
                " price: say it, such as 0.1."
            )
        for key, said in (('when = "during"', self.during), ("strength", self.strength is not None)):
            if said and self.kind != "mean-regularised":
                raise BadInput(f'personal.{key} is for personal.kind = "mean-regularised": leave it out.')


# Queries: what is asked beside training, and the share of epsilon that each may cost.

RANGES, EVALUATION, STATS = "ranges", "evaluation", "stats"
USUAL = {RANGES: 0.05, EVALUATION: 1.0, STATS: 0.1}  # of epsilon; held-out rows are asked about nothing else
WORDS = {
    RANGES: "the ranges of data.numeric",
    EVALUATION: "results on the rows of data.held_out",
    STATS: "statistics of the columns of privacy.stats",
}
TRAINED_ON, HELD_OUT = "trained on", "held out"  # the sides of the coin that every record has tossed
SIDES = {RANGES: TRAINED_ON, EVALUATION: HELD_OUT, STATS: TRAINED_ON}  # whom each query is about
PAID = {  # how the price of a query stands to that of training, by whom it is about
    TRAINED_ON: "which is part of the epsilon of training and not added to it",
    HELD_OUT: "which the records held out pay, while those trained on pay for training: no record pays for both",
}


def shares(experiment: "Experiment") -> dict[str, float]:
    """The queries of an experiment, by name, and the share of every client's epsilon that each may cost.

    >>> from tacit.experiment import Experiment
    >>> shares(Experiment(data={"name": "csv", "path": "a.csv", "classes": 2, "numeric": {"chol": "private"}}))
    {'ranges': 0.05}
    """
    asked = {
        RANGES: bool(experiment.data.private_columns),
        EVALUATION: experiment.data.held_out is not None,
        STATS: bool(experiment.privacy.stats),
    }
    said = experiment.privacy.query_shares
    return {query: getattr(said, query, None) or USUAL[query] for query, wanted in asked.items() if wanted}


def split(experiment: "Experiment") -> str:
    """The name of the coin that decides which records are held out; empty where none are."""
    share = experiment.data.held_out
    return "" if share is None else digest_of(HELD_OUT, repr((experiment.seeds.data, share)))


def read_with(data: DataSection, ranges: Mapping[str, tuple[float, float]]) -> DataSection:
    """The section that reads rows with ranges which were found, in the place of those that it calls private.

    >>> read_with(DataSection(name="csv", path="a.csv", numeric={"chol": "private"}), {"chol": (0.0, 512.0)}).options()["numeric"]
    {'chol': (0.0, 512.0)}
    """
    return data.model_copy(update={"numeric": data.options()["numeric"] | dict(ranges)}) if ranges else data


def refuse_per_client(experiment: "Experiment", why: str) -> None:
    """Refuses an experiment whose promise is not per record and each client's own. Raises BadInput, which begins with why."""
    if experiment.privacy.person_rows is not None:
        raise BadInput(f'{why}, and of a person nobody counts yet: do not ask, or set privacy.unit = "record".')
    if experiment.privacy.sums_records:
        what = why.partition(" is priced")[0]
        raise BadInput(
            f'{what} cannot be priced yet where records\' sums are noised once: do not ask, or set privacy.kind = "local".'
        )
    if experiment.privacy.promises and not experiment.privacy.noises_records:
        raise BadInput(f'{why}: set privacy.kind = "local" with unit = "record", or do not ask.')


# What these cannot be combined with.


def refuse_persons(experiment: "Experiment") -> None:
    """Refuses a person as the unit where nobody says whose a row is, or where something else is about records. Raises BadInput."""
    privacy, data = experiment.privacy, experiment.data
    named = data.options().get("person") is not None
    if privacy.unit != "person" or not privacy.promises:
        if privacy.rows_per_person is not None and privacy.unit != "person":
            raise BadInput('privacy.rows_per_person is for privacy.unit = "person": leave it out.')
        if named and privacy.promises:
            refuse_unsaid(experiment)
        return
    if privacy.foreign:
        raise BadInput(
            'privacy.unit = "person" is for the kinds that draw and clip persons: set privacy.kind = "local", "central" or'
            ' "distributed".'
        )
    if not named and data.name == "csv":
        raise BadInput(NO_PERSONS)
    about = {
        "train.views": experiment.train.views,
        "[attack]": experiment.attack,
    }
    for what, said in about.items():
        if said:
            raise BadInput(
                f'privacy.unit = "person" does not go with {what}, which is about records: leave that out, or set unit ='
                ' "record", which promises one row.'
            )


NO_PERSONS = (
    'privacy.unit = "person" has to know whose each row is: set data.person = "patient_id" (csv), or pass persons= to'
    " tacit.Dataset."
)


def refuse_unsaid(experiment: "Experiment") -> None:
    """Refuses rows of persons where the promise would be about rows and nobody has said so. Raises BadInput."""
    if experiment.privacy.unit is None and experiment.privacy.unit_kept == "record":
        raise BadInput(
            "These rows name their persons, and an epsilon per record would be the promise for one row of a person: set"
            ' privacy.unit = "person", or "record" to say that rows are meant.'
        )


def refuse_unpriced(experiment: "Experiment") -> None:
    """Refuses queries that no ledger would pay for, and shares that no query has. Raises BadInput."""
    privacy, asked = experiment.privacy, shares(experiment)
    for query in privacy.query_shares.model_fields_set if privacy.query_shares else ():
        if query not in asked:
            raise BadInput(
                f"privacy.query_shares.{query} is for {WORDS[query]}, which are not asked for: leave it out."
            )
    if asked:
        what = " and ".join(WORDS[query] for query in asked)
        refuse_per_client(experiment, f"Asking the clients for {what} is priced per record")


def refuse_unauditable(experiment: "Experiment") -> None:
    """Refuses canaries where nothing is promised, and where nobody could read off what they did. Raises BadInput."""
    audit, privacy = experiment.audit, experiment.privacy
    if audit.canaries is None:
        return
    if not privacy.promises or privacy.foreign:
        raise BadInput(
            'audit.canaries are held against what is promised: set privacy.kind to "local", "central" or "distributed",'
            " or leave out [audit]."
        )
    if privacy.public_cohorts:
        raise BadInput(
            "What a canary did is read off noise that is independent in every round, and that of a cycle is not: leave out"
            " [audit], and use `tacit audit EXPERIMENT`, which covers it."
        )
    if privacy.own_rates:
        raise BadInput(
            "A canary client would need a sampling rate, and here every client has its own: leave out [audit], and use `tacit audit"
            " EXPERIMENT`, which covers it."
        )
    refuse_unplain(experiment, "[audit]")


def refuse_unplain(experiment: "Experiment", what: str) -> None:
    """Refuses canary records where an update is not made of plain steps: nobody could read off what they did. Raises BadInput.
    A whole update that is clipped and noised at the end may have been trained in any way."""
    for key in UNPLAIN if experiment.privacy.unit_kept != "client" else ():
        if getattr(experiment.train, key):
            raise BadInput(
                f"What a canary did is read off an update made of plain steps: leave out train.{key}, or {what}."
            )


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


def refuse_personal(experiment: "Experiment") -> None:
    """Refuses own models that nobody could judge or keep, or where something else moves the same steps. Raises BadInput."""
    personal, train = experiment.personal, experiment.train
    if personal.kind is not None and experiment.data.own_share is None:
        raise BadInput(
            "Own models are judged on rows that their client never trained on: set data.own_share, such as 0.2, or leave out"
            " [personal]."
        )
    if not personal.during:
        return
    if experiment.privacy.kind not in ("local", "none"):
        raise BadInput(
            'personal.when = "during" follows what each client has released by itself: set privacy.kind = "local" or "none", or'
            " leave it out."
        )
    for key in ("proximal", "control"):
        if getattr(train, key):
            raise BadInput(f'personal.when = "during" and train.{key} pull the same steps elsewhere: leave one out.')
    for table, said in (("attack", experiment.attack), ("audit", experiment.audit.canaries)):
        if said:
            raise BadInput(f"[{table}] is not known to own models during training: leave it out, or personal.when.")
    pulls = {"weight_decay": train.weight_decay, "personal.strength": personal.strength}
    refuse_overshooting(train.learning_rate, train.momentum, pulls)
