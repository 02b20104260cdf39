"""The server's view of one run: along which client's update each record's gradient points, in every round.

The cosine of the gradient g of a record's loss with an update u is -<g, u>/(|g||u|); how it stands among the cosines with other
clients' updates does not depend on |g|, so one directional derivative along every update is all that is needed, for all records at
once."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from scipy import stats
from torch.func import functional_call

from tacit import store
from tacit.digest import mark
from tacit.engine.assemble import Parts
from tacit.engine.trainers import Heard
from tacit.errors import TacitError
from tacit.experiment import Experiment
from tacit.lab.attacks import Place
from tacit.lab.attacks._records import pooled, whole_update
from tacit.lab.compare.grid import Cell, Task
from tacit.lab.compare.pool import Event, run_all
from tacit.simulation import run
from tacit.training.flat import blocks, trainable, training
from tacit.types import Message

# The scores of membership attacks, as pure functions of what models and updates say about records.

FEWEST_MODELS = 6  # a target, its mirror, and two models with and two without every record


def lira(phi: np.ndarray, member: np.ndarray) -> np.ndarray:
    """LiRA (Carlini et al. 2022, arXiv:2112.03570, Algorithm 1): log N(phi | in) - log N(phi | out) for every model and record.

    `phi` are logit-scaled confidences (model, record). The means are each record's own and the variances are those of all records
    (sec. VI-C, for few models), with what the means of k models add: 1 + 1/k.
    """
    scores = np.empty_like(phi, dtype=float)
    for target in range(len(phi)):
        others = _others(len(phi), target)
        densities = []
        for side in (member[others], ~member[others]):
            k = side[:, 0].sum()
            mean = np.where(side, phi[others], 0.0).sum(0) / k
            squares = np.where(side, (phi[others] - mean) ** 2, 0.0).sum() / (side.sum() - phi.shape[1])
            densities.append(stats.norm.logpdf(phi[target], mean, np.sqrt(max(squares * (1 + 1 / k), 1e-12))))
        scores[target] = densities[0] - densities[1]
    return scores


def rmia(log_p: np.ndarray, member: np.ndarray, log_p_z: np.ndarray, *, gamma: float = 2.0) -> np.ndarray:
    """RMIA (Zarifzadeh, Liu, Shokri 2024, arXiv:2312.03262, Algorithm 1, online): the share of public z that x beats by gamma.

    LR(x, z) = (p(x | theta) / p(x)) / (p(z | theta) / p(z)), where p(x) is the mean over models with x and models without it, and
    p(z) that over models, none of which has seen a public row.
    """
    scores = np.empty_like(log_p, dtype=float)
    for target in range(len(log_p)):
        others = _others(len(log_p), target)
        sides = (member[others], ~member[others])
        p_x = sum(np.where(side, np.exp(log_p[others]), 0.0).sum(0) / side.sum(0) for side in sides) / 2
        ratio_x = log_p[target] - np.log(np.maximum(p_x, 1e-300))
        ratio_z = np.sort(log_p_z[target] - np.log(np.maximum(np.exp(log_p_z[others]).mean(0), 1e-300)))
        scores[target] = np.searchsorted(ratio_z, ratio_x - np.log(gamma), side="right") / len(ratio_z)
    return scores


def fedmia(own: np.ndarray, others: np.ndarray) -> np.ndarray:
    """FedMIA (Zhu et al. 2024, arXiv:2402.06289): how far a record's gradient points along its client's update, by round.

    `own` (record) is the cosine with the update of the client that may have it, `others` (record, client) those with updates of
    clients that cannot: the null. The paper takes the normal distribution function; with few others that is Student's t, which it
    becomes with many. Of several rounds the scores are added.
    """
    m = others.shape[1]
    spread = others.std(1, ddof=1) * np.sqrt(1 + 1 / m)
    return stats.t.cdf((own - others.mean(1)) / np.maximum(spread, 1e-30), df=m - 1)


def _others(models: int, target: int) -> np.ndarray:
    """All models but the target and its mirror."""
    return np.array([model for model in range(models) if model // 2 != target // 2])


FEWEST_OTHERS = 2  # of whom a spread can be told
ROWS = 1000


def server_view(parts: Parts, experiment: Experiment, place: Place) -> np.ndarray | None:
    """The score of every row of `parts.population` in one run of `experiment`, whose clients are the same; None where the server
    sees no single updates, or in no round those of three clients.
    """
    home = place.folder / "server" / mark(experiment.toml())
    home.mkdir(parents=True, exist_ok=True)
    done = home / "run" / "summary.json"
    if not done.exists():
        begun = (home / "run" / "experiment.toml").exists()
        place.tell(f"the server {'watches again' if begun else 'watches'} one run of {experiment.train.rounds} rounds")

        def hear(round: int, told: Message, heard: Heard) -> None:
            scores = scored(parts, told, heard)
            if scores is not None:
                store.write(home / f"round-{round}.f64", scores.tobytes())

        run(experiment, out=home / "run", resume=begun, page=False, hear=hear)
    files = [file for round in range(experiment.train.rounds) if (file := home / f"round-{round}.f64").exists()]
    return np.nanmean([_read(file) for file in files], axis=0) if files else None


def scored(parts: Parts, told: Message, heard: Heard) -> np.ndarray | None:
    """FedMIA's score of every row in one round; NaN for those whose client took no part."""
    population = parts.population
    names = {name: index for index, name in enumerate(population.names)}
    sent = [(names[message.sender], whole_update(message, told)) for _, message in heard]
    seen = [(index, u) for index, u in sent if u is not None]
    if len(seen) <= FEWEST_OTHERS:
        return None
    updates = torch.stack([u for _, u in seen])
    updates = updates / updates.norm(dim=1, keepdim=True).clamp_min(1e-30)
    along = _along(parts, told.tensors["params"], updates)
    scores = np.full(len(along), np.nan)
    for column, (index, _) in enumerate(seen):
        rows = slice(int(population.offsets[index]), int(population.offsets[index + 1]))
        scores[rows] = fedmia(along[rows, column], np.delete(along[rows], column, axis=1))
    return scores


