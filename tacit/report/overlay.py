"""Several runs on one page: an entry per cell of a comparison, or per run named, with the band over its seeds.

An epsilon never loses its promise: entries are sorted by what they promise (unit, adversary, relation, delta, and whether whoever
knows a seed can take the noise away), and the page draws a picture of its own for each. Record-level and client-level epsilons
never share an axis."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tacit.engine.evaluate import BACKDOOR
from tacit.engine.run_files import RunFiles, read
from tacit.errors import BadInput
from tacit.lab.compare import results
from tacit.lab.compare.differences import Scored, differences
from tacit.lab.compare.findings import Finding, findings
from tacit.lab.compare.findings import columns as attack_columns
from tacit.lab.compare.grid import GRID, Cell, Task, expand, tasks_of
from tacit.lab.compare.results import BACKDOORED, CONFIDENCE, Estimate, estimate, statement
from tacit.lab.compare.table import AUC
from tacit.parts import metrics
from tacit.report import collect

MOST_PAIRS = 12  # of paired differences, drawn; differences.csv of a comparison has all
SIGNIFICANT = 0.05
MOST_BELLS = 60  # clients of a run that are drawn (html/personal.js)
MOST_ROWS = 1200  # over all runs of a comparison: about a tenth of a megabyte
MOST_POINTS = 300  # of a line of a finding
MOST_NUMBERS = 200  # of a finding: a page is no archive, and the file beside it has all
GUESSING = 0.5  # an AUC that says nothing
CUMULATED = ("uplink_bytes", "downlink_bytes")
DRAWN = re.compile(r'several: "(\w+)"')  # the number that a figure of several runs draws
SPARSE = ("score", "loss")  # of rounds that were tested: others have none
FEDERATION, RESULTS = "federation.toml", "results"  # as tacit/deploy/operate/layout.py has them
Promised = tuple[str, bool]  # a statement, and whether its noise follows from a seed: two promises where either differs
MatrixRow = tuple[str, Estimate | None, Mapping[str, Estimate]]  # a defence, what the model reaches, what attacks reach


@dataclass(frozen=True)
class Entry:
    """One line of the page: a label and its runs, one per seed."""

    label: str
    runs: tuple[RunFiles, ...]
    planned: int
    missing: int = 0  # runs of a comparison that have not begun
    varied: dict[str, Any] = field(default_factory=dict)
    attacked: dict[str, Estimate] = field(default_factory=dict)  # what attacks found, by their titles

    @property
    def ended(self) -> list[RunFiles]:
        return [run for run in self.runs if run.summary is not None]


def entries(folders: Sequence[Path]) -> list[Entry]:
    """What the folders hold, in their order. Raises BadInput in one sentence for a folder that cannot be shown."""
    found: list[Entry] = []
    for folder in folders:
        if not (folder / GRID.file).exists():
            run = read(folder)
            found.append(Entry(called(folder), (run,), run.experiment.train.rounds))
            continue
        cells, tasks = grid_of(folder)
        for cell in cells:
            places = [task.folder for task in tasks if task.cell is cell]
            runs = tuple(read(place) for place in places if (place / "experiment.toml").exists())
            missing, planned = len(cell.experiments) - len(runs), cell.experiments[0].train.rounds
            found.append(Entry(cell.label, runs, planned, missing, cell.varied, attack_columns(folder, cell)))
    counts, seen = Counter(entry.label for entry in found), Counter[str]()
    for index, entry in enumerate(found):
        if counts[entry.label] > 1:
            seen[entry.label] += 1
            found[index] = replace(entry, label=f"{entry.label} ({seen[entry.label]})")
    return found


def called(folder: Path) -> str:
    """What a run's folder is called on a page: a federation's results by the federation, as "results" says nothing to a reader."""
    place = folder.resolve()
    return place.parent.name if place.name == RESULTS and (place.parent / FEDERATION).is_file() else place.name


def grid_of(folder: Path) -> tuple[list[Cell], list[Task]]:
    """The cells of a comparison and its runs. Raises BadInput where its files are damaged."""
    base, vary, seeds = GRID.read(folder)
    cells = expand(base, vary, seeds=seeds)
    return cells, tasks_of(folder, cells)


def several_page(found: Sequence[Entry], *, name: str) -> dict[str, Any]:
    """Everything on the page of several runs."""
    kept = [entry for entry in found if entry.runs]
    if not kept:
        raise BadInput(f"No run of {name} has begun, so there is nothing to show yet.")
    runs = [run for entry in kept for run in entry.runs]
    named = sorted({run.metric for run in runs})
    if len(named) > 1:
        raise BadInput(f"These runs are measured by {' and by '.join(named)}: show those of one metric together.")
    (metric,) = named
    promises = list(dict.fromkeys(one for run in runs if (one := _promised(run))))
    several_sources = len({seeded for _, seeded in promises}) > 1
    common, own = _settings([entry.runs[0] for entry in kept])
    differing = {entry.label: mine for entry, mine in zip(kept, own, strict=True)}
    known = [run.measured for run in runs if run.measured]
    return {
        "kind": "several",
        "name": name,
        "finished": all(run.summary for run in runs) and not any(entry.missing for entry in found),
        "seeded": any(seeded for _, seeded in promises),
        "seeded_alone": [e.label for e in kept if any(run.seeded for run in e.runs)] if several_sources else [],
        "metric": {
            "name": metrics.words(metric),
            "share": metrics.is_share(metric),
            "better": known[0].get("better") if known else None,
            "baseline": collect.short(_mean([one["baseline"] for one in known if one.get("baseline") is not None])),
        },
        "paired": paired(kept),
        "homes": homes(kept, metric=metric),
        "homes_by_client": by_client(kept),
        "last": results.last_rounds(len(run.rounds) for run in runs if run.summary),
        "confidence": 100 * CONFIDENCE,
        "promises": [_promise(runs, one, with_source=several_sources) for one in promises],
        "entries": [_entry(entry, promises) | {"settings": differing.get(entry.label, {})} for entry in found],
        "matrix": matrix([_attacked(entry, metric) for entry in kept], metric=metrics.words(metric)),
        "settings": common,
        "notes": list(dict.fromkeys(note for e in kept for note in (e.runs[0].summary or {}).get("notes") or [])),
    }


def _promised(run: RunFiles) -> Promised | None:
    return (statement(run.guarantee), run.seeded) if run.guarantee else None


def _promise(runs: Sequence[RunFiles], one: Promised, *, with_source: bool) -> dict[str, Any]:
    """One promise in full, without the number: that is each entry's own."""
    words, seeded = one
    promise = next(run.guarantee for run in runs if run.guarantee and _promised(run) == one)
    source = f", noise drawn from {'a seed' if seeded else promise['randomness']}" if with_source else ""
    kept = {key: value for key, value in promise.items() if key != "epsilon"}
    return kept | {"statement": words + source, "seeded": seeded and not with_source}


