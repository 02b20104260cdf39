"""`tacit audit RUN`: what a run promised, what its canaries show, and what was measured of its noise; never merged into one."""

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import numpy as np

from tacit import store
from tacit.deploy.site import agreement, layout
from tacit.deploy.site.canaries import own_canaries
from tacit.deploy.site.consent import read_experiment
from tacit.deploy.site.layout import read_settings
from tacit.engine.canaries import FOLDER, Canaries, layers_of, opened, read_observations
from tacit.engine.run_files import AUDIT, read
from tacit.errors import BadData, BadInput
from tacit.lab.audit.estimate import Charged, Subsets, Traces, claim_of, measured, share, shown
from tacit.lab.audit.report import Alike, Layer, RunAudit, pictures
from tacit.privacy.accounting import price
from tacit.privacy.ledger import reader
from tacit.privacy.ledger.disk import EVERYBODY
from tacit.privacy.local import promised
from tacit.privacy.plan import kind_of
from tacit.wire import digest_of

LOOKS = "looks.json"  # how often the canaries of a run were looked at, by the pool of runs that they were taken with
POOLED = "audit-pooled.json"  # the audit of several runs' canaries
LOOKED = "looked"  # in an audit: all looks until then
MOST_TEXT, MOST_LOOKS = 1 << 26, 10**6
LEVEL = 0.05
MOST_SHOWN = 6  # groups whose pictures are kept
TELLING = 0.5  # of the promise: the least lower limit of an audit that can tell
FAINT = "So few canaries could hardly have shown a fault: the lower limit stays below half of what is promised."
MECHANISM = "audit the mechanism alone with `tacit audit EXPERIMENT`"
ROUND = re.compile(r"round-([0-9]{5,9})\.rows")


def looks_at(folders: Sequence[Path], pool: str) -> tuple[int, int]:
    """Which look at this pool of runs it is, and at how many other pools with one of them somebody had looked before the first."""
    counts = [looked(folder) for folder in folders]
    others = {name for one in counts for name in takewhile(lambda name: name != pool, one)}
    return 1 + max(one.get(pool, 0) for one in counts), len(others)


def looked(folder: Path) -> dict[str, int]:
    """How often the canaries of a folder were looked at, by the pool of runs, the first pool first. The largest count of three
    files stands, so that a file that is deleted or damaged takes no look back."""
    counts: dict[str, int] = {}
    for file in (LOOKS, AUDIT, POOLED):
        try:
            record = json.loads((folder / file).read_text("utf-8")[:MOST_TEXT])
            looks = (record if file == LOOKS else record[LOOKED]).items()
        except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
            continue
        for name, count in looks:
            if type(count) is int and 0 < count < MOST_LOOKS:
                counts[name] = max(count, counts.get(name, 0))
    return counts


@dataclass(frozen=True)
class Audited:
    """One run with canaries: what was paid, by client (`names` are their places), and what became of each canary."""

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
        groups = defaultdict(list)
        for client, charged in self.paid.items():
            groups[charged].append(client)
        return dict(groups)

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
        places, coins = self.canaries.everywhere
        owners = np.concatenate([np.full(len(self.canaries.of(k)), k) for k in self.canaries.owners])
        traces = Traces(np.take_along_axis(x, order, 0), np.take_along_axis(n, order, 0), coins[numbers])
        return traces, places[numbers], owners[numbers]


