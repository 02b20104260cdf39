"""`property`: have this client's rows a property that nobody was told of? Melis et al. 2019 (arXiv:1805.04049, sec. 4.3), passive.

Whoever sees single updates knows the model of a round, and has public rows. It trains, as a client would, on public rows with the
property and on public rows without it, learns to tell the updates apart (a ridge classifier), and asks that about the updates of
clients. The property need not be what the model is trained for, and a record's epsilon does not promise to hide it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from sklearn.linear_model import RidgeClassifierCV

from tacit import check
from tacit.engine.assemble import Parts, build
from tacit.engine.trainers import Heard
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.lab.attacks import Attack, Estimate, Finding, Line, Place, Plot
from tacit.lab.attacks import _finding as roc
from tacit.lab.attacks._shadows import (
    GAMES,
    TRUSTED,
    Wanted,
    dealt,
    imitated,
    pooled,
    updates_of,
    watched,
    whole,
    whole_update,
)
from tacit.privacy.plan import kind_of
from tacit.random import seeded
from tacit.types import Message
from tacit.wire import digest_of

FEWEST_CLIENTS = 2  # one with the property, and one without
PENALTIES = np.logspace(-3, 5, 9)
NO_UPDATES = "Nobody sees single updates in this experiment, only sums or parts of them: there is nothing to tell a property from."


@dataclass(frozen=True)
class property(Attack):
    """`classes`, or a `column` and its `value`, are the property (the first class if left out); `models` games are played, each a
    run, and in each `looks` rounds are looked at with `auxiliary` updates of either kind."""

    classes: list[str | int] = field(
        default_factory=list
    )  # rows of these classes are the property; nothing: the first class
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

    def wanted(self, known: Sequence[str]) -> Wanted:
        """The property: the first of the `known` classes where nothing is said. Raises BadInput where it is said by half."""
        said = self.classes or self.column or self.value
        return Wanted(tuple(map(str, self.classes if said else known[:1])), self.column, self.value)

    def perform(self, experiment: Experiment, place: Place) -> Finding:
        """Plays the games and asks. Raises BadInput for a property that no row or every row has, and where no updates are seen."""
        parts = build(whole(experiment))
        wanted = self.wanted(parts.dataset.class_names if parts.dataset.classified else ())
        known = Public.of(parts, wanted)
        having = wanted.of(parts.dataset, parts.population.x, parts.population.y)
        wanted.refuse_trivial(having, "the clients")
        rounds = np.unique(np.linspace(0, experiment.train.rounds - 1, self.looks).round().astype(int)).tolist()
        said = {"classes": list(wanted.classes), "column": wanted.column, "value": wanted.value}
        said = {key: value for key, value in said.items() if value}
        scores, coins = [], []
        for number in range(self.models):
            game = pooled(experiment, GAMES, number=number, **said)
            _, coin = dealt(parts.population, having, seed=experiment.run.seed, number=number)
            if np.isfinite(coin).sum() < FEWEST_CLIENTS:
                raise BadInput(
                    f"Fewer than {FEWEST_CLIENTS} clients have rows with and without the property {wanted}: name another one, or"
                    ' deal the rows out in another way (data.partition = "iid").'
                )
            place.tell(f"game {number + 1} of {self.models}")
            coins.append(coin)
            scores.append(self._played(game, place, known, rounds, counted(parts, having, coin)))
        return _finding(experiment, wanted, rounds, np.stack(scores, axis=1), np.stack(coins))

    def _played(
        self, game: Experiment, place: Place, known: "Public", rounds: list[int], shares: dict[int, int]
    ) -> np.ndarray:
        """The scores of one game, (look, client): a real run, which somebody watches. Raises BadInput where no updates are seen."""
        parts = build(game)
        names = {name: index for index, name in enumerate(parts.population.names)}

        def observe(round: int, told: Message, heard: Heard) -> np.ndarray | None:
            if round not in rounds:
                return None
            sent = {names[m.sender]: u for _, m in heard if (u := whole_update(m, told)) is not None}
            made = self._made(parts, known, shares, told, round) if sent else None
            if made is None:
                raise BadInput(NO_UPDATES)
            place.tell(f"round {round + 1}: {len(made[1])} updates of the attacker's own")
            found = np.full(len(parts.population), np.nan)
            found[list(sent)] = told_apart(*made, torch.stack(list(sent.values())).numpy())
            return found

        seen = watched(game, place.folder / "games" / digest_of(game.toml(), repr(self)), observe)
        missing = np.full(len(parts.population), np.nan)  # a run whose budgets are spent ends before its last round
        return np.stack([seen.get(round, missing) for round in rounds])

    def _made(
        self, parts: Parts, known: "Public", shares: dict[int, int], told: Message, round: int
    ) -> tuple[np.ndarray, np.ndarray] | None:
        chance = seeded(parts.experiment.run.seed)("attack", "auxiliary", round).generator()
        victims, clients, truth = list(shares), [], np.arange(2 * self.auxiliary) % 2 == 1
        for number, having in enumerate(truth):
            victim = victims[number // 2 % len(victims)]
            size = int(parts.population.sizes[victim])
            x, y = known.drawn(chance, size, shares[victim] if having else 0)
            clients.append(imitated(parts, victim, x, y, number=number))
        updates = updates_of(parts, told, round, clients)
        return None if updates is None else (updates.numpy(), truth)


@dataclass(frozen=True, eq=False)
class Public:
    """The public rows of an attacker, with the property and without it: it trains clients of its own on them."""

    having: tuple[torch.Tensor, torch.Tensor]
    lacking: tuple[torch.Tensor, torch.Tensor]

    @classmethod
    def of(cls, parts: Parts, wanted: Wanted) -> "Public":
        """The experiment's test rows. Raises BadInput where there are none, or none with the property, or none without."""
        x, y = parts.test_rows
        if not len(y):
            raise BadInput("The attacker trains on public rows, and this data has no test rows: set data.test_share.")
        having = wanted.of(parts.dataset, x, y)
        wanted.refuse_trivial(having, "the public test set")
        return cls((x[having], y[having]), (x[~having], y[~having]))

    def drawn(self, chance: np.random.Generator, size: int, with_it: int) -> tuple[torch.Tensor, torch.Tensor]:
        """So many rows, of which some have the property; drawn again where there are not enough."""
        parts = []
        for (x, y), count in ((self.having, with_it), (self.lacking, size - with_it)):
            rows = chance.choice(len(y), count, replace=count > len(y))
            parts.append((x[rows], y[rows]))
        return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def counted(parts: Parts, having: np.ndarray, coins: np.ndarray) -> dict[int, int]:
    cuts = parts.population.offsets
    own = {int(i): having[int(cuts[i]) : int(cuts[i + 1])] for i in np.flatnonzero(np.isfinite(coins))}
    return {index: int(min(rows.sum(), (~rows).sum())) for index, rows in own.items()}


