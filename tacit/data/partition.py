"""Sharing the rows of a data set among clients (iid, dirichlet, shards or natural), and the epsilon of each client.

- iid: equal shares of a shuffled data set.
- dirichlet: each class is split among the clients by proportions ~ Dir(alpha) (Hsu, Qi, Brown 2019, arXiv:1909.06335;
  per class as in Yurochkin et al. 2019, arXiv:1905.12022). Small alpha is skewed.
- shards: rows sorted by label, cut into clients x shards_per_client shards, dealt at random (McMahan et al. 2017 with
  2 shards a client, Liu et al. 2021 with 10).
- natural: the clients that the data names, each with all of its rows, in their order. So a row that comes or goes moves no other.

Every row goes to at most one client, and every client has at least one row."""

import csv
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tacit import check
from tacit.data.dataset import Dataset
from tacit.errors import BadData, BadInput
from tacit.experiment.data import DataSection

# Which rows each client holds, in two arrays: 6 million rows of 100,000 clients take 49 MB.


@dataclass(frozen=True, eq=False)
class Shares:
    """Row indices grouped by client: client i holds `order[offsets[i]:offsets[i + 1]]`.

    >>> shares = Shares(order=np.array([2, 0, 1]), offsets=np.array([0, 1, 3]))
    >>> len(shares), shares[1].tolist(), shares.sizes.tolist()
    (2, [0, 1], [1, 2])
    """

    order: np.ndarray = field(repr=False)
    offsets: np.ndarray = field(repr=False)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> np.ndarray:
        if not -len(self) <= client < len(self):
            raise IndexError(f"client {client} of {len(self)}")
        client %= len(self)
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.offsets)


def grouped(owner: np.ndarray, *, clients: int, rng: np.random.Generator) -> Shares:
    """Groups rows by their owner; a row whose owner is `clients` is nobody's."""
    shuffled = rng.permutation(len(owner))
    order = shuffled[np.argsort(owner[shuffled], kind="stable")]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=clients)[:clients])])
    return Shares(order=order[: offsets[-1]], offsets=offsets)


def first(shares: Shares, sizes: np.ndarray) -> tuple[Shares, np.ndarray]:
    """The first `sizes[i]` rows of each client i, and the rows that are left over."""
    rank = np.arange(len(shares.order)) - np.repeat(shares.offsets[:-1], shares.sizes)
    kept = rank < np.repeat(sizes, shares.sizes)
    offsets = np.concatenate([[0], np.cumsum(np.minimum(sizes, shares.sizes))])
    return Shares(order=shares.order[kept], offsets=offsets), shares.order[~kept]


def label_counts(y: np.ndarray, shares: Shares, *, classes: int) -> np.ndarray:
    """How many rows of each class each client holds, as [clients, classes]. True counts: for experiments only."""
    owner = np.repeat(np.arange(len(shares)), shares.sizes)
    cells = owner * classes + np.asarray(y)[shares.order]
    return np.bincount(cells, minlength=len(shares) * classes).reshape(len(shares), classes)


# Classes split among clients by Dirichlet proportions: small alpha gives each client few classes.

REDRAWS = 10  # then the nearest draw is repaired, so a partition always ends
TINIEST = 1e-300  # below, log(u)/alpha would overflow; a class belongs to one client long before


def dirichlet(y: np.ndarray, *, clients: int, alpha: float, min_size: int, rng: np.random.Generator) -> Shares:
    """Splits each class by Dir(alpha), drawn anew while a client has too few rows and repaired after the last draw. Guarantee:
    it ends, every row is used once, and no client has fewer than `min_size` rows. Raises: BadInput."""
    if clients * min_size > len(y):
        raise BadInput(
            f"{clients} clients with at least {min_size} examples each need {clients * min_size} rows, but there are "
            f"{len(y)}: set min_size to at most {len(y) // clients} or use fewer clients."
        )
    sizes = _class_sizes(np.bincount(y), clients=clients, alpha=alpha, rng=rng)
    for _ in range(REDRAWS):
        if not _shortage(sizes, min_size):
            break
        again = _class_sizes(np.bincount(y), clients=clients, alpha=alpha, rng=rng)
        sizes = min(sizes, again, key=lambda draw: _shortage(draw, min_size))
    rows = rng.permutation(len(y))
    by_class = rows[np.argsort(y[rows], kind="stable")]
    owner = np.empty(len(y), np.int32)
    owner[by_class] = np.concatenate([np.repeat(np.arange(clients, dtype=np.int32), row) for row in sizes])
    return _repaired(owner, clients=clients, min_size=min_size, rng=rng)