def judged(runs: Sequence[Audited], *, level: float) -> RunAudit:
    """Holds what was seen of canaries against what was paid, group by group, and counts the look. Raises BadInput."""
    first, groups = runs[0], runs[0].groups
    commitments = {run.canaries.commitment for run in runs}
    pool = digest_of(*sorted(commitments))
    if len(commitments) < len(runs):
        raise BadInput("Two of these folders hold the same canaries, which are evidence once: name each run once.")
    for other in runs[1:]:
        if set(other.groups) != set(groups):
            raise BadInput(f"{first.folder} and {other.folder} promise different things: audit each alone.")
    looks, earlier = looks_at([run.folder for run in runs], pool)
    own = share([(run.ledger, run.place) for run in runs], earlier=earlier)
    level *= own / max(1, len(groups))
    alike, shows = list[Alike](), []
    for charged in sorted(groups, key=lambda charged: charged.epsilon()):
        members = [(run, run.groups[charged]) for run in runs]
        seen = [one for run, clients in members if (one := run.traces(clients)) is not None]
        if not seen:
            continue
        traces, places = _pooled([one for one, *_ in seen]), np.concatenate([part for _, part, _ in seen])
        if (traces.drawn > charged.steps).any():
            raise BadData(f"{first.folder} has canaries drawn more often than there are steps: restore its traces.")
        owners = np.concatenate([of + k * len(first.names) for k, (*_, of) in enumerate(seen)])
        plain, family = shown(traces, charged, level=level)
        as_run = measured(traces, charged, level=level, subsets=_subsets(first, places, owners))
        clients = sum(len(run.names if EVERYBODY in clients else clients) for run, clients in members)
        alike.append(Alike(clients, len(traces.coins), charged.epsilon(), plain, family, as_run))
        if len(shows) < MOST_SHOWN:
            shows.append(pictures(traces, charged, places, first.layers, level=level))
    if not alike:
        raise BadInput(f"{first.folder} has no round in which a canary could be seen: audit a run of some rounds.")
    faint = not any(group.measured.low >= TELLING * group.promised for group in alike)
    most, note = first.canaries.most, ""
    if faint and not any(group.rejected for group in alike):
        more = f"Plant more (up to {most:,} fit)" if first.canaries.count < most else "No more fit"
        note = f"{FAINT} {more}, audit several runs with one promise, or {MECHANISM}."
    audit = RunAudit(
        first.name,
        tuple(alike),
        looks,
        first.place if len(runs) == 1 else None,
        own,
        next(iter(groups)).delta,
        first.unit,
        (note,) if note else (),
        len(runs),
        first.against,
        earlier,
        faint,
    )
    for run in runs:
        counts = looked(run.folder)
        counts[pool] = counts.get(pool, 0) + 1
        store.write(run.folder / LOOKS, json.dumps(counts).encode())
        file = AUDIT if len(runs) == 1 else POOLED
        store.write(run.folder / file, json.dumps(audit.record() | {"pictures": shows, LOOKED: counts}).encode())
    return audit


def _subsets(run: Audited, places: np.ndarray, owners: np.ndarray) -> Subsets:
    # the canaries of each layer, and, where everybody has noise of its own, of each client
    layers = {f"layer {name}": (places >= start) & (places < stop) for name, start, stop in run.layers}
    alone = () if run.canaries.shared else np.unique(owners).tolist()
    names = dict(enumerate(run.names))
    return layers | {f"client {names.get(k % len(names), k)}": owners == k for k in alone}


def _pooled(traces: Sequence[Traces]) -> Traces:
    # canaries of several runs in one, in the rounds that all of them have
    rounds = min(len(one.seen) for one in traces)
    seen, drawn = (np.concatenate([getattr(one, name)[:rounds] for one in traces], 1) for name in ("seen", "drawn"))
    return Traces(seen, drawn, np.concatenate([one.coins for one in traces]))


def charges(ledger: Path, run: str, *, delta: float) -> tuple[dict[str, Charged], int]:
    """What every client was charged for by a run, and which run of the ledger it is. Raises BadData for what cannot be told."""
    rows = reader.entries(ledger)
    mine = [row for row in rows if row["run"] == run and row["round"] >= 0]
    lines = defaultdict(lambda: defaultdict(int))
    for row in mine:
        lines[row["client"]][row["event"]] += 1
    paid = {}
    for client, texts in lines.items():
        if len(texts) > 1:
            raise BadData(f"{client} was charged for rounds of different kinds: no audit can tell them apart.")
        ((text, rounds),) = texts.items()
        paid[client] = claim_of(price.from_text(text), rounds, delta=delta)
    return paid, 1 + list(dict.fromkeys(row["run"] for row in rows)).index(run) if mine else 1


