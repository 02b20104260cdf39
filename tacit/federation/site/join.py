"""A site's own view of a run: its rows, its plan, its noise and its price, computed here and not taken from the server."""

import math
import tomllib
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tacit import models, parse, tasks
from tacit.build.parts import Parts, assemble, population_id
from tacit.data.dataset import Dataset
from tacit.data.load import source
from tacit.data.population import rows_mark
from tacit.digest import mark, question_mark
from tacit.engine.trainers.processes import Trainer, one_by_one, task
from tacit.errors import BadInput, LedgerError, Refused
from tacit.experiment import Experiment
from tacit.federation.site import agreement, outbox
from tacit.federation.site.agreement import Agreement, terms_of
from tacit.federation.site.limits import Limits, read_limits, refuse_beyond, refuse_parameters, refuse_steps
from tacit.federation.site.own_rows import (
    OWN_FILES,
    own_rows,
    refuse_paths,
    refuse_undeployable,
    refuse_unpinned,
    shape,
    unseen_rows,
)
from tacit.federation.site.roster import Roster
from tacit.federation.site.sealed import seals_of
from tacit.federation.site.wording import unknown
from tacit.privacy.ledger import witness
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.wiring import Local
from tacit.train.workspace import workspace
from tacit.types import Budget, Client

SETTINGS = ("name", "server", "data", "device", "examples", "shape")  # of site.toml
MOST_WORDS = 500  # of a refusal that repeats parts of an experiment


@dataclass(frozen=True, eq=False)
class Joined:
    """What a site needs to take part in one run."""

    agreement: Agreement
    limits: Limits
    parts: Parts = field(repr=False)
    client: Client = field(repr=False)
    train: Trainer = field(repr=False)
    ledger: Ledger | None = field(repr=False)

    def attempt(self, question: bytes) -> str:
        """The name of the release that answers a question: the same name is the same bits, and is paid once."""
        if self.parts.plan.together:
            return "agreed"
        fresh = uuid.uuid4().hex if self.parts.nonce else ""  # what cannot be repeated is another release every time
        return mark("site", self.parts.releases.client(self.client), question_mark(question), fresh)


def join(folder: Path, run: str, text: str, roster: Roster, *, local: Local | None = None) -> Joined:
    """Builds this site's own view of the run: plan, noise and price are computed here, not taken from the server.

    Everything that can be refused without building anything is refused first. Raises Refused.
    """
    agreement.place(folder, run)
    experiment, limits, values = read_experiment(text), read_limits(folder), read_settings(folder)
    refuse_beyond(limits, experiment)
    refuse_device(experiment, values)
    refuse_crowd(limits, roster)
    name = values["name"]
    rows = read_rows(folder, experiment, values, local=local)
    index = _own_place(roster, name, rows=len(rows.y), limits=limits, experiment=experiment)
    refuse_steps(limits, _steps(experiment, len(rows.y)))
    known = models.size(
        experiment.model.name,
        input_shape=shape(rows),
        classes=tasks.load(experiment, rows).answer[-1],
        options=experiment.model.options(),
    )
    refuse_parameters(limits, known or 0)
    population = roster.population(shape(rows))
    told = {"text": text, "roster": roster.record()}
    seals = seals_of(experiment, folder, run=run, site=name, **told)
    own = None if seals else index  # the shares of a sum are sized for all of its clients
    parts = assemble(experiment, rows, population, own=own, elsewhere=True, seals=seals, local=local)
    budget = Budget(limits.epsilon, experiment.privacy.run_delta, limits.unit)
    client = Client(index, name, budget, rows.x, rows.y, rows_mark(rows.x, rows.y))
    parameters = parts.params.numel()
    refuse_parameters(limits, parameters)
    terms = terms_of(
        parts.algorithm.cost(client),
        epsilon=roster.epsilons[index],
        rounds=experiment.train.rounds,
        parameters=parameters,
    )
    work = workspace(
        parts.model,
        clip=parts.plan.training_clip,
        physical_batch=experiment.train.physical_batch,
        losses=parts.losses,
    )
    told = replace(client, budget=replace(budget, epsilon=roster.epsilons[index]))  # what everybody knows of it
    train = one_by_one(task(parts.algorithm, work, {index: told}, parts.derive))
    agreed = Agreement(run, text, roster.record(), terms)
    return Joined(agreed, limits, parts, client, train, _ledger(folder, parts, limits, agreed, values))


def refuse_device(experiment: Experiment, values: dict[str, Any]) -> None:
    """A site trains on its CPU, or on the device that its own site.toml names. Raises Refused."""
    device = experiment.run.device
    if device not in ("cpu", values.get("device")):
        raise Refused(f"The experiment wants the device {device[:40]!r}, which the site's site.toml does not name.")


