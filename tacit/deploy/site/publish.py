"""`tacit deploy site SITE --publish-personal`: a site's own model with noise, paid for, that may be given to others.

An own model has no epsilon and stays (`own_models`). What may leave is trained apart: DP-SGD per record from the model that the run
left, in one round of its own, whose noise and price are one object (`tacit.privacy.local`). Guarantee: the site's own ledger is
charged on disk before a step is taken, and nothing is written before that; the budget pays for it together with all that the
site's runs have sealed, or it is refused. No number of it is tuned on the site's rows: steps, rate and clip are the run's own.
It tells what the model that it begins with tells, so that one must have an epsilon too, and what is printed counts both."""

import math
import uuid
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save

from tacit.data import encoder
from tacit.data.population import rows_mark
from tacit.deploy.site import layout, replies
from tacit.deploy.site.agreement import bound
from tacit.deploy.site.at_home import MODEL, AtHome, at_home, newest
from tacit.deploy.site.join import read_experiment
from tacit.deploy.site.ledger import population_of, refuse_contradicted, refuse_twin
from tacit.deploy.site.limits import Roster
from tacit.deploy.site.log import note
from tacit.deploy.site.rows import shape
from tacit.digest import mark
from tacit.engine import trainers
from tacit.engine.assemble import Parts, assemble
from tacit.engine.history import FROZEN
from tacit.errors import BadInput, BudgetExhausted, Refused
from tacit.experiment import Experiment
from tacit.experiment.extras import read_with
from tacit.privacy.guarantee import agreed, shown, shown_delta
from tacit.privacy.ledger import reader
from tacit.privacy.ledger.filter import ROUNDING, RULE, Spent
from tacit.privacy.ledger.ledger import Ledger
from tacit.training.flat import named
from tacit.types import Budget, Client, Message
from tacit.wire import pack, unpack

CARRIED = (
    "batch_size",
    "sampling_rate",
    "learning_rate",
    "momentum",
    "weight_decay",
    "physical_batch",
    "views",
    "shift",
)
KNOWN = "the model that the run left is known already (what it tells of the same records is in the epsilon of that run)"


@dataclass(frozen=True)
class Published:
    """Where a noised model lies, and what is promised of it."""

    folder: Path
    epsilon: float
    promise: str


def publish(folder: Path, *, run: str | None = None, epsilon: float | None = None) -> Published:
    """Trains a noised model of the site's rows and writes it with its promise; `epsilon` is all that is left unless said.

    Raises: Refused or BudgetExhausted, in one sentence, where the budget is not per record or does not pay; BadInput where one
    lies there already, and as `at_home`; LedgerError. Then nothing was written; after the charge a failure is spent.
    """
    if epsilon is not None and not (math.isfinite(epsilon) and epsilon > 0):
        raise BadInput(f"Expected --epsilon above 0, got {epsilon:g}.")
    home = at_home(folder, newest(folder, run))
    target = layout.model_folder(folder, home.run, layout.PUBLISHED)
    if (target / MODEL).exists():
        raise BadInput(
            f"{target} holds a published model: another one is another release, and is paid again; move it away first."
        )
    _refuse_unprotected(home)
    if home.limits.unit != "record":
        raise Refused(
            "A published model is noised per record, and this site's budget.toml is per client: it cannot pay for one."
        )
    name, x, y = home.settings["name"], home.dataset.x, home.dataset.y
    released = uuid.uuid4().hex  # in the ledger it is a run of its own
    budget = _budget(home, _ledger(home, released), epsilon)
    parts, client = _parts(home, budget), Client(0, name, budget, x, y, rows_mark(x, y))
    with replies.alone(folder):
        sealed = _pay(home, _ledger(home, released, most_epsilon=budget.epsilon), parts, client)
    note(
        folder,
        verdict="charged",
        text=f"A published model of this run is paid for: epsilon {shown(budget.epsilon)}.",
        run=home.run,
    )
    return _written(home, parts, target, _trained(parts, client, home.vector()), budget, sealed)


def _refuse_unprotected(home: AtHome) -> None:
    """Refuses a beginning that no epsilon covers: fresh noise on the way from it hides nothing of what is in it already.

    Raises: Refused.
    """
    privacy, seeded = home.experiment.privacy, home.experiment.run.randomness == "seeded"
    if not privacy.promises or seeded:
        why = "drew its noise from a seed that others know" if privacy.promises else "promised no privacy"
        raise Refused(
            f"A published model begins with the one that the run left, and this run {why}: what is in that model already, no noise"
            " of a later step hides, so there is no epsilon to print."
        )


