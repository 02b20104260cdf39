"""A run as a site takes part in it: rows, plan, noise, price and ledger, computed here and not taken from the server.

What the server sends of a run is its name, an experiment's text and a roster. From these, the site's own files and its own rows
everything else follows (`accept`); the server's terms are compared with what came out and never used. What was agreed stands on
disk, and whatever the server asks later is held against it.

A ledger that was lost, replaced or restored from an old copy would sell the same budget twice. Four things lie beside it that it
must not contradict: its watermark (`tacit.privacy.ledger.disk`), its population, the site's name, and every answer that is kept."""

import json
import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from dp_accounting import DpEvent

import tacit
from tacit import store, wire
from tacit.data.dataset import Dataset
from tacit.data.population import persons_of, rows_digest
from tacit.deploy.site import layout
from tacit.deploy.site.canaries import with_own_canaries
from tacit.deploy.site.consent import OWN_FILES, proposed, read_experiment
from tacit.deploy.site.keys import seals_of
from tacit.deploy.site.limits import Allowed, Demand, Limits, hold
from tacit.deploy.site.requests import MOST_COLUMNS, Roster, Terms, ranges_of
from tacit.deploy.site.rows import HeldOut, own_model, read_rows, shape
from tacit.engine import trainers
from tacit.engine.assemble import Parts, assemble
from tacit.engine.ledgers import asked_by, population_id
from tacit.engine.queries import columns_asked, judged_by, ranges_asked
from tacit.engine.trainers import Trainer
from tacit.errors import BadInput, LedgerError, Refusal, Refused
from tacit.experiment import Experiment
from tacit.experiment.extras import EVALUATION, RANGES, STATS, shares
from tacit.parts import models, tasks
from tacit.privacy.accounting import price
from tacit.privacy.ledger import disk
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.queries.ranges import Range, asked_ranges
from tacit.privacy.wiring import Local
from tacit.types import Budget, Client, Guarantee

FLOAT_BYTES = 4
SEALED_BYTES = 64  # a parameter's part of a ciphertext has 8 to 24 bytes; a rotation pads the model to twice its size
AROUND_BYTES = 64 << 10  # for each site: what is said of it, and around its report


@dataclass(frozen=True)
class Agreement:
    """One run as the site accepted it."""

    run: str
    experiment: str
    roster: dict[str, Any]
    terms: Terms


@dataclass(frozen=True, eq=False)
class Accepted:
    """A run that the site takes part in, under these limits: other limits make it void.

    `client` has the budget of the site's own file and pays; what trains and noises has the epsilon of the roster. `held` are rows
    that the site holds out for itself, `asked` is the client with those that the experiment holds out.
    """

    site: Path
    agreement: Agreement
    limits: Limits
    parts: Parts = field(repr=False)
    client: Client = field(repr=False)
    trainer: Trainer = field(repr=False)  # called by `replies.Paid` alone
    ledger: Ledger | None = field(repr=False)
    held: HeldOut | None = field(default=None, repr=False)
    asked: Client | None = field(default=None, repr=False)


def accept(allowed: Allowed, run: str, roster: Roster, *, local: Local | None = None, spends: bool = True) -> Accepted:
    """Builds this site's own view of a run. `local` is training of somebody else's, on rows that Tacit never sees.

    Guarantee: what can be refused without reading rows is refused before they are read, and too many local steps, or parameters of
    a model that says its size, before a model is made. Nothing is charged. Once the rows are read, only their number and shape can
    decide whether it succeeds. Without `spends`, a budget that is lower than the roster's is no reason to refuse.
    """
    site, text, experiment, settings = allowed.site, allowed.text, allowed.experiment, allowed.settings
    limits, name, privacy = allowed.limits, settings["name"], experiment.privacy
    if roster.names.count(name) != 1 or roster.delta != privacy.run_delta or roster.unit != privacy.unit_kept:
        raise Refused(f"The server's list of sites does not hold {name} once, under the experiment's delta and unit.")
    index = roster.names.index(name)
    epsilon = roster.epsilons[index]
    hold(limits, Demand(sites=len(roster.names), epsilon=epsilon if spends else None))
    rows, held, counted = read_rows(site, experiment, settings, local=local, ranges=bound_ranges(site, run))
    if roster.sizes[index] != rows.units:
        raise Refused(f"The server's list of sites has another size for {name} than the site declared.")
    experiment = own_model(experiment, path=layout.own_path("model", site, settings))
    declared = models.size(
        experiment.model.name,
        input_shape=shape(rows),
        classes=tasks.load(experiment, rows).answer[-1],
        options=experiment.model.options(),
    )
    train, steps = experiment.train, experiment.train.steps
    if train.local_epochs:
        steps = math.ceil(train.local_epochs / (train.sampling_rate or min(1.0, train.batch / rows.units)))
    hold(limits, Demand(steps=steps, parameters=declared))
    population = roster.population(shape(rows))
    seals = seals_of(experiment, site, run=run, site=name, text=text, roster=roster.record())
    own = None if seals else index  # the shares of a sum are sized for all of its clients
    parts = assemble(experiment, rows, population, own=own, place="site", seals=seals, local=local)
    hold(limits, Demand(parameters=sum(parameter.numel() for parameter in parts.model.parameters())))
    parts = with_own_canaries(site, run, parts, index, settings)
    budget = Budget(limits.epsilon, privacy.run_delta, limits.unit)
    persons = None if rows.person is None else persons_of(rows.person, most=privacy.person_rows or 1)
    client = Client(index, name, budget, rows.x, rows.y, rows_digest(rows.x, rows.y, persons), persons)
    public = replace(client, budget=replace(budget, epsilon=epsilon))  # the budget that everybody knows
    agreed = Agreement(run, text, roster.record(), terms_of(parts, client, epsilon=epsilon))
    about = None
    if counted is not None:
        about = replace(public, x=counted.x, y=counted.y, digest=rows_digest(counted.x, counted.y))
    trainer = trainers.alone(parts, {index: public}, model=parts.model)
    ledger = _own_ledger(site, parts, limits, agreed, settings)
    return Accepted(site, agreed, limits, parts, client, trainer, ledger, held, about)


