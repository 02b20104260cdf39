"""Paying: the site's own ledger, on the site's own disk, before anything leaves; and what is promised for it, in words.

A ledger that was lost, replaced or restored from an old copy would sell the same budget twice. Four things lie beside it that it
must not contradict: its mark (`tacit.privacy.ledger.disk`), its population, the site's name, and every answer that is kept."""

import os
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tacit.deploy.site import agreement, layout
from tacit.deploy.site.agreement import Agreement
from tacit.deploy.site.deployable import OWN_FILES, proposed
from tacit.deploy.site.layout import note
from tacit.deploy.site.limits import Limits
from tacit.deploy.site.replies import Bound
from tacit.deploy.site.requests import MOST_ROUNDS, Roster
from tacit.engine.assemble import Parts
from tacit.engine.ledgers import asked_by, population_id
from tacit.errors import AnsweredOnce, BudgetExhausted, LedgerError, Refused
from tacit.experiment import Experiment
from tacit.experiment.extras import PAID, SIDES, WORDS, shares
from tacit.privacy.central.kind import WeighedSums, one_budget
from tacit.privacy.guarantee import agreed as agreed_sentence
from tacit.privacy.guarantee import sentence, shown, with_others
from tacit.privacy.ledger import disk
from tacit.privacy.ledger.ledger import ROUNDING, RULE, Ledger, Spent, most_releases
from tacit.privacy.plan import kind_of
from tacit.types import Budget, Client, Others
from tacit.wire import digest_of

if TYPE_CHECKING:
    from tacit.deploy.site.accept import Accepted

FURTHEST = 2 * MOST_ROUNDS  # further than any run goes


@dataclass(frozen=True, eq=False)
class Paid:
    """A bound question that the site's ledger was charged for, on disk: only for it is anything trained or counted."""

    bound: Bound

    def train(self) -> tuple[bytes, dict[str, Any]]:
        accepted, slot = self.bound.accepted, self.bound.slot
        ((raw, said),) = accepted.trainer(self.bound.question, slot.round, [accepted.client.index])
        return raw, said


