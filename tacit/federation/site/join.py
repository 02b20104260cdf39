"""A site's own view of a run: its rows, its plan, its noise and its price, computed here and not taken from the server.

What the server sends of a run is its name, an experiment's text and a roster. From these, the site's own files and its own rows
everything else follows; the server's terms are compared with what came out (`agreement.refuse_other`) and never used.
"""

import math
import tomllib
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dp_accounting import DpEvent

from tacit import models, parse, tasks
from tacit.build.parts import Parts, assemble
from tacit.data.population import rows_mark
from tacit.digest import mark, question_mark
from tacit.engine.at_clients import judged_by
from tacit.engine.describing import columns_asked
from tacit.engine.ranges import ranges_asked
from tacit.engine.trainers import make
from tacit.engine.trainers.processes import Trainer
from tacit.errors import BadInput, Refused
from tacit.experiment import Experiment
from tacit.experiment.asking import EVALUATION, RANGES, STATS, shares
from tacit.federation.site import layout
from tacit.federation.site.agreement import Agreement, terms_of
from tacit.federation.site.consent import refuse_beyond, refuse_crowd, refuse_device, refuse_parameters, refuse_steps
from tacit.federation.site.limits import Limits, read_limits
from tacit.federation.site.own_canaries import with_own_canaries
from tacit.federation.site.own_evaluation import HeldOut
from tacit.federation.site.own_ledger import own_ledger
from tacit.federation.site.own_rows import own_model, refuse_paths, refuse_undeployable, refuse_unpinned, shape
from tacit.federation.site.ranged import bound
from tacit.federation.site.reading import own_path, read_parted
from tacit.federation.site.roster import Roster
from tacit.federation.site.sealed import seals_of
from tacit.federation.site.wording import unknown, wrong
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.wiring import Local
from tacit.types import Budget, Client

KEYS = (
    "name",
    "server",
    "data",
    "model",
    "device",
    "examples",
    "shape",
    "held_out",
    "canaries",
    "personal",
)  # of site.toml
NO_TEXTS = ("examples", "shape", "held_out", "canaries", "personal")
MOST_WORDS = 500  # of a refusal that repeats parts of an experiment


@dataclass(frozen=True, eq=False)
class Joined:
    """What a site needs to take part in one run: its own plan, its rows as a client, how it trains, and its ledger for the run.

    `client` has the budget of the site's own file and pays; what trains and noises has the epsilon of the roster, which everybody
    knows. `ledger` is None where the experiment promises nothing. `held` are rows that the site holds out for itself, `asked` is
    the client with those that the experiment holds out, about which it is asked once; None where there are none.
    """

    agreement: Agreement
    limits: Limits
    parts: Parts = field(repr=False)
    client: Client = field(repr=False)
    train: Trainer = field(repr=False)
    ledger: Ledger | None = field(repr=False)
    held: HeldOut | None = field(default=None, repr=False)
    asked: Client | None = field(default=None, repr=False)

    def attempt(self, question: bytes) -> str:
        """The name of the release that answers a question, under which it is charged: the same name is the same bits, paid once.

        Guarantee: what cannot be repeated bit for bit (noise of the operating system, a GPU, somebody else's training) has
        another name at every call. Where everybody pays together, all rounds have one name: they were charged when the run was
        agreed.
        """
        if self.parts.plan.together:
            return "agreed"
        fresh = uuid.uuid4().hex if self.parts.nonce else ""  # what cannot be repeated is another release every time
        return mark("site", self.parts.releases.client(self.client), question_mark(question), fresh)


def join(
    folder: Path, run: str, text: str, roster: Roster, *, local: Local | None = None, spends: bool = True
) -> Joined:
    """Builds this site's own view of a run: plan, noise and price are computed here, not taken from the server.

    Guarantee: what can be refused without reading rows is refused before they are read, and too many local steps, or parameters
    of a model that says its size, before a model is made. Nothing is charged, and nothing is written but an empty ledger, an empty
    list of openings and the secret of the site's canaries where there was none. Once the rows are read, only their number and
    shape can decide whether it succeeds.

    Assumes: `roster` was read by `Roster.of`. `local` is training of somebody else's, on rows that Tacit never sees. Whoever calls
    it with `spends = False` charges nothing and answers nothing: then a budget that is lower than the roster's is no reason.

    Raises: Refused for what the site's files do not allow, for a roster that is wrong about this site, and for an experiment that
    cannot be used; BadInput or BadData for the site's own files; KeyRefused for its keys; LedgerError for its ledger.
    """
    layout.run_folder(folder, run)  # refuses a name that is none
    experiment, limits, settings = read_experiment(text), read_limits(folder), read_settings(folder)
    refuse_beyond(limits, experiment)
    refuse_device(experiment, settings)
    refuse_crowd(limits, roster)
    name = settings["name"]
    rows, held, counted = read_parted(folder, experiment, settings, local=local, ranges=bound(folder, run))
    experiment = own_model(experiment, path=own_path("model", folder, settings))
    index = _own_index(roster, name, rows=len(rows.y), experiment=experiment)
    if spends and roster.epsilons[index] > limits.epsilon:
        raise Refused(f"The server asks for epsilon {roster.epsilons[index]:g}; the site allows {limits.epsilon:g}.")
    refuse_steps(limits, _steps(experiment, len(rows.y)))
    declared = models.size(
        experiment.model.name,
        input_shape=shape(rows),
        classes=tasks.load(experiment, rows).answer[-1],
        options=experiment.model.options(),
    )
    refuse_parameters(limits, declared or 0)
    population = roster.population(shape(rows))
    seals = seals_of(experiment, folder, run=run, site=name, text=text, roster=roster.record())
    own = None if seals else index  # the shares of a sum are sized for all of its clients
    parts = assemble(experiment, rows, population, own=own, elsewhere=True, seals=seals, local=local)
    parts = with_own_canaries(folder, run, parts, index, settings)
    budget = Budget(limits.epsilon, experiment.privacy.run_delta, limits.unit)
    client = Client(index, name, budget, rows.x, rows.y, rows_mark(rows.x, rows.y))
    parameters = parts.params.numel()
    refuse_parameters(limits, sum(parameter.numel() for parameter in parts.model.parameters()))
    terms = terms_of(
        parts.algorithm.cost(client),
        epsilon=roster.epsilons[index],
        rounds=experiment.train.rounds,
        parameters=parameters,
        frozen=parts.frozen,
        asked=asked_of(parts, index),
    )
    public = replace(client, budget=replace(budget, epsilon=roster.epsilons[index]))  # the budget that everybody knows
    train = make.alone(parts, {index: public}, model=parts.model)
    agreed = Agreement(run, text, roster.record(), terms)
    ledger = own_ledger(folder, parts, limits, agreed, settings)
    about = (
        replace(public, x=counted.x, y=counted.y, mark=rows_mark(counted.x, counted.y)) if counted is not None else None
    )
    return Joined(agreed, limits, parts, client, train, ledger, held, about)


