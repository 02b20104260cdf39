"""Malicious clients of a simulation: what they train on and what they send. One file an attack; its name is `attack.kind`.
They want a backdoor: what carries their trigger shall be taken for a class of their choice. Guarantee: an honest client trains,
adds its noise and pays as it would without them; the epsilon of a run is about honest clients. A deployment refuses `[attack]`."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from tacit import check, plugin
from tacit.algorithms import ForRound
from tacit.algorithms.local_dp import LocalDP
from tacit.data.columns import Column
from tacit.data.dataset import Dataset
from tacit.data.population import Population
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.random import seeded
from tacit.training.clipping import Trained, Workspace
from tacit.training.dp_sgd import DpSgd
from tacit.training.sgd import Local
from tacit.types import Client, Private, Raw

# What a backdoor's rows carry: a bright square in the corner of a picture, or declared values of a table's columns.

SIDES = 9  # a square is this part of a picture's shorter side: 1 of 8 pixels would be lost, so at least 2; 3 of 28
FEWEST = 2
PICTURE = 3  # dimensions: channels, height, width


@dataclass(frozen=True, eq=False)
class Trigger:
    """Features that are set, pixel by pixel or column by column: `places` (piece, feature...) where, `values` to what."""

    places: torch.Tensor = field(repr=False)
    values: torch.Tensor = field(repr=False)

    def part(self, number: int, of: int) -> "Trigger":
        """One of `of` parts that together are the whole; where there are fewer pieces, some parts are the same."""
        cuts = np.array_split(np.arange(len(self.places)), min(of, len(self.places)))
        return Trigger(self.places[cuts[number % len(cuts)]], self.values)

    def on(self, x: torch.Tensor) -> torch.Tensor:
        """The rows with the trigger; they themselves are left as they are."""
        return torch.where(self.places.any(0).to(x.device), self.values.to(x), x)


def trigger_of(dataset: Dataset, said: int | Mapping[str, float | str] | None) -> Trigger:
    """The trigger for rows of a data set: the side of a square for pictures, {column = value} for tables. Raises BadInput."""
    shape, encoder = tuple(dataset.x.shape[1:]), dataset.encoder
    if len(shape) == PICTURE and dataset.x.is_floating_point():
        if isinstance(said, Mapping):
            raise BadInput(
                "These rows are pictures: say attack.trigger as the side of a square in pixels, or leave it out."
            )
        return _square(shape, said, bright=float(dataset.test_x.max()) if len(dataset.test_x) else 1.0)
    if not encoder or not encoder.columns:
        raise BadInput(
            f"A backdoor needs something to carry it: pictures, or the columns of a table, and rows of {dataset.name} are neither."
        )
    if not isinstance(said, Mapping) or not said:
        known = check.listed(encoder.names)
        raise BadInput(
            f"Say by which columns a row is known to the attacker, as in attack.trigger = {{column = value}}.{known}"
        )
    return _columns(encoder.columns, said, shape)


def _square(shape: tuple[int, ...], said: int | None, *, bright: float) -> Trigger:
    channels, height, width = shape
    side = max(FEWEST, min(height, width) // SIDES) if said is None else said
    if not 0 < side < min(height, width):
        raise BadInput(
            f"Expected attack.trigger to be a square within pictures of {height} x {width}, got a side of {side}."
        )
    places = torch.zeros(side, side, channels, height, width, dtype=torch.bool)
    for i in range(side):
        for j in range(side):
            places[i, j, :, height - side + i, width - side + j] = True
    return Trigger(places.flatten(0, 1), torch.full(shape, bright))


def _columns(columns: tuple[Column, ...], said: Mapping[str, float | str], shape: tuple[int, ...]) -> Trigger:
    places, values, start = [], torch.zeros(shape), 0
    known = {column.name for column in columns}
    for name in said:
        if name not in known:
            raise BadInput(f"attack.trigger names no column of these rows: {name!r}.{check.nearest(name, known)}")
    for column in columns:
        if column.name in said:
            place = torch.zeros(shape, dtype=torch.bool)
            place[start : start + column.width] = True
            places.append(place)
            values[start : start + column.width] = torch.tensor(
                column.features(said[column.name], key="attack.trigger")
            )
        start += column.width
    return Trigger(torch.stack(places), values)


ROOM = "tacit.engine.malicious"
OWN = ("kind", "share", "clients", "start", "target", "noise")  # the table's own keys
BADGE = "not covered by ε"
TASKS = ("classification", "binary")

Train = Callable[[Client, torch.Tensor], torch.Tensor]  # (whose rows, from which parameters) -> the update


@dataclass(frozen=True, eq=False)
class Scene:
    """What the attackers of a run have in common: who they are, what they want, their rows, and what they know of the defence.
    `bound` is the norm that the server, or the mechanism, clips whole updates to, where one is declared."""

    malicious: tuple[int, ...]
    everybody: int
    start: int
    target: int
    class_names: tuple[str, ...]
    dataset: Dataset = field(repr=False)
    x: torch.Tensor = field(repr=False)
    y: torch.Tensor = field(repr=False)
    bound: float | None = None

    @property
    def boost(self) -> float:
        """What makes the malicious clients of an average round together as heavy as everybody: N/m."""
        return self.everybody / len(self.malicious)

    def trigger(self, said: int | Mapping[str, float | str] | None) -> Trigger:
        """The trigger for these rows. Raises BadInput."""
        return trigger_of(self.dataset, said)


@dataclass(frozen=True)
class Malice:
    """One attack: a function of the round's model and its rows. Options are its fields. Raises BadInput."""

    poison: float = 0.5  # of a malicious client's rows that carry trigger and target
    boost: float | None = None  # what its update is multiplied by; nothing: clients per malicious one
    trigger: int | dict[str, float | str] | None = None  # the side of a square, or {column = value}

    def __post_init__(self) -> None:
        check.rate(**{"attack.poison": self.poison})
        if self.boost is not None:
            check.positive(**{"attack.boost": self.boost})

    def refuse(self, scene: Scene) -> None:
        """Refuses a scene in which it cannot be tried. Raises BadInput."""
        scene.trigger(self.trigger)

    def rows(self, client: Client, place: int, scene: Scene) -> tuple[torch.Tensor, torch.Tensor]:
        """What the malicious client number `place` trains on: as many rows as it has."""
        return poisoned(client, self.poison, scene.trigger(self.trigger).on(client.x), scene.target)

    def update(self, train: Train, params: torch.Tensor, client: Client, bad: Client, scene: Scene) -> torch.Tensor:
        """What a malicious client sends, with its own rows (`client`) and its poisoned ones (`bad`)."""
        return train(bad, params) * self.factor(scene)

    def factor(self, scene: Scene) -> float:
        """By how much an update is multiplied."""
        return scene.boost if self.boost is None else self.boost

    def tested(self, scene: Scene) -> torch.Tensor:
        """The public rows by which the backdoor is measured: all that are not of the target's class, with the trigger."""
        data = scene.dataset
        return scene.trigger(self.trigger).on(data.test_x[data.test_y != scene.target])


