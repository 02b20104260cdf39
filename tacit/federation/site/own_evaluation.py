"""What a site finds out for itself: the models that it is asked with, judged on rows that it holds out of training.

`held_out = 0.2` in `site.toml` keeps about that share of the site's rows out, by a coin that each record tosses for itself, so that
a new row moves no other one into training or out of it. The results are lines of `runs/RUN/held_out.jsonl`, for the site's people.
Guarantee: nothing of them leaves the folder, and whatever goes wrong here changes no answer.
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tacit import metrics
from tacit.data.dataset import Dataset
from tacit.data.row_hashes import coins
from tacit.engine.evaluate import CHUNK, answered
from tacit.errors import BadInput
from tacit.federation.site import layout, store
from tacit.federation.site.log import discreet, note
from tacit.tasks import chosen
from tacit.train.flat import flatten
from tacit.train.frozen import beside
from tacit.wording import shown

if TYPE_CHECKING:
    from tacit.federation.site.join import Joined

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
        store.append(layout.run_folder(folder, joined.agreement.run) / layout.HELD_OUT, json.dumps(line))
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
    return {metrics.key(name): metrics.told(metrics.load(name), answers) for name in names}
