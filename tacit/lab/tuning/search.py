"""`tune`: prices a search, pays for all of it, runs it, and leaves the best."""

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tacit.data.dataset import Dataset
from tacit.data.population import Population
from tacit.engine.assemble import Parts, assemble, build, clients
from tacit.engine.evaluate import evaluate
from tacit.engine.ledgers import open_ledger
from tacit.engine.queries import judged_by
from tacit.engine.run_folder import Folder
from tacit.errors import BadInput, BudgetExhausted, LedgerError, TacitError, TrainingDiverged, Unmeasured
from tacit.experiment import Experiment
from tacit.lab.grid import plain
from tacit.lab.tuning import folder, words
from tacit.lab.tuning import folder as folders
from tacit.lab.tuning import folder as secret
from tacit.lab.tuning.folder import before_of, pay, refuse_dear
from tacit.lab.tuning.price import NO_SCORE, Candidate, Priced, Releases, all_seen, candidates, hidden, refuse_unpriced
from tacit.parts import metrics
from tacit.parts.tasks import chosen, headline
from tacit.privacy.accounting import price
from tacit.privacy.accounting.selected import Repetitions, about
from tacit.privacy.guarantee import spent_by
from tacit.privacy.ledger.filter import Spent, most_releases
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.ledger.reader import Before
from tacit.privacy.ledger.sql import ALL
from tacit.privacy.plan import sampler_of
from tacit.report.plan import tells_nothing
from tacit.simulation import run

# The starts of a search in its ledger: of copies of its folder, and of older ones that were put back, one alone has
# each.

SEARCH = "search"  # under which name the ledger knows what was found
NOTHING = "nothing was found"


def begin_hidden(path: Path, state: folder.State, ledger: Ledger, start: str) -> folder.State:
    """Notes a start of a search of which only the best is seen. Returns its state, which is on disk.

    Raises: LedgerError where a copy has gone on, or has published what it found before this one knew; then nothing may be run.
    """
    if ledger.released(SEARCH) and state.done < len(state.picks):
        raise LedgerError(
            f"The ledger {ledger.path} knows that this search was released, as something else than the runs left here would give:"
            " a copy of the folder has ended before. Nothing was released."
        )
    state = replace(state, starts=(*state.starts, start))
    folder.write(path, state)
    _note(ledger, SEARCH, state.starts)
    return state


def begin_seen(path: Path, number: int, ledger: Ledger, parts: Parts) -> None:
    """Notes that a run which is seen may release from now on; in the ledger too where its noise will not come again.

    Raises: LedgerError where another folder had this start; then nothing may be released.
    """
    known = folders.starts(path, number)
    known = [*known, parts.nonce] if parts.nonce else known
    folders.note_begun(path, number, *known)
    _note(ledger, f"run {number}", known)


def release(ledger: Ledger, found: str, state: folder.State | None) -> None:
    """Notes what a search is about to publish: one thing for its charge, and nothing once a copy has gone on after this start.

    Raises: LedgerError; then nothing may be published.
    """
    if state and state.starts and ledger.released(_named(SEARCH, len(state.starts))):
        raise LedgerError(
            f"The ledger {ledger.path} knows a later start of this search: a copy of its folder went on, and what that one finds"
            " stands for the charge. Nothing was released."
        )
    ledger.release(SEARCH, found)


def _note(ledger: Ledger, what: str, known: Sequence[str]) -> None:
    for place, start in enumerate(known):  # those before too: a folder that made some up is not the one that had them
        ledger.release(_named(what, place), start)


def _named(what: str, place: int) -> str:
    return f"{what}, start {place}"


# A search all of whose runs are seen: each client's epsilon is divided so that all runs together keep it.

LOOKS, NEAR, STEP, SMALLER = (
    5,
    0.99,
    5.0,
    0.8,
)  # how often a share is bettered, when it is good enough, and by how much it moves
LEAST_SHARE = 1e-3  # of an epsilon, for one run

Paid = dict[str, Releases]


def composed(candidates: Sequence[Candidate], dataset: Dataset, population: Population, law: Repetitions) -> Priced:
    """The price of a search all of whose runs are seen, each with an epsilon for every client such that together they keep its own.

    Guarantee: what each client may release in all runs costs at most what other runs of the ledger have left of its epsilon.

    Raises: BadInput where candidates differ in what a client pays, BudgetExhausted where a client could pay for no round.
    """
    first, count = candidates[0], round(law.mean)
    accountant, left = first.experiment.privacy.accountant, population.to_spread

    def at(share: np.ndarray) -> tuple[np.ndarray, Paid]:
        paid = _paid(_parts(first, dataset, population, left * share))
        how = {"delta": population.delta, "accountant": accountant}
        return np.array([price.epsilon(one.in_runs(count), **how) for one in paid.values()]), paid

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
    return all_seen(runs, paid, law, delta=population.delta, accountant=accountant)


