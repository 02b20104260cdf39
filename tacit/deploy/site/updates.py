"""The update that a site sends in a job of another framework: clipped, noised, charged, kept, and only then sent.

The job's own code trains; `deploy/flower_mod.py` and `deploy/nvflare_filter.py` bring its result here. The mechanism is that of
`privacy.kind = "local"` per client. Guarantee: for whoever sees every answer, to empty the client costs what `[updates]` in
budget.toml says, whatever the job asks and whatever its training returns or raises: what is no update counts as zero, and gets
its noise. Assumes `ASSUMES`."""

import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from tacit import wire
from tacit.deploy.site import layout
from tacit.deploy.site.agreement import open_ledger, write_promise
from tacit.deploy.site.limits import Demand, Limits, Updates, hold, read_limits
from tacit.deploy.site.replies import FURTHEST, Slot, budget_named, find, keep
from tacit.deploy.site.site import guarded
from tacit.errors import BadInput, BudgetExhausted, Refused
from tacit.experiment import Experiment
from tacit.privacy.guarantee import agreed, promise
from tacit.privacy.ledger.ledger import seal
from tacit.privacy.local import SampledGaussian, promised
from tacit.privacy.mechanism import bound
from tacit.random import from_os
from tacit.types import Bounded, Budget, Client

Arrays = Mapping[str, np.ndarray]
ASSUMES = (
    "the job's code, which the site lets in, sends nothing of the rows by any other way",
    "how long training takes tells nothing of the rows, or answer_seconds hides it",
)
DECIDED = (
    "The job decides the model, the local steps, the weights of sites, who sees the updates, and how many rounds there are, of"
    " which at most {} are answered: the epsilon holds whatever it decides. No metric and no number of examples is sent."
)


@dataclass(frozen=True, eq=False)
class Paid:
    """A question of a job that was charged for, on disk, or whose answer is kept. `release` makes its one answer."""

    site: Path
    slot: Slot
    question: bytes = field(repr=False)
    received: Arrays = field(repr=False)
    mechanism: SampledGaussian
    answered: bool
    began: float

    def release(self, train: Callable[[], Arrays], *, difference: bool = False) -> dict[str, np.ndarray]:
        """What was received plus the noised update of what `train` returns, or the update alone (`difference`); whole numbers
        stay as they came. Guarantee: it is on disk, and the one answer to this question; nothing that `train` does decides
        whether, when (`answer_seconds`) or in what form it comes. Raises: Refused where a later round was answered."""
        about = {"kind": "train", "run": self.slot.folder.name, "round": self.slot.round}
        new = None if self.answered else self._noised(train, about)
        raw = guarded(self.site, lambda: self._answer(new, about), about, began=self.began)
        vector, arrays = np.frombuffer(raw, np.float32), dict[str, np.ndarray]()
        for name, old in self.received.items():
            size = old.size if old.dtype.kind == "f" else 0
            update, vector = vector[:size].reshape(old.shape) if size else np.zeros_like(old), vector[size:]
            with np.errstate(over="ignore"):
                arrays[name] = update if difference else (old + update).astype(old.dtype)
        return arrays

    def _answer(self, new: bytes | None, about: dict[str, Any]) -> bytes:
        kept = find(self.slot, self.question)  # it was asked before, or another process was asked meanwhile
        if kept is None:
            kept = keep(self.slot, self.question, cast(bytes, new))
        layout.note(self.site, verdict="answered", text="Sent the noised update.", **about)
        return kept.raw

    def _noised(self, train: Callable[[], Arrays], about: dict[str, Any]) -> bytes:
        try:
            bounded = bound(_difference(self.received, train()), clip=self.mechanism.clip)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - it may depend on the rows: only the site's log tells
            text = f"Sends a zero update with its noise. {layout.discreet(error)}"
            layout.note(self.site, verdict="failed", text=text, **about)
            bounded = Bounded(_difference(self.received, self.received), self.mechanism.clip)
        _, noised = self.mechanism.noise(self.mechanism.init(), from_os()("update"), bounded)
        return noised.vector.numpy().tobytes()


