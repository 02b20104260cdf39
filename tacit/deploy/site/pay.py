"""Paying: the site's own ledger, on the site's own disk, before anything leaves; and what is promised for it, in words."""

from pathlib import Path

from tacit.deploy.site.join import Joined
from tacit.deploy.site.limits import Limits
from tacit.deploy.site.log import note
from tacit.errors import AnsweredOnce, BudgetExhausted, Refused
from tacit.experiment.extras import PAID, SIDES, WORDS, shares
from tacit.privacy.guarantee import agreed, sentence, shown, with_others
from tacit.privacy.ledger.filter import ROUNDING, RULE
from tacit.types import Others

MOST_ROUNDS = 1 << 21  # further than any run goes (`asked.MOST_ROUNDS`)


def pay(folder: Path, joined: Joined, round: int, question: bytes) -> None:
    """Charges the site's ledger for one answer to one question.

    Guarantee: on return the charge is on disk, and the budget covers it together with all that other runs have sealed. It is
    made under the name of the release (`Joined.attempt`): an answer that was lost is charged again unless it will be the very
    same bits, and the log says so. Where everybody pays together (central DP), the run was paid for when it was agreed, and
    only that is checked; where sites take turns, each is paid for when it comes. What promises nothing costs nothing.

    Assumes: the question is the round's own (`outbox.bind`).

    Raises: BudgetExhausted where the budget does not pay for it; Refused for a round that was not paid for when the run was
    agreed; LedgerError where the charge could not be written, or a copy of the site was charged. Then nothing may be trained.
    """
    if joined.ledger is None:
        return
    if joined.parts.plan.sampler.charges_all:
        if joined.ledger.charged_rounds() <= round:
            raise Refused(f"Round {round + 1} was not paid for when the run was agreed.")
        joined.ledger.refuse_copies()
        return
    attempt = joined.attempt(question)
    if joined.ledger.charged_before(round, attempt):
        text = f"Round {round + 1} was charged before and its answer lost; it is charged again, and the first is spent."
        note(folder, verdict="lost", text=text, run=joined.agreement.run, round=round)
    joined.ledger.open_round(round, attempt)
    event = joined.parts.algorithm.cost(joined.client)
    hint = joined.agreement.terms.rounds
    if event is None or not joined.ledger.admit([joined.client], lambda client: event, hint=hint):
        raise BudgetExhausted(f"{_budget(joined.limits)} does not pay for round {round + 1}.")


def pay_query(joined: Joined, query: str, attempt: str) -> None:
    """Charges the site's ledger for its one answer to a query.

    Guarantee: on return the charge is on disk, in the price that was sealed with the run's rounds. `attempt` names the release:
    the very same one is not charged again, and no other one ever is.

    Assumes: the question is the query's own (`outbox.bind`).

    Raises: BudgetExhausted where the budget does not pay; Refused where another attempt was paid for, whose answer is lost;
    LedgerError where the charge could not be written. Then no noise may be drawn.
    """
    if joined.ledger is None:
        return
    event, hint = joined.parts.algorithm.cost(joined.client), joined.agreement.terms.rounds
    try:
        paid = event and joined.ledger.answer(query, attempt, [joined.client], lambda client: event, hint=hint)
    except AnsweredOnce:
        raise Refused(
            f"The query {query} was paid for before and its answer lost: a second one would be a second release."
        ) from None
    if not paid:
        raise BudgetExhausted(f"{_budget(joined.limits)} does not pay for the query {query}.")


def refuse_spent(joined: Joined) -> None:
    """Refuses a new run where earlier ones have left nothing for a single round of it; nothing is charged.

    Raises: BudgetExhausted. A site's first run passes, unless queries are asked in it: where its budget is too small from the
    start, its first round says so.
    """
    ledger, event = joined.ledger, joined.parts.algorithm.cost(joined.client)
    queries, others = joined.agreement.terms.queries, ledger is not None and ledger.other_runs(joined.limits.unit)
    if ledger is None or event is None or not (queries or others):
        return
    if ledger.rounds_left(joined.client, event, hint=joined.agreement.terms.rounds) < 1:
        what = " and ".join(["one round of this run", *(f"the query {query} beside it" for query in queries)])
        why = "is used up: it does not pay for" if others else "does not pay for"
        raise BudgetExhausted(f"{_budget(joined.limits)} {why} {what}.")


def refuse_out_of_turn(joined: Joined, round: int) -> None:
    """Refuses a round that is another group's, where sites take turns in public: the noise covers a site once in a cycle.

    Guarantee: two rounds that a site answers in one run are at least a cycle apart, whatever the server asks.

    Raises: Refused.
    """
    plan, index = joined.parts.plan, joined.client.index
    turn = plan.sampler.scheduled(round)
    if turn is not None and index not in turn:
        own = next(
            early for early in range(joined.agreement.terms.rounds) if index in (plan.sampler.scheduled(early) or ())
        )
        after = next(late for late in range(own + 1, MOST_ROUNDS) if index in (plan.sampler.scheduled(late) or ()))
        raise Refused(
            f"Round {round + 1} is not this site's turn: it takes part in rounds {own + 1}, {after + 1} and so on, and not"
            f" again within {after - own} rounds."
        )


