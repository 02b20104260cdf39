"""The tables of training: `[train]`, `[model]`, `[aggregate]` and `[run]`."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, Strict, field_validator

from tacit.errors import BadInput
from tacit.experiment.schema import Count, NotNegative, OpenSection, Positive, Section, Share, Whole

SMALLEST_RATE = 1e-12  # what noise is still weighed by
LARGEST_RATE = 3.4e38  # what float32 can hold
DEFAULT_STEPS = 10
STEP_FACTOR = 0.1  # as torch.optim.lr_scheduler.StepLR has it
LearningRate = Annotated[float, Field(gt=0, le=LARGEST_RATE)]
Decay = Annotated[float, Field(ge=0, lt=1)]


class Schedule(Section):
    """How the learning rate changes over rounds."""

    named: ClassVar[str] = "train.schedule"


class Cosine(Schedule):
    """Down to `final` in the last round."""

    kind: Literal["cosine"] = "cosine"
    final: NotNegative = 0.0  # the learning rate of the last round

    def smallest(self, learning_rate: float, rounds: int) -> float:
        """The smallest rate of a run. Raises BadInput where it is not smaller than the first."""
        if self.final > learning_rate:
            raise BadInput("Expected train.schedule.final <= train.learning_rate: a schedule goes down.")
        return learning_rate


class Steps(Schedule):
    """Times `factor` after every so many `rounds`."""

    kind: Literal["step"] = "step"
    rounds: Count  # after so many the rate falls
    factor: Share = STEP_FACTOR  # to this share of it

    def smallest(self, learning_rate: float, rounds: int) -> float:
        """The rate of the last round."""
        return learning_rate * self.factor ** ((rounds - 1) // self.rounds)


class Momentum(Section):
    """The server's steps with momentum."""

    named: ClassVar[str] = "train.server_optimizer"

    kind: Literal["momentum"] = "momentum"
    momentum: Decay | None = None  # how much of the last step is kept (0.9)


class Adam(Momentum):
    """The server's steps by Adam."""

    kind: Literal["adam"] = "adam"  # pyright: ignore[reportIncompatibleVariableOverride]
    adaptivity: Positive | None = None  # tau, added to the root of the second moment (0.001)


class Epochs(Section):
    """Local training measured in passes over a client's rows."""

    named: ClassVar[str] = "train.local_steps"

    epochs: Count


# What changes nothing is as if it had not been said, so that noise is keyed alike.


def _schedule(said: Any) -> Any:
    return None if said == "constant" else {"kind": said} if isinstance(said, str) else said


def _nothing(said: Any) -> Any:
    return None if said == "none" or (said == 0 and not isinstance(said, bool)) else said


class TrainSection(Section):
    """`[train]`: the round and what a client does in it. Without `clients_per_round` all clients take part. Unless said
    otherwise a client takes 10 local steps, on batches of 32 expected examples. `averaging` = 0.9 makes the result a running
    mean of the models of the last rounds, out of which single rounds' noise averages. `views` = 4 averages, before clipping, a
    record's gradient over itself and 3 copies moved by up to 2 of 28 pixels; the price is the same. `momentum` and
    `weight_decay` are torch.optim.SGD's, `proximal` is FedProx's mu; `control` corrects each client's drift."""

    rounds: Count = 30  # how many rounds there are at most
    clients_per_round: Count | None = None  # the cohort; default: everybody
    min_clients: Count = 1  # with fewer who can pay, a run ends
    local_steps: Count | Epochs | None = (
        None  # steps of a client in a round (10), or {epochs = 2}: passes over its rows
    )
    batch_size: Count | None = None  # rows of a step (32 expected)
    sampling_rate: Share | None = None  # the same as a share of the client's rows: each row is drawn with this chance
    learning_rate: LearningRate = 0.5  # of a client's step
    momentum: Decay | None = None  # of a client's steps, from zero in every round
    weight_decay: NotNegative | None = None  # how strongly a step pulls towards zero
    proximal: NotNegative | None = None  # FedProx: how strongly towards the round's first model
    schedule: (
        Annotated[Annotated[Cosine | Steps, Field(discriminator="kind")] | None, BeforeValidator(_schedule)] | None
    ) = None  # constant, cosine, or a table whose `kind` is cosine (`final`) or step (`rounds`, `factor`)
    control: Literal["scaffold"] | None = None  # scaffold: clients correct their drift by control variates
    server_learning_rate: LearningRate = 1.0  # of the server's step
    server_optimizer: Literal["sgd", "momentum", "adam"] | Annotated[Momentum | Adam, Field(discriminator="kind")] = (
        "sgd"  # what the server does with the combined update; momentum and adam also as tables with a `kind`
    )
    averaging: Decay = 0.0  # how much of the running mean of models is kept in each round; 0: the last model
    physical_batch: Count = 256  # rows in memory at once; changes no result
    views: Annotated[int, Field(ge=2)] | None = None  # images of a record whose gradients are averaged before clipping

    @field_validator("momentum", "weight_decay", "proximal", "control", mode="before")
    @classmethod
    def _as_not_said(cls, value: Any) -> Any:
        return _nothing(value)

    def possible(self) -> None:
        self.refuse_both("train", "batch_size", "sampling_rate")
        pulls = {"weight_decay": self.weight_decay, "proximal": self.proximal}
        refuse_overshooting(self.learning_rate, self.momentum, pulls)
        if self.schedule and self.schedule.smallest(self.learning_rate, self.rounds) < SMALLEST_RATE:
            raise BadInput(
                f"In round {self.rounds} the learning rate would be below {SMALLEST_RATE:g}: raise train.schedule.rounds or"
                " train.schedule.factor."
            )

    @property
    def batch(self) -> int:
        """The (expected) batch where no sampling rate is given."""
        return self.batch_size or 32

    @property
    def steps(self) -> int:
        """Local steps of a round; where epochs are given, the fewest that it can have."""
        return self.local_epochs or (self.local_steps if isinstance(self.local_steps, int) else DEFAULT_STEPS)

    @property
    def local_epochs(self) -> int | None:
        """A round's passes over a client's rows, where they are given instead of steps."""
        return self.local_steps.epochs if isinstance(self.local_steps, Epochs) else None

    @property
    def optimizer(self) -> tuple[str, dict[str, float]]:
        """The server's optimizer by name, with the options that were set."""
        said = self.server_optimizer
        return (
            (said, {}) if isinstance(said, str) else (said.kind, said.model_dump(exclude={"kind"}, exclude_none=True))
        )