def _entry(entry: Entry, promises: list[Promised]) -> dict[str, Any]:
    ended = entry.ended
    summaries = [run.summary for run in ended if run.summary]
    found = estimate([_last(run) for run in ended])
    promise, made = next(((run.guarantee, _promised(run)) for run in entry.runs if run.guarantee), (None, None))
    spent = [one["guarantee"]["epsilon"] for one in summaries if one.get("guarantee")]
    return {
        "label": entry.label,
        "seeds": len(entry.runs) + entry.missing,
        "ended": len(ended),
        "planned": entry.planned,
        "rounds": max((len(run.rounds) for run in entry.runs), default=0),
        "early": sum(one["stopped"] == "budget" for one in summaries),
        "score": collect.short(found.mean) if found else None,
        "interval": collect.short(found.interval) if found else None,
        "promise": promises.index(made) if made else None,
        "unit": promise["unit"] if promise else None,
        "epsilon": {end: collect.short(epsilon, up=True) for end, epsilon in results.widest(spent).items()}
        if spent
        else None,
        **{key: collect.short(_mean([one[key] for one in summaries])) for key in ("seconds", *CUMULATED)},
        "stages": collect.stages([record for run in entry.runs for record in run.rounds]),
        "series": _series(entry.runs),
    }


def _last(run: RunFiles) -> float:
    found = results.last(run.rounds, "score")
    return results.final_score(run.summary or {}, run.metric) if found is None else found


