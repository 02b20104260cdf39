"""One client at home, simulated or a site: what it makes of a common model, and what its kept rows say of its three models."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as dataclasses_replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from safetensors.torch import save
from torch import nn

from tacit import store
from tacit.engine.assemble import TrainingTask
from tacit.engine.evaluate import answers_to
from tacit.errors import BadInput, Refused
from tacit.experiment import Experiment
from tacit.experiment.extras import PersonalSection
from tacit.experiment.training import TrainSection
from tacit.parts import metrics
from tacit.parts.metrics import RESAMPLES, Answers, middle
from tacit.parts.tasks import chosen
from tacit.personal import home as last
from tacit.personal import mean_regularised, shrinkage
from tacit.personal.home import FEW, Adapted, Home
from tacit.training.flat import named, training
from tacit.training.per_example import candidates

# The type of a client's own model: it can be judged, and kept in a file for its owner alone, and nothing else.

Said = TypeVar("Said", float, Answers)  # what a judge may say

STAYS = (
    "A client's own model stays where it was made: it carries no noise, so no epsilon covers it, and it is neither sent nor"
    " published."
)


class Personal:
    """A model made of one client's rows without noise, and how it was chosen.
    Guarantee: it is no tensor and has none to hand out. A message that holds it cannot be packed, and it is not pickled. A judge
    says a number or answers, or is refused, and what it was lent is no number any more when it has spoken; the one file that it
    is kept in is its owner's. (Code at home that copies what it is lent can do what it likes: no type stops that.)

    >>> own = Personal("north", torch.ones(2), {"strength": 0.1})
    >>> own, own.judged(lambda vector: float(vector.sum()))
    (Personal('north', {'strength': 0.1}), 2.0)
    """

    __slots__ = ("__vector", "chosen", "client")

    def __init__(self, client: str, vector: torch.Tensor, chosen: Mapping[str, float | None]):
        self.client, self.chosen = client, dict(chosen)
        self.__vector = vector.detach().clone()

    def __repr__(self) -> str:
        return f"Personal({self.client!r}, {self.chosen!r})"

    def judged(self, judge: Callable[[torch.Tensor], Said]) -> Said:
        """What a judge at home says of the model. Raises Refused for anything but a number or answers."""
        lent = self.__vector.clone()
        try:
            said = judge(lent)
        finally:
            lent.fill_(torch.nan)
        if type(said) not in (float, Answers):
            raise Refused(STAYS)
        return said

    def keep(self, path: Path, model: nn.Module, mark: dict[str, str]) -> None:
        """Writes the model into a file for its owner alone, whole or not at all: the only way to a disk. Raises: OSError."""
        store.write(path, save(named(model, self.__vector), mark), mode=store.OWNER)

    def __reduce__(self) -> NoReturn:
        raise Refused(STAYS)

    def cpu(self) -> NoReturn:
        """What packing a message asks of its tensors. Raises Refused."""
        raise Refused(STAYS)

    def to(self, *_: Any) -> NoReturn:
        """What moving a message asks of its tensors. Raises Refused."""
        raise Refused(STAYS)

    @property
    def device(self) -> NoReturn:
        """What moving a message asks first. Raises Refused."""
        raise Refused(STAYS)

    @property
    def dtype(self) -> NoReturn:
        """What the size of a message is made of. Raises Refused."""
        raise Refused(STAYS)


# Several models on the same rows of the same clients: each one's mean, and their differences, row by row of a draw.

PAIRS = (("own", "alone"), ("own", "common"))


@dataclass(frozen=True, eq=False)
class Judged:
    """One metric of one client's models: the values, and the values in every draw of its rows; None where they cannot tell."""

    rows: int
    values: dict[str, float] | None
    drawn: dict[str, np.ndarray] = field(default_factory=dict, repr=False)

    def told(self) -> dict[str, Any] | None:
        """Value and 95 % interval of each model."""
        return self.values and {
            name: {"value": value, "interval": _around(value, self.drawn.get(name))}
            for name, value in self.values.items()
        }


def judged(metric: str, answers: Mapping[str, Answers], *, seed: int) -> Judged:
    """One client's models by one metric, on draws of its rows that all of them share."""
    made, some = metrics.load(metric), next(iter(answers.values()))
    values = {name: metrics.measure_if_possible(made, found) for name, found in answers.items()}
    known = {name: value for name, value in values.items() if value is not None}
    if len(known) < len(values):
        return Judged(some.test_rows, None)
    drawn: dict[str, np.ndarray] = {}
    if hasattr(made, "resampled") and some.test_rows > 1:
        even = np.full(some.test_rows, 1 / some.test_rows)
        counts = np.random.default_rng(seed).multinomial(some.test_rows, even, size=RESAMPLES).astype(np.float32)
        counts = counts if some.row is None else counts[:, some.row]
        with np.errstate(invalid="ignore", divide="ignore"):
            drawn = {name: made.resampled(found, counts) for name, found in answers.items()}  # pyright: ignore[reportAttributeAccessIssue]
    return Judged(some.test_rows, known, drawn)


