"""Where people already look: writers that pass every round on to another tool. `[run] writers = ["tensorboard"]`.

A writer is a file of this package with a class of its name, or "package.module:name", made with what it takes of `folder` and
`facts`; its `wants` names the package it needs. `past(records)` is called once with the rounds that a resumed run already has,
`round(record)` after each round, `finish(summary)` at the end, `close()` always. Records are flat, and the name of an epsilon in
them carries its unit. A writer sees what the researcher sees; it is never told about data.

Guarantee: a run that is paid for is not lost by its log. A writer that raises is told of once, in one sentence, and left out from
then on; the run goes on, and a resumed one may name other writers.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Protocol

from tacit import plugin
from tacit.engine.history import flat_records, scalars
from tacit.engine.loop import Observer
from tacit.engine.run_folder import Folder
from tacit.errors import BadInput
from tacit.experiment import Experiment

ROOM = "tacit.report.writers"
GIVEN = ("folder", "facts")
METHODS = ("past", "round", "finish", "close")


@dataclass(frozen=True)
class Facts:
    """What names a run in another tool."""

    run: str
    name: str
    settings: dict[str, str]


class Writer(Protocol):
    """What `run.writers` names: told of every round, and never of data. The package's text says more."""

    def past(self, records: Sequence[dict[str, Any]]) -> None:
        """Takes the rounds that a resumed run already has, once, before any other."""
        ...

    def round(self, record: dict[str, Any]) -> None:
        """Takes one round, flat, as in `rounds.csv`."""
        ...

    def finish(self, summary: dict[str, Any]) -> None:
        """Takes the summary of a run that has ended."""
        ...

    def close(self) -> None:
        """Ends, whatever happened before."""
        ...


@dataclass
class Book:
    """The writers of one run, by the names that `run.writers` has; `notes` says which were left out, and why."""

    unit: str
    writers: dict[str, Writer] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def observing(self, observe: Observer | None) -> Observer:
        """Writes a round down, then shows it."""
        if not self.writers:
            return observe or (lambda record: None)

        def both(record: dict[str, Any]) -> None:
            self._each(lambda writer: writer.round(scalars(record, unit=self.unit)))
            if observe:
                observe(record)

        return both

    def finish(self, summary: dict[str, Any]) -> None:
        """Passes the final numbers on."""
        self._each(lambda writer: writer.finish(summary))

    @contextmanager
    def leaving_out(self, name: str) -> Iterator[None]:
        """Runs a writer's code: where that raises, the writer is told of, once, and left out from then on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever a log raises, it must not cost a paid run
            self.writers.pop(name, None)
            if name not in self.notes:
                cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
                self.notes[name] = f"the writer {name} failed ({plugin.said(cause)}) and was left out from there on"
                print(f"Note: {self.notes[name]}; the run goes on.", file=sys.stderr)

    def _each(self, call: Callable[[Writer], None]) -> None:
        for name, writer in list(self.writers.items()):
            with self.leaving_out(name):
                call(writer)


def load_writers(names: Sequence[str] | None) -> dict[str, plugin.Factory]:
    """What makes the writers asked for, by name. Raises BadInput before anything runs: with the command that installs a missing
    package, for a name that leads nowhere, a writer that cannot be made of a folder and facts alone, and one without a method.
    """
    found = {name: plugin.find(ROOM, name, key="run.writers") for name in names or ()}
    for name, factory in found.items():
        _refuse_missing(name, getattr(factory, "wants", None))
        plugin.typed(factory, {}, table="run", given=GIVEN)
        absent = lacking(factory) if isinstance(factory, type) else []
        if absent:
            raise BadInput(f"run.writers names {name}, which has no {absent[0]}(): a writer has {_methods()}.")
    return found


@contextmanager
def open_writers(
    factories: Mapping[str, plugin.Factory],
    folder: Folder,
    experiment: Experiment,
    past: Sequence[dict[str, Any]],
    *,
    unit: str,
) -> Iterator[Book]:
    """Opens the writers and tells each what a resumed run has behind it."""
    facts = Facts(folder.run, experiment.name, settings(experiment))
    with ExitStack() as stack:
        book = Book(unit)
        for name, factory in factories.items():
            with book.leaving_out(name):
                writer = plugin.make(factory, {}, table="run", given={"folder": folder.path, "facts": facts})
                for method in lacking(writer):
                    raise AttributeError(f"it has no {method}()")
                stack.callback(_close, book, name, writer)
                writer.past(flat_records(past, unit=unit))
                book.writers[name] = writer
        yield book


def lacking(writer: object) -> list[str]:
    """The methods that a writer, or its class, should have and has not.

    >>> lacking(Writer), lacking(object())
    ([], ['past', 'round', 'finish', 'close'])
    """
    return [method for method in METHODS if not callable(getattr(writer, method, None))]


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


def _close(book: Book, name: str, writer: Writer) -> None:
    with book.leaving_out(name):
        writer.close()


def _refuse_missing(name: str, wants: str | None) -> None:
    """Raises BadInput where the package that a writer wants is not installed; Tacit's own writers come with an extra each."""
    if wants is None:
        return
    with plugin.guarded(f"run.writers names {name}, whose `wants` = {wants!r} cannot be looked for"):
        if find_spec(wants.partition(".")[0]) is not None:
            return
    if ":" in name:
        raise BadInput(
            f"run.writers names {name}, which wants the package {wants}: install it, or leave the writer out."
        )
    raise BadInput(f'run.writers names {name}, which is not installed: pip install "tacit[{name}]", or leave it out.')


def _methods() -> str:
    return ", ".join(f"{method}()" for method in METHODS[:-1]) + f" and {METHODS[-1]}()"
