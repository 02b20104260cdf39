"""One site: it hears what the server asks, decides, pays its own ledger, trains, and answers.

Guarantee: nothing leaves before the site's ledger has been charged for it on the site's disk. An answer is kept before
it is sent: the same question gets the same bytes and costs nothing, another question for an answered round is refused.
"""

import hashlib
import platform
import tomllib
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import tacit
from tacit.build import Parts, population_id
from tacit.data.dataset import Dataset
from tacit.engine.wire import unpack
from tacit.errors import BadInput, BudgetExhausted, Refused, TacitError
from tacit.experiment import Experiment
from tacit.privacy.client_plan import CentralPlan
from tacit.privacy.ledger import Ledger
from tacit.site import agreement, outbox, sealed
from tacit.site.agreement import Agreement, Terms, refuse_other, terms_of
from tacit.site.foreign import Local, with_training
from tacit.site.limits import Limits, read_limits, refuse_beyond
from tacit.site.log import note
from tacit.site.roster import Roster
from tacit.site.rows import OWN_FILES, own_rows, refuse_undeployable, shape, unseen_rows
from tacit.site.sealed import assemble_sealed
from tacit.train.cohort import Trainer, one_by_one, task
from tacit.train.workspace import workspace
from tacit.types import Client, Message

Answer = tuple[dict[str, Any], bytes]
UNSAID = "The site cannot take part; the reason is in its own log."  # an error's text may quote private rows


