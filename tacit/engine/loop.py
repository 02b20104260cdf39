"""The loop: sample, pay, train, combine, record, checkpoint. The ledger is paid, on disk, before anybody trains."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

from tacit.build.parts import Parts
from tacit.digest import state_mark
from tacit.engine.admit import gather
from tacit.engine.evaluate import evaluate
from tacit.engine.folder import Folder
from tacit.engine.meter import Meter
from tacit.engine.trainers.processes import Trainer
from tacit.engine.watch import STAGES, Traffic, Watch
from tacit.engine.wire import pack, receive, receive_any
from tacit.errors import TrainingDiverged
from tacit.privacy.ledger.ledger import Ledger
from tacit.types import Client, Message, State

WARM_UP = 10  # rounds: in round r the mean keeps at most r/(r + 10) of what it was

Observer = Callable[[dict[str, Any]], None]


def loop(parts: Parts, ledger: Ledger | None, folder: Folder, trainer: Trainer, observe: Observer) -> tuple[State, str]:
    """Runs the rounds that are left. Returns the last state and why it stopped: "rounds" or "budget"."""
    train, algorithm = parts.experiment.train, parts.algorithm
    state, first = folder.restore() or (algorithm.init(parts.params), 0)
    folder.rounds(before=first)
    if ledger is not None:
        ledger.open_round(first, parts.releases.attempt(state_mark(state)))
    meter, watch = Meter(parts, ledger, first_round=first), Watch()
    for r in range(first, train.rounds):
        begins = state_mark(state)
        if ledger is not None:
            ledger.open_round(r, parts.releases.attempt(begins))
        derive = parts.releases.server(begins)
        away = _away(trainer, meter)
        cohort = gather(parts, ledger, meter, r, derive, away=away)  # pays first; who cannot pay stays out
        if cohort is None:
            return state, "budget"
        received, traffic = pack(algorithm.broadcast(state, cohort)), Traffic()
        watch.lap("admit")
        replies = trainer(received, r, [client.index for client in cohort])
        messages = _wire(replies, traffic, r, watch, forgiving=algorithm.forgiving)
        before, (state, info) = state, algorithm.server(state, messages, partial(derive, "server", r))
        state = averaged(state, before, rate=train.averaging, round=r)
        watch.lap("server")
        accuracy, loss = evaluate(parts, state.result)
        watch.lap("evaluate")
        if not math.isfinite(loss):
            raise TrainingDiverged(
                f"The test loss became {loss} in round {r}: lower train.learning_rate; the last checkpoint is kept."
            )
        record = {
            "round": r,
            "accuracy": accuracy,
            "loss": loss,
            "train_loss": traffic.mean("loss"),
            "clipped": traffic.mean("clipped"),
            "cohort": len(cohort),
            "answered": len(traffic.info),
            **meter.after(cohort, last=r + 1 == train.rounds),
            "update_norm": float((state.params - before.params).norm()),
            **traffic.signal(info, state.params.numel()),
            "uplink_bytes": traffic.uplink + info.pop("answered_bytes", 0),
            "downlink_bytes": len(received) * len(cohort)
            + info.pop("asked_bytes", 0),  # sealed reports go on to whoever opens the sum
            **info,
            **_diverged(cohort, traffic),
            **_absent(trainer),
        }
        watch.lap("admit")  # what was spent is priced with the admission
        record |= watch.read()
        record["seconds"] = sum(record[f"seconds_{stage}"] for stage in STAGES)
        folder.log(record)
        folder.checkpoint(state, next_round=r + 1)
        observe(record)
        watch.lap("write")
    return state, "rounds"


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


def _diverged(cohort: list[Client], traffic: Traffic) -> dict[str, Any]:
    """Whose training diverged, for the researcher: where nobody may see that in a message, the run goes on."""
    names = [client.id for client, info in zip(cohort, traffic.info, strict=False) if info.get("diverged")]
    return {"diverged": names} if names else {}


def _wire(
    replies: Iterator[tuple[bytes, dict[str, float]]], traffic: Traffic, round: int, watch: Watch, *, forgiving: bool
) -> Iterator[Message]:
    """What arrives. A forgiving server judges each message itself, so that no client can end the run."""
    for raw, info in replies:
        watch.lap("train")  # the server waits for clients; what it does between two messages is its own time
        traffic.uplink += len(raw)
        traffic.info.append(info)
        message = receive_any(raw) if forgiving else receive(raw, round=round)
        if not forgiving:  # what a forgiving server gets may be anything, and carries no noise
            traffic.take(message)
        yield message
        watch.lap("server")
