"""`tune`: prices a search, pays for all of it, runs it, publishes the best, and says in words what is promised of it.
Its folder: what was asked, `search.json` (its name in the ledger), the ledger, `runs`, `begun.json` (which of them may have
released something), and `best`. Of copies of a folder, and of older ones that were put back, one alone has each start in the
ledger."""

import hashlib
import json
import math
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import tacit
from tacit import store
from tacit.data import encoder
from tacit.engine.assemble import Parts, build, clients
from tacit.engine.evaluate import evaluate
from tacit.engine.ledgers import open_ledger
from tacit.engine.queries import judged_by
from tacit.engine.run_files import table
from tacit.engine.run_folder import SEARCH, Folder
from tacit.errors import BadInput, LedgerError, TacitError, TrainingDiverged, Unmeasured
from tacit.experiment import Experiment
from tacit.lab.compare.grid import SEARCH as KEPT
from tacit.lab.grid import plain
from tacit.lab.tuning import price
from tacit.lab.tuning.price import Candidate, Priced
from tacit.parts import metrics
from tacit.parts.tasks import chosen, headline
from tacit.privacy.guarantee import PUBLIC, sentence, shown, shown_delta, spent_by
from tacit.privacy.ledger.ledger import Before, Ledger
from tacit.report.plan import tells_nothing
from tacit.simulation import run
from tacit.types import Guarantee

BEST, RUNS, SUMMARY = "best", "runs", "summary.json"
BEGUN = "begun.json"
CHARGED = "it says which charge is this search's, so put it back"
RELEASED = "it says which runs were released, so put it back"
PUBLISHED = ("experiment.toml", "model.safetensors", encoder.NAME)  # of the best run, as they are
FOUND = "search"  # under which name the ledger knows what was found
FEWEST, MOST = 2, 1_000_000  # runs of a search
SEARCHED = "the test set, the grid and all settings that were not searched are public"
# of the best run's summary: what follows from its models and public rows; not its times, traffic, notes and cohorts
COPIED = ("name", "test_loss", "metric", "metrics", "confusion", "per_class", "rounds", "clients", "parameters")
COPIED += ("frozen_parameters", "rule", "noise_multiplier", "at_clients")
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
    resume: bool = False,
    force: bool = False,
    announce: Announce | None = None,
) -> dict[str, Any]:
    """Searches the grid of `vary` by so many runs, candidate by candidate; returns the summary of the best, which is in `out`/best.
    Guarantee: that of `promised`, at a price that is on the ledger before anything is run, and paid once, whatever is killed.
    Raises: BadInput for what cannot be searched, BudgetExhausted, LedgerError, TrainingDiverged where no run ended well."""
    path, values = Path(out), plain(experiment)
    KEPT.refuse_taken(path, resume=resume, force=force)
    if resume and (known := table(path / BEST / SUMMARY)) is not None:
        return known
    before = price.before_of(path, values, resume=resume)
    priced, parts, assumes = _prepared(values, vary, runs, before)
    price.refuse_dear(priced, parts)
    lock = KEPT.take(path, force=force)
    try:
        folder = _begin(path, lock, values, vary, runs=runs, before=parts.before)
        if announce:
            announce(priced, parts.population.unit)
        return _searched(folder, replace(parts, trial_id=folder.run), priced, assumes)
    finally:
        os.close(lock)


def price_of(
    experiment: Experiment | Mapping[str, Any], vary: Mapping[str, Sequence[Any]], *, runs: int
) -> tuple[Priced, str]:
    """What `tune` would cost, and the unit that it is for. Nothing is written. Raises as `tune`."""
    values = plain(experiment)
    priced, parts, _ = _prepared(values, vary, runs, price.before_of(Path(), values, resume=False))
    return priced, parts.population.unit