@dataclass(frozen=True, eq=False)
class Joined:
    """What a site needs to take part in one run."""

    agreement: Agreement
    limits: Limits
    parts: Parts = field(repr=False)
    client: Client = field(repr=False)
    train: Trainer = field(repr=False)
    ledger: Ledger | None = field(repr=False)


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
            experiment, limits, values = _experiment(text), read_limits(self.folder), self.settings()
            size, privacy = len(self._rows(experiment, values).y), experiment.privacy
            if privacy.kind == "central":
                raise Refused("The server does not speak Tacit, so it adds no noise: only local DP protects the site.")
            roster = Roster((values["name"],), (size,), (limits.epsilon,), privacy.delta, privacy.unit_kept)
            agreement.refuse_changed(self.folder, run, text, roster.record())
            self._joined[run] = self._join(run, text, roster)
            agreement.write(self.folder, self._joined[run].agreement)
        return self._joined[run].agreement.terms, run

    def settings(self) -> dict[str, Any]:
        """`site.toml`: the site's name and where its rows are. Raises BadInput."""
        path = self.folder / "site.toml"
        try:
            values = tomllib.loads(path.read_text("utf-8"))
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise BadInput(f"{path} cannot be read ({error}).") from None
        if not isinstance(values.get("name"), str):
            raise BadInput(f'{path} does not name the site: add name = "...".')
        return values

    def _hello(self, ask: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes, str]:
        """Who is here: only what is public by declaration."""
        del body
        experiment, limits, values = _experiment(ask["experiment"]), read_limits(self.folder), self.settings()
        refuse_beyond(limits, experiment)
        rows = self._rows(experiment, values)
        facts = {"site": values["name"], "examples": len(rows.y), "shape": list(shape(rows)), "classes": rows.classes}
        mine = {"epsilon": limits.epsilon, "unit": limits.unit, "tacit": tacit.__version__, "torch": torch.__version__}
        return facts | mine, b"", f"Takes part in {experiment.name}."

    def _agree(self, ask: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes, str]:
        """The run as it will be: every later question is held against it."""
        del body
        run, text, roster = str(ask["run"]), str(ask["experiment"]), Roster.of(ask["roster"])
        agreement.refuse_changed(self.folder, run, text, roster.record())
        joined = self._join(run, text, roster)
        refuse_other(Terms(**ask["terms"]), joined.agreement.terms)
        agreement.write(self.folder, joined.agreement)
        if isinstance(joined.parts.plan, CentralPlan):
            self._prepay(joined, int(ask["releases"]))
        self._joined[joined.agreement.run] = joined
        return {"terms": asdict(joined.agreement.terms)}, b"", f"Agreed: {joined.agreement.terms}."

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
        self._pay(joined, round)
        ((raw, _),) = joined.train(body, round, [joined.client.index])
        outbox.keep(agreement.place(self.folder, run), round, body, raw)
        spent = _spent(joined)
        return {"again": False, "epsilon": spent}, raw, f"Trained; epsilon spent {spent}."

    def _open(self, ask: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes, str]:
        """Opens the sum of a round's reports, which it checks and adds itself; once, and only where it is its turn."""
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
        return {"again": False}, raw, f"Opened the sum of round {turn}."

    def _pay(self, joined: Joined, round: int) -> None:
        limits = read_limits(self.folder)
        if limits.epsilon < joined.limits.epsilon:
            raise Refused(f"The site's budget is now epsilon {limits.epsilon:g}; the run was agreed at more.")
        if joined.ledger is None:
            return
        if isinstance(joined.parts.plan, CentralPlan):
            if joined.ledger.charged_rounds() <= round:
                raise Refused(f"Round {round} was not paid for when the run was agreed.")
            return
        if joined.ledger.charged_before(round):
            text = f"Round {round} was charged before and its answer lost; it is charged again, and the first is spent."
            note(self.folder, verdict="lost", text=text, run=joined.agreement.run, round=round)
        joined.ledger.open_round(round)
        event = joined.parts.algorithm.cost(joined.client)
        if event is None or not joined.ledger.admit([joined.client], lambda client: event):
            raise BudgetExhausted(f"{_budget(joined.limits)} does not pay for round {round}.")

    def _prepay(self, joined: Joined, releases: int) -> None:
        """Central DP: a site pays for every model of the run, asked or not, so it pays for all of them when it agrees.

        `releases` is the agreed rounds, or more where the server had to repeat some with new noise. Raises BudgetExhausted.
        """
        ledger, event = joined.ledger, joined.parts.algorithm.cost(joined.client)
        if ledger is None or event is None:
            return
        paid = ledger.charged_rounds()
        missing = max(releases, joined.agreement.terms.rounds if paid == 0 else 0) - paid
        ledger.open_round(paid)
        if missing > 0 and ledger.rounds_left(joined.client, event, hint=missing) < missing:
            raise BudgetExhausted(f"{_budget(joined.limits)} does not pay for {missing} more rounds.")
        for round in range(paid, paid + missing):
            ledger.open_round(round)
            ledger.admit([joined.client], lambda client: event)

    def _join(self, run: str, text: str, roster: Roster) -> Joined:
        """Builds this site's own view of the run: plan, noise and price are computed here, not taken from the server."""
        agreement.place(self.folder, run)
        experiment, limits, values = _experiment(text), read_limits(self.folder), self.settings()
        refuse_beyond(limits, experiment)
        name = values["name"]
        rows = self._rows(experiment, values)
        index = _own_place(roster, name, rows=len(rows.y), limits=limits, experiment=experiment)
        population = roster.population(shape(rows))
        parts = assemble_sealed(experiment, rows, population, folder=self.folder, run=run, site=name)
        parts = with_training(parts, self._local)
        client = Client(index, name, limits.budget, rows.x, rows.y)
        parameters, privacy = parts.params.numel(), experiment.privacy
        if limits.most_parameters is not None and parameters > limits.most_parameters:
            raise Refused(f"The server asks for {parameters} parameters; the site allows {limits.most_parameters}.")
        terms = terms_of(
            parts.algorithm.cost(client),
            epsilon=roster.epsilons[index],
            rounds=experiment.train.rounds,
            parameters=parameters,
        )
        clip = privacy.clip if parts.plan else None
        work = workspace(parts.model, clip=clip, physical_batch=experiment.train.physical_batch)
        train = one_by_one(task(parts.algorithm, work, {index: client}, parts.derive))
        agreed = Agreement(run, text, roster.record(), terms)
        return Joined(agreed, limits, parts, client, train, self._ledger(parts, client, run, values))

    def _ledger(self, parts: Parts, client: Client, run: str, values: dict[str, Any]) -> Ledger | None:
        if parts.plan is None:
            return None
        experiment = parts.experiment
        own = experiment.data.name in OWN_FILES
        population = (
            f"{experiment.data.name}:{self._data(values)}" if own else population_id(experiment, parts.population)
        )
        # what the released bits are a function of; see tacit.engine.simulate
        machine = f"{platform.node()}-{torch.backends.cpu.get_cpu_capability()}"
        same = "-".join((tacit.__version__, torch.__version__, machine, _mark(client)))
        attempt = same if experiment.run.randomness == "seeded" else uuid.uuid4().hex
        attempt = "agreed" if isinstance(parts.plan, CentralPlan) else attempt
        path = self.folder / "ledger.db"
        return Ledger(path, population=population, run=run, attempt=attempt, accountant=experiment.privacy.accountant)

    def _rows(self, experiment: Experiment, values: dict[str, Any]) -> Dataset:
        """The site's rows; where somebody else's code trains on rows that Tacit never sees, only how many there are."""
        if "examples" not in values:
            return own_rows(experiment, name=values["name"], path=self._data(values))
        if self._local is None:
            raise Refused(
                "This site's rows are declared in site.toml only, so its training must come through tacit_mod."
            )
        return unseen_rows(experiment, examples=int(values["examples"]))

    def _data(self, values: dict[str, Any]) -> str | None:
        path = values.get("data")
        return None if path is None else str(self.folder / Path(str(path)).expanduser())


