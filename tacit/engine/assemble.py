"""From an experiment to its parts: data, clients, model, mechanisms, algorithm. The only place that wires them together."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
from dp_accounting import DpEvent
from rich.progress import Progress
from torch import nn

from tacit import check
from tacit.algorithms import Algorithm
from tacit.data.dataset import Dataset
from tacit.data.partition import Shares, budgets, client_names, share_out
from tacit.data.population import Population, coins, populate
from tacit.data.sources import load
from tacit.data.texts import FROM_DATA_NOTE
from tacit.engine.malicious import Malice, Scene, among, in_words, scene_of
from tacit.engine.release import held
from tacit.engine.start import Start, start_of
from tacit.engine.trainers import ClientDerive, Releases
from tacit.errors import BadData, BadInput, Refused
from tacit.experiment import Experiment
from tacit.experiment.extras import EVALUATION, NO_PERSONS, read_with, refuse_unsaid
from tacit.parts import models, tasks
from tacit.parts.losses import Losses
from tacit.parts.tasks import Task
from tacit.privacy.guarantee import UNPROTECTED, promise
from tacit.privacy.ledger.ledger import NOTHING, Before
from tacit.privacy.plan import Plan, kind_of, sampler_of
from tacit.privacy.wiring import Local, Seals, Wiring
from tacit.random import seeded
from tacit.training.flat import flatten, frozen_mark, named, trainable
from tacit.types import Client, Guarantee
from tacit.wire import digest_of, tensor_bytes

# Low-rank adapters under privacy: of the two factors of an adapter one trains, and the other keeps its start.

FIRST = {
    "lora_A": "lora_B",
    "lora_embedding_B": "lora_embedding_A",
}  # the factor that starts at random: the one that starts at 0


def freeze_first(experiment: Experiment, model: nn.Module) -> nn.Module:
    """Freezes the first factor of every adapter whose second trains, where the experiment is private or says so.
    Raises: BadInput where `model.lora` is said for a model that has no adapters."""
    said, pairs = experiment.model.lora, _factors(model)
    if said is not None and not pairs:
        raise BadInput(f'model.lora = "{said}" is for a model with LoRA adapters, and this one has none: leave it out.')
    if said == "first-frozen" or (said is None and kind_of(experiment).plans.priced):
        for first, second in pairs:
            if second.requires_grad:
                first.requires_grad_(False)
    return model


def _factors(model: nn.Module) -> list[tuple[nn.Parameter, nn.Parameter]]:
    named, found = dict(model.named_parameters()), []
    for name, parameter in named.items():
        parts = name.split(".")
        for first, second in FIRST.items():
            other = ".".join(second if part == first else part for part in parts)
            if first in parts and other in named:
                found.append((parameter, named[other]))
    return found


# Who has which rows, with which budget.

NAMED_AT_MOST = 5  # clients in a sentence
PERSONAL = "own evaluation"  # of the coin that says which of a client's rows are for its own evaluation alone


def clients(
    experiment: Experiment,
    *,
    progress: Progress | None = None,
    before: Before = NOTHING,
    ranges: Mapping[str, tuple[float, float]] = MappingProxyType({}),
    mask: np.ndarray | None = None,
) -> tuple[Dataset, Shares, Population]:
    """The data and who has what of it, with each client's epsilon, and what of that other runs have sealed."""
    seeds, privacy, data = experiment.seeds, experiment.privacy, read_with(experiment.data, ranges)
    dataset = load(data, seed=seeds.data, progress=progress)
    shares = share_out(dataset, experiment.data, rng=seeded(seeds.data)("partition").generator())
    names = client_names(dataset, experiment.data)
    spec = privacy.epsilon if privacy.epsilon is not None else float("inf")
    epsilons = budgets(spec, clients=len(shares), rng=seeded(seeds.data)("budgets").generator(), names=names)
    if privacy.level != "own":
        epsilons = np.full(len(epsilons), epsilons.min() if privacy.level == "minimum" else epsilons.max())
    if dataset.person is not None and privacy.promises:
        refuse_unsaid(experiment)
    elif privacy.person_rows is not None:
        raise BadInput(NO_PERSONS)
    limits = {"epsilons": epsilons, "delta": privacy.run_delta, "unit": privacy.unit_kept}
    limits["rows_per_person"] = privacy.person_rows
    tags = None if dataset.person is None else dataset.person[shares.order]
    population = populate(dataset, shares, names=names, **limits)
    for key, share, purpose in (("held_out", data.held_out, EVALUATION), ("own_share", data.own_share, PERSONAL)):
        if share is None:
            continue
        if dataset.mapped:
            raise BadInput(f"Rows that stay in a file are not divided: leave out data.{key}.")
        if mask is None:
            mask = coins(population.x, population.y, share=share, seed=seeds.data, purpose=purpose, persons=tags)
        elif len(mask) != len(population.y):
            raise BadData("The data files have changed while they were read: start again when they are at rest.")
        population = population.holding_out(mask, key=f"data.{key}")
    most = len(population) if population.unit == "client" else int(population.sizes.max())
    if privacy.epsilon is not None and population.delta * most > 1:
        unit = population.unit
        whose = f"there are {most} clients" if unit == "client" else f"the largest client has {most} {unit}s"
        loose = (
            f"delta = {population.delta:g} is more than 1/{most}, and {whose}: set privacy.delta below {1 / most:.1g}"
        )
        dataset = dataset.noting(loose)
    if before.runs:
        sealed = before.epsilons(population.names, together=sampler_of(experiment, len(population)).charges_alike)
        population = replace(population, sealed=sealed)
    return dataset, shares, population


