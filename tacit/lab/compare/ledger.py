"""What the runs of a comparison cost in total, for whoever sees all of them (docs/how-to-compare.md).
Basic composition (Dwork & Roth 2014, theorem 3.16): epsilons and deltas add up where unit, neighbouring relation and adversary
are the same. With another seed a record may lie with another client, so of every run the largest epsilon of any client counts. A
client is all its rows: per client, only runs with the rows in the same hands add up."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tacit.data.sources import settings
from tacit.engine.assemble import Parts, build
from tacit.engine.ledgers import population_id
from tacit.engine.run_files import promised
from tacit.errors import BadInput, BudgetExhausted, LedgerError
from tacit.experiment import Experiment
from tacit.lab.compare.grid import Cell
from tacit.lab.compare.results import Row, Run, widest
from tacit.privacy.guarantee import shown, shown_delta
from tacit.privacy.ledger.disk import ALL
from tacit.privacy.ledger.ledger import Before, Spent, most_releases, seal, with_spare
from tacit.privacy.ledger.reader import read_before
from tacit.table import for_json

OTHER_HANDS = (
    "Runs that share a ledger have the same rows in the same hands, and here another seed deals them out anew: set seed.data, give"
    ' --seeds 1, or use data that names its clients (data.partition = "natural") with data.test_path.'
)
NOISE_FOLLOWS = (
    "Noise that follows from epsilon takes all that a shared ledger has left, so that the next run would find nothing: set"
    " privacy.noise_multiplier (`tacit plan` says what it costs), or leave out the ledger."
)
SEVERAL = "Somebody who sees runs of several of these lines learns more than any one of them says."
LEDGER = "ledger.db"  # in a run's folder
Promise = tuple[str, str, str, bool]  # unit, relation, adversary, and whether it is for some clients alone
Cost = tuple[float, float] | None  # epsilon and delta; None where they cannot be read


def shared(cells: Iterable[Cell]) -> str | None:
    return next((experiment.privacy.ledger for cell in cells for experiment in cell.experiments), None)


def refuse_unpaid(cells: Sequence[Cell], *, begun: bool) -> None:
    """Refuses a grid that shares a ledger and that its clients cannot pay for as a whole. Nothing is written.
    A comparison that has `begun` is in the ledger already: there every run is held against it alone. Raises: BadInput where runs
    are not comparable or a ledger is not theirs; BudgetExhausted where epsilon or delta do not last."""
    path = shared(cells)
    if path is None:
        return
    gone, first = dict[str, dict[str, Spent]](), ""
    for experiment in (experiment for cell in cells for experiment in cell.experiments):
        if experiment.privacy.promises and not experiment.privacy.noise_said:
            raise BadInput(NOISE_FOLLOWS)
        parts = build(experiment)
        first = first or population_id(experiment, parts.population)
        if population_id(experiment, parts.population) != first:
            raise BadInput(OTHER_HANDS)
        if parts.plan.priced and not begun:
            _charge(parts, Path(path), gone.setdefault(parts.population.unit, {}))


def _charge(parts: Parts, path: Path, gone: dict[str, Spent]) -> None:
    """Adds what a run will seal to what is gone, client by client. Raises BudgetExhausted for the first who cannot pay."""
    experiment, population, plan = parts.experiment, parts.population, parts.plan
    privacy = experiment.privacy
    before, runs = read_before(path, unit=population.unit), Before(1, dict(gone))
    for index, name in enumerate(population.names[:1] if plan.sampler.charges_alike else population.names):
        who, client = ALL if plan.sampler.charges_alike else name, population[index]
        rounds = plan.sampler.slots(None if plan.sampler.charges_alike else index, rounds=experiment.train.rounds)
        known, mine = before.of(who), runs.of(who)
        event, asked = parts.algorithm.cost(client), plan.queries.events(index)
        if event is None:
            continue
        spent = Spent(known.epsilon + mine.epsilon, known.delta + mine.delta)
        limits = {"total_delta": privacy.delta, "rounds": rounds, "hint": with_spare(rounds)}
        most = most_releases(client.budget, event, before=spent, queries=asked, **limits)
        if most < rounds:
            left = math.inf if math.isinf(client.budget.epsilon) else max(0.0, client.budget.epsilon - spent.epsilon)
            raise BudgetExhausted(
                f"The runs of this comparison cost {name} more than the ledger {path} has left: before one of them epsilon"
                f" {left:.4g} and delta {shown_delta(max(0.0, privacy.delta - spent.delta))} are left, which pay for {most} of"
                f" {rounds} rounds. Raise privacy.epsilon or privacy.noise_multiplier, lower privacy.delta_share, or compare less."
                " Nothing was run."
            )
        price = seal(client.budget, event, most=most, queries=asked)
        alone = gone.get(who, Spent())
        gone[who] = Spent(alone.epsilon + price.epsilon, alone.delta + price.delta)


def sentences(cells: Sequence[Cell]) -> list[str]:
    """What the shared ledger holds now, for below the table, one for every unit that runs are charged in; none without a ledger."""
    path, said = shared(cells), []
    every = [experiment.privacy for cell in cells for experiment in cell.experiments]
    for unit in dict.fromkeys(one.unit_kept for one in every if one.promises) if path is not None else ():
        known = read_before(Path(str(path)), unit=unit)
        sealed = known.of(ALL)
        said.append(
            f"The ledger {path} has {known.runs} runs, and for no client more than epsilon {shown(sealed.epsilon)} at delta"
            f" {shown_delta(sealed.delta)} per {unit} sealed, these among them."
        )
    return said


@dataclass(frozen=True)
class Total:
    """The sum over the runs that promise one thing. `left_out` of them cannot be read; `outside` runs of the folder are in the
    grid no more: neither are in it. `ways` is in how many ways rows are dealt out to clients that are protected as a whole: then
    it is the largest sum over one way. With `honest` it is said of no client that is malicious in one or opted out of one."""

    unit: str
    relation: str
    adversary: str
    runs: int
    epsilon: float
    delta: float
    left_out: int = 0
    ways: int = 1
    outside: int = 0
    honest: bool = False

    @property
    def sentence(self) -> str:
        runs, seen = "This run spends" if self.runs == 1 else f"In total these {self.runs} runs spend", "all"
        if self.ways > 1:
            runs = (
                f"These {self.runs} runs deal rows out to clients in {self.ways} ways, and a client of one is none of another:"
                " nothing adds them up (seed.data keeps rows in the same hands), and the runs of one way spend in total"
            )
            seen = "those of one way, and no others,"
        whom = " and with no client that is malicious in one of them or opted out of one" if self.honest else ""
        out = (
            f" {self.left_out} that did not end and left no ledger of their own are not counted."
            if self.left_out
            else ""
        )
        return (
            f"{runs} at most epsilon {shown(self.epsilon)} at delta {shown_delta(self.delta)} per {self.unit} ({self.relation}),"
            f" against {self.adversary.rstrip(',')}, if {seen} are seen:"
            f" basic composition, for whoever is in no test rows{whom}.{out}"
        )

    @property
    def bare(self) -> str:
        """The epsilon for a table, where no sentence stands beside it: it says where nothing adds all runs up."""
        return shown(self.epsilon) + (f", of one of {self.ways} ways" if self.ways > 1 else "")

    def record(self) -> dict[str, Any]:
        return for_json(self.__dict__)


def totals(rows: Iterable[Row]) -> list[Total]:
    """One sum for every promise that the runs make. Runs that did not end count by what they sealed.
    Guarantee: for each promise, the joint release of its counted runs is (epsilon, delta)-DP for its unit, relation and
    adversary, unless runs were seen that are in no sum (`outside`); per client, of those that have the rows in the same hands."""
    rows, found = list(rows), dict[Promise, dict[str, list[Cost]]]()
    for row in rows:
        for run, experiment in zip(row.runs, row.cell.experiments, strict=True):
            promise = _guarantee(row, run)
            if promise is None:
                continue
            one = promise["unit"], promise["relation"], promise["adversary"], "whom" in promise
            way = _hands(experiment) if one[0] == "client" else ""
            found.setdefault(one, {}).setdefault(way, []).append(_cost(run, unit=one[0]))
    return [replace(_of_ways(one, list(ways.values())), outside=outside(rows)) for one, ways in found.items()]


def outside(rows: Iterable[Row]) -> int:
    """How many runs lie in the comparison's folder that are in its grid no more: whoever made this one may have seen them."""
    known = {run.folder for row in rows for run in row.runs}
    places = {run.parents[1] for run in known}
    return len({file.parent for place in places for file in place.glob("*/seed-*/experiment.toml")} - known)


