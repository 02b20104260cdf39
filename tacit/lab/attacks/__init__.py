"""Attacks: what differential privacy is bought against, tried on a simulation. One file an attack; its name is the command's.
An attack runs the experiment itself and sees what its attacker would see. A finding is about real members and carries no noise:
no epsilon covers it."""

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
from tacit.lab.compare.findings import BADGE, Finding, Line, Plot, columns, place, read
from tacit.lab.compare.findings import Number as Estimate
from tacit.lab.compare.results import Row
from tacit.wire import digest_of

__all__ = ["BADGE", "Attack", "Estimate", "Finding", "Line", "Place", "Plot", "attack", "load"]

ROOM = "tacit.lab.attacks"
IN_RUNS = "backdoor"  # is measured in the runs of a comparison themselves, whose clients are malicious
OWN_LEVELS = "inversion"

Tell = Callable[[str], None]
Options = Mapping[str, Mapping[str, Any]]  # of each attack, by its name


@dataclass(frozen=True)
class Place:
    """Where an attack works: a folder that keeps what is finished, how many runs go concurrently, and who hears of progress."""

    folder: Path
    jobs: int = 1
    tell: Tell = field(default=lambda words: None, repr=False)


class Attack(ABC):
    """One attack. Options are the fields of a frozen dataclass.
    Guarantee, of every attack: its runs are real ones (`tacit.simulation`), and nothing in them knows that they are attacked;
    what is finished is kept in its place and read again; the same options and seed give the same finding on a CPU."""

    @abstractmethod
    def perform(self, experiment: Experiment, place: Place) -> Finding:
        """Attacks the experiment. Raises TacitError in one sentence for what cannot be attacked."""


def load(name: str, **options: Any) -> Attack:
    """The attack of that name, or of "package.module:name", with its options. Raises BadInput."""
    loaded = plugin.make(plugin.find(ROOM, name, key="the attack"), options, table="with")
    if not isinstance(loaded, Attack):
        raise BadInput(f"Expected {name!r} to make a tacit.lab.attacks.Attack, got a {type(loaded).__name__}.")
    return loaded


def attack(
    name: str,
    experiment: Experiment,
    *,
    out: Path | str,
    options: Mapping[str, Any] | None = None,
    force: bool = False,
    jobs: int | None = None,
    tell: Tell = lambda words: None,
) -> Finding:
    """Attacks an experiment and writes `out`/attack-NAME.json; what is finished is kept in `out`/attack-NAME/ and goes on.
    The same experiment and options are read and not done again. Raises RunExists for another one's finding, unless `force` sets
    it aside; BadInput for rows that no file names and for a shared ledger."""
    loaded, folder = load(name, **options or {}), Path(out)
    jobs = store.cores() if jobs is None else jobs
    check.at_least(1, jobs=jobs)
    plugin.refuse_passed(experiment.data.name, key="data.name")
    if experiment.privacy.person_rows is not None:
        raise BadInput(
            'Attacks are about records and not known to privacy.unit = "person": `tacit audit` is, with canaries.'
        )
    if experiment.privacy.ledger is not None:
        raise BadInput(
            "An attack runs the experiment many times, and each run would spend what others of privacy.ledger are left with: leave"
            " it out (--set privacy.ledger= --set privacy.delta_share=)."
        )
    run = experiment.run.model_copy(update={"workers": 0, "writers": None})  # no part of a finding's identity
    key = digest_of(name, repr(loaded), experiment.model_copy(update={"run": run}).toml())
    stem = f"attack-{name.replace(':', '-')}"
    file, work, began = folder / f"{stem}.json", folder / stem, time.perf_counter()
    if file.exists() and force:
        file.rename(store.first_free(folder / f"{stem}.{number}.json" for number in range(1, 10**6)))
    elif file.exists():
        if (finding := read(file)).key != key:
            raise RunExists(f"{file} is of another experiment or other options: choose another --out, or use --force.")
        return finding
    work.mkdir(parents=True, exist_ok=True)
    try:
        finding = loaded.perform(experiment, Place(work, jobs, tell))
    except TacitError:
        with suppress(OSError):  # a refusal leaves nothing behind; what was trained stays
            work.rmdir()
            folder.rmdir()
        raise
    used = asdict(loaded) if is_dataclass(loaded) and not isinstance(loaded, type) else {}
    finding = replace(finding, options=used, seconds=time.perf_counter() - began, key=key)
    store.write(file, json.dumps(finding.record(), indent=1, ensure_ascii=False).encode())
    return finding


# A column per attack for a comparison: every cell's experiments are attacked under each of its seeds.


def chosen(words: str | None, options: Options | None = None) -> list[str]:
    """The attacks that `--attack` names, each loaded once with its options. Raises BadInput for what is wrong with one."""
    names, options = [word.strip() for word in (words or "").split(",") if word.strip()], options or {}
    if len(set(names)) < len(names):
        raise BadInput(f"Expected each attack of --attack once, got {', '.join(names)}.")
    for name in options.keys() - names:
        raise BadInput(f"--with {name}.… is for an attack that --attack does not name: leave it out.")
    if options.get(IN_RUNS):
        raise BadInput(
            "In a comparison malicious clients are settings: say --set attack.kind=dba (or share, start, ...) instead of"
            f" --with {IN_RUNS}.…, and --seeds for the number of runs."
        )
    if OWN_LEVELS in names:
        raise BadInput(
            "An inversion has levels of epsilon of its own, so it is no column: use `tacit attack inversion`."
        )
    for name in names:
        load(name, **options.get(name, {}))
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
    """The rows with each attack's first number, over seeds. Findings in `out`/attacks are read.
    Raises: TacitError for an experiment that an attack cannot be tried on; what is finished is kept."""
    every = [(name, row, one) for name in names if name != IN_RUNS for row in rows for one in row.cell.experiments]
    for name, row, experiment in every:
        seed, honest = experiment.run.seed, experiment.model_copy(update={"attack": None})  # one attack at a time
        tell(f"{name} on {row.cell.label}, seed {seed}")
        own = dict((options or {}).get(name, {}))
        attack(name, honest, out=place(out, row.cell, seed), options=own, jobs=jobs)
    return [replace(row, attacked=columns(out, row.cell)) for row in rows]
