"""What a search costs, the noise that keeps a budget, and its payment: once, all of it, before anything is run.

Where only the best model is seen (simulated central DP), it is the price of the best of a random number of runs
(tacit/privacy/accounting/events.py). Where updates or sums of every run are seen by somebody whom the promise is against, it is
that of all runs together: composition, of a number that is fixed and public."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, Context
from pathlib import Path
from typing import Any

import numpy as np
from dp_accounting import DpEvent, NoOpDpEvent, SelfComposedDpEvent

from tacit.data.dataset import Dataset
from tacit.data.population import Population
from tacit.engine.assemble import Parts, assemble
from tacit.engine.release import package
from tacit.engine.run_folder import SEARCH, Folder
from tacit.errors import BadInput, BudgetExhausted, LedgerError
from tacit.experiment import Experiment
from tacit.experiment.extras import EVALUATION, shares
from tacit.experiment.file import refuse_passed
from tacit.lab.compare.grid import expand, label
from tacit.privacy.accounting import price
from tacit.privacy.accounting.events import Repetitions, best_of, counted
from tacit.privacy.accounting.price import smallest
from tacit.privacy.central.kind import one_budget
from tacit.privacy.central.mechanism import CohortGaussian
from tacit.privacy.guarantee import shown
from tacit.privacy.ledger.disk import ALL
from tacit.privacy.ledger.ledger import NOTHING, ROUNDING, Before, Ledger, Spent, most_releases
from tacit.privacy.ledger.reader import noted, read_before
from tacit.privacy.plan import sampler_of
from tacit.wire import digest_of

SEARCHED = ("train", "model", "aggregate")  # tables all of whose keys may be varied
NOISING = ("clip", "adaptive_clip", "noise_multiplier", "weight_cap")  # of [privacy]
NO_SCORE = (
    "A search is scored on public rows, and there are none: name a file of public rows (data.test_path), or set data.test_share,"
    " which makes that share of the clients' own rows public; or, under local DP per record, data.held_out, by which clients answer"
    " once in every run, at a price."
)
NO_PRICE = "Nothing is promised here, so that a search has no price: use `tacit compare`."
STEPS, NEAR, STEP, SMALLER = (
    5,
    0.99,
    5.0,
    0.8,
)  # how often a share is bettered, when it is good enough, how much it moves
LEAST_SHARE = 1e-3  # of an epsilon, for one run


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
        section, _, name = key.partition(".")
        noising = key == "seed.model" or (section == "privacy" and name in NOISING)
        if name and section not in SEARCHED and not noising:
            raise BadInput(
                f"A search cannot vary {key}: its runs are about the same rows, score and promise, so it varies [train], [model],"
                f" [aggregate] and privacy.{', '.join(NOISING)}."
            )
    own = {name: dict(part) if isinstance(part, Mapping) else part for name, part in values.items()}
    own.get("privacy", {}).pop("ledger", None)
    base = Experiment(**own)
    refuse_unsearchable(base)
    found = []
    for cell in expand(own, vary, seeds=1):
        experiment = cell.experiments[0].model_copy(update={"run": base.run})
        refuse_unsearchable(experiment)  # what is varied may make a candidate what the base is not
        varied = {key: value for key, value in cell.varied.items() if value is not None}
        found.append(Candidate(label(cell.varied) or cell.label, varied, experiment))
    return found


def refuse_unsearchable(experiment: Experiment) -> None:
    """Refuses what has no price in a search, or would show its losers. Raises BadInput."""
    privacy = experiment.privacy
    if not privacy.promises:
        raise BadInput(NO_PRICE)
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
    if privacy.sums_records:
        raise BadInput(
            'A search has no price yet where records\' sums are noised once: set privacy.unit = "client", or use `tacit compare`.'
        )
    if experiment.privacy.sampler not in (None, "poisson"):
        raise BadInput(
            'No price is known for the best of runs whose cohorts are public: set privacy.sampler = "poisson".'
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
    of about so many where nothing else is seen (None where that has no price), and of all of them where all are seen."""

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
        return self.best if self.hidden and self.best is not None else self.composed