def _shortage(sizes: np.ndarray, min_size: int) -> int:
    return int(np.maximum(min_size - sizes.sum(axis=0), 0).sum())


def _class_sizes(classes: np.ndarray, *, clients: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    sizes = np.empty((len(classes), clients), np.int64)
    for row, rows in zip(sizes, classes, strict=True):
        # Gamma(a) = Gamma(a + 1) u^(1/a), kept as a logarithm: at small alpha the plain draws would all be zero
        log = np.log(rng.standard_gamma(alpha + 1, clients)) + np.log(1 - rng.random(clients)) / max(alpha, TINIEST)
        edges = np.cumsum(np.exp(log - log.max()))
        cuts = np.floor(edges / edges[-1] * rows + 0.5).astype(np.int64)
        row[:] = np.diff(cuts, prepend=0)
    return sizes


def _repaired(owner: np.ndarray, *, clients: int, min_size: int, rng: np.random.Generator) -> Shares:
    shares = grouped(owner, clients=clients, rng=rng)
    wanted = np.maximum(min_size - shares.sizes, 0)
    if not wanted.any():
        return shares
    _, moved = first(shares, _lowered(shares.sizes, int(wanted.sum())))
    owner[rng.permutation(moved)] = np.repeat(np.arange(clients, dtype=np.int32), wanted)
    return grouped(owner, clients=clients, rng=rng)


def _lowered(sizes: np.ndarray, surplus: int) -> np.ndarray:
    low, high = 0, int(sizes.max())
    while low < high:  # the highest level that frees enough rows
        middle = (low + high + 1) // 2
        low, high = (middle, high) if np.maximum(sizes - middle, 0).sum() >= surplus else (low, middle - 1)
    lowered = np.minimum(sizes, low)
    spare = int((sizes - lowered).sum()) - surplus
    lowered[np.flatnonzero(sizes > low)[:spare]] += 1
    return lowered


def share_out(dataset: Dataset, section: DataSection, *, rng: np.random.Generator) -> Shares:
    """Shares a data set's training rows as its section says. Guarantee: each row is in at most one share; no share is empty;
    with dirichlet none is smaller than `min_size`; with natural a row that comes or goes moves no other one. Raises: BadInput,
    BadData."""
    kind, clients, each = section.partition, section.clients, section.examples_per_client
    if dataset.person is not None:
        shares = _natural(dataset) if kind == "natural" else _by_person(dataset.person, section, rng=rng)
        owner = np.repeat(np.arange(len(shares)), shares.sizes)
        together = np.lexsort((dataset.person[shares.order], owner))  # a person's rows, one after the other
        return Shares(order=shares.order[together], offsets=shares.offsets)
    if kind == "natural":
        return _natural(dataset)
    if kind != "iid" and not dataset.classified:
        raise BadInput(
            f'data.partition = "{kind}" deals rows out by their class, and {dataset.name} has {dataset.targets}:'
            ' use "iid" or "natural".'
        )
    if dataset.mapped:
        raise BadInput('Rows that stay in a file stay with their clients: set data.partition = "natural".')
    y = dataset.y.numpy()
    if len(y) < clients:
        raise BadInput(
            f"Expected at least one row per client, got {len(y)} rows for {clients} clients: set fewer clients."
        )
    if kind == "dirichlet":
        shares = dirichlet(y, clients=clients, alpha=section.alpha, min_size=section.min_size, rng=rng)
        return first(shares, np.minimum(shares.sizes, len(y) if each is None else each))[0]
    rows = _equal_rows(len(y), clients=clients, each=each, rng=rng)
    if kind == "iid":
        return Shares(order=rows, offsets=_cuts(len(rows), clients))
    return _shards(y, rows, clients=clients, per_client=section.shards_per_client, rng=rng)


def _by_person(tags: np.ndarray, section: DataSection, *, rng: np.random.Generator) -> Shares:
    persons, codes = np.unique(tags, return_inverse=True)
    if section.partition != "iid" or section.examples_per_client is not None:
        raise BadInput(
            'Where rows have persons, each with all its rows is dealt to one client: set data.partition = "iid" or "natural", and'
            " leave out data.examples_per_client."
        )
    if len(persons) < section.clients:
        raise BadInput(f"Expected at least one person per client, got {len(persons)} for {section.clients} clients.")
    owner = np.empty(len(persons), np.int64)
    owner[rng.permutation(len(persons))] = np.repeat(
        np.arange(section.clients), np.diff(_cuts(len(persons), section.clients))
    )
    return grouped(owner[codes], clients=section.clients, rng=rng)


def client_names(dataset: Dataset, section: DataSection) -> tuple[str, ...]:
    """The name of each share: the data's own with natural, else client-0, client-1, ..."""
    if section.partition == "natural" and dataset.client_names is not None:
        return dataset.client_names
    return tuple(f"client-{index}" for index in range(section.clients))


def _cuts(rows: int, parts: int) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(np.full(parts, rows // parts) + (np.arange(parts) < rows % parts))])


def _equal_rows(rows: int, *, clients: int, each: int | None, rng: np.random.Generator) -> np.ndarray:
    if each is not None and clients * each > rows:
        raise BadInput(
            f"{clients} clients with {each} examples each need {clients * each} rows, but there are {rows}: "
            f"set examples_per_client to at most {rows // clients}."
        )
    return rng.permutation(rows)[: None if each is None else clients * each]


def _shards(y: np.ndarray, rows: np.ndarray, *, clients: int, per_client: int, rng: np.random.Generator) -> Shares:
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


def _natural(dataset: Dataset) -> Shares:
    if dataset.client is None or dataset.client_names is None:
        raise BadData(
            "This data names no clients: set data.client_column, give one file per client, or choose another partition."
        )
    sizes = np.bincount(dataset.client, minlength=len(dataset.client_names))
    if not sizes.all():
        empty = dataset.client_names[int(np.argmin(sizes))]
        raise BadData(f"Client {empty!r} has no data: remove it or give it some rows.")
    return Shares(order=np.argsort(dataset.client, kind="stable"), offsets=np.concatenate([[0], np.cumsum(sizes)]))


# The epsilon of each client, which is public: the server knows it. The distributions are those of Liu et al., "Projected Federated
# Averaging with Heterogeneous Differential Privacy", PVLDB 15(4), 2021. A draw that is not above zero is drawn again, and in a
# mixture at least one client comes from the component with the largest mean (a "public" client).

Spec = float | str | Sequence[float] | np.ndarray | Mapping[str, str] | Mapping[str, float]
MIXTURES = {  # (share, mean, standard deviation); the last component is the public one
    "mixgauss1": ((0.9, 0.1, 0.01), (0.1, 10.0, 0.1)),
    "mixgauss2": ((0.9, 0.5, 0.01), (0.1, 10.0, 0.1)),
    "mixgauss3": ((0.9, 1.0, 0.1), (0.1, 10.0, 0.1)),
    "mixgauss4": ((0.5, 0.1, 0.01), (0.4, 1.0, 0.1), (0.1, 10.0, 1.0)),
}
DISTRIBUTIONS = ("uniform", "gauss", "pareto", *MIXTURES)
NAMED_AT_MOST = 5  # names listed in a refusal


def budgets(spec: Spec, *, clients: int, rng: np.random.Generator, names: Sequence[str] | None = None) -> np.ndarray:
    """The epsilon of each client. `inf` says that a client sets no limit. A file is `{"file": path}`: csv with the columns
    client and epsilon. Raises: BadInput or BadData naming the client whose epsilon is missing, unknown or not above zero.

    >>> budgets("mixgauss1", clients=3, rng=np.random.default_rng(0)).round(1).tolist()
    [0.1, 0.1, 9.9]
    """
    check.at_least(1, clients=clients)
    names = [f"client-{index}" for index in range(clients)] if names is None else names
    if isinstance(spec, str):
        if spec not in DISTRIBUTIONS:
            raise BadInput(
                "Expected privacy.epsilon to be a number, as in 3.0, a list with one for each client, a table by client, a csv"
                f" file, or a distribution ({', '.join(DISTRIBUTIONS)}); got {spec!r}.{check.nearest(spec, DISTRIBUTIONS)}"
            )
        return draw(spec, clients=clients, rng=rng)
    if isinstance(spec, Mapping):
        from_file = set(spec) == {"file"} and isinstance(spec["file"], str)
        pairs = _csv_pairs(Path(str(spec["file"])).expanduser()) if from_file else list(spec.items())
        return _checked(_by_client(pairs, names, where=str(spec["file"]) if from_file else "privacy.epsilon"), names)
    if isinstance(spec, int | float | np.number):
        return np.full(clients, _checked([spec], ["every client"])[0])
    if not isinstance(spec, Sequence | np.ndarray):
        raise BadInput(
            f"Expected privacy.epsilon to be a number, a list, a file or the name of a distribution, got {spec!r}."
        )
    if len(spec) != clients:
        raise BadInput(f"Expected one number per client in privacy.epsilon, got {len(spec)} for {clients} clients.")
    return _checked(list(spec), names)


def draw(name: str, *, clients: int, rng: np.random.Generator) -> np.ndarray:
    """Epsilons from a distribution by name, all above zero."""
    if name in MIXTURES:
        share, mean, deviation = np.array(MIXTURES[name]).T
        chosen = rng.choice(len(share), clients, p=share)
        while not (chosen == len(share) - 1).any():
            chosen = rng.choice(len(share), clients, p=share)
        return _above_zero(lambda where: rng.normal(mean[chosen[where]], deviation[chosen[where]]), clients)
    if name == "uniform":
        return rng.uniform(1, 10, clients)
    if name == "pareto":
        return 0.5 * (1 + rng.pareto(1, clients))  # x_m = 0.5, alpha = 1; NumPy draws the Lomax form
    return _above_zero(lambda where: rng.normal(3, 1, len(where)), clients)


def _above_zero(sample: Callable[[np.ndarray], np.ndarray], clients: int) -> np.ndarray:
    values, again = np.zeros(clients), np.arange(clients)
    while len(again):
        values[again] = sample(again)
        again = again[values[again] <= 0]
    return values


def _checked(values: Sequence[object], names: Sequence[str]) -> np.ndarray:
    for value, name in zip(values, names, strict=True):
        number = math.nan if isinstance(value, bool) or not isinstance(value, int | float | np.number) else float(value)
        if not number > 0:  # NaN is not above zero either
            raise BadInput(f"Expected privacy.epsilon > 0 for {name}, got {value!r}.")
    return np.array(values, dtype=np.float64)


def _by_client(pairs: Sequence[tuple[str, object]], names: Sequence[str], *, where: str) -> list[object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        often = Counter(name for name, _ in pairs)
        twice = check.some([name for name, times in often.items() if times > 1], NAMED_AT_MOST)
        raise BadData(f"{where} names {twice} twice: keep one line each.")
    if unknown := sorted(set(found).difference(names)):
        few = f" ({', '.join(names)})" if len(names) <= NAMED_AT_MOST else ""
        raise BadData(
            f"{where} names {check.some(unknown, NAMED_AT_MOST)}, not among the clients of this data{few}: remove or rename that."
        )
    if absent := [name for name in names if name not in found]:
        raise BadData(f"{where} gives no epsilon for {check.some(absent, NAMED_AT_MOST)}: add it.")
    return [found[name] for name in names]


def _csv_pairs(path: Path) -> list[tuple[str, object]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadData(f"The budgets file {path} cannot be read ({error}): correct epsilon.file.") from error
    rows = [[cell.strip() for cell in row] for row in csv.reader(text.splitlines())]
    if not rows or rows[0] != ["client", "epsilon"]:
        raise BadData(
            f"{path} must begin with the line client,epsilon; found {','.join(rows[0]) if rows else 'nothing'}."
        )
    pairs = []
    for line, row in enumerate(rows[1:], start=2):
        try:
            if row:
                name, value = row
                pairs.append((name, float(value)))
        except ValueError:
            raise BadData(f"{path}, line {line}: expected a client and a number, got {','.join(row)!r}.") from None
    return pairs
