"""Where a deployment's rows come from: a site reads its own, the server only the public test rows. So with a model's weights."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import torch

from tacit import wire
from tacit.check import shown
from tacit.data.csv import declared_classes, encoder_of
from tacit.data.dataset import NO_TEST_ROWS, Dataset, reading
from tacit.data.population import coins
from tacit.data.sources import csv, load, npz, source
from tacit.data.texts import NUMBERS
from tacit.deploy.site.consent import OWN_FILES
from tacit.deploy.site.layout import own_path
from tacit.engine.assemble import clients
from tacit.errors import BadData, BadInput, Refused
from tacit.experiment import Experiment
from tacit.experiment.extras import EVALUATION, NO_PERSONS, WORDS, read_with, shares
from tacit.privacy.queries.ranges import Range
from tacit.privacy.wiring import Local

LARGEST_SHARE = 0.9
NONE_KNOWN: Mapping[str, Range] = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class HeldOut:
    x: torch.Tensor = field(repr=False)
    y: torch.Tensor = field(repr=False)


def read_rows(
    folder: Path,
    experiment: Experiment,
    settings: dict[str, Any],
    *,
    local: Local | None,
    ranges: Mapping[str, Range] = NONE_KNOWN,
) -> tuple[Dataset, HeldOut | None, HeldOut | None]:
    """The site's rows that it trains on, those that it holds out for itself, and those that the experiment holds out.

    Private columns are scaled by `ranges`; on which side a record is does not depend on that. Where somebody else's code trains on
    rows that Tacit never sees, these are zeros of their number and shape. Assumes: the experiment was allowed: its source is
    imported here. Raises: Refused; BadInput for files and settings; BadData for rows, whose text may quote a cell.
    """
    source(experiment.data)
    if "examples" not in settings:
        rows, standing = _scaled(folder, experiment, settings, ranges)
        mine, _ = parted(standing, settings)
        rows, held = parted(rows, settings, tossing=standing)
        trained, counted = _without_held_out(rows, experiment, tossing=mine)
        return by_person(trained, experiment), held, counted
    if experiment.privacy.person_rows is not None:
        raise Refused("This site's rows are declared in site.toml only, and whose each is nobody has said.")
    asked = " and ".join(WORDS[query] for query in shares(experiment))
    if asked:
        raise Refused(f"This site's rows are declared in site.toml only, so it can answer nothing for {asked}.")
    if "held_out" in settings:
        raise BadInput("site.toml declares rows that Tacit never sees, so none is held out: leave out held_out.")
    if local is None:
        raise Refused("This site's rows are declared in site.toml only, so its training must come through tacit_mod.")
    examples = wire.whole(settings["examples"], what="examples in site.toml", least=1)
    return _unseen_rows(experiment, examples=examples, shape=settings.get("shape")), None, None


def by_person(rows: Dataset, experiment: Experiment) -> Dataset:
    """The rows person by person, where a person is the unit; else rows that nobody has. Raises: BadInput."""
    if experiment.privacy.person_rows is None:
        return replace(rows, person=None)
    if rows.person is None:
        raise BadInput(NO_PERSONS)
    order = np.argsort(rows.person, kind="stable")
    return replace(rows, x=rows.x[order], y=rows.y[order], person=rows.person[order])


def _scaled(
    folder: Path, experiment: Experiment, settings: dict[str, Any], ranges: Mapping[str, Range]
) -> tuple[Dataset, Dataset]:
    """All rows as they are trained on, and the same ones as they stand in the file. Raises BadData if it changes."""
    where = {"name": settings["name"], "path": own_path("data", folder, settings)}
    standing = _own_rows(experiment, **where)
    if not ranges:
        return standing, standing
    rows = _own_rows(experiment.model_copy(update={"data": read_with(experiment.data, ranges)}), **where)
    if not torch.equal(rows.y, standing.y):
        raise BadData("The site's data file has changed while it was read: it is read when the server asks again.")
    return rows, standing


def _own_rows(experiment: Experiment, *, name: str, path: str | None) -> Dataset:
    """All rows of the site's own file, or its share of a data set that is dealt out.

    Of a file zeros stand in the place of test rows, so that whether a model can read these says nothing about the site.
    """
    if experiment.data.name in OWN_FILES:
        if path is None:
            raise BadInput('site.toml does not say where the site\'s rows are: add data = "records.csv".')
        if not Path(path).expanduser().exists():
            raise BadInput(f"The site's data file {path} does not exist: put the rows there, or correct site.toml.")
        rows = file_rows(experiment, path)
        targets = torch.zeros(2, *rows.y.shape[1:], dtype=rows.y.dtype)
        return replace(rows, test_x=torch.zeros(2, *shape(rows), dtype=rows.x.dtype), test_y=targets)
    whole = experiment.data.model_copy(update={"held_out": None})  # which rows are held out is `_without_held_out`'s
    dataset, _, population = clients(experiment.model_copy(update={"data": whole}))
    if name not in population.names:
        raise BadInput(f"This experiment has no client of the site's name among its {len(population)}.")
    client = population[population.names.index(name)]
    if dataset.person is not None:
        raise Refused("At a site persons are read from a csv file of its own, and of no data that is dealt out.")
    return replace(dataset, x=client.x, y=client.y, client=None)


def parted(
    rows: Dataset, settings: dict[str, Any], *, tossing: Dataset | None = None
) -> tuple[Dataset, HeldOut | None]:
    """A site's rows without those that `held_out` in site.toml holds out, and those; None where it says nothing of it.

    `tossing` are the same rows as they toss their coins, where they have been scaled since. Raises: BadInput.
    """
    share = settings.get("held_out")
    if share is None:
        return rows, None
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= LARGEST_SHARE:
        raise BadInput(f"Expected held_out in site.toml to be above 0 and at most {LARGEST_SHARE}, got {shown(share)}.")
    by = tossing or rows
    held = coins(by.x, by.y, share=share, seed=0, purpose=f"held out at {settings['name']}", persons=by.person)
    return _divided(rows, held, "held_out in site.toml leaves the site no row to train on: lower it.")


def _without_held_out(rows: Dataset, experiment: Experiment, *, tossing: Dataset) -> tuple[Dataset, HeldOut | None]:
    """The same for `data.held_out`, by the coins of a simulation: record, share and seed alone decide."""
    share = experiment.data.held_out
    if share is None:
        return rows, None
    if rows.mapped:
        raise BadInput("Rows that stay in a file are not divided: leave out data.held_out.")
    by = {"seed": experiment.seeds.data, "purpose": EVALUATION, "persons": tossing.person}
    held = coins(tossing.x, tossing.y, share=share, **by)
    return _divided(rows, held, "data.held_out leaves the site no row to train on: it needs rows, or a smaller share.")


def _divided(rows: Dataset, coins: Any, none_left: str) -> tuple[Dataset, HeldOut]:
    held = torch.from_numpy(coins)
    if bool(held.all()):
        raise BadInput(none_left)
    person = None if rows.person is None else rows.person[~coins]
    return replace(rows, x=rows.x[~held], y=rows.y[~held], person=person), HeldOut(rows.x[held], rows.y[held])


def _unseen_rows(experiment: Experiment, *, examples: int, shape: object) -> Dataset:
    """Zeros for rows that only somebody else's code sees; however many `examples` the site declares, they take no memory."""
    data = experiment.data
    if data.name not in OWN_FILES:
        public = load(data, seed=experiment.seeds.data)
        row, class_names = tuple(public.test_x.shape[1:]), public.class_names
    elif isinstance(files := cast(csv | npz, source(data)), csv) and files.columns is not None:
        class_names = declared_classes(files)
        row = encoder_of(files, files.columns, class_names).shape
    elif isinstance(shape, list | tuple) and shape:
        row = tuple(wire.whole(side, what="a side of shape in site.toml", least=1) for side in shape)
        class_names = declared_classes(files)
    elif shape is None:
        raise BadInput("site.toml declares rows that Tacit never sees: add their shape, as in shape = [1, 28, 28].")
    else:
        raise BadInput(f"Expected shape in site.toml to be whole numbers, as in [1, 28, 28], got {shown(shape)}.")
    x, y = torch.zeros(1, *row).expand(examples, *row), torch.zeros(1, dtype=torch.int64).expand(examples)
    test_x, test_y = torch.zeros(2, *row), torch.zeros(2, dtype=torch.int64)
    return Dataset(data.name, x, y, test_x, test_y, class_names)


