"""One site: it hears what the server asks, decides, pays its own ledger, trains, and answers.

Guarantee: nothing leaves before the site's ledger has been charged for it on the site's disk. One round is one question and one
answer (`outbox`). The budget file is read and applied before every answer. Whatever goes wrong, whatever was sent, the answer is
a refusal in words that say nothing about the rows, and the site goes on."""

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tacit.deploy.site import agreement, canaries, final_model, keys, layout, queries, replies
from tacit.deploy.site.agreement import Agreement, Terms, bind, refuse_other, refuse_unbound
from tacit.deploy.site.asked import Agree, Count, Hello, Keep, Open, Train, facts, question
from tacit.deploy.site.consent import refuse_beyond, refuse_crowd, refuse_device, refuse_parameters
from tacit.deploy.site.join import Joining, Loaded, join, read_experiment, read_rows, read_settings
from tacit.deploy.site.limits import Limits, Roster, read_limits
from tacit.deploy.site.log import discreet, note
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
from tacit.deploy.site.queries import read_broadcast, refuse_odd_word
from tacit.deploy.site.rows import judge
from tacit.deploy.site.schedule import declaration
from tacit.errors import BadInput, BudgetExhausted, Refusal, Refused, TacitError
from tacit.experiment.extras import shares
from tacit.privacy.guarantee import shown
from tacit.privacy.plan import kind_of
from tacit.privacy.wiring import Local
from tacit.wire import unpack

Answer = tuple[dict[str, Any], bytes]
Decision = tuple[dict[str, Any], bytes, str]  # an answer, and the sentence that the log has of it
UNSAID = "The site cannot take part; the reason is in its log.jsonl."  # an error's text may quote private rows


