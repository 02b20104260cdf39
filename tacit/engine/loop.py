"""The loop. A round: draw, dispatch, pay, receive, combine, evaluate, record.
The ledger is paid, on disk, before anything that was trained is read: a device may be at work meanwhile, and a CPU computes a
reply when it is read. Whoever has trained is heard before the next one's message is looked at."""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import torch

from tacit.algorithms.scaffold import CORRECTION
from tacit.engine.assemble import Parts
from tacit.engine.budget import BudgetTracker
from tacit.engine.canaries import record_observation
from tacit.engine.evaluate import backdoor, evaluate, evaluating
from tacit.engine.run_folder import CHECKPOINT, Checkpoints, Folder
from tacit.engine.trainers import Pending, Trainer
from tacit.errors import BadInput, LedgerError, TrainingDiverged
from tacit.experiment import Experiment
from tacit.privacy.ledger.ledger import Ledger
from tacit.random import Derive
from tacit.training.optimizer import kept
from tacit.types import Client, Message, State
from tacit.wire import digest_of, receive, receive_any, size_of, state_digest

Observer = Callable[[dict[str, Any]], None]
Item = TypeVar("Item")


def loop(parts: Parts, ledger: Ledger | None, folder: Folder, trainer: Trainer, observe: Observer) -> tuple[State, str]:
    """Runs the rounds that are left. Returns the last state and why it stopped: "rounds" or "budget". Raises TacitError.
    Guarantee: a round is charged on disk before anything that was trained in it is read; messages are taken one by one, each
    once, and no more of them are held than the algorithm keeps. The last checkpoint is kept."""
    algorithm, plan, experiment = parts.algorithm, parts.plan, parts.experiment
    state, first = _begun(parts, ledger, folder)
    last, budgets, watch = experiment.train.rounds - 1, BudgetTracker(parts, ledger, first_round=first), Watch()
    with Checkpoints(folder, state.params.device, once=plan.traits.single_release) as checkpoints:
        for r in range(first, last + 1):
            before, traffic = state, Traffic()
            with watch("admit"):
                derive = open_round(parts, ledger, state, r)
                drawn = budgets.draw(r, derive, unpaid=trainer.unpaid, away=trainer.away())
            with watch("train"):  # a device is at work while they pay
                message, pending = _dispatched(parts, ledger, trainer, state, r, drawn or ())
            with watch("admit"):
                cohort = budgets.charge(drawn)  # on disk before anything is read; who cannot pay stays out
            if cohort is None:
                return state, "budget"
            if len(cohort) < len(drawn or ()):
                with watch("train"):
                    message, pending = _dispatched(parts, ledger, trainer, state, r, cohort)
            with watch("server"):
                traffic.downlink = _downlink(message, len(cohort))
                collecting = algorithm.collect(state, round=r)
            for sent, told in watch.each("train", pending):
                with watch("server"):
                    received = _received(sent, told, traffic, r, tolerates_invalid=algorithm.tolerates_invalid)
                    collecting.add(received.to(state.params.device))
            with watch("server"):
                state, info = collecting.finish(partial(derive, "server", r))
                state = averaged(state, before, rate=experiment.train.averaging, round=r)
                if _is_repeated(parts):
                    checkpoints.write(state, round=r + 1)
                if plan.traits.single_release and ledger is not None:
                    ledger.release(released(r), state_digest(state))
                if parts.canaries is not None:
                    record_observation(parts.canaries, folder.path, r, cohort, traffic.info, info)
            with watch("evaluate"):
                evaluated = evaluating(parts, state.result) if is_due(experiment, r) else dict
                moved = state.params - before.params
            with watch("admit"):  # what was spent is priced while a device evaluates
                spent = budgets.after(r, cohort)
            with watch("evaluate"):
                tested = _finite(evaluated(), state, r) | (
                    backdoor(parts, state.result) if is_due(experiment, r) else {}
                )
                record = {"round": r, **tested, **record_of(cohort, traffic, spent, moved, info)}
                record |= {} if trainer.absent is None else {"absent": dict(trainer.absent)}
            seconds = watch.read()
            record |= seconds | {"seconds": sum(seconds.values())}
            with watch("write"):
                folder.log(record)
                if not _is_repeated(parts):
                    checkpoints.write(state, round=r + 1)
                observe(record)
    return state, "rounds"


def _begun(parts: Parts, ledger: Ledger | None, folder: Folder) -> tuple[State, int]:
    """The state that the run goes on from and its round; whatever can be refused is refused before anybody pays."""
    algorithm, single = parts.algorithm, parts.plan.traits.single_release
    state, first = _restored(folder, parts) or (algorithm.init(parts.params), 0)
    evaluate(parts, state.result)  # a metric that the test rows cannot tell
    if first < parts.experiment.train.rounds:
        algorithm.collect(state, round=first)  # a state that noise cannot go on from
    if single and first and ledger is not None:  # the ledger knows what the checkpoint goes on from, or is told now
        ledger.release(released(first - 1), state_digest(state))
    open_round(parts, ledger, state, first)  # before anything of the folder is dropped: it may refuse
    folder.rounds(before=first)
    return state, first


def released(round: int) -> str:
    """Under which name the ledger knows that a round was released."""
    return f"round {round}"


