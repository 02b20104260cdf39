"""A site's own models: made there of the model that a run left, judged on rows that the site holds out, told to nobody.

`[personal]` in `site.toml` asks for them, `held_out` there says which rows judge them. Guarantee: nothing of it is a function of a
question or goes into an answer. It happens after the server's last word has been answered, in a process of its own that is ended
before any other question is (`tacit.deploy.operate.site_process`); no server can ask for it, forbid it or see that it was done."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from tacit import check, store
from tacit.data import encoder
from tacit.data.population import row_hashes
from tacit.deploy.site import agreement, layout
from tacit.deploy.site.agreement import bound_ranges
from tacit.deploy.site.consent import OWN_FILES
from tacit.deploy.site.layout import MODEL, compared, discreet, due, fingerprint, left_models, newest, note, wanted
from tacit.deploy.site.limits import allow, read_limits
from tacit.deploy.site.rows import HeldOut, file_rows, own_model, read_rows, shape
from tacit.engine.assemble import TrainingTask, model_of
from tacit.engine.history import FROZEN
from tacit.errors import BadInput
from tacit.experiment.extras import read_with
from tacit.parts import metrics, tasks
from tacit.parts.tasks import headline
from tacit.personal import one
from tacit.personal.one import STAYS, Personal, together
from tacit.training.flat import blocks, flatten, frozen_mark

NOT_FOR_OTHERS = "NOT-FOR-OTHERS.txt"
NOT_COVERED = (
    "From this site's rows, without noise: no epsilon covers any of it. Do not send it, and do not publish it."
)


@dataclass(frozen=True, eq=False, kw_only=True)
class AtHome(TrainingTask):
    """A run at a site: rows that are trained on and rows that are held out, and the model before the first round."""

    folder: Path
    run: str
    settings: dict[str, Any]
    held: HeldOut | None = field(repr=False)

    def vector(self, which: str = layout.COMMON) -> torch.Tensor:
        """The parameters of one of the run's models at this site. Raises: BadInput where it is not there, or not of this model."""
        path = layout.model_folder(self.folder, self.run, which) / MODEL
        try:
            with safe_open(path, framework="pt") as file:
                said = (file.metadata() or {}).get(FROZEN, "")
                found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            whole = torch.cat([found[block.name].reshape(-1) for block in blocks(self.model)])
        except (SafetensorError, OSError, KeyError):
            raise BadInput(f"{path} is not there, or no model of this run.") from None
        if said != frozen_mark(self.model) or whole.shape != self.params.shape:
            raise BadInput(f"{path} was trained on another frozen part than the model has now: put its weights back.")
        return whole


def at_home(folder: Path, run: str) -> AtHome:
    """A run that has left a model at this site, with the site's rows as they are now; no ledger is opened, no lock waited for.

    Raises: BadInput where there is no such run; Refused where budget.toml does not accept its experiment any more, because reading
    rows and building a model run what it names; BadInput or BadData for the site's own files and rows, for its own people.
    """
    agreed = agreement.read(folder, run)
    if agreed is None or not (layout.model_folder(folder, run) / MODEL).is_file():
        raise BadInput(f"{folder} holds no model that run {run} has left: the server sends it when the run has ended.")
    allowed = allow(folder, agreed.experiment, read_limits(folder))
    experiment, settings = allowed.experiment, allowed.settings
    rows, held, _ = read_rows(folder, experiment, settings, local=None, ranges=bound_ranges(folder, run))
    experiment = own_model(experiment, path=layout.own_path("model", folder, settings))
    task = tasks.load(experiment, rows)
    model = model_of(experiment, input_shape=shape(rows), classes=task.answer[-1])
    theta = flatten(model)
    judged = {"experiment": experiment, "dataset": rows, "task": task, "losses": tasks.loss_of(experiment, task)}
    weights = {"model": model, "theta": theta, "params": theta.clone()}
    return AtHome(folder=folder, run=run, settings=settings, held=held, **judged, **weights)


