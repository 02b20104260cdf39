"""Prices that are sealed before a run's first release, and the rule by which runs add up. Within a run a client releases one
and the same event, at most `most` times, and each of the queries it is asked once, all fixed when it is first charged: PLD
(or RDP) at the run's own delta is a theorem there. Across runs the researcher chooses the next run after seeing the ones
before, and composing privacy losses jointly would be no filter (arXiv:2602.06756). What holds for parameters chosen
adaptively is basic composition: sum of epsilon_i <= epsilon and sum of delta_i <= delta is a valid privacy filter, and the
sum of the epsilon_i a valid odometer (Rogers, Roth, Ullman, Vadhan 2016, arXiv:1605.08294, section 3, basic composition);
concurrent runs change nothing (Haney et al. 2023, arXiv:2309.05901v2)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from dp_accounting import DpEvent

from tacit.errors import LedgerError
from tacit.privacy.accounting import price
from tacit.privacy.accounting.price import affordable
from tacit.types import Budget

RULE = "basic composition of what the others sealed when they began and this one has used, arXiv:1605.08294"
SPARE_SHARE, SPARE = 10, 2  # repeated rounds are paid again: a tenth of the planned ones and two more are sealed too
text_of = lru_cache(maxsize=100_000)(price.to_text)
ROUNDING = 1e-9  # of a delta: shares like 0.1 do not add up to 1 in binary

Asked = Mapping[str, DpEvent]  # the queries of a run, by name: each is released once
NOTHING_ASKED: Asked = {}


@dataclass(frozen=True)
class Spent:
    """What other runs have sealed: it counts whether they use it or not."""

    epsilon: float = 0.0
    delta: float = 0.0


@dataclass(frozen=True)
class Seal:
    """One client in one run: at most `most` releases of one event and one of each query, for `epsilon` at `delta`. Guarantee:
    `epsilon` is the price of all these releases at `delta`, computed before the first of them."""

    unit: str
    event: str
    delta: float
    most: int
    epsilon: float
    asked: tuple[tuple[str, str], ...] = ()  # (query, event), in the order of the queries' names

    def __str__(self) -> str:
        queries = "".join(f" and the query {name} with {event}" for name, event in self.asked)
        return f"{self.event}{queries} per {self.unit} at delta {self.delta:g}"

    def refuse_other(self, budget: Budget, event: DpEvent, *, who: str, path: object, asked: Asked) -> None:
        """Refuses a charge with another event, unit or delta, or other queries: the price is that of one event, fixed
        beforehand. Raises: LedgerError, which says what was sealed and what is asked."""
        now = Seal(budget.unit, text_of(event), budget.delta, self.most, self.epsilon, _in_words(asked))
        if now != self:
            raise LedgerError(
                f"The ledger {path} has sealed this run for {who} with {self}, and it now asks for {now}: put its"
                " budgets and settings back as they were, or start another run; nothing was released."
            )

    def stands(self, budget: Budget, *, before: Spent, most_epsilon: float = math.inf) -> bool:
        """Whether all that was sealed is still within the budget. It is not where that, or `most_epsilon`, was lowered since.

        >>> sealed = Seal("client", "", 1e-6, most=9, epsilon=2.0)
        >>> [sealed.stands(Budget(epsilon, 1e-6, "client"), before=Spent(0.5)) for epsilon in (3.0, 2.0)]
        [True, False]
        """
        if self.epsilon > most_epsilon * (1 + ROUNDING):
            return False
        return budget.epsilon == math.inf or before.epsilon + self.epsilon <= budget.epsilon * (1 + ROUNDING)


def with_spare(rounds: int) -> int:
    """The releases that a run of so many planned rounds seals at most.

    >>> with_spare(30)
    35
    """
    return rounds + rounds // SPARE_SHARE + SPARE


def most_releases(
    budget: Budget,
    event: DpEvent,
    *,
    before: Spent,
    total_delta: float,
    rounds: int,
    accountant: str,
    hint: int,
    most_epsilon: float = math.inf,
    asked: Asked = NOTHING_ASKED,
    spare: bool = True,
) -> int:
    """How many releases of the event may be sealed beside the queries, after what other runs have sealed; 0 where none can.
    `budget.delta` is the run's own share of `total_delta`; `most_epsilon` what this run was promised to cost at most.
    Guarantee: the epsilon of so many releases and of every query, added to `before.epsilon`, is at most `budget.epsilon`,
    and the run's delta, added to `before.delta`, at most `total_delta` (to ROUNDING); at most `with_spare(rounds)`, also
    of an infinite budget.

    >>> from dp_accounting import GaussianDpEvent
    >>> run = {"total_delta": 2e-6, "rounds": 30, "accountant": "pld", "hint": 1}
    >>> [most_releases(Budget(3.0, 1e-6), GaussianDpEvent(8.0), before=Spent(e, 1e-6), **run) for e in (0.0, 1.0, 3.0)]
    [26, 12, 0]
    """
    if before.delta + budget.delta > total_delta * (1 + ROUNDING):
        return 0
    left = min(most_epsilon, math.inf if budget.epsilon == math.inf else budget.epsilon - before.epsilon)
    if left <= 0:
        return 0
    most = with_spare(rounds) if spare else rounds
    return affordable(
        event,
        epsilon=left,
        delta=budget.delta,
        spent=price.compose((query, 1) for query in asked.values()),
        accountant=accountant,
        most=most,
        hint=min(hint, most),
    )


def seal(budget: Budget, event: DpEvent, *, most: int, accountant: str, asked: Asked = NOTHING_ASKED) -> Seal:
    """The price of `most` releases (as `most_releases` allowed) and of the queries, before the first of them; nothing is
    written. Raises: BadInput for an event without a price."""
    composition = price.compose([(event, most), *((query, 1) for query in asked.values())])
    epsilon = price.epsilon(composition, delta=budget.delta, accountant=accountant)
    return Seal(budget.unit, text_of(event), budget.delta, most, epsilon, _in_words(asked))


def _in_words(asked: Asked) -> tuple[tuple[str, str], ...]:
    return tuple((name, text_of(asked[name])) for name in sorted(asked))
