"""One site: it reads what the server asks, decides, pays its own ledger, trains, and answers.

Guarantee: nothing leaves before the site's ledger has been charged for it on the site's disk. The budget file is read and applied
before every answer. Whatever goes wrong, whatever was sent, the answer is a refusal in words that say nothing about the rows, and
the site goes on."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors.torch import save

from tacit import store
from tacit.algorithms.encrypted import Encrypted
from tacit.crypto.seal import report_bytes
from tacit.data import encoder
from tacit.deploy.site import agreement, canaries, layout, legs, replies, requests
from tacit.deploy.site.agreement import Accepted, Agreement, accept, declaration, refuse_other, refuse_unbound
from tacit.deploy.site.keys import seal_of
from tacit.deploy.site.layout import discreet, note
from tacit.deploy.site.limits import Allowed, Demand, Limits, allow, hold, read_limits
from tacit.deploy.site.replies import Slot
from tacit.deploy.site.rows import HeldOut, read_rows
from tacit.engine.assemble import Parts
from tacit.engine.evaluate import CHUNK, answered
from tacit.engine.history import FROZEN
from tacit.engine.queries import Evaluation, Query, columns_asked, judged_by, ranges_asked
from tacit.errors import BadInput, BudgetExhausted, Refusal, Refused, TacitError
from tacit.experiment.extras import EVALUATION, RANGES, STATS, shares
from tacit.parts import metrics
from tacit.privacy.guarantee import shown
from tacit.privacy.plan import kind_of
from tacit.privacy.wiring import Local
from tacit.training.flat import beside, flatten, named
from tacit.types import Client, Message
from tacit.wire import digest_of, pack, tensor_bytes, unpack

T = TypeVar("T")
Answer = tuple[dict[str, Any], bytes]
Decision = tuple[dict[str, Any], bytes, str]  # an answer, and the sentence that the log has of it
UNSAID = "The site cannot take part; the reason is in its log.jsonl."  # an error's text may quote private rows
MOST_HELD = 2  # runs whose rows and model are in memory; any other is built again when it is asked about


def guarded(folder: Path, work: Callable[[], T], about: dict[str, Any], *, began: float | None = None) -> T:
    """The boundary: out of here come results, and refusals in words that may be told; nothing else, whatever was sent. A question
    that came when it `began` is answered alone, and one of a round after `answer_seconds`. Raises: Refused, BudgetExhausted."""
    began = time.monotonic() if began is None else began
    try:
        with layout.alone(folder):
            return work()
    except (Refused, BudgetExhausted) as error:
        note(folder, verdict="refused", text=str(error), **about)
        raise
    except KeyboardInterrupt:  # whoever runs the site stops it
        raise
    except BaseException as error:  # SystemExit and MemoryError too: no message ends a site
        note(folder, verdict="failed", text=discreet(error), **about)
        raise Refused(UNSAID, Refusal.LATER) from error
    finally:
        if about.get("kind") in ("train", "count"):
            _wait(folder, began, about)


def _wait(folder: Path, began: float, about: dict[str, Any]) -> None:
    try:
        seconds = read_limits(folder).answer_seconds
    except BadInput:
        return
    left = began + seconds - time.monotonic()
    if left > 0:
        time.sleep(left)
    elif seconds:
        text = f"The round took longer than answer_seconds = {seconds:g}: its time was seen. Raise answer_seconds."
        note(folder, verdict="late", text=text, **about)


class Site:
    """A site's folder, and what is loaded of the runs it takes part in. `local` is training of somebody else's (`tacit_mod`).

    Making one closes the folder to other users. Several processes may have the same folder: requests are answered one at a time.
    Nothing in memory is missed after a restart. `accepting` is how a run is built, which an audit of the site itself wraps.
    """

    def __init__(self, folder: Path | str, *, local: Local | None = None, accepting: Callable[..., Accepted] = accept):
        self.folder, self._local, self._accept = Path(folder), local, accepting
        self._held: dict[str, Accepted] = {}
        layout.tighten(self.folder)

    def answer(self, ask: dict[str, Any], body: bytes) -> Answer:
        """Answers one request: `ask` is what is asked (`requests`), `body` what came along; so is what is returned.

        Guarantee: the same request gets the same bytes for nothing, and a second request for a round none. The log has a line for
        every call. Assumes nothing of what was sent: any type, size, depth or value. Raises: Refused or BudgetExhausted, in words
        that may be told to the server; whatever else goes wrong is one fixed sentence (`UNSAID`). Only KeyboardInterrupt passes.
        """
        reply, raw, sentence = self._guarded(lambda: self._decide(ask, body), requests.facts(ask))
        note(self.folder, verdict="answered", text=sentence, **requests.facts(ask))
        return reply, raw

    def alone(self, *, run: str) -> None:
        """Agrees with itself, on the site's own `experiment.toml`, where the server knows nothing of Tacit.

        The terms are at the epsilon of its budget file, with itself as the only client. Raises: as `answer`.
        """
        self._guarded(lambda: self._agree_alone(run), {"kind": "agree", "run": run})

    def _guarded(self, work: Callable[[], Any], about: dict[str, Any]) -> Any:
        return guarded(self.folder, work, about)

    def _decide(self, ask: dict[str, Any], body: bytes) -> Decision:
        asked, limits = requests.parse(ask), read_limits(self.folder)
        if type(body) is not bytes:
            raise Refused("What came with the question is not bytes.")
        hold(limits, Demand(size=len(body)))
        match asked:
            case requests.Hello():
                return self._hello(asked, limits)
            case requests.Agree():
                return self._agree(asked, limits)
            case requests.Train():
                return self._train(asked, body, limits)
            case requests.Count():
                return self._count(asked, body, limits)
            case requests.Open():
                return self._open(asked, body, limits)
            case requests.Prepare() | requests.Sign() | requests.Unmask():
                raw, text = legs.answer(self._current(*self._standing(asked.run, limits, asked.round)), asked, body)
                return {}, raw, text
            case requests.Keep():
                return self._keep(asked, body, limits)

    def _hello(self, asked: requests.Hello, limits: Limits) -> Decision:
        allowed = allow(self.folder, asked.experiment, limits)
        experiment, name = allowed.experiment, allowed.settings["name"]
        rows, *_ = read_rows(self.folder, experiment, allowed.settings, local=self._local)
        notes = "".join(f" Note: {note}." for note in rows.notes)
        declared = declaration(experiment, limits, name=name, rows=rows)
        many = f"{len(rows.y)} rows" + (f" of {rows.units} persons" if rows.person is not None else "")
        return declared, b"", f"Takes part in {experiment.name} with {many}.{notes}"

    def _agree(self, asked: requests.Agree, limits: Limits) -> Decision:
        accepted, promised = self._begin(
            asked.run, asked.experiment, asked.roster, limits, asked.terms, asked.ranges, asked.releases or 0
        )
        terms, left, most = accepted.agreement.terms, replies.payable(accepted), replies.asked_for(accepted)
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
        roster = requests.Roster((name,), (rows.units,), (limits.epsilon,), privacy.run_delta, privacy.unit_kept)
        return self._begin(run, text, roster, limits)[0].agreement

    def _begin(
        self,
        run: str,
        text: str,
        roster: requests.Roster,
        limits: Limits,
        terms: requests.Terms | None = None,
        ranges: dict[str, tuple[float, float]] | None = None,
        releases: int = 0,
    ) -> tuple[Accepted, str]:
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
            replies.refuse_spent(accepted)
        promise = replies.promise_of(accepted)
        said = accepted.parts.promise if accepted.parts.plan.priced else None
        agreement.write(self.folder, accepted.agreement, promise, said)
        if ranges is not None:
            experiment = accepted.parts.experiment
            if agreement.bind_ranges(self.folder, accepted.agreement, experiment, ranges):
                accepted = self._accept(allowed, run, roster, local=self._local)  # which reads the rows with them
        if accepted.parts.plan.sampler.charges_all:
            replies.prepay(accepted, releases)
        return self._hold(accepted), promise

    def _train(self, asked: requests.Train, body: bytes, limits: Limits) -> Decision:
        agreed, allowed = self._standing(asked.run, limits, asked.round)
        slot = Slot(layout.run_folder(self.folder, asked.run), asked.round)
        answer = replies.find(slot, body)
        if answer is not None:
            legs.note_report(
                self._current(agreed, allowed), slot, answer.raw
            )  # both raise where the ledger does not know it
            return {"again": True}, answer.raw, "Sent the kept answer again."
        if layout.round_files(layout.counted_folder(self.folder, agreed.run, EVALUATION)):
            # whoever asked about held-out rows called its model the last: nobody looks at them and then goes on
            raise Refused(f"The server has asked for {EVALUATION}, which ends the run: there is no round after it.")
        refuse_unbound(self.folder, agreed)
        accepted = self._current(agreed, allowed)
        question = legs.join(accepted, slot, body)
        received = requests.read_broadcast(question, agreed.terms.parameters)
        replies.refuse_out_of_turn(accepted, asked.round)
        try:
            if (rule := accepted.parts.releases.rule) is not None:
                rule.refuse(received, size=agreed.terms.parameters)
        except BadInput as error:
            raise Refused(f"The server's word beside the parameters cannot be used: {error}") from None
        turn = received.facts.get(
            "turn"
        )  # a report is encrypted under it: the site would pay for one round and sign for another
        if isinstance(accepted.parts.algorithm, Encrypted) and (type(turn) is not int or turn != asked.round):
            raise Refused(f"The server asks for round {asked.round + 1} and sent the turn of another.")
        bound = replies.bind(accepted, slot, body, question)
        legs.note_joined(accepted, slot)
        paid = replies.pay(bound)
        canaries.commit(accepted)
        raw, said = paid.train()
        answer = replies.keep(slot, body, raw)
        legs.note_report(accepted, slot, raw)
        canaries.record_observation(accepted, asked.round, said)
        judge(accepted, received.tensors["params"], asked.round)
        epsilon = replies.spent(accepted)
        text = f"Trained; epsilon spent {shown(epsilon)} per {accepted.limits.unit}."
        return {"again": False, "epsilon": epsilon}, answer.raw, text

    def _open(self, asked: requests.Open, body: bytes, limits: Limits) -> Decision:
        accepted = self._current(*self._standing(asked.run, limits, asked.round))
        seal = seal_of(accepted.parts, asked.group)
        slot = Slot(layout.run_folder(self.folder, asked.run) / f"opened-{asked.group}", asked.round)
        answer = replies.find(slot, body)
        if answer is not None:
            return {"again": True}, answer.raw, "Sent the kept opening again."
        if seal.holder is None:
            raise Refused("This site holds no key.")
        try:
            # it takes no sum from the server: it checks every report's signature, roster and proof, and adds them up itself
            reports = [report_bytes(tensor) for _, tensor in sorted(unpack(body).tensors.items())]
            raw, _ = seal.holder.open(seal.context(asked.round), reports)
        except TacitError as error:
            raise Refused(str(error)) from error
        if (
            accepted.ledger is not None
        ):  # a copy has a list of openings of its own, and a ledger that it is held against
            what = f"opening of {asked.group}, round {asked.round + 1}"
            accepted.ledger.release(what, replies.question_hash(body).hex())
        answer = replies.keep(slot, body, raw)
        return {"again": False}, answer.raw, f"Gave its part of opening the sum of round {asked.round + 1}."

    def _count(self, asked: requests.Count, body: bytes, limits: Limits) -> Decision:
        # whether a query is answered does not depend on a row: without any the counts are zeros, with noise
        agreed, allowed = self._standing(asked.run, limits)
        if asked.query not in agreed.terms.queries:
            known = " and ".join(agreed.terms.queries) or "none"
            raise Refused(f"The server asks the query {asked.query[:40]!r}; agreed were: {known}.")
        folder = layout.counted_folder(self.folder, agreed.run, asked.query)
        slot = Slot(folder, 0, f"The query {asked.query}")
        answer = replies.find(slot, body)
        accepted = self._current(agreed, allowed)  # raises where the ledger does not know the answer
        if answer is not None:
            return {"again": True, "epsilon": replies.spent(accepted)}, answer.raw, "Sent the kept counts again."
        refuse_unbound(self.folder, agreed, query=asked.query)
        query, client, about = _counted(accepted, asked.query, body)
        queries = accepted.parts.plan.queries
        noise = queries.mechanism(asked.query, client.index, l2_squared=query.l2_squared, cells=query.cells)
        bound = replies.bind(accepted, slot, body)
        counts = replies.pay_query(bound, asked.query, client, repr(query), about).count(query, client, noise, about)
        answer = replies.keep(slot, body, pack(Message(client.id, {"counts": torch.from_numpy(counts)})))
        epsilon = replies.spent(accepted)
        text = f"Answered the query {asked.query}; epsilon spent {shown(epsilon)} per {accepted.limits.unit}."
        return {"again": False, "epsilon": epsilon}, answer.raw, text

    def _keep(self, asked: requests.Keep, body: bytes, limits: Limits) -> Decision:
        # the model that the run left, for the site's own use: public by then, so nothing is paid, whatever is left of a budget
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
        """The run of an agreement, accepted under the limits as they are now: again where they have changed, or it is forgotten.

        What does not spend is not held, for its budget may be less than the run's. Raises: as `accept`.
        """
        held = self._held.get(agreed.run)
        known = held if held is not None and held.limits.digest == allowed.limits.digest else None
        roster = requests.Roster.of(agreed.roster)
        accepted = known or self._accept(allowed, agreed.run, roster, local=self._local, spends=spends)
        if accepted.agreement.terms.frozen != agreed.terms.frozen:
            raise Refused("The model's weights at this site are others than when the run was agreed: put those back.")
        if accepted.agreement.terms != agreed.terms:  # the file was edited, or the site's own settings since
            raise Refused(
                "What this run costs at this site is not what was agreed: put agreement.json back, or leave the run."
            )
        return self._hold(accepted) if spends and known is None else accepted

    def _hold(self, accepted: Accepted) -> Accepted:
        self._held.pop(accepted.agreement.run, None)
        self._held[accepted.agreement.run] = accepted
        while len(self._held) > MOST_HELD:
            self._held.pop(next(iter(self._held)))
        return accepted


def _counted(accepted: Accepted, query: str, body: bytes) -> tuple[Query, Client, str]:
    """What is counted, of whose rows, about which model. Only parameters are taken from a request about a model, else nothing."""
    experiment, rows = accepted.parts.experiment, accepted.parts.dataset
    if query == EVALUATION:  # the model that came along, judged on the rows that the experiment holds out
        params = requests.read_broadcast(body, accepted.agreement.terms.parameters).tensors["params"]
        judged = judged_by(experiment, rows)
        if judged is None or accepted.asked is None:
            raise Refused("This run holds out no rows.")
        return Evaluation(judged, accepted.parts, params), accepted.asked, digest_of("model", tensor_bytes(params))
    asked = {STATS: columns_asked, RANGES: ranges_asked}[query](experiment, rows)  # of the rows that are trained on
    if asked is None or body:
        raise Refused(f"This run does not ask for {query}, or the question has more than its name.")
    return asked, accepted.client, ""


def keep_model(accepted: Accepted, body: bytes) -> Path:
    """Writes the model that a run left where `tacit predict` reads it, the parameters last of all; returns the folder.

    Nothing but finite parameters of the agreed number is taken: how rows are read, and which model it is, the site knows.
    """
    params, parts = requests.read_broadcast(body, accepted.agreement.terms.parameters).tensors["params"], accepted.parts
    folder = layout.make_folder(layout.model_folder(accepted.site, accepted.agreement.run))
    layout.write(folder / "experiment.toml", parts.experiment.toml().encode())
    layout.write(folder / encoder.NAME, encoder.text(parts.dataset.reading).encode())
    layout.write(folder / "run.json", json.dumps({"run": accepted.agreement.run}).encode())
    layout.write(folder / layout.MODEL, save(named(parts.model, params), {FROZEN: parts.frozen}))
    return folder


def judge(accepted: Accepted, params: torch.Tensor, round: int) -> None:
    """Writes down how the model that a round begins with does on the site's held-out rows, if there are any; raises nothing."""
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
    names = dict.fromkeys((parts.metric, *parts.task.metrics))
    if not len(held.y):
        return {metrics.key(name): None for name in names}
    model = beside(parts.model).eval()  # a copy: training keeps its own as it left it
    theta = flatten(model)
    theta.copy_(params)
    found = [parts.task.predictions(model(x.to(theta.device))).cpu().numpy() for x in held.x.split(CHUNK)]
    answers = answered(parts, np.concatenate(found), held.y)
    return {metrics.key(name): metrics.measure_if_possible(metrics.load(name), answers) for name in names}