def notes(rows: Sequence[Row]) -> list[str]:
    sums, others = totals(rows), outside(rows)
    lost = [run for row in rows for run in row.runs if run.summary is None and _guarantee(row, run) is None]
    unread = sum((run.folder / LEDGER).exists() for run in lost)
    bare = sum(len(row.runs) for row in rows if not row.cell.experiments[0].privacy.promises)
    said = [*(one.sentence for one in sums), *([SEVERAL] if len(sums) > 1 else [])]
    for count, words in (
        (unread, "runs that did not end, of which nothing says what they promise; their ledgers are in runs/."),
        (
            others,
            "runs in runs/ of a grid before this one. Whoever has seen them, or chose this grid by them, has learnt more than any"
            " number here says.",
        ),
        (bare, "runs without privacy. Whoever sees one of them is promised nothing by any number here."),
    ):
        said += [f"In no sum: {count} {words}"] if count else []
    return [*said, *sentences([row.cell for row in rows])]


def _guarantee(row: Row, run: Run) -> dict[str, Any] | None:
    """What a run promises: as it ended with it, or as it wrote it down when it began; else as others of its cell say it."""
    return run.guarantee or (promised(run.folder) if run.summary is None else None) or row.guarantee


def _hands(experiment: Experiment) -> str:
    """How a run's rows come to its clients; where the data names them, no seed is in it, nor which rows there are: somebody may be
    in both of two files."""
    data = experiment.data
    said = {key: value for key, value in settings(data).items() if key not in ("path", "test_path")}
    dealt = None if data.partition == "natural" else experiment.seeds.data
    return repr((sorted(said.items()), dealt))


def _of_ways(promise: Promise, ways: Sequence[Sequence[Cost]]) -> Total:
    counted = [[cost for cost in costs if cost is not None] for costs in ways]
    sums = [[math.fsum(part) for part in zip(*costs, strict=True)] for costs in counted if costs]
    epsilon, delta = (max(part) for part in zip(*sums, strict=True)) if sums else (0.0, 0.0)
    runs = sum(map(len, counted))
    left_out = sum(map(len, ways)) - runs
    return Total(*promise[:3], runs, epsilon, delta, left_out, max(1, len(sums)), honest=promise[3])


def _cost(run: Run, *, unit: str) -> Cost:
    """What a run has spent of the client that spent most; of one that did not end, what its ledger sealed for anybody."""
    if run.guarantee is not None:
        return widest([run.guarantee["epsilon"]])["max"], float(run.guarantee["delta"])
    ledger = run.folder / LEDGER
    try:
        sealed = read_before(ledger, unit=unit).of(ALL) if ledger.exists() else None
    except LedgerError:
        return None
    return None if sealed is None else (sealed.epsilon, sealed.delta)