def adapt(folder: Path, run: str) -> dict[str, Any]:
    """Makes the site's own models of a run, writes them and, last of all, their comparison, and returns that. Raises: as `at_home`.

    Guarantee: files for their owner alone. Rows that are held out decide about no parameter: whether the own model is made of the
    common one is decided by the training rows, and which of the three to `use` by the held-out ones.
    """
    home = at_home(folder, run)
    by = wanted(home.settings)
    if by.kind is None:
        raise BadInput('site.toml asks for no own models: add [personal] with kind = "mean-regularised", and held_out.')
    one.refuse_unfit(by.kind, home.model, home.dataset.x)
    if home.held is None or not len(home.held.y):
        raise BadInput(
            f"held_out = {home.settings.get('held_out')} leaves this site no row to judge its own models by: raise it."
        )
    common, rows, seed = home.vector(), home.dataset, home.experiment.run.seed
    made = one.make(home, common, rows.x, rows.y, by=by, name=home.settings["name"], seed=seed)
    judged = _judged(home, made, common, home.held.x, home.held.y)
    told = {"run": run, "kind": by.kind, "common": fingerprint(folder, run), **judged, "trained_on": len(rows.y)}
    told |= {"from": made.beginning, "chosen": made.chosen}
    told |= {"adapt_seconds": made.seconds, "notes": [one.ONE_CLASS] if one.one_class(home, rows.y) else []}
    for which, model in ((layout.ALONE, made.alone), (layout.OWN, made.own)):
        _keep(home, which, model)
    layout.write(layout.run_folder(folder, run) / layout.COMPARISON, json.dumps(told, indent=1).encode())
    return told


def adapt_due(folder: Path) -> list[str]:
    """Makes what is due, says in the site's log how it went, and returns what it said. Guarantee: it raises nothing but
    KeyboardInterrupt."""
    texts = list[str]()
    try:
        for run in due(folder):
            told = adapt(folder, run)
            text = (
                f"Personalised models are made. {told['because']} Its {layout.COMPARISON} and `tacit report` say more."
            )
            note(folder, verdict="adapted", text=text, run=run)
            texts.append(text)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - of the site's own interest only
        texts.append(f"Own models: {discreet(error)}")
        note(folder, verdict="failed", text=texts[-1])
    return texts


