"""Noise as it was released, for all layers together and for each: checks from rows of numbers whose claimed deviation is 1."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from tacit.audit.evidence import LeastNoise, Likeness, Noise
from tacit.audit.verdict import Check
from tacit.train.flat import blocks

COORDINATES = 20_000  # numbers that noise is judged by: .95 of it lies 10 standard errors below
MOST_CLIENTS = 6
FEWEST_ROUNDS = 4  # of one client, so that rounds can be compared
MOST_ROUNDS = 600
TOO_LITTLE = "less noise than is priced"


@dataclass(frozen=True)
class Layer:
    """Where a trainable parameter lies in a released vector."""

    name: str
    place: slice


def layers_of(model: nn.Module) -> list[Layer]:
    """The trainable parameters. A frozen one is released as it was: it carries no noise and needs none."""
    pairs = zip(blocks(model), model.parameters(), strict=True)
    return [Layer(block.name, slice(block.start, block.stop)) for block, own in pairs if own.requires_grad]


def clients_for(layers: Sequence[Layer]) -> int:
    """How many clients: two of a large model, more of a small one."""
    size = sum(layer.place.stop - layer.place.start for layer in layers)
    return min(MOST_CLIENTS, max(2, -(-COORDINATES // (FEWEST_ROUNDS * size))))


def rounds_for(clients: int, layers: Sequence[Layer]) -> int:
    """How many rounds of so many clients give enough numbers."""
    size = sum(layer.place.stop - layer.place.start for layer in layers)
    return min(MOST_ROUNDS, max(FEWEST_ROUNDS, -(-COORDINATES // (clients * size))))


def checks(
    where: str, noise: np.ndarray, layers: Sequence[Layer], *, multiplier: float, excess: float = 0.0
) -> Iterator[Check]:
    """Checks of noise (rounds, clients, coordinates), each number over the deviation that is claimed for it.

    `multiplier` is what the ratio is shown by: the noise multiplier where all clients have one, else 1. Every vector is
    compared with every other one of the same client, and with those of other clients in the same round.
    """
    told = {"quantity": "noise multiplier" if multiplier != 1 else "noise over priced", "unit": multiplier}

    def check(part: np.ndarray, name: str = "") -> Check:
        return Check(where, claimed=1.0, evidence=_noise(part, excess), said=TOO_LITTLE, part=name, **told)

    kept = np.concatenate([noise[..., layer.place] for layer in layers], axis=-1)
    over_rounds = [alike(kept[:, k]) for k in range(kept.shape[1])]
    found = [one for one in (*over_rounds, *(alike(row) for row in kept)) if one is not None]
    if found:
        worst = max(found, key=lambda one: one.value)
        evidence = replace(worst, pairs=sum(one.pairs for one in found))
        yield Check(where, "likeness of noises", 0.0, evidence, "the same noise in two releases")
    yield check(kept)
    if len(layers) > 1:
        yield from (check(noise[..., layer.place], layer.name) for layer in layers)
    if noise.shape[1] > 1:
        of = tuple(_noise(kept[:, k], excess) for k in range(kept.shape[1]))
        yield replace(check(kept), evidence=LeastNoise(of), part="least client")


def alike(noise: np.ndarray) -> Likeness | None:
    """The most alike two rows of noise (rows, coordinates); None where there is nothing to compare.

    >>> alike(np.array([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 1.0, 0.0]])).cosine
    1.0
    """
    rows, length = noise.shape
    if rows < 2 or length < 2:
        return None
    norms = np.linalg.norm(noise, axis=1, keepdims=True)
    unit = noise / np.where(norms > 0, norms, 1.0)
    cosines = (unit @ unit.T)[np.triu_indices(rows, 1)]
    return Likeness(float(cosines[np.abs(cosines).argmax()]), length, len(cosines))


def _noise(part: np.ndarray, excess: float) -> Noise:
    part = part.astype(np.float64).ravel()
    return Noise(float(part @ part), part.size, excess)
