"""What attacks share: runs of the very experiment on a chosen part of its clients' rows, trained or watched, and kept.
Who is in follows from the experiment's seed and the number of the run, so that a run resumes in whatever process."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import Progress

from tacit import store
from tacit.data.dataset import Dataset
from tacit.data.population import Population
from tacit.engine.assemble import clients
from tacit.errors import BadInput, TacitError
from tacit.experiment import Experiment
from tacit.lab.attacks import Place
from tacit.lab.compare.grid import Task
from tacit.lab.worker import Event, run_all
from tacit.simulation import Heard, run
from tacit.types import Message

Observe = Callable[[int, Message, Heard], np.ndarray | None]
TRUSTED = "Central DP trusts the server, which sees updates before their noise: what it promises is about models alone."
FOR_ONE_RUN = {"data": ("held_out",), "privacy": ("query_shares",), "run": ("writers",)}  # keys that attacks drop


def whole(experiment: Experiment) -> Experiment:
    """The experiment with all of its clients' rows in training, to run in one process: an attack's runs go concurrently.
    Raises BadInput for columns whose range every run would ask its clients for: their rows would be other rows in every run."""
    numeric = experiment.data.options().get("numeric", {})
    private = [name for name, value in numeric.items() if value == "private"] if isinstance(numeric, Mapping) else []
    if private:
        raise BadInput(f"The range of {private[0]!r} is asked for in every run: declare it in data.numeric.")
    values = experiment.model_dump(exclude_none=True)
    for table, keys in FOR_ONE_RUN.items():
        values[table] = {key: value for key, value in values[table].items() if key not in keys}
    return Experiment(**values | {"run": values["run"] | {"workers": 1}})


def pooled(experiment: Experiment, source: str, **options: Any) -> Experiment:
    """The experiment on a part of its clients' rows, which the data source `source` chooses. Raises BadInput, as `whole`."""
    values = whole(experiment).model_dump(exclude_none=True)
    return Experiment(**values | {"data": {"name": source, "partition": "natural", "of": values["data"]} | options})


def clients_of(table: dict[str, Any], seed: int, progress: Progress | None) -> tuple[Dataset, Population]:
    dataset, _, population = clients(Experiment(data=table, run={"seed": seed}), progress=progress)
    return dataset, population


def kept(dataset: Dataset, population: Population, mask: np.ndarray) -> Dataset:
    whose = np.repeat(np.arange(len(population)), population.sizes)[mask]
    rows = {"x": population.x[mask], "y": population.y[mask], "client": whose}
    return replace(dataset, **rows, client_names=population.names, mapped=False)


def train(tasks: Sequence[Task], place: Place, *, what: str = "runs") -> None:
    """Runs or resumes what is not finished, `place.jobs` at once. Raises TacitError where one fails."""
    waiting = [task for task in tasks if not task.finished]
    done = len(tasks) - len(waiting)
    place.tell(f"{len(tasks)} {what}, {done} of them trained before")

    def watch(task: Task | None, event: Event) -> None:
        nonlocal done
        if task is not None and event["kind"] == "done":
            done += 1
            place.tell(f"{done} of {len(tasks)} {what} are trained")

    failed = run_all(waiting, jobs=place.jobs, logs=place.folder / "log", watch=watch) if waiting else {}
    for task in waiting:
        if why := failed.get(task.folder):
            raise TacitError(f"{task.cell.label}, seed {task.experiment.run.seed}, could not be trained: {why}")


def watched(experiment: Experiment, home: Path, observe: Observe) -> dict[int, np.ndarray]:
    """What `observe` makes of the rounds of a run, by round; kept in `home`, where a stopped run goes on."""
    home.mkdir(parents=True, exist_ok=True)

    def hear(round: int, broadcast: Message, heard: Heard) -> None:
        seen = observe(round, broadcast, heard)
        if seen is not None:
            store.write(home / f"round-{round}.f64", seen.tobytes())

    if not (home / "run" / "summary.json").exists():
        run(experiment, out=home / "run", resume=(home / "run" / "experiment.toml").exists(), page=False, hear=hear)
    files = {round: home / f"round-{round}.f64" for round in range(experiment.train.rounds)}
    return {round: np.frombuffer(file.read_bytes()) for round, file in files.items() if file.exists()}


def whole_update(message: Message, broadcast: Message) -> torch.Tensor | None:
    """The update in a message, where it is one number for each parameter."""
    update = message.tensors.get("update")
    if update is None or update.numel() != broadcast.tensors["params"].numel() or not update.is_floating_point():
        return None
    return update.flatten().float().cpu()


def updates_in(heard: Heard, broadcast: Message, names: Sequence[str]) -> dict[int, torch.Tensor]:
    """The whole updates of a round, by the number of their client."""
    number = {name: index for index, name in enumerate(names)}
    return {number[m.sender]: u for _, m in heard if (u := whole_update(m, broadcast)) is not None}