def _is_repeated(parts: Parts) -> bool:
    """Whether a round may be repeated only if it was never released: its checkpoint is then written first.
    Sites answer the same question with the same report, for one charge: a second sum, of others of them, would show who is new."""
    summed = parts.is_deployed and parts.plan.traits.summed and not parts.plan.sampler.charges_all
    return parts.plan.traits.single_release or summed


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
        # two releases of a round have the noise of the rounds before it in common, whose clients pay once
        single = parts.plan.traits.single_release and (parts.is_deployed or parts.nonce or not ledger.again)
        if single and (ledger.ahead or ledger.released(released(round))):
            known = f"The ledger {ledger.path} was charged for rounds after round {round + 1}"
            raise LedgerError(
                f"{known if ledger.ahead else f'Round {round + 1} was released'}, from which the checkpoint would go on: its noise"
                " has been used since, and used twice it would show what it hides. Put the newest checkpoint back, or start anew"
                " with --force; nothing was released."
            )
    return parts.releases.server(begins)


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
    sent: bytes | Message, info: dict[str, float], traffic: "Traffic", round: int, *, tolerates_invalid: bool
) -> Message:
    traffic.info.append(info)
    traffic.uplink += size_of(sent) if isinstance(sent, Message) else len(sent)
    if tolerates_invalid:  # it may be anything, and carries no noise
        return sent if isinstance(sent, Message) else receive_any(sent)
    message = sent if isinstance(sent, Message) else receive(sent, round=round)
    traffic.take(message)
    return message


def _downlink(message: Message, clients: int) -> int:
    rows = message.tensors.get(
        CORRECTION
    )  # a simulation has one message for all, and each client reads its own row of it
    others = 0 if rows is None else (len(rows) - 1) * rows.shape[1] * rows.element_size()
    return (size_of(message) - others) * clients


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


# What a round tells its reader beside the result: seconds by stage, traffic, and signal. Nothing here feeds back into a run.

STAGES: tuple[str, ...] = ("admit", "train", "server", "evaluate", "write")


class Watch:
    """Seconds by stage: `with watch("train"): ...`.
    The write stage of a round ends after its record is written, so a record carries that of the round before."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(STAGES, 0.0)

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[stage] += time.perf_counter() - began

    def each(self, stage: str, items: Iterator[Item]) -> Iterator[Item]:
        """The items; waiting for each counts for a stage, what is done with it does not."""
        while True:
            with self(stage):
                item = next(items, None)
            if item is None:
                return
            yield item

    def read(self) -> dict[str, float]:
        """The seconds since the last reading, as `seconds_<stage>`; all start from zero again."""
        seconds, self._seconds = self._seconds, dict.fromkeys(STAGES, 0.0)
        return {f"seconds_{stage}": round(seconds[stage], 6) for stage in STAGES}


@dataclass
class Traffic:
    """What one round moved, what its clients told the researcher, and the signal in the updates that carry noise."""

    uplink: int = 0
    downlink: int = 0
    info: list[dict[str, float]] = field(default_factory=list)
    norms: list[tuple[torch.Tensor, float]] = field(default_factory=list)  # of updates, and of their noise as expected

    def take(self, message: Message) -> None:
        """Looks at an update that states its noise; one without noise is not looked at: its norm would be private."""
        update, noise_std = message.tensors.get("update"), message.facts.get("noise_std")
        if update is not None and isinstance(noise_std, float) and noise_std > 0:
            self.norms.append((update.norm(), noise_std * math.sqrt(update.numel())))

    def mean(self, key: str) -> float | None:
        """The mean of what clients told under a key; None where nobody did."""
        values = [info[key] for info in self.info if key in info]
        return sum(values) / len(values) if values else None

    def signal(self, info: dict[str, Any], size: int) -> dict[str, float]:
        """The signal-to-noise ratio of the round's updates: the median client, the lowest and the highest.
        Where the server adds the noise, that of the noised sum, which is what it releases."""
        if "noised_norm" in info and info.get("noise_std"):
            return {"signal_to_noise": signal_to_noise(float(info["noised_norm"]), info["noise_std"] * math.sqrt(size))}
        if not self.norms:
            return {}
        norms = torch.stack([norm for norm, _ in self.norms]).tolist()  # one look at the device for all clients
        ratios = [signal_to_noise(norm, noise) for norm, (_, noise) in zip(norms, self.norms, strict=True)]
        ends = {"signal_to_noise_low": min(ratios), "signal_to_noise_high": max(ratios)}
        return {"signal_to_noise": statistics.median(ratios)} | ends


def signal_to_noise(released: float, noise: float) -> float:
    """|signal| / |noise|, estimated from the norm of a released update and the expected norm of its noise.
    |update|^2 is |signal|^2 + |noise|^2 on average. Post-processing of what was released, so it costs no privacy.

    >>> signal_to_noise(5.0, 3.0), signal_to_noise(2.9, 3.0)
    (1.3333333333333333, 0.0)
    """
    return math.sqrt(max(0.0, released**2 - noise**2)) / noise


def record_of(
    cohort: list[Client], traffic: Traffic, spent: dict[str, Any], moved: torch.Tensor, info: dict[str, Any]
) -> dict[str, Any]:
    """What a round tells its reader beside the result: who took part, what it cost, how far the model moved, what was sent."""
    opened, opening = info.pop("answered_bytes", 0), info.pop("asked_bytes", 0)  # between server and key holders
    diverged = [client.id for client, info in zip(cohort, traffic.info, strict=False) if info.get("diverged")]
    return {
        "train_loss": traffic.mean("loss"),
        "clipped": traffic.mean("clipped"),
        "cohort": len(cohort),
        "answered": len(traffic.info),
        **spent,
        "update_norm": float(moved.norm()),
        **traffic.signal(info, moved.numel()),
        "uplink_bytes": traffic.uplink + opened,
        "downlink_bytes": traffic.downlink + opening,
        **{name: value.item() if isinstance(value, torch.Tensor) else value for name, value in info.items()},
        **({"diverged": diverged} if diverged else {}),  # for the researcher: nobody may see it in a message
    }