def refuse_crowd(limits: Limits, roster: Roster) -> None:
    """Raises Refused for more sites than the site allows in a run."""
    if len(roster.names) > limits.most_clients:
        raise Refused(f"The server names {len(roster.names)} sites; the site allows {limits.most_clients}.")


def _steps(experiment: Experiment, rows: int) -> int:
    """The local steps of one round on so many rows."""
    train = experiment.train
    if not train.local_epochs:
        return train.steps
    return math.ceil(train.local_epochs / (train.sampling_rate or min(1.0, train.batch / rows)))


def read_settings(folder: Path) -> dict[str, Any]:
    """`site.toml`: the site's name and where its rows are. Raises BadInput."""
    path = folder / "site.toml"
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{folder} is no site's folder, as it holds no site.toml: name one, as in sites/NAME.") from None
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"{path} cannot be read ({error}).") from None
    if not isinstance(values.get("name"), str):
        raise BadInput(f'{path} does not name the site: add name = "...".')
    for key, value in values.items():
        if key not in SETTINGS:
            raise BadInput(f"{path}: {unknown(key, SETTINGS)}")
        if key not in ("examples", "shape") and not isinstance(value, str):
            raise BadInput(f"{path}: expected {key} to be a text, got {value!r}.")
    return values


def read_experiment(text: str) -> Experiment:
    """The experiment that the server's text describes. Raises Refused."""
    try:
        experiment = Experiment(**parse.toml_table(text, what="Its text"))
        refuse_paths(experiment)
        refuse_undeployable(experiment)
        refuse_unpinned(experiment)
        return experiment
    except (BadInput, TypeError) as error:  # TypeError: a key that is no name of an argument
        raise Refused(f"The server's experiment cannot be used: {str(error)[:MOST_WORDS]}") from None


def read_rows(folder: Path, experiment: Experiment, values: dict[str, Any], *, local: Local | None) -> Dataset:
    """The site's rows; where somebody else's code trains on rows that Tacit never sees, only how many there are.

    For an experiment that was accepted: what it names as its source is imported here, and its options are checked.
    """
    source(experiment.data)
    if "examples" not in values:
        return own_rows(experiment, name=values["name"], path=_data(folder, values))
    if local is None:
        raise Refused("This site's rows are declared in site.toml only, so its training must come through tacit_mod.")
    examples = parse.whole(values["examples"], what="examples in site.toml", least=1)
    return unseen_rows(experiment, examples=examples, shape=values.get("shape"))


def _ledger(folder: Path, parts: Parts, limits: Limits, agreed: Agreement, values: dict[str, Any]) -> Ledger | None:
    if not parts.plan.priced:
        return None
    experiment = parts.experiment
    own = experiment.data.name in OWN_FILES
    # as site.toml has it, so that a site's folder can move with its ledger
    ledger = Ledger(
        folder / "ledger.db",
        population=f"{experiment.data.name}:{values.get('data')}"
        if own
        else population_id(experiment, parts.population, elsewhere=parts.elsewhere),
        run=agreed.run,
        delta=limits.delta,
        rounds=experiment.train.rounds,
        most_epsilon=agreed.terms.epsilon,  # what the site was promised, be it less than its people allow
        accountant=experiment.privacy.accountant,
        marks=(folder / witness.NAME,),
    )
    refuse_forgotten(folder, ledger)
    return ledger


def refuse_forgotten(folder: Path, ledger: Ledger) -> None:
    """Refuses a ledger beside answers that it knows no charge for: another one, or one that went back. Raises LedgerError.

    A question without an answer is nothing to know: it may have been refused for want of budget.
    """
    for run in agreement.runs(folder):
        last = outbox.answered(agreement.place(folder, run))
        if last is None or ledger.knows(last, run=run):
            continue
        known = agreement.read(folder, run)
        if known is not None and known.terms.event:
            raise LedgerError(
                f"{folder} holds the answer to round {last} of run {run}, and {ledger.path} knows no charge for it: restore the"
                f" newest copy of the ledger and of {witness.NAME}; nothing was released."
            )


def _data(folder: Path, values: dict[str, Any]) -> str | None:
    path = values.get("data")
    return None if path is None else str(folder / Path(str(path)).expanduser())


def _own_place(roster: Roster, name: str, *, rows: int, limits: Limits, experiment: Experiment) -> int:
    """The site's index in a roster that tells the truth about it. Raises Refused."""
    if roster.names.count(name) != 1 or roster.delta != experiment.privacy.run_delta:
        raise Refused(f"The server's list of sites does not hold {name} once, under the experiment's delta.")
    index = roster.names.index(name)
    if roster.epsilons[index] > limits.epsilon:
        raise Refused(f"The server asks for epsilon {roster.epsilons[index]:g}; the site allows {limits.epsilon:g}.")
    if roster.sizes[index] != rows or roster.unit != experiment.privacy.unit_kept:
        raise Refused(f"The server's list of sites has another size or unit for {name} than the site declared.")
    return index