def refuse_other_price(priced: Priced, parts: Parts) -> None:
    """Refuses a run in which some client would release anything else, or more often, than what is charged. Raises BadInput."""
    law = priced.repetitions
    made = all_seen((), _paid(parts), law, delta=priced.delta, accountant=parts.experiment.privacy.accountant)
    if (made.events, made.asked) != (priced.events, priced.asked):
        raise BadInput("its clients would pay another price than that of the search: name their epsilons otherwise.")


def _shares(at: Any, left: np.ndarray, count: int) -> np.ndarray:
    """The share of its epsilon that a run may cost each client, such that `count` of them keep it: by a few secant steps."""
    limited, share = np.isfinite(left), np.full(len(left), count**-0.5)
    kept = np.where(limited, 0.0, 1.0)
    for _ in range(LOOKS):
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
            raise BudgetExhausted(
                f"No share of epsilon pays for {count} runs: raise epsilon or the noise, or run fewer."
            )
        costs, _ = at(share)
        kept = np.where(costs <= left, share, 0.0)
    return kept


def _parts(candidate: Candidate, dataset: Dataset, population: Population, epsilons: np.ndarray) -> Parts:
    return assemble(candidate.experiment, dataset, replace(population, epsilons=epsilons, sealed=None))


def _paid(parts: Parts) -> Paid:
    """What each client releases in a run, how often its ledger would let it, and what it answers beside that."""
    privacy, found, known = parts.experiment.privacy, {}, {}
    names = (
        [ALL] if parts.plan.sampler.charges_all else parts.population.names
    )  # where the draw is in the price, all pay the same in one row
    for index, name in enumerate(names):
        client = parts.population[index]
        event = parts.algorithm.cost(client)
        if event is None:
            raise BadInput("Nothing is promised here, so that a search has no price: use `tacit compare`.")
        asked = tuple(sorted(parts.plan.queries.events(index).items()))
        if (event, client.budget, asked) not in known:
            known[event, client.budget, asked] = most_releases(
                client.budget,
                event,
                before=Spent(),
                total_delta=privacy.delta,
                rounds=parts.experiment.train.rounds,
                accountant=privacy.accountant,
                hint=parts.plan.participations,
                asked=dict(asked),
            )
        found[name] = Releases(event, known[event, client.budget, asked], asked)
    return found


def _with_budgets(candidate: Candidate, population: Population, epsilons: np.ndarray) -> Candidate:
    """The candidate with every client's epsilon for one run."""
    same = bool((epsilons == epsilons[0]).all())
    spec = float(epsilons[0]) if same else dict(zip(population.names, epsilons.tolist(), strict=True))
    privacy = candidate.experiment.privacy.model_copy(update={"epsilon": spec, "level": "own"})
    return replace(candidate, experiment=candidate.experiment.model_copy(update={"privacy": privacy}))


GEOMETRIC = 1.0
LOSERS = ("hidden", "seen")
NO_BEST = (
    "No run of the search ended with a finite loss and a score, and all are paid for: lower train.learning_rate, or choose a"
    " metric that every model has (metric.choose)."
)
Announce = Callable[[Priced, str], None]


def tune(
    experiment: Experiment | Mapping[str, Any],
    vary: Mapping[str, Sequence[Any]],
    *,
    runs: int,
    out: Path | str,
    shape: float = GEOMETRIC,
    losers: str | None = None,
    resume: bool = False,
    force: bool = False,
    announce: Announce | None = None,
) -> dict[str, Any]:
    """Searches the grid of `vary` by about `runs` runs, and returns the summary of the best; it is in `out`/best.

    Under central DP the number of runs is drawn and nothing but the best is released, unless `losers` are to be "seen" too; else
    all runs are seen. `announce` is told the price, and the unit it is for, before anything is charged.

    Guarantee: that of `words.promised`, at a price that is on the ledger before anything is run. What is killed goes on with
    `resume` with what was drawn, at no further price.

    Raises: BadInput for what cannot be searched, BudgetExhausted where it cannot be paid for, LedgerError for a ledger that is not
    its own, TrainingDiverged where no run ended well. Nothing is charged before all was tried that needs no training.
    """
    path, values = Path(out), plain(experiment)
    folders.refuse_taken(path, resume=resume, force=force)
    if resume and (known := folders.finished(path)) is not None:
        secret.forget(path)  # what a crash may have left
        return known
    shared = values.get("privacy", {}).get("ledger")
    before = before_of(path, values, resume=resume)
    priced, parts, assumes = _prepared(candidates(values, vary), about(runs, shape=shape), before, shared, losers)
    unit = parts.population.unit
    refuse_dear(priced, parts)
    lock = folders.take(path, force=force)
    try:
        said = {"runs": runs, "shape": float(shape), "losers": losers, "ledger": shared, "before": parts.before}
        folder = folders.begin(path, lock, values, vary, **said)
        if announce:
            announce(priced, unit)
        return _searched(folder, replace(parts, trial_id=folder.run), priced, assumes)
    finally:
        os.close(lock)


