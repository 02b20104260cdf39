"""A column per attack for a comparison: every cell's experiments are attacked under each of its seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tacit.errors import BadInput
from tacit.lab import attacks
from tacit.lab.compare.findings import columns, place
from tacit.lab.compare.results import Row

IN_RUNS = "backdoor"  # is measured in the runs themselves, whose clients are malicious
OWN_LEVELS = "inversion"
Options = Mapping[str, Mapping[str, Any]]  # of each attack, by its name


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
            raise BadInput(
                f"--with {name}.… is for an attack that --attack does not name: add it there, or leave it out."
            )
    if (options or {}).get(IN_RUNS):
        raise BadInput(
            "In a comparison malicious clients are settings: say --set attack.kind=dba (or share, start, ...) instead of"
            f" --with {IN_RUNS}.…, and --seeds for the number of runs."
        )
    if OWN_LEVELS in names:
        raise BadInput(
            "An inversion has levels of epsilon of its own and is no column of a comparison: use `tacit attack inversion`."
        )
    for name in names:
        attacks.load(name, **(options or {}).get(name, {}))
    return names


def with_columns(
    rows: Sequence[Row],
    names: Sequence[str],
    *,
    out: Path,
    jobs: int | None,
    tell: attacks.Tell,
    options: Options | None = None,
) -> list[Row]:
    """The rows with what attacks found: each one's first number, over seeds. What is found already is read from `out`/attacks.

    Raises: TacitError for an experiment that an attack cannot be tried on; what is finished is kept.
    """
    for name in names:
        for row in rows if name != IN_RUNS else ():
            for experiment in row.cell.experiments:
                seed = experiment.run.seed
                tell(f"{name} on {row.cell.label}, seed {seed}")
                honest = experiment.model_copy(update={"attack": None})  # one attack at a time
                own = dict((options or {}).get(name, {}))
                attacks.attack(name, honest, out=place(out, row.cell, seed), options=own, jobs=jobs)
    return [replace(row, attacked=columns(out, row.cell)) for row in rows]
