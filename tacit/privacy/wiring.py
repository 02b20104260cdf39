"""What a plan's algorithm is wired from: the experiment, its clients, the model, and what a deployment brings of its own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from torch import nn

from tacit import rules
from tacit.algorithms import Server
from tacit.data.population import Population
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.server_optimizer import Adam, Momentum, ServerOptimizer, Sgd
from tacit.train.attempt import Local
from tacit.train.flat import blocks
from tacit.train.sgd import LocalSgd
from tacit.train.views import Shifts
from tacit.types import Client

IMAGE_DIMENSIONS = 3  # channels, height, width
PIXELS_A_STEP = 14  # of an image's side, for each pixel that views are moved by: 2 of 28


class Seals(Protocol):
    """Where the seals of encrypted sums come from: one process that is all parties, a site's folder, or the server's."""

    def seal(self, plan: Any, number: int, word: str, clients: Sequence[str], everybody: Sequence[str]) -> Any:
        """The seal of one group's reports. Raises BadInput or KeyRefused."""
        ...


@dataclass(frozen=True, eq=False)
class Wiring:
    """`local` is somebody else's training in the place of Tacit's; `seals` is None where one process is all parties."""

    experiment: Experiment
    population: Population = field(repr=False)
    model: nn.Module = field(repr=False)
    local: Local | None = None
    seals: Seals | None = None

    @cached_property
    def layout(self) -> rules.Layout:
        """Where each tensor of the model lies in the vector of its parameters."""
        return tuple((block.start, block.stop) for block in blocks(self.model))

    @cached_property
    def training(self) -> Local:
        """A client's training where its update is bounded as a whole: plain SGD, or somebody else's."""
        train = self.experiment.train

        def batch(client: Client) -> int:
            return max(1, round(train.sampling_rate * client.size)) if train.sampling_rate else train.batch

        def steps(client: Client) -> int:
            return train.local_epochs * -(-client.size // batch(client)) if train.local_epochs else train.steps

        return self.local or LocalSgd(steps, batch, train.learning_rate)

    @cached_property
    def optimizer(self) -> ServerOptimizer:
        """What the server does with a combined update."""
        train = self.experiment.train
        said = {"momentum": train.server_momentum, "adaptivity": train.server_adaptivity}
        options = {key: value for key, value in said.items() if value is not None}
        kinds: Mapping[str, Callable[..., ServerOptimizer]] = {"sgd": Sgd, "momentum": Momentum, "adam": Adam}
        return kinds[train.server_optimizer](train.server_learning_rate, **options)

    def rule(self, name: str) -> rules.Rule:
        """A rule with the experiment's options, or the one that was passed from Python."""
        return rules.of(self.experiment.aggregate, name)

    def server(self, rule: rules.Rule, crowd: rules.Crowd) -> Server:
        """The server's part, for a rule and what is public of the clients."""
        return Server(rule, self.layout, crowd, self.optimizer)

    @cached_property
    def views(self) -> Shifts | None:
        """How records are moved for `train.views`. Raises BadInput for what are no images."""
        train = self.experiment.train
        if train.views is None:
            return None
        shape = tuple(self.population.x.shape[1:])
        reach = train.shift or max(1, round(min(shape[1:], default=0) / PIXELS_A_STEP))
        if len(shape) != IMAGE_DIMENSIONS or min(shape[1:]) <= reach:
            raise BadInput(
                f"train.views moves images by up to {reach} pixels, and these examples have the shape {shape}: leave it out."
            )
        return Shifts(train.views, reach)