def hidden(candidates: Sequence[Candidate], population: Population, law: Repetitions) -> Priced:
    """The price of a search of which only the best model is seen, by central DP.
    Noise that is said is kept; else every candidate gets the least, to 0.1 %, with which the search keeps the clients' epsilon.
    Guarantee: with noise derived here the search costs at most what other runs of the ledger have left of epsilon.
    Raises: BadInput where budgets differ or set no limit, and where some candidates say their noise and others do not."""
    said = [candidate.experiment.privacy.noise_multiplier for candidate in candidates]
    if None in said and any(said):
        raise BadInput("Some candidates say privacy.noise_multiplier and others do not: say it for all, or for none.")
    epsilon, delta, size = one_budget(population), population.delta, len(population)
    experiments = [candidate.experiment for candidate in candidates]
    sizes = [sampler_of(experiment, size).cohort for experiment in experiments]
    cohorts = [CohortGaussian(1.0, 1.0, population=size, cohort=cohort) for cohort in sizes]
    made = [(cohort, experiment.train.rounds) for cohort, experiment in zip(cohorts, experiments, strict=True)]

    def released(
        multipliers: Sequence[float], which: Sequence[tuple[CohortGaussian, int]]
    ) -> list[tuple[DpEvent, int]]:
        noised = zip(multipliers, which, strict=True)
        return [(replace(m, noise_multiplier=z).event(), rounds) for z, (m, rounds) in noised]

    def cost(multipliers: Sequence[float], which: Sequence[tuple[CohortGaussian, int]]) -> float:
        return price.epsilon(((best_of(law, released(multipliers, which)), 1),), delta=delta)

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
    runs = released(multipliers, made)
    event = best_of(law, runs)
    one = max(price.epsilon((run,), delta=delta) for run in runs)
    composed = max(price.epsilon(((of, times * round(law.mean)),), delta=delta) for of, times in runs)
    noised = tuple(with_noise(candidate, z) for candidate, z in zip(candidates, multipliers, strict=True))
    best = price.epsilon(((event, 1),), delta=delta)
    return Priced(True, law, noised, {"": event}, delta, one=one, best=best, composed=composed)


def refuse_unpriced(priced: Priced, parts: Parts) -> None:
    """Refuses a run that releases anything else than the price of a search of which only the best is seen was computed of.
    What is charged is computed before a run is built, and held here against what was built. Raises BadInput."""
    event, times = counted(parts.algorithm.cost(parts.population[0]) or NoOpDpEvent())
    known = getattr(priced.events[ALL], "runs", ())
    if not parts.plan.sampler.charges_all or (event, times * parts.experiment.train.rounds) not in known:
        raise BadInput("no price is known for the best of such runs: use `tacit compare`, whose runs add up.")


def with_noise(candidate: Candidate, multiplier: float | None) -> Candidate:
    """The candidate with its noise said; or, with None, without it, so that it follows from epsilon."""
    said: dict[str, Any] = {"noise_multiplier": multiplier} | ({} if multiplier is None else {"strategy": None})
    return _with_privacy(candidate, said)


def _with_privacy(candidate: Candidate, said: dict[str, Any]) -> Candidate:
    privacy = candidate.experiment.privacy.model_copy(update=said)
    return replace(candidate, experiment=candidate.experiment.model_copy(update={"privacy": privacy}))


def all_seen(runs: Sequence[Candidate], paid: Mapping[str, Releases], law: Repetitions, *, delta: float) -> Priced:
    """The price of a search all of whose runs are seen, from what every client releases in one of them."""
    count = round(law.mean)

    def most(times: int) -> float:
        made = {one.in_runs(times) for one in paid.values()}
        return max(price.epsilon(one, delta=delta) for one in made)

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


Paid = dict[str, Releases]


