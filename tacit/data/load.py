"""From the `[data]` table to a data set in memory."""

from dataclasses import asdict, is_dataclass
from typing import Any

from rich.progress import Progress

from tacit import plugin
from tacit.data.dataset import Dataset
from tacit.data.sources import Source
from tacit.errors import BadData, BadInput, TacitError
from tacit.experiment.data import DEALT, DataSection

ROOM = "tacit.data.sources"
PLACES = ("path", "test_path", "shape", "label_shape")  # where rows lie and what they must look like: in nobody's hands
EMPTY = ({}, (), [], "")


def names() -> list[str]:
    """The sources that ship with Tacit, by file."""
    return plugin.names(ROOM)


def source(section: DataSection) -> Source:
    """The source that a section names, with its options checked; no row is read yet. Raises BadInput.

    >>> from tacit.data.load import source
    >>> source(DataSection(name="csv", path="records.csv", classes=["no", "yes"])).label
    'label'
    """
    factory = plugin.find(ROOM, section.name, key="data.name")
    made = plugin.make(factory, section.options(), table="data", keys=type(section).model_fields)
    if not callable(getattr(made, "load", None)):
        raise BadInput(
            f"Expected data.name = {section.name!r} to make a source with a method `load`, got {made!r:.60}."
        )
    return made


def settings(section: DataSection) -> dict[str, Any]:
    """How a section's rows are read and shared: every key as it counts, whether it was written out or not."""
    own = section.model_dump(include=set(type(section).model_fields))
    if section.part is not None:
        return own | section.part.settings()
    made = source(section)
    options = asdict(made) if is_dataclass(made) and not isinstance(made, type) else section.options()
    return own | options


def identity(section: DataSection) -> dict[str, Any]:
    """What decides in which hands a record is and how it is read: what a ledger belongs to.

    Guarantee: an option that is empty counts as if nobody had ever heard of it, so that one more changes no ledger's identity.
    """
    dealt = DEALT if section.partition == "natural" else ()
    used = {key: value for key, value in settings(section).items() if key not in (*PLACES, *dealt)}
    return {key: value for key, value in used.items() if value is not None and value not in EMPTY}


def load(section: DataSection, *, seed: int, progress: Progress | None = None) -> Dataset:
    """Reads the data set that the section names, downloading a public one that is nowhere on this machine, or takes the one that
    was passed from Python.

    The seed chooses only which rows are held out where a source holds some out. Raises BadInput, BadData; what somebody's own
    source raises is one sentence, too.

    >>> load(DataSection(name="digits"), seed=0).x.shape
    torch.Size([1438, 1, 8, 8])
    """
    if section.part is not None:
        return section.part.rows
    made = source(section)
    try:
        found = made.load(seed=seed, progress=progress)
    except TacitError:
        raise
    except Exception as error:
        words = plugin.said(error)  # may quote a row
        raise BadData(f"The data {section.name!r} cannot be read ({words!r}).", cell=words) from error
    if not isinstance(found, Dataset):
        got = f"{type(found).__module__}.{type(found).__qualname__}"
        raise BadInput(f"Expected data.name = {section.name!r} to give a tacit.data.dataset.Dataset, got a {got}.")
    return found
