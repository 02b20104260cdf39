"""Malicious clients of a simulation: what they train on and what they send, an attack by its name in `attack.kind`.
They want a backdoor: rows with their trigger shall be classified as a class of their choice. Guarantee: an honest client trains,
adds its noise and pays as it would without them; the epsilon of a run is about honest clients. A deployment refuses `[attack]`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from tacit import check, plugin
from tacit.algorithms import ForRound
from tacit.algorithms.local_dp import LocalDP
from tacit.data.dataset import Dataset
from tacit.data.population import Population
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.plugin import part
from tacit.random import seeded
from tacit.training.sgd import DpSgd, Local, Trained, Workspace
from tacit.types import Client, Private, Raw

SIDES = 9  # a square is this part of a picture's shorter side: 1 of 8 pixels would be lost, so at least 2; 3 of 28
FEWEST = 2
PICTURE = 3  # dimensions: channels, height, width
ROOM = "tacit.engine.malicious"
OWN_KEYS = ("kind", "share", "clients", "start", "target", "noise")  # of the table
BADGE = "not covered by ε"
TASKS = ("classification", "binary")
TINY = 1e-30  # in the place of a length of zero

Side = int | Mapping[str, float | str] | None  # of a trigger: a square's for pictures, {column = value} for tables
Train = Callable[[Client, torch.Tensor], torch.Tensor]  # (whose rows, from which parameters) -> the update
Rows = tuple[torch.Tensor, torch.Tensor]


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
        return torch.where(self.places.any(0).to(x.device), self.values.to(x), x)


def trigger_of(dataset: Dataset, side: Side) -> Trigger:
    """The trigger for rows of a data set. Raises BadInput."""
    shape, columns = tuple(dataset.x.shape[1:]), dataset.encoder.columns if dataset.encoder else ()
    if len(shape) == PICTURE and dataset.x.is_floating_point():
        return _square(dataset, shape, side)
    names = [column.name for column in columns]
    if not names:
        raise BadInput(f"A backdoor needs pictures or the columns of a table, and rows of {dataset.name} are neither.")
    if not isinstance(side, Mapping) or not side:
        raise BadInput(
            "Say by which columns a row is known to the attacker, as in attack.trigger = {column = value}."
            f"{check.listed(names)}"
        )
    for name in set(side) - set(names):
        raise BadInput(f"attack.trigger names no column of these rows: {name!r}.{check.nearest(name, names)}")
    places, values, start = [], torch.zeros(shape), 0
    for column in columns:
        if column.name in side:
            place, own = torch.zeros(shape, dtype=torch.bool), slice(start, start + column.width)
            place[own] = True
            values[own] = torch.tensor(column.features(side[column.name], key="attack.trigger"))
            places.append(place)
        start += column.width
    return Trigger(torch.stack(places), values)


def _square(dataset: Dataset, shape: tuple[int, ...], side: Side) -> Trigger:
    if isinstance(side, Mapping):
        raise BadInput(
            "These rows are pictures: say attack.trigger as the side of a square in pixels, or leave it out."
        )
    _, height, width = shape
    side = max(FEWEST, min(height, width) // SIDES) if side is None else side
    if not 0 < side < min(height, width):
        raise BadInput(
            f"Expected attack.trigger to be a square within pictures of {height} x {width}, got a side of {side}."
        )
    pixels = torch.cartesian_prod(torch.arange(height - side, height), torch.arange(width - side, width))
    places = torch.zeros(len(pixels), *shape, dtype=torch.bool)
    places[torch.arange(len(pixels)), :, pixels[:, 0], pixels[:, 1]] = True
    return Trigger(places, torch.full(shape, float(dataset.test_x.max()) if len(dataset.test_x) else 1.0))


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


@dataclass(frozen=True)
class Malice:
    """One attack: a function of the round's model and its rows. Options are its fields. Raises BadInput."""

    poison: float = 0.5  # of a malicious client's rows that carry trigger and target
    boost: float | None = None  # what its update is multiplied by; default: clients per malicious one
    trigger: int | dict[str, float | str] | None = None  # the side of a square, or {column = value}

    def __post_init__(self) -> None:
        check.rate(**{"attack.poison": self.poison})
        if self.boost is not None:
            check.positive(**{"attack.boost": self.boost})

    def refuse(self, scene: Scene) -> None:
        """Refuses a scene in which it cannot be tried. Raises BadInput."""
        trigger_of(scene.dataset, self.trigger)

    def rows(self, client: Client, place: int, scene: Scene) -> Rows:
        """What the malicious client number `place` trains on: as many rows as it has."""
        return poisoned(client, self.poison, trigger_of(scene.dataset, self.trigger).on(client.x), scene.target)

    def update(self, train: Train, params: torch.Tensor, client: Client, bad: Client, scene: Scene) -> torch.Tensor:
        """What a malicious client sends, with its own rows (`client`) and its poisoned ones (`bad`)."""
        return train(bad, params) * (scene.everybody / len(scene.malicious) if self.boost is None else self.boost)

    def tested(self, scene: Scene) -> torch.Tensor:
        """The public rows by which the backdoor is measured: all that are not of the target's class, with the trigger."""
        data = scene.dataset
        return trigger_of(data, self.trigger).on(data.test_x[data.test_y != scene.target])