UNPUBLISHED = "personalised models stay on the client: the epsilon is the global model's, they have none and must not be published"
RELEASED = (
    "personalised models were trained in the rounds: each is made of what its client released, and has this epsilon too"
)
START = (
    "the model that training starts from was made without these records, but for what runs of the same ledger released"
)
Place = Literal["simulation", "server", "site"]
FOREIGN = (
    "This experiment's promise is made in Tacit's own training: another client's code can take part only under "
    'privacy.kind = "central" or "distributed".'
)


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainingTask:
    """What is trained, on what: enough to judge parameters by. `theta` is the vector that the trainable parameters of `model`
    are views of; `params` are the initial ones."""

    experiment: Experiment
    dataset: Dataset = field(repr=False)
    task: Task = field(repr=False)
    losses: Losses = field(repr=False)
    model: nn.Module = field(repr=False)
    theta: torch.Tensor = field(repr=False)
    params: torch.Tensor = field(repr=False)
    initial_model_digest: str = ""  # what the model was before anybody used it
    threads: int = field(default_factory=torch.get_num_threads)  # what this process was given

    @cached_property
    def frozen(self) -> str:
        return frozen_mark(self.model)

    @cached_property
    def metric(self) -> str:
        """The metric that stands for the run, as `metric.choose` says it."""
        return tasks.chosen(self.experiment)

    @cached_property
    def test_rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The public test rows and their targets, where the model is; moved once."""
        return self.dataset.test_x.to(self.theta.device), self.dataset.test_y.to(self.theta.device)


@dataclass(frozen=True, eq=False, kw_only=True)
class Parts(TrainingTask):
    population: Population = field(repr=False)
    plan: Plan
    algorithm: Algorithm
    place: Place = "simulation"
    nonce: str = ""  # not empty where a start cannot repeat the one before it bit for bit
    before: Before = NOTHING  # what other runs of a shared ledger had sealed when this one began
    together: int = 0  # how many clients are trained at once in one stack; 0: each by itself
    attack: tuple[Scene, Malice] | None = field(default=None, repr=False)  # malicious clients
    trial_id: str = ""  # which of a search's runs it is (tacit/lab/tuning): in the key of every noise

    @cached_property
    def is_deployed(self) -> bool:
        return self.place != "simulation"  # the clients' rows are at sites of their own

    @cached_property
    def releases(self) -> Releases:
        return Releases(self)

    @cached_property
    def ruled(self) -> Experiment:
        """The experiment with the rule that runs, for whoever reads it later; central DP has none."""
        experiment, rule = self.experiment, self.plan.rule(self.experiment, self.population)
        if rule is None or experiment.aggregate.rule is not None:
            return experiment
        return experiment.model_copy(update={"aggregate": experiment.aggregate.model_copy(update={"rule": rule})})

    @cached_property
    def canaries(self) -> Any:  # engine/canaries.py; None where none are planted
        return getattr(self.algorithm, "canaries", None)

    def cost(self, client: Client) -> DpEvent:
        """What a round costs a client. Raises: TypeError where nothing is charged."""
        event = self.algorithm.cost(client)
        if event is None:
            raise TypeError("a ledger is kept only for an algorithm that has a price")
        return event

    @cached_property
    def derive(self) -> ClientDerive:
        return self.releases.streams()

    @cached_property
    def backdoor_rows(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The public rows by which a backdoor is measured, each with the class that the attackers want; None without any."""
        if self.attack is None:
            return None
        scene, malice = self.attack
        x = malice.tested(scene).to(self.theta.device)
        return x, torch.full((len(x),), scene.target, dtype=scene.y.dtype, device=self.theta.device)

    @property
    def start(self) -> Start:
        return start_of(self.experiment, self.model, named(self.model, self.params))

    @property
    def promise(self) -> Guarantee:
        """The statement of the run before anything is spent. With malicious clients it is about the honest ones, and says so."""
        words = self.plan.words(self.experiment)
        own = RELEASED if self.experiment.personal.during else UNPUBLISHED
        model, given = self.experiment.model, self.place == "site"  # there the server gives the start
        drawn = models.drawn(model.name, options=model.options(), factory=model.part) and not given
        fixed = (*(START,) * (not drawn), *(own,) * bool(self.experiment.personal.kind))
        if FROM_DATA_NOTE in self.dataset.notes:
            fixed = (FROM_DATA_NOTE, *fixed)
        if self.dataset.unprotected:
            fixed = (f"{self.dataset.unprotected} {UNPROTECTED}", *fixed)
        found = promise(self.experiment, replace(words, assumes=(*words.assumes, *fixed)))
        if out := tuple(self.population.names[index] for index in sorted(self.plan.opted_out)):
            some = check.some(out, NAMED_AT_MOST)
            whom = f"every client but {some}, which opted out and {'is' if len(out) == 1 else 'are'} promised nothing"
            found = replace(found, whom=whom, unpromised=out)
        if self.attack is None:
            return found
        bad, everybody = len(self.attack[0].malicious), self.attack[0].everybody
        whom = (
            f"each of the {everybody - bad} honest clients (what the {bad} malicious ones of this simulation send is the"
            " adversary's own, and nothing is promised for their records)"
        )
        return replace(found, whom=f"{whom}, {found.whom.partition('every client ')[2]}" if out else whom)

    @property
    def cohort(self) -> int:
        return self.plan.sampler.cohort


