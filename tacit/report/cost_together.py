"""What the runs of a comparison cost together, on its page: the sums of tacit/compare/together.py, with whom they are for."""

import tomllib
from pathlib import Path
from typing import Any

from tacit.compare import together
from tacit.compare.cells import expand
from tacit.compare.comparison_folder import BASE, asked, tasks_of
from tacit.compare.results import rows_of
from tacit.errors import BadInput
from tacit.privacy.guarantee import shown


def cost(folder: Path) -> dict[str, Any]:
    """A sum for every promise that the runs of a comparison's folder make, and what is in no sum, in words.

    Raises: BadInput where a file of the comparison is damaged.
    """
    vary, seeds = asked(folder)
    try:
        cells = expand(tomllib.loads((folder / BASE).read_text("utf-8")), vary, seeds=seeds)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{folder / BASE} is damaged ({' '.join(str(error).split())}).") from None
    rows = rows_of(tasks_of(folder, cells), {})
    sums = together.together(rows)
    told = [one.record() | {"epsilon": _epsilon(one), "sentence": one.sentence} for one in sums]
    said = {one.sentence for one in sums}
    return {"sums": told, "notes": [note for note in together.notes(rows) if note not in said]}


def _epsilon(one: together.Together) -> str:
    """The sum for a table, which has no sentence beside it: where nothing adds all runs up, that it is of some."""
    return shown(one.epsilon) + (f", of one of {one.ways} ways" if one.ways > 1 else "")