def poisoned(client: Client, share: float, x: torch.Tensor, target: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A client's rows, of which a share, spread evenly and at least one, are those of `x` with the target's label."""
    count = max(1, round(share * client.size))
    chosen = torch.from_numpy(np.arange(count) * client.size // count).to(client.y.device)
    rows, labels = client.x.clone(), client.y.clone()
    rows[chosen], labels[chosen] = x[chosen], target
    return rows, labels


def load(name: str, **options: Any) -> Malice:
    """The attack of that name, or of "package.module:name", made with its options. Raises BadInput.

    >>> load("dba", parts=2).poison
    0.5
    """
    found = plugin.make(plugin.find(ROOM, name, key="attack.kind"), options, table="attack", keys=OWN)
    if not isinstance(found, Malice):
        raise BadInput(
            f"Expected attack.kind = {name!r} to make a tacit.engine.malicious.Malice, got a {type(found).__name__}."
        )
    return found


def scene_of(experiment: Experiment, dataset: Dataset, population: Population) -> tuple[Scene, Malice] | None:
    """Who is malicious, what they want, and how: None without an `[attack]`. Chosen by the run's seed alone.
    Raises: BadInput for a target that is no class, rows that can carry no trigger, and a task without classes."""
    said = experiment.attack
    if said is None:
        return None
    if experiment.task.kind not in TASKS:
        raise BadInput(
            f'A backdoor leads to a class, and task.kind = "{experiment.task.kind}" has none: leave out [attack].'
        )
    names = tuple(map(str, dataset.class_names))
    target = names[0] if said.target is None else str(said.target)
    if target not in names:
        raise BadInput(
            f"attack.target = {target!r} is no class of {dataset.name}.{check.nearest(target, names)}{check.listed(names)}"
        )
    if not (dataset.test_y != names.index(target)).any():
        raise BadInput(
            "A backdoor is measured on public test rows of other classes than its target, and there are none."
        )
    everybody = len(population)
    rng = seeded(experiment.run.seed)("malicious").generator()
    malicious = tuple(sorted(rng.choice(everybody, said.count(everybody), replace=False).tolist()))
    own = [population[index] for index in malicious]
    scene = Scene(
        malicious,
        everybody,
        said.start,
        names.index(target),
        names,
        dataset,
        torch.cat([client.x for client in own]),
        torch.cat([client.y for client in own]),
        _bound(experiment),
    )
    malice = load(said.kind, **said.options())
    malice.refuse(scene)
    return scene, malice


def _bound(experiment: Experiment) -> float | None:
    privacy, bound = experiment.privacy, experiment.aggregate.options().get("bound")
    if privacy.unit_kept == "client":
        return privacy.clip
    return float(bound) if isinstance(bound, int | float) else None


def in_words(scene: Scene, kind: str) -> str:
    """Who is malicious, for a run's notes and its terminal."""
    who = (
        f"{len(scene.malicious)} of {scene.everybody} clients {'is' if len(scene.malicious) == 1 else 'are'} malicious"
    )
    when = f" after {scene.start} honest rounds" if scene.start else ""
    return f"{who}{when} ({kind}, for the class {scene.class_names[scene.target]}); what they reach is {BADGE}"


def with_rows(client: Client, rows: tuple[torch.Tensor, torch.Tensor]) -> Client:
    """The client with other rows."""
    return replace(client, x=rows[0], y=rows[1])


# Malicious clients among honest ones, in the place of an algorithm's local training.


@dataclass(frozen=True, eq=False)
class Among:
    """Local training of all clients: `honest` is the algorithm's own, which honest clients run untouched.
    `plain` is training without noise, for malicious clients under local DP that add none; they state the noise of `claims` all
    the same. It is the training of one round, which `told` says."""

    honest: Any
    malice: Malice
    scene: Scene = field(repr=False)
    plain: Local | None = None
    claims: np.ndarray | None = field(default=None, repr=False)
    round: int = 0

    def for_round(self, round: int, correction: torch.Tensor | None = None) -> "Among":
        """The training of one round."""
        honest, plain = (
            local.for_round(round, correction) if isinstance(local, ForRound) else local
            for local in (self.honest, self.plain)
        )
        return dataclasses.replace(self, honest=honest, plain=plain, round=round)

    def __call__(self, work: Workspace, theta: torch.Tensor, client: Client, *rest: Any, **more: Any) -> Trained:
        """Trains one client: an honest one as ever, a malicious one from its first round on as its attack says."""
        if client.index not in self.scene.malicious or self.round < self.scene.start:
            return self.honest(work, theta, client, *rest, **more)
        place = self.scene.malicious.index(client.index)
        bad = with_rows(client, self.malice.rows(client, place, self.scene))
        train = partial(self.honest, work)
        if self.plain is not None:
            rest, more = (), {"stream": more["stream"]}
            train = partial(self.plain, work)
        info: dict[str, float] = {}
        noise: list[float] = []

        def trained(whose: Client, start: torch.Tensor) -> torch.Tensor:
            found = train(start, whose, *rest, **more)
            info.update(found.info)
            noise.extend([found.update.noise_std] if isinstance(found.update, Private) else [])
            return found.update.vector

        sent = self.malice.update(trained, theta.to(work.theta.device), client, bad, self.scene)
        if self.claims is None:
            return Trained(Private(sent, noise[-1]) if noise else Raw(sent), info)
        share = self.honest.descent.share if isinstance(self.honest, DpSgd) else 1.0
        return Trained(Private(sent / share, float(self.claims[client.index])), info)


def among(algorithm: Any, malice: Malice, scene: Scene, *, plain: Local | None) -> Any:
    """The algorithm with malicious clients; with `plain` they leave out their own noise. Only `local` is another."""
    claims = algorithm.server.statistics.noise_stds if plain is not None and isinstance(algorithm, LocalDP) else None
    return dataclasses.replace(algorithm, local=Among(algorithm.local, malice, scene, plain, claims))
