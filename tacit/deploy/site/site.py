"""One site: it reads what the server asks, decides, pays its own ledger, trains, and answers.

Guarantee: nothing leaves before the site's ledger has been charged for it on the site's disk. One round is one question and one
answer (`replies`). The budget file is read and applied before every answer. Whatever goes wrong, whatever was sent, the answer is
a refusal in words that say nothing about the rows, and the site goes on."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from tacit import store
from tacit.data import encoder
from tacit.deploy.site import agreement, canaries, keys, layout, queries, replies
from tacit.deploy.site.accept import Accepted, accept, declaration
from tacit.deploy.site.agreement import Agreement, refuse_other, refuse_unbound
from tacit.deploy.site.layout import discreet, note
from tacit.deploy.site.limits import Allowed, Demand, Limits, allow, hold, read_limits
from tacit.deploy.site.pay import (
    asked_for,
    pay,
    payable,
    prepay,
    promise_of,
    refuse_out_of_turn,
    refuse_spent,
    refuse_unpaid_turns,
    spent,
)
from tacit.deploy.site.replies import Slot
from tacit.deploy.site.requests import (
    Agree,
    Count,
    Hello,
    Keep,
    Open,
    Roster,
    Terms,
    Train,
    facts,
    parse,
)
from tacit.deploy.site.rows import HeldOut, read_rows
from tacit.engine.assemble import Parts
from tacit.engine.evaluate import CHUNK, answered
from tacit.engine.history import FROZEN
from tacit.errors import BadInput, BudgetExhausted, Refusal, Refused, TacitError
from tacit.experiment.extras import shares
from tacit.parts import metrics
from tacit.parts.tasks import chosen
from tacit.privacy.guarantee import shown
from tacit.privacy.plan import kind_of
from tacit.privacy.wiring import Local
from tacit.training.flat import beside, flatten, named
from tacit.wire import unpack

Answer = tuple[dict[str, Any], bytes]
Decision = tuple[dict[str, Any], bytes, str]  # an answer, and the sentence that the log has of it
UNSAID = "The site cannot take part; the reason is in its log.jsonl."  # an error's text may quote private rows
MOST_HELD = 2  # runs whose rows and model are in memory; any other is built again when it is asked about


class Site:
    """A site's folder, and what is loaded of the runs it takes part in. `local` is training of somebody else's (`tacit_mod`).

    Making one closes the folder and what lies in it to other users; nothing else is read or written until a question comes.
    Several processes may have the same folder: questions are answered one at a time. Nothing in memory is missed after a restart:
    agreement, ledger and answers are files. `accepting` is how a run is built, which an audit of the site itself wraps.
    """

    def __init__(self, folder: Path | str, *, local: Local | None = None, accepting: Callable[..., Accepted] = accept):
        self.folder, self._local, self._accept = Path(folder), local, accepting
        self._held: dict[str, Accepted] = {}
        layout.tighten(self.folder)

    def answer(self, ask: dict[str, Any], body: bytes) -> Answer:
        """Answers one question: `ask` is what is asked (`requests`), `body` what came along; so is what is returned.

        Guarantee: the ledger is charged on disk before any training whose result is returned. The same question gets the same
        bytes for nothing, and a second question for a round none. The log has a line for every call, whatever came of it.

        Assumes: nothing of what was sent: any type, size, depth or value is taken or refused.

        Raises: Refused or BudgetExhausted, in words that may be told to the server; whatever else goes wrong, SystemExit and
        MemoryError included, is one fixed sentence (`UNSAID`), and the log has its kind. Only KeyboardInterrupt passes.
        """
        reply, raw, sentence = self._guarded(lambda: self._decide(ask, body), facts(ask))
        note(self.folder, verdict="answered", text=sentence, **facts(ask))
        return reply, raw

    def alone(self, *, run: str) -> tuple[Terms, str]:
        """Agrees with itself, on the site's own `experiment.toml`, where the server knows nothing of Tacit.

        Guarantee: its rounds are then checked, bound and paid for like any other's; the terms are the site's own, at the
        epsilon of its budget file, with itself as the only client.

        Raises: Refused where there is no `experiment.toml`, where the noise would be the server's to add, and as `answer`.
        """
        return self._guarded(lambda: self._agree_alone(run), {"kind": "agree", "run": run}).terms, run

    def _guarded(self, work: Callable[[], Any], about: dict[str, Any]) -> Any:
        """The boundary: out of here come results, and refusals in words that may be told. Nothing else, whatever was sent."""
        began = time.monotonic()
        try:
            with layout.alone(self.folder):
                return work()
        except (Refused, BudgetExhausted) as error:
            note(self.folder, verdict="refused", text=str(error), **about)
            raise
        except KeyboardInterrupt:  # whoever runs the site stops it
            raise
        except BaseException as error:  # SystemExit and MemoryError too: no message ends a site
            note(self.folder, verdict="failed", text=discreet(error), **about)
            raise Refused(UNSAID, Refusal.LATER) from error
        finally:
            if about.get("kind") in ("train", "count"):
                self._wait(began, about)

    def _wait(self, began: float, about: dict[str, Any]) -> None:
        try:
            seconds = read_limits(self.folder).answer_seconds
        except BadInput:
            return
        left = began + seconds - time.monotonic()
        if left > 0:
            time.sleep(left)
        elif seconds:
            text = f"The round took longer than answer_seconds = {seconds:g}: its time was seen. Raise answer_seconds."
            note(self.folder, verdict="late", text=text, **about)

    def _decide(self, ask: dict[str, Any], body: bytes) -> Decision:
        """Reads the question, holds its size against the budget file as it is now, and lets the one concerned answer."""
        asked, limits = parse(ask), read_limits(self.folder)
        if type(body) is not bytes:
            raise Refused("What came with the question is not bytes.")
        hold(limits, Demand(size=len(body)))
        match asked:
            case Hello():
                return self._hello(asked, limits)
            case Agree():
                return self._agree(asked, limits)
            case Train():
                return self._train(asked, body, limits)
            case Count():
                return self._count(asked, body, limits)
            case Open():
                return self._open(asked, body, limits)
            case Keep():
                return self._keep(asked, body, limits)

    def _hello(self, asked: Hello, limits: Limits) -> Decision:
        allowed = allow(self.folder, asked.experiment, limits)
        experiment, name = allowed.experiment, allowed.settings["name"]
        rows, *_ = read_rows(self.folder, experiment, allowed.settings, local=self._local)
        notes = "".join(f" Note: {note}." for note in rows.notes)
        declared = declaration(experiment, limits, name=name, rows=rows)
        return declared, b"", f"Takes part in {experiment.name} with {len(rows.y)} rows.{notes}"

    def _agree(self, asked: Agree, limits: Limits) -> Decision:
        accepted, promised = self._begin(
            asked.run, asked.experiment, asked.roster, limits, asked.terms, asked.ranges, asked.releases or 0
        )
        terms, left, most = accepted.agreement.terms, payable(accepted), asked_for(accepted)
        once = "".join(f"; its one answer to the query {query} costs {cost}" for query, cost in terms.queries.items())
        few = f" What is left of the budget pays for {left} of the {most} rounds." if left < most else ""
        known = "".join(
            f"; {name} is read from {low:g} to {high:g}" for name, (low, high) in (asked.ranges or {}).items()
        )
        agreed = f"Agreed: {terms.rounds} rounds, {terms.parameters} parameters, epsilon {terms.epsilon:g} in all"
        return (
            {"terms": asdict(terms)},
            b"",
            f"{agreed}; a round costs {terms.event or 'nothing'}{once}{known}.{few} {promised}",
        )

    def _agree_alone(self, run: str) -> Agreement:
        path = self.folder / layout.OWN_EXPERIMENT
        if not path.is_file():
            raise Refused("The server does not speak Tacit, and the site has no experiment.toml of its own.")
        text, limits = path.read_text("utf-8"), read_limits(self.folder)
        allowed = allow(self.folder, text, limits)
        experiment, privacy, name = allowed.experiment, allowed.experiment.privacy, allowed.settings["name"]
        held = self._held.get(run)
        if held is not None and held.agreement.experiment == text:
            return held.agreement
        if shares(experiment):
            raise Refused(
                "The server does not speak Tacit, so it asks no queries: leave out data.held_out, privacy.stats and private ranges."
            )
        if kind_of(experiment).plans.traits.trusts_server:
            raise Refused("The server does not speak Tacit, so it adds no noise: only local DP protects the site.")
        rows, *_ = read_rows(self.folder, experiment, allowed.settings, local=self._local)
        roster = Roster((name,), (len(rows.y),), (limits.epsilon,), privacy.run_delta, privacy.unit_kept)
        return self._begin(run, text, roster, limits)[0].agreement

    def _begin(
        self,
        run: str,
        text: str,
        roster: Roster,
        limits: Limits,
        terms: Terms | None = None,
        ranges: dict[str, tuple[float, float]] | None = None,
        releases: int = 0,
    ) -> tuple[Accepted, str]:
        """The run as it will be, and its promise: every later question is held against it. Also for a run that comes back."""
        known = agreement.read(self.folder, run)
        if known is None:
            hold(limits, Demand(runs=len(layout.runs(self.folder)) + 1))
        elif (known.experiment, known.roster) != (text, roster.record()):
            raise Refused("The server came back with another experiment or other sites than this run began with.")
        allowed = allow(self.folder, text, limits)
        accepted = self._accept(allowed, run, roster, local=self._local)
        if terms is not None:
            refuse_other(terms, accepted.agreement.terms)
        if known is None:
            refuse_spent(accepted)
            refuse_unpaid_turns(accepted)
        promise = promise_of(accepted)
        agreement.write(self.folder, accepted.agreement, promise)
        if ranges is not None:
            experiment = accepted.parts.experiment
            if agreement.bind_ranges(self.folder, accepted.agreement, experiment, ranges):
                accepted = self._accept(allowed, run, roster, local=self._local)  # which reads the rows with them
        if accepted.parts.plan.sampler.charges_all:
            prepay(accepted, releases)
        return self._hold(accepted), promise

    def _train(self, asked: Train, body: bytes, limits: Limits) -> Decision:
        agreed, allowed = self._standing(asked.run, limits, asked.round)
        refuse_other(asked.terms, agreed.terms)
        slot = Slot(layout.run_folder(self.folder, asked.run), asked.round)
        answer = replies.find(slot, body)
        if answer is not None:
            self._current(agreed, allowed)  # raises where the ledger does not know the answer
            return {"again": True}, answer.raw, "Sent the kept answer again."
        queries.refuse_ended(self.folder, agreed)
        refuse_unbound(self.folder, agreed)
        received = queries.read_broadcast(body, agreed.terms)
        accepted = self._current(agreed, allowed)
        refuse_out_of_turn(accepted, asked.round)
        queries.refuse_odd_word(accepted, received)
        keys.refuse_other_turn(accepted.parts, received, asked.round)
        paid = pay(replies.bind(accepted, slot, body))
        canaries.commit(accepted)
        raw, said = paid.train()
        answer = replies.keep(slot, body, raw)
        canaries.record_observation(accepted, asked.round, said)
        judge(accepted, received.tensors["params"], asked.round)
        epsilon = spent(accepted)
        text = f"Trained; epsilon spent {shown(epsilon)} per {accepted.limits.unit}."
        return {"again": False, "epsilon": epsilon}, answer.raw, text

    def _open(self, asked: Open, body: bytes, limits: Limits) -> Decision:
        accepted = self._current(*self._standing(asked.run, limits, asked.round))
        group = keys.group_of(accepted.parts, asked.group).name
        slot = Slot(layout.opened_folder(self.folder, asked.run, group), asked.round)
        answer = replies.find(slot, body)
        if answer is not None:
            return {"again": True}, answer.raw, "Sent the kept opening again."
        try:
            raw = keys.open_reports(accepted.parts, asked.group, asked.round, unpack(body))
        except TacitError as error:
            raise Refused(str(error)) from error
        if (
            accepted.ledger is not None
        ):  # a copy has a list of openings of its own, and a ledger that it is held against
            what = f"opening of {group}, round {asked.round + 1}"
            accepted.ledger.release(what, replies.question_hash(body).hex())
        layout.make_folder(slot.folder)
        answer = replies.keep(slot, body, raw)
        return {"again": False}, answer.raw, f"Gave its part of opening the sum of round {asked.round + 1}."

    def _count(self, asked: Count, body: bytes, limits: Limits) -> Decision:
        agreed, allowed = self._standing(asked.run, limits)
        slot = queries.slot_of(self.folder, agreed, asked.query)
        raw = queries.kept(slot, body)
        accepted = self._current(agreed, allowed)  # raises where the ledger does not know the answer
        if raw is not None:
            return {"again": True, "epsilon": spent(accepted)}, raw, "Sent the kept counts again."
        refuse_unbound(self.folder, agreed, query=asked.query)
        raw = queries.answer(accepted, slot, asked.query, body)
        epsilon = spent(accepted)
        text = f"Answered the query {asked.query}; epsilon spent {shown(epsilon)} per {accepted.limits.unit}."
        return {"again": False, "epsilon": epsilon}, raw, text

    def _keep(self, asked: Keep, body: bytes, limits: Limits) -> Decision:
        """The model that the run left, for the site's own use: public by then, so nothing is paid, whatever is left of a budget."""
        agreed = agreement.standing(self.folder, asked.run)
        refuse_unbound(self.folder, agreed)
        accepted = self._current(agreed, allow(self.folder, agreed.experiment, limits), spends=False)
        kept = keep_model(accepted, body)
        return {}, b"", f"Kept the model that the run left: tacit predict {kept} new.csv"

    def _standing(self, run: str, limits: Limits, round: int = 0) -> tuple[Agreement, Allowed]:
        agreed = agreement.standing(self.folder, run)
        terms, sites = agreed.terms, len(agreed.roster["names"])
        if not round < terms.rounds:
            raise Refused(f"The server asks for round {round + 1}; {terms.rounds} rounds were agreed.")
        known = {"epsilon": terms.epsilon, "parameters": terms.parameters, "sites": sites}
        return agreed, allow(self.folder, agreed.experiment, limits, **known)

    def _current(self, agreed: Agreement, allowed: Allowed, *, spends: bool = True) -> Accepted:
        """The run of an agreement, accepted under the limits as they are now.

        Guarantee: where the limits have changed, or the run is not in memory, it is accepted again, which refuses what is no longer
        allowed and opens the ledger anew. What of the model does not train is what was agreed. What does not spend is not held, for
        its budget may be less than the run's. Raises: as `accept`.
        """
        held = self._held.get(agreed.run)
        if held is not None and held.limits.digest == allowed.limits.digest:
            return held
        roster = Roster.of(agreed.roster)
        accepted = self._accept(allowed, agreed.run, roster, local=self._local, spends=spends)
        if accepted.agreement.terms.frozen != agreed.terms.frozen:
            raise Refused("The model's weights at this site are others than when the run was agreed: put those back.")
        return self._hold(accepted) if spends else accepted

    def _hold(self, accepted: Accepted) -> Accepted:
        self._held.pop(accepted.agreement.run, None)
        self._held[accepted.agreement.run] = accepted
        while len(self._held) > MOST_HELD:
            self._held.pop(next(iter(self._held)))
        return accepted


