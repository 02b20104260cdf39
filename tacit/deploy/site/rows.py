"""Where a deployment's rows come from: a site reads its own, the server only the public test rows. So with a model's weights."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from tacit import wire
from tacit.check import shown
from tacit.data.csv import declared_classes, encoded_width, encoder_of
from tacit.data.dataset import Dataset, reading
from tacit.data.load import load, source
from tacit.data.names import FROM_DATA, NUMBERS
from tacit.data.population import coins
from tacit.data.sources import csv, npz
from tacit.data.table import NO_TEST_ROWS
from tacit.deploy.site import layout, replies
from tacit.deploy.site.log import discreet, note
from tacit.engine.assemble import clients
from tacit.engine.evaluate import CHUNK, answered
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.experiment.extras import EVALUATION, NOBODY_MALICIOUS, refuse_deployed
from tacit.parts import metrics
from tacit.parts.tasks import chosen
from tacit.training.flat import beside, flatten

# What rows look like where there are none: of a deployment without public rows the experiment alone says how they are
# read.


def declared(files: csv | npz) -> Dataset:
    """No rows, as they would be read: one of zeros stands for those that there are, and none is a test row.

    Raises: BadInput where the columns, the classes or the shape are not declared.

    >>> declared(npz(path="records.npz", classes=2, shape=(1, 8, 8))).test_x.shape
    torch.Size([0, 1, 8, 8])
    """
    return _table(files) if isinstance(files, csv) else _arrays(files)


def _table(files: csv) -> Dataset:
    classes = declared_classes(files)
    if files.columns is None or not (classes or files.classes == NUMBERS):
        raise BadInput("Without public test rows nothing shows how rows are read: list data.columns and data.classes.")
    encoder = encoder_of(files, files.columns, classes)
    x, y = torch.zeros(1, *encoder.shape), torch.zeros(1, dtype=torch.int64 if classes else torch.float32)
    return Dataset("csv", x, y, x[:0], y[:0], classes, notes=(NO_TEST_ROWS,), encoder=encoder)


def _arrays(files: npz) -> Dataset:
    """As `tacit.data.sources.npz` reads them: classes by number, a class for every place of a row of tokens, or numbers."""
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


# What a site finds out for itself: the models that it is asked with, judged on rows that it holds out of training.

if TYPE_CHECKING:
    from tacit.deploy.site.join import Joined

LARGEST_SHARE = 0.9


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The rows that a site trains on never. They are in no printable description."""

    x: torch.Tensor = field(repr=False)
    y: torch.Tensor = field(repr=False)


def parted(
    rows: Dataset, settings: dict[str, Any], *, tossing: Dataset | None = None
) -> tuple[Dataset, HeldOut | None]:
    """A site's rows without those that it holds out, and those; None where `site.toml` says nothing of it.

    `tossing` are the same rows as they toss their coins, where they have been scaled since.

    Raises: BadInput for a share that is none, and where no row is left to train on.
    """
    share = settings.get("held_out")
    if share is None:
        return rows, None
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= LARGEST_SHARE:
        raise BadInput(
            f"Expected held_out in site.toml to be a share above 0 and at most {LARGEST_SHARE}, got {shown(share)}."
        )
    by, purpose = tossing or rows, f"held out at {settings['name']}"
    held = torch.from_numpy(coins(by.x, by.y, share=share, seed=0, purpose=purpose))
    if bool(held.all()):
        raise BadInput("held_out in site.toml leaves the site no row to train on: lower it.")
    return replace(rows, x=rows.x[~held], y=rows.y[~held]), HeldOut(rows.x[held], rows.y[held])


def judge(folder: Path, joined: "Joined", params: torch.Tensor, round: int) -> None:
    """Writes down how the model that a round begins with does on the site's held-out rows; nothing where there are none.

    Guarantee: it raises nothing; what went wrong is in the log, without anything of the rows.
    """
    if joined.held is None:
        return
    try:
        line = {"round": round, "rows": len(joined.held.y), **_measured(joined, joined.held, params)}
        replies.append(layout.run_folder(folder, joined.agreement.run) / layout.HELD_OUT, json.dumps(line))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - of the site's own interest only: the round's answer is kept already
        note(folder, verdict="failed", text=f"Held-out rows: {discreet(error)}", run=joined.agreement.run, round=round)


@torch.inference_mode()
def _measured(joined: "Joined", held: HeldOut, params: torch.Tensor) -> dict[str, float | None]:
    """Every metric of the task; None where the rows cannot tell it, as of one class."""
    parts, model = joined.parts, beside(joined.parts.model).eval()  # a copy: training keeps its own as it left it
    theta = flatten(model)
    theta.copy_(params)
    found = [parts.task.predictions(model(x.to(theta.device))).cpu().numpy() for x in held.x.split(CHUNK)]
    names = dict.fromkeys((chosen(parts.experiment), *parts.task.metrics))
    if not len(held.y):
        return {metrics.key(name): None for name in names}
    answers = answered(parts, np.concatenate(found), held.y)
    return {metrics.key(name): metrics.measure_if_possible(metrics.load(name), answers) for name in names}


