"""The ledger of a run: which one pays for it, what it belongs to, and what it must not lack."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path

import torch
from dp_accounting import DpEvent

from tacit.data.dataset import Dataset
from tacit.data.population import Population
from tacit.data.sources import identity
from tacit.engine.assemble import Parts
from tacit.engine.run_folder import COMPARISON, SEARCH, Folder, ledger_of, logged_rounds
from tacit.engine.start import digests, note_unprotected
from tacit.errors import LedgerError
from tacit.experiment import Experiment
from tacit.privacy.ledger import disk
from tacit.privacy.ledger.disk import Condition, keyed, seeded_cohorts
from tacit.privacy.ledger.holdings import holdings
from tacit.privacy.ledger.ledger import Ledger
from tacit.training.flat import named

Asking = Callable[[str], Mapping[str, DpEvent]]  # by a client's name, its queries with their price

SEED = "seed.data"  # no source has an option of this name


def open_ledger(parts: Parts, folder: Folder, *, once: bool = False, asked: Asking | None = None) -> Ledger | None:
    """The ledger of a run (with `once`, of one release), or None where nothing is charged. `asked` are the queries that it pays
    for, unless said those of the plan. Raises LedgerError where it lacks what the folder's run released."""
    if not parts.plan.priced:
        return None
    experiment, releases = parts.experiment, parts.releases
    shared = experiment.privacy.ledger
    path = ledger_of(experiment, folder.path)
    draws = parts.plan.sampler.charges_all and experiment.run.randomness == "seeded" and not parts.is_deployed
    drawn = releases.server_key, releases.digest
    conditions: list[Callable[[bytes], Condition]] = []
    if draws:
        conditions.append(lambda key: seeded_cohorts(*(keyed(key, part) for part in drawn)))
    if not parts.is_deployed:  # sites' own ledgers know what their records were in
        conditions += [parts.start.under, *who_holds(experiment, parts.population, parts.dataset)]
    if shared:
        refuse_lost(path, folder.path)
    ledger = Ledger(
        path,
        population=population_id(experiment, parts.population, is_deployed=parts.is_deployed),
        run=folder.run,
        delta=experiment.privacy.delta,
        rounds=1 if once else parts.plan.sampler.turns(None, rounds=experiment.train.rounds),
        asked=asked or ((lambda client: {}) if once else asked_by(parts)),
        spare=not once,
        watermarks=(folder.path / disk.NAME, *([path.with_name(f"{path.name}.mark")] if shared else [])),
        conditions=conditions,
    )
    refuse_unknown(folder, ledger)
    if shared:
        refuse_older(ledger, folder.path)
    return ledger


def open_unpaid(parts: Parts, folder: Folder) -> Ledger | None:
    """The shared ledger of a run that promises nothing: it charges nothing, and is told what such a run trained on its records.
    Raises: LedgerError where the ledger belongs to others."""
    shared = parts.experiment.privacy.ledger
    if parts.plan.priced or not shared:
        return None
    path = Path(shared)
    return Ledger(
        path,
        population=population_id(parts.experiment, parts.population),
        run=folder.run,
        watermarks=[path.with_name(f"{path.name}.mark")],
        conditions=who_holds(parts.experiment, parts.population, parts.dataset),
    )


def note_unpaid(ledger: Ledger | None, parts: Parts, params: torch.Tensor) -> None:
    """Has the ledger know every tensor that the run has changed, before any file has it. Raises: LedgerError."""
    if ledger is not None:
        before, after = named(parts.model, parts.params), named(parts.model, params)
        note_unprotected(ledger, digests(after[name] for name in after if not torch.equal(before[name], after[name])))
        ledger.close()


def asked_by(parts: Parts) -> Asking:
    """The queries that each client answers beside its rounds, by its name."""
    if not any(parts.plan.queries.events(0)):
        return lambda client: {}
    places = {name: index for index, name in enumerate(parts.population.names)}
    return lambda client: parts.plan.queries.events(places[client]) if client in places else {}


def refuse_unknown(folder: Folder, ledger: Ledger) -> None:
    """Refuses to go on where the folder holds rounds that its ledger was never charged for. Raises LedgerError."""
    _, first = folder.restore() or (None, 0)
    for round in chain(range(first), folder.logged()):  # the first that is not known ends it, however many are claimed
        if not ledger.knows(round):
            raise LedgerError(
                f"{folder.path} holds round {round + 1}, and its ledger {ledger.path} knows no charge for it: restore the ledger"
                " that was charged; nothing was released."
            )