def keep_model(accepted: Accepted, body: bytes) -> Path:
    """Writes the model that a run left where `tacit predict` reads it, the parameters last of all; returns the folder.

    Guarantee: nothing but finite parameters of the agreed number is taken, and no row decides whether. What stood there before,
    a model sent earlier, is replaced. How rows are read, and which model it is, the site knows. Raises: Refused.
    """
    params, parts = queries.read_broadcast(body, accepted.agreement.terms).tensors["params"], accepted.parts
    folder = layout.make_folder(layout.model_folder(accepted.site, accepted.agreement.run))
    layout.write(folder / "experiment.toml", parts.experiment.toml().encode())
    layout.write(folder / encoder.NAME, encoder.text(parts.dataset.reading).encode())
    layout.write(folder / "run.json", json.dumps({"run": accepted.agreement.run}).encode())
    layout.write(folder / layout.MODEL, save(named(parts.model, params), {FROZEN: parts.frozen}))
    return folder


def judge(accepted: Accepted, params: torch.Tensor, round: int) -> None:
    """Writes down how the model that a round begins with does on the site's held-out rows; nothing where there are none.

    Guarantee: it raises nothing; what went wrong is in the log, without anything of the rows.
    """
    site, run, held = accepted.site, accepted.agreement.run, accepted.held
    if held is None:
        return
    try:
        line = {"round": round, "rows": len(held.y), **_measured(accepted.parts, held, params)}
        store.append(layout.run_folder(site, run) / layout.HELD_OUT, json.dumps(line))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - of the site's own interest only: the round's answer is kept already
        note(site, verdict="failed", text=f"Held-out rows: {discreet(error)}", run=run, round=round)


@torch.inference_mode()
def _measured(parts: Parts, held: HeldOut, params: torch.Tensor) -> dict[str, float | None]:
    """Every metric of the task; None where the rows cannot tell it, as of one class."""
    names = dict.fromkeys((chosen(parts.experiment), *parts.task.metrics))
    if not len(held.y):
        return {metrics.key(name): None for name in names}
    model = beside(parts.model).eval()  # a copy: training keeps its own as it left it
    theta = flatten(model)
    theta.copy_(params)
    found = [parts.task.predictions(model(x.to(theta.device))).cpu().numpy() for x in held.x.split(CHUNK)]
    answers = answered(parts, np.concatenate(found), held.y)
    return {metrics.key(name): metrics.measure_if_possible(metrics.load(name), answers) for name in names}