def audit_run(*folders: Path, level: float = LEVEL) -> RunAudit:
    """Audits a finished run, or the canaries of several in total, and counts the look in each folder.
    Guarantee: where every claim holds, one is rejected with probability at most `level` by what is measured over all runs that
    the ledger will ever hold, whenever each is audited (`share`); as much by what is shown, and 3 in 50 of it by dependence and
    quiet parts; half as much again where other runs name a ledger that began as one run's own, twice as much over all choices of
    pooled runs. Raises BadInput for a run without canaries or an end, for the same one twice, and for runs that promise
    different things; BadData."""
    return judged([_of_run(folder) for folder in folders], level=level)


def _of_run(folder: Path) -> Audited:
    run = read(folder)
    if (count := run.experiment.audit.canaries) is None:
        raise BadInput(f"{folder} has no canaries to audit. Run it with --set audit.canaries=1000, or {MECHANISM}.")
    if run.summary is None or run.clients is None:
        raise BadInput(f"The run in {folder} has not ended: --resume it first. Nothing was looked at.")
    names = {name: k for k, name in enumerate(run.clients["names"])}
    shared = kind_of(run.experiment).plans.traits.summed
    canaries = opened(folder, Canaries(b"", count, len(names), int(run.summary["parameters"]), shared))
    if run.ledger is None:
        raise BadInput(f"The run in {folder} promises nothing: there is no claim to audit.")
    privacy = run.experiment.privacy
    paid, place = charges(run.ledger, run.run, delta=privacy.run_delta)
    strangers = set(paid) - set(names) - {EVERYBODY}
    if strangers:
        raise BadData(f"The ledger has charged {min(strangers)!r}, who is no client of the run in {folder}.")
    promise = run.guarantee or {}
    return Audited(
        folder,
        run.experiment.name,
        str(promise.get("unit", "")),
        canaries,
        names,
        paid,
        read_observations(folder, range(len(run.rounds)), canaries.everywhere[1]),
        str(run.ledger.resolve()),
        None if privacy.ledger is None else place,
        f"to {promise.get('relation', '')}; against {promise.get('adversary', '')}",
        layers_of(folder),
    )


def audit_site(site: Path, *, level: float = LEVEL) -> RunAudit:
    """Audits the last run in which a site planted canaries; it changes nothing but the count of looks.
    Raises: BadInput where there is no such run, where its coins are not those committed to, or for files that are damaged."""
    runs = [name for name in layout.runs(site) if (layout.run_folder(site, name) / layout.CANARIES).exists()]
    if not runs:
        raise BadInput(
            f"{site} has no run with canaries. Set canaries = 500 in its site.toml before a run, or {MECHANISM}."
        )
    run = max(runs, key=lambda name: (layout.run_folder(site, name) / layout.CANARIES).stat().st_mtime)
    folder, agreed = layout.run_folder(site, run), agreement.read(site, run)
    if agreed is None:
        raise BadInput(f"The site has no agreement on run {run}.")
    canaries, experiment = own_canaries(site, run), read_experiment(agreed.experiment)
    privacy = experiment.privacy
    paid, place = charges(site / layout.LEDGER, run, delta=privacy.run_delta)
    named = (ROUND.fullmatch(file.name) for file in (folder / FOLDER).glob("round-*"))
    rounds = sorted(r for one in named if one and (r := int(one[1])) < agreed.terms.rounds)
    words = promised(privacy.unit_kept)
    own = Audited(
        folder,
        f"{experiment.name} at {read_settings(site)['name']}",
        privacy.unit_kept,
        canaries,
        dict.fromkeys(paid, canaries.only or 0),
        paid,
        read_observations(folder, rounds, canaries.everywhere[1]),
        str(site.resolve()),
        place,
        f"to {words.relation}; against {words.adversary.rstrip(',')}",
    )
    return judged([own], level=level)
