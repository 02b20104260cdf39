"""One client at home: what it makes of a common model, and what rows that it kept say of alone, common and own.

The same for a client of a simulation and for a deployed site: `everybody` calls it for each client, a site for itself.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from tacit import metrics
from tacit.engine.evaluate import Judging, answers_to
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.experiment.personal import PersonalSection
from tacit.metrics import Answers
from tacit.personal import finetune, head, mean_regularised, shrinkage
from tacit.personal.home import Adapted, Home
from tacit.personal.own import Personal
from tacit.personal.paired import Judged, judged
from tacit.tasks import chosen
from tacit.train.frozen import training

LIKELY = {"classification": "cross-entropy", "binary": "binary-cross-entropy", "regression": "squared"}
MODELS = ("alone", "common", "own")
ONE_CLASS = "all rows that it trains on are of one class, so that at home there is little to learn from them"

Adapt = Callable[[Home, torch.Tensor], Adapted]


class Beginning(Judging, Protocol):
    """A model that can be judged, and the parameters that it had before round 0."""

    @property
    def params(self) -> torch.Tensor: ...


@dataclass(frozen=True, eq=False)
class Made:
    """A client's own models, how the second was chosen, whether it stays alone, and how long it took to make both."""

    alone: Personal
    own: Personal
    chosen: dict[str, float | None]
    stays: bool
    seconds: float

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
        head.refuse(model, x)
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
) -> Made:
    """The client's models, of its training rows. It stays alone where these speak for that, and a way can compare."""
    experiment, device = parts.experiment, parts.theta.device
    rows = {"x": x.to(device), "y": y.to(device), "seed": seed, "learning_rate": experiment.train.learning_rate}
    home = Home(parts.model, parts.theta, parts.losses, **rows, task=experiment.task.kind)
    adapt, by_itself = ways(by)
    began = time.perf_counter()
    alone, own = by_itself(home, parts.params), adapt(home, common)
    seconds = time.perf_counter() - began
    stays = own.score is not None and alone.score is not None and alone.score < own.score
    own = alone if stays else own
    kept = {which: Personal(name, one.vector, one.chosen) for which, one in (("alone", alone), ("own", own))}
    training(parts.model)
    return Made(kept["alone"], kept["own"], own.chosen, stays, seconds)


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
    """How an own model is made of the common one, and, for `alone`, of the model before round 0, where no body is trained yet."""

    def held_to(home: Home, centre: torch.Tensor) -> Adapted:
        return mean_regularised.adapt(home, centre, strength=personal.strength)

    known: dict[str, Adapt] = {
        "finetune": finetune.adapt,
        "mean-regularised": held_to,
        "shrinkage": shrinkage.adapt,
        "head": head.adapt,
    }
    alone = finetune.adapt if personal.kind == "head" else mean_regularised.adapt
    kind = personal.kind or "finetune"
    return known[kind], known[kind] if kind in ("finetune", "shrinkage") else alone


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
