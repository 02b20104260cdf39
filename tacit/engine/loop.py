"""The loop, in the order in which a round happens: admit and pay, broadcast, train, wire, server, evaluate, record, checkpoint.

The ledger is paid, on disk, before anybody trains. Whoever has trained is heard before the next one's message is looked at: the
loop takes a message from the trainer and gives it to the server's part, which never asks for one.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch

from tacit.algorithms.scaffold import others_bytes
from tacit.build.parts import Parts
from tacit.digest import mark, state_mark
from tacit.engine.admit import gather
from tacit.engine.canaries import keep_sight
from tacit.engine.checkpoints import Checkpoints
from tacit.engine.evaluate import backdoor, evaluate, evaluating
from tacit.engine.folder import Folder
from tacit.engine.meter import Meter
from tacit.engine.trainers.processes import Trainer
from tacit.engine.watch import STAGES, Traffic, Watch
from tacit.engine.wire import pack, receive, receive_any, size_of
from tacit.errors import LedgerError, TrainingDiverged
from tacit.privacy.ledger.ledger import Ledger
from tacit.random import Derive
from tacit.types import Client, Message, State

WARM_UP = 10  # rounds: in round r the mean keeps at most r/(r + 10) of what it was

Observer = Callable[[dict[str, Any]], None]


def loop(parts: Parts, ledger: Ledger | None, folder: Folder, trainer: Trainer, observe: Observer) -> tuple[State, str]:
    """Runs the rounds that are left. Returns the last state and why it stopped: "rounds" or "budget".

    Guarantee: a round is charged on disk before anybody trains in it; messages are taken one by one, each once, and no more of
    them are held than the algorithm keeps. Raises TacitError for whatever ends the run; the last checkpoint is kept.
    """
    algorithm = parts.algorithm
    state, first = _restored(folder, parts) or (algorithm.init(parts.params), 0)
    evaluate(
        parts, state.result
    )  # a metric that is not there, or that the test rows cannot tell, is refused before anybody pays
    if parts.plan.once and first < parts.experiment.train.rounds:
        algorithm.collect(state, round=first)  # a state that its noise cannot go on from is refused before anybody pays
    _open_round(parts, ledger, state, first)  # before anything of the folder is dropped: it may refuse
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
    for r in range(first, train.rounds):
        derive, away = _open_round(parts, ledger, state, r), _away(trainer, meter)
        cohort = gather(parts, ledger, meter, r, derive, away=away)  # pays first; who cannot pay stays out
        if cohort is None:
            return state, "budget"
        message = algorithm.broadcast(state, cohort, round=r)
        told = size_of(message) - others_bytes(message)  # by one client
        traffic, collecting = Traffic(downlink=told * len(cohort)), algorithm.collect(state, round=r)
        watch.lap("admit")
        for sent, told in _asked(trainer, message, r, [client.index for client in cohort]):  # the clients train
            watch.lap("train")  # the server waits for clients; what it does between two messages is its own time
            message = _wire(sent, told, traffic, r, forgiving=algorithm.forgiving)
            collecting.add(message.to(state.params.device))
            watch.lap("server")
        before, (state, info) = state, collecting.finish(partial(derive, "server", r))
        state = averaged(state, before, rate=train.averaging, round=r)
        if parts.plan.once:  # on disk before anybody is told of it: what is repeated after a crash was never released
            checkpoints.write(state, round=r + 1)
            if ledger is not None:
                ledger.release(released(r), state_mark(state))
        keep_sight(parts, folder, r, cohort, traffic.info, info)
        watch.lap("server")
        evaluated, moved = evaluating(parts, state.result), state.params - before.params
        watch.lap("evaluate")
        again = [client for client in cohort if parts.plan.asked_from(client.index, r + 1, rounds=train.rounds)]
        spent = meter.after(again, last=r + 1 == train.rounds)  # while a device evaluates
        watch.lap("admit")  # what was spent is priced with the admission
        measured = evaluated()
        _refuse_diverged(measured, state, r)
        measured |= backdoor(parts, state.result)
        record = {"round": r, **measured, **_record(cohort, traffic, spent, moved, info)}
        record |= _absent(trainer)
        watch.lap("evaluate")
        record |= watch.read()
        record["seconds"] = sum(record[f"seconds_{stage}"] for stage in STAGES)
        folder.log(record)
        if not parts.plan.once:
            checkpoints.write(state, round=r + 1)
        observe(record)
        watch.lap("write")
    return state, "rounds"


def _restored(folder: Folder, parts: Parts) -> tuple[State, int] | None:
    """The state of the last checkpoint, where this run has its parameters."""
    found = folder.restore()
    return found and (found[0].to(parts.params.device), found[1])


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
            f"The ledger {ledger.path} was charged for rounds after {round}"
            if ledger.ahead
            else f"Round {round} was released"
        )
        raise LedgerError(
            f"{known}, from which the checkpoint would go on: its noise has been used since, and used twice it would show what it"
            " hides. Put the newest checkpoint back, or start anew with --force; nothing was released."
        )


def _refuse_diverged(measured: dict[str, float], state: State, round: int) -> None:
    """Raises TrainingDiverged for a test loss that is not finite; without test rows, for such a model."""
    loss = measured.get("loss", 0.0 if bool(torch.isfinite(state.result).all()) else math.nan)
    if not math.isfinite(loss):
        what = "The test loss" if measured else "The model"
        raise TrainingDiverged(
            f"{what} became {loss} in round {round}: lower train.learning_rate; the last checkpoint is kept."
        )


def _open_round(parts: Parts, ledger: Ledger | None, state: State, round: int) -> Derive:
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


@runtime_checkable
class Carrying(Protocol):
    """A trainer that passes tensors on, which stay on their device; its clients are in this very process."""

    def carry(
        self, received: Message, round: int, cohort: Sequence[int], /
    ) -> Iterator[tuple[Message, dict[str, float]]]:
        """What the clients release, in their order. Guarantee: every number in it is finite."""
        ...


def _asked(
    trainer: Trainer, message: Message, round: int, cohort: Sequence[int]
) -> Iterator[tuple[Any, dict[str, float]]]:
    """The clients' answers to a broadcast: messages where the trainer carries them, else bytes."""
    return (
        trainer.carry(message, round, cohort)
        if isinstance(trainer, Carrying)
        else trainer(pack(message), round, cohort)
    )


