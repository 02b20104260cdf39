"""A site's own models: made at home of the model that a run left, judged on rows that the site holds out, told to nobody.

`[personal]` in `site.toml` asks for them, `held_out` there says which rows judge them. Guarantee: nothing of it is a function of a
question or goes into an answer. It happens after the server's last word has been answered, in a process of its own that is ended
before any other question is (`tacit.federation.operate.quiet`); no server can ask for it, forbid it or see that it was done.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tacit import metrics
from tacit.data import encoder_file
from tacit.engine.history import FROZEN
from tacit.errors import BadInput
from tacit.federation.site import layout, store
from tacit.federation.site.at_home import MODEL, AtHome, at_home, due, fingerprint, wanted
from tacit.federation.site.log import discreet, note
from tacit.personal import one
from tacit.personal.own import STAYS, Personal
from tacit.personal.paired import together
from tacit.tasks import chosen, headline
from tacit.train.frozen import frozen_mark

NOT_FOR_OTHERS = "NOT-FOR-OTHERS.txt"
NOT_COVERED = (
    "From this site's rows, without noise: no epsilon covers any of it. Do not send it, and do not publish it."
)


def adapt(folder: Path, run: str) -> dict[str, Any]:
    """Makes the site's own models of a run, and writes them and their comparison, that last of all; returns the comparison.

    Guarantee: files for their owner alone. Rows that are held out decide about no parameter: own or alone is chosen by the
    training rows, and which of own and common is `better` by the held-out ones.

    Raises: BadInput where site.toml wants none, for what the run's model cannot have, and where no row is held out; as `at_home`.
    """
    home = at_home(folder, run)
    by = wanted(home.settings)
    if by.kind is None:
        raise BadInput('site.toml asks for no own models: add [personal] with kind = "mean-regularised", and held_out.')
    one.refuse_unfit(
        home.experiment, by.kind, home.model, torch.zeros(2, *home.dataset.x.shape[1:], dtype=home.dataset.x.dtype)
    )
    if home.held is None or not len(home.held.y):
        raise BadInput(
            f"held_out = {home.settings.get('held_out')} leaves this site no row to judge its own models by: raise it."
        )
    common, rows, seed = home.vector(), home.dataset, home.experiment.run.seed
    made = one.make(home, common, rows.x, rows.y, by=by, name=home.settings["name"], seed=seed)
    told, higher = (
        _told(home, made, common, home.held.x, home.held.y),
        metrics.load(chosen(home.experiment)).better == "higher",
    )
    told = {"run": run, "kind": by.kind, "common": fingerprint(folder, run), **told, "trained_on": len(rows.y)}
    told |= {
        "from": made.beginning,
        "chosen": made.chosen,
        "better": better(told, higher=higher),
        "adapt_seconds": made.seconds,
    }
    told |= {"notes": [one.ONE_CLASS] if one.one_class(home, rows.y) else []}
    for which, model in ((layout.ALONE, made.alone), (layout.OWN, made.own)):
        _keep(home, which, model)
    store.write(layout.run_folder(folder, run) / layout.COMPARISON, json.dumps(told, indent=1).encode())
    return told


def adapt_due(folder: Path) -> None:
    """Makes what is due, and says in the site's log how it went. Guarantee: it raises nothing but KeyboardInterrupt."""
    try:
        for run in due(folder):
            adapt(folder, run)
            text = f"Own models are made; what held-out rows say of them is in its {layout.COMPARISON}"
            text += ", and on the page that `tacit report` makes of this folder."
            note(folder, verdict="adapted", text=text, run=run)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - of the site's own interest only
        note(folder, verdict="failed", text=f"Own models: {discreet(error)}")


def better(told: dict[str, Any], *, higher: bool) -> str:
    """Which of own and common the held-out rows speak for: by the headline metric, by the mean loss where that cannot tell."""
    by, losses = told["metrics"][told["metric"]], told["losses"]
    if "own" in by and by["own"]["value"] != by["common"]["value"]:
        return layout.OWN if (by["own"]["value"] > by["common"]["value"]) == higher else layout.COMMON
    return layout.OWN if losses["own"] < losses["common"] else layout.COMMON


def in_words(told: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """A comparison for the site's people, a line for each thing."""
    for key, metric in told["metrics"].items():
        if "own" in metric:
            yield one.lines(metric, key, kind=told["kind"])
        else:
            yield f"{metrics.words(key)} at home", f"not known: the {told['rows']} rows that judge have one class"
    yield "rows", f"{told['rows']} that judge, {told['trained_on']} that train; own was made of {told['from']}"
    yield (
        "tacit predict",
        f"takes {told['better']}, unless told otherwise; own and alone have no epsilon: do not publish them",
    )
    yield from (("note", text) for text in told["notes"])


def judged(home: AtHome, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
    """What other rows say of the models that lie in a run's folder. Raises: BadInput where the site has made none."""
    try:
        alone, own = (Personal(home.settings["name"], home.vector(which), {}) for which in (layout.ALONE, layout.OWN))
    except BadInput:
        raise BadInput(
            f"The site has no own models of run {home.run}: tacit deploy site {home.folder} --adapt."
        ) from None
    return _told(home, one.Made(alone, own, {}, False, 0.0), home.vector(), x, y)


def _told(home: AtHome, made: one.Made, common: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
    names = one.measured_by(home)
    found = one.tell(home, made, common, x, y, names=names, seed=home.experiment.run.seed)
    by = {metrics.key(name): together([found.by[name]]) for name in names}
    return {
        "note": NOT_COVERED,
        "metric": headline(home.experiment),
        "metrics": by,
        "losses": found.losses,
        "rows": len(y),
    }


def _keep(home: AtHome, which: str, model: Personal) -> None:
    """Puts a model where `tacit predict` reads it, beside a sentence that says what it is."""
    folder = store.make_folder(layout.model_folder(home.folder, home.run, which))
    store.write(folder / NOT_FOR_OTHERS, f"{STAYS}\n".encode())
    model.keep(folder / MODEL, home.model, {FROZEN: frozen_mark(home.model)})
    store.write(folder / "experiment.toml", home.experiment.toml().encode())
    store.write(folder / encoder_file.NAME, encoder_file.text(home.dataset.reading).encode())
