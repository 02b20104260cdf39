"""Sums of records of many clients at once: all of them have the same model, so that their Poisson batches are a few large ones.

A trusted server adds up what clients send, so the sum over that one batch is all it needs (`InTotal`); where each client's own
integers go out (`SecretRecordSums`) every client has a sum of its own. Streams, batches and views are those of `OneByOne`, and
gradients are clipped as there: the two differ by float32 rounding. Guarantee: that of each client's mechanism; a record is in one
sum, once, and moves it by at most the clip (`Clipper`)."""

from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from typing import Any

import torch

from tacit.algorithms.record_sums import RecordSums, SecretRecordSums
from tacit.data.population import Population
from tacit.engine.trainers import Carried
from tacit.random import Stream
from tacit.training.batches import later, sent
from tacit.training.sgd import NotPrivate, Workspace, clipped_rows, drawn_rows
from tacit.types import Client, Message

MOST_IN_ONE = 3_400  # expected records: with ten standard deviations more 4,096, for which rounding is proved (docs/derivations.md)


def begin_sums(
    algorithm: RecordSums | SecretRecordSums,
    work: Workspace,
    population: Population,
    received: Message,
    clients: Sequence[Client],
    streams: Sequence[Callable[[str], Stream]],
) -> Callable[[], list[Carried]]:
    """Sets a device to work on the clients' batches; what is returned waits for it, and gives their answers.
    Raises: ValueError for a batch so long that the server would scale its sum down: each then answers by itself."""
    device, views, own = work.theta.device, algorithm.views, [derive("train") for derive in streams]
    mechanisms = [algorithm.mechanism(client) for client in clients]
    drawn = [
        drawn_rows(
            client,
            mechanism.sample(mechanism.init(), stream, client.size)[1],
            stream,
            start=int(population.offsets[client.index]),
        )
        for mechanism, stream, client in zip(mechanisms, own, clients, strict=True)
    ]
    counts = [len(batch) for batch in drawn]
    if isinstance(algorithm, RecordSums) and max(counts) > algorithm.longest_batch:
        raise ValueError("a batch is longer than any honest one")
    places = sent(torch.cat(drawn), device)
    shifts = None
    if views is not None:
        shifts = sent(torch.cat([views.offsets(*pair) for pair in zip(own, counts, strict=True)]), device)
    work.theta.copy_(received.tensors["params"])
    groups = [slice(k, k + 1) for k in range(len(clients))]
    if isinstance(algorithm, RecordSums):
        groups = grouped([algorithm.records[client.id] for client in clients])
    ends = [0, *_ends(counts)]
    parts = [slice(ends[group.start], ends[group.stop]) for group in groups]
    sums = [
        clipped_rows(work, population.x, population.y, places[part], views, None if shifts is None else shifts[part])
        for part in parts
    ]
    facts = later(_facts([info for _, info in sums], counts, device))

    def answers() -> list[Carried]:
        losses, clipped = facts()
        infos = [
            {"loss": loss / max(1, n), "clipped": over / max(1, n)}
            for loss, over, n in zip(losses, clipped, counts, strict=True)
        ]
        if isinstance(algorithm, RecordSums):
            pairs = zip(groups, sums, strict=True)
            each = [algorithm.released_total(total, clients[group], received) for group, (total, _) in pairs]
            return list(zip(chain.from_iterable(each), infos, strict=True))
        each, trained = zip(sums, infos, clients, streams, strict=True), list[Carried]()
        for (total, _), info, client, derive in each:
            one = algorithm.shared(algorithm.rounded(total, derive), info, client, derive)
            trained.append((algorithm.release(one, client, received), info))
        return trained

    return answers


def grouped(records: Sequence[float]) -> list[slice]:
    """Clients whose batches are one sum: as many in order as are expected to draw `MOST_IN_ONE` records, or one that draws more.
    What others draw moves no client to another sum, so that a record moves the rounding of its own sum alone."""
    starts, held = [0], 0.0
    for k, expected in enumerate(records):
        if k > starts[-1] and held + expected > MOST_IN_ONE:
            starts, held = [*starts, k], 0.0
        held += expected
    return [slice(*ends) for ends in pairwise([*starts, len(records)])]


def settle_sums(algorithm: Any, work: Workspace, population: Population) -> None:
    """Has the workspace choose its way to clipped sums now, on made-up rows. Raises: ModelRefused."""
    none, views = torch.zeros(0, dtype=torch.long, device=work.theta.device), algorithm.views
    none = none if population.persons is None else none.new_zeros(0, population.persons.most)
    offsets = None if views is None else none.new_zeros(0, views.count, 2)
    clipped_rows(work, population.x, population.y, none, views, offsets)


def _ends(counts: Sequence[int]) -> list[int]:
    return torch.tensor(counts).cumsum(0).tolist()


def _facts(infos: Sequence[NotPrivate], counts: Sequence[int], device: torch.device) -> torch.Tensor:
    # of every client the sum of its losses, and how many of its gradients were clipped
    owner = sent(torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)), device)
    losses = torch.cat([info.losses for info in infos]).nan_to_num(0.0, 0.0, 0.0)
    clipped = torch.cat([(info.norms > info.clip).to(losses.dtype) for info in infos])
    return torch.stack([losses, clipped]).new_zeros(2, len(counts)).index_add_(1, owner, torch.stack([losses, clipped]))
