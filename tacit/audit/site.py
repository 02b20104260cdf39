"""A deployed site as a trainer: a real `Site` in a folder of its own, asked as a server asks, paying a ledger of its own.

Rows, plan, noise and price are the site's, built from its files; what is put into its training is the probe. Nothing of a real
site is touched: the folder is made for the audit and removed.
"""

import os
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from tacit.audit.probes import Prepare
from tacit.build.parts import Parts
from tacit.engine.trainers import make
from tacit.engine.trainers.processes import Reply, Trainer
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.federation.site.agreement import terms_of
from tacit.federation.site.join import Joined, asked_of, join
from tacit.federation.site.key_files import make_keys
from tacit.federation.site.make import make_site
from tacit.federation.site.own_rows import OWN_FILES, refuse_paths, refuse_undeployable
from tacit.federation.site.roster import Roster
from tacit.federation.site.site import Site
from tacit.privacy.kinds import kind_of

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
        releases = {"releases": experiment.train.rounds} if parts.plan.together else {}
        site.answer(ask | told | releases, b"")
        return site, ask


def probed(prepare: Prepare, *given: Any, **named: Any) -> Joined:
    """The site's own view of a run, whose training meets the probe; agreement, price and ledger stay as they are."""
    joined = join(*given, **named)
    parts = prepare(joined.parts)
    index, mark = joined.client.index, joined.client.mark
    client = replace(parts.population[index], mark=mark)
    return replace(joined, train=make.alone(parts, {index: client}))


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