def build(
    experiment: Experiment,
    *,
    progress: Progress | None = None,
    before: Before = NOTHING,
    ranges: Mapping[str, tuple[float, float]] = MappingProxyType({}),
    mask: np.ndarray | None = None,
) -> Parts:
    """Loads, shares out, calibrates. Raises BadInput or BadData in one sentence. `ranges` are those that were asked for of
    private columns; `mask` says which rows are held out, where that is decided."""
    dataset, _, population = clients(experiment, progress=progress, before=before, ranges=ranges, mask=mask)
    # the rows are held once, client by client: the order of the source is not needed any more
    rows = replace(dataset, x=population.x, y=population.y, client=None, person=None)
    return assemble(experiment, rows, population, before=before)


def assemble(
    experiment: Experiment,
    dataset: Dataset,
    population: Population,
    *,
    before: Before = NOTHING,
    own: int | None = None,
    place: Place = "simulation",
    seals: Seals | None = None,
    local: Local | None = None,
) -> Parts:
    """The parts for known clients: of a deployment's, only names, sizes and budgets need to be. Raises BadInput, or Refused for
    somebody else's training (`local`) that the plan must not have made its promise in. A site names itself (`own`)."""
    if experiment.train.min_clients > sampler_of(experiment, len(population)).cohort:
        raise BadInput(f"Expected train.min_clients <= the clients of a round, got {experiment.train.min_clients}.")
    place = place if own is None else "site"
    task = tasks.load(experiment, dataset)
    losses = tasks.loss_of(experiment, task)
    model = _model(experiment, dataset)
    initial = held(model)
    fixed = sum(second.requires_grad and not first.requires_grad for first, second in _factors(model))
    if fixed and experiment.model.lora is None and kind_of(experiment).plans.priced:
        dataset = dataset.noting(
            f"of {fixed} LoRA adapters the first factor is frozen, since noise in both would be multiplied: set model.lora ="
            ' "both" to train both, or "first-frozen" to say that this is meant'
        )
    shown = dataset.test_x[:2] if len(dataset.test_x) else torch.zeros(2, *dataset.x.shape[1:], dtype=dataset.x.dtype)
    models.check_output(model, shown, task.answer)
    device, *_ = [_device(name) for name in experiment.run.devices]
    theta = flatten(model.to(device))
    plan = kind_of(experiment).plan(experiment, population, size=theta.numel(), own=own)
    if experiment.train.min_clients > 1 and (plan.traits.trusts_server or plan.sampler.charges_all):
        raise BadInput(
            "With central DP a round goes on whoever is drawn, even nobody (waiting for more would give away who took part):"
            " leave out train.min_clients."
        )
    for index in sorted(plan.opted_out)[:1] if place != "simulation" else ():
        raise BadInput(
            f"Client {population.names[index]} sets no limit (epsilon = inf), and in a deployment no site opts out of the promise:"
            " name a finite epsilon for it."
        )
    if plan.opted_out and experiment.privacy.ledger is not None:
        raise BadInput(
            "privacy.ledger adds up what runs have cost each client, and of one that opts out (epsilon = inf) nothing can be added:"
            " leave out privacy.ledger, or name a finite epsilon for every client."
        )
    if plan.opted_out and experiment.audit.canaries is not None:
        raise BadInput(
            "Canaries at a client that opted out (epsilon = inf) would prove nothing: leave out [audit], or name a finite epsilon"
            " for every client."
        )
    if local is not None and plan.traits.own_training:
        raise Refused(FOREIGN)
    if experiment.run.device != "cpu":
        population = population.to(device)
    wiring = Wiring(experiment, population, model, local, seals)
    algorithm, attack = plan.algorithm(wiring), scene_of(experiment, dataset, population)
    if experiment.attack is not None and attack is not None:
        scene, malice = attack
        algorithm = among(
            algorithm, malice, scene, plain=wiring.training if experiment.attack.noise == "none" else None
        )
        dataset = dataset.noting(in_words(scene, experiment.attack.kind))
    # other devices do not repeat their sums bit for bit, nor the operating system its noise, nor perhaps somebody else's training
    run = experiment.run  # and what a stack gives depends on who else is in it
    repeats = run.device == "cpu" and run.randomness == "seeded" and not run.at_once and local is None
    nonce = "" if repeats else uuid.uuid4().hex
    params = theta.clone() if place == "simulation" else theta.cpu().clone()  # a simulation's stay on its device
    return Parts(
        experiment=experiment,
        dataset=dataset,
        task=task,
        losses=losses,
        model=model,
        theta=theta,
        params=params,
        initial_model_digest=initial,
        population=population,
        plan=plan,
        algorithm=algorithm,
        place=place,
        nonce=nonce,
        before=before,
        attack=attack,
    )


