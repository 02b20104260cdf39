"""A column per attack for a comparison: every cell's experiments are attacked under each of its seeds."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tacit import attacks
from tacit.compare.results import Row, estimate
from tacit.errors import BadInput

IN_RUNS = "backdoor"  # is measured in the runs themselves, whose clients are malicious


def chosen(words: str | None) -> list[str]:
    """The attacks that `--attack` names, each looked up. Raises BadInput for one that is none, or stands twice.

    >>> chosen("backdoor"), chosen(None)
    (['backdoor'], [])
    """
    names = [word.strip() for word in (words or "").split(",") if word.strip()]
    if len(set(names)) < len(names):
        raise BadInput(f"Expected each attack of --attack once, got {', '.join(names)}.")
    for name in names:
        attacks.load(name)
    return names


def with_columns(
    rows: Sequence[Row], names: Sequence[str], *, out: Path, jobs: int | None, tell: attacks.Tell
) -> list[Row]:
    """The rows with what each attack found: its first number, over seeds. What is found already is read from `out`/attacks.

    Raises: TacitError for an experiment that an attack cannot be tried on; what is finished is kept.
    """
    found = list(rows)
    for name in names:
        if name == IN_RUNS:
            continue
        for place, row in enumerate(found):
            first = []
            for experiment in row.cell.experiments:
                tell(f"{name} on {row.cell.label}, seed {experiment.run.seed}")
                folder = out / "attacks" / row.cell.slug / f"seed-{experiment.run.seed}"
                honest = experiment.model_copy(update={"attack": None})  # one attack at a time
                first.append(attacks.attack(name, honest, out=folder, jobs=jobs).estimates[0])
            known = estimate([one.value for one in first])
            title = " ".join(word for word in (name, first[0].of, first[0].name) if word)
            if known is not None:
                found[place] = replace(row, attacked=row.attacked | {title: known})
    return found