class Site:
    """A site's folder, and what is loaded of the runs it takes part in. `local` is training of somebody else's (`tacit_mod`).

    Making one closes the folder and what lies in it to other users; nothing else is read or written until a question comes.
    Several processes may have the same folder: questions are answered one at a time (`store.alone`).
    """

    def __init__(self, folder: Path | str, *, local: Local | None = None, joining: Joining = join):
        self.folder, self._local = Path(folder), local
        self._runs = Loaded(self.folder, local, joining)
        replies.tighten(self.folder)

    def answer(self, ask: dict[str, Any], body: bytes) -> Answer:
        """Answers one question: `ask` is what is asked (`asked`), `body` what came along; so is what is returned.

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

    @property
    def settings(self) -> dict[str, Any]:
        """`site.toml`, as it is now. Raises: BadInput."""
        return read_settings(self.folder)

    def _guarded(self, work: Callable[[], Any], about: dict[str, Any]) -> Any:
        """The boundary: out of here come results, and refusals in words that may be told. Nothing else, whatever was sent."""
        began = time.monotonic()
        try:
            with replies.alone(self.folder):
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

    def _decide(self, ask: dict[str, Any], body: bytes) -> Decision:
        """Reads the question, holds its size against the budget file as it is now, and lets the one concerned answer."""
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
        if isinstance(asked, Count):
            return self._count(asked, body)
        return self._keep(asked, body) if isinstance(asked, Keep) else self._open(asked, body)

    def _hello(self, asked: Hello, limits: Limits) -> Decision:
        """Who is here: only what is public by declaration, of an experiment that the site has accepted beforehand."""
        experiment, settings = read_experiment(asked.experiment), self.settings
        refuse_beyond(limits, experiment)
        refuse_device(experiment, settings)
        rows = read_rows(self.folder, experiment, settings, local=self._local)
        notes = "".join(f" Note: {note}." for note in rows.notes)
        declared = declaration(experiment, limits, name=settings["name"], rows=rows)
        return declared, b"", f"Takes part in {experiment.name} with {len(rows.y)} rows.{notes}"

    def _agree(self, asked: Agree, limits: Limits) -> Decision:
        """The run as it will be: every later question is held against it."""
        run, text, roster = asked.run, asked.experiment, asked.roster
        agreement.refuse_many(self.folder, run, most=limits.most_runs)
        agreement.refuse_changed(self.folder, run, text, roster.record())
        joined = self._runs.build(run, text, roster)
        refuse_other(asked.terms, joined.agreement.terms)
        if agreement.read(self.folder, run) is None:
            refuse_spent(joined)
            refuse_unpaid_turns(joined)
        agreement.write(self.folder, joined.agreement)
        promised = agreement.write_promise(self.folder, run, promise_of(joined))
        if asked.ranges is not None and bind(self.folder, joined.agreement, joined.parts.experiment, asked.ranges):
            joined = self._runs.build(run, text, roster)  # which reads the rows with them
        if joined.parts.plan.sampler.charges_all:
            prepay(joined, asked.releases or 0)
        self._runs.hold(joined)
        terms = joined.agreement.terms
        agreed = f"Agreed: {terms.rounds} rounds, {terms.parameters} parameters, epsilon {terms.epsilon:g} in all"
        once = "".join(f"; its one answer to the query {query} costs {cost}" for query, cost in terms.queries.items())
        left, most = payable(joined), asked_for(joined)
        few = f" What is left of the budget pays for {left} of the {most} rounds." if left < most else ""
        known = "".join(
            f"; {name} is read from {low:g} to {high:g}" for name, (low, high) in (asked.ranges or {}).items()
        )
        return (
            {"terms": asdict(terms)},
            b"",
            f"{agreed}; a round costs {terms.event or 'nothing'}{once}{known}.{few} {promised}",
        )

    def _agree_alone(self, run: str) -> Agreement:
        """The agreement on the site's own experiment; the same as before while that file does not change."""
        path = self.folder / layout.OWN_EXPERIMENT
        if not path.is_file():
            raise Refused("The server does not speak Tacit, and the site has no experiment.toml of its own.")
        text, limits, settings = path.read_text("utf-8"), read_limits(self.folder), self.settings
        experiment = read_experiment(text)
        refuse_beyond(limits, experiment)
        joined = self._runs.get(run)
        if joined is not None and joined.agreement.experiment == text:
            return joined.agreement
        agreement.refuse_many(self.folder, run, most=limits.most_runs)
        size, privacy = len(read_rows(self.folder, experiment, settings, local=self._local).y), experiment.privacy
        if shares(experiment):
            raise Refused(
                "The server does not speak Tacit, so it asks no queries: leave out data.held_out, privacy.stats and private ranges."
            )
        if kind_of(experiment).plans.traits.trusts_server:
            raise Refused("The server does not speak Tacit, so it adds no noise: only local DP protects the site.")
        roster = Roster((settings["name"],), (size,), (limits.epsilon,), privacy.run_delta, privacy.unit_kept)
        agreement.refuse_changed(self.folder, run, text, roster.record())
        joined = self._runs.build(run, text, roster)
        agreement.write(self.folder, joined.agreement)
        agreement.write_promise(self.folder, run, promise_of(joined))
        return self._runs.hold(joined).agreement

    def _train(self, asked: Train, body: bytes) -> Decision:
        """One round: check, bind the question, pay, train, keep, answer."""
        agreed = self._standing(asked.run, asked.round)
        refuse_other(asked.terms, agreed.terms)
        folder = layout.run_folder(self.folder, asked.run)
        answer = replies.find(folder, asked.round, body)
        if answer is not None:
            self._runs.current(agreed)  # raises where the ledger does not know the answer
            return {"again": True}, answer, "Sent the kept answer again."
        queries.refuse_ended(self.folder, agreed)
        refuse_unbound(self.folder, agreed)
        received = read_broadcast(body, agreed.terms)
        joined = self._runs.current(agreed)
        refuse_out_of_turn(joined, asked.round)
        refuse_odd_word(joined, received)
        keys.refuse_other_turn(joined.parts, received, asked.round)
        replies.bind(folder, asked.round, body)
        pay(self.folder, joined, asked.round, body)
        canaries.commit(folder, joined.parts)
        ((raw, told),) = joined.train(body, asked.round, [joined.client.index])
        replies.keep(folder, asked.round, body, raw)
        canaries.record_observation(self.folder, joined, asked.round, told)
        judge(self.folder, joined, received.tensors["params"], asked.round)
        epsilon = spent(joined)
        return (
            {"again": False, "epsilon": epsilon},
            raw,
            f"Trained; epsilon spent {shown(epsilon)} per {joined.limits.unit}.",
        )

    def _open(self, asked: Open, body: bytes) -> Decision:
        """Its part of opening the sum of a round's reports, which it checks and adds itself; once a round."""
        joined = self._runs.current(self._standing(asked.run, asked.round))
        group = keys.group_of(joined.parts, asked.group).name
        folder = layout.opened_folder(layout.run_folder(self.folder, asked.run), group)
        answer = replies.find(folder, asked.round, body)
        if answer is not None:
            return {"again": True}, answer, "Sent the kept opening again."
        try:
            raw = keys.open_reports(joined.parts, asked.group, asked.round, unpack(body))
        except TacitError as error:
            raise Refused(str(error)) from error
        if joined.ledger is not None:  # a copy has a list of openings of its own, and a ledger that it is held against
            joined.ledger.release(f"opening of {group}, round {asked.round + 1}", replies.question_hash(body).hex())
        replies.keep(replies.make_folder(folder), asked.round, body, raw)
        return {"again": False}, raw, f"Gave its part of opening the sum of round {asked.round + 1}."

    def _count(self, asked: Count, body: bytes) -> Decision:
        """A query: check, bind the question, pay, count, add noise, keep, answer; once a run."""
        agreed = self._standing(asked.run)
        queries.refuse_unasked(agreed, asked.query)
        raw = queries.kept(self.folder, agreed, asked.query, body)
        joined = self._runs.current(agreed)  # raises where the ledger does not know the answer
        if raw is not None:
            return {"again": True, "epsilon": spent(joined)}, raw, "Sent the kept counts again."
        refuse_unbound(self.folder, agreed, query=asked.query)
        raw = queries.answer(self.folder, joined, asked.query, body)
        epsilon = spent(joined)
        text = f"Answered the query {asked.query}; epsilon spent {shown(epsilon)} per {joined.limits.unit}."
        return {"again": False, "epsilon": epsilon}, raw, text

    def _keep(self, asked: Keep, body: bytes) -> Decision:
        """The model that the run left, for the site's own use: public by then, so nothing is paid, whatever is left of a budget."""
        agreed = agreement.read(self.folder, asked.run)
        if agreed is None:
            raise Refused("There is no agreement on this run: the server must ask for one first.", Refusal.LATER)
        refuse_unbound(self.folder, agreed)
        kept = final_model.keep(self.folder, self._runs.current(agreed, spends=False), body)
        return {}, b"", f"Kept the model that the run left: tacit predict {kept} new.csv"

    def _standing(self, run: str, round: int = 0) -> Agreement:
        """The agreement on a run, if the site's people still allow what it says. Raises Refused."""
        agreed = agreement.read(self.folder, run)
        if agreed is None:
            raise Refused("There is no agreement on this run: the server must ask for one first.", Refusal.LATER)
        if not round < agreed.terms.rounds:
            raise Refused(f"The server asks for round {round + 1}; {agreed.terms.rounds} rounds were agreed.")
        limits, experiment = read_limits(self.folder), read_experiment(agreed.experiment)
        refuse_beyond(limits, experiment)
        refuse_device(experiment, self.settings)
        refuse_crowd(limits, Roster.of(agreed.roster))
        refuse_parameters(limits, agreed.terms.parameters)
        if limits.epsilon < agreed.terms.epsilon:
            raise Refused(f"The site's budget is now epsilon {limits.epsilon:g}; the run was agreed at more.")
        return agreed

    def _wait(self, began: float, about: dict[str, Any]) -> None:
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
            note(self.folder, verdict="late", text=text, **about)
