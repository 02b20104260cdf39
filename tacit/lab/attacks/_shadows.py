"""What attacks share: runs of the very experiment on a chosen part of its clients' rows, trained or watched, kept and found again.

Rows stay with their clients, and every client keeps its name and its budget. Who is in is a function of the experiment's seed and
of the number of the run, so that a run is found again and goes on by itself, in whatever process."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import Progress
from safetensors.torch import load_file

from tacit import check, store
from tacit.data.columns import Category
from tacit.data.dataset import Dataset
from tacit.data.population import Population, rows_mark
from tacit.engine import trainers
from tacit.engine.assemble import Parts, clients
from tacit.engine.trainers import Heard
from tacit.errors import BadData, BadInput, TacitError
from tacit.experiment import Experiment
from tacit.lab.attacks import Place
from tacit.lab.compare.grid import Cell, Task
from tacit.lab.worker import Event, run_all
from tacit.random import seeded
from tacit.simulation import run
from tacit.training.flat import trainable, training
from tacit.types import Client, Message
from tacit.wire import digest_of, pack, unpack

MEMBERS, GAMES, SOME = (f"tacit.lab.attacks._shadows:{name}" for name in ("members", "arranged", "some"))
ROWS = 1000  # that a model is asked about at a time
SMALLEST_LOSS = 1e-15
CLASSES = ("classification", "binary")
TRUSTED = "Central DP trusts the server, which sees updates before their noise: what it promises is about models alone."


def whole(experiment: Experiment) -> Experiment:
    """The experiment with all of its clients' rows in training, to run in one process: an attack's runs go concurrently.
    Raises BadInput for columns whose range every run would ask its clients for: their rows would be other rows in every run."""
    numeric = experiment.data.options().get("numeric", {})
    private = [name for name, value in numeric.items() if value == "private"] if isinstance(numeric, Mapping) else []
    if private:
        raise BadInput(f"The range of {private[0]!r} is asked for in every run: declare it in data.numeric.")
    values = experiment.model_dump(exclude_none=True)
    for table, keys in {"data": ("held_out",), "privacy": ("query_shares",), "run": ("out", "writers")}.items():
        values[table] = {key: value for key, value in values[table].items() if key not in keys}
    return Experiment(**values | {"run": values["run"] | {"workers": 1}})


def pooled(experiment: Experiment, source: str = MEMBERS, **options: Any) -> Experiment:
    """The experiment on a part of its clients' rows, which `source` chooses. Raises BadInput, as `whole`."""
    values = whole(experiment).model_dump(exclude_none=True)
    return Experiment(**values | {"data": {"name": source, "partition": "natural", "of": values["data"]} | options})


def _clients_of(table: dict[str, Any], seed: int, progress: Progress | None) -> tuple[Dataset, Population]:
    dataset, _, population = clients(Experiment(data=table, run={"seed": seed}), progress=progress)
    return dataset, population


def _kept(dataset: Dataset, population: Population, mask: np.ndarray) -> Dataset:
    whose = np.repeat(np.arange(len(population)), population.sizes)[mask]
    rows = {"x": population.x[mask], "y": population.y[mask], "client": whose}
    return replace(dataset, **rows, client_names=population.names, mapped=False)


@dataclass(frozen=True)
class members:
    """The members of run number `number` among the rows of the clients that the [data] table `of` describes.
    Runs 2k and 2k + 1 are mirrors: of every client one has a half of the rows, drawn at random, and the other the rest."""

    of: dict[str, Any]
    number: int = 0

    def load(self, *, seed: int, progress: Progress | None = None) -> Dataset:
        """The rows that train, with their clients. Raises BadData for a client that has fewer than two rows."""
        dataset, population = _clients_of(self.of, seed, progress)
        return _kept(dataset, population, halves(population, seed=seed, number=self.number))


@dataclass(frozen=True)
class some:
    """The first `records` rows of client number `client` alone, among the clients that the [data] table `of` describes."""

    of: dict[str, Any]
    client: int
    records: int

    def load(self, *, seed: int, progress: Progress | None = None) -> Dataset:
        dataset, population = _clients_of(self.of, seed, progress)
        own = population[self.client]
        rows = {"x": own.x[: self.records], "y": own.y[: self.records]}
        return replace(dataset, **rows, client=np.zeros(len(rows["y"]), int), client_names=(own.id,), mapped=False)


