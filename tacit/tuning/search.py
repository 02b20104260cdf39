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

from tacit import metrics
from tacit.build.clients import clients
from tacit.build.parts import Parts, build
from tacit.engine.at_clients import judged_by
from tacit.engine.evaluate import evaluate
from tacit.engine.folder import Folder
from tacit.engine.history import open_ledger
from tacit.errors import BadInput, LedgerError, TacitError, TrainingDiverged, Unmeasured
from tacit.experiment import Experiment
from tacit.privacy.accounting.selected import Repetitions, about
from tacit.privacy.guarantee import spent_by
from tacit.privacy.kinds import kind_of
from tacit.privacy.ledger.before import Before
from tacit.privacy.ledger.ledger import Ledger
from tacit.report.planned import tells_nothing
from tacit.simulation.compare import plain
from tacit.simulation.run import run
from tacit.tasks import chosen, headline
from tacit.tuning import folder as folders
from tacit.tuning import secret, starts, words
from tacit.tuning.grid import NO_SCORE, Candidate, candidates
from tacit.tuning.payment import before_of, pay, refuse_dear
from tacit.tuning.price import Priced, hidden, refuse_unpriced
from tacit.tuning.seen import composed, refuse_other_price

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
        return _searched(folder, replace(parts, draw=folder.run), priced, assumes)
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
    can = kind_of(experiment).plans.together
    if losers not in (None, *LOSERS):
        raise BadInput(f"Expected losers to be one of {', '.join(LOSERS)}, got {losers!r}.")
    if losers == "hidden" and not can:
        raise BadInput(
            f'With privacy.kind = "{experiment.privacy.kind}" somebody whom the promise is against sees every run: leave out'
            " losers, and all runs are paid for, composed."
        )
    return can and losers != "seen"


def _searched(folder: Folder, parts: Parts, priced: Priced, assumes: list[str]) -> dict[str, Any]:
    state = secret.read(folder.path) if priced.hidden else None
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
            state = starts.begin_hidden(folder.path, state, ledger, parts.nonce)
        best, which = _hidden_runs(folder.path, state, priced, ledger) if state else _seen_runs(folder, priced, ledger)
        found = json.loads((best / folders.SUMMARY).read_text("utf-8"))
        told = words.summary(
            found, settings=priced.runs[which].varied, priced=priced, guarantee=replace(guarantee, also=also)
        )
        starts.release(ledger, _hash(best, priced.runs[which]), state)
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
        rank = _ran(secret.place(path, state, number), priced.runs[candidate], draw=state.draw(number))
        state = state.after(rank)
        secret.write(path, state)
        secret.forget_losers(path, state)
    if state.best is None:
        starts.release(ledger, starts.NOTHING, state)
        secret.forget(path)
        raise TrainingDiverged(NO_BEST)
    return secret.place(path, state, state.best), state.picks[state.best - 1]


def _seen_runs(folder: Folder, priced: Priced, ledger: Ledger) -> tuple[Path, int]:
    """Runs the candidates in turn, and says where the best is and which candidate it was."""
    ranks: list[tuple[tuple[float, str], Path, int]] = []
    for number in range(1, priced.count + 1):
        which, place = (number - 1) % len(priced.runs), folders.run_place(folder.path, number)
        begun = partial(starts.begin_seen, folder.path, number, ledger)
        rank = _ran(place, priced.runs[which], draw=f"{folder.run}:{number}", begun=begun)
        ranks += [(rank, place, which)] if rank else []
    if not ranks:
        raise TrainingDiverged(NO_BEST)
    return max(ranks)[1:]


def _ran(
    place: Path, candidate: Candidate, *, draw: str, begun: Callable[[Parts], None] = lambda parts: None
) -> tuple[float, str] | None:
    """Runs, or goes on with, one run; its place in the order by which the best is chosen, or None where it has no score: it
    diverged, or its metric cannot be told of the model.

    `begun` is told when its folder and ledger are there, before it releases anything.

    Guarantee: the order is total, and a function of what would be released: the score, then a hash of the model. Nothing that a
    model does after the search is paid for ends the search: what has no score ranks below everything.
    """
    if not (place / folders.SUMMARY).exists():
        try:
            again, said = (place / "experiment.toml").exists(), {"page": False, "draw": draw}
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
