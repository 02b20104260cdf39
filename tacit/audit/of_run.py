"""`tacit audit RUN`: what a run promised, what its canaries show, and what was measured of its noise; never merged into one."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tacit.audit.as_run import Measured, Traces, measured
from tacit.audit.guessing import shown
from tacit.audit.pictures import Layer, pictures
from tacit.audit.priced import Charged, charged_for
from tacit.canaries.algorithms import everywhere
from tacit.canaries.plan import Canaries
from tacit.canaries.sight import read_sight
from tacit.engine.canaries import layers_of, opened
from tacit.engine.folder import replace
from tacit.engine.run_files import AUDIT, RunFiles, read
from tacit.errors import BadData, BadInput
from tacit.privacy.kinds import kind_of
from tacit.privacy.ledger import reader
from tacit.privacy.ledger.tables import EVERYBODY

LEVEL = 0.05
MOST_SHOWN = 6  # groups whose pictures are kept


@dataclass(frozen=True)
class Group:
    """Clients who were charged for the same, and the canaries among them."""

    clients: int
    canaries: int
    promised: float
    no_assumption: float
    within_family: float
    measured: Measured

    @property
    def rejected(self) -> str:
        """Why the claim does not stand; empty where it does."""
        for name, value in (("measured", self.measured.low), ("shown", max(self.no_assumption, self.within_family))):
            if value > self.promised:
                return f"at least {value:.3g} is {name}, where at most {self.promised:.3g} is promised"
        if self.measured.dependent:
            return "noise or draws of different rounds hang together, which the price does not allow for"
        return ""


@dataclass(frozen=True)
class RunAudit:
    """What was found of a run. `looks` counts this one; `runs` are those of the ledger, over which the level is divided."""

    name: str
    groups: tuple[Group, ...]
    looks: int
    runs: int
    delta: float
    unit: str
    notes: tuple[str, ...] = ()

    @property
    def alarming(self) -> bool:
        """Whether a claim is rejected."""
        return any(group.rejected for group in self.groups)

    @property
    def sentence(self) -> str:
        """The finding in one sentence."""
        for group in self.groups:
            if group.rejected:
                return f"The claim is rejected: {group.rejected} (95 %)."
        looks = "first look" if self.looks == 1 else f"look {self.looks}, which sees what the first one saw"
        return f"The claim stands. Coins committed to before round 0, {looks}."

    def record(self) -> dict[str, Any]:
        """Every number as plain values."""
        kept = {"name": self.name, "unit": self.unit, "delta": self.delta, "looks": self.looks, "runs": self.runs}
        groups = [asdict(group) | {"rejected": group.rejected} for group in self.groups]
        return kept | {"groups": groups, "rejected": self.alarming, "sentence": self.sentence}


def audit_run(folder: Path, *, level: float = LEVEL) -> RunAudit:
    """Audits a finished run and counts the look in its folder.

    Guarantee: where every claim holds, one is rejected with probability at most `level` by what is measured over all runs of the
    ledger, at most as much by what is shown by either bound, and 1 in 25 of it by dependence between rounds.

    Raises: BadInput for a run without canaries or one that goes on, BadData for coins that are not those committed to.
    """
    run = read(folder)
    canaries = _canaries(run)
    if run.ledger is None:
        raise BadInput(f"The run in {folder} promises nothing: there is no claim to audit.")
    paid, runs = charges(run.ledger, run.run, delta=run.experiment.privacy.run_delta)
    seen = read_sight(folder, len(run.rounds), canaries.count)
    names = {name: k for k, name in enumerate((run.clients or {})["names"])}
    about = (run.experiment.name, str((run.guarantee or {}).get("unit", "")))
    return judged(folder, about, canaries, names, paid, seen, runs=runs, level=level, layers=layers_of(folder))


def judged(
    folder: Path,
    about: tuple[str, str],
    canaries: Canaries,
    names: dict[str, int],
    paid: dict[str, Charged],
    seen: tuple[np.ndarray, np.ndarray],
    *,
    runs: int,
    level: float,
    layers: Sequence[Layer] = (),
) -> RunAudit:
    """Holds what was seen of canaries against what was paid, group by group, and counts the look in the folder."""
    members = defaultdict(list)
    for client, charged in paid.items():
        members[charged].append(client)
    level /= max(1, len(members) * runs)
    places, coins = everywhere(canaries)
    groups, shows = [], []
    for charged, clients in sorted(members.items(), key=lambda pair: pair[0].epsilon()):
        numbers = _numbers(canaries, names, clients)
        traces = _traces(seen, coins, numbers)
        if traces is None:
            continue
        first, second = shown(traces, charged, level=level)
        found = measured(traces, charged, level=level)
        groups.append(Group(len(clients), len(numbers), charged.epsilon(), first, second, found))
        if len(shows) < MOST_SHOWN:
            shows.append(pictures(traces, charged, places[numbers], layers, level=level))
    if not groups:
        raise BadInput(f"{folder} has no round in which a canary could be seen: audit a run of some rounds.")
    name, unit = about
    delta = next(iter(paid.values())).delta
    found = RunAudit(name, tuple(groups), _look(folder), runs, delta, unit)
    replace(folder / AUDIT, json.dumps(found.record() | {"pictures": shows}).encode())
    return found


def _canaries(run: RunFiles) -> Canaries:
    count = run.experiment.audit.canaries
    if count is None:
        raise BadInput(
            f"{run.folder} has no canaries to audit: run it with --set audit.canaries=1000, or audit the mechanism alone with"
            " `tacit audit EXPERIMENT --mechanism`."
        )
    if run.summary is None or run.clients is None:
        raise BadInput(
            f"The run in {run.folder} has not ended: go on with --resume, and audit it then. Nothing was looked at."
        )
    everybody, size = len(run.clients["names"]), int(run.summary["parameters"])
    shared = kind_of(run.experiment).plans.together or run.experiment.privacy.kind == "distributed"
    return opened(run.folder, (count, everybody, size, shared))


def charges(ledger: Path, run: str, *, delta: float) -> tuple[dict[str, Charged], int]:
    """What every client was charged for by a run, and how many runs the ledger holds. Raises BadData for what cannot be told."""
    rows = reader.entries(ledger)
    mine = [row for row in rows if row["run"] == run and row["round"] >= 0]
    lines = defaultdict(lambda: defaultdict(int))
    for row in mine:
        lines[row["client"]][row["event"]] += 1
    found = {}
    for client, texts in lines.items():
        if len(texts) > 1:
            raise BadData(f"{client} was charged for rounds of different kinds: no audit knows how to tell them apart.")
        ((text, rounds),) = texts.items()
        found[client] = charged_for(text, rounds, delta=delta)
    return found, len({row["run"] for row in rows})


def _numbers(canaries: Canaries, names: dict[str, int], clients: list[str]) -> np.ndarray:
    """The numbers of the canaries of these clients; where everybody is charged together, all."""
    if EVERYBODY in clients:
        return np.arange(canaries.count)
    return np.concatenate([np.array(canaries.of(names[name]), dtype=int) for name in clients])


def _traces(seen: tuple[np.ndarray, np.ndarray], coins: np.ndarray, numbers: np.ndarray) -> Traces | None:
    """The traces of some canaries in the rounds in which they could be seen; each has as many."""
    x, n = (part[:, numbers] for part in seen)
    there = ~np.isnan(x)
    rounds = int(there.sum(0).min()) if len(numbers) else 0
    if rounds == 0:
        return None
    order = np.argsort(~there, axis=0, kind="stable")[:rounds]
    return Traces(np.take_along_axis(x, order, 0), np.take_along_axis(n, order, 0), coins[numbers])


def _look(folder: Path) -> int:
    """Counts a look."""
    try:
        return int(json.loads((folder / AUDIT).read_text("utf-8"))["looks"]) + 1
    except (OSError, ValueError, KeyError, TypeError):
        return 1
