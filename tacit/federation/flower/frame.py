"""What arrives from a site, held against what an honest one would send: only the values of its tensors may differ.

Names, shapes, types and facts (examples, epsilon, noise, group) follow from the roster and the round, which the server knows.
So whoever claims another weight, or sends what no rule can add, is named and left out, and the round goes on.
"""

import math
from typing import Any

import torch

from tacit.build.parts import Parts
from tacit.engine.wire import all_finite, unpack
from tacit.errors import BadInput
from tacit.privacy.wiring import descent_of
from tacit.train.workspace import Trained
from tacit.types import Client, Message, Private, Raw

CLOSE = 1e-6  # relative: one formula on two machines
LARGEST = 1e25  # beyond, weights could take a sum out of float32


def honest(parts: Parts, client: Client, received: Message, round: int = 0) -> Message | None:
    """An honest client's answer to what it received, with zeros for the values that only it knows.

    Everything else of an answer (names, shapes, types, facts) follows from the roster and the round. None where the algorithm
    judges every message itself, as it is added (central DP, encrypted sums).
    """
    algorithm, zeros = parts.algorithm, torch.zeros_like(parts.params)
    if algorithm.forgiving:
        return None
    rate, descent = parts.experiment.train.learning_rate, descent_of(parts.experiment).told(round)
    noises = parts.plan.update_noise(parts.population.sizes, learning_rate=rate, descent=descent)
    if noises is None:
        return algorithm.release(Trained(Raw(zeros)), client, received)
    return algorithm.release(Trained(Private(zeros, float(noises[client.index]))), client, received)


def oddity(parts: Parts, received: Message, index: int, raw: bytes, round: int = 0) -> str:
    """What no honest site would have sent in an answer, in words; empty where all is in order.

    Guarantee: nothing is raised, whatever the bytes are. Where the algorithm judges every message itself, nothing is odd here.

    Assumes: `received` is what the client at `index` was asked with.
    """
    client = parts.population[index]
    like = honest(parts, client, received, round)
    if like is None:
        return ""
    try:
        refuse_odd(raw, sender=client.id, like=like, most=longest(parts, received, index, round))
    except BadInput as error:
        return str(error)
    return ""


def longest(parts: Parts, received: Message, index: int, round: int) -> float:
    """A bound that no number of a client's honest answer exceeds: what clip and noise allow, and never more than `LARGEST`.

    It bounds single coordinates, not the norm: an answer within it may still be a lie, but no sum of such answers overflows.
    """
    rate, parameters = parts.experiment.train.learning_rate, parts.params.numel()
    asked = {
        "descent": descent_of(parts.experiment).told(round),
        "largest": float(received.tensors["params"].abs().max()),
    }
    most = parts.plan.longest(index, parts.population.sizes, learning_rate=rate, parameters=parameters, **asked)
    return min(LARGEST, most * (1 + CLOSE))


def refuse_odd(raw: bytes, *, sender: str, like: Message, most: float) -> None:
    """Refuses an answer that no honest site of this name could give.

    Guarantee: what passes has the sender, the tensors' names, shapes and types, and the facts (numbers to a relative 1e-6) of
    `like`; its numbers are finite, and no larger than `most`.

    Raises: BadInput, also for bytes that are no message, in words that quote no more than names and shapes.
    """
    message = unpack(raw)
    if message.sender != sender:
        raise BadInput("it answered in another's name")
    if _shapes(message) != _shapes(like):
        raise BadInput(f"it sent {_words(message)} where {_words(like)} belongs")
    for name, tensor in message.tensors.items():
        if tensor.is_floating_point() and not all_finite(tensor):
            raise BadInput(f"it sent a {name} that is not finite")
        if tensor.is_floating_point() and tensor.numel() and float(tensor.abs().max()) > most:
            raise BadInput(f"it sent a {name} that is larger than any honest one")
    if set(message.facts) != set(like.facts) or not all(_same(message.facts[k], like.facts[k]) for k in like.facts):
        raise BadInput("it states other facts about itself than were agreed")


def _shapes(message: Message) -> dict[str, tuple[Any, Any]]:
    return {name: (tensor.dtype, tensor.shape) for name, tensor in message.tensors.items()}


def _words(message: Message) -> str:
    parts = [f"{name[:40]} of {list(tensor.shape)[:4]}" for name, tensor in sorted(message.tensors.items())[:3]]
    return " and ".join(parts) or "nothing"


def _same(found: object, wanted: object) -> bool:
    if type(found) is float and type(wanted) is float:
        return found == wanted or math.isclose(found, wanted, rel_tol=CLOSE)
    return type(found) is type(wanted) and found == wanted
