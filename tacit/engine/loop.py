"""The loop: sample, pay, train, combine, record, checkpoint. The ledger is paid, on disk, before anybody trains."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tacit.build import Parts
from tacit.engine.cohort import gather
from tacit.engine.evaluate import evaluate
from tacit.engine.folder import Folder
from tacit.engine.meter import Meter
from tacit.engine.wire import pack, receive, receive_any
from tacit.errors import TrainingDiverged
from tacit.privacy.ledger import Ledger
from tacit.train.cohort import Trainer
from tacit.types import Message, State

Observer = Callable[[dict[str, Any]], None]


@dataclass
class Traffic:
    """What one round moved and what its clients told the researcher."""

    uplink: int = 0
    info: list[dict[str, float]] = field(default_factory=list)

    def mean(self, key: str) -> float | None:
        values = [info[key] for info in self.info if key in info]
        return sum(values) / len(values) if values else None


def loop(parts: Parts, ledger: Ledger | None, folder: Folder, trainer: Trainer, observe: Observer) -> tuple[State, str]:
    """Runs the rounds that are left. Returns the last state and why it stopped: "rounds" or "budget"."""
    train, algorithm = parts.experiment.train, parts.algorithm
    state, first = folder.restore() or (algorithm.init(parts.params), 0)
    folder.rounds(before=first)
    if ledger is not None:
        ledger.open_round(first)
    meter = Meter(parts, ledger)
    for r in range(first, train.rounds):
        started = time.perf_counter()
        if ledger is not None:
            ledger.open_round(r)
        cohort = gather(parts, ledger, meter, r)  # pays first; who cannot pay stays out
        if cohort is None:
            return state, "budget"
        received, traffic = pack(algorithm.broadcast(state, cohort)), Traffic()
        replies = trainer(received, r, [client.index for client in cohort])
        messages = _wire(replies, traffic, r, forgiving=algorithm.forgiving)
        state, info = algorithm.server(state, messages, partial(parts.derive, "server", r))
        accuracy, loss = evaluate(parts, state.params)
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
            **meter.after(cohort),
            "uplink_bytes": traffic.uplink,
            "downlink_bytes": len(received) * len(cohort),
            **info,
            "seconds": time.perf_counter() - started,
        }
        folder.log(record)
        folder.checkpoint(state, next_round=r + 1)
        observe(record)
    return state, "rounds"


def _wire(
    replies: Iterator[tuple[bytes, dict[str, float]]], traffic: Traffic, round: int, *, forgiving: bool
) -> Iterator[Message]:
    """What arrives. A forgiving server judges each message itself, so that no client can end the run."""
    for raw, info in replies:
        traffic.uplink += len(raw)
        traffic.info.append(info)
        yield receive_any(raw) if forgiving else receive(raw, round=round)
