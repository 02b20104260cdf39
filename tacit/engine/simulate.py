"""`tacit.run`: one experiment from its settings to its history, on this machine."""

import copy
import datetime
import json
import os
import platform
import sys
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress
from safetensors.torch import save
from torch import nn

import tacit
from tacit.algorithms.local_dp import LocalDP
from tacit.build import Parts, build, population_id
from tacit.engine.evaluate import evaluate
from tacit.engine.folder import Folder, first_free, open_folder, refuse_taken
from tacit.engine.loop import Observer, loop
from tacit.engine.wire import pack
from tacit.experiment import Experiment
from tacit.privacy.guarantee import promise, sentence, spent_by
from tacit.privacy.ledger import Ledger
from tacit.train.cohort import SideBySide, Trainer, one_by_one, task
from tacit.train.flat import blocks
from tacit.train.stacked import stackable, stacked
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
        return sentence(self.guarantee, other_runs=self.ledger.other_runs() if self.ledger else 0)


def run(
    experiment: Experiment,
    *,
    out: Path | str | None = None,
    resume: bool = False,
    force: bool = False,
    observe: Observer | None = None,
    ready: Ready | None = None,
    progress: Progress | None = None,
) -> History:
    """Runs an experiment and returns its history; the files are in `out` (or `run.out`, or a new folder under runs/).

    Guarantee: the ledger is charged on disk before a client trains. With seeded randomness a resumed run equals an uninterrupted
    one, bit for bit on CPU. Raises TacitError in one sentence for whatever cannot be done; nothing is lost then.
    """
    place = Path(out or experiment.run.out or new_place(experiment.name))
    refuse_taken(place, resume=resume, force=force)
    with ExitStack() as stack:
        parts = build(experiment, progress=progress)
        folder = open_folder(place, experiment, resume=resume, force=force)
        stack.callback(folder.close)
        trainer = _trainer(parts, stack)
        ledger = open_ledger(parts, folder)
        past = folder.rounds(before=(folder.restore() or (None, 0))[1])
        if ready:
            ready(parts, past)
        state, stopped = loop(parts, ledger, folder, trainer, observe or (lambda record: None))
        return finish(parts, ledger, folder, state.params, stopped)


def new_place(name: str) -> Path:
    """A folder under runs/ that does not exist yet."""
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return first_free(Path("runs") / f"{name}-{stamp}{suffix}" for suffix in ("", *(f"-{n}" for n in range(2, 1000))))


def _trainer(parts: Parts, stack: ExitStack) -> Trainer:
    experiment = parts.experiment
    clip = experiment.privacy.clip if parts.plan else None
    work = workspace(copy.deepcopy(parts.model), clip=clip, physical_batch=experiment.train.physical_batch)
    algorithm = parts.algorithm
    if work.theta.is_cuda and isinstance(algorithm, LocalDP) and stackable(work, parts.population):
        return stacked(algorithm, work, parts.population, parts.derive)
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


def open_ledger(parts: Parts, folder: Folder, *, attempt: str | None = None) -> Ledger | None:
    """The ledger of a run, or None where nothing is charged. `attempt` is given where a repeated round is the same release."""
    if parts.plan is None or not parts.plan.priced:
        return None
    experiment = parts.experiment
    # what the released bits are a function of: if any of it changes, a repeated round is a new release and is paid again
    seeded = experiment.run.randomness == "seeded"
    machine = f"{platform.node()}-{torch.backends.cpu.get_cpu_capability()}"  # other arithmetic gives other bits
    same = "-".join((tacit.__version__, torch.__version__, machine, parts.population.digest()))
    attempt = attempt or (same if seeded else uuid.uuid4().hex)
    return Ledger(
        experiment.privacy.ledger or folder.path / "ledger.db",
        population=population_id(experiment, parts.population),
        run=folder.run,
        attempt=attempt,
        accountant=experiment.privacy.accountant,
    )


def finish(parts: Parts, ledger: Ledger | None, folder: Folder, params: torch.Tensor, stopped: str) -> History:
    """Writes the model and the summary of a run that has ended."""
    experiment = parts.experiment
    rounds = folder.rounds(before=experiment.train.rounds)
    accuracy, loss = evaluate(parts, params)
    guarantee = None
    if ledger is not None and parts.plan is not None:
        guarantee = spent_by(promise(experiment, parts.plan), ledger, parts.population)
    summary = {
        "name": experiment.name,
        "test_accuracy": accuracy,
        "test_loss": loss,
        "rounds": len(rounds),
        "stopped": stopped,
        "clients": len(parts.population),
        "parameters": parts.params.numel(),
        "seconds": sum(record["seconds"] for record in rounds),
        "uplink_bytes": sum(record["uplink_bytes"] for record in rounds),
        "downlink_bytes": sum(record["downlink_bytes"] for record in rounds),
        "noise_multiplier": _range(parts.plan.multipliers) if parts.plan else None,
        "out_of_budget": rounds[-1]["out_of_budget"] if rounds else None,
        "guarantee": guarantee.record() if guarantee else None,
        "sentence": sentence(guarantee, other_runs=ledger.other_runs() if ledger else 0),
        "notes": list(parts.dataset.notes),
        "version": tacit.__version__,
        "run": folder.run,
    }
    tensors = {b.name: params[b.start : b.stop].reshape(b.shape).cpu().contiguous() for b in blocks(parts.model)}
    folder.write("model.safetensors", save(tensors))
    folder.write("summary.json", json.dumps(summary, indent=2).encode())
    return History(rounds, summary, parts.model.eval(), guarantee, ledger, folder.path)


def _range(values: Any) -> dict[str, float]:
    tensor = torch.as_tensor(values, dtype=torch.float64)
    return {"min": float(tensor.min()), "median": float(tensor.quantile(0.5)), "max": float(tensor.max())}