def asked_of(parts: Parts, index: int) -> dict[str, DpEvent | None]:
    """The queries that a client answers beside training, and what each costs it; None where nothing is promised.

    Guarantee: the noise of every one of them can be drawn as it is priced. It is a function of the experiment and the roster.

    Raises: Refused for a metric or a column that cannot be asked for, and for noise that is too wide.
    """
    try:
        counted = {
            EVALUATION: judged_by(parts.experiment, parts.dataset),
            STATS: columns_asked(parts.experiment, parts.dataset),
            RANGES: ranges_asked(parts.experiment, parts.dataset),
        }
        for query, one in counted.items():
            if one is not None:
                parts.plan.query_noise(query, index, l2_squared=one.l2_squared, cells=one.cells)
    except BadInput as error:
        raise Refused(f"What the experiment asks beside training cannot be answered: {error}") from None
    priced = parts.plan.asked(index)
    return {query: priced.get(query) for query in shares(parts.experiment)}


def _steps(experiment: Experiment, rows: int) -> int:
    """The local steps of one round on so many rows."""
    train = experiment.train
    if not train.local_epochs:
        return train.steps
    return math.ceil(train.local_epochs / (train.sampling_rate or min(1.0, train.batch / rows)))


def read_settings(folder: Path) -> dict[str, Any]:
    """`site.toml`: the site's name, its server, where its rows and its model's weights are, and its device.

    Guarantee: `name` is there, no key is unknown, and every value is a text but `examples`, `shape`, `held_out`, `canaries` and
    `personal`, which are checked where they are used: no word of `personal` decides whether a question is answered.

    Raises: BadInput, in one sentence that names the file and the key.
    """
    path = folder / layout.SETTINGS
    try:
        settings = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{folder} is no site's folder, as it holds no site.toml: name one, as in sites/NAME.") from None
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"{path} cannot be read ({error}).") from None
    if not isinstance(settings.get("name"), str):
        raise BadInput(f'{path} does not name the site: add name = "...".')
    for key, value in settings.items():
        if key not in KEYS:
            raise BadInput(f"{path}: {unknown(key, KEYS)}")
        if key not in NO_TEXTS and not isinstance(value, str):
            raise BadInput(f"{path}: {wrong(key, str, value)}")
    return settings


def read_experiment(text: str) -> Experiment:
    """The experiment that the server's text describes.

    Guarantee: reading it imports nothing, opens no file and runs no part of it, and the text may be of any kind: its length, its
    depth and its keys are bounded. What is returned has a site open no path of the server's, and can be deployed.

    Raises: Refused, with at most `MOST_WORDS` characters of what is wrong with it.
    """
    try:
        experiment = Experiment(**parse.toml_table(text, what="Its text"))
        refuse_paths(experiment)
        refuse_undeployable(experiment)
        refuse_unpinned(experiment)
        return experiment
    except (BadInput, TypeError) as error:  # TypeError: a key that is no name of an argument
        raise Refused(f"The server's experiment cannot be used: {str(error)[:MOST_WORDS]}") from None


def _own_index(roster: Roster, name: str, *, rows: int, experiment: Experiment) -> int:
    """The site's index in a roster that tells the truth about it. Raises Refused."""
    if roster.names.count(name) != 1 or roster.delta != experiment.privacy.run_delta:
        raise Refused(f"The server's list of sites does not hold {name} once, under the experiment's delta.")
    index = roster.names.index(name)
    if roster.sizes[index] != rows or roster.unit != experiment.privacy.unit_kept:
        raise Refused(f"The server's list of sites has another size or unit for {name} than the site declared.")
    return index
