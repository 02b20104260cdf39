"""One request, one charge, one answer: a request is bound on disk, charged on disk, answered, its answer kept on disk, then sent.

    accept -> Accepted   bind -> Bound   pay -> Paid   train -> reply   keep -> Kept

Each step takes what the step before it made: only what is bound can be paid, only `Paid` trains or counts, and only `keep` and
`find` make what may leave. A second vector for one charge is stopped here."""

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from tacit import store
from tacit.deploy.site import layout
from tacit.deploy.site.agreement import Accepted
from tacit.deploy.site.consent import proposed
from tacit.deploy.site.layout import ANSWER, QUESTION, note, round_files, round_of
from tacit.deploy.site.limits import Limits
from tacit.deploy.site.requests import MOST_ROUNDS, Roster
from tacit.engine.queries import Query, released
from tacit.errors import AnsweredOnce, BudgetExhausted, Refused
from tacit.experiment import Experiment
from tacit.experiment.extras import PAID, SIDES, WORDS, shares
from tacit.privacy.accounting import price
from tacit.privacy.accounting.events import DpEvent
from tacit.privacy.central.kind import WeighedSums, one_budget
from tacit.privacy.guarantee import agreed as agreed_sentence
from tacit.privacy.guarantee import otherwise, sentence, shown, with_others
from tacit.privacy.ledger.ledger import ROUNDING, RULE, Spent, most_releases
from tacit.privacy.plan import kind_of
from tacit.privacy.queries.mechanism import NoisyCounts
from tacit.types import Budget, Client, Others
from tacit.wire import digest_of

FURTHEST = 2 * MOST_ROUNDS  # further than any run goes
HASH_BYTES = 32  # SHA-256
TELLING = 0.99  # of what was agreed: rounds that come to less are said


@dataclass(frozen=True)
class Slot:
    """What has one request and one answer: a round of a run, its opening of a group's sum, or a query (`called`)."""

    folder: Path
    round: int
    called: str = ""

    def __str__(self) -> str:
        return self.called or f"Round {self.round + 1}"

    def file(self, kind: str) -> Path:
        """The slot's QUESTION or ANSWER.

        >>> Slot(Path("run"), 12).file(ANSWER).name
        'round-0000012.answer'
        """
        return self.folder / f"round-{self.round:07d}{kind}"


@dataclass(frozen=True, eq=False)
class Bound:
    """A request that is its slot's own, on disk."""

    accepted: Accepted
    slot: Slot
    question: bytes = field(repr=False)
    asked: bytes | None = field(default=None, repr=False)  # what is trained on, where more came with it


@dataclass(frozen=True, eq=False)
class Paid:
    """A bound request that the site's ledger was charged for, on disk: only for it is anything trained or counted."""

    bound: Bound

    def train(self) -> tuple[bytes, dict[str, Any]]:
        accepted, slot = self.bound.accepted, self.bound.slot
        ((raw, said),) = accepted.trainer(self.bound.asked or self.bound.question, slot.round, [accepted.client.index])
        return raw, said

    def count(self, query: Query, client: Client, noise: NoisyCounts | None, about: str) -> np.ndarray:
        return released(self.bound.accepted.parts, query, client, noise, about)


@dataclass(frozen=True)
class Kept:
    """An answer that is on disk, so it may be sent."""

    raw: bytes = field(repr=False)


def question_hash(question: bytes) -> bytes:
    """It stands for a request on disk: one changed parameter is another request."""
    return hashlib.sha256(question).digest()


def find(slot: Slot, question: bytes) -> Kept | None:
    """The answer that was kept for this request, or None where the slot is still to be answered.

    Raises: Refused where another request was answered, where a later round was asked or answered already (rounds only go forward),
    and for an answer that is not as it was kept.
    """
    answered, asked = round_files(slot.folder, ANSWER), round_files(slot.folder, QUESTION)
    newest = max((round_of(path) for path in (*answered[-1:], *asked[-1:])), default=-1)
    if slot.round < newest:
        raise Refused(f"The server asks for round {slot.round + 1} again, but round {newest + 1} has begun already.")
    if not answered or slot.round > round_of(answered[-1]):
        return None
    content, own = answered[-1].read_bytes(), question_hash(question)
    if content[:HASH_BYTES] != own:
        raise Refused(f"{slot} was answered already: another answer to it would be a second release.")
    answer = content[2 * HASH_BYTES :]
    if content[HASH_BYTES : 2 * HASH_BYTES] != question_hash(own + answer):
        raise Refused(f"{slot}: the site's answer is not as it was kept, so put it back from a copy.")
    return Kept(answer)


