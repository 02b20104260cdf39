"""What a client, simulated or a site, makes of a global model for itself, and what its kept rows say of its three models; and the
same of every client of a simulation: for its researcher, from raw rows, covered by no epsilon."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from safetensors.torch import save
from torch import nn

from tacit import store
from tacit.engine.assemble import Parts, TrainingTask
from tacit.engine.evaluate import answers_to
from tacit.errors import Refused
from tacit.experiment.extras import PersonalSection
from tacit.experiment.training import TrainSection
from tacit.parts import metrics
from tacit.parts.metrics import RESAMPLES, Answers, middle
from tacit.personal import ways
from tacit.personal.home import FEW, Adapted, Home, refuse_headless
from tacit.personal.verdict import verdict
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
    is kept in is its owner's. Code on the client that copies what it is lent is stopped by no type.

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
        """What a judge on the client says of the model. Raises Refused for anything but a number or answers."""
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

    def __getattr__(self, name: str) -> NoReturn:
        """What packing, moving and measuring a message ask of its tensors. Raises Refused."""
        raise Refused(STAYS) if name in ("cpu", "to", "device", "dtype") else AttributeError(name)


# Several models on the same rows of the same clients: each one's mean, and their differences, row by row of a draw.

PAIRS = (("own", "alone"), ("own", "common"), ("common", "alone"))


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


SPARED = 8  # times the work of adapting: what a client that does not join can spend on its own model
CUT = 1.0  # by how much (log-likelihood) own rows have to speak for the common model: it may be useless, and alone is at hand
PLAIN, NOISED = 20, 8  # of training's rows, adapting reads one in so many: a plain step is 2/5 of a noised one
MODELS = ("alone", "common", "own")
ONE_CLASS = "all rows that it trains on are of one class, so that there is little to learn from them"


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


def refuse_unfit(kind: str | None, model: nn.Module, x: torch.Tensor) -> None:
    """Refuses an own model that this model or loss cannot have, before anybody pays. Raises BadInput."""
    if kind == "head":
        shaped = torch.zeros(2, *x.shape[1:], dtype=x.dtype, device=next(model.parameters()).device)
        refuse_headless(model, next(candidates(model, shaped, 2)))  # a refusal tells of no row
        training(model)


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
    experiment, device = parts.experiment, parts.theta.device
    work = trained_on(experiment.train, len(y)) // (NOISED if experiment.privacy.noises_records else PLAIN)
    model = (parts.model, parts.theta, parts.losses)
    home = Home(*model, x.to(device), y.to(device), seed=seed, task=experiment.task.kind, work=work)
    began = time.process_time()
    alone, adapted, spent = _both(home, parts.params, common, by=by, own=own)
    seconds = time.process_time() - began - spent
    stays = adapted.score is not None and alone.score is not None and alone.score < adapted.score + CUT
    adapted = alone if stays else adapted
    training(parts.model)
    first, second = (Personal(name, one.vector, one.chosen) for one in (alone, adapted))
    return Made(first, second, adapted.chosen, stays, seconds, spent)


def trained_on(train: TrainSection, rows: int) -> int:
    """Of how many rows a client of so many is asked for gradients in a run, each call counted as FEW at least."""
    rate = train.sampling_rate or min(1.0, train.batch / max(rows, 1))
    steps = math.ceil(train.local_epochs / rate) if train.local_epochs else train.steps
    return train.rounds * steps * max(FEW, round(rate * rows))


def _both(
    home: Home, before: torch.Tensor, common: torch.Tensor, *, by: PersonalSection, own: torch.Tensor | None
) -> tuple[Adapted, Adapted, float]:
    """What is made of the model before round 1 and of the common one, and the CPU seconds of the first where it is a control."""
    if home.layer is not None and own is None and by.strength is None and by.kind == "mean-regularised":
        return *ways.adapt_both(home, before, common), 0.0
    began = time.process_time()  # where no body is trained yet, a head alone is too little
    alone = ways.adapt(replace(home, work=SPARED * home.work), before)
    spent = time.process_time() - began
    if own is not None:
        return alone, Adapted(own, {"strength": by.strength}), spent
    if by.kind == "alone":
        return alone, Adapted(common, {}, home.unlikely(home.loss(common))), spent
    if by.kind == "head":
        return alone, ways.adapt_head(home, common), spent
    return alone, ways.adapt(home, common, strength=by.strength), spent


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
    """The headline, and of the task's own metrics those that each show what the others do not."""
    first = parts.metric
    return [
        first,
        *(name for name in ("accuracy", "auroc", "log-loss") if name in parts.task.metrics and name != first),
    ]


def advised(told: Told, parts: TrainingTask) -> dict[str, str]:
    """Which of the three to use, and why, by the headline; nothing where there are no rows to judge by."""
    if not told.losses:
        return {}
    by, higher = told.by[parts.metric], metrics.load(parts.metric).better == "higher"
    use, because = verdict(together([by]), told.losses, key=metrics.key(parts.metric), higher=higher, rows=by.rows)
    return {"use": use, "because": because}


