"""The loop, in the order in which a round happens: draw, pay, broadcast, train, wire, server, evaluate, record, checkpoint.

The ledger is paid, on disk, before anybody trains. A device alone is set to work while it is paid, and nothing of what it trains is
read before. Whoever has trained is heard before the next one's message is looked at: the loop takes a message from the trainer and
gives it to the server's part, which never asks for one."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from tacit.algorithms.scaffold import others_bytes
from tacit.digest import mark, state_mark
from tacit.engine.assemble import Parts
from tacit.engine.budget import Meter, charged, draw
from tacit.engine.canaries import keep_sight
from tacit.engine.evaluate import backdoor, evaluate, evaluating
from tacit.engine.pool import Trainer, absent_of, asked, away_of, begun, read_off
from tacit.engine.run_folder import CHECKPOINT, Checkpoints, Folder
from tacit.engine.watch import STAGES, Traffic, Watch, record_of
from tacit.errors import BadInput, LedgerError, TrainingDiverged
from tacit.experiment import Experiment
from tacit.privacy.ledger.ledger import Ledger
from tacit.random import Derive
from tacit.training.optimizer import kept
from tacit.types import State
from tacit.wire import size_of

# The opening of a round: the ledger is told which release is to be paid for, and the server gets its randomness.


def released(round: int) -> str:
    """Under which name the ledger knows that a round was released."""
    return f"round {round}"


def _refuse_older(parts: Parts, ledger: Ledger, round: int) -> None:
    """Refuses to release a round again that was released, or after which others were paid for, unless it is the very same bits.

    Two releases of a round have the noise of the rounds before it in common, whose clients pay once.

    Raises: LedgerError where the round was released before, and not in a way that can be repeated.
    """
    if (ledger.ahead or ledger.released(released(round))) and (parts.elsewhere or parts.nonce or not ledger.again):
        known = (
            f"The ledger {ledger.path} was charged for rounds after round {round + 1}"
            if ledger.ahead
            else f"Round {round + 1} was released"
        )
        raise LedgerError(
            f"{known}, from which the checkpoint would go on: its noise has been used since, and used twice it would show what it"
            " hides. Put the newest checkpoint back, or start anew with --force; nothing was released."
        )


def open_round(parts: Parts, ledger: Ledger | None, state: State, round: int) -> Derive:
    """Tells the ledger which release is to be paid for; the server's randomness in the state that the round starts from.

    Raises: LedgerError as `_refuse_older`.
    """
    numbered = parts.algorithm.numbered or parts.experiment.train.schedule is not None
    if parts.nonce and not parts.elsewhere:  # no other start has these keys, and in this one a round happens once
        begins = mark("round", str(round))
    else:
        begins = state_mark(state, turn=round if numbered else None)
    if ledger is not None:
        ledger.open_round(round, parts.releases.attempt(begins))
        if parts.plan.once:
            _refuse_older(parts, ledger, round)
    return parts.releases.server(begins)


Observer = Callable[[dict[str, Any]], None]


def loop(parts: Parts, ledger: Ledger | None, folder: Folder, trainer: Trainer, observe: Observer) -> tuple[State, str]:
    """Runs the rounds that are left. Returns the last state and why it stopped: "rounds" or "budget".

    Guarantee: a round is charged on disk before anything that was trained in it is read; messages are taken one by one, each once,
    and no more of them are held than the algorithm keeps. Raises TacitError for whatever ends the run; the last checkpoint is kept.
    """
    algorithm = parts.algorithm
    state, first = _restored(folder, parts) or (algorithm.init(parts.params), 0)
    evaluate(
        parts, state.result
    )  # a metric that is not there, or that the test rows cannot tell, is refused before anybody pays
    if first < parts.experiment.train.rounds:
        algorithm.collect(state, round=first)  # a state that its noise cannot go on from is refused before anybody pays
    if (
        parts.plan.once and first and ledger is not None
    ):  # what the checkpoint goes on from is what the ledger knows, or is told now
        ledger.release(released(first - 1), state_mark(state))
    open_round(parts, ledger, state, first)  # before anything of the folder is dropped: it may refuse
    folder.rounds(before=first)
    with Checkpoints(folder, state.params.device, once=parts.plan.once) as checkpoints:
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
    """The rounds from `first` on, which starts from `state`."""
    train, algorithm = parts.experiment.train, parts.algorithm
    meter, watch = Meter(parts, ledger, first_round=first), Watch()
    # sites answer the same question with the same report, for one charge: a second sum, of others of them, would show who is new
    one_sum = parts.elsewhere and parts.plan.summed and not parts.plan.together
    first_on_disk = parts.plan.once or one_sum
    for r in range(first, train.rounds):
        derive, away = open_round(parts, ledger, state, r), away_of(trainer, meter)
        drawn = draw(parts, meter, r, derive, away=away)
        watch.lap("admit")
        ahead = begun(trainer, algorithm, state, r, drawn)  # a device is at work while they pay
        watch.lap("train")
        cohort = charged(parts, ledger, meter, drawn)  # on disk before anything is read; who cannot pay stays out
        watch.lap("train" if ahead else "admit")  # while a device trains nobody waits for the ledger
        if cohort is None:
            return state, "budget"
        all_paid = len(cohort) == len(drawn or ())
        message, replies = ahead if ahead and all_paid else asked(trainer, algorithm, state, r, cohort)
        told = size_of(message) - others_bytes(message)  # by one client
        traffic, collecting = Traffic(downlink=told * len(cohort)), algorithm.collect(state, round=r)
        watch.lap("admit")
        for sent, told in replies:  # the clients train
            watch.lap("train")  # the server waits for clients; what it does between two messages is its own time
            message = read_off(sent, told, traffic, r, forgiving=algorithm.forgiving)
            collecting.add(message.to(state.params.device))
            watch.lap("server")
        before, (state, info) = state, collecting.finish(partial(derive, "server", r))
        state = averaged(state, before, rate=train.averaging, round=r)
        if first_on_disk:  # before anybody is told of it: what is repeated after a crash was never released
            checkpoints.write(state, round=r + 1)
        if parts.plan.once and ledger is not None:
            ledger.release(released(r), state_mark(state))
        keep_sight(parts, folder, r, cohort, traffic.info, info)
        watch.lap("server")
        due = is_due(parts.experiment, r)
        evaluated, moved = evaluating(parts, state.result) if due else dict, state.params - before.params
        watch.lap("evaluate")
        again = [client for client in cohort if parts.plan.asked_from(client.index, r + 1, rounds=train.rounds)]
        spent = meter.after(again, last=r + 1 == train.rounds)  # while a device evaluates
        watch.lap("admit")  # what was spent is priced with the admission
        measured = evaluated()
        _refuse_diverged(measured, state, r)
        measured |= backdoor(parts, state.result) if due else {}
        record = {"round": r, **measured, **record_of(cohort, traffic, spent, moved, info)}
        record |= absent_of(trainer)
        watch.lap("evaluate")
        record |= watch.read()
        record["seconds"] = sum(record[f"seconds_{stage}"] for stage in STAGES)
        folder.log(record)
        if not first_on_disk:
            checkpoints.write(state, round=r + 1)
        observe(record)
        watch.lap("write")
    return state, "rounds"


def _restored(folder: Folder, parts: Parts) -> tuple[State, int] | None:
    """The state of the last checkpoint, where this run has its parameters.

    Raises: BadInput, before anybody pays, where it lacks something that this version's rounds go on from, or has it otherwise.
    """
    found = folder.restore()
    if found is None:
        return None
    state, first = found
    going_on = (
        first < parts.experiment.train.rounds and not parts.plan.once
    )  # noise that goes on is looked at by its mechanism
    if not _fits(state, parts.algorithm.init(parts.params), rounds_left=going_on):
        raise BadInput(
            f"{folder.path / CHECKPOINT} is damaged, or was written by another version of Tacit, and rounds cannot go on from"
            " it: finish the run with that version, or start again with --force, which keeps its files. Nothing was charged."
        )
    return state.to(parts.params.device), first


def _fits(state: State, begins: State, *, rounds_left: bool) -> bool:
    """Whether a state has what a run that begins with `begins` goes on from, or ends with: own models are never made anew."""
    kept = [({"": begins.params}, {"": state.params}), (begins.control, state.control)]
    kept += [] if state.average is None else [({"": begins.params}, {"": state.average})]
    kept += [(begins.optimizer, state.optimizer)] if rounds_left else []
    alike = all(_alike(tensor, old.get(name)) for new, old in kept for name, tensor in new.items())
    return alike and (
        not rounds_left or set(begins.memory) <= set(state.memory)
    )  # a rule's memory may change its shapes


def _alike(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    return other is not None and other.shape == one.shape and other.dtype == one.dtype


def is_due(experiment: Experiment, round: int) -> bool:
    """Whether the model of a round is tested; that of the last planned one always is.

    >>> [r for r in range(8) if is_due(Experiment(train={"rounds": 8}, run={"evaluate_every": 3}), r)]
    [2, 5, 7]
    """
    done = round + 1
    return done % (experiment.run.evaluate_every or 1) == 0 or done == experiment.train.rounds


def _refuse_diverged(measured: dict[str, float], state: State, round: int) -> None:
    """Raises TrainingDiverged for a test loss that is not finite; without test rows, for such a model."""
    loss = measured.get("loss", 0.0 if bool(torch.isfinite(state.result).all()) else math.nan)
    if not math.isfinite(loss):
        what = "The test loss" if measured else "The model"
        raise TrainingDiverged(
            f"{what} became {loss} in round {round + 1}: lower train.learning_rate; the last checkpoint is kept."
        )


def averaged(state: State, before: State, *, rate: float, round: int) -> State:
    """The state with the running mean of its parameters: the noise of single rounds averages out of the result.

    Training itself goes on from `params`. It is post-processing, so it costs no privacy (tacit/training/optimizer.py).
    """
    if not rate:
        return state
    old = before.params if before.average is None else before.average
    return replace(state, average=old.lerp(state.params, 1 - kept(rate, round=round)))
