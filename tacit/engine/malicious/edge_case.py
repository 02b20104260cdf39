"""`edge-case`: a backdoor of rows that hardly anybody has (Wang et al. 2020, Attack of the Tails, arXiv:2007.05084).
No trigger is added: pictures from the edge of what the model sees are given another class. The paper takes sevens of another
collection; here they are pictures of the class `source` turned by a quarter, which no honest client has."""

from dataclasses import dataclass

import torch

from tacit import check
from tacit.engine.malicious import PICTURE, Malice, Scene, poisoned
from tacit.errors import BadInput
from tacit.types import Client


@dataclass(frozen=True)
class edge_case(Malice):
    """`source` is the class whose turned pictures are to be taken for the target; the one after the target, unless said.
    Raises: BadInput for a trigger, which it has none of."""

    source: str | int | None = None  # the class whose turned pictures are used; nothing: the one after the target

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trigger is not None:
            raise BadInput('attack.kind = "edge-case" adds nothing to a row: leave out attack.trigger.')

    def refuse(self, scene: Scene) -> None:
        """Refuses rows that are no square pictures, a source that is no other class, and one that no attacker has."""
        shape, names = tuple(scene.x.shape[1:]), scene.class_names
        if len(shape) != PICTURE or shape[1] != shape[2]:
            raise BadInput(f'attack.kind = "edge-case" turns square pictures, and these rows have the shape {shape}.')
        if self.source is not None and (str(self.source) not in names or self._source(scene) == scene.target):
            others = [name for number, name in enumerate(names) if number != scene.target]
            raise BadInput(f"attack.source = {str(self.source)!r} is no class beside the target.{check.listed(others)}")
        if not (scene.y == self._source(scene)).any() or not len(self.tested(scene)):
            raise BadInput(
                f"No malicious client, or no public test row, is of class {names[self._source(scene)]!r}: set attack.source to"
                " another class."
            )

    def rows(self, client: Client, place: int, scene: Scene) -> tuple[torch.Tensor, torch.Tensor]:
        """The client's rows, of which a share are turned pictures of the source, from what the malicious clients have."""
        edge = turned(scene.x[scene.y == self._source(scene)])
        taken = (torch.arange(client.size, device=edge.device) + place) % len(edge)
        return poisoned(client, self.poison, edge[taken], scene.target)

    def tested(self, scene: Scene) -> torch.Tensor:
        """Public rows of the source, turned."""
        data = scene.dataset
        return turned(data.test_x[data.test_y == self._source(scene)])

    def _source(self, scene: Scene) -> int:
        names = scene.class_names
        return (scene.target + 1) % len(names) if self.source is None else names.index(str(self.source))


def turned(x: torch.Tensor) -> torch.Tensor:
    """Pictures turned by a quarter."""
    return x.rot90(1, (-2, -1))
