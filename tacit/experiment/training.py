"""The other tables of an experiment file: model, training, aggregation, protection, run."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, Strict, field_validator

from tacit import check
from tacit.errors import BadInput
from tacit.experiment.schema import OpenSection, Section

# The keys of `[train]` that say how a client descends: momentum, weight decay, FedProx, SCAFFOLD, and rates over
# rounds.

SMALLEST_RATE = 1e-12  # what noise is still weighed by
STEP_FACTOR = 0.1  # as torch.optim.lr_scheduler.StepLR has it


class Descending(Section):
    """`momentum` and `weight_decay` are torch.optim.SGD's; momentum starts at zero in every round. `proximal` is FedProx's mu.

    `schedule` moves the learning rate over rounds: "cosine" to `final_learning_rate` (0), or "step", times `step_factor` (0.1)
    after every `step_rounds`. `control = "scaffold"` corrects each client's drift. Left out, 0, "constant" and "none" are one.
    """

    momentum: float | None = None  # of a client's steps, from zero in every round
    weight_decay: float | None = None  # how strongly a step pulls towards zero
    proximal: float | None = None  # FedProx: how strongly towards the round's first model
    schedule: Literal["constant", "cosine", "step"] | None = None  # how the learning rate changes over rounds
    final_learning_rate: float | None = None  # of cosine: that of the last round
    step_rounds: int | None = None  # of step: after so many rounds the rate falls
    step_factor: float | None = None  # of step: to this share of it
    control: Literal["none", "scaffold"] | None = None  # scaffold: clients correct their drift by control variates

    @field_validator("momentum", "weight_decay", "proximal")
    @classmethod
    def _nothing(cls, value: float | None) -> float | None:
        """Zero is as if it had not been said, so that noise is keyed alike."""
        return value or None

    @field_validator("schedule", "control")
    @classmethod
    def _nothing_named(cls, value: str | None) -> str | None:
        return None if value in ("constant", "none") else value

    def possible_descent(self, learning_rate: float, rounds: int) -> None:
        """Raises BadInput for numbers with which no training ends well, and for keys without effect."""
        for key in ("momentum", "weight_decay", "proximal"):
            check.at_least(0, **{f"train.{key}": getattr(self, key) or 0})
        momentum, pulled = self.momentum or 0.0, (self.weight_decay or 0.0) + (self.proximal or 0.0)
        if momentum >= 1:
            raise BadInput(f"Expected 0 <= train.momentum < 1, got {self.momentum!r}.")
        if learning_rate * pulled >= 2 * (1 + momentum):  # the heavy ball leaves every bound
            raise BadInput(
                "Expected train.learning_rate * (weight_decay + proximal) < 2 * (1 + momentum), got"
                f" {learning_rate * pulled:g}: steps would overshoot further and further, whatever the data."
            )
        self._possible_schedule(learning_rate, rounds)

    def _possible_schedule(self, learning_rate: float, rounds: int) -> None:
        for key, schedule in (("final_learning_rate", "cosine"), ("step_rounds", "step"), ("step_factor", "step")):
            if getattr(self, key) is not None and self.schedule != schedule:
                raise BadInput(f'train.{key} is for train.schedule = "{schedule}": set that, or leave it out.')
        if self.schedule == "cosine":
            check.at_least(0, **{"train.final_learning_rate": self.final_learning_rate or 0})
            if (self.final_learning_rate or 0) > learning_rate:
                raise BadInput("Expected train.final_learning_rate <= train.learning_rate: a schedule goes down.")
        if self.schedule == "step":
            if self.step_rounds is None:
                raise BadInput(
                    'train.schedule = "step" lowers the learning rate after every train.step_rounds: set them.'
                )
            check.at_least(1, **{"train.step_rounds": self.step_rounds})
            factor = STEP_FACTOR if self.step_factor is None else self.step_factor
            check.rate(**{"train.step_factor": factor})
            if learning_rate * factor ** ((rounds - 1) // self.step_rounds) < SMALLEST_RATE:
                raise BadInput(
                    f"In round {rounds} the learning rate would be below {SMALLEST_RATE:g}: raise train.step_rounds or"
                    " train.step_factor."
                )


LARGEST_RATE = 3.4e38  # what float32 can hold


class ModelSection(OpenSection):
    """`[model]`: a built-in model, or any torch factory as "package.module:function". The other keys are its options.

    `path`, where a factory takes one, is where its weights lie: at a site, what site.toml says in its place. `lora` says what
    trains of low-rank adapters; under privacy the first factor is frozen unless it is "both". `start = "other-records"` says of a
    model that a run of Tacit trained that it was on other people's records.
    """

    name: str = "logr"  # logr, mlp, cnn, cifar-cnn, hugging-face, or package.module:function
    lora: Literal["first-frozen", "both"] | None = None  # which low-rank factors train; nothing: no adapters
    seed: int | None = Field(default=None, ge=0)  # of the initial weights; nothing: run.seed
    start: Literal["other-records"] | None = None  # on whose records a run of Tacit trained it; nothing: on none


class TrainSection(Descending):
    """`[train]`: the round and what a client does in it. Without `clients_per_round` all clients take part.

    Unless said otherwise a client takes 10 local steps, on batches of 32 expected examples. `averaging` = 0.9 makes the result a
    running mean of the models of the last rounds, out of which single rounds' noise averages. `views` = 4 averages, before
    clipping, a record's gradient over itself and 3 copies moved by up to `shift` pixels (2 of 28); the price is the same. How a
    client descends, beside its learning rate, is in `Descending`.
    """

    rounds: int = 30  # how many rounds there are at most
    clients_per_round: int | None = None  # the cohort; nothing: everybody
    min_clients: int = 1  # with fewer who can pay, a run ends
    local_steps: int | None = None  # steps of a client in a round (10)
    local_epochs: int | None = None  # the same as passes over its rows
    batch_size: int | None = None  # rows of a step (32 expected)
    sampling_rate: float | None = None  # the same as a share of the client's rows: each row is drawn with this chance
    learning_rate: float = 0.5  # of a client's step
    server_learning_rate: float = 1.0  # of the server's step
    averaging: float = 0.0  # how much of the running mean of models is kept in each round; 0: the last model
    server_optimizer: Literal["sgd", "momentum", "adam"] = "sgd"  # what the server does with the combined update
    server_momentum: float | None = None  # of momentum and adam
    server_adaptivity: float | None = None  # of adam: what is added to the root of the second moment
    sampler: Literal["poisson", "fixed", "cyclic"] | None = None  # central DP's cohorts; cyclic: in public, by turns
    physical_batch: int = 256  # rows in memory at once; changes no result
    views: int | None = None  # copies of an image whose gradients are averaged before clipping, itself among them
    shift: int | None = None  # by how many pixels copies are moved at most

    def possible(self) -> None:
        self._possible_server()
        self.refuse_both("train", "local_steps", "local_epochs")
        self.refuse_both("train", "batch_size", "sampling_rate")
        for key in (
            "rounds",
            "min_clients",
            "batch_size",
            "physical_batch",
            "clients_per_round",
            "local_steps",
            "local_epochs",
        ):
            if getattr(self, key) is not None:
                check.at_least(1, **{f"train.{key}": getattr(self, key)})
        self._possible_views()
        check.positive(**{"train.learning_rate": self.learning_rate})
        check.positive(**{"train.server_learning_rate": self.server_learning_rate})
        for key in ("learning_rate", "server_learning_rate"):
            if getattr(self, key) > LARGEST_RATE:
                raise BadInput(f"Expected train.{key} <= {LARGEST_RATE:g}, got {getattr(self, key)!r}.")
        self.possible_descent(self.learning_rate, self.rounds)
        if not 0 <= self.averaging < 1:
            raise BadInput(f"Expected 0 <= train.averaging < 1, got {self.averaging!r}.")
        if self.sampling_rate is not None:
            check.rate(**{"train.sampling_rate": self.sampling_rate})

    def _possible_views(self) -> None:
        """`shift` says something only where there are views."""
        if self.views is not None:
            check.at_least(2, **{"train.views": self.views})
        if self.shift is not None:
            check.at_least(1, **{"train.shift": self.shift})
            if self.views is None:
                raise BadInput("train.shift is how far train.views moves an image: set that too, or leave it out.")

    def _possible_server(self) -> None:
        """The keys of an optimiser are refused where it has none of them."""
        if self.server_momentum is not None:
            check.at_least(0, **{"train.server_momentum": self.server_momentum})
            if self.server_optimizer == "sgd" or self.server_momentum >= 1:
                raise BadInput("train.server_momentum is in [0, 1) and for server_optimizer = momentum or adam.")
        if self.server_adaptivity is not None:
            check.positive(**{"train.server_adaptivity": self.server_adaptivity})
            if self.server_optimizer != "adam":
                raise BadInput("train.server_adaptivity is the tau of server_optimizer = adam: leave it out.")

    @property
    def batch(self) -> int:
        """The (expected) batch where no sampling rate is given."""
        return self.batch_size or 32

    @property
    def steps(self) -> int:
        """Local steps of a round where no epochs are given."""
        return self.local_steps or 10


class AggregateSection(OpenSection):
    """`[aggregate]`: how the server combines updates. The other keys are the rule's options.

    Without a `rule` clients whose budgets differ are combined by `random-effects`, and others by their `mean`. Epsilons and sizes
    are declared, and nobody can check them: each counts up to `most_share` of what all clients declare, ten equal shares unless
    said (so that among ten clients or fewer nobody is cut), and 1 cuts nobody. Noise is not cut: `inverse-variance` and
    `random-effects` weigh by it.
    """

    names_part: ClassVar[str] = "rule"

    rule: str | None = None  # how updates are combined; nothing: by what budgets and kind suggest
    most_share: float | None = None  # of all epsilons, and of all examples, that one client counts for (10/clients)

    def possible(self) -> None:
        check.rate(**{"aggregate.most_share": 1.0 if self.most_share is None else self.most_share})


class ProtectSection(Section):
    """`[protect]`: how the integers of distributed DP are made (`bits`, `rotation`) and sealed on their way.

    Without `key`, the file of a secret key, every start of a run makes a key of its own. `threshold = t` splits it: every client
    has a share, and t of them open a sum together. Without it, and with 1, clients have one common key.
    """

    kind: Literal["none", "paillier"] = "none"  # paillier: the server adds ciphertexts
    key_bits: Literal[2048, 3072, 4096] | None = None  # of a new key (3072)
    key_shape: Literal["ordinary", "short-exponent", "safe-prime"] | None = None  # of a new key (ordinary)
    key: str | None = None  # the file of a public key that is there already
    threshold: int | None = None  # how many holders must open a sum together
    bits: Literal[8, 12, 16] | None = None  # of one coordinate on the grid
    rotation: Literal["none", "hadamard"] | None = None  # what is done to updates before the grid

    def possible(self) -> None:
        for key in ("key_bits", "key_shape", "key", "threshold"):
            if self.kind == "none" and getattr(self, key) is not None:
                raise BadInput(f'protect.{key} is for protect.kind = "paillier": set that, or leave it out.')
        if self.key is not None and (self.key_bits or self.key_shape):
            raise BadInput("protect.key names a key that has its own bits and shape: leave out key_bits and key_shape.")
        check.at_least(1, **{"protect.threshold": 1 if self.threshold is None else self.threshold})
        if self.split and self.key_shape not in (None, "safe-prime"):
            raise BadInput(
                f"Only safe-prime keys can be split, and protect.key_shape is {self.key_shape}: leave it out, or set"
                " protect.threshold = 1 for one key that all clients have."
            )

    @property
    def split(self) -> bool:
        """Whether every client has a share of the key instead of the whole."""
        return (self.threshold or 1) > 1

    @property
    def shape(self) -> Literal["ordinary", "short-exponent", "safe-prime"]:
        """The shape of a key that is made."""
        return self.key_shape or ("safe-prime" if self.split else "ordinary")


class RunSection(Section):
    """`[run]`: seed, place and means. `workers = 0` uses every core; `randomness = "os"` is for deployments.

    `seed` stands for `data.seed`, `privacy.epsilon_seed`, `model.seed` and `noise_seed` wherever one of them is not said.
    `evaluate_every` changes no bit of a model: rounds in between have no score, and a run may go on with another one.
    Noise is keyed by the whole release, and never shared by two: `noise_seed` gives other noise with all else equal.

    `at_once` trains a round's clients in one stack: left out, on a GPU where that can be. On a CPU a stack may be faster or slower
    than processes side by side: "measured" tries both on some clients before the first round and says which it took, as a run with
    `randomness = "os"` does by itself. A run that goes on is then another release, as on a GPU.
    `device = "cuda:0,cuda:1"` splits a cohort between GPUs.
    `precision` is that of the products of plain SGD on a CUDA device; what is clipped example by example stays float32.
    `writers` also sends every round to where people look already: "tensorboard", "mlflow", or "package.module:name".
    """

    seed: int = Field(default=0, ge=0)  # of all chance that has no seed of its own
    noise_seed: int | None = Field(default=None, ge=0)  # of noise, cohorts and batches, where seeded; nothing: seed
    device: str = "cpu"  # cpu, cuda, or several as "cuda:0,cuda:1"
    out: str | None = None  # the folder for the files
    workers: int = 0  # processes that train side by side; 0: all cores
    randomness: Literal["seeded", "os"] = "seeded"  # os: the operating system's, as a release needs
    writers: tuple[str, ...] | None = None  # other tools that get every round
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"  # of plain SGD on a GPU; DP-SGD refuses it
    evaluate_every: int | None = (
        None  # the model is tested after every so many rounds, and after the last; nothing: after each
    )
    at_once: Annotated[bool, Strict()] | Literal["measured"] | None = (
        None  # whether clients are trained in one stack; "measured": where it is faster; nothing: on a GPU, measured with os
    )

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of the run, the first of which has the model."""
        return tuple(part.strip() for part in self.device.split(","))

    def possible(self) -> None:
        check.at_least(0, **{"run.workers": self.workers})
        check.at_least(1, **{"run.evaluate_every": 1 if self.evaluate_every is None else self.evaluate_every})
        if self.noise_seed is not None and self.randomness == "os":
            raise BadInput(
                'With run.randomness = "os" no noise is drawn from a seed: leave out run.noise_seed, or set randomness = "seeded".'
            )
        kinds = {device.partition(":")[0] for device in self.devices}
        if len(self.devices) > 1 and kinds != {"cuda"}:
            raise BadInput(f'Expected several run.device of the kind cuda, as in "cuda:0,cuda:1", got {self.device!r}.')
        if self.precision != "float32" and not self.device.startswith("cuda"):
            raise BadInput(
                f'run.precision = "{self.precision}" is for plain SGD on CUDA devices: set run.device = "cuda", or leave it out.'
            )
        if self.writers and len(set(self.writers)) < len(self.writers):
            raise BadInput(f"Expected each of run.writers once, got {', '.join(self.writers)}.")
