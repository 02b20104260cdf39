"""Reading a site's rows for a run: what is trained on, what the site holds out for itself, and what the experiment holds out."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from tacit import parse
from tacit.data.dataset import Dataset
from tacit.data.load import source
from tacit.errors import BadData, BadInput, Refused
from tacit.experiment import Experiment
from tacit.experiment.asking import WORDS, read_with, shares
from tacit.federation.site.own_evaluation import HeldOut, parted
from tacit.federation.site.own_rows import own_rows, unseen_rows, without_held_out
from tacit.privacy.queries.ranges import Range
from tacit.privacy.wiring import Local

NONE_KNOWN: Mapping[str, Range] = MappingProxyType({})


def read_rows(folder: Path, experiment: Experiment, settings: dict[str, Any], *, local: Local | None) -> Dataset:
    """The rows that a site trains on: as `read_parted`, without those that are held out."""
    return read_parted(folder, experiment, settings, local=local)[0]


def read_parted(
    folder: Path,
    experiment: Experiment,
    settings: dict[str, Any],
    *,
    local: Local | None,
    ranges: Mapping[str, Range] = NONE_KNOWN,
) -> tuple[Dataset, HeldOut | None, HeldOut | None]:
    """The site's rows that it trains on, those that it holds out for itself, and those that the experiment holds out.

    Private columns are scaled by `ranges`; without them they are as they stand in the file. On which side a record is does not
    depend on that. Where somebody else's code trains on rows that Tacit never sees, these are zeros of their number and shape.

    Assumes: the experiment was accepted (`refuse_beyond`): what it names as its source is imported here and its options are
    checked, and how rows are read is a question about their values.

    Raises: Refused where rows are only declared and nobody else trains; BadInput for files and settings; BadData for rows, whose
    text may quote a cell and must not be told to the server.
    """
    source(experiment.data)
    if "examples" not in settings:
        rows, standing = _scaled(folder, experiment, settings, ranges)
        mine, _ = parted(standing, settings)
        rows, held = parted(rows, settings, tossing=standing)
        trained, counted = without_held_out(rows, experiment, tossing=mine)
        return trained, held, counted
    asked = " and ".join(WORDS[query] for query in shares(experiment))
    if asked:
        raise Refused(f"This site's rows are declared in site.toml only, so it can answer nothing for {asked}.")
    if "held_out" in settings:
        raise BadInput(
            "site.toml declares rows that Tacit never sees, so it can hold none of them out: leave out held_out."
        )
    if local is None:
        raise Refused("This site's rows are declared in site.toml only, so its training must come through tacit_mod.")
    examples = parse.whole(settings["examples"], what="examples in site.toml", least=1)
    return unseen_rows(experiment, examples=examples, shape=settings.get("shape")), None, None


def own_path(key: str, folder: Path, settings: dict[str, Any]) -> str | None:
    """The path that site.toml has under a key, relative to the site's folder; None where it has none."""
    path = settings.get(key)
    return None if path is None else str(folder / Path(str(path)).expanduser())


def _scaled(
    folder: Path, experiment: Experiment, settings: dict[str, Any], ranges: Mapping[str, Range]
) -> tuple[Dataset, Dataset]:
    """All rows of the site as they are trained on, and the same ones as they stand in the file. Raises BadData if it changes."""
    where = {"name": settings["name"], "path": own_path("data", folder, settings)}
    standing = own_rows(experiment, **where)
    if not ranges:
        return standing, standing
    rows = own_rows(experiment.model_copy(update={"data": read_with(experiment.data, ranges)}), **where)
    if not torch.equal(rows.y, standing.y):
        raise BadData(
            "The site's data file has changed while it was read: it is read again when the server asks again."
        )
    return rows, standing