def told_apart(made: np.ndarray, truth: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """How much each seen update looks like those with the property, in standard deviations of the attacker's own."""
    middle, scale = made.mean(0), made.std() or 1.0
    classifier = RidgeClassifierCV(PENALTIES * made.shape[1] / len(made)).fit((made - middle) / scale, truth)
    spread = classifier.decision_function((made - middle) / scale).std() or 1.0
    return classifier.decision_function((seen - middle) / scale) / spread


def _finding(
    experiment: Experiment, wanted: Wanted, rounds: list[int], scores: np.ndarray, coins: np.ndarray
) -> Finding:
    """Of scores (look, game, client) and coins (game, client)."""
    whose = np.broadcast_to(np.arange(coins.shape[1]), coins.shape)

    def judged(score: np.ndarray, of: str) -> Estimate | None:
        known = np.isfinite(score) & np.isfinite(coins)
        truth = coins[known] == 1
        if truth.all() or not truth.any():
            return None
        return roc.auc(roc.Scored.of(score[known], truth, whose[known]), of=of)

    with np.errstate(invalid="ignore"):
        together = np.nansum(scores, axis=0) / np.isfinite(scores).sum(0)
    by_round = {r: found for r, score in zip(rounds, scores, strict=True) if (found := judged(score, f"round {r + 1}"))}
    all_looks = judged(together, "all looks")
    if all_looks is None:
        raise BadInput("Clients of both kinds took part in no round that was looked at: raise --with looks or models.")
    found = list(by_round.values())
    x, y = tuple(float(r + 1) for r in by_round), tuple(one.value for one in found)
    line = Line("found", x, y, tuple(one.low or 0.0 for one in found), tuple(one.high or 1.0 for one in found))
    chance = Line("chance", (float(rounds[0] + 1), float(rounds[-1] + 1)), (0.5, 0.5))
    plot = Plot("rounds", f"Clients with {wanted} told apart", "round", "AUC", (line, chance))
    playing = int(np.isfinite(coins).sum())
    attacked = f"{playing} clients' updates, half of them with {wanted}; {experiment.privacy.kind} privacy"
    notes = (TRUSTED,) if kind_of(experiment).plans.traits.trusts_server else ()
    return Finding("property", experiment.name, attacked, (all_looks, *found), (plot,), notes=notes)
