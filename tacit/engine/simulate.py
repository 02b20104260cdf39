"""`tacit.run`: one experiment from its settings to its history, on this machine."""

import copy
import datetime
import json
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress
from safetensors.torch import save
from torch import nn

import tacit
from tacit.algorithms.local_dp import LocalDP
from tacit.build.parts import Parts, build, population_id, rule_name, with_rule
from tacit.build.release import STACKED
from tacit.engine import neighbours
from tacit.engine.evaluate import evaluate
from tacit.engine.exports import clients_record, csv_text, flat_records
from tacit.engine.folder import Folder, first_free, open_folder, refuse_taken
from tacit.engine.loop import Observer, loop
from tacit.engine.trainers.processes import SideBySide, Trainer, one_by_one, task
from tacit.engine.trainers.stacked import stackable, stacked
from tacit.engine.wire import pack
from tacit.errors import LedgerError
from tacit.experiment import Experiment
from tacit.privacy.before import NOTHING, Before, noted, read
from tacit.privacy.central.plan import CentralPlan
from tacit.privacy.guarantee import promise, seen_alone, sentence, spent_by
from tacit.privacy.ledger.conditions import Condition, Draws
from tacit.privacy.ledger.holdings import holdings
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.ledger.witness import NAME as MARK
from tacit.report.writers import load_writers, open_writers
from tacit.train.flat import blocks
from tacit.train.workspace import workspace
from tacit.types import Guarantee

Ready = Callable[[Parts, list[dict[str, Any]]], None]


@dataclass(frozen=True, eq=False)
class History:
    """What a run leaves: a record per round, the model, the guarantee, the ledger, and the folder with the files."""

    rounds: list[dict[str, Any]] = field(repr=False)
    summary: dict[str, Any] = field(repr=False)
    model: nn.Module = field(repr=False)
    guarantee: Guarantee | None
    ledger: Ledger | None = field(repr=False)
    out: Path

    @property
    def sentence(self) -> str:
        """The guarantee as a privacy officer reads it."""
        return sentence(self.guarantee)

    def records(self) -> list[dict[str, Any]]:
        """A flat dict of scalars per round, as in rounds.csv: `pandas.DataFrame(history.records())`."""
        return flat_records(self.rounds, unit=self.guarantee.unit if self.guarantee else None)


def run(
    experiment: Experiment,
    *,
    out: Path | str | None = None,
    resume: bool = False,
    force: bool = False,
    observe: Observer | None = None,
    ready: Ready | None = None,
    progress: Progress | None = None,
    page: bool = True,
) -> History:
    """Runs an experiment and returns its history; the files are in `out` (or `run.out`, or a new folder under runs/).

    `page = False` leaves out report.html; `tacit report` makes it later.

    Guarantee: the ledger is charged on disk before a client trains. With seeded randomness a resumed run equals an uninterrupted
    one, bit for bit on CPU. Raises TacitError in one sentence for whatever cannot be done; nothing is lost then.
    """
    place = Path(out or experiment.run.out or new_place(experiment.name))
    refuse_taken(place, resume=resume, force=force)
    writers = load_writers(experiment.run.writers)
    with ExitStack() as stack:
        before = _before(experiment, place, resume=resume)
        parts = build(experiment, progress=progress, before=before)
        folder = open_folder(place, experiment, resume=resume, force=force, resolved=with_rule(parts), before=before)
        stack.callback(folder.close)
        trainer = _trainer(parts, stack)
        ledger = open_ledger(parts, folder)
        past = folder.rounds(before=(folder.restore() or (None, 0))[1])
        if ready:
            ready(parts, past)
        note_clients(parts, ledger, folder)
        book = stack.enter_context(open_writers(writers, folder, experiment, past, unit=parts.population.unit))
        state, stopped = loop(parts, ledger, folder, trainer, book.observing(observe))
        history = finish(parts, ledger, folder, state.result, stopped)
        book.finish(history.summary)
    if page:
        from tacit.report.page import write_page  # after the run: the page is made from the files alone

        write_page([folder.path], folder.path / "report.html")
    return history


def new_place(name: str) -> Path:
    """A folder under runs/ that does not exist yet."""
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return first_free(Path("runs") / f"{name}-{stamp}{suffix}" for suffix in ("", *(f"-{n}" for n in range(2, 1000))))


def _before(experiment: Experiment, place: Path, *, resume: bool) -> Before:
    """What other runs of a shared ledger had sealed when this run began."""
    shared = experiment.privacy.ledger
    if shared is None:
        return NOTHING
    return noted(place / "run.json") if resume else read(Path(shared), unit=experiment.privacy.unit_kept)