def refuse_unpaid_turns(joined: Joined) -> None:
    """Refuses a schedule that has the site take part more often than its budget pays for; nothing is charged. Raises Refused."""
    plan, rounds = joined.parts.plan, joined.agreement.terms.rounds
    if plan.sampler.scheduled(0) is None:
        return
    turns, left = plan.sampler.turns(joined.client.index, rounds=rounds), payable(joined)
    if left < turns:
        raise Refused(f"{_budget(joined.limits)} pays for {left} of the {turns} turns that the schedule gives it.")


def prepay(joined: Joined, releases: int) -> None:
    """Charges every model of a run at once, as central DP needs it: a site pays for each, whether it is asked or not.

    Guarantee: on return the ledger holds a charge for each of the agreed rounds, or for `releases` of them where that is more,
    since a server may have to repeat rounds with new noise; it never holds fewer, whatever number the server names. What was
    cut short by a crash is made up, and what is paid is not paid again.

    Raises: BudgetExhausted, as a rule before anything is charged, where the budget does not pay for all that are missing;
    LedgerError where a charge could not be written.
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
        if not ledger.admit([joined.client], lambda client: event):
            raise BudgetExhausted(f"{_budget(joined.limits)} does not pay for round {round + 1}.")


def sealed_before(joined: Joined) -> float:
    """The epsilon that other runs of the site have sealed in the same unit: it counts as spent, used or not."""
    return 0.0 if joined.ledger is None else joined.ledger.before(joined.client.id, joined.limits.unit).epsilon


def payable(joined: Joined) -> int:
    """How many of the agreed rounds what is left of the budget pays for; all of them where they are paid for already, or free."""
    ledger, event, rounds = joined.ledger, joined.parts.algorithm.cost(joined.client), asked_for(joined)
    if ledger is None or event is None or joined.parts.plan.sampler.charges_all:
        return rounds
    return min(rounds, ledger.rounds_left(joined.client, event, hint=rounds))


def asked_for(joined: Joined) -> int:
    """In how many of the agreed rounds the site may be asked."""
    return joined.parts.plan.sampler.turns(joined.client.index, rounds=joined.agreement.terms.rounds)


def spent(joined: Joined) -> float | None:
    """The epsilon of what other runs have sealed and this one has charged; None where nothing is charged.

    It is a function of the charges alone, not of the rows, so the server may be told.
    """
    return None if joined.ledger is None else joined.ledger.spent(joined.client)


def promise_of(joined: Joined) -> str:
    """What the site is promised in a run, for its people to read: for whom, against whom, up to which epsilon, on which conditions.

    Guarantee: the epsilon it names is at most the one that was agreed, and at most what other runs have left of the budget, or what
    this one has spent of it before that was lowered; what those have sealed is named beside it, and runs of another unit are named
    as not included.
    """
    parts = joined.parts
    if not parts.plan.priced:
        return sentence(None) + _once(joined)
    guarantee = parts.promise
    before, limit = sealed_before(joined), joined.limits.epsilon
    gone = (
        0.0 if joined.ledger is None else joined.ledger.alone(joined.client)
    )  # what was lowered since gives nothing back
    epsilon = min(joined.agreement.terms.epsilon, max(gone, limit - before))
    text = agreed(guarantee, client=joined.client.id, epsilon=epsilon) + _once(joined)
    return text + (_beside(joined, before, before + epsilon) if before else "") + _apart(joined)


def _beside(joined: Joined, before: float, together: float) -> str:
    """What other runs of the site have sealed, and what that comes to with this one."""
    limit, unit = joined.limits.epsilon, joined.limits.unit
    text = f" Other runs of this site have sealed {shown(before)}, which this run's number does not include;"
    if together <= limit * (1 + ROUNDING):
        return f"{text} all its runs per {unit} together stay within epsilon {limit:g} of its budget.toml."
    return f"{text} together they come to {shown(together)}, more than the epsilon {limit:g} of its budget.toml as it is now."


def _apart(joined: Joined) -> str:
    """That runs per another unit are not in these numbers."""
    runs = 0 if joined.ledger is None else joined.ledger.other_runs(joined.limits.unit, apart=True)
    return f" {with_others(Others(0, runs, 0.0, 0.0, RULE), joined.limits.unit)}" if runs else ""


def _once(joined: Joined) -> str:
    """What the site answers beside its rounds, and what that costs by itself."""
    text = ""
    for query, share in shares(joined.parts.experiment).items():
        most = shown(share * joined.agreement.terms.epsilon)
        costs = f"for at most epsilon {most} ({100 * share:g} % of it), {PAID[SIDES[query]]}"
        how = costs if joined.parts.plan.priced else "without noise"
        text += f" Beside its rounds the site answers once, for ever, with counts for {WORDS[query]}, {how}."
    return text


def _budget(limits: Limits) -> str:
    return f"The site's budget (epsilon {limits.epsilon:g}, delta {limits.delta:g} per {limits.unit})"
