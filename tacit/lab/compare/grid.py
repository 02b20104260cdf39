"""The grid of a comparison: every combination of the varied values, each with every seed, validated before anything runs.
An option of `[aggregate]` goes only to the rules that take it. Combinations that are then the same experiment are one cell."""

import hashlib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from tacit import check, plugin, store
from tacit.algorithms import rules
from tacit.engine.assemble import build
from tacit.engine.run_files import intact
from tacit.engine.run_folder import COMPARISON, says_same
from tacit.errors import BadInput, RunExists, TacitError
from tacit.experiment import Experiment
from tacit.experiment.file import dumps, parse_value
from tacit.experiment.training import AggregateSection
from tacit.parts import metrics
from tacit.parts.tasks import headline

OPEN, CLOSE, QUOTES = "[{", "]}", "\"'"
LONGEST_VALUE = 24  # characters of a value in a label
OWN = frozenset(AggregateSection.model_fields)  # the keys of [aggregate] that are no options of a rule
DEFAULT_RULE = "random-effects"
NO_TEST_ROWS = (
    "A comparison draws what every round reaches on public test rows, and there are none: name a file of public rows"
    " (data.test_path), or set data.test_share, which makes that share of the clients' own rows public."
)
LONGEST_SLUG = 120  # a folder's name may have 255 bytes
REFUSED = {
    "run.seed": "run.seed is what --seeds counts up: set the first one with --set run.seed=N.",
    "run.workers": "Every run of a comparison trains in one process: say with --jobs how many run concurrently.",
    "privacy.ledger": "The runs of a comparison have one ledger, or each its own: set it once, with --set privacy.ledger=FILE.",
}
BASE = "base.toml"  # the settings; runs are in runs/<cell>/seed-<n>


def parse_vary(lines: Iterable[str]) -> dict[str, list[Any]]:
    """`section.key=value,value` lines as keys and their values. Raises BadInput."""
    vary: dict[str, list[Any]] = {}
    for line in lines:
        key, separator, values = line.partition("=")
        key = key.strip()
        if not separator or not key:
            raise BadInput(f"Expected --vary section.key=value,value, got {line!r}.")
        if key in vary:
            raise BadInput(f"{key} is varied twice: give all its values in one --vary.")
        vary[key] = [parse_value(value) for value in split(values)]
    return vary


def split(values: str) -> list[str]:
    """Cuts at the commas that stand outside brackets, braces and quotes."""
    parts, depth, quote = [""], 0, ""
    for character in values:
        if quote:
            quote = "" if character == quote else quote
        elif character in QUOTES:
            quote = character
        depth += 0 if quote else (character in OPEN) - (character in CLOSE)
        if character == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += character
    if depth or quote:
        raise BadInput(f"Expected every bracket and quote to be closed in {values!r}.")
    if not all(part.strip() for part in parts):
        raise BadInput(f"Expected a value before and after every comma of --vary KEY=VALUE,VALUE, got {values!r}.")
    return [part.strip() for part in parts]


def text(value: Any) -> str:
    """A value as a person would type it."""
    return value if isinstance(value, str) else dumps({"x": [value]}).strip()[len("x = [") : -len("]")]


def label(varied: Mapping[str, Any], *, every_key: bool = False) -> str:
    """A cell in words: texts alone, numbers after their key."""
    words = []
    for key, value in varied.items():
        if value is None:
            continue
        name = key if every_key else key.rpartition(".")[2].replace("_", " ")
        alone = isinstance(value, str) and not every_key
        words.append(short(text(value)) if alone else f"{name} {short(text(value))}")
    return ", ".join(words)


def short(words: str) -> str:
    """A value that fits into a label, with both its ends: they tell values apart."""
    half = (LONGEST_VALUE - 1) // 2
    return words if len(words) <= LONGEST_VALUE else f"{words[:half]}…{words[-half:]}"


def headings(keys: Iterable[str]) -> list[str]:
    """The varied keys as column names: without their section, unless two would be the same."""
    all_keys = list(keys)
    ends = [key.rpartition(".")[2].replace("_", " ") for key in all_keys]
    return [end if ends.count(end) == 1 else key for key, end in zip(all_keys, ends, strict=True)]


def size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


@dataclass(frozen=True)
class Cell:
    """One combination: what it varies (None where an option does not belong to its rule), and an experiment per seed."""

    label: str
    slug: str
    varied: dict[str, Any]
    experiments: tuple[Experiment, ...] = field(repr=False)

    @property
    def rule(self) -> str:
        return self.experiments[0].aggregate.rule or DEFAULT_RULE


