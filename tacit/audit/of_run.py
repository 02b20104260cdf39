"""`tacit audit RUN`: what a run promised, what its canaries show, and what was measured of its noise; never merged into one."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tacit.audit import power
from tacit.audit.as_run import Parts, Traces, measured
from tacit.audit.found import Group, RunAudit, above
from tacit.audit.guessing import shown
from tacit.audit.levels import share
from tacit.audit.looks import LOOKED, POOLED, count_look, looks_at
from tacit.audit.pictures import Layer, pictures
from tacit.audit.priced import Charged, charged_for
from tacit.canaries.algorithms import everywhere
from tacit.canaries.plan import Canaries, most_canaries, refuse_more
from tacit.canaries.sight import read_sight
from tacit.digest import mark
from tacit.engine.canaries import layers_of, opened
from tacit.engine.folder import replace
from tacit.engine.run_files import AUDIT, RunFiles, read
from tacit.errors import BadData, BadInput
from tacit.privacy.kinds import kind_of
from tacit.privacy.ledger import reader
from tacit.privacy.ledger.tables import EVERYBODY

LEVEL = 0.05
MOST_SHOWN = 6  # groups whose pictures are kept
FAINT = "So few canaries could hardly have shown a fault: the lower limit stays below half of what is promised."
USUAL = 1000  # canaries, where nothing is known but that there were none


@dataclass(frozen=True)
class Seen:
    """What is known of one run's canaries: what was paid, by client (`names` are their places), and what became of each canary."""

    folder: Path
    name: str
    unit: str
    canaries: Canaries
    names: dict[str, int]
    paid: dict[str, Charged]
    sight: tuple[np.ndarray, np.ndarray]
    ledger: str
    place: int | None  # which of its ledger's runs it is; None where the ledger is its own
    against: str  # the adversary and the change that its epsilon is for
    layers: Sequence[Layer] = ()

    def groups(self) -> dict[Charged, list[str]]:
        """The clients that were charged alike."""
        return grouped(self.paid)

    def traces(self, clients: Sequence[str]) -> tuple[Traces, np.ndarray, np.ndarray] | None:
        """What became of these clients' canaries, in the rounds in which all could be seen; each one's place and client."""
        everybody = EVERYBODY in clients
        mine = [np.array(self.canaries.of(self.names[name]), dtype=int) for name in clients if not everybody]
        numbers = np.arange(self.canaries.count) if everybody else np.concatenate(mine)
        x, n = (part[:, numbers] for part in self.sight)
        there = ~np.isnan(x)
        rounds = int(there.sum(0).min()) if len(numbers) else 0
        if rounds == 0:
            return None
        order = np.argsort(~there, axis=0, kind="stable")[:rounds]
        places, coins = everywhere(self.canaries)
        owners = np.concatenate([np.full(len(self.canaries.of(k)), k) for k in self.canaries.owners])
        found = Traces(np.take_along_axis(x, order, 0), np.take_along_axis(n, order, 0), coins[numbers])
        return found, places[numbers], owners[numbers]


def audit_run(*folders: Path, level: float = LEVEL) -> RunAudit:
    """Audits a finished run, or the canaries of several together, and counts the look in each folder.

    Guarantee: where every claim holds, one is rejected with probability at most `level` by what is measured over all runs that the
    ledger will ever hold, whenever each is audited (`levels`); at most as much by what is shown by either bound, and 3 in 50 of it
    by dependence between rounds and by parts that lack noise. Where other runs name a ledger that began as one run's own, half
    as much again; over all choices of runs that are audited together, twice as much.

    Raises: BadInput for a run without canaries, one that goes on, the same one twice, and runs that promise different things, which
    are never pooled; BadData for coins that are not those committed to.
    """
    return judged([_seen(folder) for folder in folders], level=level)


def judged(runs: Sequence[Seen], *, level: float) -> RunAudit:
    """Holds what was seen of canaries against what was paid, group by group, and counts the look. Raises BadInput."""
    first, groups = runs[0], runs[0].groups()
    pool = mark(*sorted(run.canaries.commitment for run in runs))
    if len({run.canaries.commitment for run in runs}) < len(runs):
        raise BadInput("Two of these folders hold the same canaries, which are evidence once: name each run once.")
    for other in runs[1:]:
        if set(other.groups()) != set(groups):
            raise BadInput(
                f"{first.folder} and {other.folder} promise different things, which are never pooled: audit each by itself."
            )
    looks, earlier = looks_at([run.folder for run in runs], pool)
    own = share([(run.ledger, run.place) for run in runs], earlier=earlier)
    level *= own / max(1, len(groups))
    found, shows = [], []
    for charged in sorted(groups, key=lambda charged: charged.epsilon()):
        members = [(run, run.groups()[charged]) for run in runs]
        seen = [one for run, clients in members if (one := run.traces(clients)) is not None]
        if not seen:
            continue
        traces, places = _together([one for one, *_ in seen]), np.concatenate([part for _, part, _ in seen])
        if (traces.drawn > charged.steps).any():
            raise BadData(
                f"{first.folder} has canaries that were drawn more often than there are steps: restore its traces."
            )
        owners = np.concatenate([of + k * len(first.names) for k, (*_, of) in enumerate(seen)])
        plain, family = shown(traces, charged, level=level)
        as_run = measured(traces, charged, level=level, parts=_parts(first, places, owners))
        clients = sum(len(run.names if EVERYBODY in clients else clients) for run, clients in members)
        found.append(Group(clients, len(traces.coins), charged.epsilon(), plain, family, as_run))
        if len(shows) < MOST_SHOWN:
            shows.append(pictures(traces, charged, places, first.layers, level=level))
    if not found:
        raise BadInput(f"{first.folder} has no round in which a canary could be seen: audit a run of some rounds.")
    delta = next(iter(groups)).delta
    faint = not any(power.tells(group.measured.low, group.promised) for group in found)
    notes = tuple(
        note
        for note in (
            above(found),
            f"{FAINT} {power.more(first.canaries.most, _fullest(runs), level=level)}"
            if faint and not any(group.rejected for group in found)
            else "",
        )
        if note
    )
    place = first.place if len(runs) == 1 else None
    audit = RunAudit(
        first.name, tuple(found), looks, place, own, delta, first.unit, notes, len(runs), first.against, earlier, faint
    )
    for run in runs:
        file, looked = AUDIT if len(runs) == 1 else POOLED, count_look(run.folder, pool)
        replace(run.folder / file, json.dumps(audit.record() | {"pictures": shows, LOOKED: looked}).encode())
    return audit