def pay(bound: Bound) -> Paid:
    """Charges the site's ledger for one answer to one question of a round. Raises: BudgetExhausted, Refused, LedgerError.

    Guarantee: on return the charge is on disk, and the budget covers it together with all that other runs have sealed; a copy of
    the site was looked for after it. It is made under the name of the release: a lost answer is charged again unless it will be
    the very same bits, and the log says so. Under central DP the run was paid for when it was agreed, and only that is checked.
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
        raise BudgetExhausted(f"{_budget(accepted.limits)} does not pay for round {round + 1}.")
    return Paid(bound)


def pay_query(bound: Bound, query: str, client: Client, *about: str) -> Paid:
    """Charges the site's ledger for its one answer to a query, of the rows of `client`, which is `about` something.

    Guarantee: on return the charge is on disk, in the price that was sealed with the run's rounds. The very same release is not
    charged again, and no other one ever is. Raises: BudgetExhausted; Refused where a lost answer was paid for; LedgerError.
    """
    accepted, ledger = bound.accepted, bound.accepted.ledger
    if ledger is None:
        return Paid(bound)
    event, hint = accepted.parts.algorithm.cost(accepted.client), accepted.agreement.terms.rounds
    try:
        release = _release(accepted, client, *about)
        paid = event and ledger.answer(query, release, [accepted.client], lambda client: event, hint=hint)
    except AnsweredOnce:
        raise Refused(
            f"The query {query} was paid for before and its answer lost: a second one would be a second release."
        ) from None
    if not paid:
        raise BudgetExhausted(f"{_budget(accepted.limits)} does not pay for the query {query}.")
    return Paid(bound)


def prepay(accepted: "Accepted", releases: int) -> None:
    """Charges every model of a run at once, as central DP needs it: a site pays for each, whether it is asked or not.

    Guarantee: on return the ledger holds a charge for each of the agreed rounds, or for `releases` of them where that is more,
    since a server may have to repeat rounds with new noise; never fewer. What was cut short by a crash is made up, and what is paid
    is not paid again. Raises: BudgetExhausted, as a rule before anything is charged; LedgerError.
    """
    ledger, event = accepted.ledger, accepted.parts.algorithm.cost(accepted.client)
    if ledger is None or event is None:
        return
    paid = ledger.charged_rounds()
    missing = max(releases, accepted.agreement.terms.rounds) - paid
    if missing > 0 and ledger.rounds_left(accepted.client, event, hint=missing) < missing:
        raise BudgetExhausted(f"{_budget(accepted.limits)} does not pay for {missing} more rounds.")
    for round in range(paid, paid + missing):
        ledger.open_round(round, "agreed")  # one name for all: they are charged when the run is agreed
        if not ledger.admit([accepted.client], lambda client: event):
            raise BudgetExhausted(f"{_budget(accepted.limits)} does not pay for round {round + 1}.")


def _release(accepted: "Accepted", client: Client, *about: str) -> str:
    """The name of a release: the same name is the same bits, paid once; what cannot be repeated has another name at every call."""
    fresh = uuid.uuid4().hex if accepted.parts.nonce else ""
    return digest_of("site", accepted.parts.releases.client(client), *about, fresh)


# Whether a budget pays, before anything is charged.


def refuse_spent(accepted: "Accepted") -> None:
    """Refuses a new run where earlier ones have left nothing for one round of it; nothing is charged. Raises: BudgetExhausted.

    A site's first run passes, unless queries are asked in it: where its budget was always too small, its first round says so.
    """
    ledger, event = accepted.ledger, accepted.parts.algorithm.cost(accepted.client)
    queries, others = accepted.agreement.terms.queries, ledger is not None and ledger.other_runs(accepted.limits.unit)
    if ledger is None or event is None or not (queries or others):
        return
    if ledger.rounds_left(accepted.client, event, hint=accepted.agreement.terms.rounds) < 1:
        what = " and ".join(["one round of this run", *(f"the query {query} beside it" for query in queries)])
        why = "is used up: it does not pay for" if others else "does not pay for"
        raise BudgetExhausted(f"{_budget(accepted.limits)} {why} {what}.")


def refuse_unpaid_turns(accepted: "Accepted") -> None:
    """Refuses a schedule that has the site take part more often than its budget pays for; nothing is charged. Raises Refused."""
    if accepted.parts.plan.sampler.scheduled(0) is not None and payable(accepted) < asked_for(accepted):
        text = f"pays for {payable(accepted)} of the {asked_for(accepted)} turns that the schedule gives it."
        raise Refused(f"{_budget(accepted.limits)} {text}")


def refuse_out_of_turn(accepted: "Accepted", round: int) -> None:
    """Refuses a round that is another group's, where sites take turns in public: the noise covers a site once in a cycle.

    Guarantee: two rounds that a site answers in one run are at least a cycle apart, whatever the server asks. Raises: Refused.
    """
    plan, index = accepted.parts.plan, accepted.client.index
    turn = plan.sampler.scheduled(round)
    if turn is not None and index not in turn:
        own = next(
            early for early in range(accepted.agreement.terms.rounds) if index in (plan.sampler.scheduled(early) or ())
        )
        after = next(late for late in range(own + 1, FURTHEST) if index in (plan.sampler.scheduled(late) or ()))
        raise Refused(
            f"Round {round + 1} is not this site's turn: it takes part in rounds {own + 1}, {after + 1} and so on, and not"
            f" again within {after - own} rounds."
        )


def refuse_unpaid(experiment: Experiment, epsilons: Mapping[str, float], *, delta: float, site: str) -> None:
    """Refuses an experiment of central DP whose rounds, or turns, a site's budget does not pay for, before there is a run.

    `epsilons` are all sites' budgets by name, in the roster's order, and `delta` is that of this site's file. What earlier runs
    have sealed is not counted: the site's ledger says it. Nothing is written.

    Raises: BudgetExhausted; BadInput where budgets differ, which one noise cannot serve, and for what has no plan.
    """
    kind, privacy = kind_of(experiment), experiment.privacy
    if not issubclass(kind.plans, WeighedSums):
        return
    known = [min(epsilon, proposed(experiment, name)) for name, epsilon in epsilons.items()]
    known = [min(known)] * len(known) if privacy.level == "minimum" else known
    roster = Roster(tuple(epsilons), (1,) * len(known), tuple(known), privacy.run_delta, privacy.unit_kept)
    population = roster.population((1,))
    one_budget(population)
    if not privacy.noise_said:
        return  # it is made to last
    plan, index = cast(WeighedSums, kind.plan(experiment, population, size=1)), list(epsilons).index(site)
    turns = plan.sampler.turns(index, rounds=experiment.train.rounds)
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


def payable(accepted: "Accepted") -> int:
    """How many of the agreed rounds what is left of the budget pays for; all of them where they are paid for already, or free."""
    ledger, event, rounds = accepted.ledger, accepted.parts.algorithm.cost(accepted.client), asked_for(accepted)
    if ledger is None or event is None or accepted.parts.plan.sampler.charges_all:
        return rounds
    return min(rounds, ledger.rounds_left(accepted.client, event, hint=rounds))


def asked_for(accepted: "Accepted") -> int:
    return accepted.parts.plan.sampler.turns(accepted.client.index, rounds=accepted.agreement.terms.rounds)


def spent(accepted: "Accepted") -> float | None:
    """The epsilon of what other runs have sealed and this one has charged; None where nothing is charged.

    It is a function of the charges alone, not of the rows, so the server may be told.
    """
    return None if accepted.ledger is None else accepted.ledger.spent(accepted.client)


# The site's ledger, opened for one run, and held against what lies beside it.

KEY, SITES = "node.pub", "sites"
SAME_PLACE, FEDERATIONS = f"*/{KEY}", f"*/{SITES}/*/{KEY}"


def own_ledger(
    folder: Path, parts: Parts, limits: Limits, agreed: Agreement, settings: dict[str, Any]
) -> Ledger | None:
    """The site's ledger for one run; None where the experiment promises nothing and so charges nothing.

    Guarantee: over all its runs it pays at most the delta of the budget file, and for this one at most the epsilon of its terms.
    Its population is named by the data file as `site.toml` has it, so that a folder can move with its ledger.

    Raises: LedgerError for a ledger that is gone, older than its mark, of another population, charged under another name, or
    that knows no charge for an answer beside it, and where a copy of the site was charged.
    """
    if not parts.plan.priced:
        return None
    experiment, data = parts.experiment, parts.experiment.data.name
    own = f"{data}:{settings.get('data')}" if data in OWN_FILES else None
    ledger = Ledger(
        folder / layout.LEDGER,
        population=own or population_id(experiment, parts.population, is_deployed=parts.is_deployed),
        run=agreed.run,
        delta=limits.delta,
        rounds=parts.plan.sampler.turns(None, rounds=experiment.train.rounds),
        most_epsilon=agreed.terms.epsilon,
        asked=asked_by(parts),
        watermarks=(folder / disk.NAME,),
        conditions=[parts.start.under],
        refuse_copies=partial(_refuse_copy, folder),
    )
    refuse_renamed(ledger.path, ledger.charged(), settings["name"])
    for run, what in unpaid(folder, lambda run, what: ledger.knows(what, run=run)):
        raise LedgerError(
            f"{folder} holds the answer to {in_words(what)} of run {run}, and {ledger.path} knows no charge for it: restore the"
            f" newest copy of the ledger and of {disk.NAME}; nothing was released."
        )
    ledger.refuse_copies()
    return ledger


def _refuse_copy(folder: Path, ledger: Ledger) -> None:
    refuse_charged_copy(folder, ledger.lacks)


def refuse_charged_copy(folder: Path, lacks: Callable[[Path], bool]) -> None:
    """Refuses a site of which a copy was charged for what its own ledger does not know; `lacks` says so of the copy's mark.

    Two folders that both answer are two ledgers on one budget. Raises: LedgerError, naming the copy.
    """
    for copy in copies(folder):
        if lacks(copy / disk.NAME):
            raise LedgerError(
                f"{copy} has this site's node key, so one of the two is a copy, and it was charged for what this ledger does not"
                " know: both together would spend one budget twice. Go on with that one, or delete it if it never answered"
                " anybody. Nothing was released."
            )


def copies(folder: Path) -> Iterator[Path]:
    """The folders of the same owner, beside a site or its federation, that have its node key; those in no particular order."""
    mine, here = _read(folder / KEY), folder.resolve()
    if not mine:
        return
    places = [here.parent, here.parents[2]] if here.parent.name == SITES and len(here.parents) > 2 else [here.parent]
    found = {path.parent.resolve() for place in places for way in (SAME_PLACE, FEDERATIONS) for path in place.glob(way)}
    for other in sorted(found - {here}):
        # whoever else has a folder there knows the public half of a key, and may not keep the site from answering
        if _read(other / KEY) == mine and other.stat().st_uid == here.stat().st_uid == os.getuid():
            yield other


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def refuse_renamed(ledger: Path, charged: Collection[str], name: str) -> None:
    """Refuses a ledger that was charged under another name, or the same rows would have their budget again. Raises: LedgerError."""
    others = sorted(set(charged) - {name})
    if others:
        raise LedgerError(
            f"{ledger} was charged for {', '.join(others)}, and site.toml calls the site {name}: the same rows would have their"
            " budget once more. Put the name back; other rows have a folder and a ledger of their own. Nothing was released."
        )


def in_words(what: int | str) -> str:
    return f"the query {what}" if isinstance(what, str) else f"round {what + 1}"


def unpaid(folder: Path, charged: Callable[[str, int | str], bool]) -> Iterator[tuple[str, int | str]]:
    """(run, round), or (run, query), of every answer on a site's disk for which `charged` is False and should not be.

    An answer whose agreement is gone counts as one that was to be paid for. Raises: BadInput for a damaged agreement.
    """
    for run, what in layout.answers(folder):
        if not charged(run, what):
            known = agreement.read(folder, run)
            if known is None or known.terms.event:
                yield run, what


# What the site is promised, in words.


def promise_of(accepted: "Accepted") -> str:
    """What the site is promised in a run, for its people to read: for whom, against whom, up to which epsilon, on which conditions.

    Guarantee: the epsilon it names is at most the one that was agreed, and at most what other runs have left of the budget, or what
    this one had spent before that was lowered; what is not included is named.
    """
    parts, ledger, client, limits = accepted.parts, accepted.ledger, accepted.client, accepted.limits
    if not parts.plan.priced or ledger is None:
        return sentence(None) + _once(accepted)
    before = ledger.before(client.id, limits.unit).epsilon  # counts as spent, used or not
    gone = ledger.alone(client)  # what was lowered since gives nothing back
    epsilon = min(accepted.agreement.terms.epsilon, max(gone, limits.epsilon - before))
    text = agreed_sentence(parts.promise, client=client.id, epsilon=epsilon) + _once(accepted)
    if before:
        text += f" Other runs of this site have sealed {shown(before)}, which this run's number does not include;"
        limit = f"epsilon {limits.epsilon:g} of its budget.toml"
        if before + epsilon <= limits.epsilon * (1 + ROUNDING):
            text += f" all its runs per {limits.unit} together stay within {limit}."
        else:
            text += f" together they come to {shown(before + epsilon)}, more than the {limit} as it is now."
    apart = ledger.other_runs(limits.unit, apart=True)
    return f"{text} {with_others(Others(0, apart, 0.0, 0.0, RULE), limits.unit)}" if apart else text


def _once(accepted: "Accepted") -> str:
    text = ""
    for query, share in shares(accepted.parts.experiment).items():
        most = shown(share * accepted.agreement.terms.epsilon)
        costs = f"for at most epsilon {most} ({100 * share:g} % of it), {PAID[SIDES[query]]}"
        how = costs if accepted.parts.plan.priced else "without noise"
        text += f" Beside its rounds the site answers once, for ever, with counts for {WORDS[query]}, {how}."
    return text


def _budget(limits: Limits) -> str:
    return f"The site's budget (epsilon {limits.epsilon:g}, delta {limits.delta:g} per {limits.unit})"
