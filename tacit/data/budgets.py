"""The epsilon of each client: one number, a list, a table by name, a file, or a distribution by name. The distributions are
those of Liu et al., "Projected Federated Averaging with Heterogeneous Differential Privacy", PVLDB 15(4), 2021. A draw that is
not above zero is drawn again, and in a mixture at least one client comes from the component with the largest mean (a "public"
client). An epsilon is public: it is known to the server."""

import csv
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from tacit import check
from tacit.errors import BadData, BadInput

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
        check.one_of(DISTRIBUTIONS, **{"privacy.epsilon": spec})
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
        raise BadData(
            f"{where} names {_some([name for name, times in often.items() if times > 1])} twice: keep one line each."
        )
    if unknown := sorted(set(found).difference(names)):
        few = f" ({', '.join(names)})" if len(names) <= NAMED_AT_MOST else ""
        raise BadData(
            f"{where} names {_some(unknown)}, not among the clients of this data{few}: remove or rename that."
        )
    if absent := [name for name in names if name not in found]:
        raise BadData(f"{where} gives no epsilon for {_some(absent)}: add it.")
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


def _some(names: Sequence[str]) -> str:
    more = len(names) - NAMED_AT_MOST
    return ", ".join(names[:NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")
