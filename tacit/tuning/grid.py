"""What a search chooses among: every combination of the varied settings, all about the same rows, clients and score."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tacit.compare.cells import expand
from tacit.compare.values import label
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.experiment.asking import EVALUATION, shares
from tacit.experiment.combinations import refuse_passed

SEARCHED = ("train", "model", "aggregate")  # tables all of whose keys may be varied
NOISING = (
    "clip",
    "clip_quantile",
    "clip_learning_rate",
    "count_noise",
    "noise_multiplier",
    "weight_cap",
)  # of [privacy]
NO_SCORE = (
    "A search is scored on public rows, and there are none: name a file of public rows (data.test_path), or set data.test_share,"
    " which makes that share of the clients' own rows public; or, under local DP per record, data.held_out, by which clients answer"
    " once in every run, at a price."
)


@dataclass(frozen=True)
class Candidate:
    """One combination of settings: what it varies, in words too, and its experiment, without ledger and folder."""

    label: str
    varied: dict[str, Any]
    experiment: Experiment = field(repr=False)


def candidates(values: Mapping[str, Any], vary: Mapping[str, Sequence[Any]]) -> list[Candidate]:
    """Every combination once. Raises BadInput for what a search cannot vary, or cannot have at all."""
    if not vary:
        raise BadInput("Nothing is varied, so there is nothing to choose: add --vary train.learning_rate=0.1,0.3,1.")
    for key in vary:
        _refuse_key(key)
    own = {name: dict(part) if isinstance(part, Mapping) else part for name, part in values.items()}
    own.get("privacy", {}).pop("ledger", None)
    own.get("run", {}).pop("out", None)
    base = Experiment(**own)
    refuse_unsearchable(base)
    run = base.run
    cells = expand(own, vary, seeds=1)
    for cell in cells:  # what is varied may make a candidate what the base is not
        refuse_unsearchable(cell.experiments[0].model_copy(update={"run": run}))
    return [
        Candidate(
            label(cell.varied) or cell.label, _said(cell.varied), cell.experiments[0].model_copy(update={"run": run})
        )
        for cell in cells
    ]


def _said(varied: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in varied.items() if value is not None}


def _refuse_key(key: str) -> None:
    section, _, name = key.partition(".")
    if section in SEARCHED or (section == "privacy" and name in NOISING) or not name:
        return  # a key without a section is refused with the grid
    raise BadInput(
        f"A search cannot vary {key}: its runs are about the same rows, score and promise, so it varies [train], [model],"
        f" [aggregate] and privacy.{', '.join(NOISING)}."
    )


def refuse_unsearchable(experiment: Experiment) -> None:
    """Refuses what has no price in a search, or would show its losers. Raises BadInput."""
    privacy = experiment.privacy
    if not privacy.promises:
        raise BadInput("Nothing is promised here, so that a search has no price: use `tacit compare`.")
    if set(shares(experiment)) - {EVALUATION}:
        raise BadInput(
            "Every run would ask for ranges or statistics again, which decide nothing in a search: ask before it, and leave out"
            " privacy.stats and private ranges."
        )
    for table in ("attack", "audit", "personal"):
        if experiment.said().get(table):
            raise BadInput(f"[{table}] looks into every run, and of a search only the best is seen: leave it out.")
    if experiment.run.writers:
        raise BadInput("run.writers would be told of runs that lose, which nobody may see: leave it out.")
    if experiment.run.engine != "tacit":
        raise BadInput(f'run.engine = "{experiment.run.engine}" trains runs that share their keys: leave it out.')
    if experiment.train.sampler not in (None, "poisson"):
        raise BadInput(
            "No price is known for the best of runs whose cohorts are public, or of a fixed size: set train.sampler ="
            ' "poisson".'
        )
    refuse_passed(experiment)
