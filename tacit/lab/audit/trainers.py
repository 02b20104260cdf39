"""The trainers of an audit: each is made of a run's own parts, with a probe and perhaps a planted bug put into them.

`prepare` changes parts; a site applies it to the parts that it has built itself, from its own files."""

import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tacit.deploy.site.agreement import terms_of
from tacit.deploy.site.join import Joined, asked_of, join
from tacit.deploy.site.keys import make_keys
from tacit.deploy.site.limits import Roster
from tacit.deploy.site.make import make_site
from tacit.deploy.site.rows import OWN_FILES, refuse_paths, refuse_undeployable
from tacit.deploy.site.site import Site
from tacit.engine import trainers
from tacit.engine.assemble import Parts
from tacit.engine.pool import Reply, Trainer, fork_can_train
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.lab.audit.probes import Prepare, Probe, Probes
from tacit.machine import cores, forks
from tacit.privacy.plan import kind_of
from tacit.training.independence import Unsupported
from tacit.types import Message
from tacit.wire import pack, unpack

# A deployed site as a trainer: a real `Site` in a folder of its own, asked as a server asks, paying a ledger of its
# own.

MEMORY = "/dev/shm"  # a site waits for its disk before it answers, and nothing of an audit is kept


@contextmanager
def at_site(parts: Parts, prepare: Prepare) -> Iterator[Trainer]:
    """Trains the first of each cohort as a deployed site does. Raises BadInput where such a run cannot be deployed."""
    refuse(parts.experiment)
    with tempfile.TemporaryDirectory(
        prefix="tacit-audit-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None
    ) as folder:
        yield Asked(parts, prepare, Path(folder))


class Asked:
    """Sites by client and turn: rounds are asked once, so a second question for one goes to a new folder."""

    def __init__(self, parts: Parts, prepare: Prepare, folder: Path):
        self.parts, self.prepare, self.folder = parts, prepare, folder
        self._sites: dict[int, tuple[Site, dict[str, Any], int]] = {}

    def __call__(self, received: bytes, round: int, cohort: Sequence[int]) -> Iterator[Reply]:
        for index in cohort:
            site, ask, last = self._sites.get(index, (None, {}, -1))
            if site is None or round <= last:  # a site answers rounds in their order
                site, ask = self._new(index)
            self._sites[index] = (site, ask, round)
            yield site.answer(ask | {"kind": "train", "round": round}, received)[1], {}

    def _new(self, index: int) -> tuple[Site, dict[str, Any]]:
        """A new site that has agreed to the run."""
        parts, p = self.parts, self.parts.population
        experiment, privacy = parts.experiment, parts.experiment.privacy
        home, name = self.folder / uuid.uuid4().hex, p.names[index]
        make_site(home / name, experiment, name=name, epsilon=float(p.epsilons[index]))
        if experiment.protect.kind == "paillier":
            make_keys(experiment, home / "server", {other: home / other for other in p.names})
        sizes, epsilons = (tuple(column.tolist()) for column in (p.sizes, p.epsilons))
        roster = Roster(p.names, sizes, epsilons, privacy.run_delta, privacy.unit_kept)
        site, run = Site(home / name, joining=partial(probed, self.prepare)), uuid.uuid4().hex
        terms = asdict(
            terms_of(
                parts.algorithm.cost(p[index]),
                epsilon=epsilons[index],
                rounds=experiment.train.rounds,
                parameters=parts.params.numel(),
                frozen=parts.frozen,
                asked=asked_of(parts, index),
            )
        )
        ask = {"run": run, "terms": terms}
        told = {"kind": "agree", "experiment": experiment.toml(), "roster": roster.record()}
        releases = {"releases": experiment.train.rounds} if parts.plan.sampler.charges_all else {}
        site.answer(ask | told | releases, b"")
        return site, ask


def probed(prepare: Prepare, *given: Any, **named: Any) -> Joined:
    """The site's own view of a run, whose training meets the probe; agreement, price and ledger stay as they are."""
    joined = join(*given, **named)
    parts = prepare(joined.parts)
    index, mark = joined.client.index, joined.client.mark
    client = replace(parts.population[index], mark=mark)
    return replace(joined, train=trainers.alone(parts, {index: client}))


def refuse(experiment: Experiment) -> None:
    """Raises BadInput for what a site would not take part in, or reads from files that an audit does not have."""
    refuse_paths(experiment)
    refuse_undeployable(experiment)
    if slow_key(experiment):
        raise BadInput("a key that can be split takes too long to make")
    kind_of(experiment).refuse_at_site(experiment)
    if experiment.data.name in OWN_FILES or experiment.data.part is not None:
        raise BadInput(
            "its rows are in a file of the site's own, or were passed from Python: audit it with another data source"
        )


def slow_key(experiment: Experiment) -> bool:
    """Whether a run would have to find safe primes for its key first, which takes minutes."""
    protect = experiment.protect
    return protect.kind == "paillier" and protect.key is None and protect.shape == "safe-prime"


Making = Callable[[Parts, Prepare], AbstractContextManager[Trainer]]


@contextmanager
def one_by_one(parts: Parts, prepare: Prepare) -> Iterator[Trainer]:
    """One client after the other, in this process."""
    yield trainers.alone(prepare(parts))


@contextmanager
def side_by_side(parts: Parts, prepare: Prepare) -> Iterator[Trainer]:
    """Two processes, or as many as the run would have."""
    if not forks() or parts.experiment.run.device != "cpu":
        raise BadInput("processes side by side are for CPUs under Linux")
    if not fork_can_train():
        raise BadInput("processes side by side cannot be forked once gradients were computed beside another device")
    workers = parts.experiment.run.workers or min(2, cores())
    pool = trainers.side_by_side(prepare(parts), workers=workers)
    try:
        yield pool
    finally:
        pool.close()


@contextmanager
def stacked(parts: Parts, prepare: Prepare) -> Iterator[Trainer]:
    """The whole cohort at once."""
    try:
        yield trainers.stacked(replace(prepare(parts), together=len(parts.population)))
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


# Who is audited: one trainer of one experiment, and the clients that it is asked to train.


@dataclass(frozen=True)
class Subject:
    """A trainer (`where` is its name), with the bug that is planted into whatever parts it is made of, if any."""

    where: str
    parts: Parts = field(repr=False)
    making: Making = field(repr=False)
    plant: Prepare = field(repr=False)
    probes: Probes = field(repr=False)
    cohort: tuple[int, ...] = ()

    def sent(self, probe: Probe, start: torch.Tensor, *, rounds: int = 1) -> Iterator[list[Message]]:
        """What the clients send under a probe, round after round; beyond the planned rounds each is asked another question."""
        planned = self.parts.experiment.train.rounds
        with self.making(self.parts, lambda parts: self.plant(self.prepared(probe(parts)))) as trainer:
            for r in range(rounds):
                where = {"cohort": self.cohort, "round": r % planned, "turn": r // planned}
                yield ask(trainer, self.parts, start, **where)

    def prepared(self, parts: Parts) -> Parts:
        """What else of the parts is changed so that messages can be read."""
        return parts
