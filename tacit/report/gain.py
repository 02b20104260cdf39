"""`tacit plan EXPERIMENT --gain`: what each site may expect of joining at its epsilon, and from which epsilon on it pays.

It is the random-effects model of tacit/personal/everybody.py with the noise that the experiment's own plan gives every site. What
is known of the sites is public: rows, epsilons, settings. Nobody knows how much they differ (tau): it is said, or three are shown.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from rich.table import Table
from rich.text import Text

from tacit import check
from tacit.data.budgets import budgets
from tacit.data.columns import column_of
from tacit.data.csv import declared_classes
from tacit.data.dataset import Dataset
from tacit.data.load import load, source
from tacit.data.names import NUMBERS
from tacit.data.population import Population
from tacit.data.sources import csv, npz
from tacit.engine.assemble import clients, model_size
from tacit.engine.run_files import read
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.privacy.plan import kind_of
from tacit.random import seeded

# What a site may expect of joining before anybody has trained: the random-effects model, solved.


@dataclass(frozen=True, eq=False)
class Sites:
    """Everybody's number of rows, the variance of the noise on what each sends (inf: it sends nothing), and tau^2."""

    rows: np.ndarray
    noise: np.ndarray
    between: float


@dataclass(frozen=True)
class Errors:
    """Of one site: without joining, by the common model, and by its own model after joining.

    >>> Errors(alone=0.1, common=0.2, own=0.05).gains
    (-1.0, 0.5)
    """

    alone: float
    common: float
    own: float

    @property
    def gains(self) -> tuple[float, float]:
        """How much less than alone a site errs with the common model, and with its own made of it; below 0 it errs more."""
        return 1 - self.common / self.alone, 1 - self.own / self.alone


def expected(sites: Sites, index: int) -> Errors:
    """The expected errors of one site, in closed form.

    >>> found = expected(Sites(np.array([20, 20]), np.zeros(2), between=0.0), 0)
    >>> round(found.alone, 3), round(found.common, 3), round(found.own, 3)
    (0.05, 0.025, 0.025)
    """
    seen = 1 / sites.rows + sites.noise
    information = 1 / (sites.between + seen)
    others = float(information.sum() - information[index])
    weights = information / information.sum()
    own, kept = float(weights[index]), np.isfinite(seen)
    common = sites.between * (float((weights**2).sum()) - own**2 + (1 - own) ** 2)
    common += float((weights[kept] ** 2 * seen[kept]).sum())
    prior = sites.between + 1 / others if others > 0 else np.inf  # of the optimum, from what the others sent
    return Errors(1 / float(sites.rows[index]), common, float(1 / (sites.rows[index] + 1 / prior)))


FILES = ("csv", "npz")


def unread(experiment: Experiment, *, rows: int, columns: int | None) -> tuple[Dataset, Population]:
    """What rows look like, by one of zeros, and the sites with so many of them each.

    Guarantee: of csv and npz no file is opened; the data that comes with Tacit is public. `columns` is how many features a row has
    where the experiment does not say it.

    Raises: BadInput where nothing says how many sites there are, what a row looks like, or which classes there are.
    """
    looks = _looks(experiment, columns)
    return looks, sites_of(experiment, _names(experiment), np.full(len(_names(experiment)), rows), looks)


def sites_of(experiment: Experiment, names: tuple[str, ...], sizes: np.ndarray, looks: Dataset) -> Population:
    """Clients by name and size, without rows: one stands for all of them, so that no memory is taken."""
    privacy, rng = experiment.privacy, seeded(experiment.seeds.data)("budgets").generator()
    said = float("inf") if privacy.epsilon is None else privacy.epsilon
    epsilons = budgets(said, clients=len(names), rng=rng, names=names)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    x = looks.x[:1].expand(int(offsets[-1]), *looks.x.shape[1:])
    y = looks.y[:1].expand(int(offsets[-1]), *looks.y.shape[1:])
    return Population(x, y, offsets, names, epsilons, privacy.run_delta, privacy.unit_kept)


def _names(experiment: Experiment) -> tuple[str, ...]:
    epsilon, data = experiment.privacy.epsilon, experiment.data
    if isinstance(epsilon, dict) and set(epsilon) != {"file"}:
        return tuple(epsilon)
    count = len(epsilon) if isinstance(epsilon, tuple) else data.clients
    if not isinstance(epsilon, tuple) and data.name in FILES and "clients" not in data.model_fields_set:
        raise BadInput(
            "Without rows nothing says how many sites there are: name them in privacy.epsilon, as in epsilon = {north = 1.0,"
            " coast = 3.0}, or say --set data.clients=3."
        )
    return tuple(f"client-{index}" for index in range(count))


