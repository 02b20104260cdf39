"""Sharing the rows of a data set among clients: iid, dirichlet, shards or natural.

- iid: equal shares of a shuffled data set.
- dirichlet: each class is split among the clients by proportions ~ Dir(alpha) (Hsu, Qi, Brown 2019, arXiv:1909.06335;
  per class as in Yurochkin et al. 2019, arXiv:1905.12022). Small alpha is skewed.
- shards: rows sorted by label, cut into clients x shards_per_client shards, dealt at random (McMahan et al. 2017 with
  2 shards a client, Liu et al. 2021 with 10).
- natural: the clients that the data names.

Every row goes to at most one client, and every client has at least one row.
"""

from collections.abc import Sequence

import numpy as np

from tacit import check
from tacit.data.dataset import Dataset
from tacit.data.dirichlet import dirichlet
from tacit.data.shares import Shares, first, grouped
from tacit.errors import BadData, BadInput
from tacit.experiment.data import KINDS, DataSection


def partition(
    y: np.ndarray,
    *,
    kind: str,
    clients: int,
    rng: np.random.Generator,
    alpha: float = 0.5,
    min_size: int = 10,
    shards_per_client: int = 10,
    examples_per_client: int | None = None,
    client: np.ndarray | None = None,
    names: Sequence[str] | None = None,
) -> Shares:
    """Shares rows with labels `y` among clients. `client` and `names` are the data's own clients, for `natural`.

    `examples_per_client` is exact with iid and shards (refused if there are too few rows) and a cap with dirichlet
    and natural. Guarantee: each row is in at most one share; no share is empty; with dirichlet none is smaller than
    `min_size`. Raises: BadInput, BadData.

    >>> partition(np.zeros(7, int), kind="iid", clients=2, rng=np.random.default_rng(0)).sizes.tolist()
    [4, 3]
    """
    check.one_of(KINDS, partition=kind)
    check.at_least(1, clients=clients)
    if examples_per_client is not None:
        check.at_least(1, examples_per_client=examples_per_client)
    y = np.asarray(y)
    if len(y) < clients:
        raise BadInput(
            f"Expected at least one row per client, got {len(y)} rows for {clients} clients: set fewer clients."
        )
    if kind == "natural":
        shares = _natural(client, clients=clients, names=names, rng=rng)
    elif kind == "dirichlet":
        shares = dirichlet(y, clients=clients, alpha=alpha, min_size=min_size, rng=rng)
    else:
        rows = _equal_rows(len(y), clients=clients, each=examples_per_client, rng=rng)
        if kind == "iid":
            return Shares(order=rows, offsets=_cuts(len(rows), clients))
        return _shards(y, rows, clients=clients, per_client=shards_per_client, rng=rng)
    if examples_per_client is not None:
        shares, _ = first(shares, np.minimum(shares.sizes, examples_per_client))
    return shares


def share_out(dataset: Dataset, section: DataSection, *, rng: np.random.Generator) -> Shares:
    """Shares a data set's training rows as its section says. Raises: BadInput, BadData."""
    natural = section.partition == "natural"
    if section.partition in ("dirichlet", "shards") and not dataset.classified:
        raise BadInput(
            f'data.partition = "{section.partition}" deals rows out by their class, and {dataset.name} has {dataset.targets}:'
            ' use "iid" or "natural".'
        )
    if dataset.mapped:
        return _as_they_lie(dataset, section)
    return partition(
        dataset.y.numpy(),
        kind=section.partition,
        clients=len(dataset.client_names or ()) or 1 if natural else section.clients,
        rng=rng,
        alpha=section.alpha,
        min_size=section.min_size,
        shards_per_client=section.shards_per_client,
        examples_per_client=section.examples_per_client,
        client=dataset.client,
        names=dataset.client_names,
    )


def client_names(dataset: Dataset, section: DataSection) -> tuple[str, ...]:
    """The name of each share: the data's own with natural, else client-0, client-1, ..."""
    if section.partition == "natural" and dataset.client_names is not None:
        return dataset.client_names
    return tuple(f"client-{index}" for index in range(section.clients))


def _as_they_lie(dataset: Dataset, section: DataSection) -> Shares:
    """The shares of rows that lie in a file client by client: nothing is moved. Raises BadInput where something would be."""
    if dataset.client is None or section.partition != "natural" or section.examples_per_client is not None:
        raise BadInput(
            'Rows that stay in a file stay with their clients: set data.partition = "natural", and leave out'
            " data.examples_per_client."
        )
    offsets = np.concatenate([[0], np.cumsum(np.bincount(dataset.client, minlength=len(dataset.client_names or ())))])
    return Shares(order=np.arange(len(dataset.y)), offsets=offsets)


def _cuts(rows: int, parts: int) -> np.ndarray:
    """Offsets that cut rows into parts whose sizes differ by at most one, the larger ones first."""
    return np.concatenate([[0], np.cumsum(np.full(parts, rows // parts) + (np.arange(parts) < rows % parts))])


def _equal_rows(rows: int, *, clients: int, each: int | None, rng: np.random.Generator) -> np.ndarray:
    """Random rows for shares of one size: all of them, or `each` per client."""
    if each is not None and clients * each > rows:
        raise BadInput(
            f"{clients} clients with {each} examples each need {clients * each} rows, but there are {rows}: "
            f"set examples_per_client to at most {rows // clients}."
        )
    return rng.permutation(rows)[: None if each is None else clients * each]


def _shards(y: np.ndarray, rows: np.ndarray, *, clients: int, per_client: int, rng: np.random.Generator) -> Shares:
    """Deals shards of rows sorted by label."""
    check.at_least(1, shards_per_client=per_client)
    count = clients * per_client
    if count > len(rows):
        raise BadInput(
            f"{clients} clients with {per_client} shards each need {count} rows, but there are {len(rows)}: set fewer."
        )
    by_label = rows[np.argsort(y[rows], kind="stable")]
    holder = np.empty(count, np.int32)
    holder[rng.permutation(count)] = np.repeat(np.arange(clients, dtype=np.int32), per_client)
    owner = np.full(len(y), clients, np.int32)
    owner[by_label] = np.repeat(holder, np.diff(_cuts(len(rows), count)))
    return grouped(owner, clients=clients, rng=rng)


def _natural(
    client: np.ndarray | None, *, clients: int, names: Sequence[str] | None, rng: np.random.Generator
) -> Shares:
    """Groups rows by the client the data names."""
    if client is None:
        raise BadData(
            "This data names no clients: set data.client_column, give one file per client, or choose another partition."
        )
    shares = grouped(np.asarray(client, np.int32), clients=clients, rng=rng)
    if len(shares.order) < len(client):
        raise BadInput(f"The data names {int(client.max()) + 1} clients, expected {clients}.")
    if not shares.sizes.all():
        empty = int(np.argmin(shares.sizes))
        raise BadData(f"Client {names[empty] if names else empty!r} has no data: remove it or give it some rows.")
    return shares
