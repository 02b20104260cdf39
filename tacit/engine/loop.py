"""The loop. A round: draw, dispatch, pay, receive, combine, evaluate, record.
The ledger is paid, on disk, before anything that was trained is read: a device may be at work meanwhile, and a CPU computes a
reply when it is read. Whoever has trained is heard before the next one's message is looked at."""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
import torch
from dp_accounting import DpEvent

from tacit.engine.assemble import Parts
from tacit.engine.canaries import record_observation
from tacit.engine.evaluate import Traffic, Watch, backdoor, evaluate, evaluating
from tacit.engine.run_folder import CHECKPOINT, Checkpoints, Folder
from tacit.engine.trainers import Pending, Trainer
from tacit.errors import BadInput, LedgerError, TrainingDiverged
from tacit.experiment import Experiment
from tacit.privacy.accounting import price
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.samplers import Sampler
from tacit.random import Derive
from tacit.training.optimizer import kept
from tacit.types import Budget, Client, Message, State
from tacit.wire import digest_of, state_digest

Observer = Callable[[dict[str, Any]], None]
PUBLISHED = ("digits", "mnist", "fashion-mnist", "cifar10")  # data sets whose rows are the same for everybody
MARKS = 16  # while a run goes on, epsilon is shown rounded up to the next of so many marks; at the end it is exact


def loop(parts: Parts, ledger: Ledger | None, folder: Folder, trainer: Trainer, observe: Observer) -> tuple[State, str]:
    """Runs the rounds that are left. Returns the last state and why it stopped: "rounds" or "budget". Raises TacitError.
    Guarantee: a round is charged on disk before anything that was trained in it is read; messages are taken one by one, each
    once, and no more of them are held than the algorithm keeps. The last checkpoint is kept."""
    algorithm, experiment, once = parts.algorithm, parts.experiment, parts.plan.traits.single_release
    # A round that must not be repeated once it was released writes its checkpoint first. Sites answer the same question with the
    # same report, for one charge: a second sum, of others of them, would show who is new.
    first_checkpoint = once or (parts.is_deployed and parts.plan.traits.summed and not parts.plan.sampler.charges_all)
    state, first = _begun(parts, ledger, folder)
    budgets, watch = BudgetTracker(parts, ledger, first_round=first), Watch()
    dispatch = partial(_dispatched, parts, ledger, trainer, parts.plan.traits.hidden_together)
    with Checkpoints(folder, state.params.device, once=once) as checkpoints:
        for r in range(first, experiment.train.rounds):
            before, traffic, due = state, Traffic(), is_due(experiment, r)
            with watch("admit"):
                derive = open_round(parts, ledger, state, r)
                drawn = budgets.draw(r, derive, unpaid=trainer.unpaid, away=trainer.away())
            with watch("train"):  # a device is at work while they pay
                message, pending = dispatch(state, r, drawn or ())
            with watch("admit"):
                cohort = budgets.charge(drawn)  # on disk before anything is read; who cannot pay stays out
            if cohort is None:
                return state, "budget"
            if len(cohort) < len(drawn or ()):
                with watch("train"):
                    message, pending = dispatch(state, r, cohort)
            with watch("server"):
                traffic.broadcast(message, len(cohort))
                collecting = algorithm.collect(state, round=r)
            for sent, info in watch.each("train", pending):
                with watch("server"):
                    received = traffic.receive(sent, info, r, tolerates_invalid=algorithm.tolerates_invalid)
                    collecting.add(received.to(state.params.device))
            with watch("server"):
                state, info = collecting.finish(partial(derive, "server", r))
                state = averaged(state, before, rate=experiment.train.averaging, round=r)
                if first_checkpoint:
                    checkpoints.write(state, round=r + 1)
                if once and ledger is not None:
                    ledger.release(released(r), state_digest(state))
                if parts.canaries is not None:
                    record_observation(parts.canaries, folder.path, r, cohort, traffic.info, info)
            with watch("evaluate"):
                evaluated = evaluating(parts, state.result) if due else dict
                moved = state.params - before.params
            with watch("admit"):  # what was spent is priced while a device evaluates
                spent = budgets.after(r, cohort)
            with watch("evaluate"):
                tested = _finite(evaluated(), state, r) | (backdoor(parts, state.result) if due else {})
                record = {"round": r, **tested, **traffic.record(cohort, spent, moved, info)}
                record |= {} if trainer.absent is None else {"absent": dict(trainer.absent), **(trainer.counts or {})}
            seconds = watch.read()
            record |= seconds | {"seconds": sum(seconds.values())}
            with watch("write"):
                folder.log(record)
                if not first_checkpoint:
                    checkpoints.write(state, round=r + 1)
                observe(record)
    return state, "rounds"


