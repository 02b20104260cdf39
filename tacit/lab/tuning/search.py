"""`tune`: prices a search, pays for all of it, runs it, leaves the best, and says in words what is promised of that model."""

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import tacit
from tacit.engine.assemble import Parts, build, clients
from tacit.engine.evaluate import evaluate
from tacit.engine.ledgers import open_ledger
from tacit.engine.queries import judged_by
from tacit.engine.run_folder import Folder
from tacit.errors import BadInput, LedgerError, TacitError, TrainingDiverged, Unmeasured
from tacit.experiment import Experiment
from tacit.lab.compare.grid import take
from tacit.lab.grid import plain
from tacit.lab.tuning import folder as folders
from tacit.lab.tuning.price import (
    NO_PRICE,
    NO_SCORE,
    Candidate,
    Priced,
    before_of,
    candidates,
    composed,
    hidden,
    pay,
    refuse_dear,
    refuse_other_price,
    refuse_unpriced,
)
from tacit.parts import metrics
from tacit.parts.tasks import chosen, headline
from tacit.privacy.accounting.events import Repetitions, about, rate_and_multiplier
from tacit.privacy.guarantee import PUBLIC, sentence, shown, shown_delta, spent_by
from tacit.privacy.ledger.disk import ALL
from tacit.privacy.ledger.ledger import Before, Ledger
from tacit.privacy.plan import sampler_of
from tacit.report.plan import tells_nothing
from tacit.simulation import run
from tacit.types import Guarantee

GEOMETRIC = 1.0
LOSERS = ("hidden", "seen")
BEST_ALONE = (
    "whoever sees the best model alone, with its settings and its score, and not the number of runs, the losers' models and scores,"
    " or how long the search took (the server is trusted, and who took part in which round stays secret)"
)
SEARCHED = "the test set, the grid and all settings that were not searched are public"
KEYED = "a key from the operating system, which is deleted with the search"
DELETED = "nobody has seen the folder `secret` of the search, and it is deleted"
# of the best run's summary: what follows from its models and public rows; not its times, traffic, notes and cohorts
COPIED = ("name", "test_loss", "metric", "metrics", "confusion", "per_class", "rounds", "clients", "parameters")
COPIED += ("frozen_parameters", "rule", "noise_multiplier")
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

    Guarantee: that of `promised`, at a price that is on the ledger before anything is run. What is killed goes on with
    `resume` with what was drawn, at no further price.

    Raises: BadInput for what cannot be searched, BudgetExhausted where it cannot be paid for, LedgerError for a ledger that is not
    its own, TrainingDiverged where no run ended well. Nothing is charged before all was tried that needs no training.
    """
    path, values = Path(out), plain(experiment)
    folders.refuse_taken(path, resume=resume, force=force)
    if resume and (known := folders.finished(path)) is not None:
        folders.forget(path)  # what a crash may have left
        return known
    shared = values.get("privacy", {}).get("ledger")
    before = before_of(path, values, resume=resume)
    priced, parts, assumes = _prepared(candidates(values, vary), about(runs, shape=shape), before, shared, losers)
    unit = parts.population.unit
    refuse_dear(priced, parts)
    lock = take(path, force=force, files=folders.HELD)
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
    It follows from public numbers. Raises BadInput."""
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
    state = folders.read_secret(folder.path) if priced.hidden else None
    ledger = open_ledger(parts, folder, once=True, asked=lambda client: priced.asked.get(client, {}))
    if ledger is None:
        raise BadInput(NO_PRICE)
    try:
        if priced.hidden and state is None:
            if ledger.knows(0):
                raise LedgerError(
                    f"{folder.path} has lost the secret state of its search, which was paid for: how many runs there are is"
                    " never drawn again, so start another one; nothing was released."
                )
            state = folders.drawn(priced.repetitions, len(priced.runs))
            folders.write(folder.path, state)
        pay(ledger, folder, parts, priced, f"{state.key} {state.picks}" if state else folder.run)
        guarantee = spent_by(promised(parts, priced, assumes), ledger, parts.population)
        also = parts.plan.also(guarantee, parts.experiment, ledger, parts.population)
        if state and parts.nonce:
            state = folders.begin_hidden(folder.path, state, ledger, parts.nonce)
        best, which = _hidden_runs(folder.path, state, priced, ledger) if state else _seen_runs(folder, priced, ledger)
        found = json.loads((best / folders.SUMMARY).read_text("utf-8"))
        told = summary(
            found, settings=priced.runs[which].varied, priced=priced, guarantee=replace(guarantee, also=also)
        )
        folders.release(ledger, _hash(best, priced.runs[which]), state)
        folders.publish(folder.path, best, told)
        folders.forget(folder.path)
        return told
    finally:
        ledger.close()


