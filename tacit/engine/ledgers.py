"""The ledger of a run: which one pays for it, what it belongs to, and what it must not lack."""

import hashlib
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
from tacit.engine.run_folder import COMPARISON, SEARCH, Folder, ledger_of, logged_rounds, read_table
from tacit.engine.start import UNPROTECTED, digests
from tacit.errors import LedgerError
from tacit.experiment import Experiment
from tacit.privacy.ledger import disk
from tacit.privacy.ledger.disk import Condition, keyed, seeded_cohorts
from tacit.privacy.ledger.holdings import holdings
from tacit.privacy.ledger.ledger import Ledger
from tacit.training.flat import named

Asking = Callable[[str], Mapping[str, DpEvent]]  # by a client's name, its queries with their price
CELLS = "runs/*/seed-*/"  # where the runs of a comparison lie
OUTSIDE = 3  # folders from a run of a comparison to where that lies


def open_ledger(parts: Parts, folder: Folder, *, once: bool = False, queries: Asking | None = None) -> Ledger | None:
    """The ledger of a run (with `once`, of one release), or None where nothing is charged. `queries` are those that it pays
    for, unless said those of the plan. Raises LedgerError where it lacks what the folder's run released."""
    if not parts.plan.priced:
        return None
    experiment, sampler, shared = parts.experiment, parts.plan.sampler, parts.experiment.privacy.ledger
    path = ledger_of(experiment, folder.path)
    drawn = parts.releases.server_key, parts.releases.digest
    conditions: list[Callable[[bytes], Condition]] = []
    if sampler.charges_all and experiment.run.randomness == "seeded" and not parts.is_deployed:
        conditions.append(lambda key: seeded_cohorts(*(keyed(key, part) for part in drawn)))
    if not parts.is_deployed:  # sites' own ledgers know what their records were in
        conditions += [parts.start.under, *who_holds(experiment, parts.population, parts.dataset)]
    if shared:
        for other in _paid_from(path, folder.path):  # no empty ledger may begin where a run was paid from one
            disk.refuse_lost(path, other / disk.NAME)
    ledger = Ledger(
        path,
        population=population_id(experiment, parts.population, is_deployed=parts.is_deployed),
        run=folder.run,
        delta=experiment.privacy.delta,
        rounds=1 if once else sampler.slots(None, rounds=experiment.train.rounds),
        queries=queries or ((lambda client: {}) if once else asked_by(parts)),
        spare=not once,
        watermarks=(folder.path / disk.NAME, *([path.with_name(f"{path.name}.mark")] if shared else [])),
        conditions=conditions,
    )
    _, first = folder.restore() or (None, 0)
    # the first that is not known ends it, however many are claimed
    for round in chain(range(first), logged_rounds(folder.path)):
        if not ledger.knows(round):
            raise LedgerError(
                f"{folder.path} holds round {round + 1}, and its ledger {ledger.path} knows no charge for it: restore the ledger"
                " that was charged; nothing was released."
            )
    if shared:
        _refuse_older(ledger, folder.path)
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
        for digest in sorted(digests(after[name] for name in after if not torch.equal(before[name], after[name]))):
            ledger.release(f"{UNPROTECTED} {ledger.keyed(digest)}", digest)
        ledger.close()


def asked_by(parts: Parts) -> Asking:
    """The queries that each client answers beside its rounds, by its name."""
    if not any(parts.plan.queries.events(0)):
        return lambda client: {}
    places = {name: index for index, name in enumerate(parts.population.names)}
    return lambda client: parts.plan.queries.events(places[client]) if client in places else {}


def who_holds(experiment: Experiment, population: Population, dataset: Dataset) -> list[Callable[[bytes], Condition]]:
    """What a ledger must not contradict, under its key, where the data itself names the clients: who holds which row.
    It is asked of the rows that this run reads, at every run: what a program did to its own meanwhile shows."""
    natural = experiment.data.partition == "natural"
    return [partial(holdings, population, dataset, whole=experiment.data.part is not None)] if natural else []


def population_id(experiment: Experiment, population: Population, *, is_deployed: bool = False) -> str:
    """What a ledger belongs to: the same records in the same hands, run after run. Only a ledger, which keys it, may hold it.
    Where the data names the clients, rows may come and go, and who holds which is looked at row by row (ledger/holdings.py). Where
    Tacit deals rows out, other settings or rows would put a record into other hands, and charges of two clients would add up."""
    data, natural, seed = experiment.data, experiment.data.partition == "natural", {"seed.data": experiment.seeds.data}
    if data.part is not None and natural:
        shares = {"held_out": data.held_out, "own_share": data.own_share, "seed": experiment.seeds.data}
        trained = "".join(f":{key}={value}" for key, value in shares.items()) if data.held_out or data.own_share else ""
        return f"{data.name}:natural:{sorted(data.part.settings().items())}{trained}"
    tested = natural and "test_path" in data.options()
    settings = identity(data) | ({"test_path": True, "test_share": None} if tested else seed)
    made = hashlib.blake2b(b"" if natural else population.offsets.tobytes(), digest_size=8)
    made.update(repr(sorted(settings.items())).encode())
    if not natural and not is_deployed:
        made.update(population.digest().encode())
        made.update(population.held.digest().encode() if population.held else b"")
    return f"{data.name}:{'natural:' if natural else ''}{made.hexdigest()}"


# Run folders that say they were paid from one ledger: a shared ledger that does not know their releases is not theirs.


def _refuse_older(ledger: Ledger, run: Path) -> None:
    for folder in _paid_from(ledger.path, run):
        ledger.refuse_older(folder / disk.NAME)
        name = read_table(folder / "run.json").get("run")
        for round in sorted(logged_rounds(folder))[-1:]:
            if not ledger.knows(round, run=str(name)):
                raise LedgerError(
                    f"{folder} holds round {round + 1} of a run that was paid from {ledger.path}, and the ledger knows no charge"
                    f" for it: restore the ledger, or move the folder away if its rows are others; {disk.UNRELEASED}"
                )


def _paid_from(ledger: Path, run: Path) -> Iterator[Path]:
    """The other runs' folders, beside a run and beside the ledger, whose own record names this ledger."""
    places, above = [run.parent, ledger.parent], run.absolute().parents
    if len(above) > OUTSIDE and (above[OUTSIDE - 1] / COMPARISON).exists():
        places.append(above[OUTSIDE])
    beside = [folder for place in places for folder in place.glob("*/")]
    cells = [cell for folder in beside if (folder / COMPARISON).exists() for cell in folder.glob(CELLS)]
    folders = {folder.resolve(): folder for folder in (*beside, *cells)}
    for folder in sorted(set(folders) - {run.resolve()}):
        way = read_table(folder / "clients.json").get("ledger") or read_table(folder / SEARCH).get("ledger")
        if isinstance(way, str) and (folder / way).resolve() == ledger.resolve():
            yield folder