def _trainer(parts: Parts, stack: ExitStack) -> Trainer:
    experiment = parts.experiment
    if experiment.run.engine == "flower-simulation":
        from tacit.federation.flower.simulation import OnRay

        on_ray = OnRay(parts)
        stack.callback(on_ray.close)
        return on_ray
    clip = experiment.privacy.clip if parts.plan else None
    work = workspace(copy.deepcopy(parts.model), clip=clip, physical_batch=experiment.train.physical_batch)
    algorithm = parts.algorithm
    if work.theta.is_cuda and isinstance(algorithm, LocalDP) and stackable(algorithm, work, parts.population):
        return stacked(algorithm, work, parts.population, parts.releases.streams(trainer=STACKED))
    train = task(algorithm, work, parts.population, parts.derive)
    workers = (
        min(experiment.run.workers or len(os.sched_getaffinity(0)), parts.cohort) if sys.platform == "linux" else 1
    )
    if workers == 1 or experiment.run.device != "cpu":
        return one_by_one(train)
    message = pack(parts.algorithm.broadcast(parts.algorithm.init(parts.params), [parts.population[0]]))
    pool = SideBySide(train, workers=workers, message_bytes=len(message))
    stack.callback(pool.close)
    # the server's part takes one thread while clients train: threads that wait for each other would take the clients' cores
    stack.callback(torch.set_num_threads, torch.get_num_threads())
    torch.set_num_threads(1)
    return pool


def open_ledger(parts: Parts, folder: Folder) -> Ledger | None:
    """The ledger of a run, or None where nothing is charged. Raises LedgerError where it lacks what the folder's run released."""
    if parts.plan is None or not parts.plan.priced:
        return None
    experiment, releases = parts.experiment, parts.releases
    shared = experiment.privacy.ledger
    path = Path(shared) if shared else folder.path / "ledger.db"
    draws = isinstance(parts.plan, CentralPlan) and experiment.run.randomness == "seeded" and not parts.elsewhere
    conditions: list[Condition] = [Draws(releases.server_key, releases.digest)] if draws else []
    if experiment.data.partition == "natural" and not parts.elsewhere:
        conditions.append(holdings(parts.population, parts.dataset))
    if shared:
        neighbours.refuse_lost(path, folder.path)
    ledger = Ledger(
        path,
        population=population_id(experiment, parts.population, elsewhere=parts.elsewhere),
        run=folder.run,
        delta=experiment.privacy.delta,
        rounds=experiment.train.rounds,
        accountant=experiment.privacy.accountant,
        marks=(folder.path / MARK, *([path.with_name(f"{path.name}.mark")] if shared else [])),
        conditions=conditions,
    )
    refuse_unknown(folder, ledger)
    if shared:
        neighbours.refuse_older(ledger, folder.path)
    return ledger


def refuse_unknown(folder: Folder, ledger: Ledger) -> None:
    """Refuses to go on where the folder holds rounds that its ledger was never charged for. Raises LedgerError."""
    _, first = folder.restore() or (None, 0)
    for round in {*range(first), *folder.logged()}:
        if not ledger.knows(round):
            raise LedgerError(
                f"{folder.path} holds round {round}, and its ledger {ledger.path} knows no charge for it: restore the ledger"
                " that was charged; nothing was released."
            )


def note_clients(parts: Parts, ledger: Ledger | None, folder: Folder, *, simulated: bool = True) -> None:
    """Writes down who the clients are and what they are promised, so that a report needs nothing but the folder."""
    blank = promise(parts.experiment, parts.plan) if ledger and parts.plan else None
    way = os.path.relpath(ledger.path, folder.path) if ledger else None
    folder.write("clients.json", json.dumps(clients_record(parts, blank, ledger=way, simulated=simulated)).encode())


def finish(parts: Parts, ledger: Ledger | None, folder: Folder, params: torch.Tensor, stopped: str) -> History:
    """Writes the model and the summary of a run that has ended."""
    experiment = parts.experiment
    rounds = folder.rounds(before=experiment.train.rounds)
    accuracy, loss = evaluate(parts, params)
    guarantee = None
    if ledger is not None and parts.plan is not None:
        guarantee = spent_by(promise(experiment, parts.plan), ledger, parts.population)
        if experiment.privacy.kind == "distributed":
            guarantee = replace(guarantee, also=(seen_alone(guarantee, experiment, ledger, parts.population),))
    summary = {
        "name": experiment.name,
        "test_accuracy": accuracy,
        "test_loss": loss,
        "rounds": len(rounds),
        "stopped": stopped,
        "clients": len(parts.population),
        "parameters": parts.params.numel(),
        "rule": None if isinstance(parts.plan, CentralPlan) else rule_name(experiment, parts.population),
        "seconds": sum(record["seconds"] for record in rounds),
        "uplink_bytes": sum(record["uplink_bytes"] for record in rounds),
        "downlink_bytes": sum(record["downlink_bytes"] for record in rounds),
        "noise_multiplier": _range(parts.plan.multipliers) if parts.plan else None,
        "out_of_budget": rounds[-1]["out_of_budget"] if rounds else None,
        "guarantee": guarantee.record() if guarantee else None,
        "other_runs": guarantee.others.runs if guarantee and guarantee.others else 0,
        "sentence": sentence(guarantee),
        "notes": list(parts.dataset.notes),
        "version": tacit.__version__,
        "run": folder.run,
    }
    tensors = {b.name: params[b.start : b.stop].reshape(b.shape).cpu().contiguous() for b in blocks(parts.model)}
    folder.write("model.safetensors", save(tensors))
    history = History(rounds, summary, parts.model.eval(), guarantee, ledger, folder.path)
    folder.write("rounds.csv", csv_text(history.records()).encode())
    folder.write("summary.json", json.dumps(summary, indent=2).encode())
    return history


def _range(values: Any) -> dict[str, float]:
    tensor = torch.as_tensor(values, dtype=torch.float64)
    return {"min": float(tensor.min()), "median": float(tensor.quantile(0.5)), "max": float(tensor.max())}