def terms_of(parts: Parts, client: Client, *, epsilon: float) -> Terms:
    """What one round asks of a client, and each query that it answers beside training, as which its noise can be drawn; what is not
    priced costs nothing. Raises: Refused."""
    try:
        for query, asked in ((EVALUATION, judged_by), (STATS, columns_asked), (RANGES, ranges_asked)):
            if (one := asked(parts.experiment, parts.dataset)) is not None:
                parts.plan.queries.mechanism(query, client.index, l2_squared=one.l2_squared, cells=one.cells)
    except BadInput as error:
        raise Refused(f"What the experiment asks beside training cannot be answered: {error}") from None

    def text(event: DpEvent | None) -> str:
        return "" if event is None else price.to_text(event)

    priced, rounds = parts.plan.queries.events(client.index), parts.experiment.train.rounds
    queries = {query: text(priced.get(query)) for query in sorted(shares(parts.experiment))}
    event, asked = text(parts.algorithm.cost(client)), json.dumps(queries) if queries else ""
    return Terms(event, epsilon, rounds, parts.params.numel(), parts.frozen, asked)


def longest_question(agreed: Agreement) -> int:
    """The bytes of the longest request that a run of this agreement has need of, rounded up.

    It is the model with what a rule sends beside it (a vector for each of its directions, and a centre), or all encrypted reports.
    """
    experiment, sites = read_experiment(agreed.experiment), len(agreed.roster["names"])
    parameters, options = agreed.terms.parameters, experiment.aggregate.options()
    rank = options["rank"] if isinstance(options.get("rank"), int) else 1
    sealed = SEALED_BYTES * parameters * sites if experiment.protect.kind == "paillier" else 0
    return AROUND_BYTES * sites + max(FLOAT_BYTES * parameters * (2 + rank), sealed)


def declaration(experiment: Experiment, limits: Limits, *, name: str, rows: Dataset) -> dict[str, Any]:
    """What the server is told of a site. Number and shape of rows and the number of classes are all that is told of the data; they
    are public to the run's promise.
    """
    return {
        "site": name,
        "examples": rows.units,
        "shape": list(shape(rows)),
        "classes": rows.classes,
        "epsilon": min(limits.epsilon, proposed(experiment, name)),
        "unit": limits.unit,
        "tacit": tacit.__version__,
        "torch": torch.__version__,
    }


# What was agreed, on disk.


def refuse_other(asked: Terms, agreed: Terms) -> None:
    """Refuses terms that are not the agreed ones to the letter, less of anything included. Raises: Refused, naming a difference."""
    less = "less" if smallest_noise(asked.event) < smallest_noise(agreed.event) else "other"
    more, nothing = asked.epsilon > agreed.epsilon, "of nothing"
    words = {
        "epsilon": f"asks for epsilon {asked.epsilon:g}; the site {'allows' if more else 'agreed to'} {agreed.epsilon:g}",
        "rounds": f"asks for {asked.rounds} rounds; {agreed.rounds} were agreed",
        "parameters": f"asks for a model of {asked.parameters} parameters; {agreed.parameters} were agreed",
        "frozen": f"has a model whose frozen part (hash {asked.frozen or nothing}) is not that of the model which this site builds"
        f" ({agreed.frozen or nothing}): give both the same file, factory and seed",
        "asked": f"asks beside training for {asked.asked or 'nothing'}; agreed was {agreed.asked or 'nothing'}",
        "event": f"asks for {less} noise ({asked.event}) than agreed ({agreed.event})",
    }
    for part in fields(Terms):  # every one of them
        if getattr(asked, part.name) != getattr(agreed, part.name):
            raise Refused(f"The server {words[part.name]}.")