def _wire(raw: bytes | Message, told: dict[str, float], traffic: Traffic, round: int, *, forgiving: bool) -> Message:
    """What arrives. A forgiving server judges each message itself, so that no client can end the run."""
    traffic.info.append(told)
    if isinstance(raw, Message):
        traffic.uplink += size_of(raw)
        if not forgiving:
            traffic.take(raw)
        return raw
    traffic.uplink += len(raw)
    if forgiving:  # what it gets may be anything, and carries no noise
        return receive_any(raw)
    message = receive(raw, round=round)
    traffic.take(message)
    return message


def averaged(state: State, before: State, *, rate: float, round: int) -> State:
    """The state with the running mean of its parameters: the noise of single rounds averages out of the result.

    Training itself goes on from `params`. It is post-processing, so it costs no privacy (De et al. 2022, arXiv:2204.13650,
    sec. 3.3). The mean forgets at `rate`, and faster in the first rounds, so that the start weighs nothing.
    """
    if not rate:
        return state
    kept = min(rate, round / (round + WARM_UP))
    old = before.params if before.average is None else before.average
    return replace(state, average=old.lerp(state.params, 1 - kept))


@runtime_checkable
class Elsewhere(Protocol):
    """A trainer whose clients are on other machines: some are away, and some do not answer."""

    absent: dict[str, str]  # who did not answer in the last round, with the reason
    unpaid: set[int]  # whose own ledger does not pay any more

    def away(self) -> set[int]:
        """Who has left, and need not be asked before it is back."""
        ...


def _away(trainer: Trainer, meter: Meter) -> set[int]:
    """Who is asked nothing in the coming round; whose own ledger is spent counts as out of budget."""
    if not isinstance(trainer, Elsewhere):
        return set()
    meter.leave(trainer.unpaid)
    return trainer.away()


def _absent(trainer: Trainer) -> dict[str, Any]:
    """Who was missing from the round, and why, where clients can be missing."""
    return {"absent": dict(trainer.absent)} if isinstance(trainer, Elsewhere) else {}


def _record(
    cohort: list[Client], traffic: Traffic, spent: dict[str, Any], moved: torch.Tensor, info: dict[str, Any]
) -> dict[str, Any]:
    """What a round tells its reader beside the result: who took part, what it cost, how far the model moved, what was sent."""
    asked, answered = (
        info.pop("asked_bytes", 0),
        info.pop("answered_bytes", 0),
    )  # reports go on to whoever opens the sum
    return {
        "train_loss": traffic.mean("loss"),
        "clipped": traffic.mean("clipped"),
        "cohort": len(cohort),
        "answered": len(traffic.info),
        **spent,
        "update_norm": float(moved.norm()),
        **traffic.signal(info, moved.numel()),
        "uplink_bytes": traffic.uplink + answered,
        "downlink_bytes": traffic.downlink + asked,
        **info,
        **_diverged(cohort, traffic),
    }


def _diverged(cohort: list[Client], traffic: Traffic) -> dict[str, Any]:
    """Whose training diverged, for the researcher: where nobody may see that in a message, the run goes on."""
    names = [client.id for client, info in zip(cohort, traffic.info, strict=False) if info.get("diverged")]
    return {"diverged": names} if names else {}
