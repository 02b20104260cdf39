"""From a run's parts to whoever trains its clients: the seam that a run, a site and an audit share.

A trainer is made of `Parts` alone: the algorithm (whose mechanisms sample and noise), the workspace (whose clip bounds), the
clients, and their randomness. Guarantee asked of every trainer: a client's step is `mechanism.sample`, a sum over exactly the drawn
units of what `workspace.clip` bounds, labelled with that clip (`Bounded`), then `mechanism.noise`; nothing else leaves the client.
Whoever changes one of these objects therefore changes what is trained, and `tacit audit` finds out (tacit/audit).
"""

import copy
import dataclasses
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tacit.build.parts import Parts
from tacit.engine.trainers.processes import SideBySide, Trainer, one_by_one, task
from tacit.engine.wire import pack
from tacit.machine import cores, forks
from tacit.train.frozen import beside
from tacit.train.workspace import Workspace, workspace
from tacit.types import Client

if TYPE_CHECKING:
    from tacit.engine.trainers.beside import Beside
    from tacit.engine.trainers.split import Split
    from tacit.engine.trainers.stacked import Stacked


def workspace_of(parts: Parts, *, model: nn.Module | None = None) -> Workspace:
    """Where a process trains: the model (its copy shares what is frozen, unless one is given), the plan's clip, the task's loss."""
    physical = parts.experiment.train.physical_batch
    own = beside(parts.model) if model is None else model
    return workspace(own, clip=parts.plan.training_clip, physical_batch=physical, losses=parts.losses)


def alone(parts: Parts, clients: Mapping[int, Client] | None = None, *, model: nn.Module | None = None) -> Trainer:
    """Trains clients in this process, one after the other; a site has only itself among its `clients`."""
    return one_by_one(
        task(parts.algorithm, workspace_of(parts, model=model), clients or parts.population, parts.derive)
    )


def side_by_side(parts: Parts, *, workers: int) -> SideBySide:
    """Trains clients in so many processes; whoever made it closes it."""
    server = getattr(parts.algorithm, "server", None)
    told = range(parts.cohort if getattr(server, "control", None) else 1)  # whose control variates are in a message
    cohort = [parts.population[index] for index in told]
    message = pack(parts.algorithm.broadcast(parts.algorithm.init(parts.params), cohort, round=0))
    train = task(parts.algorithm, workspace_of(parts), parts.population, parts.derive)
    return SideBySide(train, workers=workers, message_bytes=len(message))


def each_by_itself(parts: Parts, stack: ExitStack) -> Trainer:
    """Trains clients in as many processes as the run has workers, or in this one; `stack` ends what was begun."""
    run = parts.experiment.run
    workers = min(run.workers or cores(), parts.cohort) if forks() else 1
    if workers == 1 or run.device != "cpu":
        return alone(parts)
    pool = side_by_side(parts, workers=workers)
    stack.callback(pool.close)
    # the server's part takes one thread while clients train: threads that wait for each other would take the clients' cores
    stack.callback(torch.set_num_threads, torch.get_num_threads())
    torch.set_num_threads(1)
    return pool


def stacked(parts: Parts) -> "Stacked | Split | Beside":
    """Trains `parts.together` clients at once, on each of the run's devices; malicious ones by themselves.

    Raises: Unsupported with the reason where the algorithm's training or the model cannot be stacked.
    """
    from tacit.engine.trainers.beside import Beside  # a site never stacks
    from tacit.engine.trainers.split import Split
    from tacit.engine.trainers.stacked import Stacked

    if parts.attack is not None:
        train = task(parts.algorithm, workspace_of(parts), parts.population, parts.derive)
        honest: Any = parts.algorithm
        honest = dataclasses.replace(honest, local=honest.local.honest)
        return Beside(
            stacked(dataclasses.replace(parts, algorithm=honest, attack=None)), train, parts.attack[0].malicious
        )
    devices = parts.experiment.run.devices
    if len(devices) > 1:
        trainers = []
        for name in devices:
            work = workspace_of(parts, model=copy.deepcopy(parts.model).to(name))
            known = (parts.algorithm, work, parts.population.to(torch.device(name)), parts.derive)
            trainers.append(Stacked(*known, chunk=max(1, parts.together), repeats=not parts.nonce))
        return Split(trainers, precision=parts.experiment.run.precision)
    known = (parts.algorithm, workspace_of(parts), parts.population, parts.derive)
    return Stacked(
        *known, chunk=max(1, parts.together), repeats=not parts.nonce, precision=parts.experiment.run.precision
    )