def _fullest(runs: Sequence[Seen]) -> dict[Charged, int]:
    """How many canaries each group would have with as many in every run as fit."""
    canaries = runs[0].canaries
    everybody = 1 if canaries.only is not None else canaries.clients
    return {charged: len(runs) * shared_out(canaries.most, c, everybody) for charged, c in runs[0].groups().items()}


def shared_out(canaries: int, clients: Sequence[str], everybody: int) -> int:
    """How many of so many canaries these of all clients have."""
    return canaries if EVERYBODY in clients else canaries * len(clients) // everybody


def _parts(run: Seen, places: np.ndarray, owners: np.ndarray) -> Parts:
    """The canaries of each layer, and, where everybody has noise of its own, of each client."""
    layers = {f"layer {name}": (places >= start) & (places < stop) for name, start, stop in run.layers}
    alone = () if run.canaries.shared else np.unique(owners).tolist()
    names = dict(enumerate(run.names))
    return layers | {f"client {names.get(k % len(names), k)}": owners == k for k in alone}


def _together(traces: Sequence[Traces]) -> Traces:
    """Canaries of several runs side by side, in the rounds that all of them have."""
    rounds = min(len(one.seen) for one in traces)
    seen, drawn = (np.concatenate([getattr(one, name)[:rounds] for one in traces], 1) for name in ("seen", "drawn"))
    return Traces(seen, drawn, np.concatenate([one.coins for one in traces]))


def _seen(folder: Path) -> Seen:
    run = read(folder)
    canaries = _canaries(run)
    if run.ledger is None:
        raise BadInput(f"The run in {folder} promises nothing: there is no claim to audit.")
    privacy = run.experiment.privacy
    paid, place = charges(run.ledger, run.run, delta=privacy.run_delta, accountant=privacy.accountant)
    shared = None if privacy.ledger is None else place
    sight = read_sight(folder, range(len(run.rounds)), everywhere(canaries)[1])
    names = {name: k for k, name in enumerate((run.clients or {})["names"])}
    strangers = set(paid) - set(names) - {EVERYBODY}
    if strangers:
        raise BadData(f"The ledger has charged {min(strangers)!r}, who is no client of the run in {folder}.")
    said = run.guarantee or {}
    about = (run.experiment.name, str(said.get("unit", "")))
    against = against_whom(str(said.get("relation", "")), str(said.get("adversary", "")))
    layers = [] if run.experiment.audit.placement == "record" else layers_of(folder)  # a record is in every layer
    return Seen(folder, *about, canaries, names, paid, sight, str(run.ledger.resolve()), shared, against, layers)


def _canaries(run: RunFiles) -> Canaries:
    count = run.experiment.audit.canaries
    if count is None:
        raise BadInput(f"{run.folder} has no canaries to audit. {_first(run)}")
    if run.summary is None or run.clients is None:
        raise BadInput(
            f"The run in {run.folder} has not ended: go on with --resume, and audit it then. Nothing was looked at."
        )
    everybody, size = len(run.clients["names"]), int(run.summary["parameters"])
    shared = kind_of(run.experiment).plans.summed
    refuse_more(count, everybody, size, shared=shared)
    return opened(run.folder, (count, everybody, size, shared))


def _first(run: RunFiles) -> str:
    """How to audit a run like this one, which had no canaries."""
    how, known = "Run it with --set audit.canaries={}", run.clients or {}
    if not known.get("parameters") or run.ledger is None:
        return power.first(USUAL, {}, usual=USUAL, how=how, level=LEVEL)
    everybody, privacy = len(known["names"]), run.experiment.privacy
    most = most_canaries(int(known["parameters"]), everybody, shared=kind_of(run.experiment).plans.summed)
    paid, _ = charges(run.ledger, run.run, delta=privacy.run_delta, accountant=privacy.accountant)
    alike = (
        grouped(paid) if run.summary is not None else {}
    )  # of a run that goes on nobody knows how many rounds it will have
    groups = {charged: shared_out(most, clients, everybody) for charged, clients in alike.items()}
    return power.first(most, groups, usual=USUAL, how=how, level=LEVEL / max(1, len(groups)))


def grouped(paid: Mapping[str, Charged]) -> dict[Charged, list[str]]:
    """The clients that were charged alike."""
    found = defaultdict(list)
    for client, charged in paid.items():
        found[charged].append(client)
    return dict(found)


def against_whom(relation: str, adversary: str) -> str:
    """The change and the adversary of an epsilon, for people."""
    return f"to {relation}; against {adversary}"


def charges(ledger: Path, run: str, *, delta: float, accountant: str) -> tuple[dict[str, Charged], int]:
    """What every client was charged for by a run, and which run of the ledger it is. Raises BadData for what cannot be told."""
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
        found[client] = charged_for(text, rounds, delta=delta, accountant=accountant)
    return found, 1 + list(dict.fromkeys(row["run"] for row in rows)).index(run) if mine else 1