def _prepared(
    values: Mapping[str, Any], vary: Mapping[str, Sequence[Any]], runs: int, before: Before
) -> tuple[Priced, Parts, list[str]]:
    """The search with its price, every candidate tried without training; the parts it is paid by, and what candidates assume."""
    if not FEWEST <= runs <= MOST:
        raise BadInput(f"Expected {FEWEST} to {MOST:,} runs, got {runs}: a single run is `tacit run`.")
    grid, assumes = price.candidates(values, vary), list[str]()
    first = grid[0].experiment
    dataset, _, population = clients(first, before=before)
    if not len(dataset.test_y) and first.data.held_out is None:
        raise BadInput(price.NO_SCORE)
    priced = price.composed(
        grid, replace(dataset, x=population.x, y=population.y, client=None, person=None), population, runs
    )
    for candidate in priced.runs:
        try:
            made = build(candidate.experiment)
            price.refuse_other_price(priced, made)
            evaluate(made, made.params)
            judged = judged_by(made.experiment, made.dataset)
            # answers about held-out rows whose noise, by public numbers, leaves nothing to choose by
            why = "" if judged is None else tells_nothing(made.experiment, judged, made.plan, made.population)
            if why:
                raise BadInput(f"a search would choose by chance: {why.removeprefix('Note: ')}")
            assumes += made.promise.assumes
        except TacitError as error:
            raise BadInput(f"{candidate.label}: {error}") from error
    usual, ledger = priced.runs[0].experiment, values.get("privacy", {}).get("ledger")
    paying = usual.model_copy(update={"privacy": usual.privacy.model_copy(update={"ledger": ledger})})
    parts = build(paying, before=before)
    return priced, replace(parts, population=replace(parts.population, epsilons=population.epsilons)), assumes


def _searched(folder: Folder, parts: Parts, priced: Priced, assumes: list[str]) -> dict[str, Any]:
    ledger = open_ledger(parts, folder, once=True, queries=lambda client: priced.queries.get(client, {}))
    if ledger is None:
        raise BadInput(price.NO_PRICE)
    try:
        price.pay(ledger, folder, parts, priced, folder.run)
        guarantee = spent_by(promised(parts, priced, assumes), ledger, parts.population)
        also = parts.plan.also(guarantee, parts.experiment, ledger, parts.population)
        place, best = _best_run(folder, priced, ledger)
        found = json.loads((place / SUMMARY).read_text("utf-8"))
        published = summary(found, settings=best.varied, priced=priced, guarantee=replace(guarantee, also=also))
        ledger.release(FOUND, _hash(place, best))  # one thing for its charge. Raises LedgerError for another one
        _publish(folder.path, place, published)
        return published
    finally:
        ledger.close()


def _best_run(folder: Folder, priced: Priced, ledger: Ledger) -> tuple[Path, Candidate]:
    ranks: list[tuple[tuple[float, str], Path, int]] = []
    for number in range(1, priced.count + 1):
        which, place = (number - 1) % len(priced.runs), run_place(folder.path, number)
        begun = partial(_begun_run, folder.path, number, ledger)
        rank = _ran(place, priced.runs[which], trial_id=f"{folder.run}:{number}", begun=begun)
        ranks += [(rank, place, which)] if rank else []
    if not ranks:
        raise TrainingDiverged(NO_BEST)
    _, place, which = max(ranks)
    return place, priced.runs[which]


def _ran(
    place: Path, candidate: Candidate, *, trial_id: str, begun: Callable[[Parts], None]
) -> tuple[float, str] | None:
    """Runs, or goes on with, one run. Its place in the order by which the best is chosen, or None where it has no score.
    Guarantee: the order is total, and a function of what is released: the score, then a hash of the model."""
    if not (place / SUMMARY).exists():
        try:
            again, said = (place / "experiment.toml").exists(), {"page": False, "trial_id": trial_id}
            history = run(candidate.experiment, out=place, resume=again, ready=lambda parts, _: begun(parts), **said)
        except (TrainingDiverged, Unmeasured):
            return None
        if history.ledger:
            history.ledger.close()
    score = score_of(candidate.experiment, json.loads((place / SUMMARY).read_text("utf-8")))
    return None if score is None else (score, _hash(place, candidate))


def score_of(experiment: Experiment, summary: Mapping[str, Any]) -> float | None:
    """A run's score by its metric, the higher the better; None where it has none, or one that is no number: on public rows, or,
    where clients hold rows out, what they answered about those: counts with their noise, and nothing else."""
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
    seen = f"{priced.count} runs, all of which are seen, with {blank.sampler}"
    return replace(blank, sampler=seen, assumes=tuple(said))


