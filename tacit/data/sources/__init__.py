"""Where rows come from: one file per source; its name is `data.name` in the TOML.

A source is a frozen dataclass of the file's name. Its fields are its options in `[data]`, each with a type and most with a
default, and `load` reads the rows. Somebody's own is "package.module:name"; docs/how-to-extend.md walks through it.

Leak rule: whatever turns raw values into features is public. Images are divided by 255 and digits by 16; a csv column is scaled
by the range declared in `numeric`, or taken as it stands; the values of a text column are declared in `categorical` and the
labels in `classes`. The one exception must be written out: `classes = "from-data"` makes the labels found public.
"""

from typing import Protocol

from rich.progress import Progress

from tacit.data.dataset import Dataset


class Source(Protocol):
    """Where rows come from. Making it checks its options and opens nothing."""

    def load(self, *, seed: int, progress: Progress | None = None) -> Dataset:
        """Reads the rows. `seed` chooses which are held out for testing, where the source holds some out; a download shows its bar
        in `progress`. Raises BadData.
        """
        ...