def expand(values: Mapping[str, Any], vary: Mapping[str, Sequence[Any]], *, seeds: int) -> list[Cell]:
    """All cells, in the order given. Raises BadInput in one sentence for the first that cannot be."""
    check.at_least(1, seeds=seeds)
    _check_keys(vary)
    found: dict[str, tuple[dict[str, Any], Experiment]] = {}
    for combination in product(*vary.values()):
        paths = dict(zip(vary, combination, strict=True))
        chosen = _taken(_applied(values, paths))
        varied = {key: value if _said(chosen, key) else None for key, value in paths.items()}
        experiment = Experiment(**chosen)
        found.setdefault(experiment.toml(), (varied, experiment))
    varieds, experiments = zip(*found.values(), strict=True)
    _refuse_useless_options(values, vary, experiments)
    labels = _labels(varieds, experiments[0].name)
    every = zip(labels, map(_slug, varieds), varieds, (seeded(one, seeds) for one in experiments), strict=True)
    return [Cell(*parts) for parts in every]


def refuse_two_metrics(cells: Sequence[Cell]) -> None:
    """Refuses a grid whose cells are not judged by one metric: no table or figure could compare them. Raises BadInput."""
    named = sorted({metrics.words(headline(cell.experiments[0])) for cell in cells})
    if len(named) > 1:
        raise BadInput(f"Cells are compared by one metric, not by {' and by '.join(named)}: set metric.choose.")


def try_out(cell: Cell) -> None:
    """Builds a cell's first experiment, data included, so that what cannot run is refused before anything runs."""
    try:
        parts = build(cell.experiments[0])
    except TacitError as error:
        raise BadInput(f"{cell.label}: {error}" if cell.varied else str(error)) from error
    if not len(parts.dataset.test_y):
        own = any(key.startswith("data.") for key in cell.varied)
        raise BadInput(f"{cell.label}: {NO_TEST_ROWS}" if own else NO_TEST_ROWS)


def _check_keys(vary: Mapping[str, Sequence[Any]]) -> None:
    for key, choices in vary.items():
        section, _, name = key.partition(".")
        if not section or not name:
            raise BadInput(f"Expected what varies as section.key=value,value, got {key!r}.")
        if key in REFUSED:
            raise BadInput(REFUSED[key])
        if not choices:
            raise BadInput(f"Expected at least one value of {key}.")
        if len({text(choice) for choice in choices}) < len(choices):
            raise BadInput(f"Expected each value of {key} once, got {', '.join(map(text, choices))}.")


def _applied(values: Mapping[str, Any], varied: Mapping[str, Any]) -> dict[str, Any]:
    copy = {name: dict(part) if isinstance(part, Mapping) else part for name, part in values.items()}
    for key_path, value in varied.items():
        section, _, key = key_path.partition(".")
        copy.setdefault(section, {})[key] = value
    return copy


def _said(values: Mapping[str, Any], key_path: str) -> bool:
    section, _, key = key_path.partition(".")
    return key in values.get(section, {})


def seeded(experiment: Experiment, seeds: int) -> tuple[Experiment, ...]:
    """The experiment under its seed and those that follow, each in one process."""
    runs = ({"seed": experiment.run.seed + k, "workers": 1} for k in range(seeds))
    return tuple(experiment.model_copy(update={"run": experiment.run.model_copy(update=run)}) for run in runs)


def _taken(values: dict[str, Any]) -> dict[str, Any]:
    """Without the options of `[aggregate]` that the rule does not take."""
    aggregate = values.get("aggregate", {})
    if set(aggregate) - OWN:
        rule = str(aggregate.get("rule", DEFAULT_RULE))
        kept = set(aggregate) if plugin.takes_any(rules.find(rule)) else {*OWN, *taken_by(rule)}
        values = {**values, "aggregate": {key: value for key, value in aggregate.items() if key in kept}}
    return values


def taken_by(rule: str) -> frozenset[str]:
    """The options of `[aggregate]` that a rule names. Raises BadInput for a rule that cannot be found."""
    return frozenset(plugin.options(rules.find(rule)))


def _refuse_useless_options(
    values: Mapping[str, Any], vary: Mapping[str, Sequence[Any]], experiments: Sequence[Experiment]
) -> None:
    varied = {key.removeprefix("aggregate.") for key in vary if key.startswith("aggregate.")}
    said = {*values.get("aggregate", {}), *varied} - OWN
    used = {option for experiment in experiments for option in experiment.aggregate.options()}
    for option in sorted(said - used):
        named = dict.fromkeys(experiment.aggregate.rule or DEFAULT_RULE for experiment in experiments)
        takes = "; ".join(f"{rule} takes {', '.join(sorted(taken_by(rule))) or 'no options'}" for rule in named)
        others = rules.taking(option)
        way = f"leave it out, or compare {', '.join(others)}, which take it" if others else "leave it out"
        raise BadInput(f"No rule of this comparison takes aggregate.{option} ({takes}): {way}.")