def _looks(experiment: Experiment, columns: int | None) -> Dataset:
    data = experiment.data
    if data.name not in FILES:
        if columns is not None:
            raise BadInput(f"columns=N is for rows in files, and the {data.name} data has its own: leave it out.")
        return load(data, seed=experiment.seeds.data)
    files = cast(csv | npz, source(data))
    classes = declared_classes(files)
    if not classes and files.classes != NUMBERS:
        raise BadInput(
            'Without rows nothing says which classes there are: list them, as in data.classes = ["no", "yes"].'
        )
    x = torch.zeros(1, *_shape(files, columns))
    y = torch.zeros(1, dtype=torch.int64 if classes else torch.float32)
    return Dataset(data.name, x, y, x[:0], y[:0], classes)


def _shape(files: csv | npz, columns: int | None) -> tuple[int, ...]:
    """The shape of a row: as somebody says, else by what is declared of columns."""
    if columns is not None:
        check.at_least(1, columns=columns)
        return (columns,)
    if isinstance(files, npz):
        known = tuple(files.shape or ())
    else:
        named = files.columns or (*files.ranged, *(name for name in files.categorical if name not in files.ranged))
        known = (sum(column_of(name, files).width for name in named),) if named else ()
    if not known:
        raise BadInput(
            "Without rows nothing says how many features one has: list data.columns, or say --with columns=N."
        )
    return known


TAUS = (0.03, 0.1, 0.3)  # shown where nobody says how much sites differ
EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0)
PAYS = 0.05  # of its error, which a site must lose before its own model is said to pay
MOST_SITES, WIDE = 12, 24
SUFFIXES = (".png", ".svg")


@dataclass(frozen=True)
class Gains:
    """What every site may expect at its epsilon, and one site's gains if everybody allowed an epsilon."""

    taus: tuple[float, ...]
    parameters: int
    sites: list[dict[str, Any]]
    site: str
    curves: dict[float, list[dict[str, float]]] = field(repr=False)
    pays: dict[float, dict[str, float | None]]
    everybody: int  # how many sites there are, of which some are shown
    asked: dict[str, float]  # in how many rounds a site is expected to be asked, of how many
    half: dict[float, dict[str, float]]  # the gains of the one site if everybody were asked half as often

    def record(self) -> dict[str, Any]:
        """As plain values."""
        curves = [{"tau": tau, "gains": curve, "pays_from": self.pays[tau]} for tau, curve in self.curves.items()]
        half = [{"tau": tau, **gains} for tau, gains in self.half.items()]
        often = {"asked": self.asked, "asked_half_as_often": half}
        return {"assumes": assumptions(self), "sites": self.sites, "site": self.site, **often, "curves": curves}


