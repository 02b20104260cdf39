"""What a site has at home when a run has left it a model: its rows as they are now, the model's code, and nobody who asks.

Nothing here is asked for by a server, opens a ledger, or waits for the lock of answers. What is read was agreed to: the experiment
is held against budget.toml once more, because reading rows and building a model run what it names."""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open

from tacit.deploy.site import agreement, layout
from tacit.deploy.site.agreement import Agreement, bound
from tacit.deploy.site.consent import refuse_beyond
from tacit.deploy.site.join import own_path, read_experiment, read_parted, read_settings
from tacit.deploy.site.layout import wording
from tacit.deploy.site.limits import Limits, read_limits
from tacit.deploy.site.rows import HeldOut, own_model, shape
from tacit.engine.assemble import TrainingTask, model_of
from tacit.engine.history import FROZEN
from tacit.errors import BadInput
from tacit.experiment.extras import PersonalSection
from tacit.parts import tasks
from tacit.training.flat import blocks, flatten, frozen_mark

MODEL = "model.safetensors"


@dataclass(frozen=True, eq=False, kw_only=True)
class AtHome(TrainingTask):
    """A run at a site: its agreement, rows that are trained on and rows that are held out, and the model before the first round."""

    folder: Path
    agreement: Agreement
    limits: Limits
    settings: dict[str, Any]
    held: HeldOut | None = field(repr=False)

    @property
    def run(self) -> str:
        """The run's name."""
        return self.agreement.run

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
    """A run that has left a model at this site, with the site's rows as they are now.

    Raises: BadInput where there is no such run; Refused where budget.toml does not accept its experiment any more; BadInput or
    BadData for the site's own files and rows, in words for its own people.
    """
    agreed = agreement.read(folder, run)
    if agreed is None or not (layout.model_folder(folder, run) / MODEL).is_file():
        raise BadInput(f"{folder} holds no model that run {run} has left: the server sends it when the run has ended.")
    limits, settings, experiment = read_limits(folder), read_settings(folder), read_experiment(agreed.experiment)
    refuse_beyond(limits, experiment)
    rows, held, _ = read_parted(folder, experiment, settings, local=None, ranges=bound(folder, run))
    experiment = own_model(experiment, path=own_path("model", folder, settings))
    task = tasks.load(experiment, rows)
    model = model_of(experiment, input_shape=shape(rows), classes=task.answer[-1])
    theta = flatten(model)
    site = {"folder": folder, "agreement": agreed, "limits": limits, "settings": settings, "held": held}
    judged = {"experiment": experiment, "dataset": rows, "task": task, "losses": tasks.loss_of(experiment, task)}
    return AtHome(**site, **judged, model=model, theta=theta, params=theta.clone())


def wanted(settings: dict[str, Any]) -> PersonalSection:
    """How the site makes its own models: `[personal]` in site.toml; its `kind` is None where nothing is said there.

    Raises: BadInput for what no own model can be, and where no rows are held out to judge it by.
    """
    said = settings.get("personal")
    if said is None:
        return PersonalSection()
    if not isinstance(said, dict) or "kind" not in said:
        raise BadInput('Expected [personal] in site.toml to name a kind, as in kind = "mean-regularised".')
    try:
        chosen = PersonalSection(**said)
    except ValidationError as error:
        raise BadInput(f"[personal] in site.toml: {wording(error, PersonalSection, said)}") from None
    if chosen.during:
        raise BadInput(
            "Own models during training are for simulations: leave out personal.when in site.toml, and they are made after the run."
        )
    if "held_out" not in settings:
        raise BadInput(
            "site.toml asks for own models ([personal]) and holds out no rows to judge them by: add held_out = 0.2 above it."
        )
    return chosen


def runs(folder: Path) -> list[str]:
    """The runs that have left a model at this site, the newest model first."""
    files = {run: layout.model_folder(folder, run) / MODEL for run in layout.runs(folder)}
    there = {run: file.stat().st_mtime for run, file in files.items() if file.is_file()}
    return sorted(there, key=lambda run: there[run], reverse=True)


def newest(folder: Path, run: str | None) -> str:
    """The run that is meant: the one that is named, or the one whose model came last. Raises: BadInput where there is none."""
    known = runs(folder)
    if not known or (run is not None and run not in known):
        which = f"that run {run} has left" if run else "of a run"
        raise BadInput(f"{folder} holds no model {which}: the server sends it when a run has ended.")
    return run or known[0]


def compared(folder: Path, run: str) -> dict[str, Any] | None:
    """The comparison of a run's models, if it is of the very model that the run has left. Raises: BadInput for a damaged one."""
    path = layout.run_folder(folder, run) / layout.COMPARISON
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text("utf-8"))
        return found if found["common"] == fingerprint(folder, run) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise BadInput(f"{path} is damaged: remove it, and tacit deploy site {folder} --adapt makes it anew.") from None


def fingerprint(folder: Path, run: str) -> str:
    """The SHA-256 of the model that a run has left."""
    return hashlib.sha256((layout.model_folder(folder, run) / MODEL).read_bytes()).hexdigest()


def due(folder: Path) -> list[str]:
    """The runs whose own models are still to be made, or are of another model than the run has left; none where none are wanted.

    Raises: BadInput for a `[personal]` that is none, and a comparison that is damaged.
    """
    if wanted(read_settings(folder)).kind is None:
        return []
    return [run for run in runs(folder) if compared(folder, run) is None]
