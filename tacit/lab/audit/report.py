"""Reports of audits: of canaries promised, shown and measured side by side, never merged; of mechanisms a row for each check; and,
for the page, pictures of an audited run in few plain numbers."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from decimal import ROUND_FLOOR, Context
from typing import Any

import numpy as np
from rich.console import Group
from rich.table import Table as Drawn

from tacit.lab.audit import evidence
from tacit.lab.audit.estimate import Charged, Measured, Traces, measured, scores
from tacit.lab.audit.evidence import Audit, Judged
from tacit.privacy.guarantee import shown
from tacit.table import COUNT, Column, Table, for_json

POINTS, BINS, LOOKS = 60, 24, 6
FEWEST = 10  # canaries out that a point of a curve stands for
PREDICTED = 20_000  # canaries of the mechanism that was priced, from which densities are predicted
MOST = 4_000_000  # numbers that are drawn for it
NOTHING = 1e-4  # below it an exact number is rounding
Layer = tuple[str, int, int]  # name, first and last but one coordinate


@dataclass(frozen=True)
class Alike:
    """Clients who were charged for the same, and the canaries among them."""

    clients: int
    canaries: int
    promised: float
    no_assumption: float
    within_family: float
    measured: Measured

    @property
    def rejected(self) -> str:
        """Why the claim does not stand; empty where it does."""
        for name, value in (("measured", self.measured.low), ("shown", max(self.no_assumption, self.within_family))):
            if value > self.promised:
                return f"at least {at_least(value)} is {name}, where at most {shown(self.promised)} is promised"
        if self.measured.dependent:
            return "noise or draws of different rounds hang together, which the price does not allow for"
        return self.measured.quiet


@dataclass(frozen=True)
class RunAudit:
    """The audit of a run. `looks` counts this one; `share` is what it had of the level, as run number `place` of a ledger."""

    name: str
    groups: tuple[Alike, ...]
    looks: int
    place: int | None
    share: float
    delta: float
    unit: str
    notes: tuple[str, ...] = ()
    pooled: int = 1  # how many runs' canaries were taken in total
    against: str = ""  # the adversary and the change that every epsilon here is for
    earlier: int = 0  # at how many other pools with one of these runs somebody has looked: each halves the level
    faint: bool = False  # whether it could hardly have shown a fault

    @property
    def alarming(self) -> bool:
        return any(group.rejected for group in self.groups)

    @property
    def cannot_tell(self) -> bool:
        """Whether nothing is rejected because next to nothing could have been."""
        return self.faint and not self.alarming

    @property
    def sentence(self) -> str:
        looks = "first look" if self.looks == 1 else f"look {self.looks}, which sees what the first one saw"
        more = f" Canaries of {self.pooled} runs." if self.pooled > 1 else ""
        times = "once" if self.earlier == 1 else f"{self.earlier} times"
        more += f" Other choices of these runs were looked at {times} before." if self.earlier else ""
        for group in self.groups:
            if group.rejected:
                return f"The claim is rejected: {group.rejected} (95 %, {looks}).{more}"
        faint = "This audit cannot tell: nothing contradicts the claim, and with so few canaries hardly anything could have."
        verdict = faint if self.cannot_tell else "The claim stands."
        return f"{verdict} Coins committed to before the first round, {looks}.{more}"

    def record(self) -> dict[str, Any]:
        names = ["name", "unit", "delta", "looks", "place", "share", "pooled", "earlier", "against", "sentence"]
        return {name: getattr(self, name) for name in names} | {
            "notes": list(self.notes),
            "groups": [for_json(asdict(group)) | {"rejected": group.rejected} for group in self.groups],
            "rejected": self.alarming,
            "cannot_tell": self.cannot_tell,
        }

    def table(self) -> Drawn:
        """A row for each group of clients that were charged alike: promised, shown and measured stand side by side."""
        who, groups = self.unit, self.groups
        title = f"{self.name}: epsilon by {who} at delta = {self.delta:g}, for clients charged alike"
        level = (
            f"{self.against}\na true promise is below what is measured as run half of the time: only `at least` accuses"
        )
        level += "\nshown and measured: 95 % over all rows"
        if self.place is not None:
            level += f" and all runs of the ledger, of which this is number {self.place}"
        columns = [
            Column("clients", [str(group.clients) for group in groups]),
            Column("canaries", [group.canaries for group in groups], COUNT),
            Column("promised", [f"≤ {shown(group.promised)}" for group in groups]),
            Column("shown, no\nassumption", [f"≥ {at_least(group.no_assumption)}" for group in groups]),
            Column("shown,\nfamily", [f"≥ {at_least(group.within_family)}" for group in groups]),
            Column("measured\nas run", [f"{group.measured.epsilon:.3g}" for group in groups]),
            Column("measured\nat least", [at_least(group.measured.low) for group in groups]),
        ]
        red = [number for number, group in enumerate(groups) if group.rejected]
        return Table(columns, title=title).terminal(caption=level, red=red)


def at_least(value: float) -> str:
    """A lower bound for print, rounded down to three digits: nobody is accused of more than was shown."""
    if not math.isfinite(value):
        return "inf"
    return f"{float(Context(prec=3, rounding=ROUND_FLOOR).create_decimal(repr(float(value)))):g}"


def pictures(
    traces: Traces, charged: Charged, places: np.ndarray, layers: Sequence[Layer], *, level: float
) -> dict[str, Any]:
    """All pictures of one group: how well coins were guessed, scores over predicted densities, epsilon by round, noise by layer."""
    ratios = scores(traces, charged)
    return {
        "roc": _roc(ratios, traces.coins, charged),
        "scores": _scores(ratios, traces.coins, charged),
        "by_round": _by_round(traces, charged, level=level),
        "layers": _layers(traces, charged, places, layers, level=level),
    }


def _roc(ratios: np.ndarray, coins: np.ndarray, charged: Charged) -> dict[str, list[float]]:
    # the share of canaries in that are called in, over the share of canaries out that are; and the most that is promised
    false = np.geomspace(min(1.0, max(FEWEST / max(1, int((~coins).sum())), 1e-4)), 1.0, POINTS)
    limits = np.quantile(ratios[~coins], 1 - false, method="higher") if (~coins).any() else np.zeros(POINTS)
    true = [float((ratios[coins] >= limit).mean()) if coins.any() else 0.0 for limit in limits]
    inverse = charged.inverse(1.0)
    return {"false": _short(false), "true": _short(true), "most": _short([1 - inverse(1 - float(a)) for a in false])}


def _scores(ratios: np.ndarray, coins: np.ndarray, charged: Charged) -> dict[str, list[float]]:
    # densities of scores, of canaries in and out, as seen and as predicted by what was priced
    rng = np.random.default_rng(20_261_116)  # of the prediction alone
    count = max(200, min(PREDICTED, MOST // max(1, charged.rounds), MOST // (charged.steps + 1)))
    drawn = rng.binomial(charged.steps, charged.rate, size=(charged.rounds, count))
    noise = charged.multiplier * np.sqrt(charged.steps) * rng.standard_normal(drawn.shape)
    expected = [scores(Traces(part + noise, drawn, np.ones(count, bool)), charged) for part in (drawn, 0 * drawn)]
    low, high = np.quantile(np.concatenate([ratios, *expected]), [0.001, 0.999]).tolist()
    edges = np.linspace(low, high, BINS + 1)
    parts = {"in": ratios[coins], "out": ratios[~coins], "expected_in": expected[0], "expected_out": expected[1]}
    widths = edges[1] - edges[0]
    densities = {name: np.histogram(part, edges)[0] / max(1, len(part)) / widths for name, part in parts.items()}
    return {name: _short(part) for name, part in ({"at": (edges[:-1] + edges[1:]) / 2} | densities).items()}


def _by_round(traces: Traces, charged: Charged, *, level: float) -> dict[str, list[float]]:
    rounds = np.unique(np.linspace(1, len(traces.seen), LOOKS).round().astype(int)).tolist()
    rows = []
    for r in rounds:
        so_far = replace(charged, count=charged.steps * r)
        estimate = measured(Traces(traces.seen[:r], traces.drawn[:r], traces.coins), so_far, level=level)
        rows.append((so_far.epsilon(), estimate.epsilon, estimate.low, estimate.high))
    columns = zip(("promised", "measured", "low", "high"), zip(*rows, strict=True), strict=True)
    return {"round": rounds} | {name: [round(min(value, 1e6), 4) for value in column] for name, column in columns}


def _layers(
    traces: Traces, charged: Charged, places: np.ndarray, layers: Sequence[Layer], *, level: float
) -> list[list[Any]]:
    residual = (traces.seen - traces.drawn) / (charged.multiplier * np.sqrt(charged.steps))
    rows = []
    for name, start, stop in layers:
        mine = residual[:, (places >= start) & (places < stop)]
        if mine.size:
            noise = evidence.noise(float((mine.astype(float) ** 2).sum()), mine.size)
            rows.append([name, *_short([noise.value, *noise.limits(level / len(layers))])])
    return rows


def _short(values: Any) -> list[float]:
    return [float(f"{float(value):.4g}") for value in values]


def by_trainer(audit: Audit) -> Group:
    """A table for each trainer: every number with its limits, or with the threshold that it is held against."""
    title = f"{audit.name}: the mechanism as run" + (f", with the bug {audit.bug} planted" if audit.bug else "")
    level = f"a true claim is rejected, by any of the checks, with probability at most {audit.false_alarm:.2g}"
    trainers, tables = list(dict.fromkeys(one.check.where for one in audit.judged)), []
    for trainer in trainers:
        mine = [one for one in audit.judged if one.check.where == trainer]
        checks = [one.check for one in mine]
        columns = [
            Column("as run", [", ".join(filter(None, (check.quantity, check.part))) for check in checks]),
            Column("claimed", [_number(check.claimed * check.unit) for check in checks]),
            Column("measured", [_number(check.evidence.value * check.unit) for check in checks]),
            Column("limits", [_limits(one) for one in mine]),
            Column("verdict", [one.verdict for one in mine]),
        ]
        red = [number for number, one in enumerate(mine) if one.rejected]
        caption = level if trainer == trainers[-1] else ""
        tables.append(Table(columns, title=f"{title}: {trainer}").terminal(caption=caption, wrap=True, red=red))
    return Group(*tables)


def _limits(one: Judged) -> str:
    return one.against or f"{one.low * one.check.unit:.3g}–{one.high * one.check.unit:.3g}"


def _number(value: float) -> str:
    return "0" if abs(value) < NOTHING else f"{value:.4g}"