def smallest_noise(event: str) -> float:
    """For the words of a refusal, not for a price."""
    return min(map(float, re.findall(r'"noise_multiplier": ([0-9.eE+-]+)', event)), default=0.0)


def write(site: Path, agreement: Agreement, promise: str, said: Guarantee | None = None) -> None:
    """Puts an agreement on disk, and what the site was promised in words; one that stands is never changed. Raises: Refused."""
    known, folder = read(site, agreement.run), layout.run_folder(site, agreement.run)
    if known is not None:
        refuse_other(agreement.terms, known.terms)
    else:
        path = layout.make_folder(folder) / layout.AGREEMENT
        layout.write(path, json.dumps(asdict(agreement), indent=1).encode())
    write_promise(folder, promise, said)


def write_promise(folder: Path, promise: str, said: Guarantee | None) -> None:
    """Writes down what a site was promised in a run, in words, and where something is, the guarantee that they were made of."""
    layout.write(folder / layout.PROMISE, f"{promise}\n".encode())
    if said is not None:
        layout.write(folder / layout.PROMISED, json.dumps(said.record()).encode())


def read(site: Path, run: str) -> Agreement | None:
    """The agreement on a run; None where there is none. Raises: Refused for what is no run's name; BadInput for a damaged file."""
    path = layout.run_folder(site, run) / layout.AGREEMENT
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text("utf-8"))
        return Agreement(record["run"], record["experiment"], record["roster"], Terms(**record["terms"]))
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path} is damaged ({type(error).__name__}): restore it, or leave this run.") from None


def standing(site: Path, run: str) -> Agreement:
    """The agreement on a run. Raises: Refused where there is none; as `read`."""
    agreed = read(site, run)
    if agreed is None:
        raise Refused("There is no agreement on this run: the server must ask for one first.", Refusal.LATER)
    return agreed


# The ranges of a run's private columns at a site: found from every site's noised counts, sent once, and bound before training.


def record_of(ranges: Mapping[str, Range]) -> dict[str, list[float]]:
    return {name: list(ends) for name, ends in sorted(ranges.items())}


def bind_ranges(site: Path, agreed: Agreement, experiment: Experiment, ranges: Mapping[str, Range]) -> bool:
    """Makes the ranges the run's own at this site, on disk; whether it is so for the first time.

    They are of the private columns and of no others, each from the beginning of a public bin to the end of one. No row decides
    whether they are taken. Raises: Refused, also for others than those that are bound.
    """
    columns = experiment.data.options().get("columns")
    named = [(str(name), 1) for name in columns] if isinstance(columns, list | tuple) else []
    query = asked_ranges(experiment.data.private_columns, named)
    if query is None:
        raise Refused("The server gives ranges, and this run asks for none.")
    try:
        query.refuse_impossible(ranges)
    except BadInput as error:
        raise Refused(f"The server's ranges cannot be used: {error}.") from None
    path = layout.run_folder(site, agreed.run) / layout.RANGES
    if store.create(path, json.dumps(record_of(ranges)).encode()):
        return True
    if bound_ranges(site, agreed.run) != dict(ranges):
        raise Refused(
            "The server gives other ranges for the private columns than this run has at this site: one run reads rows in one way."
        )
    return False


