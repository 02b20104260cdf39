"""One client at home: what it makes of a common model, and what rows that it kept say of alone, common and own.

The same for a client of a simulation and for a deployed site: `everybody` calls it for each client, a site for itself.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import nn

from tacit import metrics
from tacit.engine.evaluate import Judging, answers_to
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.experiment.personal import PersonalSection
from tacit.experiment.training import TrainSection
from tacit.metrics import Answers
from tacit.personal import alone as control
from tacit.personal import finetune, head, last, mean_regularised, shrinkage
from tacit.personal.home import FEW, Adapted, Home
from tacit.personal.own import Personal
from tacit.personal.paired import Judged, judged
from tacit.tasks import chosen
from tacit.train.frozen import training

LIKELY = {"classification": "cross-entropy", "binary": "binary-cross-entropy", "regression": "squared"}
SPARED = 8  # times the work of adapting: what a client that does not join can spend on its own model
CUT = 1.0  # by how much (log-likelihood) own rows have to speak for the common model: it may be useless, and alone is at hand
PLAIN, NOISED = 20, 8  # of training's rows, adapting reads one in so many: a plain step is 2/5 of a noised one
MODELS = ("alone", "common", "own")
ONE_CLASS = "all rows that it trains on are of one class, so that at home there is little to learn from them"

Adapt = Callable[[Home, torch.Tensor], Adapted]


class Beginning(Judging, Protocol):
    """A model that can be judged, and the parameters that it had before the first round."""

    @property
    def params(self) -> torch.Tensor:
        """The parameters before round 0."""
        ...


@dataclass(frozen=True, eq=False)
class Made:
    """A client's own models, how the second was chosen, whether it stays alone, and the CPU seconds that it took.

    `seconds` are of adapting, and of `alone` too where one path gives both; where not, `control` are those of `alone`.
    """

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
        last.refuse(model, x)
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
    parts: Beginning,
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

    `own` is its own model where it has one from training: that is left as it is, so that nothing without noise is in it.
    """
    home = _home(parts, x, y, seed=seed)
    began = time.process_time()
    alone, adapted, spent = _both(home, parts.params, common, by=by, own=own)
    seconds = time.process_time() - began - spent
    stays = adapted.score is not None and alone.score is not None and alone.score < adapted.score + CUT
    adapted = alone if stays else adapted
    training(parts.model)
    first, second = (Personal(name, one.vector, one.chosen) for one in (alone, adapted))
    return Made(first, second, adapted.chosen, stays, seconds, spent)


def _home(parts: Beginning, x: torch.Tensor, y: torch.Tensor, *, seed: int) -> Home:
    """The client with its rows, and work for a tenth of the time that its training took."""
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
    """Alone and own, and the CPU seconds of alone where it is made by itself: with all the work that staying at home spares."""
    if home.layer is not None and own is None and by.strength is None and by.kind in ("mean-regularised", "shrinkage"):
        at_once = mean_regularised.adapt_both if by.kind == "mean-regularised" else shrinkage.adapt_both
        return *at_once(home, before, common), 0.0
    adapt, by_itself = ways(by)
    began = time.process_time()
    alone = by_itself(replace(home, work=SPARED * home.work), before)
    spent = time.process_time() - began
    return alone, Adapted(own, {"strength": by.strength}) if own is not None else adapt(home, common), spent


def tell(
    parts: Judging,
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


def measured_by(parts: Judging) -> list[str]:
    """The headline, and the log loss where the task has one: probabilities show what hits do not."""
    first = chosen(parts.experiment)
    return [first, *(name for name in ("log-loss",) if name in parts.task.metrics and name != first)]


def ways(personal: PersonalSection) -> tuple[Adapt, Adapt]:
    """How an own model is made of the common one, and, for `alone`, of the model before round 1, where no body is trained yet."""

    def held_to(home: Home, centre: torch.Tensor) -> Adapted:
        return mean_regularised.adapt(home, centre, strength=personal.strength)

    known: dict[str, Adapt] = {
        "alone": control.adapt,
        "finetune": finetune.adapt,
        "mean-regularised": held_to,
        "shrinkage": shrinkage.adapt,
        "head": head.adapt,
    }
    kind = personal.kind or "finetune"
    return known[kind], known[kind] if kind in ("finetune", "shrinkage") else mean_regularised.adapt


def one_class(parts: Judging, y: torch.Tensor) -> bool:
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
