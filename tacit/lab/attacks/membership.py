"""`membership`: was this record trained on? LiRA (Carlini et al. 2022, arXiv:2112.03570) and RMIA (Zarifzadeh, Liu, Shokri 2024,
arXiv:2312.03262) ask the final model; FedMIA (Zhu et al. 2024, arXiv:2402.06289) asks the updates that the server gets.

Half of every client's records train a model, drawn at random, and the other half its mirror. Every model is attacked in turn, with
all others but its mirror as shadow models; they are runs of the very experiment, with its noise, from the same first model, which a
server chooses. The server of the third attack watches one run, and judges each client's update by those of the others."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy import stats
from torch.func import functional_call

from tacit import check
from tacit.engine.assemble import Parts, build
from tacit.engine.trainers import Heard
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.lab.attacks import Attack, Estimate, Finding, Line, Place, Plot
from tacit.lab.attacks import _finding as roc
from tacit.lab.attacks._shadows import ROWS, TRUSTED, confidences, halves, pooled, shadows, watched, whole, whole_update
from tacit.privacy.plan import kind_of
from tacit.training.flat import blocks, trainable, training
from tacit.types import Message
from tacit.wire import digest_of

FEWEST_MODELS = 6  # a target, its mirror, and two models with and two without every record
FEWEST_OTHERS = 2  # of whom a spread can be told
MOST_LISTED = 10  # clients in a table that people read
MOST_PUBLIC = 5000  # public rows that a record is compared with
NO_UPDATES = "The server sees no single updates here, or never those of three clients, so its view is left out."


@dataclass(frozen=True)
class membership(Attack):
    """`models` runs are trained in all; `gamma` is RMIA's; `server = "no"` leaves out the server's view."""

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
        """Trains, asks and scores. Raises TacitError where the data cannot be read, or a run fails."""
        first, parts = pooled(experiment, number=0), build(whole(experiment))
        seed, population = experiment.run.seed, parts.population
        member = np.stack([halves(population, seed=seed, number=number) for number in range(self.models)])
        folders = shadows(experiment, place, models=self.models)
        phi, log_p = confidences(parts, folders, population.x, population.y)
        public = self._public(parts, folders, log_p)
        answers = {"LiRA": lira(phi, member), "RMIA": rmia(log_p, member, public, gamma=self.gamma)}
        rows, pairs = np.arange(phi.shape[1]), np.arange(self.models)[:, None] // 2
        scored = {name: roc.Scored.of(scores, member, rows, pairs) for name, scores in answers.items()}
        notes = roc.too_few(scored["LiRA"])
        seen = server_view(parts, first, place) if self.server == "yes" else None
        if seen is not None:
            known = np.isfinite(seen)
            scored["server"] = roc.Scored.of(seen[known], member[0][known], rows[known])
            notes += [f"The server's view: {note}" for note in roc.too_few(scored["server"])]
            notes += [TRUSTED] if kind_of(experiment).plans.traits.trusts_server else []
        elif self.server == "yes":
            notes.append(NO_UPDATES)
        return _finding(experiment, parts, scored, notes)

    def _public(self, parts: Parts, folders: list[Path], log_p: np.ndarray) -> np.ndarray:
        x, y = parts.test_rows
        return confidences(parts, folders, x[:MOST_PUBLIC], y[:MOST_PUBLIC])[1] if len(y) else log_p


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
    `own` (record) is the cosine with the update of the client that may have it, `others` (record, client) those with updates of
    clients that cannot: the null. The paper takes the normal distribution function; with few others that is Student's t, which it
    becomes with many. Of several rounds the scores are added."""
    m = others.shape[1]
    spread = others.std(1, ddof=1) * np.sqrt(1 + 1 / m)
    return stats.t.cdf((own - others.mean(1)) / np.maximum(spread, 1e-30), df=m - 1)


def server_view(parts: Parts, experiment: Experiment, place: Place) -> np.ndarray | None:
    """The score of every row of `parts.population` in one run of `experiment`, whose clients are the same; None where the server
    sees no single updates, or in no round those of three clients."""
    place.tell(f"the server watches one run of {experiment.train.rounds} rounds")
    home = place.folder / "server" / digest_of(experiment.toml())
    found = watched(experiment, home, lambda round, told, heard: scored(parts, told, heard))
    return np.nanmean(list(found.values()), axis=0) if found else None


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
    How a cosine -<g, u>/(|g||u|) stands among those with other updates does not depend on |g|: a directional derivative is enough.
    With J the gradients of all rows, J u is the derivative of <J^T v, u> by v: one way back for each u, whatever v is."""
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


def _finding(experiment: Experiment, parts: Parts, scored: dict[str, roc.Scored], notes: list[str]) -> Finding:
    estimates: list[Estimate] = []
    for name, one in scored.items():
        estimates.append(roc.auc(one, of=name))
        estimates += [roc.found_at(one, rate, of=name) for rate in roc.RATES]
    clients = {name: _by_client(parts, one, of=name) for name, one in scored.items()}
    if len(parts.population) <= MOST_LISTED:
        estimates += [auc for found in clients.values() for auc in found]
    lines = (*(roc.line(one, name) for name, one in scored.items()), roc.chance())
    curve = Plot("roc", "Members found", "false alarms", "members found", lines, log=True)
    many = f"{len(parts.population.y)} records of {len(parts.population)} clients"
    attacked, plots = f"{many}, {experiment.privacy.kind} privacy", (curve, _clients_plot(clients))
    return Finding("membership", experiment.name, attacked, tuple(estimates), plots, notes=tuple(notes))


def _by_client(parts: Parts, scored: roc.Scored, *, of: str) -> list[Estimate]:
    population, found = parts.population, []
    whose = np.repeat(np.arange(len(population)), population.sizes)[scored.groups]
    for index, name in enumerate(population.names):
        own = whose == index
        if scored.member[own].any() and not scored.member[own].all():
            found.append(roc.auc(scored.only(own), of=f"{of}, {name}"))
    return found


def _clients_plot(clients: dict[str, list[Estimate]]) -> Plot:
    lines = []
    for name, found in clients.items():
        ordered = sorted(found, key=lambda auc: -auc.value)
        low, high = (tuple(float(getattr(auc, end) or 0.0) for auc in ordered) for end in ("low", "high"))
        places = tuple(float(place) for place in range(1, len(ordered) + 1))
        lines.append(Line(name, places, tuple(auc.value for auc in ordered), low, high))
    longest = max(len(line.x) for line in lines)
    lines.append(Line("chance", (1.0, float(longest)), (0.5, 0.5)))
    return Plot("clients", "AUC of each client, the highest first", "clients", "AUC", tuple(lines))
