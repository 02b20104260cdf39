"""`tacit.run`: one experiment from its settings to its history, on this machine."""

import datetime
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

from tacit import metrics
from tacit.build.parts import Parts, build, written
from tacit.canaries.plan import sizes_of
from tacit.data.given import Dataset
from tacit.engine.at_clients import evaluate_at_clients, judged_by
from tacit.engine.canaries import planted
from tacit.engine.describing import columns_asked, describe
from tacit.engine.evaluate import evaluate
from tacit.engine.folder import Folder, first_free, open_folder, refuse_other_parts, refuse_taken
from tacit.engine.history import History, finish, note_clients, open_ledger
from tacit.engine.loop import Observer, loop
from tacit.engine.ranges import query_of, ranged
from tacit.engine.trainers import make
from tacit.engine.trainers.overheard import Hear, overheard
from tacit.engine.trainers.processes import Trainer
from tacit.errors import BadInput, TacitError, TrainingDiverged
from tacit.experiment import Experiment
from tacit.personal import everybody
from tacit.privacy.ledger.before import NOTHING, Before, noted, read
from tacit.report.meanwhile import page_meanwhile
from tacit.report.page import write_page
from tacit.report.planned import refuse_spent
from tacit.report.writers import load_writers, open_writers
from tacit.rules import Rule
from tacit.simulation.choose import with_trainer
from tacit.simulation.passed import Model, with_passed
from tacit.tasks import chosen
from tacit.train.rowwise import Unsupported
from tacit.train.warm import warm
from tacit.types import State

MOST_NAMED = 8  # columns in a sentence

Ready = Callable[[Parts, list[dict[str, Any]]], None]


def run(
    experiment: Experiment,
    *,
    data: Dataset | None = None,
    model: Model | None = None,
    rule: Rule | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    force: bool = False,
    observe: Observer | None = None,
    ready: Ready | None = None,
    progress: Progress | None = None,
    page: bool = True,
    hear: Hear | None = None,
    draw: str = "",
) -> History:
    """Runs an experiment and returns its history; the files are in `out` (or `run.out`, or a new folder under runs/).

    `data`, `model` (a torch module, whose weights are the start, or a function that makes one) and `rule` take the place of what
    the experiment names; the run's files have their digests, and go on only with the same ones. `observe` is called with the
    record of every round. `page = False` leaves out report.html; `tacit report` makes it later. `hear` is for attacks
    (tacit/attacks): it is shown what the server sends and gets, which in a deployment nobody else is.
    `draw` names a run of a search (tacit/tuning): another name is other noise, and another release.

    Guarantee: the ledger is charged on disk before anything that a client trained is read; on a CPU, before it trains. With seeded
    randomness a resumed run equals an uninterrupted one, bit for bit on CPU. Raises TacitError in one sentence for whatever cannot
    be done; nothing is lost then.
    """
    path = Path(out or experiment.run.out or new_folder(experiment.name))
    refuse_taken(path, resume=resume, force=force)
    experiment = with_passed(experiment, data=data, model=model, rule=rule)
    if resume:
        refuse_other_parts(path, experiment)  # before anything is read or made
    writers = load_writers(experiment.run.writers)
    warm(experiment.run.devices)  # while rows are read
    with ExitStack() as stack:
        before = before_of(experiment, path, resume=resume)
        parts = replace(build(experiment, progress=progress, before=before), draw=draw)
        _refuse_in_vain(parts, resume=resume)
        folder = open_folder(path, experiment, resume=resume, force=force, resolved=written(parts), before=before)
        stack.callback(folder.close)
        first = parts  # whose rows the ledger knows: as they were read, before any private range was asked for
        parts = planted(with_trainer(ranged(first, folder), folder), folder)
        trainer = _trainer(parts, stack)
        if hear is not None:
            trainer = overheard(trainer, hear)
        ledger = open_ledger(replace(first, together=parts.together), folder)
        past = folder.past(before=(folder.restore() or (None, 0))[1])
        if ready:
            ready(parts, past)
        note_clients(parts, ledger, folder)
        book = stack.enter_context(open_writers(writers, folder, experiment, past, unit=parts.population.unit))
        describe(parts, ledger, folder)
        shown = stack.enter_context(page_meanwhile(folder.path, observe, on=page))
        with _explained(parts):
            state, stopped = loop(parts, ledger, folder, trainer, book.observing(shown))
        at_clients = evaluate_at_clients(parts, ledger, folder, state.result)
        said = {"at_clients": at_clients, "personal": _own_models(parts, folder, state)}
        history = finish(parts, ledger, folder, state.result, stopped, **said, notes=book.notes.values())
        book.finish(history.summary)
    if page:
        write_page([folder.path], folder.path / "report.html")
    return history