def price_of(
    experiment: Experiment | Mapping[str, Any],
    vary: Mapping[str, Sequence[Any]],
    *,
    runs: int,
    shape: float = GEOMETRIC,
    losers: str | None = None,
) -> tuple[Priced, str]:
    """What `tune` would cost, and the unit that it is for. Nothing is written. Raises as `tune`."""
    values = plain(experiment)
    before = before_of(Path(), values, resume=False)
    shared = values.get("privacy", {}).get("ledger")
    priced, parts, _ = _prepared(candidates(values, vary), about(runs, shape=shape), before, shared, losers)
    return priced, parts.population.unit


def _prepared(
    grid: list[Candidate], law: Repetitions, before: Before, ledger: str | None, losers: str | None
) -> tuple[Priced, Parts, list[str]]:
    """The search with its price, every candidate tried without training; the parts it is paid by, and what candidates assume."""
    first, assumes = grid[0].experiment, list[str]()
    alone = _hides(first, losers)
    dataset, _, population = clients(first, before=before)
    if not len(dataset.test_y) and first.data.held_out is None:
        raise BadInput(NO_SCORE)
    rows = replace(dataset, x=population.x, y=population.y, client=None)
    priced = hidden(grid, population, law) if alone else composed(grid, rows, population, law)
    for candidate in priced.runs:
        try:
            made = build(candidate.experiment)
            (refuse_unpriced if priced.hidden else refuse_other_price)(priced, made)
            evaluate(made, made.params)
            _refuse_coin(made)
            assumes += made.promise.assumes
        except TacitError as error:
            raise BadInput(f"{candidate.label}: {error}") from error
    usual = priced.runs[0].experiment
    paying = usual.model_copy(update={"privacy": usual.privacy.model_copy(update={"ledger": ledger})})
    parts = build(paying, before=before)
    return priced, replace(parts, population=replace(parts.population, epsilons=population.epsilons)), assumes


def _refuse_coin(parts: Parts) -> None:
    """Refuses to choose by answers that clients give about held-out rows where their noise leaves nothing to choose by.

    It follows from public numbers. Raises BadInput.
    """
    judged = judged_by(parts.experiment, parts.dataset)
    why = "" if judged is None else tells_nothing(parts.experiment, judged, parts.plan, parts.population)
    if why:
        raise BadInput(f"a search would choose by chance: {why.removeprefix('Note: ')}")


def _hides(experiment: Experiment, losers: str | None) -> bool:
    """Whether nothing but the best is seen: where that can be, and is not asked otherwise. Raises BadInput."""
    can = sampler_of(experiment, experiment.train.clients_per_round or 1).charges_all
    if losers not in (None, *LOSERS):
        raise BadInput(f"Expected losers to be one of {', '.join(LOSERS)}, got {losers!r}.")
    if losers == "hidden" and not can:
        raise BadInput(
            f'With privacy.kind = "{experiment.privacy.kind}" somebody whom the promise is against sees every run: leave out'
            " losers, and all runs are paid for, composed."
        )
    return can and losers != "seen"


