"""What a search costs, the noise that keeps a budget, and its payment: once, all of it, before anything is run.
The price is the composition of all its runs, whose number is fixed and public: whoever sees every model and score is covered."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from dp_accounting import DpEvent, SelfComposedDpEvent

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
from tacit.privacy.guarantee import shown
from tacit.privacy.ledger.disk import ALL
from tacit.privacy.ledger.ledger import NOTHING, ROUNDING, Before, Ledger, Spent, most_releases
from tacit.privacy.ledger.reader import noted, read_before
from tacit.wire import digest_of

SEARCHED = ("train", "model", "aggregate")  # tables all of whose keys may be varied
NOISING = ("clip", "adaptive_clip", "noise_multiplier", "weight_cap")  # of [privacy]
NO_SCORE = (
    "A search is scored on public rows, and there are none: name a file of public rows (data.test_path), or set data.test_share,"
    " which makes that share of the clients' own rows public; or, under local DP per record, data.held_out, by which clients answer"
    " once in every run, at a price."
)
NO_PRICE = "Nothing is promised here, so that a search has no price: use `tacit compare`."
# how often a share is bettered, when it is good enough, and how much it moves
STEPS, NEAR, STEP, SMALLER = 5, 0.99, 5.0, 0.8
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
    """Refuses what has no price in a search. Raises BadInput."""
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
            raise BadInput(f"[{table}] looks into every run, and a search is scored by one number: leave it out.")
    if privacy.sampler not in (None, "poisson"):
        raise BadInput('A search has no price yet where cohorts are public: set privacy.sampler = "poisson".')
    if privacy.opts_out and math.inf in privacy.listed:
        raise BadInput(
            "A search has no price for a client that opts out (privacy.epsilon = inf): name a finite epsilon for every client."
        )
    if privacy.own_rates:
        raise BadInput(
            "A search has no price yet where every client is drawn at a rate of its own: give one epsilon, or set privacy.level ="
            ' "minimum".'
        )
    refuse_passed(experiment)


@dataclass(frozen=True)
class Releases:
    """What a client releases in one run that is seen: an event, how often at most, and what it answers once beside it."""

    event: DpEvent
    times: int
    queries: tuple[tuple[str, DpEvent], ...] = ()

    def in_runs(self, count: int) -> price.Composition:
        """All of it in so many runs: every run is scored by an answer of its own, which is another release."""
        return price.compose([(self.event, self.times * count), *((query, count) for _, query in self.queries)])


@dataclass(frozen=True)
class Priced:
    """A search with its noise: `runs` are its candidates, `count` says how many runs there are, and `events` what each client pays
    for all of them, once; `queries` is what it answers in all of them for their scores. Under "" stands what everybody pays.
    The epsilons, of one run and of all, are those of the client that pays most, at `delta`."""

    count: int
    runs: tuple[Candidate, ...] = field(repr=False)
    events: Mapping[str, DpEvent] = field(repr=False)
    delta: float
    one: float
    epsilon: float
    queries: Mapping[str, Mapping[str, DpEvent]] = field(default_factory=dict, repr=False)


def priced_runs(runs: Sequence[Candidate], paid: Mapping[str, Releases], count: int, *, delta: float) -> Priced:
    """The price of so many runs, from what every client releases in one of them."""

    def most(times: int) -> float:
        return max(price.epsilon(one, delta=delta) for one in {release.in_runs(times) for release in paid.values()})

    return Priced(
        count,
        tuple(runs),
        {name: SelfComposedDpEvent(one.event, one.times * count) for name, one in paid.items()},
        delta,
        one=most(1),
        epsilon=most(count),
        queries={
            name: {query: SelfComposedDpEvent(of, count) for query, of in one.queries} for name, one in paid.items()
        },
    )


def composed(candidates: Sequence[Candidate], dataset: Dataset, population: Population, count: int) -> Priced:
    """The price of a search of so many runs, each with an epsilon for every client such that all of them keep its own.
    Guarantee: what each client may release in all runs costs at most what other runs of the ledger have left of its epsilon.
    Raises: BadInput where candidates differ in what a client pays, BudgetExhausted where a client could pay for no round."""
    first, left = candidates[0], population.to_spread

    def at(share: np.ndarray) -> tuple[np.ndarray, dict[str, Releases]]:
        paid = _paid(_parts(first, dataset, population, left * share))
        return np.array([price.epsilon(one.in_runs(count), delta=population.delta) for one in paid.values()]), paid

    share = _shares(at, left, count)
    epsilons = left * share
    runs = tuple(_with_budgets(candidate, population, epsilons) for candidate in candidates)
    paid = at(share)[1]
    for name, one in paid.items():
        if one.times == 0:
            who, whose = (name, "its") if name != ALL else ("The clients in total", "their")
            raise BudgetExhausted(
                f"{who} could pay for no round of {count} runs: raise {whose} epsilon or the noise, or run fewer."
                " Nothing was written."
            )
    for candidate in candidates[1:]:
        if _paid(_parts(candidate, dataset, population, epsilons)) != paid:
            raise BadInput(
                f"All runs of a search have one price, and {candidate.label!r} has another than"
                f" {first.label!r}: vary what costs nothing, such as a learning rate, a model or a rule."
            )
    return priced_runs(runs, paid, count, delta=population.delta)


def refuse_other_price(priced: Priced, parts: Parts) -> None:
    """Refuses a run in which some client would release anything else, or more often, than what is charged. Raises BadInput."""
    made = priced_runs((), _paid(parts), priced.count, delta=priced.delta)
    if (made.events, made.queries) != (priced.events, priced.queries):
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


def _paid(parts: Parts) -> dict[str, Releases]:
    """What each client releases in a run, how often its ledger would let it, and what it answers beside that."""
    privacy, found, known = parts.experiment.privacy, {}, {}
    names = [ALL] if parts.plan.sampler.charges_alike else parts.population.names  # all pay the same, in one row
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
                queries=dict(asked),
            )
        found[name] = Releases(event, known[event, client.budget, asked], asked)
    return found


def _with_budgets(candidate: Candidate, population: Population, epsilons: np.ndarray) -> Candidate:
    same = bool((epsilons == epsilons[0]).all())
    spec = float(epsilons[0]) if same else dict(zip(population.names, epsilons.tolist(), strict=True))
    privacy = candidate.experiment.privacy.model_copy(update={"epsilon": spec, "level": "own"})
    return replace(candidate, experiment=candidate.experiment.model_copy(update={"privacy": privacy}))


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
    for_all = ALL in priced.events
    for index, name in enumerate(population.names[:1] if for_all else population.names):
        who, budget = ALL if for_all else name, population[index].budget
        before = parts.before.of(who)
        if most_releases(budget, priced.events[who], before=before, queries=priced.queries.get(who, {}), **limits) < 1:
            left, spare = max(0.0, budget.epsilon - before.epsilon), max(0.0, privacy.delta - before.delta)
            said = f"costs epsilon {shown(priced.epsilon)}, and {name} has {left:.4g} left: raise epsilon or noise, or run fewer."
            if before.delta + budget.delta > privacy.delta * (1 + ROUNDING):
                said = (
                    f"takes delta {privacy.run_delta:g}, and other runs of the ledger have left {spare:g} of the"
                    f" {privacy.delta:g} of {name}: lower privacy.delta_share."
                )
            raise BudgetExhausted(f"The search {said} Nothing was written.")


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
        for query in sorted({name for queries in priced.queries.values() for name in queries}):
            answering = (
                ledger.answer(query, attempt, everybody, lambda client: priced.events[client.id]) if paid else []
            )
            paid = len(answering) == len(everybody)
    if not paid and again:
        raise LedgerError(f"The search in {folder.path} was paid for with other rows, settings or code: put them back.")
    if not paid:
        raise BudgetExhausted("Other runs of the ledger have taken what this search needs; nothing was run.")