def bind(accepted: Accepted, slot: Slot, question: bytes, asked: bytes | None = None) -> Bound:
    """Makes the request the slot's own; on return its hash has reached the disk. Raises: Refused where another one is.

    Of two requests at once one is bound and the other refused. Assumes: `find` let it pass.
    """
    layout.make_folder(slot.folder)
    path = slot.file(QUESTION)
    if not store.create(path, question_hash(question)) and path.read_bytes() != question_hash(question):
        one = "one query" if slot.called else "one round"
        raise Refused(f"{slot} was asked with other parameters before: {one} is one question.")
    return Bound(accepted, slot, question, asked)


def keep(slot: Slot, question: bytes, answer: bytes) -> Kept:
    """Puts the answer on disk, then deletes what belongs to earlier rounds. Assumes: it was paid for. Raises: OSError."""
    own = question_hash(question)
    layout.write(layout.make_folder(slot.folder) / slot.file(ANSWER).name, own + question_hash(own + answer) + answer)
    for path in round_files(slot.folder):
        if round_of(path) < slot.round:
            path.unlink(missing_ok=True)
    return Kept(answer)


# Paying, on the site's own ledger.


def pay(bound: Bound) -> Paid:
    """Charges the site's ledger for one answer to one request of a round. Raises: BudgetExhausted, Refused, LedgerError.

    Guarantee: on return the charge is on disk, the budget covers it with all that other runs have sealed, and a copy of the site
    was looked for after it. A lost answer is charged again unless it will be the very same bits. Under central DP the run was paid
    for when it was agreed, and only that is checked.
    """
    accepted, round, ledger = bound.accepted, bound.slot.round, bound.accepted.ledger
    if ledger is None:
        return Paid(bound)
    if accepted.parts.plan.sampler.charges_all:
        if ledger.charged_rounds() <= round:
            raise Refused(f"Round {round + 1} was not paid for when the run was agreed.")
        ledger.refuse_copies()
        return Paid(bound)
    release = _release(accepted, accepted.client, digest_of("question", bound.question))
    if ledger.charged_before(round, release):
        text = f"Round {round + 1} was charged before and its answer lost; it is charged again, and the first is spent."
        note(accepted.site, verdict="lost", text=text, run=accepted.agreement.run, round=round)
    ledger.open_round(round, release)
    event, hint = accepted.parts.algorithm.cost(accepted.client), accepted.agreement.terms.rounds
    if event is None or not ledger.admit([accepted.client], lambda client: event, hint=hint):
        raise BudgetExhausted(f"{budget_named(accepted.limits)} does not pay for round {round + 1}.")
    return Paid(bound)


def pay_query(bound: Bound, query: str, client: Client, *about: str) -> Paid:
    """Charges the site's ledger for its one answer to a query, of the rows of `client`, which is `about` something.

    Guarantee: on return the charge is on disk, in the price that was sealed with the run's rounds. The very same release is not
    charged again, and no other one ever is. Raises: BudgetExhausted, Refused, LedgerError.
    """
    accepted, ledger = bound.accepted, bound.accepted.ledger
    if ledger is None:
        return Paid(bound)
    event, hint = accepted.parts.algorithm.cost(accepted.client), accepted.agreement.terms.rounds
    try:
        release = _release(accepted, client, *about)
        paid = event and ledger.answer(query, release, [accepted.client], lambda client: event, hint=hint)
    except AnsweredOnce:
        raise Refused(f"The query {query} was paid for before and its answer lost: another is a new release.") from None
    if not paid:
        raise BudgetExhausted(f"{budget_named(accepted.limits)} does not pay for the query {query}.")
    return Paid(bound)


def prepay(accepted: Accepted, releases: int) -> None:
    """Charges every model of a run at once, as central DP needs it: a site pays for each, whether it is asked or not.

    Guarantee: on return the ledger holds a charge for each of the agreed rounds, or for `releases` of them where that is more,
    since a server may have to repeat rounds with new noise; each is charged once. Raises: BudgetExhausted, LedgerError.
    """
    ledger, event = accepted.ledger, accepted.parts.algorithm.cost(accepted.client)
    if ledger is None or event is None:
        return
    paid = ledger.charged_rounds()
    missing = max(releases, accepted.agreement.terms.rounds) - paid
    if missing > 0 and ledger.rounds_left(accepted.client, event, hint=missing) < missing:
        raise BudgetExhausted(f"{budget_named(accepted.limits)} does not pay for {missing} more rounds.")
    for round in range(paid, paid + missing):
        ledger.open_round(round, "agreed")  # one name for all: they are charged when the run is agreed
        if not ledger.admit([accepted.client], lambda client: event):
            raise BudgetExhausted(f"{budget_named(accepted.limits)} does not pay for round {round + 1}.")


