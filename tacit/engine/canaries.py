"""The canaries of a run: committed to before the first round, planted, and what was seen of them kept, a file a round."""

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacit import store
from tacit.algorithms import Algorithm
from tacit.algorithms.local_dp import LocalDP
from tacit.crypto import keys
from tacit.digest import mark
from tacit.engine.assemble import Parts
from tacit.engine.canary_algorithms import LocalRecords, PlantedTraining, with_canaries
from tacit.engine.canary_plan import SIGHT, Canaries, file_of, gathered, packed, sizes_of
from tacit.engine.run_folder import Folder
from tacit.errors import BadData, BadInput, KeyRefused
from tacit.privacy.mechanism import NoiseState, TrainingMechanism
from tacit.random import Derive, Stream, keyed
from tacit.training.clipping import Trained, Workspace
from tacit.training.dp_sgd import DpSgd
from tacit.training.flat import blocks
from tacit.types import Bounded, Client, Message, Private

# Canary records that go through the per-example clipper as well: rows of random numbers with a random class.


class PlantedRows(PlantedTraining):
    """One client's round of DP-SGD with canary records. Guarantee: as `PlantedTraining`, if the clipper keeps to C."""

    def __init__(self, own: TrainingMechanism, work: Workspace, x: torch.Tensor, y: torch.Tensor, coins: np.ndarray):
        super().__init__(own, np.arange(len(coins)), coins)
        self.work, self.x, self.y = work, x, y

    def noise(self, state: NoiseState, stream: Stream, bounded: Bounded) -> tuple[NoiseState, Private]:
        """Adds the drawn canaries' clipped gradients to the sum, has it noised, and looks along every canary's."""
        rows = [self._clipped(j) for j in range(len(self.y))]
        gradients = torch.stack(rows) if rows else bounded.vector.new_zeros(0, len(bounded.vector))
        now = torch.from_numpy(self._now).to(gradients.device)
        added = gradients[now].sum(0)
        state, noised = self.own.noise(state, stream, Bounded(bounded.vector + added, bounded.sensitivity))
        self.drawn[self._now] += 1
        lengths = gradients.norm(dim=1).clamp(min=1e-12)
        left = noised.vector - bounded.vector - added  # the noise as run
        along = (gradients @ left) / lengths
        along[now] += lengths[now]
        self.real += along.double().cpu().numpy()
        return state, noised

    def _clipped(self, j: int) -> torch.Tensor:
        x, y = self.x[j : j + 1], self.y[j : j + 1]
        return self.work.clipped_sum(x, y, again=lambda: x)[0].vector.clone()

    def told(self) -> dict[str, np.ndarray]:
        """What was seen, in clips."""
        return {"seen": np.asarray(self.real / self.clip, dtype=np.float32), "drawn": self.drawn}


@dataclass(frozen=True, kw_only=True)
class LocalRows(LocalRecords):
    """Local DP, record level, with canary records of `classes` classes; `where` is the process's workspace, while it trains."""

    classes: int
    where: dict[str, Workspace] = field(default_factory=dict, repr=False, compare=False)

    def _planted(self, client: Client) -> PlantedTraining:
        work, k = self.where.get("work"), client.index
        if work is None:
            raise BadInput('audit.placement = "record" is for clients that train one by one: leave out run.at_once.')
        x, y = rows(self.canaries, client, classes=self.classes)
        return PlantedRows(self.plain(client), work, x, y, self.canaries.coins(k))

    def train(self, work: Workspace, received: Message, client: Client, derive: Derive) -> Trained:
        """As without canaries, in this workspace."""
        self.where["work"] = work
        return super().train(work, received, client, derive)

    def release(self, trained: Trained, client: Client, received: Message) -> Message:
        """What is released, with what was seen of the canaries in the info, which stays."""
        message = LocalDP.release(self, trained, client, received)
        planted: Any = self.begun.pop(client.index)
        trained.info[SIGHT] = planted.told()
        return message


def with_rows(parts: Parts, canaries: Canaries, *, classes: int) -> LocalRows:
    """The algorithm of a run with canary records. Raises BadInput where its clients do not run DP-SGD."""
    own: Any = parts.algorithm
    if type(own) is not LocalDP or type(own.local) is not DpSgd:
        raise BadInput("Canary records are planted into Tacit's own DP-SGD: leave out [audit].")
    return LocalRows(own.mechanism, own.server, own.local, canaries=canaries, classes=classes)