def file_rows(experiment: Experiment, path: str) -> Dataset:
    """All rows of one file; as test rows it takes the same ones, because a reader wants some and a site has none."""
    section = experiment.data.model_copy(update={"path": path, "test_path": path, "partition": "iid"})
    dataset = load(section, seed=experiment.seeds.data)
    return replace(dataset, client=None, client_names=None)


def own_model(experiment: Experiment, *, path: str | None) -> Experiment:
    """The experiment with the weights of site.toml in the place of the server's `model.path`. Raises: BadInput."""
    if "path" not in experiment.model.options():
        return experiment
    if path is None:
        raise BadInput('site.toml does not say where the model\'s weights are: add model = "weights.safetensors".')
    if not Path(path).exists():
        raise BadInput(f"The model's weights {path} are not there: put them there, or correct model in site.toml.")
    return experiment.model_copy(update={"model": experiment.model.model_copy(update={"path": path})})


def shape(dataset: Dataset) -> tuple[int, ...]:
    return tuple(torch.Size(dataset.x.shape[1:]))


# What the server may look at.


def public_rows(experiment: Experiment) -> Dataset:
    """What the server may look at: the test rows, the classes and the shape of a row. Raises: BadInput, BadData.

    Of csv and npz rows only `data.test_path` is opened, whose rows stand for training rows too; without one nothing is, and there
    are no test rows. The data that comes with Tacit is public as a whole.
    """
    if experiment.data.name not in OWN_FILES:
        return load(experiment.data, seed=experiment.seeds.data)
    if "test_path" in experiment.data.options():
        return file_rows(experiment, str(experiment.data.options()["test_path"]))
    files = cast(csv | npz, source(experiment.data))
    return _declared_table(files) if isinstance(files, csv) else _declared_arrays(files)


