"""A comparison whose runs share one ledger: what they cost is charged to the clients' budgets, beside all other runs on the data.

Every run seals its price when it begins, and the ledger adds prices up by basic composition, which holds for runs side by side
(tacit/privacy/ledger/filter.py). For the runs to be comparable none may get less than another because it began later: the
whole grid is held against the ledger before anything runs, and refused as a whole.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from tacit.build.clients import population_id
from tacit.build.parts import Parts, build
from tacit.compare.cells import Cell
from tacit.errors import BadInput, BudgetExhausted
from tacit.privacy.guarantee import shown, shown_delta
from tacit.privacy.ledger.before import Before, read
from tacit.privacy.ledger.filter import Spent, most_releases, seal, with_spare
from tacit.privacy.ledger.tables import ALL

OTHER_HANDS = (
    "Runs that share a ledger have the same rows in the same hands, and here another seed deals them out anew: set data.seed, give"
    ' --seeds 1, or use data that names its clients (data.partition = "natural") with data.test_path.'
)
NOISE_FOLLOWS = (
    "Noise that follows from epsilon takes all that a shared ledger has left, so that the next run would find nothing: set"
    " privacy.noise_multiplier (`tacit plan` says what it costs), or leave out the ledger."
)


def shared(cells: Iterable[Cell]) -> str | None:
    """The ledger that the runs of a comparison share; None where each has its own."""
    return next((experiment.privacy.ledger for cell in cells for experiment in cell.experiments), None)


def refuse_unpaid(cells: Sequence[Cell], *, begun: bool) -> None:
    """Refuses a grid that shares a ledger and that its clients cannot pay for as a whole. Nothing is written.

    A comparison that has `begun` is in the ledger already: there every run is held against it by itself.

    Raises: BadInput where runs would not be comparable, or a ledger not theirs; BudgetExhausted where epsilon or delta do not last.
    """
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
    before, runs = read(path, unit=population.unit), Before(1, dict(gone))
    for index, name in enumerate(population.names[:1] if plan.together else population.names):
        who, client = ALL if plan.together else name, population[index]
        rounds = plan.turns(None if plan.together else index, rounds=experiment.train.rounds)
        known, mine = before.of(who), runs.of(who)
        event, asked = parts.algorithm.cost(client), plan.asked(index)
        if event is None:
            continue
        spent = Spent(known.epsilon + mine.epsilon, known.delta + mine.delta)
        limits = {
            "total_delta": privacy.delta,
            "rounds": rounds,
            "accountant": privacy.accountant,
            "hint": with_spare(rounds),
        }
        most = most_releases(client.budget, event, before=spent, asked=asked, **limits)
        if most < rounds:
            left = math.inf if math.isinf(client.budget.epsilon) else max(0.0, client.budget.epsilon - spent.epsilon)
            raise BudgetExhausted(
                f"The runs of this comparison cost {name} more than the ledger {path} has left: before one of them epsilon"
                f" {left:.4g} and delta {shown_delta(max(0.0, privacy.delta - spent.delta))} are left, which pay for {most} of"
                f" {rounds} rounds. Raise privacy.epsilon or privacy.noise_multiplier, lower privacy.delta_share, or compare less."
                " Nothing was run."
            )
        price = seal(client.budget, event, most=most, accountant=privacy.accountant, asked=asked)
        alone = gone.get(who, Spent())
        gone[who] = Spent(alone.epsilon + price.epsilon, alone.delta + price.delta)


def sentences(cells: Sequence[Cell]) -> list[str]:
    """What the shared ledger holds now, for below the table, one for every unit that runs are charged in; none without a ledger."""
    path = shared(cells)
    if path is None:
        return []
    said = (experiment.privacy for cell in cells for experiment in cell.experiments)
    return [_held(Path(path), unit) for unit in dict.fromkeys(one.unit_kept for one in said if one.promises)]


def _held(path: Path, unit: str) -> str:
    known = read(path, unit=unit)
    sealed = known.of(ALL)
    return (
        f"The ledger {path} has {known.runs} runs, and for no client more than epsilon {shown(sealed.epsilon)} at delta"
        f" {shown_delta(sealed.delta)} per {unit} sealed, these among them."
    )