def rows(canaries: Canaries, client: Client, *, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of a client's canaries: standard normals, and a class each; they follow from the key and the shape of a row."""
    count, shape = len(canaries.of(client.index)), client.x.shape[1:]
    stream = keyed(canaries.key)("rows", client.index)
    x = stream.normal(count * int(np.prod(shape))).view(count, *shape).to(client.x.dtype)
    y = torch.from_numpy((stream.words(count) % classes).astype(np.int64))
    return x.to(client.x.device), y.to(client.y.device, client.y.dtype)


SECRET, COMMITMENT = "canaries.json", "canaries"  # the file of the key; the key, in run.json, of the hash
KEY_BYTES = 16
MOST_LAYERS = 1000  # of a model, that are told apart


def planted(parts: Parts, folder: Folder) -> Parts:
    """The parts with the canaries that the experiment asks for; without any, the very same ones.

    Guarantee: a hash of all coins is on disk before the first round, and a run goes on with the coins it began with.

    Raises: BadInput for more than fit, BadData where the coins are not those that were committed to.
    """
    if parts.experiment.audit.canaries is None:
        return parts
    sizes, file = sizes_of(parts), folder.path / "run.json"
    known = json.loads(file.read_text("utf-8"))
    if COMMITMENT in known:
        canaries = opened(folder.path, sizes)
    else:
        seeded = parts.experiment.run.randomness == "seeded" and not parts.nonce
        key = bytes.fromhex(mark("canaries", parts.releases.server_key)) if seeded else secrets.token_bytes(KEY_BYTES)
        canaries = Canaries(key, *sizes)
        layers = [(block.name, block.start, block.stop) for block in blocks(parts.model)]
        secret = {"key": key.hex(), "layers": layers}
        keys.write(folder.path / SECRET, secret, mode=keys.SECRET, force=True)
        folder.write(file.name, json.dumps(known | {COMMITMENT: canaries.commitment}).encode())
    return replace(parts, algorithm=_planted(parts, canaries))


def _planted(parts: Parts, canaries: Canaries) -> Algorithm:
    if parts.experiment.audit.placement != "record":
        return with_canaries(parts, canaries)
    if parts.experiment.task.kind not in ("classification", "binary") or not parts.dataset.x.is_floating_point():
        raise BadInput('audit.placement = "record" makes up rows of numbers with a class: leave it out for this task.')
    return with_rows(parts, canaries, classes=max(2, parts.task.answer[-1]))


def opened(folder: Path, sizes: tuple[int, int, int, bool]) -> Canaries:
    """The canaries that a run was started with.

    Raises: BadData where their key cannot be read, or they are not those that were committed to.
    """
    committed = json.loads((folder / "run.json").read_text("utf-8")).get(COMMITMENT)
    try:
        key = keys.read(folder / SECRET, secret=True).get("key")
    except KeyRefused as error:
        raise BadData(
            f"{folder / SECRET} cannot be read ({str(error).rstrip('.')}): coins cannot be made again, put the file back."
        ) from None
    secret = str(key) if re.fullmatch(r"[0-9a-f]{32}", str(key)) else ""
    canaries = Canaries(bytes.fromhex(secret), *sizes)
    if canaries.commitment != committed:
        raise BadData(
            f"The coins in {folder / SECRET} are not those that were committed to before round 1: put the file back as it was."
        )
    return canaries


def layers_of(folder: Path) -> list[tuple[str, int, int]]:
    """Where the layers of the audited model lie in its vector; none where the file does not say it."""
    found = keys.read(folder / SECRET, secret=True).get("layers")
    known = found[:MOST_LAYERS] if isinstance(found, list) else []
    whole = (one for one in known if isinstance(one, list) and [type(part) for part in one] == [str, int, int])
    return [(name, start, stop) for name, start, stop in whole]


def record_observation(
    parts: Parts,
    folder: Folder,
    round: int,
    cohort: Sequence[Client],
    told: Sequence[dict[str, Any]],
    info: dict[str, Any],
) -> None:
    """Writes down what was seen of the canaries in a round, where there are some; it is taken out of `told` and `info`."""
    canaries = getattr(parts.algorithm, "canaries", None)
    if not isinstance(canaries, Canaries):
        return
    file = file_of(folder.path, round)
    file.parent.mkdir(mode=0o700, exist_ok=True)
    store.write(file, packed(gathered(canaries, cohort, told, info)))