def _begun(parts: Parts, ledger: Ledger | None, folder: Folder) -> tuple[State, int]:
    # the state that the run goes on from and its round; whatever can be refused is refused before anybody pays
    state, first = _restored(folder, parts) or (parts.algorithm.init(parts.params), 0)
    evaluate(parts, state.result)  # a metric that the test rows cannot tell
    if first < parts.experiment.train.rounds:
        parts.algorithm.collect(state, round=first)  # a state that noise cannot go on from
    if (
        parts.plan.traits.single_release and first and ledger is not None
    ):  # the ledger learns it now, if it does not know
        ledger.release(released(first - 1), state_digest(state))
    open_round(parts, ledger, state, first)  # before anything of the folder is dropped: it may refuse
    folder.rounds(before=first)
    return state, first


def released(round: int) -> str:
    return f"round {round}"


def _begins(parts: Parts, state: State, round: int) -> str:
    by_round = parts.algorithm.depends_on_round or parts.experiment.train.schedule is not None
    if parts.nonce and not parts.is_deployed:  # no other start has these keys, and in this one a round happens once
        return digest_of("round", str(round))
    return state_digest(state, turn=round if by_round else None)


def open_round(parts: Parts, ledger: Ledger | None, state: State, round: int) -> Derive:
    """Tells the ledger which release is to be paid for; the server's randomness in the state that the round starts from.
    Raises: LedgerError where the round was released before, and not in a way that can be repeated bit for bit."""
    begins = _begins(parts, state, round)
    attempt = parts.releases.attempt(begins)
    if ledger is not None:
        ledger.open_round(round, attempt)
        # two releases of a round have the noise of the rounds before it in common, whose clients pay once
        single = parts.plan.traits.single_release and (parts.is_deployed or parts.nonce or not ledger.again)
        if single and (ledger.ahead or ledger.released(released(round))):
            known = f"The ledger {ledger.path} was charged for rounds after round {round + 1}"
            raise LedgerError(
                f"{known if ledger.ahead else f'Round {round + 1} was released'}, from which the checkpoint would go on: its noise"
                " has been used since, and used twice it would show what it hides. Put the newest checkpoint back, or start anew"
                " with --force; nothing was released."
            )
    # prices of secret cohorts are for independent draws: on rows that were edited another one, whatever ledger each is paid from
    edited = not parts.is_deployed and parts.experiment.data.name not in PUBLISHED
    return parts.releases.server(attempt if edited and parts.plan.sampler.charges_all else begins)


def _dispatched(
    parts: Parts,
    ledger: Ledger | None,
    trainer: Trainer,
    hidden_together: bool,
    state: State,
    round: int,
    cohort: Sequence[Client],
) -> tuple[Message, Pending]:
    message = parts.algorithm.broadcast(state, cohort, round=round)
    if hidden_together and ledger is not None and not parts.is_deployed:
        # two sums of which clients add the very same noise show what is in one of them alone: other rows, rates or clients. Of rows
        # that anybody may edit between two runs this is so whatever ledger each is paid from.
        attempt, data = parts.releases.attempt(_begins(parts, state, round)), parts.experiment.data
        shared = data.name not in PUBLISHED or parts.experiment.privacy.ledger is not None
        if shared or not ledger.is_first(round, attempt):
            asked = digest_of("asked", attempt, *(client.id for client in cohort))
            message = replace(message, facts=message.facts | {"asked": asked})
    return message, trainer.dispatch(message, round, [client.index for client in cohort])


def _restored(folder: Folder, parts: Parts) -> tuple[State, int] | None:
    found = folder.restore()
    if found is None:
        return None
    state, first = found
    begins = parts.algorithm.init(parts.params)
    # own models are never made anew
    kept = [({"": begins.params}, {"": state.params}), (begins.control, state.control)]
    kept += [] if state.average is None else [({"": begins.params}, {"": state.average})]
    fits = True
    if first < parts.experiment.train.rounds and not parts.plan.traits.single_release:  # else its mechanism looks at it
        kept.append((begins.optimizer, state.optimizer))
        fits = set(begins.memory) <= set(state.memory)  # a rule's memory may change its shapes
    pairs = [(tensor, old.get(name)) for new, old in kept for name, tensor in new.items()]
    if not fits or any(b is None or (b.shape, b.dtype) != (a.shape, a.dtype) for a, b in pairs):
        raise BadInput(
            f"{folder.path / CHECKPOINT} is damaged, or was written by another version of Tacit, and rounds cannot go on from"
            " it: finish the run with that version, or start again with --force, which keeps its files. Nothing was charged."
        )
    return state.to(parts.params.device), first