def composed(candidates: Sequence[Candidate], dataset: Dataset, population: Population, law: Repetitions) -> Priced:
    """The price of a search all of whose runs are seen, each with an epsilon for every client such that together they keep its own.
    Guarantee: what each client may release in all runs costs at most what other runs of the ledger have left of its epsilon.
    Raises: BadInput where candidates differ in what a client pays, BudgetExhausted where a client could pay for no round."""
    first, count = candidates[0], round(law.mean)
    left = population.to_spread

    def at(share: np.ndarray) -> tuple[np.ndarray, Paid]:
        paid = _paid(_parts(first, dataset, population, left * share))
        return np.array([price.epsilon(one.in_runs(count), delta=population.delta) for one in paid.values()]), paid

    share = _shares(at, left, count)
    epsilons = left * share
    runs = tuple(_with_budgets(candidate, population, epsilons) for candidate in candidates)
    paid = at(share)[1]
    for name, one in paid.items():
        if one.times == 0:
            who, whose = (name, "its") if name != ALL else ("The clients together", "their")
            raise BudgetExhausted(f"{who} could pay for no round of {count} runs: raise {whose} epsilon, or the noise.")
    for candidate in candidates[1:]:
        if _paid(_parts(candidate, dataset, population, epsilons)) != paid:
            raise BadInput(
                f"All runs of this search are seen, so they have one price, and {candidate.label!r} has another than"
                f" {first.label!r}: vary what costs nothing, such as a learning rate, a model or a rule."
            )
    return all_seen(runs, paid, law, delta=population.delta)


def refuse_other_price(priced: Priced, parts: Parts) -> None:
    """Refuses a run in which some client would release anything else, or more often, than what is charged. Raises BadInput."""
    law = priced.repetitions
    made = all_seen((), _paid(parts), law, delta=priced.delta)
    if (made.events, made.asked) != (priced.events, priced.asked):
        raise BadInput("its clients would pay another price than that of the search: name their epsilons otherwise.")


def _shares(at: Any, left: np.ndarray, count: int) -> np.ndarray:
    """The share of its epsilon that a run may cost each client, such that `count` of them keep it: by a few secant steps."""
    limited, share = np.isfinite(left), np.full(len(left), count**-0.5)
    kept = np.where(limited, 0.0, 1.0)
    for _ in range(STEPS):
        costs, _ = at(share)
        fits = costs <= left
        kept = np.where(limited & fits, np.maximum(kept, share), kept)
        if np.all(~limited | (fits & (costs >= NEAR * left))):
            break
        ratio = np.divide(left, costs, out=np.ones_like(left), where=limited & (costs > 0))
        share = np.minimum(1.0, share * np.clip(ratio, 1 / STEP, STEP) * (1 + NEAR) / 2)
    while not kept.all() or not np.all(at(kept)[0] <= left):
        share = np.where(kept > 0, kept, share) * SMALLER
        if share.min() < LEAST_SHARE:
            raise BudgetExhausted(f"No share of epsilon pays for {count} runs: raise epsilon or noise, or run fewer.")
        costs, _ = at(share)
        kept = np.where(costs <= left, share, 0.0)
    return kept


def _parts(candidate: Candidate, dataset: Dataset, population: Population, epsilons: np.ndarray) -> Parts:
    return assemble(candidate.experiment, dataset, replace(population, epsilons=epsilons, sealed=None))


def _paid(parts: Parts) -> Paid:
    """What each client releases in a run, how often its ledger would let it, and what it answers beside that."""
    privacy, found, known = parts.experiment.privacy, {}, {}
    names = [ALL] if parts.plan.sampler.charges_all else parts.population.names  # all pay the same, in one row
    for index, name in enumerate(names):
        client = parts.population[index]
        event = parts.algorithm.cost(client)
        if event is None:
            raise BadInput(NO_PRICE)
        asked = tuple(sorted(parts.plan.queries.events(index).items()))
        if (event, client.budget, asked) not in known:
            known[event, client.budget, asked] = most_releases(
                client.budget,
                event,
                before=Spent(),
                total_delta=privacy.delta,
                rounds=parts.experiment.train.rounds,
                hint=parts.plan.participations,
                asked=dict(asked),
            )
        found[name] = Releases(event, known[event, client.budget, asked], asked)
    return found


def _with_budgets(candidate: Candidate, population: Population, epsilons: np.ndarray) -> Candidate:
    same = bool((epsilons == epsilons[0]).all())
    spec = float(epsilons[0]) if same else dict(zip(population.names, epsilons.tolist(), strict=True))
    return _with_privacy(candidate, {"epsilon": spec, "level": "own"})