def _release(accepted: Accepted, client: Client, *about: str) -> str:
    """The name of a release: the same name is the same bits, paid once; what cannot be repeated has another name at every call."""
    fresh = uuid.uuid4().hex if accepted.parts.nonce else ""
    return digest_of("site", accepted.parts.releases.client(client), *about, fresh)


def budget_named(limits: Limits) -> str:
    """A site's budget, for the words of a refusal."""
    return f"The site's budget (epsilon {limits.epsilon:g}, delta {limits.delta:g} per {limits.unit})"


# Whether a budget pays, before anything is charged.


def refuse_spent(accepted: Accepted) -> None:
    """Refuses a new run where earlier ones have left nothing for one round of it, or a schedule that takes more than is left.

    A first run without queries passes: its first round says so. Raises: BudgetExhausted, Refused.
    """
    ledger, event = accepted.ledger, accepted.parts.algorithm.cost(accepted.client)
    queries, others = accepted.agreement.terms.queries, ledger is not None and ledger.other_runs(accepted.limits.unit)
    hint = accepted.agreement.terms.rounds
    if ledger and event and (queries or others) and ledger.rounds_left(accepted.client, event, hint=hint) < 1:
        what = " and ".join(["one round of this run", *(f"the query {query} beside it" for query in queries)])
        why = "is used up: it does not pay for" if others else "does not pay for"
        raise BudgetExhausted(f"{budget_named(accepted.limits)} {why} {what}.")
    if accepted.parts.plan.sampler.scheduled(0) is not None and payable(accepted) < asked_for(accepted):
        text = f"pays for {payable(accepted)} of the {asked_for(accepted)} turns that the schedule gives it."
        raise Refused(f"{budget_named(accepted.limits)} {text}")


def refuse_out_of_turn(accepted: Accepted, round: int) -> None:
    """Refuses a round that is another group's, where sites take turns in public: the noise covers a site once in a cycle."""
    plan, index = accepted.parts.plan, accepted.client.index

    def own_turn(round: int) -> bool:
        turn = plan.sampler.scheduled(round)
        return turn is None or index in turn

    if not own_turn(round):
        own = next(early for early in range(accepted.agreement.terms.rounds) if own_turn(early))
        after = next(late for late in range(own + 1, FURTHEST) if own_turn(late))
        raise Refused(
            f"Round {round + 1} is not this site's turn: it takes part in rounds {own + 1}, {after + 1} and so on, and not"
            f" again within {after - own} rounds."
        )


def refuse_unpaid(experiment: Experiment, epsilons: Mapping[str, float], *, delta: float, site: str) -> None:
    """Refuses an experiment of central DP whose rounds, or turns, a site's budget does not pay for, before there is a run.

    `epsilons` are all sites' budgets by name, in the roster's order, and `delta` is that of this site's file. Raises:
    BudgetExhausted; BadInput where budgets differ, which one noise cannot serve.
    """
    kind, privacy = kind_of(experiment), experiment.privacy
    if not issubclass(kind.plans, WeighedSums):
        return
    known = [min(epsilon, proposed(experiment, name)) for name, epsilon in epsilons.items()]
    known = [min(known)] * len(known) if privacy.level == "minimum" else known
    roster = Roster(tuple(epsilons), (1,) * len(known), tuple(known), privacy.run_delta, privacy.unit_kept)
    population = roster.population((1,))
    if not privacy.own_rates:
        one_budget(population)
    if privacy.own_rates or not privacy.noise_said:
        return  # rates or noise are made to last
    plan, index = cast(WeighedSums, kind.plan(experiment, population, size=1)), list(epsilons).index(site)
    turns = plan.sampler.slots(index, rounds=experiment.train.rounds)
    budget = Budget(epsilons[site], privacy.run_delta, privacy.unit_kept)
    left = most_releases(
        budget,
        plan.mechanism.event(),
        before=Spent(),
        total_delta=delta,
        rounds=turns,
        hint=turns,
        most_epsilon=known[index],
    )
    if left < turns:
        takes_turns = plan.sampler.scheduled(0) is not None
        what = "turns that the schedule gives it" if takes_turns else "rounds, each of which every site pays for"
        raise BudgetExhausted(
            f"The site's budget (epsilon {budget.epsilon:g}, delta {delta:g} per {privacy.unit_kept}) pays for {left} of {turns}"
            f" {what}: raise privacy.noise_multiplier, or leave it out and it follows from epsilon; or lower train.rounds."
        )