def _series(runs: Sequence[RunFiles]) -> dict[str, Any]:
    """Mean, lowest and highest over seeds by round; a run that stopped early keeps its last value."""
    logs = [run.rounds for run in runs if run.rounds]
    longest = max(logs, key=len, default=[])
    at = collect.shown_places([record["score"] is not None for record in longest])
    found: dict[str, Any] = {"round": [index + 1 for index in at]}
    drawn = sorted({key for name in collect.figure_scripts() for key in DRAWN.findall(collect.asset(name))})
    for key in (*drawn, "epsilon_loosest") if at else ():
        rows = [[_number(record.get(key)) for record in log] for log in logs]
        told = [math.isfinite(value) for row in rows for value in row]
        if not (any(told) if key in SPARSE else all(told)):
            continue
        fill = [0.0 if key in CUMULATED else next(filter(math.isfinite, row[::-1]), math.nan) for row in rows]
        held = np.array([row + [end] * (len(longest) - len(row)) for row, end in zip(rows, fill, strict=True)])
        held = (np.cumsum(held, axis=1) if key in CUMULATED else held)[:, at]
        up = key == "epsilon_loosest"  # of an epsilon the largest over seeds: a mean is no promise
        bands = {"mean": held.max(axis=0) if up else held.mean(axis=0)}
        if len(rows) > 1 and not up:
            bands |= {"low": held.min(axis=0), "high": held.max(axis=0)}
        found[key] = {name: [collect.short(value, up=up) for value in band.tolist()] for name, band in bands.items()}
    return found


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _settings(runs: Sequence[RunFiles]) -> tuple[list[Any], list[dict[str, str]]]:
    """Sections of settings that all runs share, and what is each one's own."""
    flat = [{(name, row[0]): row for name, rows in collect.settings(run.experiment) for row in rows} for run in runs]
    same = {
        key: row
        for key, row in flat[0].items()
        if key != ("run", "seed") and all(other.get(key, [None] * 2)[1] == row[1] for other in flat)
    }
    names = dict.fromkeys(name for name, _ in flat[0])
    common = [[name, [row for (section, _), row in same.items() if section == name]] for name in names]
    differ = [{key: row for key, row in one.items() if key not in same and key != ("run", "seed")} for one in flat]
    return common, [{".".join(key): row[1] for key, row in one.items()} for one in differ]


def paired(entries: Sequence[Entry]) -> dict[str, Any] | None:
    """Differences of settings over the seeds they share; None where no two share two seeds."""
    scores = {one.label: {run.experiment.run.seed: _last(run) for run in one.ended} for one in entries}
    known = [one for one in entries if len(scores[one.label]) == len(one.ended)]  # else a seed stands for several runs
    found = differences([Scored(one.label, one.varied, scores[one.label]) for one in known])
    if not any(len(one.seeds) > 1 for one in found):
        return None
    some = [
        {
            "name": f"{one.cell} − {one.than}",
            "seeds": len(one.seeds),
            "value": collect.short(one.mean),
            "interval": [collect.short(one.mean - one.interval), collect.short(one.mean + one.interval)]
            if one.interval is not None
            else [],
            "p": collect.short(one.p),
            "p_holm": collect.short(one.p_holm),
            "shown": one.p_holm is not None and one.p_holm < SIGNIFICANT,
            "each": [collect.short(scores[one.cell][seed] - scores[one.than][seed]) for seed in one.seeds],
        }
        for one in found[:MOST_PAIRS]
    ]
    return {"count": len(found), "some": some}


def homes(entries: Sequence[Entry], *, metric: str) -> dict[str, Any] | None:
    """What clients have alone, from the global model and from their own, setting by setting; None where no run was asked for
    it. From raw rows: no epsilon covers it."""
    told = [(one.label, [found for run in one.ended if (found := results.own_metrics(run))]) for one in entries]
    rows = [(label, found) for label, found in told if found]
    if not rows:
        return None
    return {
        "metric": metrics.words(metric),
        "names": [label for label, _ in rows],
        "seeds": max(len(found) for _, found in rows),
        "models": [[_over(found, key, metric) for key in collect.MODELS] for _, found in rows],
        "gaps": [[_over(found, key, metric) for key in collect.GAPS] for _, found in rows],
    }