def _declared_table(files: csv) -> Dataset:
    classes = declared_classes(files)
    if files.columns is None or not (classes or files.classes == NUMBERS):
        raise BadInput("Without public test rows nothing shows how rows are read: list data.columns and data.classes.")
    encoder = encoder_of(files, files.columns, classes)
    x, y = torch.zeros(1, *encoder.shape), torch.zeros(1, dtype=torch.int64 if classes else torch.float32)
    return Dataset("csv", x, y, x[:0], y[:0], classes, notes=(NO_TEST_ROWS,), encoder=encoder)


def _declared_arrays(files: npz) -> Dataset:
    classes = declared_classes(files)
    if files.shape is None or not (classes or files.classes == NUMBERS):
        raise BadInput(
            "Without public test rows nothing shows what rows look like: say the shape of one in data.shape, as in"
            " shape = [1, 28, 28], and of a row of labels in data.label_shape, and list data.classes."
        )
    tokens = isinstance(files.classes, int) and len(files.label_shape) == 1
    if files.label_shape and classes and not tokens:
        raise BadInput("data.label_shape is for numbers and for tokens: with classes every row has one label.")
    x = torch.zeros(1, *files.shape, dtype=torch.int64 if tokens else torch.float32)
    y = torch.zeros(1, *files.label_shape, dtype=torch.int64 if classes else torch.float32)
    encoder = reading(x, y, classes, divide_by=files.divide_by)
    return Dataset("npz", x, y, x[:0], y[:0], classes, notes=(NO_TEST_ROWS,), encoder=encoder)