def payable(accepted: Accepted) -> int:
    """How many of the agreed rounds what is left of the budget pays for; all of them where they are paid for already, or free."""
    ledger, event, rounds = accepted.ledger, accepted.parts.algorithm.cost(accepted.client), asked_for(accepted)
    if ledger is None or event is None or accepted.parts.plan.sampler.charges_all:
        return rounds
    return min(rounds, ledger.rounds_left(accepted.client, event, hint=rounds))


def asked_for(accepted: Accepted) -> int:
    return accepted.parts.plan.sampler.slots(accepted.client.index, rounds=accepted.agreement.terms.rounds)


def spent(accepted: Accepted) -> float | None:
    """The epsilon of what other runs have sealed and this one has charged: a function of the charges alone, not of the rows."""
    return None if accepted.ledger is None else accepted.ledger.spent(accepted.client)


# What the site is promised, in words.


def promise_of(accepted: Accepted) -> str:
    """What the site is promised in a run, for its people: for whom, against whom, up to which epsilon, on which conditions.

    The epsilon it names is at most the one that was agreed, and at most what other runs have left of the budget, or what this one
    had spent before that was lowered; what is not included is named.
    """
    parts, ledger, client, limits = accepted.parts, accepted.ledger, accepted.client, accepted.limits
    once = ""
    for query, share in shares(parts.experiment).items():
        most = shown(share * accepted.agreement.terms.epsilon)
        costs = f"for at most epsilon {most} ({100 * share:g} % of it), {PAID[SIDES[query]]}"
        how = costs if parts.plan.priced else "without noise"
        once += f" Beside its rounds the site answers once, for ever, with counts for {WORDS[query]}, {how}."
    if not parts.plan.priced or ledger is None:
        return sentence(None) + once
    before = ledger.before(client.id, limits.unit).epsilon  # counts as spent, used or not
    gone = ledger.alone(client)  # what was lowered since gives nothing back
    epsilon = min(accepted.agreement.terms.epsilon, max(gone, limits.epsilon - before))
    event, asked, rounds = (
        parts.algorithm.cost(client),
        parts.plan.queries.events(client.index),
        accepted.agreement.terms.rounds,
    )
    planned = [] if event is None else [(event, rounds), *((each, 1) for each in asked.values())]
    text = agreed_sentence(parts.promise, client=client.id, epsilon=epsilon)
    if (comes := price.epsilon(price.compose(planned), delta=accepted.agreement.roster["delta"])) < TELLING * epsilon:
        text += f" Its {rounds} rounds as planned come to epsilon {shown(comes)} of that."
    text += once + _alone(accepted, planned)
    if before:
        text += f" Other runs and releases of this site have sealed {shown(before)}, which this run's number does not include;"
        limit = f"epsilon {limits.epsilon:g} of its budget.toml"
        if before + epsilon <= limits.epsilon * (1 + ROUNDING):
            text += f" all its runs per {limits.unit} together stay within {limit}."
        else:
            text += f" together they come to {shown(before + epsilon)}, more than the {limit} as it is now."
    apart = ledger.other_runs(limits.unit, apart=True)
    return f"{text} {with_others(Others(0, apart, 0.0, 0.0, RULE), limits.unit)}" if apart else text


def _alone(accepted: Accepted, planned: list[tuple[DpEvent, int]]) -> str:
    # what the agreed rounds and queries come to for whoever sees the site's own reports, where sums hide them from others
    parts, rounds, text = accepted.parts, accepted.agreement.terms.rounds, ""
    if not planned:
        return text
    for other in parts.plan.single_reports(parts.promise, parts.experiment):
        seen = price.compose([(price.alone(event), times) for event, times in planned])
        epsilon = price.epsilon(seen, delta=other.delta)
        sampler = (
            f"{other.sampler}, one in each of the {rounds} rounds that were agreed, and more with every further one"
        )
        text += f" {otherwise(replace(other, epsilon_max=epsilon, sampler=sampler))}"
    return text