def model_size(experiment: Experiment, dataset: Dataset) -> int:
    return flatten(_model(experiment, dataset)).numel()


def refuse_unfit(plan: Plan, experiment: Experiment, dataset: Dataset, population: Population) -> nn.Module:
    """Makes what a run is made of, and throws it away but for the model: a plan refuses what the run would refuse.
    Keys of encrypted sums are not made: they take long, and no setting of another part decides about them. Raises BadInput."""
    task, model = tasks.load(experiment, dataset), _model(experiment, dataset)
    tasks.loss_of(experiment, task)
    flatten(model)
    models.check_output(model, torch.zeros(2, *dataset.x.shape[1:], dtype=dataset.x.dtype), task.answer)
    wiring = Wiring(experiment, population, model)
    if experiment.protect.kind == "paillier":
        wiring.rule(plan.rule(experiment, population) or "mean")
        wiring.optimizer  # noqa: B018 - checks its settings
    else:
        plan.algorithm(wiring)
    scene_of(experiment, dataset, population)
    return model


def _model(experiment: Experiment, dataset: Dataset) -> nn.Module:
    answer = tasks.load(experiment, dataset).answer
    model = model_of(experiment, input_shape=tuple(dataset.x.shape[1:]), classes=answer[-1])
    if not trainable(model):
        raise BadInput(
            "The model has no trainable parameters, so that there is nothing to train: set requires_grad_(True) on its adapter or"
            " head."
        )
    return model


def model_of(experiment: Experiment, *, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """The experiment's model as a run begins with it. Raises BadInput."""
    seed = seeded(experiment.seeds.model)("model").torch_seed()
    facts = {"input_shape": input_shape, "classes": classes, "seed": seed}
    options, part = experiment.model.options(), experiment.model.part
    return freeze_first(experiment, models.build(experiment.model.name, **facts, options=options, factory=part))


def written(parts: Parts) -> Experiment:
    """The experiment as a run's file has it: with the rule that runs, and the digest of a model that was passed from Python."""
    experiment = parts.ruled
    if experiment.model.part is None:
        return experiment
    digest = digest_of("model", parts.initial_model_digest, tensor_bytes(parts.params))
    model = experiment.model.carrying(experiment.model.part, passed=f"{type(parts.model).__name__}, {digest}")
    return experiment.model_copy(update={"model": model})


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        check.one_of(("cpu", "cuda", "mps"), **{"run.device": device.type})
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        check.one_of(("cpu", "cuda", "mps"), **{"run.device": name.split(":")[0]})
        raise BadInput(f"run.device = {name!r} cannot be used on this machine: {str(error).splitlines()[0]}") from None
    return device