OWN_FILES = ("csv", "npz")  # sources where every site has a file of its own; the others are shared out for a trial

WATCHED = (
    "In a deployment whoever watches the network sees who takes part in a round, and this epsilon counts on nobody's seeing it: set"
    ' privacy.sampler = "cyclic", whose epsilon counts on no secret; or have every site in every round (leave out'
    " train.clients_per_round and privacy.adaptive_clip); or, if nobody whom the promise is against can see the traffic or the"
    ' server\'s log, say so by privacy.network = "unwatched".'
)


def refuse_paths(experiment: Experiment) -> None:
    """Refuses what would make a site open a path that somebody else named.

    Rows of a site's own are read from the path in its site.toml, whatever `data.path` says, and so is a model's `path`
    (`own_model`); `data.test_path` is the server's.

    Raises: BadInput for a file of epsilons, and for a `path` among the options of a source that is not a file of the site's own.
    """
    epsilon = experiment.privacy.epsilon
    if isinstance(epsilon, dict) and set(epsilon) == {"file"} and isinstance(epsilon["file"], str):
        raise BadInput("A site opens no file that the server names: write the epsilons into privacy.epsilon itself.")
    if experiment.data.name not in OWN_FILES and "path" in experiment.data.options():
        raise BadInput("A site opens no folder that the server names: leave out data.path.")


def own_model(experiment: Experiment, *, path: str | None) -> Experiment:
    """The experiment with the weights of the site's own site.toml in the place of the server's `model.path`.

    Raises: BadInput where the model has weights to read and site.toml names none, or such as are not there.
    """
    if "path" not in experiment.model.options():
        return experiment
    if path is None:
        raise BadInput('site.toml does not say where the model\'s weights are: add model = "weights.safetensors".')
    if not Path(path).exists():
        raise BadInput(f"The model's weights {path} are not there: put them there, or correct model in site.toml.")
    return experiment.model_copy(update={"model": experiment.model.model_copy(update={"path": path})})


def refuse_undeployable(experiment: Experiment) -> None:
    """Refuses settings that make sense in one process only, such as a common ledger, a common key file or rows that are dealt out.

    Raises: BadInput, in one sentence that says what to set instead.
    """
    data = experiment.data
    if experiment.attack is not None:
        raise BadInput(NOBODY_MALICIOUS)
    if data.name in OWN_FILES:
        if data.partition != "natural":
            raise BadInput('In a deployment every site has its own rows: set data.partition = "natural".')
        options = data.options()
        if "test_path" not in options and options.get("test_share") != 0:
            raise BadInput(
                "The server of a deployment holds no client's rows: set data.test_path to public test rows, or, where nobody has"
                " public rows, data.test_share = 0."
            )
        if "client_column" in options:
            raise BadInput("In a deployment every site has its own file: leave out data.client_column.")
        if options.get("classes") == FROM_DATA:
            raise BadInput(
                'In a deployment no site knows the labels of another: declare them, as in data.classes = ["no", "yes"].'
            )
    if experiment.privacy.level == "maximum":
        raise BadInput('In a deployment no site exceeds its own budget: set privacy.level = "own" or "minimum".')
    if experiment.privacy.ledger is not None:
        raise BadInput("In a deployment every site keeps its own ledger: leave out privacy.ledger.")
    if experiment.secret_cohorts and experiment.privacy.network is None:
        raise BadInput(WATCHED)
    if experiment.audit.canaries is not None:
        raise BadInput(
            "In a deployment a site audits itself, and nobody else plants anything: leave out [audit], and set canaries in the"
            " site.toml of whoever wants to."
        )
    refuse_deployed(experiment)
    if experiment.train.control is not None:
        raise BadInput(
            "SCAFFOLD tells the clients of a round the control variates of all of them, which a deployment does not send: leave out"
            " train.control."
        )
    if experiment.protect.key is not None:
        raise BadInput("A deployment makes its own keys, so that no file ever holds them all: leave out protect.key.")


def refuse_unpinned(experiment: Experiment) -> None:
    """Refuses csv rows whose columns every site would take from its own file, in its own order.

    Sites would then train one model on columns that mean different things, without an error. Raises: BadInput.
    """
    if experiment.data.name == "csv" and "columns" not in experiment.data.options():
        raise BadInput(
            "In a deployment every site reads the same columns in the same order: list them in data.columns."
        )


def public_rows(experiment: Experiment) -> Dataset:
    """What the server may look at: the test rows, the classes and the shape of a row.

    Guarantee: of csv and npz rows only `data.test_path` is opened; the training rows that the result has are the test rows
    again. Without one nothing is opened: what the experiment declares says how rows are read, and there are no test rows. The data
    that comes with Tacit is public as a whole. Raises: BadInput, BadData.
    """
    if experiment.data.name not in OWN_FILES:
        return load(experiment.data, seed=experiment.seeds.data)
    if "test_path" not in experiment.data.options():
        return declared(cast(csv | npz, source(experiment.data)))
    return file_rows(experiment, str(experiment.data.options()["test_path"]))


