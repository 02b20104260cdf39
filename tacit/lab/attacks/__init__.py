"""Attacks: what differential privacy is bought against, tried on a simulation. One file an attack; its name is the command's.

An attack runs the experiment itself, as `tacit run` does, and sees what its attacker would see. It is for simulations alone: what
it finds is about real members and carries no noise, so no epsilon covers it, and every finding is badged so. Only commands import
this room; nothing that trains, pays or releases knows of it."""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any

from tacit import check, plugin, store
from tacit.errors import BadInput, RunExists, TacitError
from tacit.experiment import Experiment
from tacit.lab.compare.figures import DASHES, GREY, INKS, canvas, save, title
from tacit.lab.compare.findings import BADGE, Finding, Line, Plot, columns, place
from tacit.lab.compare.findings import Number as Estimate
from tacit.lab.compare.results import Row
from tacit.store import cores
from tacit.wire import digest_of

__all__ = ["BADGE", "Attack", "Estimate", "Finding", "Line", "Place", "Plot", "attack", "find", "load", "names"]

ROOM = "tacit.lab.attacks"
TABLE = "with"  # what options are called in sentences, after the command's --with
CHANCE = "chance"  # a line of this name is what guessing reaches
HEIGHT = 4.5  # inches
SMALLEST = 1e-4  # of a logarithmic axis
IN_RUNS = "backdoor"  # is measured in the runs of a comparison themselves, whose clients are malicious
OWN_LEVELS = "inversion"

Tell = Callable[[str], None]
Options = Mapping[str, Mapping[str, Any]]  # of each attack, by its name


@dataclass(frozen=True)
class Place:
    """Where an attack works: a folder that keeps what is finished, how many runs go side by side, and who is told how it goes."""

    folder: Path
    jobs: int = 1
    tell: Tell = field(default=lambda words: None, repr=False)


class Attack(ABC):
    """One attack. Options are the fields of a frozen dataclass.

    Guarantee asked of every attack: the runs it makes are real ones (`tacit.simulation`), and nothing in them knows that they
    are attacked; what is finished is kept in its place and found again; the same options and seed give the same finding on a CPU.
    """

    @abstractmethod
    def perform(self, experiment: Experiment, place: Place) -> Finding:
        """Attacks the experiment. Raises TacitError in one sentence for what cannot be attacked."""


def names() -> list[str]:
    """The attacks that ship with Tacit, by file."""
    return plugin.names(ROOM)


def find(name: str) -> plugin.Factory:
    """What makes the attack of that name, not yet called. Raises BadInput for a name that leads nowhere."""
    return plugin.find(ROOM, name, key="the attack")


def load(name: str, **options: Any) -> Attack:
    """The attack of that name, or of "package.module:name", made with its options. Raises BadInput."""
    made = plugin.make(find(name), options, table=TABLE)
    if not isinstance(made, Attack):
        raise BadInput(f"Expected {name!r} to make a tacit.lab.attacks.Attack, got a {type(made).__name__}.")
    return made


def attack(
    name: str,
    experiment: Experiment,
    *,
    out: Path | str,
    options: Mapping[str, Any] | None = None,
    force: bool = False,
    jobs: int | None = None,
    tell: Tell | None = None,
) -> Finding:
    """Attacks an experiment and writes `out`/attack-NAME.json with its plots; what an attack keeps is in `out`/attack-NAME/.
    A finding that is there already, of the same experiment and options, is read and nothing is done again; an attack that was
    stopped goes on with what it had finished. Raises RunExists for another one's finding, unless `force` sets it aside."""
    made, folder = load(name, **options or {}), Path(out)
    jobs = cores() if jobs is None else jobs
    check.at_least(1, jobs=jobs)
    refuse_not_simulated(experiment)
    slug, key = name.replace(":", "-"), _key(name, made, experiment)
    file = folder / f"attack-{slug}.json"
    known = None if force else read(file)
    if known is not None:
        if known.get("key") != key:
            raise RunExists(f"{file} is of another experiment or other options: choose another --out, or use --force.")
        return Finding.of(known)
    if force and file.exists():
        file.rename(store.first_free(folder / f"attack-{slug}.{number}.json" for number in range(1, 10**6)))
    work, began = folder / f"attack-{slug}", time.perf_counter()
    work.mkdir(parents=True, exist_ok=True)
    try:
        found = made.perform(experiment, Place(work, jobs, tell or (lambda words: None)))
    except TacitError:
        with suppress(OSError):  # a refusal leaves nothing behind; what has been made stays, and is found again
            work.rmdir()
            folder.rmdir()
        raise
    made_with = asdict(made) if is_dataclass(made) and not isinstance(made, type) else {}
    found = replace(found, options=made_with, seconds=time.perf_counter() - began)
    found = replace(found, files=(*found.files, *draw(found, folder)))
    store.write(file, json.dumps({"key": key} | found.record(), indent=1, ensure_ascii=False).encode())
    return found