def who_holds(experiment: Experiment, population: Population, dataset: Dataset) -> list[Callable[[bytes], Condition]]:
    """What a ledger must not contradict, under its key, where the data itself names the clients: who holds which row.
    It is asked of the rows that this run reads, at every run: what a program did to its own meanwhile shows."""
    data = experiment.data
    natural = data.partition == "natural"
    return [partial(holdings, population, dataset, whole=data.part is not None)] if natural else []


def population_id(experiment: Experiment, population: Population, *, is_deployed: bool = False) -> str:
    """What a ledger belongs to: the same records in the same hands, run after run. Only a ledger, which keys it, may hold it.
    Where the data names the clients, rows may come and go, and who holds which is looked at row by row (ledger/holdings.py). Where
    Tacit deals rows out, other settings or rows would put a record into other hands, and charges of two clients would add up."""
    data, seed = experiment.data, experiment.seeds.data
    if data.part is not None and data.partition == "natural":
        shares = {"held_out": data.held_out, "own_share": data.own_share, "seed": seed}  # which rows are trained on
        kept = "".join(f":{key}={value}" for key, value in shares.items()) if data.held_out or data.own_share else ""
        return f"{data.name}:natural:{sorted(data.part.settings().items())}{kept}"
    settings, tested = identity(data), "test_path" in data.options()
    if data.partition == "natural":
        held_out = {"test_path": True, "test_share": None} if tested else {SEED: seed}
        made = hashlib.blake2b(repr(sorted((settings | held_out).items())).encode(), digest_size=8)
        return f"{data.name}:natural:{made.hexdigest()}"
    made = hashlib.blake2b(population.offsets.tobytes(), digest_size=8)
    made.update(repr(sorted((settings | {SEED: seed}).items())).encode())
    if not is_deployed:
        made.update(population.digest().encode())
        made.update(population.held.digest().encode() if population.held else b"")
    return f"{data.name}:{made.hexdigest()}"


# Run folders that say they were paid from one ledger: a shared ledger that does not know their releases is not theirs.

CELLS = "runs/*/seed-*/"  # where the runs of a comparison lie
OUTSIDE = 3  # folders from a run of a comparison to where that lies


def refuse_lost(path: Path, run: Path) -> None:
    """Refuses to begin an empty ledger where a run beside it was paid from one. Raises LedgerError."""
    for folder in paid_from(path, run):
        disk.refuse_lost(path, folder / disk.NAME)


def refuse_older(ledger: Ledger, run: Path) -> None:
    """Refuses a ledger that lacks the charges of a run beside it. Raises LedgerError."""
    for folder in paid_from(ledger.path, run):
        ledger.refuse_older(folder / disk.NAME)
        name = _record(folder / "run.json").get("run")
        for round in sorted(logged_rounds(folder))[-1:]:
            if not ledger.knows(round, run=str(name)):
                raise LedgerError(
                    f"{folder} holds round {round + 1} of a run that was paid from {ledger.path}, and the ledger knows no charge"
                    f" for it: restore the ledger, or move the folder away if its rows are others; {disk.UNRELEASED}"
                )


def paid_from(ledger: Path, run: Path) -> Iterator[Path]:
    """The other runs' folders, beside a run and beside the ledger, whose own record names this ledger."""
    wanted = ledger.resolve()
    folders = {folder.resolve(): folder for parent in _places(ledger, run) for folder in _runs(parent)}
    for folder in sorted(set(folders) - {run.resolve()}):
        way = _record(folder / "clients.json").get("ledger") or _record(folder / SEARCH).get("ledger")
        if isinstance(way, str) and (folder / way).resolve() == wanted:
            yield folder


def _places(ledger: Path, run: Path) -> Iterator[Path]:
    yield from (run.parent, ledger.parent)
    above = run.absolute().parents
    if len(above) > OUTSIDE and (above[OUTSIDE - 1] / COMPARISON).exists():
        yield above[OUTSIDE]


def _runs(place: Path) -> Iterator[Path]:
    for folder in place.glob("*/"):
        yield folder
        yield from folder.glob(CELLS) if (folder / COMPARISON).exists() else ()


def _record(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
