"""One site: it hears what the server asks, decides, pays its own ledger, trains, and answers.

Guarantee: nothing leaves before the site's ledger has been charged for it on the site's disk. One round is one question and one
answer (`outbox`). The budget file is read and applied before every answer. Whatever goes wrong, whatever was sent, the answer is
a refusal in words that say nothing about the rows, and the site goes on.
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import tacit
from tacit.algorithms import rule_of
from tacit.engine.wire import all_finite, unpack
from tacit.errors import BadInput, BudgetExhausted, Refused, TacitError
from tacit.experiment import Experiment
from tacit.federation.site import agreement, outbox, sealed, store
from tacit.federation.site.agreement import Agreement, Terms, refuse_other
from tacit.federation.site.asked import Agree, Hello, Open, Train, facts, question
from tacit.federation.site.join import (
    Joined,
    join,
    read_experiment,
    read_rows,
    read_settings,
    refuse_crowd,
    refuse_device,
)
from tacit.federation.site.limits import Limits, read_limits, refuse_beyond, refuse_parameters
from tacit.federation.site.log import discreet, note
from tacit.federation.site.own_rows import shape
from tacit.federation.site.pay import pay, payable, prepay, refuse_spent, sealed_before, spent
from tacit.federation.site.roster import Roster
from tacit.privacy.guarantee import agreed, promise, sentence, shown
from tacit.privacy.kinds import kind_of
from tacit.privacy.wiring import Local
from tacit.types import Message

Answer = tuple[dict[str, Any], bytes]
Said = tuple[dict[str, Any], bytes, str]
UNSAID = "The site cannot take part; the reason is in its log.jsonl."  # an error's text may quote private rows
DEALT = "client-"  # how clients are named that rows are dealt out to
LOADED = 2  # runs whose rows and model are held at a time


class Site:
    """A site's folder and what it has loaded for the runs it takes part in. `local` is training of somebody else's."""

    def __init__(self, folder: Path | str, *, local: Local | None = None):
        self.folder, self._local = Path(folder), local
        self._joined: dict[str, Joined] = {}
        store.tighten(self.folder)

    def answer(self, ask: dict[str, Any], body: bytes) -> Answer:
        """Answers one question. Raises Refused or BudgetExhausted, in words that may be told; the log has the rest."""
        reply, raw, said = self._guarded(lambda: self._decide(ask, body), facts(ask))
        note(self.folder, verdict="answered", text=said, **facts(ask))
        return reply, raw

    def alone(self, *, run: str) -> tuple[Terms, str]:
        """Agrees with itself, on the site's own `experiment.toml`, where the server knows nothing of Tacit. Raises Refused."""
        return self._guarded(lambda: self._agree_alone(run), {"kind": "agree", "run": run}).terms, run

    @property
    def settings(self) -> dict[str, Any]:
        """`site.toml`. Raises BadInput."""
        return read_settings(self.folder)

    def _guarded(self, work: Callable[[], Any], known: dict[str, Any]) -> Any:
        """The boundary: out of here come results, and refusals in words that may be told. Nothing else, whatever was sent."""
        began = time.monotonic()
        try:
            with store.alone(self.folder):
                return work()
        except (Refused, BudgetExhausted) as error:
            note(self.folder, verdict="refused", text=str(error), **known)
            raise
        except KeyboardInterrupt:  # whoever runs the site stops it
            raise
        except BaseException as error:  # SystemExit and MemoryError too: no message ends a site
            note(self.folder, verdict="failed", text=discreet(error), **known)
            raise Refused(UNSAID) from error
        finally:
            if known.get("kind") == "train":
                self._wait(began, known)

    def _decide(self, ask: dict[str, Any], body: bytes) -> Said:
        asked = question(ask)
        limits = read_limits(self.folder)
        if type(body) is not bytes or len(body) > limits.most_bytes:
            raise Refused(f"The question has more bytes than the {limits.most_bytes} that the site allows.")
        if isinstance(asked, Hello):
            return self._hello(asked, limits)
        if isinstance(asked, Agree):
            return self._agree(asked, limits)
        if isinstance(asked, Train):
            return self._train(asked, body)
        return self._open(asked, body)

    def _hello(self, asked: Hello, limits: Limits) -> Said:
        """Who is here: only what is public by declaration, of an experiment that the site has accepted beforehand."""
        experiment, values = read_experiment(asked.experiment), self.settings
        refuse_beyond(limits, experiment)
        refuse_device(experiment, values)
        rows = read_rows(self.folder, experiment, values, local=self._local)
        found = {"site": values["name"], "examples": len(rows.y), "shape": list(shape(rows)), "classes": rows.classes}
        mine = {
            "epsilon": min(limits.epsilon, proposed(experiment, values["name"])),
            "unit": limits.unit,
            "tacit": tacit.__version__,
            "torch": torch.__version__,
        }
        notes = "".join(f" Note: {note}." for note in rows.notes)
        return found | mine, b"", f"Takes part in {experiment.name} with {len(rows.y)} rows.{notes}"

    def _agree(self, asked: Agree, limits: Limits) -> Said:
        """The run as it will be: every later question is held against it."""
        run, text, roster = asked.run, asked.experiment, asked.roster
        agreement.refuse_many(self.folder, run, most=limits.most_runs)
        agreement.refuse_changed(self.folder, run, text, roster.record())
        joined = self._join(run, text, roster)
        refuse_other(asked.terms, joined.agreement.terms)
        if agreement.read(self.folder, run) is None:
            refuse_spent(joined)
        agreement.write(self.folder, joined.agreement)
        promised = agreement.write_promise(self.folder, run, _promise(joined))
        if joined.parts.plan.together:
            prepay(joined, asked.releases or 0)
        self._hold(joined)
        terms = joined.agreement.terms
        said = f"Agreed: {terms.rounds} rounds, {terms.parameters} parameters, epsilon {terms.epsilon:g} in all"
        left = payable(joined)
        few = (
            f" What is left of the budget pays for {left} of the {terms.rounds} rounds." if left < terms.rounds else ""
        )
        return {"terms": asdict(terms)}, b"", f"{said}; a round costs {terms.event or 'nothing'}.{few} {promised}"

    def _agree_alone(self, run: str) -> Agreement:
        path = self.folder / "experiment.toml"
        if not path.is_file():
            raise Refused("The server does not speak Tacit, and the site has no experiment.toml of its own.")
        text, limits, values = path.read_text("utf-8"), read_limits(self.folder), self.settings
        experiment = read_experiment(text)
        refuse_beyond(limits, experiment)
        known = self._joined.get(run)
        if known is not None and known.agreement.experiment == text:
            return known.agreement
        agreement.refuse_many(self.folder, run, most=limits.most_runs)
        size, privacy = len(read_rows(self.folder, experiment, values, local=self._local).y), experiment.privacy
        if kind_of(experiment).plans.trusts_server:
            raise Refused("The server does not speak Tacit, so it adds no noise: only local DP protects the site.")
        roster = Roster((values["name"],), (size,), (limits.epsilon,), privacy.run_delta, privacy.unit_kept)
        agreement.refuse_changed(self.folder, run, text, roster.record())
        joined = self._hold(self._join(run, text, roster))
        agreement.write(self.folder, joined.agreement)
        return joined.agreement

    def _train(self, asked: Train, body: bytes) -> Said:
        """One round: check, bind the question, pay, train, keep, answer."""
        known = self._standing(asked.run, asked.round)
        refuse_other(asked.terms, known.terms)
        place = agreement.place(self.folder, asked.run)
        kept = outbox.find(place, asked.round, body)
        if kept is not None:
            self._loaded(known)  # raises where the ledger does not know the answer
            return {"again": True}, kept, "Sent the kept answer again."
        received = refuse_unusable(body, known.terms)
        joined = self._loaded(known)
        refuse_odd_word(joined, received)
        sealed.refuse_other_turn(joined.parts, received, asked.round)
        outbox.bind(place, asked.round, body)
        pay(self.folder, joined, asked.round, body)
        ((raw, _),) = joined.train(body, asked.round, [joined.client.index])
        outbox.keep(place, asked.round, body, raw)
        epsilon = spent(joined)
        return (
            {"again": False, "epsilon": epsilon},
            raw,
            f"Trained; epsilon spent {shown(epsilon)} per {joined.limits.unit}.",
        )

    def _open(self, asked: Open, body: bytes) -> Said:
        """Its part of opening the sum of a round's reports, which it checks and adds itself; once a round."""
        joined = self._loaded(self._standing(asked.run, asked.round))
        place = agreement.place(self.folder, asked.run) / f"opened-{sealed.group_of(joined.parts, asked.group).name}"
        kept = outbox.find(place, asked.round, body)
        if kept is not None:
            return {"again": True}, kept, "Sent the kept opening again."
        try:
            raw = sealed.open_reports(joined.parts, asked.group, asked.round, unpack(body))
        except TacitError as error:
            raise Refused(str(error)) from error
        outbox.keep(store.make_folder(place), asked.round, body, raw)
        return {"again": False}, raw, f"Gave its part of opening the sum of round {asked.round}."

    def _standing(self, run: str, round: int) -> Agreement:
        """The agreement on a run, if the site's people still allow what it says. Raises Refused."""
        known = agreement.read(self.folder, run)
        if known is None:
            raise Refused("There is no agreement on this run: the server must ask for one first.")
        if not round < known.terms.rounds:
            raise Refused(f"The server asks for round {round}; {known.terms.rounds} rounds were agreed.")
        limits, experiment = read_limits(self.folder), read_experiment(known.experiment)
        refuse_beyond(limits, experiment)
        refuse_device(experiment, self.settings)
        refuse_crowd(limits, Roster.of(known.roster))
        refuse_parameters(limits, known.terms.parameters)
        if limits.epsilon < known.terms.epsilon:
            raise Refused(f"The site's budget is now epsilon {limits.epsilon:g}; the run was agreed at more.")
        return known

    def _loaded(self, known: Agreement) -> Joined:
        """The run's parts; they are built again where they are not held, or the budget file has changed meanwhile."""
        held = self._joined.get(known.run)
        if held is not None and held.limits == read_limits(self.folder):
            return held
        return self._hold(self._join(known.run, known.experiment, Roster.of(known.roster)))

    def _join(self, run: str, text: str, roster: Roster) -> Joined:
        return join(self.folder, run, text, roster, local=self._local)

    def _hold(self, joined: Joined) -> Joined:
        self._joined.pop(joined.agreement.run, None)
        self._joined[joined.agreement.run] = joined
        while len(self._joined) > LOADED:
            self._joined.pop(next(iter(self._joined)))
        return joined

    def _wait(self, began: float, known: dict[str, Any]) -> None:
        """Where the site wants it, every word on a round leaves a fixed time after its question came."""
        try:
            seconds = read_limits(self.folder).answer_seconds
        except BadInput:
            return
        left = began + seconds - time.monotonic()
        if left > 0:
            time.sleep(left)
        elif seconds:
            text = f"The round took longer than answer_seconds = {seconds:g}: its time was seen. Raise answer_seconds."
            note(self.folder, verdict="late", text=text, **known)


