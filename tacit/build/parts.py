"""From an experiment to its parts: data, clients, model, mechanisms, algorithm. The only place that wires them
together.
"""

import hashlib
import uuid
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import torch
from rich.progress import Progress
from torch import nn

from tacit import check, models, rules
from tacit.algorithms import Algorithm
from tacit.algorithms.central_dp import CentralDP
from tacit.algorithms.encrypted import Encrypted
from tacit.algorithms.fedavg import FedAvg
from tacit.algorithms.local_dp import LocalDP
from tacit.build.sums import groups, make_distributed_plan, summing_rule
from tacit.data.budgets import budgets
from tacit.data.dataset import Dataset
from tacit.data.load import load
from tacit.data.partition import client_names, share_out
from tacit.data.shares import Shares
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.build.held import held
from tacit.data.population import Population, populate
from tacit.privacy.before import NOTHING, Before
from tacit.privacy.central.mechanism import QuantileClip
from tacit.privacy.central.plan import CentralPlan, central_plan
from tacit.privacy.distributed.plan import DistributedPlan
from tacit.privacy.local.plan import Plan, pfa_code_noise, planned_participations, same_noise, sampling_rates, spread
from tacit.random import seeded
from tacit.build.release import ClientDerive, Releases
from tacit.server_optimizer import Adam, Momentum, ServerOptimizer, Sgd
from tacit.train.dp_sgd import DpSgd
from tacit.train.flat import blocks, flatten
from tacit.train.noised_update import noised_update
from tacit.train.sgd import LocalSgd
from tacit.train.views import Shifts
from tacit.types import Client

IMAGE_DIMENSIONS = 3  # channels, height, width
PIXELS_A_STEP = 14  # of an image's side, for each pixel that views are moved by: 2 of 28


@dataclass(frozen=True, eq=False)
class Parts:
    """Everything a run needs, put together once.

    `theta` is the vector that the parameters of `model` are views of; `params` are the initial ones. `plan` is None where nothing
    is promised.
    """

    experiment: Experiment
    dataset: Dataset = field(repr=False)
    shares: Shares | None = field(repr=False)
    population: Population = field(repr=False)
    model: nn.Module = field(repr=False)
    theta: torch.Tensor = field(repr=False)
    params: torch.Tensor = field(repr=False)
    plan: Plan | CentralPlan | DistributedPlan | None
    algorithm: Algorithm
    made: str = ""  # what the model was before anybody used it
    nonce: str = ""  # not empty where a start cannot repeat the one before it bit for bit
    elsewhere: bool = False  # whether the clients' rows are at sites of their own
    before: Before = NOTHING  # what other runs of a shared ledger had sealed when this one began
    threads: int = field(default_factory=torch.get_num_threads)  # what this process was given

    @cached_property
    def releases(self) -> Releases:
        """What every release of this start is a function of."""
        rule = getattr(self.algorithm, "rule", None)
        parts = (self.population, self.plan, self.model, rule, self.made, self.nonce, self.elsewhere)
        return Releases(with_rule(self), *parts)

    @cached_property
    def derive(self) -> ClientDerive:
        """The clients' randomness, where they train one by one."""
        return self.releases.streams()

    @property
    def cohort(self) -> int:
        """How many clients take part in a round."""
        return self.experiment.train.clients_per_round or len(self.population)


def build(experiment: Experiment, *, progress: Progress | None = None, before: Before = NOTHING) -> Parts:
    """Loads, shares out, calibrates, for what other runs of the ledger have left. Raises BadInput or BadData in one sentence."""
    dataset, shares, population = clients(experiment, progress=progress, before=before)
    # the rows are held once, client by client: the order of the source is not needed any more
    rows = replace(dataset, x=population.x, y=population.y, client=None)
    return replace(assemble(experiment, rows, population, shares), before=before)


def assemble(
    experiment: Experiment,
    dataset: Dataset,
    population: Population,
    shares: Shares | None = None,
    *,
    own: int | None = None,
) -> Parts:
    """The parts for clients that are known already: of a deployment's, only names, sizes and budgets need to be.

    A site names itself (`own`), and the noise of others may then be unknown.
    """
    train = experiment.train
    if train.clients_per_round and train.clients_per_round > len(population):
        raise BadInput(f"Expected train.clients_per_round <= {len(population)} clients, got {train.clients_per_round}.")
    if train.min_clients > (train.clients_per_round or len(population)):
        raise BadInput(f"Expected train.min_clients <= the clients of a round, got {train.min_clients}.")
    derive = seeded(experiment.run.seed)
    seed = derive("model").torch_seed()
    model = models.build(
        experiment.model.name, input_shape=tuple(dataset.x.shape[1:]), classes=dataset.classes, seed=seed
    )
    made = held(model)
    models.check_output(model, dataset.test_x[:2], dataset.classes)
    device = _device(experiment.run.device)
    theta = flatten(model.to(device))
    plan = make_plan(experiment, population, size=theta.numel(), own=own)
    if experiment.run.device != "cpu":
        population = population.to(device)
    algorithm = _algorithm(experiment, population, model, plan)
    # other devices do not repeat their sums bit for bit, and the operating system does not repeat its noise
    repeats = experiment.run.device == "cpu" and experiment.run.randomness == "seeded"
    nonce = "" if repeats else uuid.uuid4().hex
    params = theta.cpu().clone()
    return Parts(experiment, dataset, shares, population, model, theta, params, plan, algorithm, made=made, nonce=nonce)