def of_experiment(
    experiment: Experiment,
    *,
    tau: float | None = None,
    rows: int | None = None,
    site: str | None = None,
    columns: int | None = None,
) -> Gains:
    """What sites may expect of joining; `site` names the one whose curve is drawn.

    `rows` takes the place of every site's number, and then no row is read; `columns` is how many features one has, where the
    experiment does not say it. Raises: BadInput for a kind of privacy in which a site adds no noise of its own to gradients of
    records, and for a site or a number that there is not.
    """
    privacy = experiment.privacy
    if not privacy.noises_records:
        raise BadInput(
            'What joining is worth is worked out where every site noises its own records: set privacy.kind = "local" with unit ='
            ' "record".'
        )
    if tau is not None:
        check.at_least(0, tau=tau)
    if rows is None:
        if columns is not None:
            raise BadInput("columns=N is for rows that nobody has read: say rows=N too, or leave it out.")
        dataset, _, population = clients(experiment)
    else:
        check.at_least(1, rows=rows)
        dataset, population = unread(experiment, rows=rows, columns=columns)
    sizes = population.sizes
    middle = int(np.argsort(sizes, kind="stable")[len(sizes) // 2])
    if site is not None and site not in population.names:
        raise BadInput(f"There is no client {site!r}.{check.nearest(site, population.names)}")
    chosen = middle if site is None else population.names.index(site)
    size, taus = model_size(experiment, dataset), TAUS if tau is None else (tau,)

    def noise(epsilons: np.ndarray) -> np.ndarray:
        return noises(experiment, replace(population, epsilons=epsilons), sizes, parameters=size)

    now = noise(population.epsilons)
    by_epsilon = {epsilon: noise(np.full(len(population), epsilon)) for epsilon in EPSILONS}
    curves = {t: [_gains(Sites(sizes, by_epsilon[e], t**2), chosen, e) for e in EPSILONS] for t in taus}
    sites = [
        {"site": population.names[m], "rows": int(sizes[m]), "epsilon": float(population.epsilons[m])}
        | {"gains": [_gains(Sites(sizes, now, t**2), m) | {"tau": t} for t in taus]}
        for m in _some(sizes, population)
    ]
    pays = {t: {"common": _from(curve, "common", 0.0), "own": _from(curve, "own", PAYS)} for t, curve in curves.items()}
    half = {t: _gains(Sites(sizes, 2 * now, t**2), chosen) for t in taus}
    share = min(1.0, (experiment.train.clients_per_round or len(population)) / len(population))
    asked = {"rounds": share * experiment.train.rounds, "of": float(experiment.train.rounds)}
    return Gains(taus, size, sites, population.names[chosen], curves, pays, len(population), asked, half)


def noises(experiment: Experiment, population: Population, sizes: np.ndarray, *, parameters: int) -> np.ndarray:
    """The variance of the noise on what every site sends, in units of a row's own, from the experiment's plan.

    All steps of all planned rounds average it; the clip is as long as a row's gradient, sqrt(parameters).
    """
    plan: Any = kind_of(experiment).plan(experiment, population, size=parameters)
    steps = plan.steps * plan.participations
    return (np.sqrt(parameters) * plan.multipliers / (plan.rates * sizes)) ** 2 / steps


def _gains(sites: Sites, index: int, epsilon: float | None = None) -> dict[str, float]:
    common, own = expected(sites, index).gains
    return ({} if epsilon is None else {"epsilon": epsilon}) | {"common": common, "own": own}


def _some(sizes: np.ndarray, population: Population) -> Sequence[int]:
    if len(population) <= MOST_SITES:
        return range(len(population))
    order = np.argsort(sizes, kind="stable")  # of many, some from the smallest to the largest
    return [int(order[k]) for k in np.linspace(0, len(order) - 1, MOST_SITES).round().astype(int)]


def _from(curve: list[dict[str, float]], which: str, least: float) -> float | None:
    """The epsilon at which a gain passes `least`, between two that were tried; None where none of them does."""
    above = next((place for place, point in enumerate(curve) if point[which] > least), None)
    if not above:
        return None if above is None else curve[0]["epsilon"]
    before, point = curve[above - 1], curve[above]
    part = (least - before[which]) / (point[which] - before[which])
    low, high = math.log(before["epsilon"]), math.log(point["epsilon"])
    return math.exp(low + part * (high - low))


def assumptions(gains: Gains) -> list[str]:
    """What the numbers rest on, a line each."""
    return [
        f"a model of {gains.parameters} numbers, each row showing its site's optimum with variance 1 in each of them",
        "sites' optima differ by tau (a standard deviation, in the same units), and by nothing else",
        "noise as the plan has it, averaged over all steps; the clip is as long as a row's gradient; nobody drops out",
        "own: the best combination of the others' answers and the site's own rows, which carry no noise at home",
        "errors are squared distances, not the metric of a run; tau is guessed, or from a run (--with tau=RUN)",
        "numbers of rows and epsilons are the experiment's, or as said; no row enters, and no gain is promised",
    ]


def tables(gains: Gains) -> list[Table]:
    """Sites at their epsilon, and the gains of one of them against epsilon as bars."""
    shown = Table(title="what joining may be worth: how much less a site errs than alone (below 0: more)")
    for head in ("site", "rows", "epsilon", *(f"tau {t:.3g}: common, own" for t in gains.taus)):
        shown.add_column(head)
    for site in gains.sites:
        cells = [f"{_percent(one['common'])}, {_percent(one['own'])}" for one in site["gains"]]
        shown.add_row(Text(site["site"]), str(site["rows"]), f"{site['epsilon']:.4g}", *cells)
    if gains.everybody > len(gains.sites):
        shown.caption = (
            f"{len(gains.sites)} of {gains.everybody} sites, from the fewest to the most rows; --json has the same"
        )
    bars = Table(title=Text(f"{gains.site}, if everybody allowed epsilon (a bar is what its personalised model gains)"))
    for head in ("epsilon", *(f"tau {t:.3g}" for t in gains.taus)):
        bars.add_column(head)
    wide = WIDE // max(1, len(gains.taus) - 1)
    for place, epsilon in enumerate(EPSILONS):
        points = [gains.curves[t][place] for t in gains.taus]
        bars.add_row(
            f"{epsilon:g}", *(f"{'█' * round(wide * max(0.0, p['own'])):<{wide}} {_percent(p['own'])}" for p in points)
        )
    return [shown, bars]


def pays(gains: Gains) -> list[str]:
    """How often a site is asked, and from which epsilon on it pays, a line for every tau."""
    rounds, of = gains.asked["rounds"], gains.asked["of"]
    now = next((one["gains"] for one in gains.sites if one["site"] == gains.site), None)
    lines = [f"A site is expected to be asked in {rounds:.4g} of {of:g} rounds."]
    for place, tau in enumerate(gains.taus):
        other = gains.half[tau]
        before, after = _percent(now[place]["own"]) if now else "", _percent(other["own"])
        instead = f" instead of {before}" if now and before != after else ""
        lines.append(
            f"tau {tau:.3g}: were everybody asked half as often, with this noise, {gains.site} would gain"
            f" {after}{instead} by its personalised model, and {_percent(other['common'])} by the global one."
        )
    for tau in gains.taus:
        found = gains.pays[tau]
        own = f"a personalised model gains {100 * PAYS:.0f} % {_since(found['own'])}"
        lines.append(f"tau {tau:.3g}: {own}; the global model beats staying alone {_since(found['common'])}.")
    return lines


def _since(epsilon: float | None) -> str:
    return f"from epsilon {epsilon:.2g} on" if epsilon is not None else f"at no epsilon up to {EPSILONS[-1]:g}"


def _percent(share: float) -> str:
    return f"{100 * share:+.0f} %" if share > -9.995 else "< -999 %"


def refuse_picture(path: Path) -> None:
    """Raises BadInput for a picture that could not be written."""
    if path.suffix.lower() not in SUFFIXES:
        raise BadInput(f"Expected a picture named .png or .svg, got {path.name!r}.")
    if not path.parent.is_dir():
        raise BadInput(f"There is no folder {path.parent} for the picture: make it first.")


def draw(path: Path, gains: Gains) -> None:
    """The picture: gain against epsilon, as PNG or SVG by the suffix. Raises BadInput for another one."""
    from matplotlib.figure import Figure

    refuse_picture(path)
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for number, (tau, curve) in enumerate(gains.curves.items()):
        x = [point["epsilon"] for point in curve]
        for which, style in (("own", "-"), ("common", "--")):
            y = [max(-1.0, point[which]) for point in curve]
            axes.plot(x, y, style, color=f"C{number}", label=f"{which}, tau {tau:.3g}")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set(
        xscale="log",
        ylim=(-1.05, 1.05),
        xlabel="epsilon that everybody allows",
        ylabel="share of the error that is gained",
    )
    axes.set_title(f"{gains.site}: what joining may be worth (a model, not a promise)")
    axes.legend()
    figure.savefig(path)


SOMETHING = Dataset(
    "", torch.zeros(1, 1), torch.zeros(1), torch.zeros(0, 1), torch.zeros(0), ()
)  # for rows of any kind


def tau_of(run: Path) -> float:
    """The tau of a run's last round, as a standard deviation between sites' optima in units of a row's own.

    Guarantee: it is a function of what the run released and of public numbers.

    Raises: BadInput for a folder that holds no such run, or whose rule does not estimate how much clients differ.
    """
    files = read(run)
    taus = [record["tau"] for record in files.rounds if isinstance(record.get("tau"), int | float)]
    if not taus or files.clients is None or files.summary is None:
        raise BadInput(
            f'{run} does not say how much its clients differ: only a finished run with aggregate.rule = "random-effects" does,'
            " which is the rule where epsilons differ; say --with tau=0.1 instead."
        )
    experiment = files.experiment
    if not experiment.privacy.noises_records:
        raise BadInput(f'{run} is no run of privacy.kind = "local" with unit = "record": say --with tau=0.1 instead.')
    names, sizes, size = tuple(files.clients["names"]), np.array(files.clients["records"]), files.summary["parameters"]
    population = sites_of(experiment, names, sizes, SOMETHING)
    plan: Any = kind_of(experiment).plan(experiment, population, size=size)
    sent = plan.update_noise(sizes, learning_rate=experiment.train.learning_rate) ** 2
    one_round = noises(experiment, population, sizes, parameters=size) * plan.participations
    return float(taus[-1] * np.sqrt(np.median(one_round / sent)))