def _searched(folder: Folder, parts: Parts, priced: Priced, assumes: list[str]) -> dict[str, Any]:
    state = secret.read_secret(folder.path) if priced.hidden else None
    ledger = open_ledger(parts, folder, once=True, asked=lambda client: priced.asked.get(client, {}))
    if ledger is None:
        raise BadInput("Nothing is promised here, so that a search has no price: use `tacit compare`.")
    try:
        if priced.hidden and state is None:
            if ledger.knows(0):
                raise LedgerError(
                    f"{folder.path} has lost the secret state of its search, which was paid for: how many runs there are is"
                    " never drawn again, so start another one; nothing was released."
                )
            state = secret.drawn(priced.repetitions, len(priced.runs))
            secret.write(folder.path, state)
        pay(ledger, folder, parts, priced, f"{state.key} {state.picks}" if state else folder.run)
        guarantee = spent_by(words.promised(parts, priced, assumes), ledger, parts.population)
        also = parts.plan.also(guarantee, parts.experiment, ledger, parts.population)
        if state and parts.nonce:
            state = begin_hidden(folder.path, state, ledger, parts.nonce)
        best, which = _hidden_runs(folder.path, state, priced, ledger) if state else _seen_runs(folder, priced, ledger)
        found = json.loads((best / folders.SUMMARY).read_text("utf-8"))
        told = words.summary(
            found, settings=priced.runs[which].varied, priced=priced, guarantee=replace(guarantee, also=also)
        )
        release(ledger, _hash(best, priced.runs[which]), state)
        folders.publish(folder.path, best, told)
        secret.forget(folder.path)
        return told
    finally:
        ledger.close()


def _hidden_runs(path: Path, state: secret.State, priced: Priced, ledger: Ledger) -> tuple[Path, int]:
    """Runs what was drawn, keeps the best alone, and says where it is and which candidate it was.

    Raises: TrainingDiverged where there is none, which is told for the search's charge as a model would be.
    """
    while state.done < len(state.picks):
        number = state.done + 1
        candidate = state.picks[number - 1]
        rank = _ran(secret.place(path, state, number), priced.runs[candidate], trial_id=state.draw(number))
        state = state.after(rank)
        secret.write(path, state)
        secret.forget_losers(path, state)
    if state.best is None:
        release(ledger, NOTHING, state)
        secret.forget(path)
        raise TrainingDiverged(NO_BEST)
    return secret.place(path, state, state.best), state.picks[state.best - 1]


def _seen_runs(folder: Folder, priced: Priced, ledger: Ledger) -> tuple[Path, int]:
    """Runs the candidates in turn, and says where the best is and which candidate it was."""
    ranks: list[tuple[tuple[float, str], Path, int]] = []
    for number in range(1, priced.count + 1):
        which, place = (number - 1) % len(priced.runs), folders.run_place(folder.path, number)
        begun = partial(begin_seen, folder.path, number, ledger)
        rank = _ran(place, priced.runs[which], trial_id=f"{folder.run}:{number}", begun=begun)
        ranks += [(rank, place, which)] if rank else []
    if not ranks:
        raise TrainingDiverged(NO_BEST)
    return max(ranks)[1:]


def _ran(
    place: Path, candidate: Candidate, *, trial_id: str, begun: Callable[[Parts], None] = lambda parts: None
) -> tuple[float, str] | None:
    """Runs, or goes on with, one run; its place in the order by which the best is chosen, or None where it has no score: it
    diverged, or its metric cannot be told of the model.

    `begun` is told when its folder and ledger are there, before it releases anything.

    Guarantee: the order is total, and a function of what would be released: the score, then a hash of the model. Nothing that a
    model does after the search is paid for ends the search: what has no score ranks below everything.
    """
    if not (place / folders.SUMMARY).exists():
        try:
            again, said = (place / "experiment.toml").exists(), {"page": False, "trial_id": trial_id}
            history = run(candidate.experiment, out=place, resume=again, ready=lambda parts, _: begun(parts), **said)
        except (TrainingDiverged, Unmeasured):
            return None
        if history.ledger:
            history.ledger.close()
    score = score_of(candidate.experiment, json.loads((place / folders.SUMMARY).read_text("utf-8")))
    return None if score is None else (score, _hash(place, candidate))


def score_of(experiment: Experiment, summary: Mapping[str, Any]) -> float | None:
    """A run's score by its metric, the higher the better; None where it has none, or one that is no number.

    On public rows, or, where clients hold rows out, what they answered about those: counts with their noise, and nothing else.

    >>> score_of(Experiment(task={"kind": "regression"}), {"test_rmse": 2.0}), score_of(Experiment(), {"test_accuracy": None})
    (-2.0, None)
    """
    name = headline(experiment)
    score = summary.get(f"test_{name}")
    if experiment.data.held_out is not None:
        score = summary["at_clients"].get("metrics", {}).get(name, {}).get("value")
    if score is None or not math.isfinite(score):
        return None
    return score if metrics.load(chosen(experiment)).better == "higher" else -score


def _hash(place: Path, candidate: Candidate) -> str:
    """What would be released, by its hash."""
    return hashlib.blake2b((place / "model.safetensors").read_bytes() + candidate.label.encode()).hexdigest()
