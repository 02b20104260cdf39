"""Paying: the site's own ledger, on the site's own disk, before anything leaves."""

from pathlib import Path

from tacit.errors import BudgetExhausted, Refused
from tacit.federation.site.join import Joined
from tacit.federation.site.limits import Limits
from tacit.federation.site.log import note
from tacit.privacy.central.plan import CentralPlan


def pay(folder: Path, joined: Joined, round: int, question: bytes) -> None:
    """Charges the site's ledger for one answer to one question. Raises BudgetExhausted, or Refused."""
    if joined.ledger is None:
        return
    if isinstance(joined.parts.plan, CentralPlan):
        if joined.ledger.charged_rounds() <= round:
            raise Refused(f"Round {round} was not paid for when the run was agreed.")
        return
    attempt = joined.attempt(question)
    if joined.ledger.charged_before(round, attempt):
        text = f"Round {round} was charged before and its answer lost; it is charged again, and the first is spent."
        note(folder, verdict="lost", text=text, run=joined.agreement.run, round=round)
    joined.ledger.open_round(round, attempt)
    event = joined.parts.algorithm.cost(joined.client)
    hint = joined.agreement.terms.rounds
    if event is None or not joined.ledger.admit([joined.client], lambda client: event, hint=hint):
        raise BudgetExhausted(f"{_budget(joined.limits)} does not pay for round {round}.")


def refuse_spent(joined: Joined) -> None:
    """Refuses a new run where earlier ones have left nothing for a single round of it. Raises BudgetExhausted."""
    ledger, event = joined.ledger, joined.parts.algorithm.cost(joined.client)
    if ledger is None or event is None or not ledger.other_runs(joined.limits.unit):
        return
    if ledger.rounds_left(joined.client, event, hint=joined.agreement.terms.rounds) < 1:
        raise BudgetExhausted(f"{_budget(joined.limits)} is used up: it does not pay for one round of this run.")


def prepay(joined: Joined, releases: int) -> None:
    """Central DP: a site pays for every model of the run, asked or not, so it pays for all of them when it agrees.

    `releases` is the agreed rounds, or more where the server had to repeat some with new noise. Raises BudgetExhausted.
    """
    ledger, event = joined.ledger, joined.parts.algorithm.cost(joined.client)
    if ledger is None or event is None:
        return
    paid = ledger.charged_rounds()
    missing = max(releases, joined.agreement.terms.rounds) - paid
    if missing > 0 and ledger.rounds_left(joined.client, event, hint=missing) < missing:
        raise BudgetExhausted(f"{_budget(joined.limits)} does not pay for {missing} more rounds.")
    for round in range(paid, paid + missing):
        ledger.open_round(round, joined.attempt(b""))
        ledger.admit([joined.client], lambda client: event)


def sealed_before(joined: Joined) -> float:
    """The epsilon that other runs of the site have sealed."""
    return 0.0 if joined.ledger is None else joined.ledger.before(joined.client.id, joined.limits.unit).epsilon


def payable(joined: Joined) -> int:
    """How many of the agreed rounds the site can pay for."""
    ledger, event, rounds = joined.ledger, joined.parts.algorithm.cost(joined.client), joined.agreement.terms.rounds
    if ledger is None or event is None or isinstance(joined.parts.plan, CentralPlan):
        return rounds
    return min(rounds, ledger.rounds_left(joined.client, event, hint=rounds))


def spent(joined: Joined) -> float | None:
    """The epsilon that the site's ledger holds, over all its runs."""
    return None if joined.ledger is None else joined.ledger.spent(joined.client)


def _budget(limits: Limits) -> str:
    return f"The site's budget (epsilon {limits.epsilon:g}, delta {limits.delta:g} per {limits.unit})"