def clients(
    experiment: Experiment, *, progress: Progress | None = None, before: Before = NOTHING
) -> tuple[Dataset, Shares, Population]:
    """The data and who has what of it, with each client's epsilon, and what of that other runs have sealed."""
    derive, privacy = seeded(experiment.run.seed), experiment.privacy
    dataset = load(experiment.data, seed=experiment.run.seed, progress=progress)
    shares = share_out(dataset, experiment.data, rng=derive("partition").generator())
    names = client_names(dataset, experiment.data)
    spec = privacy.epsilon if privacy.epsilon is not None else float("inf")
    epsilons = budgets(spec, clients=len(shares), rng=derive("budgets").generator(), names=names)
    if privacy.level != "own":
        epsilons = np.full(len(epsilons), epsilons.min() if privacy.level == "minimum" else epsilons.max())
    limits = {"epsilons": epsilons, "delta": privacy.run_delta, "unit": privacy.unit_kept}
    population = populate(dataset, shares, names=names, **limits)
    if before.runs:
        sealed = before.epsilons(population.names, together=privacy.kind == "central")
        population = replace(population, sealed=sealed)
    return dataset, shares, population


def population_id(experiment: Experiment, population: Population, *, elsewhere: bool = False) -> str:
    """What a ledger belongs to: the same records in the same hands, run after run.

    Where the data itself names the clients, rows may come and go, and who holds which is looked at row by row
    (tacit/privacy/ledger/holdings.py); that needs the same way of reading them, of naming their clients and of holding some out. Where
    Tacit deals the rows out, other settings or other rows would put a record into other hands, and the charges of two clients
    would have to be added. Where the files lie never matters.
    """
    data, seed = experiment.data, experiment.run.seed
    settings = data.model_dump(exclude={"path", "test_path"})
    if data.partition == "natural":
        unused = ("clients", "alpha", "min_size", "shards_per_client", "examples_per_client")
        settings = {key: value for key, value in settings.items() if key not in unused}
        held_out = {"test_path": True, "test_share": None} if data.test_path else {"seed": seed}
        mark = hashlib.blake2b(repr(sorted((settings | held_out).items())).encode(), digest_size=8)
        return f"{data.name}:natural:{mark.hexdigest()}"
    mark = hashlib.blake2b(population.offsets.tobytes(), digest_size=8)
    mark.update(repr(sorted((settings | {"seed": seed}).items())).encode())
    if not elsewhere:
        mark.update(population.digest().encode())
    return f"{data.name}:{mark.hexdigest()}"


def make_plan(
    experiment: Experiment, population: Population, *, size: int, own: int | None = None
) -> Plan | CentralPlan | DistributedPlan | None:
    """The mechanism of every client, or of the server, or None where nothing is promised. `size` is the model's."""
    privacy, train = experiment.privacy, experiment.train
    if privacy.kind == "none":
        return None
    cohort = train.clients_per_round or len(population)
    if privacy.kind == "distributed":
        return make_distributed_plan(experiment, population, size=size)
    if privacy.kind == "central":
        return _central_plan(experiment, population, cohort)
    rates, steps = _record_steps(experiment, population)
    participations = planned_participations(rounds=train.rounds, share=cohort / len(population))
    common = {"rates": rates, "steps": steps, "participations": participations, "accountant": privacy.accountant}
    if privacy.noise_formula:
        multipliers = pfa_code_noise(population, rates=rates)
    elif privacy.rule == "spread":
        multipliers = spread(population, **common, own=own)
    else:
        given = {"clip": privacy.clip, "multiplier": privacy.noise_multiplier, "noise_on_mean": privacy.noise_on_mean}
        multipliers = same_noise(population, **common, **given)
    kept = {"priced": privacy.noise_formula is None, "unit": privacy.unit_kept}
    return Plan(privacy.clip, participations, rates, steps, multipliers, **kept)


def _central_plan(experiment: Experiment, population: Population, cohort: int) -> CentralPlan:
    privacy, train = experiment.privacy, experiment.train
    return central_plan(
        population,
        cohort=cohort,
        sampler=train.sampler or "poisson",
        rounds=train.rounds,
        clip=privacy.clip,
        multiplier=privacy.noise_multiplier,
        adaptive=privacy.clip_quantile is not None,
        count_noise=privacy.count_noise,
        weight_cap=privacy.weight_cap,
        accountant=privacy.accountant,
    )