def own_rows(experiment: Experiment, *, name: str, path: str | None) -> Dataset:
    """A site's rows: all of its own file, or its share of a data set that is dealt out.

    Guarantee: of csv and npz rows nothing but `path` is opened, and zeros stand in the place of test rows: what is computed from
    those says nothing about the site.

    Raises: BadInput where no path is given, where there is no file, or where the experiment deals nothing to a client of this
    name; BadData for a file that cannot be used, in words that may quote a cell.
    """
    if experiment.data.name in OWN_FILES:
        if path is None:
            raise BadInput('site.toml does not say where the site\'s rows are: add data = "records.csv".')
        if not Path(path).expanduser().exists():
            raise BadInput(
                f"The site's data file {path} does not exist: put the rows there, or correct data in site.toml."
            )
        return _without_test_rows(file_rows(experiment, path))
    whole = experiment.data.model_copy(update={"held_out": None})  # which rows are held out is `without_held_out`'s
    dataset, _, population = clients(experiment.model_copy(update={"data": whole}))
    if name not in population.names:
        raise BadInput(f"This experiment has no client of the site's name among its {len(population)}.")
    client = population[population.names.index(name)]
    return replace(dataset, x=client.x, y=client.y, client=None)


def without_held_out(
    rows: Dataset, experiment: Experiment, *, tossing: Dataset | None = None
) -> tuple[Dataset, HeldOut | None]:
    """A site's rows without those that the experiment holds out (`data.held_out`), and those; None where it holds out none.

    `tossing` are the same rows as they toss their coins, where they have been scaled since.

    Guarantee: on which side a record is follows from the record, the share and the seed alone, by the coins of a simulation.

    Raises: BadInput where no row is left to train on, and for rows that stay in a file.
    """
    share = experiment.data.held_out
    if share is None:
        return rows, None
    if rows.mapped:
        raise BadInput("Rows that stay in a file are not divided: leave out data.held_out.")
    by = tossing or rows
    held = torch.from_numpy(coins(by.x, by.y, share=share, seed=experiment.seeds.data, purpose=EVALUATION))
    if bool(held.all()):
        raise BadInput("data.held_out leaves the site no row to train on: it needs more rows, or a smaller share.")
    return replace(rows, x=rows.x[~held], y=rows.y[~held]), HeldOut(rows.x[held], rows.y[held])


def _without_test_rows(dataset: Dataset) -> Dataset:
    """Zeros in the place of test rows, which are the site's own: whether a model can read these is nobody's business."""
    targets = torch.zeros(2, *dataset.y.shape[1:], dtype=dataset.y.dtype)
    return replace(dataset, test_x=torch.zeros(2, *shape(dataset), dtype=dataset.x.dtype), test_y=targets)


def unseen_rows(experiment: Experiment, *, examples: int, shape: Sequence[int] | None) -> Dataset:
    """Zeros for rows that only somebody else's code sees; their number is declared by the site.

    The shape follows from the experiment where it can (data that comes with Tacit, csv with its columns), else it is the site's.
    Nothing of the site's data is opened, and however many `examples` there are, they take no memory.

    Raises: BadInput where neither says the shape.
    """
    data = experiment.data
    if data.name not in OWN_FILES:
        public = load(data, seed=experiment.seeds.data)
        row, class_names = tuple(public.test_x.shape[1:]), public.class_names
    elif isinstance(files := cast(csv | npz, source(data)), csv) and files.columns is not None:
        row, class_names = (encoded_width(files),), declared_classes(files)
    elif shape is not None:
        row, class_names = _sides(shape), declared_classes(files)
    else:
        raise BadInput("site.toml declares rows that Tacit never sees: add their shape, as in shape = [1, 28, 28].")
    x, y = torch.zeros(1, *row).expand(examples, *row), torch.zeros(1, dtype=torch.int64).expand(examples)
    test_x, test_y = torch.zeros(2, *row), torch.zeros(2, dtype=torch.int64)
    return Dataset(data.name, x, y, test_x, test_y, class_names)


def _sides(shape: object) -> tuple[int, ...]:
    if not isinstance(shape, list | tuple) or not shape:
        raise BadInput(
            f"Expected shape in site.toml to be a list of whole numbers, as in [1, 28, 28], got {shown(shape)}."
        )
    return tuple(wire.whole(side, what="a side of shape in site.toml", least=1) for side in shape)


def file_rows(experiment: Experiment, path: str) -> Dataset:
    """All rows of one file of a site's; as test rows it takes the same ones, because a reader wants some and a site has none."""
    section = experiment.data.model_copy(update={"path": path, "test_path": path, "partition": "iid"})
    dataset = load(section, seed=experiment.seeds.data)
    return replace(dataset, client=None, client_names=None)


def shape(dataset: Dataset) -> tuple[int, ...]:
    """The shape of one row."""
    return tuple(torch.Size(dataset.x.shape[1:]))
