"""A site's own view of a run: its rows, its plan, its noise and its price, computed here and not taken from the server.

What the server sends of a run is its name, an experiment's text and a roster. From these, the site's own files and its own rows
everything else follows; the server's terms are compared with what came out (`agreement.refuse_other`) and never used."""

import math
import tomllib
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from dp_accounting import DpEvent

from tacit import wire
from tacit.data.dataset import Dataset
from tacit.data.load import source
from tacit.data.population import rows_mark
from tacit.deploy.site import layout
from tacit.deploy.site.agreement import Agreement, bound, terms_of
from tacit.deploy.site.canaries import with_own_canaries
from tacit.deploy.site.consent import refuse_beyond, refuse_crowd, refuse_device, refuse_parameters, refuse_steps
from tacit.deploy.site.keys import seals_of
from tacit.deploy.site.layout import unknown, wrong
from tacit.deploy.site.ledger import own_ledger
from tacit.deploy.site.limits import Limits, Roster, read_limits
from tacit.deploy.site.rows import (
    HeldOut,
    own_model,
    own_rows,
    parted,
    refuse_paths,
    refuse_undeployable,
    refuse_unpinned,
    shape,
    unseen_rows,
    without_held_out,
)
from tacit.digest import mark, question_mark
from tacit.engine import trainers
from tacit.engine.assemble import Parts, assemble
from tacit.engine.pool import Trainer
from tacit.engine.queries import columns_asked, judged_by, ranges_asked
from tacit.errors import BadData, BadInput, Refused
from tacit.experiment import Experiment
from tacit.experiment.extras import EVALUATION, RANGES, STATS, WORDS, read_with, shares
from tacit.parts import models, tasks
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.queries.ranges import Range
from tacit.privacy.wiring import Local
from tacit.types import Budget, Client

# Reading a site's rows for a run: what is trained on, what the site holds out for itself, and what the experiment holds
# out.

NONE_KNOWN: Mapping[str, Range] = MappingProxyType({})


def read_rows(folder: Path, experiment: Experiment, settings: dict[str, Any], *, local: Local | None) -> Dataset:
    """The rows that a site trains on: as `read_parted`, without those that are held out."""
    return read_parted(folder, experiment, settings, local=local)[0]


def read_parted(
    folder: Path,
    experiment: Experiment,
    settings: dict[str, Any],
    *,
    local: Local | None,
    ranges: Mapping[str, Range] = NONE_KNOWN,
) -> tuple[Dataset, HeldOut | None, HeldOut | None]:
    """The site's rows that it trains on, those that it holds out for itself, and those that the experiment holds out.

    Private columns are scaled by `ranges`; without them they are as they stand in the file. On which side a record is does not
    depend on that. Where somebody else's code trains on rows that Tacit never sees, these are zeros of their number and shape.

    Assumes: the experiment was accepted (`refuse_beyond`): what it names as its source is imported here and its options are
    checked, and how rows are read is a question about their values.

    Raises: Refused where rows are only declared and nobody else trains; BadInput for files and settings; BadData for rows, whose
    text may quote a cell and must not be told to the server.
    """
    source(experiment.data)
    if "examples" not in settings:
        rows, standing = _scaled(folder, experiment, settings, ranges)
        mine, _ = parted(standing, settings)
        rows, held = parted(rows, settings, tossing=standing)
        trained, counted = without_held_out(rows, experiment, tossing=mine)
        return trained, held, counted
    asked = " and ".join(WORDS[query] for query in shares(experiment))
    if asked:
        raise Refused(f"This site's rows are declared in site.toml only, so it can answer nothing for {asked}.")
    if "held_out" in settings:
        raise BadInput(
            "site.toml declares rows that Tacit never sees, so it can hold none of them out: leave out held_out."
        )
    if local is None:
        raise Refused("This site's rows are declared in site.toml only, so its training must come through tacit_mod.")
    examples = wire.whole(settings["examples"], what="examples in site.toml", least=1)
    return unseen_rows(experiment, examples=examples, shape=settings.get("shape")), None, None


def own_path(key: str, folder: Path, settings: dict[str, Any]) -> str | None:
    """The path that site.toml has under a key, relative to the site's folder; None where it has none."""
    path = settings.get(key)
    return None if path is None else str(folder / Path(str(path)).expanduser())


def _scaled(
    folder: Path, experiment: Experiment, settings: dict[str, Any], ranges: Mapping[str, Range]
) -> tuple[Dataset, Dataset]:
    """All rows of the site as they are trained on, and the same ones as they stand in the file. Raises BadData if it changes."""
    where = {"name": settings["name"], "path": own_path("data", folder, settings)}
    standing = own_rows(experiment, **where)
    if not ranges:
        return standing, standing
    rows = own_rows(experiment.model_copy(update={"data": read_with(experiment.data, ranges)}), **where)
    if not torch.equal(rows.y, standing.y):
        raise BadData(
            "The site's data file has changed while it was read: it is read again when the server asks again."
        )
    return rows, standing


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
FLOAT_BYTES = 4
SEALED_BYTES = 64  # a parameter's part of a ciphertext has 8 to 24 bytes; a rotation pads the model to twice its size
AROUND_BYTES = 64 << 10  # for each site: what is told of it, and around its report
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
        if self.parts.plan.sampler.charges_all:
            return "agreed"
        fresh = uuid.uuid4().hex if self.parts.nonce else ""  # what cannot be repeated is another release every time
        return mark("site", self.parts.releases.client(self.client), question_mark(question), fresh)


