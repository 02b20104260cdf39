"""What a search costs, and the noise that keeps a budget.

Where only the best model is seen (simulated central DP), it is the price of the best of a random number of runs
(tacit/privacy/accounting/selected.py). Where updates or sums of every run are seen by somebody whom the promise is against, it is
that of all runs together: composition, of a number that is fixed and public."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dp_accounting import DpEvent, NoOpDpEvent, SelfComposedDpEvent

from tacit.data.population import Population
from tacit.engine.assemble import Parts
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.experiment.extras import EVALUATION, shares
from tacit.experiment.file import refuse_passed
from tacit.lab.compare.grid import expand, label
from tacit.privacy.accounting import price
from tacit.privacy.accounting.calibrate import smallest
from tacit.privacy.accounting.events import counted
from tacit.privacy.accounting.selected import Repetitions, best_of
from tacit.privacy.central.kind import one_budget
from tacit.privacy.central.mechanism import CohortGaussian
from tacit.privacy.ledger.sql import ALL
from tacit.privacy.plan import sampler_of

# What a search chooses among: every combination of the varied settings, all about the same rows, clients and score.

SEARCHED = ("train", "model", "aggregate")  # tables all of whose keys may be varied
NOISING = ("clip", "adaptive_clip", "noise_multiplier", "weight_cap")  # of [privacy]
NO_SCORE = (
    "A search is scored on public rows, and there are none: name a file of public rows (data.test_path), or set data.test_share,"
    " which makes that share of the clients' own rows public; or, under local DP per record, data.held_out, by which clients answer"
    " once in every run, at a price."
)


@dataclass(frozen=True)
class Candidate:
    """One combination of settings: what it varies, in words too, and its experiment, without ledger and folder."""

    label: str
    varied: dict[str, Any]
    experiment: Experiment = field(repr=False)


def candidates(values: Mapping[str, Any], vary: Mapping[str, Sequence[Any]]) -> list[Candidate]:
    """Every combination once. Raises BadInput for what a search cannot vary, or cannot have at all."""
    if not vary:
        raise BadInput("Nothing is varied, so there is nothing to choose: add --vary train.learning_rate=0.1,0.3,1.")
    for key in vary:
        _refuse_key(key)
    own = {name: dict(part) if isinstance(part, Mapping) else part for name, part in values.items()}
    own.get("privacy", {}).pop("ledger", None)
    own.get("run", {}).pop("out", None)
    base = Experiment(**own)
    refuse_unsearchable(base)
    run = base.run
    cells = expand(own, vary, seeds=1)
    for cell in cells:  # what is varied may make a candidate what the base is not
        refuse_unsearchable(cell.experiments[0].model_copy(update={"run": run}))
    return [
        Candidate(
            label(cell.varied) or cell.label, _said(cell.varied), cell.experiments[0].model_copy(update={"run": run})
        )
        for cell in cells
    ]


def _said(varied: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in varied.items() if value is not None}


def _refuse_key(key: str) -> None:
    section, _, name = key.partition(".")
    if section in SEARCHED or key == "seed.model" or (section == "privacy" and name in NOISING) or not name:
        return  # a key without a section is refused with the grid
    raise BadInput(
        f"A search cannot vary {key}: its runs are about the same rows, score and promise, so it varies [train], [model],"
        f" [aggregate] and privacy.{', '.join(NOISING)}."
    )


def refuse_unsearchable(experiment: Experiment) -> None:
    """Refuses what has no price in a search, or would show its losers. Raises BadInput."""
    privacy = experiment.privacy
    if not privacy.promises:
        raise BadInput("Nothing is promised here, so that a search has no price: use `tacit compare`.")
    if set(shares(experiment)) - {EVALUATION}:
        raise BadInput(
            "Every run would ask for ranges or statistics again, which decide nothing in a search: ask before it, and leave out"
            " privacy.stats and private ranges."
        )
    for table in ("attack", "audit", "personal"):
        if experiment.said().get(table):
            raise BadInput(f"[{table}] looks into every run, and of a search only the best is seen: leave it out.")
    if experiment.run.writers:
        raise BadInput("run.writers would be told of runs that lose, which nobody may see: leave it out.")
    if experiment.privacy.sampler not in (None, "poisson"):
        raise BadInput(
            "No price is known for the best of runs whose cohorts are public, or of a fixed size: set privacy.sampler ="
            ' "poisson".'
        )
    refuse_passed(experiment)


@dataclass(frozen=True)
class Releases:
    """What a client releases in one run that is seen: an event, how often at most, and what it is asked once beside it."""

    event: DpEvent
    times: int
    asked: tuple[tuple[str, DpEvent], ...] = ()

    def in_runs(self, count: int) -> price.Composition:
        """All of it in so many runs: every run is scored by an answer of its own, which is another release."""
        return price.compose([(self.event, self.times * count), *((query, count) for _, query in self.asked)])


@dataclass(frozen=True)
class Priced:
    """A search with its noise: `runs` are the candidates as they are run, and `events` what each client pays, once, for all, beside
    what it is `asked` in all of them by the query that scores them.

    Under "" stands what everybody pays. The epsilons are those of the client that pays most, at `delta`: of one run, of the best
    of about so many where nothing else is seen (None where that has no price), and of all of them where all are seen.
    """

    hidden: bool
    repetitions: Repetitions
    runs: tuple[Candidate, ...] = field(repr=False)
    events: Mapping[str, DpEvent] = field(repr=False)
    delta: float
    one: float
    best: float | None
    composed: float
    asked: Mapping[str, Mapping[str, DpEvent]] = field(default_factory=dict, repr=False)

    @property
    def count(self) -> int:
        """How many runs are seen, where all are; where the number is drawn, about how many there are."""
        return round(self.repetitions.mean)

    @property
    def epsilon(self) -> float:
        """What the search costs."""
        return self.best if self.hidden and self.best is not None else self.composed


def hidden(candidates: Sequence[Candidate], population: Population, law: Repetitions) -> Priced:
    """The price of a search of which only the best model is seen, by central DP.

    Noise that is said is kept; else every candidate gets the least, to 0.1 %, with which the search keeps the clients' epsilon.

    Guarantee: with noise derived here the search costs at most what other runs of the ledger have left of epsilon.

    Raises: BadInput where budgets differ or set no limit, and where some candidates say their noise and others do not.
    """
    said = [candidate.experiment.privacy.noise_multiplier for candidate in candidates]
    if None in said and any(said):
        raise BadInput("Some candidates say privacy.noise_multiplier and others do not: say it for all, or for none.")
    epsilon, delta, size = one_budget(population), population.delta, len(population)
    how = {"delta": delta, "accountant": candidates[0].experiment.privacy.accountant}
    made = [(_cohort(candidate.experiment, size), candidate.experiment.train.rounds) for candidate in candidates]

    def cost(multipliers: Sequence[float], which: Sequence[tuple[CohortGaussian, int]]) -> float:
        runs = [
            (replace(m, noise_multiplier=z).event(), rounds) for z, (m, rounds) in zip(multipliers, which, strict=True)
        ]
        return price.epsilon(((best_of(law, runs), 1),), delta=delta)

    multipliers = [z or 1.0 for z in said]
    if None in said:
        if epsilon == math.inf:
            raise BadInput("epsilon = inf sets no limit, so there is no noise to derive: set privacy.noise_multiplier.")
        alone = {one: smallest(lambda z, one=one: cost([z], [one]), epsilon=epsilon) for one in dict.fromkeys(made)}
        multipliers = [alone[one] for one in made]
        if len(alone) > 1:  # the dearest at one order need not be the dearest at another
            first = multipliers
            by = smallest(lambda by: cost([by * z for z in first], made), epsilon=epsilon)
            multipliers = [by * z for z in first]
    runs = [(replace(m, noise_multiplier=z).event(), rounds) for z, (m, rounds) in zip(multipliers, made, strict=True)]
    event = best_of(law, runs)
    one = max(price.epsilon((run,), **how) for run in runs)
    composed = max(price.epsilon(((of, times * round(law.mean)),), **how) for of, times in runs)
    noised = tuple(_noised(candidate, z) for candidate, z in zip(candidates, multipliers, strict=True))
    best = price.epsilon(((event, 1),), delta=delta)
    return Priced(True, law, noised, {"": event}, delta, one=one, best=best, composed=composed)


def refuse_unpriced(priced: Priced, parts: Parts) -> None:
    """Refuses a run that releases anything else than the price of a search of which only the best is seen was computed of.

    Noise and price come from one object: what is charged here is computed before a run is built, and held against what was built.

    Raises: BadInput.
    """
    event, times = counted(parts.algorithm.cost(parts.population[0]) or NoOpDpEvent())
    known = getattr(priced.events[ALL], "runs", ())
    if not parts.plan.sampler.charges_all or (event, times * parts.experiment.train.rounds) not in known:
        raise BadInput("no price is known for the best of such runs: use `tacit compare`, whose runs add up.")


def _cohort(experiment: Experiment, size: int) -> CohortGaussian:
    who = sampler_of(experiment, size)
    return CohortGaussian(1.0, 1.0, population=size, cohort=who.cohort)


def _noised(candidate: Candidate, multiplier: float) -> Candidate:
    """The candidate with its noise said."""
    experiment = candidate.experiment
    privacy = experiment.privacy.model_copy(update={"noise_multiplier": multiplier, "strategy": None})
    return replace(candidate, experiment=experiment.model_copy(update={"privacy": privacy}))


def unsaid(candidate: Candidate) -> Candidate:
    """The candidate without its noise, which then follows from epsilon."""
    privacy = candidate.experiment.privacy.model_copy(update={"noise_multiplier": None})
    return replace(candidate, experiment=candidate.experiment.model_copy(update={"privacy": privacy}))


def all_seen(
    runs: Sequence[Candidate], paid: Mapping[str, Releases], law: Repetitions, *, delta: float, accountant: str
) -> Priced:
    """The price of a search all of whose runs are seen, from what every client releases in one of them."""
    count = round(law.mean)

    def most(times: int) -> float:
        made = {one.in_runs(times) for one in paid.values()}
        return max(price.epsilon(one, delta=delta, accountant=accountant) for one in made)

    return Priced(
        False,
        law,
        tuple(runs),
        {name: SelfComposedDpEvent(one.event, one.times * count) for name, one in paid.items()},
        delta,
        one=most(1),
        best=_best(paid, law, delta=delta),
        composed=most(count),
        asked={name: {query: SelfComposedDpEvent(of, count) for query, of in one.asked} for name, one in paid.items()},
    )


def _best(paid: Mapping[str, Releases], law: Repetitions, *, delta: float) -> float | None:
    """What the best alone would cost; None where that has no price here, as of integer noise and of scores that clients answer."""
    if any(one.asked for one in paid.values()):
        return None
    try:
        runs = {(one.event, one.times) for one in paid.values()}
        return max(price.epsilon(((best_of(law, [run]), 1),), delta=delta) for run in runs)
    except BadInput:
        return None
