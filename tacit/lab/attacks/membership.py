"""`membership`: was this record trained on? LiRA (Carlini et al. 2022, arXiv:2112.03570) and RMIA (Zarifzadeh, Liu, Shokri 2024,
arXiv:2312.03262) ask the final model; FedMIA (Zhu et al. 2024, arXiv:2402.06289) asks the updates that the server gets.
Half of every client's records train a model, and the other half its mirror. Every model is attacked in turn, with all others but
its mirror as shadow models; they are runs of the very experiment, with its noise, from the same first model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import Progress
from safetensors.torch import load_file
from scipy import stats
from torch.func import functional_call

from tacit import check
from tacit.data.dataset import Dataset
from tacit.data.population import Population
from tacit.engine.assemble import Parts, build
from tacit.errors import BadData, BadInput
from tacit.experiment import Experiment
from tacit.lab.attacks import Attack, Estimate, Finding, Line, Place, Plot
from tacit.lab.attacks import _roc as roc
from tacit.lab.attacks._runs import TRUSTED, clients_of, kept, pooled, train, updates_in, watched, whole
from tacit.lab.compare.grid import Cell, Task
from tacit.privacy.plan import kind_of
from tacit.random import seeded
from tacit.simulation import Heard
from tacit.training.flat import blocks, trainable, training
from tacit.types import Message
from tacit.wire import digest_of

MEMBERS = "tacit.lab.attacks.membership:members"
FEWEST_MODELS = 6  # a target, its mirror, and two models with and two without every record
FEWEST_OTHERS = 2  # that a spread can be estimated from
MOST_LISTED = 10  # clients in a table that people read
MOST_PUBLIC = 5000  # public rows that a record is compared with
ROWS = 1000  # that a model is asked about at a time
SMALLEST_LOSS = 1e-15
CLASSES = ("classification", "binary")
NO_UPDATES = "The server sees no single updates here, or never those of three clients, so its view is left out."


@dataclass(frozen=True)
class members:
    """The members of run number `number` among the rows of the clients that the [data] table `of` describes.
    Runs 2k and 2k + 1 are mirrors: of every client one has a half of the rows, drawn at random, and the other the rest."""

    of: dict[str, Any]
    number: int = 0

    def load(self, *, seed: int, progress: Progress | None = None) -> Dataset:
        """The rows that train, with their clients. Raises BadData for a client that has fewer than two rows."""
        dataset, population = clients_of(self.of, seed, progress)
        return kept(dataset, population, halves(population, seed=seed, number=self.number))


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


@dataclass(frozen=True)
class membership(Attack):
    """LiRA and RMIA on the final model of every run, and FedMIA on what the server of one run gets."""

    models: int = 12  # runs that are trained, an even number
    gamma: float = 2.0  # RMIA's threshold on ratios
    server: str = "yes"  # "no" leaves out the server's view

    def __post_init__(self) -> None:
        if self.models < FEWEST_MODELS or self.models % 2:
            raise BadInput(
                f"Expected an even number of models, at least {FEWEST_MODELS}, got {self.models}: one is attacked, its mirror is"
                " left out, and of at least four shadow models two have each record and two do not."
            )
        check.at_least(1, **{"with.gamma": self.gamma})
        check.one_of(("yes", "no"), **{"with.server": self.server})

    def perform(self, experiment: Experiment, place: Place) -> Finding:
        runs = [pooled(experiment, MEMBERS, number=number) for number in range(self.models)]
        parts, seed = build(whole(experiment)), experiment.run.seed
        member = np.stack([halves(parts.population, seed=seed, number=number) for number in range(self.models)])
        folders = shadows(runs, place)
        phi, log_p = confidences(parts, folders, parts.population.x, parts.population.y)
        x, y = (part[:MOST_PUBLIC] for part in parts.test_rows)
        public = confidences(parts, folders, x, y)[1] if len(y) else log_p
        answers = {"LiRA": lira(phi, member), "RMIA": rmia(log_p, member, public, gamma=self.gamma)}
        rows, pairs = np.arange(phi.shape[1]), np.arange(self.models)[:, None] // 2
        scored = {name: roc.Scored.of(scores, member, rows, pairs) for name, scores in answers.items()}
        notes = roc.too_few(scored["LiRA"])
        seen = server_view(parts, runs[0], place) if self.server == "yes" else None
        if seen is not None:
            valid = np.isfinite(seen)
            scored["server"] = roc.Scored.of(seen[valid], member[0][valid], rows[valid])
            notes += [f"The server's view: {note}" for note in roc.too_few(scored["server"])]
            notes += [TRUSTED] if kind_of(experiment).plans.traits.trusts_server else []
        elif self.server == "yes":
            notes.append(NO_UPDATES)
        return _finding(experiment, parts.population, scored, notes)


def shadows(runs: Sequence[Experiment], place: Place) -> list[Path]:
    """The folders of the finished runs. Raises TacitError where one fails."""
    home, tasks = place.folder / "shadows", []
    home.mkdir(parents=True, exist_ok=True)
    for number, one in enumerate(runs):
        folder = home / digest_of(one.toml())
        tasks.append(Task(Cell(f"model {number + 1}", folder.name, {}, (one,)), one, folder))
    train(tasks, place, what="models")
    return [task.folder for task in tasks]


@torch.inference_mode()
def confidences(
    parts: Parts, folders: Sequence[Path], x: torch.Tensor, y: torch.Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """What every model says of rows, (model, row): phi, and log p of the right answer.
    phi = log p/(1 - p) for classes, with p = exp(-loss); of other tasks both are the loss with its sign turned."""
    every, device = [], parts.theta.device
    foreign = ":" in (parts.experiment.task.loss or "")  # somebody's own loss may know one width of numbers
    for folder in folders:
        tensors = load_file(folder / "model.safetensors")
        for name, parameter in trainable(parts.model):
            parameter.copy_(tensors[name])
        parts.model.eval()
        pairs = zip(x.split(ROWS), y.split(ROWS), strict=True)
        outputs = ((parts.model(rows.to(device)), targets.to(device)) for rows, targets in pairs)
        losses = [parts.losses(out if foreign else out.double(), targets) for out, targets in outputs]
        every.append(torch.cat(losses).double().cpu().numpy())
    training(parts.model)
    loss = np.array(every)
    if parts.experiment.task.kind not in CLASSES:
        return -loss, -loss
    loss = np.maximum(loss, SMALLEST_LOSS)
    return -loss - np.log(-np.expm1(-loss)), -loss


def lira(phi: np.ndarray, member: np.ndarray) -> np.ndarray:
    """LiRA (arXiv:2112.03570, Algorithm 1): log N(phi | in) - log N(phi | out) for every model and record.
    `phi` are logit-scaled confidences (model, record). The means are each record's own and the variances are those of all records
    (sec. VI-C, for few models), with what the means of k models add: 1 + 1/k."""
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
    """RMIA (arXiv:2312.03262, Algorithm 1, online): the share of public z that x beats by gamma.
    LR(x, z) = (p(x | theta) / p(x)) / (p(z | theta) / p(z)), where p(x) is the mean over models with x and models without it, and
    p(z) that over models, none of which has seen a public row."""
    scores = np.empty_like(log_p, dtype=float)
    for target in range(len(log_p)):
        others = _others(len(log_p), target)
        sides = (member[others], ~member[others])
        p_x = sum(np.where(side, np.exp(log_p[others]), 0.0).sum(0) / side.sum(0) for side in sides) / 2
        ratio_x = log_p[target] - np.log(np.maximum(p_x, 1e-300))
        ratio_z = np.sort(log_p_z[target] - np.log(np.maximum(np.exp(log_p_z[others]).mean(0), 1e-300)))
        scores[target] = np.searchsorted(ratio_z, ratio_x - np.log(gamma), side="right") / len(ratio_z)
    return scores


def _others(models: int, target: int) -> np.ndarray:
    return np.array([model for model in range(models) if model // 2 != target // 2])


def fedmia(own: np.ndarray, others: np.ndarray) -> np.ndarray:
    """FedMIA (arXiv:2402.06289): how far a record's gradient points along its client's update, by round.
    `own` (record) is the cosine with its client's update, `others` (record, client) those with others': the null. With few
    others the paper's normal distribution is Student's t. Of several rounds the scores are added."""
    m = others.shape[1]
    spread = others.std(1, ddof=1) * np.sqrt(1 + 1 / m)
    return stats.t.cdf((own - others.mean(1)) / np.maximum(spread, 1e-30), df=m - 1)


def server_view(parts: Parts, experiment: Experiment, place: Place) -> np.ndarray | None:
    """The score of every row of `parts.population` in one run of `experiment`, whose clients are the same; None where the server
    sees no single updates, or in no round those of three clients."""
    place.tell(f"the server watches one run of {experiment.train.rounds} rounds")
    home, population = place.folder / "server" / digest_of(experiment.toml()), parts.population

    def scored(round: int, broadcast: Message, heard: Heard) -> np.ndarray | None:
        seen = updates_in(heard, broadcast, population.names)
        if len(seen) <= FEWEST_OTHERS:
            return None
        updates = torch.stack(list(seen.values()))
        updates = updates / updates.norm(dim=1, keepdim=True).clamp_min(1e-30)
        along = _along(parts, broadcast.tensors["params"], updates)
        scores = np.full(len(along), np.nan)  # of clients that took no part
        for column, index in enumerate(seen):
            rows = slice(int(population.offsets[index]), int(population.offsets[index + 1]))
            scores[rows] = fedmia(along[rows, column], np.delete(along[rows], column, axis=1))
        return scores

    by_round = watched(experiment, home, scored)
    return np.nanmean(list(by_round.values()), axis=0) if by_round else None


def _along(parts: Parts, params: torch.Tensor, directions: torch.Tensor) -> np.ndarray:
    """-<g, u> for every row and every direction u, (row, direction).
    How a cosine -<g, u>/(|g||u|) stands among those with other updates does not depend on |g|: a directional derivative is enough.
    With J the gradients of all rows, J u is the derivative of <J^T v, u> by v: one way back for each u, whatever v is."""
    model, layout = parts.model.eval(), blocks(parts.model)
    theta = params.to(parts.theta.device).clone().requires_grad_()
    weights = {name: block.of(theta) for (name, _), block in zip(trainable(model), layout, strict=True)}
    along = []
    for x, y in zip(parts.population.x.split(ROWS), parts.population.y.split(ROWS), strict=True):
        losses = parts.losses(functional_call(model, weights, (x,)), y)
        v = torch.zeros_like(losses, requires_grad=True)
        (back,) = torch.autograd.grad(losses, theta, v, create_graph=True, retain_graph=True)
        columns = [torch.autograd.grad(back, v, -u.to(theta.device), retain_graph=True)[0] for u in directions]
        along.append(torch.stack(columns, dim=1).double().cpu().numpy())
    training(model)
    return np.concatenate(along)


def _finding(
    experiment: Experiment, population: Population, scored: dict[str, roc.Scored], notes: list[str]
) -> Finding:
    estimates: list[Estimate] = []
    for name, one in scored.items():
        estimates += [roc.auc(one, of=name), *(roc.tpr_at(one, rate, of=name) for rate in roc.RATES)]
    clients = {name: _by_client(population, one, of=name) for name, one in scored.items()}
    if len(population) <= MOST_LISTED:
        estimates += [auc for aucs in clients.values() for auc in aucs]
    lines = (*(roc.line(one, name) for name, one in scored.items()), roc.DIAGONAL)
    curve = Plot("roc", "Members found", "false alarms", "members found", lines, log=True)
    ordered = {name: sorted(aucs, key=lambda auc: -auc.value) for name, aucs in clients.items()}
    bands = [roc.banded(name, range(1, len(aucs) + 1), aucs) for name, aucs in ordered.items()]
    bands.append(Line(roc.CHANCE, (1.0, float(max(len(band.x) for band in bands))), (0.5, 0.5)))
    by_client = Plot("clients", "AUC of each client, the highest first", "clients", "AUC", tuple(bands))
    attacked = f"{len(population.y)} records of {len(population)} clients, {experiment.privacy.kind} privacy"
    return Finding("membership", experiment.name, attacked, tuple(estimates), (curve, by_client), notes=tuple(notes))


def _by_client(population: Population, scored: roc.Scored, *, of: str) -> list[Estimate]:
    aucs, whose = [], np.repeat(np.arange(len(population)), population.sizes)[scored.groups]
    for index, name in enumerate(population.names):
        own = whose == index
        if scored.member[own].any() and not scored.member[own].all():
            aucs.append(roc.auc(scored.only(own), of=f"{of}, {name}"))
    return aucs
