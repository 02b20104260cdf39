"""What a plan's algorithm is wired from: the experiment, its clients, the model, and what a deployment brings of its own."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Protocol

import numpy as np
from torch import nn

from tacit.algorithms import Control, Layout, PopulationStatistics, Rule, Server, rules
from tacit.algorithms.mean_regularised import MeanRegularised
from tacit.algorithms.rules import ceiling
from tacit.algorithms.scaffold import Scaffold
from tacit.data.population import Population
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.experiment import training as schedules
from tacit.training.batches import Shifts
from tacit.training.flat import blocks
from tacit.training.optimizer import (
    CONSTANT,
    Adam,
    Cosine,
    Descent,
    Momentum,
    Schedule,
    ServerOptimizer,
    Sgd,
    Step,
    rounds_in_it,
)
from tacit.training.sgd import Local, LocalSgd

IMAGE_DIMENSIONS = 3  # channels, height, width
PIXELS_A_STEP = 14  # of an image's side, for each pixel that views are moved by: 2 of 28


MOST_CONTROLS = 1 << 28  # numbers that SCAFFOLD keeps for all clients: 1 GiB in every checkpoint


def descent_of(experiment: Experiment) -> Descent:
    """How an experiment's clients descend beside their learning rate."""
    train, schedule = experiment.train, CONSTANT
    if isinstance(train.schedule, schedules.Cosine):
        schedule = Cosine(train.rounds, train.schedule.final / train.learning_rate)
    elif train.schedule is not None:
        schedule = Step(train.schedule.rounds, train.schedule.factor)
    pull = experiment.personal.strength if experiment.personal.during else train.proximal
    return Descent(train.momentum or 0.0, train.weight_decay or 0.0, pull or 0.0, schedule)


def _weight(rule: Rule, facts: dict[str, Any]) -> float:
    return rule.weight(facts) if rule.sees == "sums" else float(facts["examples"])


class Seals(Protocol):
    """Where the seals of encrypted sums come from: one process that is all parties, a site's folder, or the server's."""

    def seal(self, plan: Any, number: int, word: str, clients: Sequence[str], everybody: Sequence[str]) -> Any:
        """The seal of one group's reports: of the group with that number in the plan, called `word`, whose members are
        `clients`. Raises: BadInput for lanes that do not fit the key, KeyRefused for keys that are missing or not those of
        everybody."""
        ...


