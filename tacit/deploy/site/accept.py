"""A site's own view of a run: its rows, its plan, its noise and its price, computed here and not taken from the server.

What the server sends of a run is its name, an experiment's text and a roster. From these, the site's own files and its own rows
everything else follows; the server's terms are compared with what came out (`agreement.refuse_other`) and never used."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from dp_accounting import DpEvent

import tacit
from tacit.data.dataset import Dataset
from tacit.data.population import rows_mark
from tacit.deploy.site import layout
from tacit.deploy.site.agreement import Agreement, bound_ranges
from tacit.deploy.site.canaries import with_own_canaries
from tacit.deploy.site.deployable import proposed, read_experiment
from tacit.deploy.site.keys import seals_of
from tacit.deploy.site.limits import Allowed, Demand, Limits, hold
from tacit.deploy.site.pay import own_ledger
from tacit.deploy.site.requests import Roster, terms_of
from tacit.deploy.site.rows import HeldOut, own_model, read_rows, shape
from tacit.engine import trainers
from tacit.engine.assemble import Parts, assemble
from tacit.engine.queries import columns_asked, judged_by, ranges_asked
from tacit.engine.trainers import Trainer
from tacit.errors import BadInput, Refused
from tacit.experiment import Experiment
from tacit.experiment.extras import EVALUATION, RANGES, STATS, shares
from tacit.parts import models, tasks
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.wiring import Local
from tacit.types import Budget, Client

FLOAT_BYTES = 4
SEALED_BYTES = 64  # a parameter's part of a ciphertext has 8 to 24 bytes; a rotation pads the model to twice its size
AROUND_BYTES = 64 << 10  # for each site: what is said of it, and around its report


@dataclass(frozen=True, eq=False)
class Accepted:
    """A run that the site takes part in, under these limits: `accept` makes it, and other limits make it void.

    `client` has the budget of the site's own file and pays; what trains and noises has the epsilon of the roster, which everybody
    knows. `ledger` is None where the experiment promises nothing. `held` are rows that the site holds out for itself, `asked` is
    the client with those that the experiment holds out, about which it is asked once; None where there are none.
    """

    site: Path
    agreement: Agreement
    limits: Limits
    parts: Parts = field(repr=False)
    client: Client = field(repr=False)
    trainer: Trainer = field(repr=False)  # asked by `pay.Paid` alone
    ledger: Ledger | None = field(repr=False)
    held: HeldOut | None = field(default=None, repr=False)
    asked: Client | None = field(default=None, repr=False)


def accept(allowed: Allowed, run: str, roster: Roster, *, local: Local | None = None, spends: bool = True) -> Accepted:
    """Builds this site's own view of a run. `local` is training of somebody else's, on rows that Tacit never sees.

    Guarantee: what can be refused without reading rows is refused before they are read, and too many local steps, or parameters
    of a model that says its size, before a model is made. Nothing is charged, and nothing is written but an empty ledger with its
    secret, an empty list of openings and the secret of the site's canaries where there was none. Once the rows are read, only their
    number and shape can decide whether it succeeds. With `spends = False`, for who charges and answers nothing, a budget that is
    lower than the roster's is no reason.

    Raises: Refused; BadInput or BadData for the site's own files; KeyRefused for its keys; LedgerError for its ledger.
    """
    site, text, experiment, settings = allowed.site, allowed.text, allowed.experiment, allowed.settings
    limits, name, privacy = allowed.limits, settings["name"], experiment.privacy
    layout.run_folder(site, run)  # refuses a name that is none
    if roster.names.count(name) != 1 or roster.delta != privacy.run_delta or roster.unit != privacy.unit_kept:
        raise Refused(f"The server's list of sites does not hold {name} once, under the experiment's delta and unit.")
    index = roster.names.index(name)
    epsilon = roster.epsilons[index]
    hold(limits, Demand(sites=len(roster.names), epsilon=epsilon if spends else None))
    rows, held, counted = read_rows(site, experiment, settings, local=local, ranges=bound_ranges(site, run))
    if roster.sizes[index] != len(rows.y):
        raise Refused(f"The server's list of sites has another size for {name} than the site declared.")
    experiment = own_model(experiment, path=layout.own_path("model", site, settings))
    declared = models.size(
        experiment.model.name,
        input_shape=shape(rows),
        classes=tasks.load(experiment, rows).answer[-1],
        options=experiment.model.options(),
    )
    hold(limits, Demand(steps=_steps(experiment, len(rows.y)), parameters=declared))
    population = roster.population(shape(rows))
    seals = seals_of(experiment, site, run=run, site=name, text=text, roster=roster.record())
    own = None if seals else index  # the shares of a sum are sized for all of its clients
    parts = assemble(experiment, rows, population, own=own, place="site", seals=seals, local=local)
    hold(limits, Demand(parameters=sum(parameter.numel() for parameter in parts.model.parameters())))
    parts = with_own_canaries(site, run, parts, index, settings)
    budget = Budget(limits.epsilon, privacy.run_delta, limits.unit)
    client = Client(index, name, budget, rows.x, rows.y, rows_mark(rows.x, rows.y))
    public = replace(client, budget=replace(budget, epsilon=epsilon))  # the budget that everybody knows
    terms = terms_of(
        parts.algorithm.cost(client),
        epsilon=epsilon,
        rounds=experiment.train.rounds,
        parameters=parts.params.numel(),
        frozen=parts.frozen,
        asked=asked_of(parts, index),
    )
    agreed = Agreement(run, text, roster.record(), terms)
    about = None
    if counted is not None:
        about = replace(public, x=counted.x, y=counted.y, mark=rows_mark(counted.x, counted.y))
    trainer = trainers.alone(parts, {index: public}, model=parts.model)
    ledger = own_ledger(site, parts, limits, agreed, settings)
    return Accepted(site, agreed, limits, parts, client, trainer, ledger, held, about)


def _steps(experiment: Experiment, rows: int) -> int:
    train = experiment.train
    if not train.local_epochs:
        return train.steps
    return math.ceil(train.local_epochs / (train.sampling_rate or min(1.0, train.batch / rows)))


def asked_of(parts: Parts, index: int) -> dict[str, DpEvent | None]:
    """The queries that a client answers beside training, and what each costs it; None where nothing is promised.

    Guarantee: the noise of every one of them can be drawn as it is priced. Raises: Refused.
    """
    try:
        counted = {
            EVALUATION: judged_by(parts.experiment, parts.dataset),
            STATS: columns_asked(parts.experiment, parts.dataset),
            RANGES: ranges_asked(parts.experiment, parts.dataset),
        }
        for query, one in counted.items():
            if one is not None:
                parts.plan.queries.mechanism(query, index, l2_squared=one.l2_squared, cells=one.cells)
    except BadInput as error:
        raise Refused(f"What the experiment asks beside training cannot be answered: {error}") from None
    priced = parts.plan.queries.events(index)
    return {query: priced.get(query) for query in shares(parts.experiment)}


def longest_question(agreed: Agreement) -> int:
    """The bytes of the longest question that a run of this agreement has need of, rounded up.

    It is the model with what a rule sends beside it (a vector for each of its directions, and a centre), or all encrypted reports.
    """
    experiment, sites, parameters = (
        read_experiment(agreed.experiment),
        len(agreed.roster["names"]),
        agreed.terms.parameters,
    )
    options = experiment.aggregate.options()
    rank = options["rank"] if isinstance(options.get("rank"), int) else 1
    sealed = SEALED_BYTES * parameters * sites if experiment.protect.kind == "paillier" else 0
    return AROUND_BYTES * sites + max(FLOAT_BYTES * parameters * (2 + rank), sealed)


def declaration(experiment: Experiment, limits: Limits, *, name: str, rows: Dataset) -> dict[str, Any]:
    """What the server is told of a site: name, number of rows, shape of a row, number of classes, budget and versions.

    Guarantee: the number of rows, the shape of one and the number of classes are all that is told of the data; none of them is
    noised, and the run's promise treats them as public. The epsilon is the smaller of what the site allows and what the
    experiment names for it. Assumes: the site's people have accepted the experiment (`limits.allow`).
    """
    return {
        "site": name,
        "examples": len(rows.y),
        "shape": list(shape(rows)),
        "classes": rows.classes,
        "epsilon": min(limits.epsilon, proposed(experiment, name)),
        "unit": limits.unit,
        "tacit": tacit.__version__,
        "torch": torch.__version__,
    }