def in_words(told: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "worth joining", told["because"]
    for key, metric in told["metrics"].items():
        if "own" in metric:
            yield one.lines(metric, key, kind=told["kind"])
        else:
            yield f"{metrics.words(key)} on the client", f"not known: the {told['rows']} rows that judge have one class"
    yield "rows", f"{told['rows']} that judge, {told['trained_on']} that train; own was made of {told['from']}"
    yield (
        "tacit predict",
        f"takes {told['use']}, unless told otherwise; own and alone have no epsilon: do not publish them",
    )
    yield from (("note", text) for text in told["notes"])


def _judged(home: AtHome, made: one.Made, common: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
    names = one.measured_by(home)
    found = one.tell(home, made, common, x, y, names=names, seed=home.experiment.run.seed)
    by = {metrics.key(name): together([found.by[name]]) for name in names}
    said = {"note": NOT_COVERED, "metric": headline(home.experiment)}
    return said | {"metrics": by, "losses": found.losses, "rows": len(y), **one.advised(found, home)}


def _keep(home: AtHome, which: str, model: Personal) -> None:
    folder = layout.make_folder(layout.model_folder(home.folder, home.run, which))
    layout.write(folder / NOT_FOR_OTHERS, f"{STAYS}\n".encode())
    model.keep(folder / MODEL, home.model, {FROZEN: frozen_mark(home.model)})
    layout.write(folder / "experiment.toml", home.experiment.toml().encode())
    layout.write(folder / encoder.NAME, encoder.text(home.dataset.reading).encode())


# Which of a site's models is used: `tacit predict SITE new.csv`.


def taken(path: Path, asked: str | None) -> tuple[Path, str]:
    """The model that a site's folder, or one of its runs' folders, is used with, and a sentence that says which and why.

    Left out, it is the one to use by the site's held-out rows; where nothing was compared, the common one. A folder that is neither
    is taken as it is. Raises: BadInput for a model that is not there, and for a choice where there is none.
    """
    site = _site(path)
    if site is None:
        if asked is not None:
            raise BadInput(f"--model is for a site's folder, and {path} is none: leave it out.")
        return path, STAYS if (path / NOT_FOR_OTHERS).is_file() else ""
    folder, run = site
    told = compared(folder, run)
    which = asked or (told["use"] if told else layout.COMMON)
    check.one_of((layout.COMMON, layout.OWN, layout.ALONE), use=which)  # of a file that somebody may have edited
    chosen = layout.model_folder(folder, run, which)
    if which != layout.COMMON and (told is None or not (chosen / MODEL).is_file()):
        raise BadInput(
            f"The site has no own model of run {run}: set [personal] in site.toml, or wait until it is made."
        )
    why = "as asked" if asked else "see below" if told else "nothing was compared yet"
    more = [told["because"]] if told and not asked else []
    more += [STAYS] if which != layout.COMMON else []
    return chosen, " ".join([f"With the site's {which} model of run {run} ({why}).", *more])


def _site(path: Path) -> tuple[Path, str] | None:
    try:
        if (path / layout.SETTINGS).is_file():
            return path, left_models(path)[0]
        if (path / layout.AGREEMENT).is_file() and path.resolve().parent.name == layout.RUNS:
            return path.resolve().parents[1], path.resolve().name
    except IndexError:
        raise BadInput(f"{path} holds no model of a run: the server sends it when a run has ended.") from None
    return None


# `tacit deploy site SITE --evaluate FILE`: what new rows say of a run's models at a site, for its own people alone.


def evaluate(folder: Path, file: Path, *, run: str | None = None) -> dict[str, Any]:
    """Compares alone, common and own on the rows of a file, adds a line to the run's `evaluated.jsonl`, and returns it.

    Guarantee: nothing changes about the models, nothing is charged, and nothing leaves the folder. Raises: BadInput, BadData.
    """
    home = at_home(folder, newest(folder, run))
    if home.experiment.data.name not in OWN_FILES:
        raise BadInput(
            f"The rows of {home.experiment.data.name} are dealt out for a trial: --evaluate is for a site with a csv or npz file."
        )
    if not file.is_file():
        raise BadInput(f"{file} is not a file: name one with new rows, such as new.csv.")
    data = read_with(home.experiment.data, bound_ranges(folder, home.run))
    rows = file_rows(home.experiment.model_copy(update={"data": data}), str(file))
    try:
        alone, own = (Personal(home.settings["name"], home.vector(which), {}) for which in (layout.ALONE, layout.OWN))
    except BadInput:
        raise BadInput(f"The site has no own models of run {home.run}: tacit deploy site {folder} --adapt.") from None
    told = _judged(home, one.Made(alone, own, {}, False, 0.0), home.vector(), rows.x, rows.y)
    trained = set(row_hashes(home.dataset.x, home.dataset.y))
    seen = sum(row in trained for row in row_hashes(rows.x, rows.y))  # how many the site trains on as well
    told |= {"run": home.run, "file": file.name, "seen": seen}
    store.append(layout.run_folder(folder, home.run) / layout.EVALUATED, json.dumps(told))
    return told


def in_words_new_rows(told: dict[str, Any]) -> list[tuple[str, str]]:
    lines = [
        one.lines(metric, key, kind="new rows") if "own" in metric else (key, "not known: these rows have one class")
        for key, metric in told["metrics"].items()
    ]
    seen = f"; {told['seen']} of them are among those that the site trains on, and flatter" if told["seen"] else ""
    return [*lines, ("rows", f"{told['rows']} of {told['file']}{seen}")]