@dataclass(frozen=True, eq=False)
class Wiring:
    """What an algorithm is made from. Where `local` is given it trains in the place of Tacit's own SGD. `seals` is None where
    one process is all parties."""

    experiment: Experiment
    population: Population = field(repr=False)
    model: nn.Module = field(repr=False)
    local: Local | None = None
    seals: Seals | None = None

    @cached_property
    def layout(self) -> Layout:
        """Where each tensor of the model lies in the vector of its parameters."""
        return tuple((block.start, block.stop) for block in blocks(self.model))

    @cached_property
    def training(self) -> Local:
        """A client's training where its update is bounded as a whole: plain SGD, or somebody else's. Where privacy is
        promised its result is not trusted: it is clipped before anything is released."""
        train = self.experiment.train
        own = LocalSgd(
            train.steps, train.batch, train.learning_rate, self.descent, train.sampling_rate, train.local_epochs
        )
        return self.local or own

    @cached_property
    def descent(self) -> Descent:
        """How a client descends."""
        return descent_of(self.experiment)

    @cached_property
    def optimizer(self) -> ServerOptimizer:
        """What the server does with a combined update. It sees nothing but what was released, so that it costs nothing."""
        train = self.experiment.train
        name, options = train.optimizer
        kinds: Mapping[str, Callable[..., ServerOptimizer]] = {"sgd": Sgd, "momentum": Momentum, "adam": Adam}
        return kinds[name](train.server_learning_rate, **options)

    def takes_part(self, share: float) -> float:
        """In how many rounds a client is expected to take part, of those that are in the result, by its share of all rounds."""
        train = self.experiment.train
        return max(1.0, share * rounds_in_it(train.rounds, rate=train.averaging))

    def rule(self, name: str) -> Rule:
        """A rule with the experiment's options, or the one that was passed from Python. Raises BadInput for a rule that is
        not there, or options it does not take."""
        return rules.of(self.experiment.aggregate, name)

    def statistics(
        self, noise_stds: np.ndarray, rounds: float = 1.0, *, least_noise: float = 0.0
    ) -> PopulationStatistics:
        """What is public of the clients, each counting for at most its share of what all declare (`aggregate.most_share`); an
        epsilon of a client that opted out as the largest of the others'."""
        population, most = self.population, self.experiment.aggregate.most_share
        epsilons = population.epsilons
        if self.experiment.privacy.opts_out:
            epsilons = np.minimum(epsilons, epsilons.max(where=np.isfinite(epsilons), initial=0.0) or np.inf)
        epsilon, examples = min(ceiling(epsilons, most), float(epsilons.max())), ceiling(population.sizes, most)
        whole = examples if examples == np.inf else max(1, int(examples))
        return PopulationStatistics(np.minimum(epsilons, epsilon), noise_stds, rounds, epsilon, whole, least_noise)

    def facts(self, statistics: PopulationStatistics) -> Iterator[dict[str, Any]]:
        """What each client is weighed by, in their order."""
        known = zip(self.population.sizes, self.population.epsilons, statistics.noise_stds, strict=True)
        for size, epsilon, noise in known:
            yield statistics.facts(int(size), float(epsilon)) | {"noise_std": float(noise)}

    def server(
        self,
        rule: Rule,
        statistics: PopulationStatistics,
        *,
        schedule: Schedule | None = None,
        control: Control | None = None,
    ) -> Server:
        """The server's part, for a rule and what is public of the clients."""
        return Server(rule, self.layout, statistics, self.optimizer, schedule or CONSTANT, control)

    def control(self, rule: Rule, statistics: PopulationStatistics, steps: np.ndarray | None = None) -> Control | None:
        """SCAFFOLD or own models during training, where one is asked for. Raises BadInput. `steps` are the clients' own,
        unless they run plain SGD."""
        train, population, training = self.experiment.train, self.population, self.training
        during, places = self.experiment.personal.during, {name: place for place, name in enumerate(population.names)}
        if train.control is None and not during:
            return None
        asked = 'personal.when = "during"' if during else 'train.control = "scaffold"'
        if not rule.whole:
            raise BadInput(
                f"{asked} follows whole updates, and of some the rule {type(rule).__name__} sends a part: leave it out, or use"
                " another rule."
            )
        if len(population) * self.layout[-1][1] > MOST_CONTROLS:
            raise BadInput(
                f"{asked} keeps {self.layout[-1][1]} numbers for each of {len(population)} clients, more than"
                f" {MOST_CONTROLS}: leave it out."
            )
        if during:
            return MeanRegularised(places, self.experiment.personal.strength or 0.0)
        if steps is None and isinstance(training, LocalSgd):
            steps = np.array([training.batch_and_steps(population[index])[1] for index in range(len(population))])
        if steps is None:
            raise BadInput('train.control = "scaffold" corrects Tacit\'s own training, and no other: leave it out.')

        @lru_cache(maxsize=1)
        def reach(round: int) -> np.ndarray:
            return self.descent.for_round(round).reach(steps, learning_rate=train.learning_rate)

        weights = np.array([_weight(rule, facts) for facts in self.facts(statistics)])
        return Scaffold(places, weights / weights.sum(), reach)

    @cached_property
    def views(self) -> Shifts | None:
        """How records are moved for `train.views`; None where they are not. A step of a 28-pixel image is up to 2 pixels.
        Raises: BadInput for what are no images, or smaller than such a step."""
        train = self.experiment.train
        if train.views is None:
            return None
        shape = tuple(self.population.x.shape[1:])
        reach = max(1, round(min(shape[1:], default=0) / PIXELS_A_STEP))
        if len(shape) != IMAGE_DIMENSIONS or min(shape[1:]) <= reach:
            raise BadInput(
                f"train.views moves images by up to {reach} pixels, and these examples have the shape {shape}: leave it out."
            )
        return Shifts(train.views, reach)
