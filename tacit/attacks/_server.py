"""The server's view of one run: along which client's update each record's gradient points, in every round.

The cosine of the gradient g of a record's loss with an update u is -<g, u>/(|g||u|); how it stands among the cosines with other
clients' updates does not depend on |g|, so one directional derivative along every update is all that is needed, for all records at
once.
"""

from pathlib import Path

import numpy as np
import torch
from torch.func import functional_call

from tacit.attacks import Place
from tacit.attacks._auxiliary import whole_update
from tacit.attacks._likelihood import fedmia
from tacit.build.parts import Parts
from tacit.digest import mark
from tacit.engine.folder import replace
from tacit.engine.trainers.overheard import Heard
from tacit.experiment import Experiment
from tacit.simulation.run import run
from tacit.train.flat import blocks, trainable
from tacit.train.frozen import training
from tacit.types import Message

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
                replace(home / f"round-{round}.f64", scores.tobytes())

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
