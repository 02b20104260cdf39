"""The trainers of an audit: each is made of a run's own parts, into which `prepare` puts a probe and perhaps a bug.
A site is a real one in a folder of its own, which gets requests as from a server and pays its ledger."""

import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

from tacit.deploy.site.agreement import Accepted, accept, terms_of
from tacit.deploy.site.consent import OWN_FILES, refuse_paths, refuse_undeployable
from tacit.deploy.site.keys import make_keys
from tacit.deploy.site.limits import make_site
from tacit.deploy.site.requests import Roster
from tacit.deploy.site.site import Site
from tacit.engine import trainers
from tacit.engine.assemble import Parts
from tacit.engine.stacked import stacked as stack_of
from tacit.engine.trainers import Reply, Trainer, fork_can_train
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.lab.audit.probes import Prepare
from tacit.privacy.plan import kind_of
from tacit.store import cores, forks
from tacit.training.independence import Unsupported

MadeBy = Callable[[Parts, Prepare], AbstractContextManager[Trainer]]
MEMORY = "/dev/shm"  # a site waits for its disk before it answers, and nothing of an audit is kept


@contextmanager
def one_by_one(parts: Parts, prepare: Prepare) -> Iterator[Trainer]:
    yield trainers.alone(prepare(parts))


@contextmanager
def side_by_side(parts: Parts, prepare: Prepare) -> Iterator[Trainer]:
    if not forks() or parts.experiment.run.device != "cpu":
        raise BadInput("processes side by side are for CPUs under Linux")
    if not fork_can_train():
        raise BadInput("processes side by side cannot be forked once gradients were computed beside another device")
    workers = parts.experiment.run.workers or min(2, cores())
    with closing(trainers.side_by_side(prepare(parts), workers=workers)) as pool:
        yield pool


@contextmanager
def stacked(parts: Parts, prepare: Prepare) -> Iterator[Trainer]:
    try:
        yield stack_of(replace(prepare(parts), together=len(parts.population)))
    except Unsupported as error:
        raise BadInput(f"this experiment cannot be stacked: {error}") from None


@contextmanager
def at_site(parts: Parts, prepare: Prepare) -> Iterator[Trainer]:
    """As deployed sites do. Raises BadInput for what a site would not take part in, or reads from files of its own."""
    experiment = parts.experiment
    refuse_paths(experiment)
    refuse_undeployable(experiment)
    if slow_key(experiment):
        raise BadInput("a key that can be split takes too long to make")
    if experiment.protect.kind == "masks":
        raise BadInput("under masks no site's report can be looked at alone")
    kind_of(experiment).refuse_at_site(experiment)
    if experiment.data.name in OWN_FILES or experiment.data.part is not None:
        raise BadInput("its rows are in a site's own file, or were passed from Python: use another data source")
    memory = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="tacit-audit-", dir=memory) as folder:
        sites: dict[int, tuple[Site, str, int]] = {}  # by client: site, run, last round

        def answers(received: bytes, round: int, cohort: Sequence[int]) -> Iterator[Reply]:
            for index in cohort:
                # a site answers rounds once, in their order: another broadcast for one goes to a new site
                known = sites.get(index)
                site, run = known[:2] if known and round > known[2] else _new_site(parts, prepare, Path(folder), index)
                sites[index] = site, run, round
                yield site.answer({"kind": "train", "run": run, "round": round}, received)[1], {}

        yield cast(Trainer, answers)


TRAINERS: dict[str, MadeBy] = {
    "one by one": one_by_one,
    "side by side": side_by_side,
    "stacked": stacked,
    "site": at_site,
}


def _new_site(parts: Parts, prepare: Prepare, folder: Path, index: int) -> tuple[Site, str]:
    # a new site that has agreed to the run, and the run
    experiment, p = parts.experiment, parts.population
    home, name, rounds = folder / uuid.uuid4().hex, p.names[index], experiment.train.rounds
    make_site(home / name, experiment, name=name, epsilon=float(p.epsilons[index]))
    if experiment.protect.kind == "paillier":
        make_keys(experiment, home / "server", {other: home / other for other in p.names})
    sizes, epsilons = (tuple(column.tolist()) for column in (p.sizes, p.epsilons))
    roster = Roster(p.names, sizes, epsilons, experiment.privacy.run_delta, experiment.privacy.unit_kept)

    def probed(*given: Any, **named: Any) -> Accepted:  # its training meets the probe; price and ledger stay
        accepted = accept(*given, **named)
        changed, k = prepare(accepted.parts), accepted.client.index
        client = replace(changed.population[k], digest=accepted.client.digest)
        return replace(accepted, trainer=trainers.alone(changed, {k: client}))

    site = Site(home / name, accepting=probed)
    run = {"run": uuid.uuid4().hex, "terms": asdict(terms_of(parts, p[index], epsilon=epsilons[index]))}
    agree = {"kind": "agree", "experiment": experiment.toml(), "roster": roster.record()}
    site.answer(run | agree | ({"releases": rounds} if parts.plan.sampler.charges_all else {}), b"")
    return site, run["run"]


def slow_key(experiment: Experiment) -> bool:
    """Whether a run would have to find safe primes for its key first, which takes minutes."""
    protect = experiment.protect
    return protect.kind == "paillier" and protect.key_file is None and protect.new_key.shape == "safe-prime"