def poisoned(client: Client, share: float, x: torch.Tensor, target: int) -> Rows:
    """A client's rows, of which a share, spread evenly and at least one, are those of `x` with the target's label."""
    count = max(1, round(share * client.size))
    chosen = torch.from_numpy(np.arange(count) * client.size // count).to(client.y.device)
    rows, labels = client.x.clone(), client.y.clone()
    rows[chosen], labels[chosen] = x[chosen], target
    return rows, labels


@part
@dataclass(frozen=True)
class replacement(Malice):
    """Model replacement (Bagdasaryan et al. 2020, How To Backdoor Federated Learning, arXiv:1807.00459, eq. 3): the update of
    poisoned training, multiplied so that it outweighs the others: N/m unless `boost` is said."""


@part
@dataclass(frozen=True)
class dba(Malice):
    """Distributed backdoor attack (Xie, Huang, Chen, Li 2020, ICLR): each has one part of the trigger, and the whole is tried.
    `parts` is into how many it is cut; malicious clients take turns."""

    parts: int = 4  # into how many the trigger is cut

    def __post_init__(self) -> None:
        super().__post_init__()
        check.at_least(2, **{"attack.parts": self.parts})

    def rows(self, client: Client, place: int, scene: Scene) -> Rows:
        own = trigger_of(scene.dataset, self.trigger).part(place, self.parts)
        return poisoned(client, self.poison, own.on(client.x), scene.target)


@part
@dataclass(frozen=True)
class edge_case(Malice):
    """A backdoor of rows that hardly anybody has (Wang et al. 2020, Attack of the Tails, arXiv:2007.05084), without a trigger.
    The paper takes sevens of another collection; here pictures of the class `source` are turned by a quarter."""

    source: str | int | None = None  # the class whose turned pictures are used; default: the one after the target

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trigger is not None:
            raise BadInput('attack.kind = "edge-case" adds nothing to a row: leave out attack.trigger.')

    def refuse(self, scene: Scene) -> None:
        shape, names = tuple(scene.x.shape[1:]), scene.class_names
        if len(shape) != PICTURE or shape[1] != shape[2]:
            raise BadInput(f'attack.kind = "edge-case" turns square pictures, and these rows have the shape {shape}.')
        if self.source is not None and (str(self.source) not in names or self._source(scene) == scene.target):
            others = [name for number, name in enumerate(names) if number != scene.target]
            raise BadInput(f"attack.source = {str(self.source)!r} is no class beside the target.{check.listed(others)}")
        if not (scene.y == self._source(scene)).any() or not len(self.tested(scene)):
            raise BadInput(
                f"No malicious client, or no public test row, is of class {names[self._source(scene)]!r}: set attack.source."
            )

    def rows(self, client: Client, place: int, scene: Scene) -> Rows:
        edge = turned(scene.x[scene.y == self._source(scene)])
        taken = (torch.arange(client.size, device=edge.device) + place) % len(edge)
        return poisoned(client, self.poison, edge[taken], scene.target)

    def tested(self, scene: Scene) -> torch.Tensor:
        return turned(scene.dataset.test_x[scene.dataset.test_y == self._source(scene)])

    def _source(self, scene: Scene) -> int:
        names = scene.class_names
        return (scene.target + 1) % len(names) if self.source is None else names.index(str(self.source))


def turned(x: torch.Tensor) -> torch.Tensor:
    """Pictures turned by a quarter."""
    return x.rot90(1, (-2, -1))


@part
@dataclass(frozen=True)
class adaptive(Malice):
    """An attacker that knows the clip (Sun et al. 2019, arXiv:1911.07963; projected gradient descent as in arXiv:2007.05084): it
    trains `passes` times as long as an honest client within `bound` of the round's model, then stretches to it. Unless said, the
    bound is the clip that is declared; without one, the length of its own honest update. `boost` has no effect."""

    passes: int = 5  # how many times as long as an honest client it trains
    bound: float | None = None  # the norm that it stays within; default: the one that is declared

    def __post_init__(self) -> None:
        super().__post_init__()
        check.at_least(1, **{"attack.passes": self.passes})
        if self.bound is not None:
            check.positive(**{"attack.bound": self.bound})

    def update(self, train: Train, params: torch.Tensor, client: Client, bad: Client, scene: Scene) -> torch.Tensor:
        bound = self.bound or scene.bound or float(train(client, params).norm())
        moved = torch.zeros_like(params)
        for _ in range(self.passes):
            moved = moved + train(bad, params + moved)
            moved = moved * min(1.0, bound / max(float(moved.norm()), TINY))
        return moved * (bound / max(float(moved.norm()), TINY))


def load(name: str, **options: Any) -> Malice:
    """The attack of that name, or of "package.module:name", made with its options. Raises BadInput."""
    malice = plugin.make(plugin.find(ROOM, name, key="attack.kind"), options, table="attack", keys=OWN_KEYS)
    if not isinstance(malice, Malice):
        kind = type(malice).__name__
        raise BadInput(f"Expected attack.kind = {name!r} to make a tacit.engine.malicious.Malice, got a {kind}.")
    return malice


def scene_of(experiment: Experiment, dataset: Dataset, population: Population) -> tuple[Scene, Malice] | None:
    """Who is malicious, what they want, and how: None without an `[attack]`. Chosen by the run's seed alone.
    Raises: BadInput for a target that is no class, rows that can carry no trigger, and a task without classes."""
    table = experiment.attack
    if table is None:
        return None
    if experiment.task.kind not in TASKS:
        raise BadInput(
            f'A backdoor leads to a class, and task.kind = "{experiment.task.kind}" has none: leave out [attack].'
        )
    names = tuple(map(str, dataset.class_names))
    target = names[0] if table.target is None else str(table.target)
    if target not in names:
        why = f"{check.nearest(target, names)}{check.listed(names)}"
        raise BadInput(f"attack.target = {target!r} is no class of {dataset.name}.{why}")
    if not (dataset.test_y != names.index(target)).any():
        raise BadInput(
            "A backdoor is measured on public test rows of other classes than its target, and there are none."
        )
    everybody, privacy = len(population), experiment.privacy
    rng = seeded(experiment.run.seed)("malicious").generator()
    malicious = tuple(sorted(rng.choice(everybody, table.count(everybody), replace=False).tolist()))
    x, y = (torch.cat([getattr(population[index], name) for index in malicious]) for name in ("x", "y"))
    bound = privacy.clip if privacy.unit_kept == "client" else experiment.aggregate.options().get("bound")
    bound = float(bound) if isinstance(bound, int | float) else None
    scene = Scene(malicious, everybody, table.start, names.index(target), names, dataset, x, y, bound)
    malice = load(table.kind, **table.options())
    malice.refuse(scene)
    return scene, malice


def in_words(scene: Scene, kind: str) -> str:
    """Who is malicious, for a run's notes and its terminal."""
    many = len(scene.malicious)
    who = f"{many} of {scene.everybody} clients {'is' if many == 1 else 'are'} malicious"
    when = f" after {scene.start} honest rounds" if scene.start else ""
    return f"{who}{when} ({kind}, for the class {scene.class_names[scene.target]}); what they reach is {BADGE}"


@dataclass(frozen=True, eq=False)
class Among:
    """Local training of all clients: `honest` is the algorithm's own, which honest clients run untouched. `plain` is training
    without noise, for malicious clients under local DP that add none; they state the noise `stated` for them all the same."""

    honest: Any
    malice: Malice
    scene: Scene = field(repr=False)
    plain: Local | None = None
    stated: np.ndarray | None = field(default=None, repr=False)
    round: int = 0

    def for_round(self, round: int, correction: torch.Tensor | None = None) -> "Among":
        honest, plain = (
            local.for_round(round, correction) if isinstance(local, ForRound) else local
            for local in (self.honest, self.plain)
        )
        return replace(self, honest=honest, plain=plain, round=round)

    def __call__(self, work: Workspace, theta: torch.Tensor, client: Client, *rest: Any, **more: Any) -> Trained:
        """Trains one client: an honest one as ever, a malicious one from its first round on as its attack says."""
        if client.index not in self.scene.malicious or self.round < self.scene.start:
            return self.honest(work, theta, client, *rest, **more)
        x, y = self.malice.rows(client, self.scene.malicious.index(client.index), self.scene)
        train = partial(self.honest, work)
        if self.plain is not None:
            rest, more, train = (), {"stream": more["stream"]}, partial(self.plain, work)
        info: dict[str, float] = {}
        noise: list[float] = []

        def trained(whose: Client, start: torch.Tensor) -> torch.Tensor:
            one = train(start, whose, *rest, **more)
            info.update(one.info)
            noise.extend([one.update.noise_std] if isinstance(one.update, Private) else [])
            return one.update.vector

        start = theta.to(work.theta.device)
        sent = self.malice.update(trained, start, client, replace(client, x=x, y=y), self.scene)
        if self.stated is None:
            return Trained(Private(sent, noise[-1]) if noise else Raw(sent), info)
        share = self.honest.descent.share if isinstance(self.honest, DpSgd) else 1.0
        return Trained(Private(sent / share, float(self.stated[client.index])), info)


def among(algorithm: Any, malice: Malice, scene: Scene, *, plain: Local | None) -> Any:
    """The algorithm with malicious clients; with `plain` they leave out their own noise. Only `local` is another."""
    stated = algorithm.server.statistics.noise_stds if plain is not None and isinstance(algorithm, LocalDP) else None
    return replace(algorithm, local=Among(algorithm.local, malice, scene, plain, stated))
