"""The trainers of an audit: each is made of a run's own parts, with a probe and perhaps a planted bug put into them.

`prepare` changes parts; a site applies it to the parts that it has built itself, from its own files.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import torch

from tacit.audit.probes import Prepare
from tacit.audit.site import at_site
from tacit.build.parts import Parts
from tacit.engine.trainers import make
from tacit.engine.trainers.processes import Trainer
from tacit.engine.wire import pack, unpack
from tacit.errors import BadInput
from tacit.machine import cores, forks
from tacit.train.rowwise import Unsupported
from tacit.types import Message

Making = Callable[[Parts, Prepare], AbstractContextManager[Trainer]]


@contextmanager
def one_by_one(parts: Parts, prepare: Prepare) -> Iterator[Trainer]:
    """One client after the other, in this process."""
    yield make.alone(prepare(parts))


@contextmanager
def side_by_side(parts: Parts, prepare: Prepare) -> Iterator[Trainer]:
    """Two processes, or as many as the run would have."""
    if not forks() or parts.experiment.run.device != "cpu":
        raise BadInput("processes side by side are for CPUs under Linux")
    workers = parts.experiment.run.workers or min(2, cores())
    pool = make.side_by_side(prepare(parts), workers=workers)
    try:
        yield pool
    finally:
        pool.close()


@contextmanager
def stacked(parts: Parts, prepare: Prepare) -> Iterator[Trainer]:
    """The whole cohort at once."""
    try:
        yield make.stacked(replace(prepare(parts), together=len(parts.population)))
    except Unsupported as error:
        raise BadInput(f"this experiment cannot be stacked: {error}") from None


TRAINERS: dict[str, Making] = {
    "one by one": one_by_one,
    "side by side": side_by_side,
    "stacked": stacked,
    "site": at_site,
}


def ask(
    trainer: Trainer, parts: Parts, start: torch.Tensor, *, cohort: Sequence[int], round: int, turn: int = 0
) -> list[Message]:
    """What the clients release in one round from the parameters `start`; another `turn` is another question."""
    algorithm = parts.algorithm
    clients = [parts.population[index] for index in cohort]
    message = algorithm.broadcast(algorithm.init(start), clients, round=round)
    if turn:
        message = replace(message, facts=message.facts | {"probe": turn})
    return [unpack(raw) for raw, _ in trainer(pack(message), round, cohort)]