def halves(population: Population, *, seed: int, number: int) -> np.ndarray:
    """Which rows of a population train in run `number`. Raises BadData for a client that has fewer than two."""
    chance = seeded(seed)("attack", "members", number // 2).generator()
    masks = []
    for name, size in zip(population.names, population.sizes.tolist(), strict=True):
        if size < 2:
            raise BadData(f"Client {name} has {size} row, and an attack needs two of each client, one in and one out.")
        mask = np.zeros(size, bool)
        mask[chance.permutation(size)[: size // 2]] = True
        masks.append(mask if number % 2 == 0 else ~mask)
    return np.concatenate(masks)


# The game of property inference: every client has rows with the property or, by a coin, none of them.


@dataclass(frozen=True)
class Wanted:
    """A property of single rows: a class among `classes`, or a `column` that has a `value`. Raises BadInput."""

    classes: tuple[str, ...] = ()
    column: str = ""
    value: str = ""

    def __post_init__(self) -> None:
        if bool(self.classes) == bool(self.column) or bool(self.column) != bool(self.value):
            raise BadInput("Say which rows have the property: --with classes=[0,1], or --with column=… --with value=….")

    def __str__(self) -> str:
        return f"{self.column} = {self.value}" if self.column else f"class {' or '.join(self.classes)}"

    def of(self, dataset: Dataset, x: torch.Tensor, y: torch.Tensor) -> np.ndarray:
        """Which rows have it. Raises BadInput for a class or a value that there is not."""
        if not self.column:
            if not dataset.classified:
                raise BadInput("The rows of this data have no classes: say a column and a value.")
            for name in self.classes:
                check.one_of(dataset.class_names, **{"with.classes": name})
            chosen = [number for number, name in enumerate(dataset.class_names) if name in self.classes]
            return np.isin(y.cpu().numpy(), chosen)
        first = 0
        for column in dataset.encoder.columns if dataset.encoder else ():
            if column.name == self.column and isinstance(column, Category):
                check.one_of(column.values, **{"with.value": self.value})
                return x[:, first + column.values.index(self.value)].cpu().numpy() > 0.5
            first += column.width
        columns = dataset.encoder.columns if dataset.encoder else ()
        named = [column.name for column in columns if isinstance(column, Category)]
        raise BadInput(
            f"Expected with.column to be a column of declared values ({check.listed(named) or 'this data has none'}); got"
            f" {self.column!r}.{check.nearest(self.column, named)}"
        )

    def refuse_trivial(self, having: np.ndarray, whose: str) -> None:
        """Raises BadInput where no row has it, or every row."""
        if having.all() or not having.any():
            none = "Every" if having.all() else "No"
            raise BadInput(f"{none} row of {whose} has the property {self}: name one that some have and others do not.")


@dataclass(frozen=True)
class arranged:
    """The rows of game `number` among those of the clients that the [data] table `of` describes."""

    of: dict[str, Any]
    number: int = 0
    classes: list[str] = field(default_factory=list)
    column: str = ""
    value: str = ""

    def load(self, *, seed: int, progress: Progress | None = None) -> Dataset:
        dataset, population = _clients_of(self.of, seed, progress)
        having = Wanted(tuple(self.classes), self.column, self.value).of(dataset, population.x, population.y)
        return _kept(dataset, population, dealt(population, having, seed=seed, number=self.number)[0])


def dealt(population: Population, having: np.ndarray, *, seed: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Which rows train in a game, and every client's coin: 1 with the property, 0 without, NaN where it cannot play.
    It cannot who has no row with the property, or none without it: all of its rows train, whatever the coin."""
    chance = seeded(seed)("attack", "property", number // 2).generator()
    masks, coins = [], np.full(len(population), np.nan)
    order = chance.permutation(len(population))
    for index in range(len(population)):
        own = having[int(population.offsets[index]) : int(population.offsets[index + 1])]
        mask, turn = np.ones(len(own), bool), chance.permutation(np.flatnonzero(~own))
        if own.any() and not own.all():
            coins[index] = (order[index] + number) % 2  # half of the clients each way
            with_it = np.flatnonzero(own)[: len(turn)]
            mask = ~own
            if coins[index]:
                mask[turn[: len(with_it)]] = False
                mask[with_it] = True
        masks.append(mask)
    return np.concatenate(masks), coins


# Runs that are trained, and runs that somebody watches.


def shadows(experiment: Experiment, place: Place, *, models: int) -> list[Path]:
    """The folders of `models` finished runs on halves of the rows. Raises TacitError where one fails."""
    tasks = []
    for number in range(models):
        one = pooled(experiment, number=number)
        folder = place.folder / "shadows" / digest_of(one.toml())
        folder.parent.mkdir(parents=True, exist_ok=True)
        tasks.append(Task(Cell(f"model {number + 1}", folder.name, {}, (one,)), one, folder))
    trained(tasks, place, what="models")
    return [task.folder for task in tasks]


def trained(tasks: Sequence[Task], place: Place, *, what: str = "runs") -> None:
    """Runs or resumes what is not finished, `place.jobs` at once. Raises TacitError where one fails."""
    waiting, done = [task for task in tasks if not task.finished], len(tasks)
    done -= len(waiting)
    place.tell(f"{len(tasks)} {what}, {done} of them trained before")

    def watch(task: Task | None, event: Event) -> None:
        nonlocal done
        if task is not None and event["kind"] == "done":
            done += 1
            place.tell(f"{done} of {len(tasks)} {what} are trained")

    failed = run_all(waiting, jobs=place.jobs, logs=place.folder / "log", watch=watch) if waiting else {}
    for task in waiting:
        if task.folder in failed:
            seed = task.experiment.run.seed
            raise TacitError(f"{task.cell.label}, seed {seed}, could not be trained: {failed[task.folder]}")


Observe = Callable[[int, Message, Heard], np.ndarray | None]


def watched(experiment: Experiment, home: Path, observe: Observe) -> dict[int, np.ndarray]:
    """What `observe` makes of the rounds of a run, by round; kept in `home`, where a run that was stopped goes on."""
    home.mkdir(parents=True, exist_ok=True)

    def hear(round: int, told: Message, heard: Heard) -> None:
        found = observe(round, told, heard)
        if found is not None:
            store.write(home / f"round-{round}.f64", found.tobytes())

    if not (home / "run" / "summary.json").exists():
        run(experiment, out=home / "run", resume=(home / "run" / "experiment.toml").exists(), page=False, hear=hear)
    files = {round: home / f"round-{round}.f64" for round in range(experiment.train.rounds)}
    return {round: np.frombuffer(file.read_bytes()) for round, file in files.items() if file.exists()}


@torch.inference_mode()
def confidences(
    parts: Parts, folders: Sequence[Path], x: torch.Tensor, y: torch.Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """What every model says of rows, (model, row): phi, and log p of the right answer.
    phi = log p/(1 - p) for classes, with p = exp(-loss); of other tasks both are the loss with its sign turned."""
    found, foreign = [], ":" in (parts.experiment.task.loss or "")  # somebody's own loss may know one width of numbers
    for folder in folders:
        tensors = load_file(folder / "model.safetensors")
        for name, parameter in trainable(parts.model):
            parameter.copy_(tensors[name])
        parts.model.eval()
        device = parts.theta.device
        pairs = zip(x.split(ROWS), y.split(ROWS), strict=True)
        outputs = ((parts.model(rows.to(device)), targets.to(device)) for rows, targets in pairs)
        losses = [parts.losses(out if foreign else out.double(), targets) for out, targets in outputs]
        found.append(torch.cat(losses).double().cpu().numpy())
    training(parts.model)
    loss = np.array(found)
    if parts.experiment.task.kind not in CLASSES:
        return -loss, -loss
    loss = np.maximum(loss, SMALLEST_LOSS)
    return -loss - np.log(-np.expm1(-loss)), -loss


def updates_of(parts: Parts, told: Message, round: int, clients: Sequence[Client]) -> torch.Tensor | None:
    """What such clients would send in a round, (client, parameter); None where they send no whole update."""
    trainer = trainers.alone(parts, dict(enumerate(clients)))
    replies = (unpack(raw) for raw, _ in trainer(pack(told), round, range(len(clients))))
    found = [whole_update(message, told) for message in replies]
    known = [update for update in found if update is not None]
    return torch.stack(known) if len(known) == len(found) and known else None


def imitated(parts: Parts, victim: int, x: torch.Tensor, y: torch.Tensor, *, number: int) -> Client:
    """A client with the victim's place and budget, so with its mechanism, and with other rows.
    Its name is its own: noise is keyed by it and by its rows, so that it shares none with anybody."""
    own = parts.population[victim]
    return Client(own.index, f"auxiliary {number}", own.budget, x, y, rows_mark(x, y))


def whole_update(message: Message, told: Message) -> torch.Tensor | None:
    """The update in a message, where it is one number for each parameter."""
    update = message.tensors.get("update")
    if update is None or update.numel() != told.tensors["params"].numel() or not update.is_floating_point():
        return None
    return update.flatten().float().cpu()