def join(
    folder: Path, run: str, text: str, roster: Roster, *, local: Local | None = None, spends: bool = True
) -> Joined:
    """Builds this site's own view of a run: plan, noise and price are computed here, not taken from the server.

    Guarantee: what can be refused without reading rows is refused before they are read, and too many local steps, or parameters
    of a model that says its size, before a model is made. Nothing is charged, and nothing is written but an empty ledger with its
    secret, an empty list of openings and the secret of the site's canaries where there was none. Once the rows are read, only their
    number and shape can decide whether it succeeds.

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
    parts = assemble(experiment, rows, population, own=own, place="site", seals=seals, local=local)
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
    train = trainers.alone(parts, {index: public}, model=parts.model)
    agreed = Agreement(run, text, roster.record(), terms)
    ledger = own_ledger(folder, parts, limits, agreed, settings)
    about = (
        replace(public, x=counted.x, y=counted.y, mark=rows_mark(counted.x, counted.y)) if counted is not None else None
    )
    return Joined(agreed, limits, parts, client, train, ledger, held, about)


def longest_question(agreed: Agreement) -> int:
    """The bytes of the longest question that a run of this agreement has need of, rounded up.

    It is the model with what a rule tells beside it (a vector for each of its directions, and a centre), or, where sums are
    sealed, all reports of a round: of every parameter some bytes of each site's ciphertexts.
    """
    experiment = read_experiment(agreed.experiment)
    options, parameters = experiment.aggregate.options(), agreed.terms.parameters
    rank = options["rank"] if isinstance(options.get("rank"), int) else 1
    told = FLOAT_BYTES * parameters * (2 + rank)
    sealed = SEALED_BYTES * parameters * len(agreed.roster["names"]) if experiment.protect.kind == "paillier" else 0
    return AROUND_BYTES * len(agreed.roster["names"]) + max(told, sealed)


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
                parts.plan.queries.mechanism(query, index, l2_squared=one.l2_squared, cells=one.cells)
    except BadInput as error:
        raise Refused(f"What the experiment asks beside training cannot be answered: {error}") from None
    priced = parts.plan.queries.events(index)
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
        experiment = Experiment(**wire.toml_table(text, what="Its text"))
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


# The runs of a site whose rows and model are in memory.

Joining = Callable[..., Joined]  # as `join`
MOST = 2  # runs whose rows and model are held at a time


class Loaded:
    """The runs that were built last, at most `MOST` of them; any other is built again when it is asked about.

    Nothing here is missed after a restart: agreement, ledger and answers are files. `local` is training of somebody else's;
    `joining` is how a run is built, which an audit of the site itself wraps (tacit/lab/audit).
    """

    def __init__(self, folder: Path, local: Local | None, joining: Joining = join):
        self.folder, self.local, self.joining = folder, local, joining
        self._joined: dict[str, Joined] = {}

    def __len__(self) -> int:
        return len(self._joined)

    def get(self, run: str) -> Joined | None:
        """The run as it was built last, or None where it is not in memory; the budget file may have changed since."""
        return self._joined.get(run)

    def build(self, run: str, text: str, roster: Roster, *, spends: bool = True) -> Joined:
        """Builds a run anew, without holding it: what follows may still refuse it. Raises: as `join`."""
        return self.joining(self.folder, run, text, roster, local=self.local, spends=spends)

    def hold(self, joined: Joined) -> Joined:
        """Keeps a run in memory, lets the one go that was built longest ago, and returns it."""
        self._joined.pop(joined.agreement.run, None)
        self._joined[joined.agreement.run] = joined
        while len(self._joined) > MOST:
            self._joined.pop(next(iter(self._joined)))
        return joined

    def current(self, agreed: Agreement, *, spends: bool = True) -> Joined:
        """The run of an agreement, under the budget file as it is now.

        Guarantee: its limits are those on disk at this moment: where the file has changed, or the run is not in memory, the run
        is built again, which refuses what is no longer allowed and opens the ledger anew. What of the model does not train is
        what was agreed. What does not spend is not held, for its budget may be less than the run's. Raises: as `join`.
        """
        held = self.get(agreed.run)
        if held is not None and held.limits == read_limits(self.folder):
            return held
        built = self.build(agreed.run, agreed.experiment, Roster.of(agreed.roster), spends=spends)
        if built.agreement.terms.frozen != agreed.terms.frozen:
            raise Refused("The model's weights at this site are others than when the run was agreed: put those back.")
        return self.hold(built) if spends else built