def _hidden_runs(path: Path, state: folders.State, priced: Priced, ledger: Ledger) -> tuple[Path, int]:
    """Runs what was drawn, keeps the best alone, and says where it is and which candidate it was.
    Raises: TrainingDiverged where there is none, which is told for the search's charge as a model would be."""
    while state.done < len(state.picks):
        number = state.done + 1
        candidate = state.picks[number - 1]
        rank = _ran(folders.place(path, state, number), priced.runs[candidate], trial_id=state.draw(number))
        state = state.after(rank)
        folders.write(path, state)
        folders.forget_losers(path, state)
    if state.best is None:
        folders.release(ledger, folders.NO_MODEL, state)
        folders.forget(path)
        raise TrainingDiverged(NO_BEST)
    return folders.place(path, state, state.best), state.picks[state.best - 1]


def _seen_runs(folder: Folder, priced: Priced, ledger: Ledger) -> tuple[Path, int]:
    """Runs the candidates in turn, and says where the best is and which candidate it was."""
    ranks: list[tuple[tuple[float, str], Path, int]] = []
    for number in range(1, priced.count + 1):
        which, place = (number - 1) % len(priced.runs), folders.run_place(folder.path, number)
        begun = partial(folders.begin_seen, folder.path, number, ledger)
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
    model does after the search is paid for ends the search: what has no score ranks below everything."""
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
    return hashlib.blake2b((place / "model.safetensors").read_bytes() + candidate.label.encode()).hexdigest()


# A search in words.


def promised(parts: Parts, priced: Priced, assumes: Iterable[str]) -> Guarantee:
    """The statement of a search before anything is spent; `assumes` is what the promises of single candidates rest on."""
    blank = parts.promise
    said = [SEARCHED if one in PUBLIC else one for one in dict.fromkeys((*blank.assumes, *assumes))]
    if not priced.hidden:
        seen = f"{priced.count} runs, all of which are seen, with {blank.sampler}"
        return replace(blank, sampler=seen, assumes=tuple(said))
    by, runs = metrics.words(headline(parts.experiment)), priced.events[""].runs  # pyright: ignore[reportAttributeAccessIssue]
    rates = sorted({rate_and_multiplier(event)[0] for event, _ in runs})
    rate = " to ".join(f"{end:.4g}" for end in dict.fromkeys((rates[0], rates[-1])))
    best = (
        f"the best, by {by} on public rows, of a secret number of runs ({priced.repetitions.words()}), each of a candidate"
        f" drawn at random from {len(priced.runs)}, with Poisson cohorts, each of {len(parts.population)} clients with"
        f" probability {rate} in every round"
    )
    return replace(blank, adversary=BEST_ALONE, sampler=best, assumes=(*said, DELETED), randomness=KEYED)


def prices(priced: Priced, unit: str) -> list[str]:
    """What a search costs beside what it would cost otherwise, a line each: both numbers, and which of them is charged."""
    at = f"at delta = {shown_delta(priced.delta)}"
    best = "has no price here" if priced.best is None else f"costs epsilon {shown(priced.best)}"
    whose = f", to whom of {len(priced.events)} clients it costs most" if len(priced.events) > 1 else ""
    lines = [
        f"One run costs epsilon {shown(priced.one)} per {unit} {at}{whose}.",
        f"The best of about {priced.count} runs, where nothing else is seen, {best}.",
        f"{priced.count} runs that are all seen cost epsilon {shown(priced.composed)}.",
    ]
    if priced.hidden:
        dearer = priced.best is not None and priced.best > priced.composed
        # what is charged there also counts the rounds that may be lost and repeated, so that only its own price is sure
        cheaper = "That is more than all seen: `--losers seen` may be cheaper here (`--price` says it)."
        charged = f"Charged: {shown(priced.epsilon)}, before the first run. How many runs there are stays secret."
        return [*lines, *[cheaper] * dearer, charged]
    asked, needed = "as asked, all of them may be seen", "somebody whom the promise is against sees every run"
    why = asked if ALL in priced.events else needed
    each = "; every client pays by its own budget" if whose else ""
    return [*lines, f"Charged: {shown(priced.epsilon)}, composed, before the first run: {why}{each}."]


def summary(found: dict[str, Any], *, settings: dict[str, Any], priced: Priced, guarantee: Guarantee) -> dict[str, Any]:
    """What is published of the best run (`found` is its own summary): no times, no traffic, no number of runs."""
    answered = () if priced.hidden else ("at_clients",)  # the answers that chose it, paid for where all runs are
    kept = {key: found[key] for key in (*COPIED, *answered, f"test_{found['metric']}") if key in found}
    return kept | {
        "settings": settings,
        "search": {
            "candidates": len(priced.runs),
            "runs": priced.repetitions.words() if priced.hidden else priced.count,
            "epsilon_of_one_run": priced.one,
            "epsilon_of_the_best": priced.best,
            "epsilon_composed": priced.composed,
            "charged": "best" if priced.hidden else "composed",
        },
        "guarantee": guarantee.record(),
        "sentence": sentence(guarantee).replace("spent in this run", "spent in this search"),
        "version": tacit.__version__,
    }