def _budget(home: AtHome, ledger: Ledger, epsilon: float | None) -> Budget:
    """What the model may cost: epsilon as said or as left, and what is left of delta, at most a run's share of it."""
    limits, before = home.limits, ledger.before(home.settings["name"], "record")
    left, delta = limits.epsilon - before.epsilon, limits.delta - before.delta
    said = (
        f"The site's budget is epsilon {limits.epsilon:g}, delta {limits.delta:g} per record, and its runs have sealed"
    )
    if delta <= ROUNDING * limits.delta:
        raise BudgetExhausted(
            f"{said} all of delta: a published model needs a share of its own, so raise delta in budget.toml, or agree on runs with"
            " privacy.delta_share."
        )
    if not math.isfinite(left) and epsilon is None:
        raise BadInput(
            "This site's budget.toml sets no limit: say what the published model may cost, as in --epsilon 1."
        )
    if left <= 0 or (epsilon or 0.0) > left:
        what = "leaves nothing for a published model" if left <= 0 else f"does not pay for epsilon {epsilon:g}"
        raise BudgetExhausted(f"{said} epsilon {shown(before.epsilon)}: that {what}.")
    return Budget(left if epsilon is None else epsilon, min(delta, home.experiment.privacy.run_delta), "record")


def _parts(home: AtHome, budget: Budget) -> Parts:
    """The one release: as many steps as the run had, from its own model, under local DP per record."""
    asked, train = home.experiment, home.experiment.train
    rows = len(home.dataset.y)
    rate = train.sampling_rate or min(1.0, train.batch / rows)
    steps = math.ceil(train.local_epochs / rate) if train.local_epochs else train.steps
    said, data = asked.said(), read_with(asked.data, bound(home.folder, home.run))
    values = {
        "name": asked.name,
        "data": {key: value for key, value in data.model_dump(exclude_none=True).items() if key != "held_out"},
        "model": said.get("model", {}),
        "task": said.get("task", {}),
        "train": {key: getattr(train, key) for key in CARRIED} | {"rounds": 1, "local_steps": train.rounds * steps},
        "privacy": {"kind": "local", "unit": "record", "epsilon": budget.epsilon, "delta": budget.delta}
        | {"clip": asked.privacy.clip, "accountant": asked.privacy.accountant},
        "aggregate": {"rule": "mean"},
        "run": {"seed": asked.run.seed, "randomness": "os"},
    }
    roster = Roster((home.settings["name"],), (rows,), (budget.epsilon,), budget.delta, "record")
    return assemble(Experiment(**values), home.dataset, roster.population(shape(home.dataset)), own=0, elsewhere=True)


def _ledger(home: AtHome, run: str, *, most_epsilon: float = math.inf) -> Ledger:
    """The site's own ledger, for one release of a run of its own: no spare one is sealed."""
    experiment = read_experiment(home.agreement.experiment)
    everybody = Roster.of(home.agreement.roster).population(shape(home.dataset))
    ledger = Ledger(
        home.folder / layout.LEDGER,
        population=population_of(experiment, home.settings, everybody, elsewhere=True),
        run=run,
        delta=home.limits.delta,
        rounds=1,
        most_epsilon=most_epsilon,
        accountant=home.experiment.privacy.accountant,
        spare=False,
        marks=(home.folder / reader.NAME,),
        refuse_copies=partial(refuse_twin, home.folder),
    )
    refuse_contradicted(home.folder, ledger, home.settings["name"])
    return ledger


def _pay(home: AtHome, ledger: Ledger, parts: Parts, client: Client) -> Spent:
    """Charges the release, and returns what it comes to with all that the ledger has sealed for the site's records.

    Raises: BudgetExhausted, and then nothing may be trained.
    """
    payer = replace(client, budget=replace(client.budget, epsilon=home.limits.epsilon))
    event = parts.algorithm.cost(client)
    ledger.open_round(0, mark("published", parts.releases.client(client), uuid.uuid4().hex))
    if event is None or not ledger.admit([payer], lambda _: event):
        raise BudgetExhausted(
            f"The site's budget (epsilon {home.limits.epsilon:g}, delta {home.limits.delta:g} per record) does not pay for a"
            f" published model of epsilon {client.budget.epsilon:g}."
        )
    before = ledger.before(client.id, "record")
    return Spent(before.epsilon + client.budget.epsilon, before.delta + client.budget.delta)


def _trained(parts: Parts, client: Client, common: torch.Tensor) -> torch.Tensor:
    """The common model moved by one noised update."""
    train = trainers.alone(parts, {0: client}, model=parts.model)
    ((raw, _),) = train(pack(Message("server", {"params": common})), 0, [0])
    return common + unpack(raw).tensors["update"]


def _written(
    home: AtHome, parts: Parts, target: Path, vector: torch.Tensor, budget: Budget, sealed: Spent
) -> Published:
    known = replace(parts.promise, assumes=(*parts.promise.assumes, KNOWN))
    text = agreed(known, client=home.settings["name"], epsilon=budget.epsilon)
    text += (
        " It begins with that model and tells what that tells: for whoever sees it, alone or beside the run's, all that the site's"
        f" ledger has sealed comes to epsilon {shown(sealed.epsilon)} at delta = {shown_delta(sealed.delta)} ({RULE})."
    )
    replies.make_folder(target)
    replies.write(target / layout.PROMISE, f"{text}\n".encode())
    theirs = read_experiment(home.agreement.experiment).model  # where this site's weights lie is nobody's business
    replies.write(target / "experiment.toml", parts.experiment.model_copy(update={"model": theirs}).toml().encode())
    replies.write(target / encoder.NAME, encoder.text(home.dataset.reading).encode())
    replies.write(target / MODEL, save(named(parts.model, vector), {FROZEN: parts.frozen}))
    return Published(target, budget.epsilon, text)
