"""Who takes part in a round. Whoever it is has paid, on disk, before this returns.

Where every client pays for itself, the cohort is drawn among those who can, and pays. Where the secret draw is part of
the price (central DP), everybody pays first, and then nothing but chance decides: nobody is passed over or drawn again, and
a round without clients is a round. Where clients take turns in public, those whose turn it is pay, and nobody else.
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
    """The clients of a round, paid for; None where too few (or, if all must pay together, not all) can pay.

    `derive` is the server's randomness in the state that the round starts from. Where each pays for itself, who is `away` is asked
    nothing and pays nothing, unless too few are left without: then it is asked, and waited for.
    """
    if parts.plan.together:
        if ledger is None or not ledger.admit_everybody(meter.budget, meter.price_of_all, hint=meter.hint):
            return None
        return [parts.population[index] for index in parts.plan.drawn(derive(round, "cohort"))]
    cohort = sample(parts, meter, round, derive)
    fewest = max(parts.experiment.train.min_clients, parts.plan.fewest)  # with less, nothing would be released
    here = [client for client in cohort if client.index not in away]
    cohort = here if len(here) >= fewest else cohort
    if len(cohort) >= fewest and ledger is not None:
        cohort = ledger.admit(cohort, meter.cost, hint=meter.hint)
    return cohort if len(cohort) >= fewest else None


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