def one_class(parts: TrainingTask, y: torch.Tensor) -> bool:
    """Whether rows of a task that tells classes apart have one alone."""
    return parts.experiment.task.kind in ("classification", "binary") and len(y.unique()) < 2


def lines(metric: dict[str, Any], key: str, *, kind: str) -> tuple[str, str]:
    """What own models gave by one metric, for the terminal, with the paired differences."""
    if "own" not in metric:
        return f"{metrics.words(key)} on the client", "not known: no client's own rows can tell"
    means = ", ".join(f"{name} {metric[name]['value']:.4f}" for name in MODELS)
    gaps = "; ".join(f"own - {name} {_gap(metric[f'own_less_{name}'])}" for name in ("alone", "common"))
    return f"{metrics.words(key)} on the client ({kind})", f"{means}; {gaps}"


def _gap(one: dict[str, Any]) -> str:
    ends = one["interval"]
    return f"{one['value']:+.4f}" + (f" ({ends[0]:+.4f} to {ends[1]:+.4f})" if ends else "")


# Every client of a simulation. All adapt, drawn in a round or not: what stays on the client tells nobody who took part.

NOT_COVERED = "From raw data: not covered by epsilon. On rows that each client kept for this and trained on never."
DRAWN = "every client adapts, whether it was drawn or not"  # else who adapted would tell who took part
MOST_NAMED = 8
SEEDS = 1_000_003  # a client's own draws are its own for every run.seed


def measured(
    parts: Parts, params: torch.Tensor, *, kept: torch.Tensor | None = None
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """What there is to say of own models, whole (personal.json) and in short (the summary); None where none are asked for.
    `kept` are the own models that clients have from training, a row each, where they keep some."""
    judges, personal = parts.population.held, parts.experiment.personal
    if personal.kind is None or judges is None:
        return None
    names, found, facts = measured_by(parts), list[dict[str, Judged]](), list[dict[str, Any]]()
    seconds = np.zeros(2)
    for index in range(len(parts.population)):
        client, seed = parts.population[index], parts.experiment.run.seed * SEEDS + index
        own = None if kept is None else kept[index]
        made = make(parts, params, client.x, client.y, by=personal, name=client.id, seed=seed, own=own)
        seconds += made.seconds, made.control
        judge = judges[index]
        told = tell(parts, made, params, judge.x, judge.y, names=names, seed=index)
        found.append(told.by)
        fact = {"client": client.id, "trained_on": client.size, "rows": judge.size, "chosen": made.chosen}
        facts.append(fact | {"from": made.beginning} | advised(told, parts))
    headline, during = metrics.key(names[0]), personal.during
    short: dict[str, Any] = {"note": NOT_COVERED, "kind": personal.kind, "metric": headline}
    short |= {"metrics": {metrics.key(name): together([told[name] for told in found]) for name in names}}
    short |= {
        "untold": [fact["client"] for fact, told in zip(facts, found, strict=True) if told[names[0]].values is None],
        "use": {model: sum(fact.get("use") == model for fact in facts) for model in MODELS},
        "stay_alone": sum(fact["from"] == "alone" for fact in facts),
        "adapt_seconds": float(seconds[0]),
        "alone_seconds": float(seconds[1]),
    }
    short |= {"when": "during", "promised": parts.plan.priced} if during else {}
    short |= {"adapts": DRAWN} if parts.plan.sampler.charges_all and parts.plan.sampler.rate < 1 else {}
    limits = [None if np.isinf(limit) else limit for limit in parts.population.epsilons.tolist()]
    clients = [
        fact | {"epsilon": limit, "metrics": {metrics.key(name): told[name].told() for name in names}}
        for fact, limit, told in zip(facts, limits, found, strict=True)
    ]
    return short | {"clients": clients}, short


def in_words(told: dict[str, Any]) -> list[tuple[str, str]]:
    """What own models gave, for the terminal: a line for each metric, with the differences, and one for who could not tell."""
    stay = f"; {told['stay_alone']} stay alone" if told["stay_alone"] else ""
    stay += f"; {told['adapts']}" if "adapts" in told else ""
    if "when" not in told:
        how = f"made on the client in {told['adapt_seconds']:.1f} s of CPU time{stay}; they have no epsilon: do not publish them"
    elif told["promised"]:
        how = f"trained in the rounds, each of what its client released: with the run's epsilon{stay}; alone has none"
    else:
        how = "trained in the rounds, of updates of which nothing is promised"
        how += f"{stay}; they have no epsilon: do not publish them"
    found = [lines(metric, key, kind=told["kind"]) for key, metric in told["metrics"].items()] + [("own models", how)]
    each = ", ".join(f"{model} for {count}" for model, count in told["use"].items() if count)
    found.append(("worth joining", f"by each client's own rows, the model to use is {each}"))
    if told["untold"]:
        some = ", ".join(told["untold"][:MOST_NAMED]) + (", ..." if len(told["untold"]) > MOST_NAMED else "")
        found.append(("not judged", f"{len(told['untold'])} clients (no own rows, or of one class): {some}"))
    return found
