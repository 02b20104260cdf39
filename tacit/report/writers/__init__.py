"""Where people already look: writers that pass every round on to another tool. `[run] writers = ["tensorboard"]`.

A writer is a file of this package with a class of its name, or "package.module:name", made with what it takes of `folder` and
`facts`; its `wants` names the package it needs. `past(records)` is called once with the rounds that a resumed run already has,
`round(record)` after each round, `finish(summary)` at the end, `close()` always. Records are flat, and the name of an epsilon in
them carries its unit. A writer sees what the researcher sees; it is never told about data.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

from tacit import plugin
from tacit.engine.exports import flat_records, scalars
from tacit.engine.folder import Folder
from tacit.engine.loop import Observer
from tacit.errors import BadInput
from tacit.experiment import Experiment

ROOM = "tacit.report.writers"
GIVEN = ("folder", "facts")


@dataclass(frozen=True)
class Facts:
    """What names a run in another tool."""

    run: str
    name: str
    settings: dict[str, str]


class Writer(Protocol):
    """See the package's text."""

    def past(self, records: Sequence[dict[str, Any]]) -> None: ...

    def round(self, record: dict[str, Any]) -> None: ...

    def finish(self, summary: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Book:
    """The writers of one run."""

    writers: tuple[Writer, ...]
    unit: str

    def observing(self, observe: Observer | None) -> Observer:
        """Writes a round down, then shows it."""

        def both(record: dict[str, Any]) -> None:
            for writer in self.writers:
                writer.round(scalars(record, unit=self.unit))
            if observe:
                observe(record)

        return both

    def finish(self, summary: dict[str, Any]) -> None:
        """Passes the final numbers on."""
        for writer in self.writers:
            writer.finish(summary)


def load_writers(names: Sequence[str] | None) -> tuple[plugin.Factory, ...]:
    """What makes the writers asked for. Raises BadInput before anything runs: with the command that installs a missing package,
    for a name that leads nowhere, and for a writer that cannot be made of a folder and facts alone.
    """
    found = tuple(plugin.find(ROOM, name, key="run.writers") for name in names or ())
    for name, factory in zip(names or (), found, strict=True):
        wants = getattr(factory, "wants", None)
        if wants is not None and find_spec(wants) is None:
            raise BadInput(
                f'run.writers names {name}, which is not installed: pip install "tacit[{name}]", or leave it out.'
            )
        plugin.typed(factory, {}, table="run", given=GIVEN)
    return found


@contextmanager
def open_writers(
    factories: Sequence[plugin.Factory],
    folder: Folder,
    experiment: Experiment,
    past: Sequence[dict[str, Any]],
    *,
    unit: str,
) -> Iterator[Book]:
    """Opens the writers and tells each what a resumed run has behind it."""
    facts = Facts(folder.run, experiment.name, settings(experiment))
    with ExitStack() as stack:
        writers = []
        for factory in factories:
            writer = plugin.make(factory, {}, table="run", given={"folder": folder.path, "facts": facts})
            stack.callback(writer.close)
            writer.past(flat_records(past, unit=unit))
            writers.append(writer)
        yield Book(tuple(writers), unit)


def numbers(record: dict[str, Any]) -> dict[str, float]:
    """The numbers of a flat record, without the round."""
    return {
        key: float(value) for key, value in record.items() if isinstance(value, int | float) and key not in ("round",)
    }


def settings(experiment: Experiment) -> dict[str, str]:
    """All settings as `section.key` and text."""
    values = experiment.model_dump(exclude_none=True)
    return {
        f"{section}.{key}": str(value)
        for section, table in values.items()
        if isinstance(table, dict)
        for key, value in table.items()
    }
