"""How much of the level one audit may use, so that all audits of a ledger's runs together use no more than the whole.

A ledger grows, and nobody knows how many runs it will hold. So the i-th run in it has 1/(i(i+1)) of the level, whenever it is
audited and whatever comes later: 1/2, 1/6, 1/12, ...; 1/(i(i+1)) = 1/i - 1/(i+1), so that n runs have n/(n+1) of it, and all runs
that there could ever be have the whole (a union bound: runs need not be independent). A ledger that is a run's own holds no other
run, and that run has the whole level.

Runs that are audited together have the sum of their shares; of several ledgers, the smallest of those sums. Another choice of runs
with one of them in it (`looks`) has half as much for each that was looked at before it: what a run's share s is used for is then at
most s + s/2 + s/4 + ... = 2s, so that all choices together use twice the level at most.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable

Place = tuple[Hashable, int | None]  # a ledger, and which of its runs it is; None where the ledger is the run's own


def share(places: Iterable[Place], *, earlier: int = 0) -> float:
    """The share of the level of runs at these places, after `earlier` looks at other choices with one of them.

    >>> share([("a", None)]), share([("a", 1)]), share([("a", 1), ("a", 2)]), share([("a", None), ("b", 1)], earlier=1)
    (1.0, 0.5, 0.6666666666666666, 0.25)
    """
    found: dict[Hashable, float] = defaultdict(float)
    for ledger, place in places:
        found[ledger] += 1.0 if place is None else 1 / (place * (place + 1))
    return min(1.0, *found.values()) / 2**earlier
