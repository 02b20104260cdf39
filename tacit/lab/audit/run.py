"""`tacit audit RUN`: what a run promised, what its canaries show, and what was measured of its noise; never merged into one."""

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import numpy as np

from tacit import store
from tacit.deploy.site import agreement, layout
from tacit.deploy.site.canaries import own_canaries
from tacit.deploy.site.consent import read_experiment
from tacit.deploy.site.layout import read_settings
from tacit.engine.canaries import (
    FOLDER,
    Canaries,
    everywhere,
    layers_of,
    most_canaries,
    opened,
    read_observations,
    refuse_more,
)
from tacit.engine.run_files import AUDIT, RunFiles, read
from tacit.errors import BadData, BadInput
from tacit.lab.audit import estimate
from tacit.lab.audit.estimate import Charged, Parts, Traces, charged_for, measured, share, shown
from tacit.lab.audit.found import Alike, Layer, RunAudit, above, pictures
from tacit.privacy.ledger import reader
from tacit.privacy.ledger.disk import EVERYBODY
from tacit.privacy.local.kind import promised
from tacit.privacy.plan import kind_of
from tacit.wire import digest_of

LOOKS = "looks.json"  # how often the canaries of a run were looked at, by the pool of runs that they were taken together with
POOLED = "audit-pooled.json"  # what several runs show together
LOOKED = "looked"  # in an audit: all looks until then
MOST_TEXT, MOST_LOOKS = 1 << 26, 10**6
LEVEL = 0.05
MOST_SHOWN = 6  # groups whose pictures are kept
FAINT = "So few canaries could hardly have shown a fault: the lower limit stays below half of what is promised."
USUAL, USUAL_OF_SITE = 1000, 500  # canaries, where nothing is known but that there were none
ROUND = re.compile(r"round-([0-9]{5,9})\.npz")


def looks_at(folders: Sequence[Path], pool: str) -> tuple[int, int]:
    """Which look at this pool of runs it is, and at how many other pools with one of them somebody had looked before the first."""
    known = [known_in(folder) for folder in folders]
    others = {name for one in known for name in takewhile(lambda name: name != pool, one)}
    return 1 + max(one.get(pool, 0) for one in known), len(others)


def count_look(folder: Path, pool: str) -> dict[str, int]:
    """Counts a look at a pool in one of its folders, and returns all looks, the first pool first."""
    known = known_in(folder)
    known[pool] = known.get(pool, 0) + 1
    store.write(folder / LOOKS, json.dumps(known).encode())
    return known


def known_in(folder: Path) -> dict[str, int]:
    """How often the canaries of a folder were looked at, by the pool of runs; of a file that is damaged, nothing."""
    found: dict[str, int] = {}
    for file in (LOOKS, AUDIT, POOLED):
        said = _read(folder / file)
        for name, count in (said if file == LOOKS else _table(said.get(LOOKED))).items():
            if type(count) is int and 0 < count < MOST_LOOKS:
                found[name] = max(count, found.get(name, 0))
    return found


def _read(file: Path) -> dict[str, object]:
    try:
        return _table(json.loads(file.read_text("utf-8")[:MOST_TEXT]))
    except (OSError, ValueError, RecursionError):
        return {}


