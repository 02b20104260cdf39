"""`property`: have this client's rows a property that it keeps to itself? Melis et al. 2019 (arXiv:1805.04049, sec. 4.3), passive.
Whoever sees single updates knows the model of a round. It trains on public rows with the property and without it, learns to tell
the updates apart (a ridge classifier), and asks that about clients' updates. A record's epsilon does not promise to hide it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from rich.progress import Progress
from sklearn.linear_model import RidgeClassifierCV

from tacit import check
from tacit.data.dataset import Dataset
from tacit.data.population import Population, rows_digest
from tacit.engine import trainers
from tacit.engine.assemble import Parts, build
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.lab.attacks import Attack, Estimate, Finding, Line, Place, Plot
from tacit.lab.attacks import _roc as roc
from tacit.lab.attacks._runs import TRUSTED, clients_of, kept, pooled, updates_in, watched, whole, whole_update
from tacit.privacy.plan import kind_of
from tacit.random import seeded
from tacit.simulation import Heard
from tacit.types import Client, Message
from tacit.wire import digest_of, pack, unpack

GAMES = "tacit.lab.attacks.property:arranged"
FEWEST_CLIENTS = 2  # one with the property, and one without
PENALTIES = np.logspace(-3, 5, 9)
NO_UPDATES = "Nobody sees single updates in this experiment, only sums or parts of them: there is nothing to tell a property from."
Rows = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Wanted:
    """A property of single rows: a class among `classes`, or a `column` that has a `value`. Raises BadInput."""

    classes: tuple[str, ...] = ()
    column: str = ""
    value: str = ""

    def __post_init__(self) -> None:
        if bool(self.classes) == bool(self.column) or bool(self.column) != bool(self.value):
            raise BadInput("Say which rows have the property: --with classes=[0,1], or --with column=… --with value=….")

    def __str__(self) -> str:
        return f"{self.column} = {self.value}" if self.column else f"class {' or '.join(self.classes)}"

    def of(self, dataset: Dataset, x: torch.Tensor, y: torch.Tensor) -> np.ndarray:
        """Which rows have it. Raises BadInput for a class or a value that there is not."""
        if not self.column:
            if not dataset.classified:
                raise BadInput("The rows of this data have no classes: say a column and a value.")
            for name in self.classes:
                check.one_of(dataset.class_names, **{"with.classes": name})
            return np.isin(y.cpu().numpy(), [dataset.class_names.index(name) for name in self.classes])
        columns, first = dataset.encoder.columns if dataset.encoder else (), 0
        for column in columns:
            if column.name == self.column and column.known:
                check.one_of(column.known, **{"with.value": self.value})
                return x[:, first + column.known.index(self.value)].cpu().numpy() > 0.5
            first += column.width
        named = [column.name for column in columns if column.known]
        raise BadInput(
            f"Expected with.column to be a column of declared values ({check.listed(named) or 'this data has none'}); got"
            f" {self.column!r}.{check.nearest(self.column, named)}"
        )

    def refuse_trivial(self, having: np.ndarray, whose: str) -> None:
        """Raises BadInput where no row has it, or every row."""
        if having.all() or not having.any():
            none = "Every" if having.all() else "No"
            raise BadInput(f"{none} row of {whose} has the property {self}: name one that some have and others do not.")


@dataclass(frozen=True)
class arranged:
    """The rows of game `number` among those of the clients that the [data] table `of` describes."""

    of: dict[str, Any]
    number: int = 0
    classes: list[str] = field(default_factory=list)
    column: str = ""
    value: str = ""

    def load(self, *, seed: int, progress: Progress | None = None) -> Dataset:
        dataset, population = clients_of(self.of, seed, progress)
        having = Wanted(tuple(self.classes), self.column, self.value).of(dataset, population.x, population.y)
        return kept(dataset, population, dealt(population, having, seed=seed, number=self.number)[0])


def dealt(population: Population, having: np.ndarray, *, seed: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Which rows train in a game, and every client's coin: 1 with the property, 0 without, NaN where it cannot play.
    It cannot who has no row with the property, or none without it: all of its rows train, whatever the coin."""
    chance = seeded(seed)("attack", "property", number // 2).generator()
    masks, coins = [], np.full(len(population), np.nan)
    order = chance.permutation(len(population))
    for index in range(len(population)):
        own = having[int(population.offsets[index]) : int(population.offsets[index + 1])]
        mask, lacking = np.ones(len(own), bool), chance.permutation(np.flatnonzero(~own))
        if own.any() and not own.all():
            coins[index] = (order[index] + number) % 2  # half of the clients each way
            with_it = np.flatnonzero(own)[: len(lacking)]
            mask = ~own
            if coins[index]:
                mask[lacking[: len(with_it)]] = False
                mask[with_it] = True
        masks.append(mask)
    return np.concatenate(masks), coins


@dataclass(frozen=True)
class property(Attack):
    """Games, each a run in which a coin deals every client rows with the property or without it, and somebody watches."""

    classes: list[str | int] = field(default_factory=list)  # whose rows are the property; default: the first class
    column: str = ""  # or this column
    value: str = ""  # with this value
    models: int = 2  # games, each a run
    looks: int = 5  # rounds that are looked at in each
    auxiliary: int = 40  # updates of either kind that the attacker trains itself

    def __post_init__(self) -> None:
        if self.classes or self.column or self.value:
            self.wanted(())
        check.at_least(2, **{"with.models": self.models, "with.auxiliary": self.auxiliary})
        check.at_least(1, **{"with.looks": self.looks})

    def wanted(self, classes: Sequence[str]) -> Wanted:
        """The property: the first of the data's `classes` where nothing is said. Raises BadInput where it is said by half."""
        said = self.classes or self.column or self.value
        return Wanted(tuple(map(str, self.classes if said else classes[:1])), self.column, self.value)

    def perform(self, experiment: Experiment, place: Place) -> Finding:
        """Plays the games and asks. Raises BadInput for a property that no row or every row has, and where no updates are seen."""
        parts = build(whole(experiment))
        wanted = self.wanted(parts.dataset.class_names if parts.dataset.classified else ())
        public = _public(parts, wanted)
        having = wanted.of(parts.dataset, parts.population.x, parts.population.y)
        wanted.refuse_trivial(having, "the clients")
        rounds = np.unique(np.linspace(0, experiment.train.rounds - 1, self.looks).round().astype(int)).tolist()
        options = {"classes": list(wanted.classes), "column": wanted.column, "value": wanted.value}
        options = {key: value for key, value in options.items() if value}
        scores, coins = [], []
        for number in range(self.models):
            game = pooled(experiment, GAMES, number=number, **options)
            coin = dealt(parts.population, having, seed=experiment.run.seed, number=number)[1]
            if np.isfinite(coin).sum() < FEWEST_CLIENTS:
                raise BadInput(
                    f"Fewer than {FEWEST_CLIENTS} clients have rows with and without the property {wanted}: name another one, or"
                    ' deal the rows out in another way (data.partition = "iid").'
                )
            place.tell(f"game {number + 1} of {self.models}")
            coins.append(coin)
            scores.append(self._played(game, place, public, rounds, _sizes(parts.population, having, coin)))
        return _finding(experiment, wanted, rounds, np.stack(scores, axis=1), np.stack(coins))

    def _played(
        self, game: Experiment, place: Place, public: tuple[Rows, Rows], rounds: list[int], sizes: dict[int, int]
    ) -> np.ndarray:
        """The scores of one game, (look, client): a real run, which somebody watches. Raises BadInput where no updates are seen."""
        parts = build(game)

        def observe(round: int, broadcast: Message, heard: Heard) -> np.ndarray | None:
            if round not in rounds:
                return None
            sent = updates_in(heard, broadcast, parts.population.names)
            own = self._auxiliary(parts, public, sizes, broadcast, round) if sent else None
            if own is None:
                raise BadInput(NO_UPDATES)
            place.tell(f"round {round + 1}: {len(own)} updates of the attacker's own")
            scores = np.full(len(parts.population), np.nan)
            truth = np.arange(len(own)) % 2 == 1
            scores[list(sent)] = told_apart(own, truth, torch.stack(list(sent.values())).numpy())
            return scores

        seen = watched(game, place.folder / "games" / digest_of(game.toml(), repr(self)), observe)
        missing = np.full(len(parts.population), np.nan)  # a run whose budgets are spent ends before its last round
        return np.stack([seen.get(round, missing) for round in rounds])

    def _auxiliary(
        self, parts: Parts, public: tuple[Rows, Rows], sizes: dict[int, int], broadcast: Message, round: int
    ) -> np.ndarray | None:
        """The attacker's own updates, every second one with the property; None where clients send no whole update.
        Each is of a client with a victim's place and budget, so with its mechanism, and with other rows. Its name is its own:
        noise is keyed by it and by its rows, so that it shares none with anybody."""
        chance = seeded(parts.experiment.run.seed)("attack", "auxiliary", round).generator()
        victims, clients = list(sizes), []
        for number in range(2 * self.auxiliary):
            victim = victims[number // 2 % len(victims)]
            size, with_it = int(parts.population.sizes[victim]), sizes[victim] if number % 2 else 0
            rows = []
            for (x, y), count in zip(public, (with_it, size - with_it), strict=True):
                drawn = chance.choice(len(y), count, replace=count > len(y))
                rows.append((x[drawn], y[drawn]))
            x, y = (torch.cat(part) for part in zip(*rows, strict=True))
            own = parts.population[victim]
            clients.append(Client(own.index, f"auxiliary {number}", own.budget, x, y, rows_digest(x, y)))
        trainer = trainers.alone(parts, dict(enumerate(clients)))
        replies = (unpack(raw) for raw, _ in trainer(pack(broadcast), round, range(len(clients))))
        updates = [whole_update(message, broadcast) for message in replies]
        whole_ones = [update for update in updates if update is not None]
        return torch.stack(whole_ones).numpy() if len(whole_ones) == len(updates) else None


def _public(parts: Parts, wanted: Wanted) -> tuple[Rows, Rows]:
    """The public rows with the property, and those without it. Raises BadInput where there are none of either."""
    x, y = parts.test_rows
    if not len(y):
        raise BadInput("The attacker trains on public rows, and this data has no test rows: set data.test_share.")
    having = wanted.of(parts.dataset, x, y)
    wanted.refuse_trivial(having, "the public test set")
    return (x[having], y[having]), (x[~having], y[~having])


def _sizes(population: Population, having: np.ndarray, coins: np.ndarray) -> dict[int, int]:
    cuts = population.offsets
    own = {int(i): having[int(cuts[i]) : int(cuts[i + 1])] for i in np.flatnonzero(np.isfinite(coins))}
    return {index: int(min(rows.sum(), (~rows).sum())) for index, rows in own.items()}


def told_apart(own: np.ndarray, truth: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """How much each seen update looks like those with the property, in standard deviations of the attacker's own."""
    middle, scale = own.mean(0), own.std() or 1.0
    classifier = RidgeClassifierCV(PENALTIES * own.shape[1] / len(own)).fit((own - middle) / scale, truth)
    spread = classifier.decision_function((own - middle) / scale).std() or 1.0
    return classifier.decision_function((seen - middle) / scale) / spread


def _finding(
    experiment: Experiment, wanted: Wanted, rounds: list[int], scores: np.ndarray, coins: np.ndarray
) -> Finding:
    """Of scores (look, game, client) and coins (game, client)."""
    whose = np.broadcast_to(np.arange(coins.shape[1]), coins.shape)

    def judged(score: np.ndarray, of: str) -> Estimate | None:
        valid = np.isfinite(score) & np.isfinite(coins)
        truth = coins[valid] == 1
        if truth.all() or not truth.any():
            return None
        return roc.auc(roc.Scored.of(score[valid], truth, whose[valid]), of=of)

    with np.errstate(invalid="ignore"):
        mean = np.nansum(scores, axis=0) / np.isfinite(scores).sum(0)
    all_looks = judged(mean, "all looks")
    if all_looks is None:
        raise BadInput("Clients of both kinds took part in no round that was looked at: raise --with looks or models.")
    looks = {r + 1: judged(score, f"round {r + 1}") for r, score in zip(rounds, scores, strict=True)}
    by_round = {r: one for r, one in looks.items() if one is not None}
    band = roc.banded("found", list(by_round), list(by_round.values()))
    chance = Line(roc.CHANCE, (float(rounds[0] + 1), float(rounds[-1] + 1)), (0.5, 0.5))
    plot = Plot("rounds", f"Clients with {wanted} told apart", "round", "AUC", (band, chance))
    playing = int(np.isfinite(coins).sum())
    attacked = f"{playing} clients' updates, half of them with {wanted}; {experiment.privacy.kind} privacy"
    notes = (TRUSTED,) if kind_of(experiment).plans.traits.trusts_server else ()
    return Finding("property", experiment.name, attacked, (all_looks, *by_round.values()), (plot,), notes=notes)