def pay(
    site: Path | str, job: str, asked: Callable[[], tuple[object, Arrays]], *, assumes: tuple[str, ...] = ()
) -> Paid:
    """Charges the site's ledger for the round (from 0) that a job asks for and the arrays that came, unless its answer is kept.
    Guarantee: on return the charge is on disk, within the budget with all that the ledger has sealed. Nothing follows from the
    rows. `assumes` is what must hold beside `ASSUMES`. Raises: Refused, BudgetExhausted, in words that may be told."""
    began, folder, run = time.monotonic(), Path(site), wire.digest_of("job of another framework", job)[:32]

    def work() -> Paid:
        limits, (round, received) = read_limits(folder), asked()
        if (updates := limits.updates) is None or limits.unit != "client":
            raise BadInput(
                f'{folder / layout.BUDGET} says nothing of jobs of other frameworks: add unit = "client", and [updates] with'
                " clip, noise_multiplier and rounds."
            )
        mechanism = SampledGaussian(updates.noise_multiplier, updates.clip, 1.0)
        number, question = _read(round, received, limits)
        slot = Slot(layout.run_folder(folder, run), number)
        paid = Paid(folder, slot, question, received, mechanism, find(slot, question) is not None, began)
        if not paid.answered:
            _charge(paid, limits, updates, assumes)
        return paid

    return guarded(folder, work, {"kind": "pay", "run": run})


def _read(round: object, received: Arrays, limits: Limits) -> tuple[int, bytes]:
    kinds = {old.dtype.kind if old.dtype.itemsize <= 8 else "" for old in received.values()}
    if type(round) is not int or not 0 <= round <= FURTHEST:
        raise Refused("The job does not say its round, as a whole number.")
    if "f" not in kinds or not kinds <= set("fiub"):
        raise Refused("The job's model is not made of arrays of 16- to 64-bit numbers, some of them floating-point.")
    if not all(np.isfinite(old).all() for old in received.values()):
        raise Refused("The job's model holds numbers that are not finite: every update of it would be lost.")
    floats = sum(old.size for old in received.values() if old.dtype.kind == "f")
    hold(limits, Demand(size=sum(old.nbytes for old in received.values()), parameters=floats))
    parts = [(name, old.dtype.str, repr(old.shape), old.tobytes()) for name, old in received.items()]
    return round, wire.digest_of(*(part for each in parts for part in each)).encode()


def _charge(paid: Paid, limits: Limits, updates: Updates, assumes: tuple[str, ...]) -> None:
    settings, event, rounds = layout.read_settings(paid.site), paid.mechanism.event(), updates.rounds
    budget, name = Budget(limits.epsilon, limits.delta * updates.delta_share, "client"), settings["name"]
    client = Client(0, name, budget, torch.empty(0), torch.empty(0))
    options = {"run": paid.slot.folder.name, "delta": limits.delta, "rounds": rounds, "spare": False}
    with closing(open_ledger(paid.site, settings, population=None, **options)) as ledger:
        most = ledger.rounds_left(client, event, hint=rounds)
        if most and not ledger.charged_rounds():
            epsilon = seal(budget, event, most=most).epsilon
            privacy = {"kind": "local", "unit": "client", "epsilon": epsilon, "delta": budget.delta}
            said = promise(Experiment(privacy=privacy, run={"randomness": "os"}), promised("client"))
            said = replace(said, assumes=(*said.assumes, *ASSUMES, *assumes))
            text = agreed(said, client=name, epsilon=epsilon)
            folder = layout.make_folder(paid.slot.folder)
            write_promise(folder, f"{text}\n{DECIDED.format(most)}", said)
        ledger.open_round(paid.slot.round, uuid.uuid4().hex)  # every attempt draws other noise
        if not ledger.admit([client], lambda _: event, hint=rounds):
            of_it = f"of which a job may have {rounds} rounds and {updates.delta_share:g} of delta,"
            raise BudgetExhausted(
                f"{budget_named(limits)}, {of_it} does not pay for round {paid.slot.round + 1} of it."
            )


def _difference(received: Arrays, trained: Arrays) -> torch.Tensor:
    parts = list[np.ndarray]()
    for name, old in received.items():
        if old.dtype.kind == "f":
            new = np.asarray(trained[name])
            if new.shape != old.shape or new.dtype.kind != "f":
                raise BadInput("The job's training returned an array of another shape or kind than it was given.")
            with np.errstate(all="ignore"):  # what is not finite is found when it is clipped
                parts.append((new.astype(np.float64) - old).astype(np.float32).ravel())
    return torch.from_numpy(np.concatenate(parts))