def refuse_overshooting(learning_rate: float, momentum: float | None, pulls: dict[str, float | None]) -> None:
    """Refuses steps so long that the heavy ball leaves every bound. Raises BadInput."""
    pulled = learning_rate * sum(pull or 0.0 for pull in pulls.values())
    if pulled >= 2 * (1 + (momentum or 0.0)):
        raise BadInput(
            f"Expected train.learning_rate * ({' + '.join(pulls)}) < 2 * (1 + momentum), got {pulled:g}: steps would"
            " overshoot further and further, whatever the data."
        )


class ModelSection(OpenSection):
    """`[model]`: a built-in model, or any torch factory as "package.module:function". The other keys are its options. `path`,
    where a factory takes one, is where its weights lie: at a site, what site.toml says in its place. `lora` says what trains of
    low-rank adapters; under privacy the first factor is frozen unless it is "both"."""

    name: str = "logr"  # logr, mlp, cnn, cifar-cnn, hugging-face, or package.module:function
    lora: Literal["first-frozen", "both"] | None = None  # which low-rank factors train; default: no adapters
    start: Literal["other-records"] | None = None  # on whose records a run of Tacit trained it; default: on none


class AggregateSection(OpenSection):
    """`[aggregate]`: how the server combines updates. The other keys are the rule's options. Without a `rule` clients whose
    budgets differ are combined by `random-effects`, and others by their `mean`. Epsilons and sizes are declared, and nobody can
    check them: each counts up to `most_share` of what all clients declare, ten equal shares unless said (so that among ten
    clients or fewer nobody is cut), and 1 cuts nobody. Noise is not cut: `inverse-variance` and `random-effects` weigh by
    it."""

    names_part: ClassVar[str] = "rule"

    rule: str | None = None  # how updates are combined; default: by what budgets and kind suggest
    most_share: Share | None = None  # of all epsilons, and of all examples, that one client counts for (10/clients)


class RunSection(Section):
    """`[run]`: seed, place and means. `workers = 0` uses every core; `randomness = "os"` is for deployments. `evaluate_every`
    changes no bit of a model: rounds in between have no score, and a run may go on with another one. `at_once` trains a round's
    clients in one stack: left out, on a GPU where that can be. On a CPU a stack may be faster or slower than processes side by
    side, and a run that goes on is then another release, as on a GPU. `device = "cuda:0,cuda:1"` splits a cohort between GPUs.
    `precision` is that of the products of plain SGD on a CUDA device; what is clipped example by example stays float32.
    `writers` also sends every round to where people look already: "tensorboard", "mlflow", or "package.module:name"."""

    seed: Whole = 0  # of all chance that has no seed of its own in [seed]
    device: str = "cpu"  # cpu, cuda, or several as "cuda:0,cuda:1"
    workers: Whole = 0  # processes that train side by side; 0: all cores
    randomness: Literal["seeded", "os"] = "seeded"  # os: the operating system's, as a release needs
    writers: tuple[str, ...] | None = None  # other tools that get every round
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"  # of plain SGD on a GPU; DP-SGD refuses it
    evaluate_every: Count | None = None  # rounds from one test of the model to the next (1); the last is always tested
    at_once: Annotated[bool, Strict()] | None = None  # clients in one stack; default: on a GPU

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of the run, the first of which has the model."""
        return tuple(part.strip() for part in self.device.split(","))

    def possible(self) -> None:
        kinds = {device.partition(":")[0] for device in self.devices}
        if len(self.devices) > 1 and kinds != {"cuda"}:
            raise BadInput(f'Expected several run.device of the kind cuda, as in "cuda:0,cuda:1", got {self.device!r}.')
        if self.precision != "float32" and not self.device.startswith("cuda"):
            raise BadInput(
                f'run.precision = "{self.precision}" is for plain SGD on CUDA devices: set run.device = "cuda", or leave it out.'
            )
        if self.writers and len(set(self.writers)) < len(self.writers):
            raise BadInput(f"Expected each of run.writers once, got {', '.join(self.writers)}.")