def together(clients: Sequence[Judged]) -> dict[str, Any]:
    """The mean of every model over the clients whose rows can tell, by their rows, and the paired differences."""
    known = [one for one in clients if one.values is not None]
    if not known:
        return {"rows": 0, "clients": 0}
    weights = np.array([one.rows for one in known], dtype=float)
    weights /= weights.sum()
    names = list(known[0].values or ())
    values = {name: float(weights @ [(one.values or {})[name] for one in known]) for name in names}
    draws = {name: _over(known, weights, name) for name in names}
    told: dict[str, Any] = {"rows": int(sum(one.rows for one in known)), "clients": len(known)}
    told |= {name: {"value": values[name], "interval": _around(values[name], draws[name])} for name in names}
    for one, other in PAIRS:
        gap, both = values[one] - values[other], (draws[one], draws[other])
        drawn = None if both[0] is None or both[1] is None else both[0] - both[1]
        told[f"{one}_less_{other}"] = {"value": gap, "interval": _around(gap, drawn)}
    return told


def _over(known: Sequence[Judged], weights: np.ndarray, name: str) -> np.ndarray | None:
    total = np.zeros(RESAMPLES)
    for one, weight in zip(known, weights, strict=True):
        value = (one.values or {})[name]
        if name not in one.drawn and one.rows > 1:
            return None
        drawn = one.drawn.get(name, np.full(RESAMPLES, value))
        total += weight * np.where(np.isfinite(drawn), drawn, value)
    return total


def _around(value: float, drawn: np.ndarray | None) -> list[float] | None:
    ends = middle(drawn) if drawn is not None else None
    return ends and [min(ends[0], value), max(ends[1], value)]


LIKELY = {"classification": "cross-entropy", "binary": "binary-cross-entropy", "regression": "squared"}
SPARED = 8  # times the work of adapting: what a client that does not join can spend on its own model
CUT = 1.0  # by how much (log-likelihood) own rows have to speak for the common model: it may be useless, and alone is at hand
PLAIN, NOISED = 20, 8  # of training's rows, adapting reads one in so many: a plain step is 2/5 of a noised one
MODELS = ("alone", "common", "own")
ONE_CLASS = "all rows that it trains on are of one class, so that at home there is little to learn from them"

Adapt = Callable[[Home, torch.Tensor], Adapted]


@dataclass(frozen=True, eq=False)
class Made:
    """A client's own models, how the second was chosen, whether it stays alone, and the CPU seconds that it took.
    `seconds` are of adapting, and of `alone` too where one path gives both; where not, `control` are those of `alone`."""

    alone: Personal
    own: Personal
    chosen: dict[str, float | None]
    stays: bool
    seconds: float
    control: float = 0.0

    @property
    def beginning(self) -> str:
        """What the own model was made of."""
        return "alone" if self.stays else "common"


@dataclass(frozen=True, eq=False)
class Told:
    """What kept rows say of a client's three models: by every metric, and the mean losses where there are rows."""

    by: dict[str, Judged] = field(repr=False)
    losses: dict[str, float]


def refuse_unfit(experiment: Experiment, kind: str | None, model: nn.Module, x: torch.Tensor) -> None:
    """Refuses an own model that this model or loss cannot have, before anybody pays. Raises BadInput."""
    if kind == "head":
        shaped = torch.zeros(2, *x.shape[1:], dtype=x.dtype, device=next(model.parameters()).device)
        last.refuse(model, next(candidates(model, shaped, 2)))  # a refusal tells of no row
        training(model)
    task = experiment.task
    if kind == "shrinkage" and (
        task.kind not in LIKELY or task.loss not in (None, LIKELY[task.kind]) or task.options()
    ):
        raise BadInput(
            'personal.kind = "shrinkage" derives its strength from a likelihood: it needs the plain loss of a classification,'
            ' binary or regression task; choose "mean-regularised".'
        )


def make(
    parts: TrainingTask,
    common: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    by: PersonalSection,
    name: str,
    seed: int,
    own: torch.Tensor | None = None,
) -> Made:
    """The client's models, of its training rows. It stays alone where these speak for that, and a way can compare.
    `own` is its own model where it has one from training: that is left as it is, so that nothing without noise is in it."""
    home = _home(parts, x, y, seed=seed)
    began = time.process_time()
    alone, adapted, spent = _both(home, parts.params, common, by=by, own=own)
    seconds = time.process_time() - began - spent
    stays = adapted.score is not None and alone.score is not None and alone.score < adapted.score + CUT
    adapted = alone if stays else adapted
    training(parts.model)
    first, second = (Personal(name, one.vector, one.chosen) for one in (alone, adapted))
    return Made(first, second, adapted.chosen, stays, seconds, spent)


