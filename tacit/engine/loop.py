"""The loop. A round: draw, dispatch, pay, receive, combine, evaluate, record, checkpoint.
The ledger is paid, on disk, before anything that was trained is read: a device may be at work meanwhile, and a CPU computes a
reply when it is read. Whoever has trained is heard before the next one's message is looked at."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from tacit.algorithms.scaffold import others_bytes
from tacit.engine.assemble import Parts
from tacit.engine.budget import BudgetTracker, charged, draw
from tacit.engine.canaries import record_observation
from tacit.engine.evaluate import backdoor, evaluate, evaluating
from tacit.engine.pool import Pending, Trainer
from tacit.engine.run_folder import CHECKPOINT, Checkpoints, Folder
from tacit.engine.watch import Traffic, Watch, record_of
from tacit.errors import BadInput, LedgerError, TrainingDiverged
from tacit.experiment import Experiment
from tacit.privacy.ledger.ledger import Ledger
from tacit.random import Derive
from tacit.training.optimizer import kept
from tacit.types import Client, Message, State
from tacit.wire import digest_of, receive, receive_any, size_of, state_digest

Observer = Callable[[dict[str, Any]], None]


def released(round: int) -> str:
    """Under which name the ledger knows that a round was released."""
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
    if ledger is not None:
        ledger.open_round(round, parts.releases.attempt(begins))
        known_released = ledger.ahead or ledger.released(released(round))
        # two releases of a round have the noise of the rounds before it in common, whose clients pay once
        if (
            parts.plan.traits.single_release
            and known_released
            and (parts.is_deployed or parts.nonce or not ledger.again)
        ):
            known = (
                f"The ledger {ledger.path} was charged for rounds after round {round + 1}"
                if ledger.ahead
                else f"Round {round + 1} was released"
            )
            raise LedgerError(
                f"{known}, from which the checkpoint would go on: its noise has been used since, and used twice it would show what"
                " it hides. Put the newest checkpoint back, or start anew with --force; nothing was released."
            )
    return parts.releases.server(begins)


def loop(parts: Parts, ledger: Ledger | None, folder: Folder, trainer: Trainer, observe: Observer) -> tuple[State, str]:
    """Runs the rounds that are left. Returns the last state and why it stopped: "rounds" or "budget". Raises TacitError.
    Guarantee: a round is charged on disk before anything that was trained in it is read; messages are taken one by one, each
    once, and no more of them are held than the algorithm keeps. The last checkpoint is kept."""
    algorithm = parts.algorithm
    state, first = _restored(folder, parts) or (algorithm.init(parts.params), 0)
    # a metric that the test rows cannot tell, and a state that noise cannot go on from, are refused before anybody pays
    evaluate(parts, state.result)
    if first < parts.experiment.train.rounds:
        algorithm.collect(state, round=first)
    if (
        parts.plan.traits.single_release and first and ledger is not None
    ):  # the ledger knows what the checkpoint goes on from, or is told now
        ledger.release(released(first - 1), state_digest(state))
    open_round(parts, ledger, state, first)  # before anything of the folder is dropped: it may refuse
    folder.rounds(before=first)
    with Checkpoints(folder, state.params.device, once=parts.plan.traits.single_release) as checkpoints:
        return _rounds(parts, ledger, folder, trainer, observe, state, first, checkpoints)


def _rounds(
    parts: Parts,
    ledger: Ledger | None,
    folder: Folder,
    trainer: Trainer,
    observe: Observer,
    state: State,
    first: int,
    checkpoints: Checkpoints,
) -> tuple[State, str]:
    algorithm, plan, last = parts.algorithm, parts.plan, parts.experiment.train.rounds - 1
    budgets, watch = BudgetTracker(parts, ledger, first_round=first), Watch()
    # sites answer the same question with the same report, for one charge: a second sum, of others of them, would show who is new
    one_sum = parts.is_deployed and plan.traits.summed and not plan.sampler.charges_all
    checkpoint_first = plan.traits.single_release or one_sum  # what is repeated after a crash was then never released
    for r in range(first, last + 1):
        before, traffic, due = state, Traffic(), is_due(parts.experiment, r)
        with watch("admit"):
            derive = open_round(parts, ledger, state, r)
            budgets.leave(trainer.unpaid)
            drawn = draw(parts, budgets, r, derive, away=trainer.away())
        with watch("train"):  # a device is at work while they pay
            message, pending = _dispatched(parts, ledger, trainer, state, r, drawn or ())
        with watch("admit"):
            cohort = charged(parts, ledger, budgets, drawn)  # on disk before anything is read; who cannot pay stays out
        if cohort is None:
            return state, "budget"
        if len(cohort) < len(drawn or ()):
            with watch("train"):
                message, pending = _dispatched(parts, ledger, trainer, state, r, cohort)
        with watch("server"):
            traffic.downlink = (size_of(message) - others_bytes(message)) * len(cohort)
            collecting = algorithm.collect(state, round=r)
        for sent, info in watch.each("train", pending):
            with watch("server"):
                received = _received(sent, info, traffic, r, tolerates_invalid=algorithm.tolerates_invalid)
                collecting.add(received.to(state.params.device))
        with watch("server"):
            state, info = collecting.finish(partial(derive, "server", r))
            state = averaged(state, before, rate=parts.experiment.train.averaging, round=r)
            if checkpoint_first:
                checkpoints.write(state, round=r + 1)
            if plan.traits.single_release and ledger is not None:
                ledger.release(released(r), state_digest(state))
            record_observation(parts, folder, r, cohort, traffic.info, info)
        with watch("evaluate"):
            evaluated, moved = evaluating(parts, state.result) if due else dict, state.params - before.params
        with watch("admit"):  # what was spent is priced while a device evaluates
            again = [client for client in cohort if plan.sampler.asked_from(client.index, r + 1, rounds=last + 1)]
            spent = budgets.after(again, last=r == last)
        with watch("evaluate"):
            record = {"round": r, **_finite(evaluated(), state, r), **(backdoor(parts, state.result) if due else {})}
            record |= record_of(cohort, traffic, spent, moved, info)
            record |= {} if trainer.absent is None else {"absent": dict(trainer.absent)}
        seconds = watch.read()
        record |= seconds | {"seconds": sum(seconds.values())}
        with watch("write"):
            folder.log(record)
            if not checkpoint_first:
                checkpoints.write(state, round=r + 1)
            observe(record)
    return state, "rounds"


def _dispatched(
    parts: Parts, ledger: Ledger | None, trainer: Trainer, state: State, round: int, cohort: Sequence[Client]
) -> tuple[Message, Pending]:
    message = parts.algorithm.broadcast(state, cohort, round=round)
    if parts.plan.traits.hidden_together and ledger is not None and not parts.is_deployed:
        # two sums of which clients add the very same noise show what is in one of them alone: other rows, rates or clients
        attempt = parts.releases.attempt(_begins(parts, state, round))
        if parts.experiment.privacy.ledger is not None or not ledger.is_first(round, attempt):
            asked = digest_of("asked", attempt, *(client.id for client in cohort))
            message = replace(message, facts=message.facts | {"asked": asked})
    return message, trainer.dispatch(message, round, [client.index for client in cohort])


def _received(
    sent: bytes | Message, info: dict[str, float], traffic: Traffic, round: int, *, tolerates_invalid: bool
) -> Message:
    traffic.info.append(info)
    traffic.uplink += size_of(sent) if isinstance(sent, Message) else len(sent)
    if tolerates_invalid:  # what it gets may be anything, and carries no noise
        return sent if isinstance(sent, Message) else receive_any(sent)
    message = sent if isinstance(sent, Message) else receive(sent, round=round)
    traffic.take(message)
    return message


def _restored(folder: Folder, parts: Parts) -> tuple[State, int] | None:
    found = folder.restore()
    if found is None:
        return None
    state, first = found
    begins = parts.algorithm.init(parts.params)
    kept = [
        ({"": begins.params}, {"": state.params}),
        (begins.control, state.control),
    ]  # own models are never made anew
    kept += [] if state.average is None else [({"": begins.params}, {"": state.average})]
    fits = True
    if (
        first < parts.experiment.train.rounds and not parts.plan.traits.single_release
    ):  # noise that goes on is looked at by its mechanism
        kept.append((begins.optimizer, state.optimizer))
        fits = set(begins.memory) <= set(state.memory)  # a rule's memory may change its shapes
    if not fits or not all(_alike(tensor, old.get(name)) for new, old in kept for name, tensor in new.items()):
        raise BadInput(
            f"{folder.path / CHECKPOINT} is damaged, or was written by another version of Tacit, and rounds cannot go on from"
            " it: finish the run with that version, or start again with --force, which keeps its files. Nothing was charged."
        )
    return state.to(parts.params.device), first


def _alike(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    return other is not None and other.shape == one.shape and other.dtype == one.dtype


def is_due(experiment: Experiment, round: int) -> bool:
    """Whether the model of a round is tested; that of the last planned one always is.

    >>> [r for r in range(8) if is_due(Experiment(train={"rounds": 8}, run={"evaluate_every": 3}), r)]
    [2, 5, 7]
    """
    done = round + 1
    return done % (experiment.run.evaluate_every or 1) == 0 or done == experiment.train.rounds


def _finite(measured: dict[str, float], state: State, round: int) -> dict[str, float]:
    loss = measured.get("loss", 0.0 if bool(torch.isfinite(state.result).all()) else math.nan)
    if not math.isfinite(loss):
        what = "The test loss" if measured else "The model"
        raise TrainingDiverged(
            f"{what} became {loss} in round {round + 1}: lower train.learning_rate; the last checkpoint is kept."
        )
    return measured


def averaged(state: State, before: State, *, rate: float, round: int) -> State:
    """The state with the running mean of its parameters: the noise of single rounds averages out of the result.
    Training itself goes on from `params`. It is post-processing, so it costs no privacy (tacit/training/optimizer.py)."""
    if not rate:
        return state
    old = before.params if before.average is None else before.average
    return replace(state, average=old.lerp(state.params, 1 - kept(rate, round=round)))