def new_folder(name: str) -> Path:
    """A folder under runs/ that does not exist yet."""
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return first_free(Path("runs") / f"{name}-{stamp}{suffix}" for suffix in ("", *(f"-{n}" for n in range(2, 1000))))


def before_of(experiment: Experiment, path: Path, *, resume: bool) -> Before:
    """What other runs of a shared ledger had sealed when this run began."""
    shared = experiment.privacy.ledger
    if shared is None:
        return NOTHING
    return noted(path / "run.json") if resume else read(Path(shared), unit=experiment.privacy.unit_kept)


def _refuse_in_vain(parts: Parts, *, resume: bool) -> None:
    """Refuses what would cost a folder, or a budget, in vain: a metric that is none or that the rows cannot tell, a column that
    cannot be asked for, and a shared ledger that pays for no round (a resumed run ends there). Nothing is written.

    Raises: BadInput, BudgetExhausted.
    """
    experiment = parts.experiment
    metrics.load(chosen(experiment))
    judged_by(experiment, parts.dataset)
    columns_asked(experiment, parts.dataset)
    sizes_of(parts)
    everybody.refuse_unfit(parts)
    if resume:
        return
    refuse_spent(parts)
    if query_of(experiment, parts.dataset, parts.plan, parts.population) is None:  # else rows are not scaled yet
        evaluate(replace(parts), parts.params)  # a copy: what it moved to the device is let go with it


def _own_models(parts: Parts, folder: Folder, state: State) -> dict[str, Any] | None:
    """Has every client adapt the last model at home, where the experiment asks for it; in short, for the summary."""
    found = everybody.measured(parts, state.result, kept=state.control.get("own"))
    if found is None:
        return None
    folder.write(everybody.NAME, json.dumps(found[0], indent=1).encode())
    return found[1]


@contextmanager
def _explained(parts: Parts) -> Iterator[None]:
    """Says what to do about a device that is full, and names unscaled columns where training diverged."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise TacitError(
            "The device has not enough memory, and it was not training that took it: end what else runs there, then go on with"
            " --resume; the last checkpoint is kept."
        ) from None
    except TrainingDiverged as error:
        columns = parts.dataset.encoder.columns if parts.dataset.encoder else ()
        names = [repr(column.name) for column in columns if column.values is None and column.limits is None]
        if not names:
            raise
        hint = f"Or declare ranges in data.numeric for the unscaled {', '.join(names[:MOST_NAMED])}."
        raise TrainingDiverged(f"{error} {hint}") from error


def _trainer(parts: Parts, stack: ExitStack) -> Trainer:
    experiment = parts.experiment
    if experiment.run.engine == "flower-simulation":
        from tacit.federation.flower.simulation import OnRay

        on_ray = OnRay(parts)
        stack.callback(on_ray.close)
        return on_ray
    if parts.together:
        try:
            return make.stacked(parts)
        except Unsupported as error:
            raise BadInput(
                f"This run began with clients that train at once, and they cannot ({error}): start anew."
            ) from None
    return make.each_by_itself(parts, stack)