def bound_ranges(site: Path, run: str) -> dict[str, Range]:
    """The ranges that are bound for a run; none where there are none yet. Raises: BadInput for a damaged file."""
    path = layout.run_folder(site, run) / layout.RANGES
    if not path.exists():
        return {}
    try:
        return ranges_of(wire.json_object(path.read_text("utf-8"), what="It", brackets=MOST_COLUMNS + 1, finite=True))
    except (BadInput, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is damaged ({error}): restore it, or take no part in this run.") from None


def refuse_unbound(site: Path, agreed: Agreement, *, query: str = "") -> None:
    """Refuses whatever reads encoded rows while their ranges are not known, and a query for them afterwards. Raises: Refused."""
    if RANGES not in agreed.terms.queries:
        return
    known = bool(bound_ranges(site, agreed.run))
    if query == RANGES and known:
        raise Refused("The ranges of this run are known already, so that nothing is counted for them any more.")
    if query != RANGES and not known:
        raise Refused("The ranges of private columns are not known yet: the server must send them.", Refusal.LATER)


# The site's ledger, opened for one run, and held against what lies beside it.

KEY, SITES = "node.pub", "sites"


def _own_ledger(
    folder: Path, parts: Parts, limits: Limits, agreed: Agreement, settings: dict[str, Any]
) -> Ledger | None:
    """The site's ledger for one run; None where the experiment promises nothing and so charges nothing.

    Raises: LedgerError for a ledger that is gone, older than its watermark, of another population, charged under another name, or
    that knows no charge for an answer beside it, and where a copy of the site was charged.
    """
    if not parts.plan.priced:
        return None
    experiment, data = parts.experiment, parts.experiment.data.name
    # named by the data file as site.toml has it, so that a folder can move with its ledger
    own = f"{data}:{settings.get('data')}" if data in OWN_FILES else None
    return open_ledger(
        folder,
        settings,
        population=own or population_id(experiment, parts.population, is_deployed=parts.is_deployed),
        run=agreed.run,
        delta=limits.delta,
        rounds=parts.plan.sampler.slots(None, rounds=experiment.train.rounds),
        most_epsilon=agreed.terms.epsilon,
        queries=asked_by(parts),
        conditions=[parts.start.under],
    )


def open_ledger(folder: Path, settings: dict[str, Any], **options: Any) -> Ledger:
    """The site's ledger with the `options` of one run. Raises: LedgerError, as `_own_ledger`."""
    ledger = Ledger(
        folder / layout.LEDGER,
        watermarks=(folder / disk.NAME,),
        refuse_copies=lambda ledger: refuse_charged_copy(folder, ledger.lacks),
        **options,
    )
    refuse_contradicted(folder, ledger, settings["name"])
    return ledger


def refuse_contradicted(folder: Path, ledger: Ledger, name: str) -> None:
    """Refuses a ledger that was charged under another name, knows no charge for an answer, or of which a copy was charged."""
    refuse_renamed(ledger.path, ledger.charged(), name)
    for run, what in unpaid(folder, lambda run, what: ledger.knows(what, run=run)):
        raise LedgerError(
            f"{folder} holds the answer to {in_words(what)} of run {run}, and {ledger.path} knows no charge for it: restore the"
            f" newest copy of the ledger and of {disk.NAME}; nothing was released."
        )
    ledger.refuse_copies()


def refuse_charged_copy(folder: Path, lacks: Callable[[Path], bool]) -> None:
    """Refuses a site of which a copy was charged for what its own ledger does not know: two ledgers on one budget."""
    for copy in copies(folder):
        if lacks(copy / disk.NAME):
            raise LedgerError(
                f"{copy} has this site's node key, so one of the two is a copy, and it was charged for what this ledger does not"
                " know: both together would spend one budget twice. Go on with that one, or delete it if it never answered"
                " anybody. Nothing was released."
            )


def copies(folder: Path) -> Iterator[Path]:
    """The folders of the same owner, beside a site or its federation, that have its node key."""

    def key(site: Path) -> bytes:
        try:
            return (site / KEY).read_bytes()
        except OSError:
            return b""

    mine, here = key(folder), folder.resolve()
    if not mine:
        return
    places = [here.parent, here.parents[2]] if here.parent.name == SITES and len(here.parents) > 2 else [here.parent]
    found = {
        path.parent.resolve()
        for place in places
        for way in (f"*/{KEY}", f"*/{SITES}/*/{KEY}")
        for path in place.glob(way)
    }
    for other in sorted(found - {here}):
        # whoever else has a folder there knows the public half of a key, and may not keep the site from answering
        if key(other) == mine and other.stat().st_uid == here.stat().st_uid == os.getuid():
            yield other


def refuse_renamed(ledger: Path, charged: Collection[str], name: str) -> None:
    """Refuses a ledger that was charged under another name, or the same rows would have their budget again."""
    others = sorted(set(charged) - {name})
    if others:
        raise LedgerError(
            f"{ledger} was charged for {', '.join(others)}, and site.toml calls the site {name}: the same rows would have their"
            " budget once more. Put the name back; other rows have a folder and a ledger of their own. Nothing was released."
        )


def in_words(what: int | str) -> str:
    return f"the query {what}" if isinstance(what, str) else f"round {what + 1}"


def unpaid(folder: Path, charged: Callable[[str, int | str], bool]) -> Iterator[tuple[str, int | str]]:
    """(run, round), or (run, query), of every answer on a site's disk for which `charged` is False and should not be.

    An answer whose agreement is gone counts as one that was to be paid for.
    """
    for run, what in layout.answers(folder):
        if not charged(run, what):
            known = read(folder, run)
            if known is None or known.terms.event:
                yield run, what