def read(file: Path) -> dict[str, Any] | None:
    """What a finding's file holds, or None where there is no file. Raises BadInput for one that is damaged."""
    try:
        return json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise BadInput(f"{file} is damaged ({error}): set it aside with --force.") from None


def refuse_not_simulated(experiment: Experiment) -> None:
    """Refuses what an attack cannot run by itself, or must not: rows that no file names, and a ledger that others share.
    Raises: BadInput."""
    plugin.refuse_passed(experiment.data.name, key="data.name")
    if experiment.privacy.ledger is not None:
        raise BadInput(
            "An attack runs the experiment many times, and each run would spend what others of privacy.ledger are left with: leave"
            " it out (--set privacy.ledger= --set privacy.delta_share=)."
        )


def _key(name: str, made: Attack, experiment: Experiment) -> str:
    """A hash of what a finding is a function of, but for where it lies and how many cores there are."""
    run = experiment.run.model_copy(update={"out": None, "workers": 0, "writers": None})
    return digest_of(name, repr(made), experiment.model_copy(update={"run": run}).toml())


def draw(finding: Finding, folder: Path) -> tuple[str, ...]:
    """Writes every plot of a finding and returns the names of the .png files."""
    names = []
    for plot in finding.plots:
        stem = folder / f"attack-{finding.attack}-{plot.name}"
        _draw(plot, stem, badge=finding.badge)
        names.append(f"{stem.name}.png")
    return tuple(names)


def _draw(plot: Plot, stem: Path, *, badge: str) -> None:
    figure, axes = canvas(height=HEIGHT, width=7.0)
    for number, line in enumerate(plot.lines):
        chance = line.name == CHANCE
        ink = GREY if chance else INKS[number % len(INKS)]
        dash = ":" if chance else DASHES[number // len(INKS) % len(DASHES)]
        axes.plot(line.x, line.y, color=ink, linestyle=dash, label=line.name, linewidth=1.0 if chance else 1.8)
        if line.low is not None and line.high is not None:
            axes.fill_between(line.x, line.low, line.high, color=ink, alpha=0.15, linewidth=0)
    if plot.log:
        axes.set_xscale("log")
        axes.set_yscale("log")
        least = min((value for line in plot.lines for value in line.x if value > 0), default=SMALLEST)
        axes.set_xlim(max(SMALLEST, least), 1.0)
        axes.set_ylim(max(SMALLEST, least), 1.0)
    axes.set_xlabel(plot.x, fontsize=9, parse_math=False)
    axes.set_ylabel(plot.y, fontsize=9, parse_math=False)
    axes.legend(fontsize=9, frameon=False)
    title(axes, f"{plot.title} ({badge})")
    save(figure, stem)


# A column per attack for a comparison: every cell's experiments are attacked under each of its seeds.


def chosen(words: str | None, options: Options | None = None) -> list[str]:
    """The attacks that `--attack` names, each made once with its options. Raises BadInput for what is wrong with one.

    >>> chosen("backdoor"), chosen(None)
    (['backdoor'], [])
    """
    names = [word.strip() for word in (words or "").split(",") if word.strip()]
    if len(set(names)) < len(names):
        raise BadInput(f"Expected each attack of --attack once, got {', '.join(names)}.")
    for name in options or {}:
        if name not in names:
            raise BadInput(f"--with {name}.… is for an attack that --attack does not name: leave it out.")
    if (options or {}).get(IN_RUNS):
        raise BadInput(
            "In a comparison malicious clients are settings: say --set attack.kind=dba (or share, start, ...) instead of"
            f" --with {IN_RUNS}.…, and --seeds for the number of runs."
        )
    if OWN_LEVELS in names:
        raise BadInput(
            "An inversion has levels of epsilon of its own, so it is no column: use `tacit attack inversion`."
        )
    for name in names:
        load(name, **(options or {}).get(name, {}))
    return names


def with_columns(
    rows: Sequence[Row],
    names: Sequence[str],
    *,
    out: Path,
    jobs: int | None,
    tell: Tell,
    options: Options | None = None,
) -> list[Row]:
    """The rows with what attacks found: each one's first number, over seeds. What is found already is read from `out`/attacks.
    Raises: TacitError for an experiment that an attack cannot be tried on; what is finished is kept."""
    for name in names:
        for row in rows if name != IN_RUNS else ():
            for experiment in row.cell.experiments:
                seed = experiment.run.seed
                tell(f"{name} on {row.cell.label}, seed {seed}")
                honest = experiment.model_copy(update={"attack": None})  # one attack at a time
                own = dict((options or {}).get(name, {}))
                attack(name, honest, out=place(out, row.cell, seed), options=own, jobs=jobs)
    return [replace(row, attacked=columns(out, row.cell)) for row in rows]
