"""One site: it hears what the server asks, decides, pays its own ledger, trains, and answers.

Guarantee: nothing leaves before the site's ledger has been charged for it on the site's disk. An answer is kept before
it is sent: the same question gets the same bytes and costs nothing, another question for an answered round is refused.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import tacit
from tacit.engine.wire import unpack
from tacit.errors import BudgetExhausted, Refused, TacitError
from tacit.privacy.client_plan import CentralPlan
from tacit.privacy.guarantee import agreed, promise, sentence, shown
from tacit.site import agreement, outbox, sealed
from tacit.site.agreement import Terms, refuse_other
from tacit.site.foreign import Local
from tacit.site.join import Joined, join, read_experiment, read_rows, read_settings
from tacit.site.limits import read_limits, refuse_beyond
from tacit.site.log import note
from tacit.site.pay import pay, prepay, refuse_spent, spent
from tacit.site.roster import Roster
from tacit.site.rows import shape
from tacit.types import Message

Answer = tuple[dict[str, Any], bytes]
UNSAID = "The site cannot take part; the reason is in its log.jsonl."  # an error's text may quote private rows


class Site:
    """A site's folder and what it has loaded for the runs it takes part in. `local` is training of somebody else's."""

    def __init__(self, folder: Path | str, *, local: Local | None = None):
        self.folder, self._local = Path(folder), local
        self._joined: dict[str, Joined] = {}

    def answer(self, ask: dict[str, Any], body: bytes) -> Answer:
        """Answers one question. Raises Refused or BudgetExhausted, in words that may be told; the log has the rest."""
        kind, facts = ask.get("kind"), {key: ask[key] for key in ("kind", "run", "round") if key in ask}
        steps = {"hello": self._hello, "agree": self._agree, "train": self._train, "open": self._open}
        try:
            if kind not in steps:
                raise Refused(f"The server asks for {kind!r}, which is nothing that a site does.")
            reply, raw, said = steps[kind](ask, body)
        except (Refused, BudgetExhausted) as error:
            note(self.folder, verdict="refused", text=str(error), **facts)
            raise
        except (TacitError, OSError, KeyError, TypeError, ValueError) as error:
            note(self.folder, verdict="failed", text=f"{type(error).__name__}: {error}", **facts)
            raise Refused(UNSAID) from error
        note(self.folder, verdict="answered", text=said, **facts)
        return reply, raw

    def alone(self, *, run: str) -> tuple[Terms, str]:
        """Agrees with itself, on the site's own `experiment.toml`, where the server knows nothing of Tacit. Raises Refused."""
        path = self.folder / "experiment.toml"
        if not path.is_file():
            raise Refused("The server does not speak Tacit, and the site has no experiment.toml of its own.")
        if run not in self._joined:
            text = path.read_text("utf-8")
            experiment, limits, values = read_experiment(text), read_limits(self.folder), self.settings
            size, privacy = len(read_rows(self.folder, experiment, values, local=self._local).y), experiment.privacy
            if privacy.kind == "central":
                raise Refused("The server does not speak Tacit, so it adds no noise: only local DP protects the site.")
            roster = Roster((values["name"],), (size,), (limits.epsilon,), privacy.run_delta, privacy.unit_kept)
            agreement.refuse_changed(self.folder, run, text, roster.record())
            self._joined[run] = self._join(run, text, roster)
            agreement.write(self.folder, self._joined[run].agreement)
        return self._joined[run].agreement.terms, run

    @property
    def settings(self) -> dict[str, Any]:
        """`site.toml`. Raises BadInput."""
        return read_settings(self.folder)

    def _join(self, run: str, text: str, roster: Roster) -> Joined:
        return join(self.folder, run, text, roster, local=self._local)

    def _hello(self, ask: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes, str]:
        """Who is here: only what is public by declaration."""
        del body
        experiment, limits, values = read_experiment(ask["experiment"]), read_limits(self.folder), self.settings
        refuse_beyond(limits, experiment)
        rows = read_rows(self.folder, experiment, values, local=self._local)
        facts = {"site": values["name"], "examples": len(rows.y), "shape": list(shape(rows)), "classes": rows.classes}
        mine = {"epsilon": limits.epsilon, "unit": limits.unit, "tacit": tacit.__version__, "torch": torch.__version__}
        notes = "".join(f" Note: {note}." for note in rows.notes)
        return facts | mine, b"", f"Takes part in {experiment.name} with {len(rows.y)} rows.{notes}"

    def _agree(self, ask: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes, str]:
        """The run as it will be: every later question is held against it."""
        del body
        run, text, roster = str(ask["run"]), str(ask["experiment"]), Roster.of(ask["roster"])
        agreement.refuse_changed(self.folder, run, text, roster.record())
        joined = self._join(run, text, roster)
        refuse_other(Terms(**ask["terms"]), joined.agreement.terms)
        if agreement.read(self.folder, run) is None:
            refuse_spent(joined)
        agreement.write(self.folder, joined.agreement)
        promised = agreement.write_promise(self.folder, run, _promise(joined))
        if isinstance(joined.parts.plan, CentralPlan):
            prepay(joined, int(ask["releases"]))
        self._joined[joined.agreement.run] = joined
        terms = joined.agreement.terms
        said = f"Agreed: {terms.rounds} rounds, {terms.parameters} parameters, epsilon {terms.epsilon:g} in all"
        return {"terms": asdict(terms)}, b"", f"{said}; a round costs {terms.event or 'nothing'}. {promised}"

    def _train(self, ask: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes, str]:
        """One round: check, pay, train, keep, answer."""
        run, round = str(ask["run"]), int(ask["round"])
        known = agreement.read(self.folder, run)
        if known is None:
            raise Refused("There is no agreement on this run: the server must ask for one first.")
        refuse_other(Terms(**ask["terms"]), known.terms)
        if not 0 <= round < known.terms.rounds:
            raise Refused(f"The server asks for round {round}; {known.terms.rounds} rounds were agreed.")
        kept = outbox.find(agreement.place(self.folder, run), round, body)
        if kept is not None:
            return {"again": True}, kept, "Sent the kept answer again."
        joined = self._joined.get(run) or self._join(run, known.experiment, Roster.of(known.roster))
        self._joined[run] = joined
        _refuse_shape(unpack(body), known.terms)
        pay(self.folder, joined, round, body)
        ((raw, _),) = joined.train(body, round, [joined.client.index])
        outbox.keep(agreement.place(self.folder, run), round, body, raw)
        epsilon = spent(joined)
        return (
            {"again": False, "epsilon": epsilon},
            raw,
            f"Trained; epsilon spent {shown(epsilon)} per {joined.limits.unit}.",
        )

    def _open(self, ask: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes, str]:
        """Its part of opening the sum of a round's reports, which it checks and adds itself; once a round."""
        run, turn, word = str(ask["run"]), int(ask["round"]), str(ask["group"])
        known = agreement.read(self.folder, run)
        if known is None or not 0 <= turn < known.terms.rounds:
            raise Refused(f"The server asks to open round {turn}, which was not agreed.")
        joined = self._joined.get(run) or self._join(run, known.experiment, Roster.of(known.roster))
        self._joined[run] = joined
        place = agreement.place(self.folder, run) / f"opened-{sealed.group_of(joined.parts, word).name}"
        kept = outbox.find(place, turn, body)
        if kept is not None:
            return {"again": True}, kept, "Sent the kept opening again."
        try:
            raw = sealed.open_reports(joined.parts, word, turn, unpack(body))
        except TacitError as error:
            raise Refused(str(error)) from error
        place.mkdir(exist_ok=True)
        outbox.keep(place, turn, body, raw)
        return {"again": False}, raw, f"Gave its part of opening the sum of round {turn}."


def _promise(joined: Joined) -> str:
    parts = joined.parts
    if parts.plan is None:
        return sentence(None)
    return agreed(
        promise(parts.experiment, parts.plan), client=joined.client.id, epsilon=joined.agreement.terms.epsilon
    )


def _refuse_shape(received: Message, terms: Terms) -> None:
    params = received.tensors.get("params")
    if params is None or params.shape != (terms.parameters,) or params.dtype != torch.float32:
        found = "none" if params is None else f"{list(params.shape)} of {params.dtype}"
        raise Refused(f"The server sent other parameters ({found}) than the {terms.parameters} that were agreed.")