def _record_steps(experiment: Experiment, population: Population) -> tuple[np.ndarray, np.ndarray]:
    """The sampling rate and the noised steps of each client's round; a noised whole update is one step without sampling."""
    train, everybody = experiment.train, len(population)
    if experiment.privacy.unit_kept == "client":
        return np.ones(everybody), np.ones(everybody, dtype=int)
    rates = sampling_rates(population.sizes, batch_size=train.batch, sampling_rate=train.sampling_rate)
    if train.local_epochs:
        return rates, np.ceil(train.local_epochs / rates).astype(int)
    return rates, np.full(everybody, train.steps)


def rule_name(experiment: Experiment, population: Population) -> str:
    """The rule that was asked for; else the mean where all clients bring the same noise, `random-effects` where they do not.

    docs/results.md says why: it is the one rule that stays near the best whatever the budgets and however the data differ.
    """
    if experiment.aggregate.rule is not None:
        return experiment.aggregate.rule
    differ = len(np.unique(population.epsilons)) > 1 and experiment.privacy.kind == "local"
    return "random-effects" if differ and experiment.privacy.rule == "spread" else "mean"


def with_rule(parts: Parts) -> Experiment:
    """The experiment with the rule that runs, for whoever reads it later; central DP has none."""
    experiment = parts.experiment
    if isinstance(parts.plan, CentralPlan) or experiment.aggregate.rule is not None:
        return experiment
    rule = {"rule": rule_name(experiment, parts.population)}
    return experiment.model_copy(update={"aggregate": experiment.aggregate.model_copy(update=rule)})


def _algorithm(
    experiment: Experiment, population: Population, model: nn.Module, plan: Plan | CentralPlan | DistributedPlan | None
) -> Algorithm:
    train, optimizer, sgd = experiment.train, _optimizer(experiment), _local_sgd(experiment)
    if isinstance(plan, CentralPlan):
        weights = dict(zip(population.names, plan.weights.tolist(), strict=True))
        privacy = experiment.privacy
        adapt = (
            QuantileClip(privacy.clip_quantile, privacy.clip_learning_rate or 0.2) if privacy.clip_quantile else None
        )
        return CentralDP(plan.mechanism, weights, plan.expected_weight, sgd, optimizer, adapt)
    if isinstance(plan, DistributedPlan):
        rule = summing_rule(experiment)
        members, crowd = groups(experiment, population, rule, plan), rules.Crowd(population.epsilons, plan.report_noise)
        return Encrypted(members, plan.grid, rule, _layout(model), crowd, sgd, optimizer)
    rule = rules.load(rule_name(experiment, population), **experiment.aggregate.options())
    layout = _layout(model)
    if plan is not None:
        crowd = rules.Crowd(population.epsilons, plan.update_noise(population.sizes, learning_rate=train.learning_rate))
        record_level = plan.unit == "record"
        local = (
            DpSgd(train.learning_rate, _views(experiment, population))
            if record_level
            else partial(noised_update, sgd=sgd)
        )
        return LocalDP(plan.mechanism, rule, layout, crowd, local, optimizer)
    if rule.needs:
        text = (
            f'The rule {rule_name(experiment, population)} weighs clients by their privacy: with privacy.kind = "none"'
        )
        raise BadInput(f"{text} use one of {', '.join(name for name in rules.names() if not rules.load(name).needs)}.")
    return FedAvg(rule, layout, rules.Crowd(population.epsilons, np.zeros(len(population))), sgd, optimizer)


def _views(experiment: Experiment, population: Population) -> Shifts | None:
    train = experiment.train
    if train.views is None:
        return None
    shape = tuple(population.x.shape[1:])
    reach = train.shift or max(1, round(min(shape[1:], default=0) / PIXELS_A_STEP))
    if len(shape) != IMAGE_DIMENSIONS or min(shape[1:]) <= reach:
        raise BadInput(
            f"train.views moves images by up to {reach} pixels, and these examples have the shape {shape}: leave it out."
        )
    return Shifts(train.views, reach)


def _layout(model: nn.Module) -> rules.Layout:
    return tuple((block.start, block.stop) for block in blocks(model))


def _local_sgd(experiment: Experiment) -> LocalSgd:
    train = experiment.train

    def batch(client: Client) -> int:
        return max(1, round(train.sampling_rate * client.size)) if train.sampling_rate else train.batch

    def steps(client: Client) -> int:
        return train.local_epochs * -(-client.size // batch(client)) if train.local_epochs else train.steps

    return LocalSgd(steps, batch, train.learning_rate)


def _optimizer(experiment: Experiment) -> ServerOptimizer:
    train = experiment.train
    said = {"momentum": train.server_momentum, "adaptivity": train.server_adaptivity}
    options = {key: value for key, value in said.items() if value is not None}
    return {"sgd": Sgd, "momentum": Momentum, "adam": Adam}[train.server_optimizer](
        train.server_learning_rate, **options
    )


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        check.one_of(("cpu", "cuda", "mps"), **{"run.device": name.split(":")[0]})
        raise BadInput(f"run.device = {name!r} cannot be used on this machine: {str(error).splitlines()[0]}") from None
    return device
