"""Who takes part in a round, and their payment: `draw` names them, `charged` has them pay, on disk, before it returns.

Nothing that a client trained is read before it was charged. Where every client pays for itself, the cohort is drawn among those
who can, and pays. Where the secret draw is part of the price (central DP), everybody pays, and nothing but chance decides: nobody
is passed over or drawn again, and a round without clients is a round. Where clients take turns in public, those whose turn it is
pay, and nobody else.
"""

from collections.abc import Collection

from tacit.build.parts import Parts
from tacit.engine.meter import Meter
from tacit.privacy.ledger.ledger import Ledger
from tacit.random import Derive
from tacit.types import Client


def gather(
    parts: Parts, ledger: Ledger | None, meter: Meter, round: int, derive: Derive, *, away: Collection[int] = ()
) -> list[Client] | None:
    """The clients of a round, paid for; None where too few (or, if all must pay together, not all) can pay."""
    return charged(parts, ledger, meter, draw(parts, meter, round, derive, away=away))


def draw(parts: Parts, meter: Meter, round: int, derive: Derive, *, away: Collection[int] = ()) -> list[Client] | None:
    """The clients that a round is to have. **Nobody has paid**; None where too few can.

    `derive` is the server's randomness in the state that the round starts from. Where each pays for itself, who is `away` is asked
    nothing and pays nothing, unless too few are left without: then it is asked, and waited for.
    """
    if parts.plan.together:
        return [parts.population[index] for index in parts.plan.drawn(derive(round, "cohort"))]
    cohort = sample(parts, meter, round, derive)
    here = [client for client in cohort if client.index not in away]
    cohort = here if len(here) >= _fewest(parts) else cohort
    return cohort if len(cohort) >= _fewest(parts) else None


def charged(parts: Parts, ledger: Ledger | None, meter: Meter, cohort: list[Client] | None) -> list[Client] | None:
    """Those of a cohort that have paid, on disk; None where too few (or, if all must pay together, not all) can pay."""
    if cohort is None:
        return None
    if parts.plan.together:
        pays = ledger is not None and ledger.admit_everybody(meter.budget, meter.price_of_all, hint=meter.hint)
        return cohort if pays else None
    paid = cohort if ledger is None else ledger.admit(cohort, meter.cost, hint=meter.hint)
    return paid if len(paid) >= _fewest(parts) else None


def _fewest(parts: Parts) -> int:
    """With fewer clients nothing would be released."""
    return max(parts.experiment.train.min_clients, parts.plan.fewest)


def sample(parts: Parts, meter: Meter, round: int, derive: Derive) -> list[Client]:
    """The clients of a round that can still pay: whose turn it is, or a uniform choice at a cost that does not depend on others."""
    turn = parts.plan.scheduled(round)
    if turn is not None:
        return meter.affording(turn, len(turn))
    everybody, size = len(parts.population), parts.cohort
    rng = derive(round, "cohort").generator()
    if size >= everybody:
        return meter.affording(range(everybody), everybody)
    first = rng.choice(everybody, size=min(everybody, 2 * size + 16), replace=False)
    cohort = meter.affording(first.tolist(), size)
    if len(cohort) < size:  # many are out of budget: look at all
        cohort = meter.affording(rng.permutation(everybody).tolist(), size)
    return sorted(cohort, key=lambda client: client.index)