def _along(parts: Parts, params: torch.Tensor, directions: torch.Tensor) -> np.ndarray:
    """-<g, u> for every row and every direction u, (row, direction).

    With J the gradients of all rows, J u is the derivative of <J^T v, u> by v: one way back for each u, whatever v is.
    """
    model, layout = parts.model.eval(), blocks(parts.model)
    theta = params.to(parts.theta.device).clone().requires_grad_()
    weights = {name: block.of(theta) for (name, _), block in zip(trainable(model), layout, strict=True)}
    found = []
    for x, y in zip(parts.population.x.split(ROWS), parts.population.y.split(ROWS), strict=True):
        losses = parts.losses(functional_call(model, weights, (x,)), y)
        v = torch.zeros_like(losses, requires_grad=True)
        (back,) = torch.autograd.grad(losses, theta, v, create_graph=True, retain_graph=True)
        columns = [torch.autograd.grad(back, v, -u.to(theta.device), retain_graph=True)[0] for u in directions]
        found.append(torch.stack(columns, dim=1).double().cpu().numpy())
    training(model)
    return np.concatenate(found)


def _read(file: Path) -> np.ndarray:
    return np.frombuffer(file.read_bytes(), np.float64)


# Shadow models: real runs of the experiment on other members, side by side, kept in a folder and found again by digest.

ROWS_SHADOWS = 1000  # at a time
SMALLEST_LOSS = 1e-15
CLASSES = ("classification", "binary")


def shadows(experiment: Experiment, place: Place, *, models: int) -> list[Path]:
    """The folders of `models` finished runs; what is finished already is not run again. Raises TacitError where one fails."""
    tasks = [_task(pooled(experiment, number=number), place.folder / "shadows") for number in range(models)]
    trained(tasks, place)
    return [task.folder for task in tasks]


def trained(tasks: Sequence[Task], place: Place) -> None:
    """Runs or resumes what is not finished, `place.jobs` at once. Raises TacitError where one fails."""
    waiting, done = [task for task in tasks if not task.finished], 0
    place.tell(f"{len(tasks)} models, {len(tasks) - len(waiting)} of them trained before")

    def watch(task: Task | None, event: Event) -> None:
        nonlocal done
        if task is not None and event["kind"] == "done":
            done += 1
            place.tell(f"model {len(tasks) - len(waiting) + done} of {len(tasks)} is trained")

    if waiting:
        failed = run_all(waiting, jobs=place.jobs, logs=place.folder / "log", watch=watch)
        for sentence in failed.values():
            raise TacitError(f"A shadow model could not be trained: {sentence}")


def _task(experiment: Experiment, home: Path) -> Task:
    folder = home / mark(experiment.toml())
    folder.parent.mkdir(parents=True, exist_ok=True)
    return Task(Cell(folder.name, folder.name, {}, (experiment,)), experiment, folder)


@torch.inference_mode()
def confidences(
    parts: Parts, folders: Sequence[Path], x: torch.Tensor, y: torch.Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """What every model says of rows, (model, row): phi, and log p of the right answer.

    phi = log p/(1 - p) for classes, with p = exp(-loss); of other tasks both are the loss with its sign turned.
    """
    found, foreign = [], ":" in (parts.experiment.task.loss or "")  # somebody's own loss may know one width of numbers
    for folder in folders:
        tensors = load_file(folder / "model.safetensors")
        for name, parameter in trainable(parts.model):
            parameter.copy_(tensors[name])
        parts.model.eval()
        device = parts.theta.device
        pairs = zip(x.split(ROWS_SHADOWS), y.split(ROWS_SHADOWS), strict=True)
        outputs = ((parts.model(rows.to(device)), targets.to(device)) for rows, targets in pairs)
        losses = [parts.losses(out if foreign else out.double(), targets) for out, targets in outputs]
        found.append(torch.cat(losses).double().cpu().numpy())
    training(parts.model)
    loss = np.array(found)
    if parts.experiment.task.kind not in CLASSES:
        return -loss, -loss
    loss = np.maximum(loss, SMALLEST_LOSS)
    return -loss - np.log(-np.expm1(-loss)), -loss