def before_of(path: Path, values: Mapping[str, Any], *, resume: bool) -> Before:
    """What other runs of a shared ledger had sealed when the search began. Nothing is written."""
    privacy = values.get("privacy", {})
    if not privacy.get("ledger"):
        return NOTHING
    unit = Experiment(**values).privacy.unit_kept
    return noted(path / SEARCH) if resume else read_before(Path(privacy["ledger"]), unit=unit)


def refuse_dear(priced: Priced, parts: Parts) -> None:
    """Raises BudgetExhausted for a search that a client cannot pay for, with what would be enough. Nothing is written."""
    privacy, population = parts.experiment.privacy, parts.population
    limits = {"total_delta": privacy.delta, "rounds": 1, "hint": 1, "spare": False}
    together = ALL in priced.events
    for index, name in enumerate(population.names[:1] if together else population.names):
        who, budget = ALL if together else name, population[index].budget
        before = parts.before.of(who)
        if most_releases(budget, priced.events[who], before=before, asked=priced.asked.get(who, {}), **limits) < 1:
            short_of_delta = before.delta + budget.delta > privacy.delta * (1 + ROUNDING)
            said = _too_dear(priced, parts, index, before)
            if short_of_delta:
                said = (
                    f"The search takes delta {privacy.run_delta:g}, and other runs of the ledger have left"
                    f" {max(0.0, privacy.delta - before.delta):g} of the {privacy.delta:g} of {name}: lower privacy.delta_share."
                )
            raise BudgetExhausted(f"{said} Nothing was written.")


def _too_dear(priced: Priced, parts: Parts, index: int, before: Spent) -> str:
    name, has = parts.population.names[index], parts.population[index].budget.epsilon
    left, cost = max(0.0, has - before.epsilon), priced.epsilon
    finite = math.isfinite(cost)
    costs = f"costs epsilon {shown(cost)}" if finite else "has no finite epsilon with this noise"
    raised = f"an epsilon of {shown(before.epsilon + cost)} would be enough, or " if finite else ""
    noise = _enough_noise(priced, parts)
    more = f"{noise} would be enough" if noise else "raise the noise"
    return (
        f"The search {costs} at delta {priced.delta:g}, and {name} has {left:.4g} left: {raised}{more}, or leave the noise out and"
        " it follows from epsilon; or ask for fewer --runs."
    )


def _enough_noise(priced: Priced, parts: Parts) -> str:
    """The noise with which the best alone can be paid for, as a setting; empty where none can, or where all runs are seen."""
    if not priced.hidden:
        return ""
    try:
        sized = hidden([with_noise(run, None) for run in priced.runs], parts.population, priced.repetitions)
    except BadInput:
        return ""
    most = max(run.experiment.privacy.noise_multiplier or 0.0 for run in sized.runs)
    enough = Context(prec=3, rounding=ROUND_CEILING).create_decimal(repr(most)).normalize()
    return f"privacy.noise_multiplier = {enough:f}"


def pay(ledger: Ledger, folder: Folder, parts: Parts, priced: Priced, key: str) -> None:
    """Charges the whole search, the answers that score its runs included, once: the same search that goes on is not charged again,
    and no other is let in under its name.
    Raises: LedgerError or BudgetExhausted; then nothing may be run."""
    texts = [candidate.experiment.toml() for candidate in priced.runs]
    attempt = digest_of("search", key, parts.population.digest(), package("lab.tuning"), *texts)
    ledger.open_round(0, attempt)
    again = ledger.knows(0)
    if ALL in priced.events:
        paid = ledger.admit_everybody(parts.population[0].budget, priced.events[ALL])
    else:
        everybody = [parts.population[index] for index in range(len(parts.population))]
        paid = len(ledger.admit(everybody, lambda client: priced.events[client.id])) == len(everybody)
        for query in sorted({name for asked in priced.asked.values() for name in asked}):
            answering = (
                ledger.answer(query, attempt, everybody, lambda client: priced.events[client.id]) if paid else []
            )
            paid = len(answering) == len(everybody)
    if not paid and again:
        raise LedgerError(f"The search in {folder.path} was paid for with other rows, settings or code: put them back.")
    if not paid:
        raise BudgetExhausted("Other runs of the ledger have taken what this search needs; nothing was run.")
