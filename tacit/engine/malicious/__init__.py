"""Malicious clients of a simulation: what they train on and what they send. One file an attack; its name is `attack.kind`.

They want a backdoor: what carries their trigger shall be taken for a class of their choice, while the model stays good otherwise.
They go through the loop like everybody: asked, charged, and on a trusted server clipped. Guarantee: an honest client trains, adds
its noise and pays as it would without them; the epsilon of a run is about honest clients, and what malicious ones send is the
adversary's own. In a deployment nobody is malicious on purpose: there an `[attack]` is refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from tacit import check, plugin
from tacit.data.dataset import Dataset
from tacit.data.population import Population
from tacit.engine.malicious._trigger import Trigger, trigger_of
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.random import seeded
from tacit.types import Client

ROOM = "tacit.engine.malicious"
OWN = ("kind", "share", "clients", "start", "target", "noise")  # the table's own keys
BADGE = "not covered by ε"
TASKS = ("classification", "binary")

Train = Callable[[Client, torch.Tensor], torch.Tensor]  # (whose rows, from which parameters) -> the update


@dataclass(frozen=True, eq=False)
class Scene:
    """What the attackers of a run have in common: who they are, what they want, their rows, and what they know of the defence.

    `bound` is the norm that the server, or the mechanism, clips whole updates to, where one is declared.
    """

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
    """One attack. Options are the fields of a frozen dataclass; what it does is a function of the round's model and its rows.

    `poison` is the share of a malicious client's rows that carry the trigger and the target; the rest keep the model good.
    `boost` multiplies its update; unless said, by the number of clients for each malicious one. `trigger` is the side of a square
    in pixels, or {column = value}.

    Raises: BadInput for a share that is none, and a boost that is not above 0.
    """

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

    Raises: BadInput for a target that is no class, rows that can carry no trigger, and a task without classes.
    """
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
    """The norm that whole updates are clipped to, by the server or by the mechanism, where one is declared."""
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