def _home(parts: TrainingTask, x: torch.Tensor, y: torch.Tensor, *, seed: int) -> Home:
    experiment, device = parts.experiment, parts.theta.device
    spared = NOISED if experiment.privacy.noises_records else PLAIN
    rows = {"x": x.to(device), "y": y.to(device), "seed": seed, "learning_rate": experiment.train.learning_rate}
    return Home(
        parts.model,
        parts.theta,
        parts.losses,
        **rows,
        task=experiment.task.kind,
        work=trained_on(experiment.train, len(y)) // spared,
    )


def trained_on(train: TrainSection, rows: int) -> int:
    """Of how many rows a client of so many is asked for gradients in a run, each call counted as FEW at least."""
    rate = train.sampling_rate or min(1.0, train.batch / max(rows, 1))
    steps = math.ceil(train.local_epochs / rate) if train.local_epochs else train.steps
    return train.rounds * steps * max(FEW, round(rate * rows))


def _both(
    home: Home, before: torch.Tensor, common: torch.Tensor, *, by: PersonalSection, own: torch.Tensor | None
) -> tuple[Adapted, Adapted, float]:
    if home.layer is not None and own is None and by.strength is None and by.kind in ("mean-regularised", "shrinkage"):
        at_once = mean_regularised.adapt_both if by.kind == "mean-regularised" else shrinkage.adapt_both
        return *at_once(home, before, common), 0.0
    adapt, by_itself = ways(by)
    began = time.process_time()
    alone = by_itself(dataclasses_replace(home, work=SPARED * home.work), before)
    spent = time.process_time() - began
    return alone, Adapted(own, {"strength": by.strength}) if own is not None else adapt(home, common), spent


def tell(
    parts: TrainingTask,
    made: Made,
    common: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    names: Sequence[str],
    seed: int,
) -> Told:
    """What rows that the client never trained on say of its three models."""
    if not len(y):
        return Told({name: Judged(0, None) for name in names}, {})
    device, losses = parts.theta.device, dict[str, float]()

    def judge(which: str) -> Callable[[torch.Tensor], Answers]:
        def answers(vector: torch.Tensor) -> Answers:
            found, losses[which] = answers_to(parts, vector, x.to(device), y.to(device))
            return found

        return answers

    answers = {
        "alone": made.alone.judged(judge("alone")),
        "common": judge("common")(common),
        "own": made.own.judged(judge("own")),
    }
    return Told({name: judged(name, answers, seed=seed) for name in names}, losses)


def measured_by(parts: TrainingTask) -> list[str]:
    """The headline, and the log loss where the task has one: probabilities show what hits do not."""
    first = chosen(parts.experiment)
    return [first, *(name for name in ("log-loss",) if name in parts.task.metrics and name != first)]


def ways(personal: PersonalSection) -> tuple[Adapt, Adapt]:
    """How an own model is made of the common one, and, for `alone`, of the model before round 1, where no body is trained yet."""

    def held_to(home: Home, centre: torch.Tensor) -> Adapted:
        return mean_regularised.adapt(home, centre, strength=personal.strength)

    known: dict[str, Adapt] = {
        "alone": mean_regularised.adapt_alone,
        "finetune": mean_regularised.adapt_finetune,
        "mean-regularised": held_to,
        "shrinkage": shrinkage.adapt,
        "head": mean_regularised.adapt_head,
    }
    kind = personal.kind or "finetune"
    return known[kind], known[kind] if kind in ("finetune", "shrinkage") else mean_regularised.adapt


def one_class(parts: TrainingTask, y: torch.Tensor) -> bool:
    """Whether rows of a task that tells classes apart have one alone."""
    return parts.experiment.task.kind in ("classification", "binary") and len(y.unique()) < 2


def lines(metric: dict[str, Any], key: str, *, kind: str) -> tuple[str, str]:
    """What own models gave by one metric, for the terminal, with the paired differences."""
    if "own" not in metric:
        return f"{metrics.words(key)} at home", "not known: no client's own rows can tell"
    means = ", ".join(f"{name} {metric[name]['value']:.4f}" for name in MODELS)
    gaps = "; ".join(f"own - {name} {_gap(metric[f'own_less_{name}'])}" for name in ("alone", "common"))
    return f"{metrics.words(key)} at home ({kind})", f"{means}; {gaps}"


def _gap(one: dict[str, Any]) -> str:
    ends = one["interval"]
    return f"{one['value']:+.4f}" + (f" ({ends[0]:+.4f} to {ends[1]:+.4f})" if ends else "")