def for_some_alone(cells: Sequence[Cell]) -> list[str]:
    """A sentence for every option that was said for all and went to some rules only; what varies stands in the table itself."""
    given: dict[str, list[str]] = {}
    for cell in cells:
        for option in cell.experiments[0].aggregate.options():
            if f"aggregate.{option}" not in cell.varied:
                given.setdefault(option, []).append(cell.rule)
    every = dict.fromkeys(cell.rule for cell in cells)
    return [
        f"aggregate.{option} went to {', '.join(dict.fromkeys(takers))} alone: {', '.join(others)} ran without it."
        for option, takers in given.items()
        if (others := [rule for rule in every if rule not in takers])
    ]


def _labels(varied: Sequence[dict[str, Any]], name: str) -> list[str]:
    labels = [label(one) or name for one in varied]
    if len(set(labels)) < len(labels):
        labels = [label(one, every_key=True) or name for one in varied]
    seen: dict[str, int] = {}
    for index, words in enumerate(labels):  # long values may look alike once they are shortened
        seen[words] = seen.get(words, 0) + 1
        if seen[words] > 1:
            labels[index] = f"{words} ({seen[words]})"
    return labels


def _slug(varied: Mapping[str, Any]) -> str:
    """A folder name that depends on the cell alone, so that a larger grid finds the runs of a smaller one."""
    exact = ",".join(f"{key}={text(value)}" for key, value in sorted(varied.items()) if value is not None) or "as-given"
    plain = re.sub(r"[^A-Za-z0-9.,=+-]+", "_", exact)
    if plain == exact and len(exact) <= LONGEST_SLUG:
        return exact
    return f"{plain[:LONGEST_SLUG]}-{hashlib.blake2b(exact.encode(), digest_size=4).hexdigest()}"


@dataclass(frozen=True, eq=False)
class Task:
    cell: Cell
    experiment: Experiment
    folder: Path

    @property
    def finished(self) -> bool:
        """Whether the run has ended in the way it was planned."""
        return (self.folder / "summary.json").exists()


def tasks_of(path: Path, cells: Sequence[Cell]) -> list[Task]:
    """Every run of the grid, cell by cell. Raises BadInput if a folder holds a run with other settings."""
    tasks = []
    for cell in cells:
        for experiment in cell.experiments:
            folder = path / "runs" / cell.slug / f"seed-{experiment.run.seed}"
            known = folder / "experiment.toml"
            if known.exists() and not says_same(known.read_text("utf-8"), experiment):
                raise BadInput(f"The run in {folder} has other settings: leave out --set, or choose another --out.")
            tasks.append(Task(cell, experiment, folder))
    return tasks


@dataclass(frozen=True)
class Kept:
    """A folder of several runs: what was asked for stands in `base.toml` and in a file of its own, with how often (`count`)."""

    what: str
    file: str
    count: str

    def refuse_taken(self, path: Path, *, resume: bool, force: bool) -> None:
        """Raises RunExists for a folder that is in use, or BadInput if there is nothing to resume."""
        if resume and force:
            raise BadInput(f"--resume goes on with a {self.what} and --force starts a new one: use one of them.")
        held = next((file for file in HELD if (path / file).exists()), None)
        if resume and held != self.file:
            raise BadInput(f"There is no {self.what} to resume in {path}.")
        if held and not resume and not force:
            way = "use --resume to go on" if held == self.file else "choose another --out"
            raise RunExists(f"{path} already holds a {HELD[held]}: {way}, or use --force to set it aside.")

    def take(self, path: Path, *, force: bool) -> int:
        """Makes the folder, sets aside what was there if told to, and locks it; the descriptor frees it."""
        if force and any((path / file).exists() for file in HELD):
            store.set_aside(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"{path} cannot be made a folder ({error.strerror}): choose another --out.") from None
        return store.lock_folder(path)

    def texts(self, values: Mapping[str, Any], vary: Mapping[str, Sequence[Any]], count: int) -> dict[str, str]:
        """What is asked, by file; the last of them says that there is something to go on with."""
        return {BASE: dumps(dict(values)), self.file: dumps({self.count: count, "vary": dict(vary)})}

    def write(self, path: Path, texts: Mapping[str, str]) -> None:
        for name, words in texts.items():
            store.write(path / name, words.encode())

    def read(self, path: Path) -> tuple[dict[str, Any], dict[str, list[Any]], int]:
        """The settings, what varies, and how often. Raises BadInput."""
        if not all((path / file).exists() for file in (BASE, self.file)):
            raise BadInput(f"There is no {self.what} to resume in {path}.")
        with intact(path / self.file):
            known = tomllib.loads((path / self.file).read_text("utf-8"))
            vary, count = dict(known["vary"]), int(known[self.count])
        with intact(path / BASE):
            return tomllib.loads((path / BASE).read_text("utf-8")), vary, count


GRID, SEARCH = Kept("comparison", COMPARISON, "seeds"), Kept("search", "tune.toml", "runs")
HELD = {kept.file: kept.what for kept in (GRID, SEARCH)} | {"experiment.toml": "run"}  # files of a folder in use