def proposed(experiment: Experiment, name: str) -> float:
    """The epsilon that an experiment itself names for a site; inf where it leaves that to the site's budget file.

    >>> proposed(Experiment(privacy={"kind": "local", "epsilon": {"north": 1.0, "coast": 3.0}}), "coast")
    3.0
    """
    said = experiment.privacy.epsilon
    if isinstance(said, dict):
        found = said.get(name)
    elif isinstance(said, tuple) and name.startswith(DEALT) and name.removeprefix(DEALT).isdecimal():
        place = int(name.removeprefix(DEALT))
        found = said[place] if place < len(said) else None
    else:
        found = said
    return float(found) if isinstance(found, int | float) else math.inf


def _promise(joined: Joined) -> str:
    parts = joined.parts
    if not parts.plan.priced:
        return sentence(None)
    known = promise(parts.experiment, parts.plan.words(parts.experiment))
    epsilon, before = joined.agreement.terms.epsilon, sealed_before(joined)
    said = agreed(known, client=joined.client.id, epsilon=min(epsilon, max(0.0, joined.limits.epsilon - before)))
    if not before:
        return said
    earlier = f" Earlier runs of this site have sealed {shown(before)}, which this run's number does not include;"
    return f"{said}{earlier} all runs together stay within epsilon {joined.limits.epsilon:g} of its budget.toml."


def refuse_odd_word(joined: Joined, received: Message) -> None:
    """Refuses, before anything is charged, what the run's rule cannot have told its clients. Raises Refused."""
    rule = rule_of(joined.parts.algorithm)
    try:
        if rule is not None:
            rule.refuse(received, size=joined.agreement.terms.parameters)
    except BadInput as error:
        raise Refused(f"The server's word beside the parameters cannot be used: {error}") from None


def refuse_unusable(body: bytes, terms: Terms) -> Message:
    """What the server sent. Raises Refused for parameters that are unusable whatever the rows: other shapes, or not finite."""
    try:
        received = unpack(body)
    except BadInput as error:
        raise Refused(f"The server's parameters cannot be read: {error}") from None
    params = received.tensors.get("params")
    if params is None or params.shape != (terms.parameters,) or params.dtype != torch.float32:
        found = "none" if params is None else f"{list(params.shape)} of {params.dtype}"
        raise Refused(f"The server sent other parameters ({found}) than the {terms.parameters} that were agreed.")
    if not all_finite(params):
        raise Refused("The server sent parameters that are not finite.")
    return received