def _table(found: object) -> dict[str, object]:
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class Seen:
    """What is known of one run's canaries: what was paid, by client (`names` are their places), and what became of each canary."""

    folder: Path
    name: str
    unit: str
    canaries: Canaries
    names: dict[str, int]
    paid: dict[str, Charged]
    observed: tuple[np.ndarray, np.ndarray]
    ledger: str
    place: int | None  # which of its ledger's runs it is; None where the ledger is its own
    against: str  # the adversary and the change that its epsilon is for
    layers: Sequence[Layer] = ()

    @property
    def groups(self) -> dict[Charged, list[str]]:
        """The clients that were charged alike."""
        return grouped(self.paid)

    def traces(self, clients: Sequence[str]) -> tuple[Traces, np.ndarray, np.ndarray] | None:
        """What became of these clients' canaries, in the rounds in which all could be seen; each one's place and client."""
        everybody = EVERYBODY in clients
        mine = [np.array(self.canaries.of(self.names[name]), dtype=int) for name in clients if not everybody]
        numbers = np.arange(self.canaries.count) if everybody else np.concatenate(mine)
        x, n = (part[:, numbers] for part in self.observed)
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
    are never pooled; BadData for coins that are not those committed to."""
    return judged([_seen(folder) for folder in folders], level=level)


def judged(runs: Sequence[Seen], *, level: float) -> RunAudit:
    """Holds what was seen of canaries against what was paid, group by group, and counts the look. Raises BadInput."""
    first, groups = runs[0], runs[0].groups
    pool = digest_of(*sorted(run.canaries.commitment for run in runs))
    if len({run.canaries.commitment for run in runs}) < len(runs):
        raise BadInput("Two of these folders hold the same canaries, which are evidence once: name each run once.")
    for other in runs[1:]:
        if set(other.groups) != set(groups):
            raise BadInput(f"{first.folder} and {other.folder} promise different things: audit each alone.")
    looks, earlier = looks_at([run.folder for run in runs], pool)
    own = share([(run.ledger, run.place) for run in runs], earlier=earlier)
    level *= own / max(1, len(groups))
    found, shows = [], []
    for charged in sorted(groups, key=lambda charged: charged.epsilon()):
        members = [(run, run.groups[charged]) for run in runs]
        seen = [one for run, clients in members if (one := run.traces(clients)) is not None]
        if not seen:
            continue
        traces, places = _together([one for one, *_ in seen]), np.concatenate([part for _, part, _ in seen])
        if (traces.drawn > charged.steps).any():
            raise BadData(f"{first.folder} has canaries drawn more often than there are steps: restore its traces.")
        owners = np.concatenate([of + k * len(first.names) for k, (*_, of) in enumerate(seen)])
        plain, family = shown(traces, charged, level=level)
        as_run = measured(traces, charged, level=level, parts=_parts(first, places, owners))
        clients = sum(len(run.names if EVERYBODY in clients else clients) for run, clients in members)
        found.append(Alike(clients, len(traces.coins), charged.epsilon(), plain, family, as_run))
        if len(shows) < MOST_SHOWN:
            shows.append(pictures(traces, charged, places, first.layers, level=level))
    if not found:
        raise BadInput(f"{first.folder} has no round in which a canary could be seen: audit a run of some rounds.")
    faint = not any(estimate.tells(group.measured.low, group.promised) for group in found)
    notes = [above(found)]
    if faint and not any(group.rejected for group in found):
        notes.append(f"{FAINT} {estimate.more(first.canaries.most, _fullest(runs), level=level)}")
    audit = RunAudit(
        first.name,
        tuple(found),
        looks,
        first.place if len(runs) == 1 else None,
        own,
        next(iter(groups)).delta,
        first.unit,
        tuple(note for note in notes if note),
        len(runs),
        first.against,
        earlier,
        faint,
    )
    for run in runs:
        file, looked = AUDIT if len(runs) == 1 else POOLED, count_look(run.folder, pool)
        store.write(run.folder / file, json.dumps(audit.record() | {"pictures": shows, LOOKED: looked}).encode())
    return audit


def _fullest(runs: Sequence[Seen]) -> dict[Charged, int]:
    """How many canaries each group would have with as many in every run as fit."""
    canaries = runs[0].canaries
    everybody = 1 if canaries.only is not None else canaries.clients
    return {charged: len(runs) * shared_out(canaries.most, c, everybody) for charged, c in runs[0].groups.items()}


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
    paid, place = charges(run.ledger, run.run, delta=privacy.run_delta)
    shared = None if privacy.ledger is None else place
    observed = read_observations(folder, range(len(run.rounds)), everywhere(canaries)[1])
    names = {name: k for k, name in enumerate((run.clients or {})["names"])}
    strangers = set(paid) - set(names) - {EVERYBODY}
    if strangers:
        raise BadData(f"The ledger has charged {min(strangers)!r}, who is no client of the run in {folder}.")
    said = run.guarantee or {}
    about = (run.experiment.name, str(said.get("unit", "")))
    against = against_whom(str(said.get("relation", "")), str(said.get("adversary", "")))
    layers = layers_of(folder)
    return Seen(folder, *about, canaries, names, paid, observed, str(run.ledger.resolve()), shared, against, layers)


def _canaries(run: RunFiles) -> Canaries:
    count = run.experiment.audit.canaries
    if count is None:
        raise BadInput(f"{run.folder} has no canaries to audit. {_first(run)}")
    if run.summary is None or run.clients is None:
        raise BadInput(f"The run in {run.folder} has not ended: --resume it first. Nothing was looked at.")
    everybody, size = len(run.clients["names"]), int(run.summary["parameters"])
    shared = kind_of(run.experiment).plans.traits.summed
    refuse_more(count, everybody, size, shared=shared)
    return opened(run.folder, (count, everybody, size, shared))


def _first(run: RunFiles) -> str:
    """How to audit a run like this one, which had no canaries."""
    how, known = "Run it with --set audit.canaries={}", run.clients or {}
    if not known.get("parameters") or run.ledger is None:
        return estimate.first(USUAL, {}, usual=USUAL, how=how, level=LEVEL)
    everybody, privacy = len(known["names"]), run.experiment.privacy
    most = most_canaries(int(known["parameters"]), everybody, shared=kind_of(run.experiment).plans.traits.summed)
    paid, _ = charges(run.ledger, run.run, delta=privacy.run_delta)
    alike = (
        grouped(paid) if run.summary is not None else {}
    )  # of one that goes on nobody knows how many rounds it will have
    groups = {charged: shared_out(most, clients, everybody) for charged, clients in alike.items()}
    return estimate.first(most, groups, usual=USUAL, how=how, level=LEVEL / max(1, len(groups)))


def grouped(paid: Mapping[str, Charged]) -> dict[Charged, list[str]]:
    """The clients that were charged alike."""
    found = defaultdict(list)
    for client, charged in paid.items():
        found[charged].append(client)
    return dict(found)


def against_whom(relation: str, adversary: str) -> str:
    """The change and the adversary of an epsilon, for people."""
    return f"to {relation}; against {adversary}"


def charges(ledger: Path, run: str, *, delta: float) -> tuple[dict[str, Charged], int]:
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
        found[client] = charged_for(text, rounds, delta=delta)
    return found, 1 + list(dict.fromkeys(row["run"] for row in rows)).index(run) if mine else 1


# `tacit audit SITE`: what became of the canaries that a site planted in what it released, held against its own ledger.


def _first_of_site(site: Path) -> str:
    """How a site can be audited that never planted canaries, by the last run it agreed to."""
    how, names = "Set canaries = {} in its site.toml before a run", layout.runs(site)
    newest = max(names, key=lambda name: (layout.run_folder(site, name) / layout.AGREEMENT).stat().st_mtime, default="")
    last = agreement.read(site, newest) if newest else None
    if last is None or not last.terms.event:  # there is none, or it promised nothing
        return estimate.first(USUAL_OF_SITE, {}, usual=USUAL_OF_SITE, how=how, level=LEVEL)
    privacy, terms = read_experiment(last.experiment).privacy, last.terms
    most, level = terms.parameters, LEVEL * share([(str(site), len(names) + 1)])  # that of the next run
    charged = charged_for(terms.event, terms.rounds, delta=privacy.run_delta)
    return estimate.first(most, {charged: most}, usual=USUAL_OF_SITE, how=how, level=level)


def audit_site(site: Path, *, run: str | None = None, level: float = LEVEL) -> RunAudit:
    """Audits the last run in which a site planted canaries, or the one that is named.
    Guarantee: it reads the site's own files and nothing else, and changes none but the count of looks.
    Raises: BadInput where there is no such run, where its coins are not those committed to, or for files that are damaged."""
    known = [name for name in layout.runs(site) if (layout.run_folder(site, name) / layout.CANARIES).exists()]
    if not known or (run is not None and run not in known):
        raise BadInput(f"{site} has no run with canaries. {_first_of_site(site)}")
    run = run or max(known, key=lambda name: (layout.run_folder(site, name) / layout.CANARIES).stat().st_mtime)
    folder, agreed = layout.run_folder(site, run), agreement.read(site, run)
    if agreed is None:
        raise BadInput(f"The site has no agreement on run {run}.")
    canaries, name = own_canaries(site, run), str(read_settings(site)["name"])
    experiment = read_experiment(agreed.experiment)
    privacy = experiment.privacy
    paid, place = charges(site / layout.LEDGER, run, delta=privacy.run_delta)
    named = (ROUND.fullmatch(file.name) for file in (folder / FOLDER).glob("round-*.npz"))
    rounds = sorted(r for one in named if one and (r := int(one[1])) < agreed.terms.rounds)
    seen = read_observations(folder, rounds, everywhere(canaries)[1])
    about = (f"{experiment.name} at {name}", experiment.privacy.unit_kept)
    said = promised(privacy.unit_kept)
    against = against_whom(said.relation, said.adversary)
    names = dict.fromkeys(paid, canaries.only or 0)
    own = Seen(folder, *about, canaries, names, paid, seen, str(site.resolve()), place, against)
    return judged([own], level=level)