def prices(priced: Priced, unit: str) -> list[str]:
    at = f"at delta = {shown_delta(priced.delta)}"
    whose = f", to whom of {len(priced.events)} clients it costs most" if len(priced.events) > 1 else ""
    each = "; every client pays by its own budget" if whose else ""
    return [
        f"One run costs epsilon {shown(priced.one)} per {unit} {at}{whose}.",
        f"{priced.count} runs, all of which are seen, cost epsilon {shown(priced.epsilon)}.",
        f"Charged: {shown(priced.epsilon)}, before the first run{each}.",
    ]


def summary(found: dict[str, Any], *, settings: dict[str, Any], priced: Priced, guarantee: Guarantee) -> dict[str, Any]:
    """What is published of the best run (`found` is its own summary): no times and no traffic."""
    kept = {key: found[key] for key in (*COPIED, f"test_{found['metric']}") if key in found}
    return kept | {
        "settings": settings,
        "search": {"candidates": len(priced.runs), "runs": priced.count, "epsilon_of_one_run": priced.one},
        "guarantee": guarantee.record(),
        "sentence": sentence(guarantee).replace("spent in this run", "spent in this search"),
        "version": tacit.__version__,
    }


# The folder.


def _begin(
    path: Path,
    lock: int,
    values: Mapping[str, Any],
    vary: Mapping[str, Sequence[Any]],
    *,
    runs: int,
    before: Before,
) -> Folder:
    """Writes down what was asked, once, and names the search for its ledger. Raises BadInput where something else is asked
    of one that goes on, or nobody knows its name any more."""
    texts = KEPT.texts(values, vary, runs)
    ledger = values.get("privacy", {}).get("ledger")
    if not (path / KEPT.file).exists():
        way = os.path.relpath(ledger, path) if ledger else "ledger.db"
        noted = {"before": before.record()} if before.runs else {}
        if not (path / RUNS).exists():
            store.write(path / BEGUN, b"{}")
        store.write(path / SEARCH, json.dumps({"run": uuid.uuid4().hex, "ledger": way, **noted}).encode())
        KEPT.write(path, texts)
    elif any((path / name).read_text("utf-8") != text for name, text in texts.items()):
        raise BadInput(f"The search in {path} has other settings: resume it as it was, or choose another --out.")
    known = table(path / SEARCH, {"run": str}, CHARGED)
    if known is None:
        raise BadInput(f"{path / SEARCH} is missing: {CHARGED}.")
    return Folder(path, known["run"], lock)


def run_place(path: Path, number: int) -> Path:
    """The folder of a run that is seen. Raises LedgerError where it had begun and is gone: it would be released again."""
    place = path / RUNS / f"{number:03d}"
    if str(number) in _begun(path) and not (place / "run.json").exists():
        raise LedgerError(
            f"{place} is gone, and what it released was paid for once: put it back, or start another search; nothing was released."
        )
    return place


def _begun(path: Path) -> dict[str, list[str]]:
    found = table(path / BEGUN, {str: [str]}, RELEASED)
    if found is None:
        raise LedgerError(f"{path / BEGUN} is gone: {RELEASED}.")
    return found


def _publish(path: Path, run: Path, summary: dict[str, Any]) -> None:
    made = path / f".{BEST}.new"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    for name in PUBLISHED:
        store.write(made / name, (run / name).read_bytes())
    store.write(made / SUMMARY, json.dumps(summary, indent=2).encode())
    made.rename(path / BEST)


def _begun_run(path: Path, number: int, ledger: Ledger, parts: Parts) -> None:
    """Notes that a run may release from now on; in the ledger too where its noise will not come again.
    Raises: LedgerError where another folder had this start; then nothing may be released."""
    begun = _begun(path)
    known = [*begun.get(str(number), []), *([parts.nonce] if parts.nonce else [])]
    store.write(path / BEGUN, json.dumps(begun | {str(number): known}).encode())
    for place, start in enumerate(known):  # those before too: a folder that made some up is not the one that had them
        ledger.release(f"run {number}, start {place}", start)