def by_client(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The same client by client, run by run, beside each epsilon, by the headline metric: no epsilon covers it. Seeds are
    apart, because another seed may deal rows out to other clients; as many runs as keep the page small."""
    found, left = list[dict[str, Any]](), MOST_ROWS
    for one in entries:
        for run in one.ended:
            table = collect.personal(run)
            parts = table["told"][0] if table else {}
            first = {key: part[:MOST_BELLS] if isinstance(part, list) else part for key, part in parts.items()}
            left -= len(first.get("models", ()))
            if first.get("models") and left >= 0:
                seed = f", seed {run.experiment.run.seed}" if len(one.ended) > 1 else ""
                found.append({"label": f"{one.label}{seed}", "told": first})
    return found


def _over(found: Sequence[dict[str, Any]], key: str, metric: str) -> list[Any]:
    """A mean over seeds with its interval; of one seed, the interval over kept rows."""
    if len(found) == 1:
        return collect.measured(found[0][key])
    mean = estimate(
        [one[key]["value"] for one in found], (-math.inf, math.inf) if "_less_" in key else metrics.bounds(metric)
    )
    return [collect.short(mean.mean), _ends(mean)[1:] if mean.interval is not None else []] if mean else [None, []]


def _ends(found: Estimate) -> list[float | None]:
    """A number with the ends of its interval, which are null where there is none."""
    return [collect.short(found.mean), *map(collect.short, found.ends)]


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


# What attacks reached: a matrix of defences by attacks, and the findings of one experiment. No epsilon covers it.


def _attacked(entry: Entry, metric: str) -> MatrixRow:
    reached = [value for run in entry.ended if (value := results.last(run.rounds, BACKDOOR)) is not None]
    own = estimate(reached, (0.0, 1.0))
    score = estimate([_last(run) for run in entry.ended], metrics.bounds(metric))
    return entry.label, score, ({} if own is None else {BACKDOORED: own}) | entry.attacked


def matrix(rows: Sequence[MatrixRow], *, metric: str) -> dict[str, Any] | None:
    """Defences by attacks; None where nothing was attacked. Every cell is [value, low, high] or null."""
    titles = list(dict.fromkeys(title for *_, found in rows for title in found))
    if not titles:
        return None
    cells = [(label, score, [found.get(title) for title in titles]) for label, score, found in rows]
    return {
        "metric": metric,
        "columns": [{"name": title, "chance": GUESSING if title.endswith(AUC) else 0.0} for title in titles],
        "rows": [
            {"label": label, "score": score and _ends(score), "attacked": [one and _ends(one) for one in attacked]}
            for label, score, attacked in cells
        ],
    }


def attack_page(folder: Path) -> dict[str, Any]:
    """The page of what attacks have left in a folder."""
    found = findings(folder)
    names = dict.fromkeys(one.experiment for one in found)
    return {"kind": "attack", "name": ", ".join(names), "folder": folder.resolve().name, "findings": shown(found)}


def shown(found: Sequence[Finding]) -> list[dict[str, Any]]:
    """Findings as plain values, with no more points than a line can show."""
    records = [one.record() for one in found]
    for record in records:
        for key in ("options", "seconds", "key"):
            record.pop(key, None)
        record["more"] = max(0, len(record["estimates"]) - MOST_NUMBERS)
        record["estimates"] = record["estimates"][:MOST_NUMBERS]
        for line in (line for plot in record["plots"] for line in plot["lines"]):
            at = np.unique(np.linspace(0, len(line["x"]) - 1, min(MOST_POINTS, len(line["x"]))).round().astype(int))
            values = {key: line[key] for key in ("x", "y", "low", "high")}
            line |= {key: one and [collect.short(one[i]) for i in at] for key, one in values.items()}
    return records