def is_due(experiment: Experiment, round: int) -> bool:
    """Whether the model of a round is tested; that of the last planned one always is.

    >>> [r for r in range(8) if is_due(Experiment(train={"rounds": 8}, run={"evaluate_every": 3}), r)]
    [2, 5, 7]
    """
    return (round + 1) % (experiment.run.evaluate_every or 1) == 0 or round + 1 == experiment.train.rounds


def _finite(measured: dict[str, float], state: State, round: int) -> dict[str, float]:
    loss = measured.get("loss", 0.0 if bool(torch.isfinite(state.result).all()) else math.nan)
    if not math.isfinite(loss):
        what = "The test loss" if measured else "The model"
        raise TrainingDiverged(
            f"{what} became {loss} in round {round + 1}: lower train.learning_rate; the last checkpoint is kept."
        )
    return measured


def averaged(state: State, before: State, *, rate: float, round: int) -> State:
    """The state with the running mean of its parameters; training itself goes on from `params` (tacit/training/optimizer.py)."""
    if not rate:
        return state
    old = before.params if before.average is None else before.average
    return replace(state, average=old.lerp(state.params, 1 - kept(rate, round=round)))


class BudgetTracker:
    """Draws the clients of a round and charges them. Without a ledger nobody pays, and nobody is ever out of budget."""

    def __init__(self, parts: Parts, ledger: Ledger | None, *, first_round: int = 0):
        self._parts, self._ledger, self._hint = parts, ledger, parts.plan.participations
        self._sampler, self._rounds = parts.plan.sampler, parts.experiment.train.rounds
        self._cycle = self._sampler.scheduled(0) is not None
        self._fewest = max(parts.experiment.train.min_clients, parts.plan.min_reports)
        self._out, self._able = set[int](), set[int]()  # who is out of budget; who could pay after its last charge
        # while a device trains, the price that is shown next is computed; processes fork, beside which there are no threads
        self._beside = ThreadPoolExecutor(1) if ledger is not None and parts.theta.is_cuda else None
        self._coming: dict[tuple[Budget, price.Composition], Future[float]] = {}
        if ledger is not None:
            paying = np.delete(np.arange(len(parts.population)), [*parts.plan.opted_out])
            epsilons = parts.population.epsilons[paying]
            self._ends = tuple(parts.population[int(paying[end(epsilons)])] for end in (np.argmin, np.argmax))
            self._find_ends(ledger)
            self._stride = -(-self._sampler.slots(None, rounds=self._rounds) // MARKS)
            if not self._sampler.charges_all:
                charged, asked_from = ledger.charged(), partial(self._sampler.asked_from, rounds=self._rounds)
                names = enumerate(parts.population.names)
                again = [index for index, name in names if name in charged and asked_from(index, first_round)]
                self._affording(again, len(again))
        self._named = set(self._out) if first_round else set()  # a resumed run named them before it was stopped

    def draw(
        self, round: int, derive: Derive, *, unpaid: Collection[int] = (), away: Collection[int] = ()
    ) -> list[Client] | None:
        """The clients that a round is to have; None where too few can pay. **Nobody has paid.**
        Whose own ledger does not pay (`unpaid`) has left. Who is `away` is asked nothing and pays nothing, unless too few are left
        without. Where all pay together, nobody leaves."""
        if self._sampler.charges_all:
            drawn = cast(Sampler, self._sampler).draw(derive(round, "cohort"), round)
            return [self._parts.population[int(index)] for index in drawn]
        self._out |= set(unpaid)
        cohort = self.sample(round, derive)
        return self._enough([client for client in cohort if client.index not in away]) or self._enough(cohort)

    def sample(self, round: int, derive: Derive) -> list[Client]:
        """Clients that can still pay: whose turn it is, or a uniform choice at a cost that does not depend on others."""
        everybody, size = len(self._parts.population), self._sampler.cohort
        if self._cycle:
            turn = self._sampler.scheduled(round) or ()
            return self._affording(turn, len(turn))
        rng = derive(round, "cohort").generator()
        if size >= everybody:
            return self._affording(range(everybody), everybody)
        first = rng.choice(everybody, size=min(everybody, 2 * size + 16), replace=False)
        cohort = self._affording(first.tolist(), size)
        if len(cohort) < size:  # many are out of budget: look at all
            cohort = self._affording(rng.permutation(everybody).tolist(), size)
        return sorted(cohort, key=lambda client: client.index)

    def charge(self, cohort: list[Client] | None) -> list[Client] | None:
        """Those of a cohort that have paid, on disk; None where too few (or, if all must pay together, not all) can pay."""
        if cohort is None or (self._ledger is None and self._sampler.charges_all):
            return None
        if self._ledger is None:
            return self._enough(cohort)
        if self._sampler.charges_all:
            tightest = self._ends[0]
            if self._sampler.charges_alike:
                paid = self._ledger.admit_everybody(tightest.budget, self._cost(tightest), hint=self._hint)
            else:
                paid = self._ledger.admit_all(self._everybody, self._cost, hint=self._hint)
            return cohort if paid else None
        return self._enough(self._ledger.admit(cohort, self._cost, hint=self._hint))

    def after(self, round: int, cohort: Sequence[Client]) -> dict[str, Any]:
        """The numbers of a round: who is out of budget from the next one on, and what the tightest and the loosest have spent."""
        if self._ledger is None:
            return {"out_of_budget": 0}
        self._find_ends(self._ledger)
        others = self._ledger.other_runs(self._parts.population.unit)  # whose seals are in the two epsilons
        tightest, loosest = (self._at_most(client, self._ledger) for client in self._ends)
        outside = len(self._out) if round == self._rounds - 1 else self._outside(round, cohort)
        names, self._named = sorted(self._out - self._named), set(self._out)
        dropped = [self._parts.population.names[index] for index in names]
        ends = {"epsilon_tightest": tightest, "epsilon_loosest": loosest, "other_runs": others}
        return {"out_of_budget": outside, "dropped": dropped, **ends}

    def rounds_left_to_all(self, *, hint: int | None = None) -> int:
        """How many more rounds everybody can pay for, where all pay together. Assumes: a ledger."""
        tightest, ledger = self._ends[0], cast(Ledger, self._ledger)
        if not self._sampler.charges_alike:
            return min(ledger.rounds_left(one, self._cost(one), hint=hint or self._hint) for one in self._everybody)
        return ledger.rounds_left_to_all(tightest.budget, self._cost(tightest), hint=hint or self._hint)

    @cached_property
    def _everybody(self) -> list[Client]:
        return [self._parts.population[index] for index in range(len(self._parts.population))]

    def _cost(self, client: Client) -> DpEvent:
        return cast(DpEvent, self._parts.algorithm.cost(client))  # a ledger is kept only where it has a price

    def _enough(self, cohort: list[Client]) -> list[Client] | None:
        return cohort if len(cohort) >= self._fewest else None

    def _affording(self, indices: Iterable[int], size: int) -> list[Client]:
        found: list[Client] = []
        for index in indices:
            if len(found) == size:
                break
            if index not in self._out:
                client = self._parts.population[index]
                if index in self._able or self._pays(client):
                    found.append(client)
                else:
                    self._out.add(index)
        return found

    def _find_ends(self, ledger: Ledger) -> None:
        if self._cycle:  # who was charged most
            names, most = self._parts.population.names, ledger.charged_most()
            client = self._parts.population[names.index(most) if most in names else 0]
            self._ends = (client, client)

    def _outside(self, round: int, cohort: Sequence[Client]) -> int:
        if self._sampler.charges_all:
            return 0 if self.rounds_left_to_all() >= 1 else len(self._parts.population)
        for client in cohort:
            if not self._sampler.asked_from(client.index, round + 1, rounds=self._rounds):
                continue
            if self._pays(client):
                self._able.add(client.index)
            else:
                self._able.discard(client.index)
                self._out.add(client.index)
        return len(self._out)

    def _pays(self, client: Client) -> bool:
        if self._ledger is None or client.index in self._parts.plan.opted_out:
            return True
        return self._ledger.rounds_left(client, self._cost(client), hint=self._hint) >= 1

    def _at_most(self, client: Client, ledger: Ledger) -> float:
        event, unit = self._cost(client), client.budget.unit
        before, spent = ledger.before(client.id, unit).epsilon, ledger.composition(client.id, unit)
        ((step, each),) = price.compose([(event, 1)])
        ahead = -(dict(spent).get(step, 0) // each) % self._stride if spent else 0
        bound = before + self._epsilon(client.budget, price.compose([*spent, (event, ahead)]))
        if self._beside is not None and spent and not ahead:
            coming = (client.budget, price.compose([*spent, (event, self._stride)]))
            if coming not in self._coming:
                self._coming[coming] = self._beside.submit(self._priced, *coming)
        return bound if bound <= client.budget.epsilon else before + self._epsilon(client.budget, spent)

    def _epsilon(self, budget: Budget, composition: price.Composition) -> float:
        coming = self._coming.pop((budget, composition), None)
        return coming.result() if coming else self._priced(budget, composition)

    def _priced(self, budget: Budget, composition: price.Composition) -> float:
        return price.epsilon(composition, delta=budget.delta)