def _experiment(text: str) -> Experiment:
    """The experiment that the server's text describes. Raises Refused."""
    try:
        experiment = Experiment(**tomllib.loads(text))
        refuse_undeployable(experiment)
        return experiment
    except (tomllib.TOMLDecodeError, BadInput) as error:
        raise Refused(f"The server's experiment cannot be used: {error}") from None


def _own_place(roster: Roster, name: str, *, rows: int, limits: Limits, experiment: Experiment) -> int:
    """The site's index in a roster that tells the truth about it. Raises Refused."""
    if roster.names.count(name) != 1 or roster.delta != experiment.privacy.delta:
        raise Refused(f"The server's list of sites does not hold {name} once, under the experiment's delta.")
    index = roster.names.index(name)
    if roster.epsilons[index] > limits.epsilon:
        raise Refused(f"The server asks for epsilon {roster.epsilons[index]:g}; the site allows {limits.epsilon:g}.")
    if roster.sizes[index] != rows or roster.unit != experiment.privacy.unit_kept:
        raise Refused(f"The server's list of sites has another size or unit for {name} than the site declared.")
    return index


def _refuse_shape(received: Message, terms: Terms) -> None:
    params = received.tensors.get("params")
    if params is None or params.shape != (terms.parameters,) or params.dtype != torch.float32:
        found = "none" if params is None else f"{list(params.shape)} of {params.dtype}"
        raise Refused(f"The server sent other parameters ({found}) than the {terms.parameters} that were agreed.")


def _budget(limits: Limits) -> str:
    return f"The site's budget (epsilon {limits.epsilon:g}, delta {limits.delta:g} per {limits.unit})"


def _mark(client: Client) -> str:
    mark = hashlib.blake2b(digest_size=16)
    for part in (client.x, client.y):
        mark.update(repr((tuple(part.shape), str(part.dtype))).encode())
        mark.update(part.contiguous().numpy().data)
    return mark.hexdigest()


def _spent(joined: Joined) -> float | None:
    return None if joined.ledger is None else joined.ledger.spent(joined.client)
