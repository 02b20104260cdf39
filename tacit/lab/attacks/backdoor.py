"""`backdoor`: what malicious clients reach, by round, beside what the clip alone leaves them (Bagdasaryan et al. 2020,
arXiv:1807.00459; Sun et al. 2019, arXiv:1911.07963).

The malicious clients are the experiment's own, in its table `[attack]`; without one a tenth of the clients replace the model.
Clipping does nearly all of the work of differential privacy as a defence, so a run that promises some is shown with the same run
without noise. Nobody malicious is the third: what the attack costs the model itself, and what the trigger does without it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from tacit import check
from tacit.engine.assemble import build, with_rule
from tacit.engine.evaluate import BACKDOOR
from tacit.engine.evaluate import backdoor as measured_backdoor
from tacit.engine.run_files import read
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.experiment.extras import AttackSection
from tacit.lab.attacks import Attack, Estimate, Finding, Line, Place, Plot
from tacit.lab.attacks._shadows import trained
from tacit.lab.compare.grid import Cell, tasks_of
from tacit.lab.compare.results import (
    BACKDOORED,
    Row,
    estimate,
    last_rounds,
    lengths,
    over_rounds,
    rows_of,
    tested,
    values_of,
)
from tacit.parts import metrics
from tacit.table import Estimate as Over
from tacit.training.flat import blocks

ATTACKED, CLIP_ONLY, NOBODY = "attacked", "clip only", "nobody malicious"
NEGLIGIBLE = 0.01  # a noise multiplier: the same mechanism, all but without noise
CLIPPING = ("kind", "unit", "delta", "clip", "weight_cap", "adaptive_clip")


@dataclass(frozen=True)
class backdoor(Attack):
    """Runs the experiment with its malicious clients under `seeds` seeds, and reads both accuracies by round.
    Raises: BadInput for less than one seed, and as the experiment with malicious clients does."""

    seeds: int = 3  # over how many runs a rate is taken

    def __post_init__(self) -> None:
        check.at_least(1, **{"with.seeds": self.seeds})

    def perform(self, experiment: Experiment, place: Place) -> Finding:
        cells = [Cell(name, name.replace(" ", "-"), {}, exps) for name, exps in variants(experiment, self.seeds)]
        tasks = tasks_of(place.folder, cells)
        trained(tasks, place)
        rows = rows_of(tasks, {})
        estimates = [
            _estimate(row, name, row.backdoor if key == BACKDOOR else row.score)
            for row in rows
            for name, key in _measured(row).items()
        ]
        pairs = zip(cells[0].experiments, rows[-1].runs, strict=True)
        clean = estimate([untouched(attacked, run.folder) for attacked, run in pairs], (0.0, 1.0))
        estimates.append(_estimate(rows[-1], BACKDOORED, clean))
        notes = (_said(estimates, rows[0].cell.experiments[0]), *_notes(rows, self.seeds))
        return Finding("backdoor", experiment.name, _words(rows[0]), tuple(estimates), (_plot(rows),), notes)


def untouched(attacked: Experiment, folder: Path) -> float:
    """How often the final model of a run without malicious clients takes triggered rows for the target: chance, for this attack."""
    parts, tensors = build(attacked), load_file(folder / "model.safetensors")
    params = torch.cat([tensors[block.name].reshape(-1) for block in blocks(parts.model)])
    return measured_backdoor(parts, params.to(parts.theta.device))[BACKDOOR]


def variants(experiment: Experiment, seeds: int) -> list[tuple[str, tuple[Experiment, ...]]]:
    """The runs that are compared, each under every seed: attacked, clip only where something is promised, nobody malicious."""
    attack = experiment.attack or AttackSection()
    found: list[tuple[str, dict[str, Any]]] = [(ATTACKED, {"attack": attack})]
    sections = {name: getattr(experiment, name) for name in Experiment.model_fields}
    parts = build(
        Experiment(**sections | {"attack": attack})
    )  # what cannot be attacked is refused before anything runs
    if parts.plan.priced:
        said = experiment.privacy.model_dump(exclude_none=True)
        privacy = {key: said[key] for key in CLIPPING if key in said}  # its epsilon is without meaning, and said so
        privacy |= {"epsilon": float("inf"), "noise_multiplier": NEGLIGIBLE, "accountant": "rdp"}
        same = {"aggregate": with_rule(parts).aggregate}  # of equal noise another rule may be the usual one
        found.append((CLIP_ONLY, {"attack": attack, "privacy": privacy} | same))
    found.append((NOBODY, {"attack": None}))
    first = experiment.run.seed
    runs = [experiment.run.model_copy(update={"seed": first + k, "workers": 1, "out": None}) for k in range(seeds)]
    return [(name, tuple(Experiment(**sections | more | {"run": run}) for run in runs)) for name, more in found]


def _measured(row: Row) -> dict[str, str]:
    """What is measured of a cell, by its name for people: the key of its records."""
    main = {f"main {metrics.words(row.metric)}": row.metric}
    return main if row.cell.label == NOBODY else main | {BACKDOORED: BACKDOOR}


def _estimate(row: Row, name: str, known: Over | None) -> Estimate:
    if known is None:
        raise BadInput(f"{row.cell.label}: no run has ended.")
    low, high = (None, None) if known.interval is None else (known.mean - known.span[0], known.mean + known.span[1])
    return Estimate(name, known.mean, low, high, of=row.cell.label)


def _plot(rows: Sequence[Row]) -> Plot:
    lines = []
    for row in rows:
        for name, key in _measured(row).items():
            values = over_rounds(row, lambda run, key=key: values_of(run, key))
            lines.append(_line(f"{name}, {row.cell.label}", values))
    return Plot("rounds", "The model and the backdoor by round", "round", metrics.words(rows[0].metric), tuple(lines))


def _line(name: str, values: np.ndarray) -> Line:
    """The mean over seeds by round; the band runs from the lowest seed to the highest."""
    known = tested(values)
    x, values = tuple((known + 1.0).tolist()), values[:, known]
    ends = {"low": tuple(values.min(0).tolist()), "high": tuple(values.max(0).tolist())} if len(values) > 1 else {}
    return Line(name, x, tuple(values.mean(0).tolist()), **ends)


def _words(row: Row) -> str:
    experiment = read(row.runs[0].folder).experiment
    attack = _malicious(experiment)
    share = f"{attack.clients:.3g} of the clients malicious"
    many = f"{attack.clients} malicious clients" if isinstance(attack.clients, int) else share
    promised = {"none": "no privacy"}.get(experiment.privacy.kind, f"{experiment.privacy.kind} privacy")
    rule = experiment.aggregate.rule or "mean"
    return f"{attack.kind}, {many} from round {attack.start + 1}; {promised}, rule {rule}"


def _said(estimates: Sequence[Estimate], experiment: Experiment) -> str:
    found = {one.of: one for one in estimates if one.name == BACKDOORED}
    target = _malicious(experiment).target
    taken = "the attackers' class" + ("" if target is None else f" ({target})")
    whose = {ATTACKED: "by the attacked model", CLIP_ONLY: "with the clip alone", NOBODY: "where nobody attacked"}
    shares = ", ".join(f"{100 * found[name].value:.3g} % {words}" for name, words in whose.items() if name in found)
    return f"Backdoor accuracy: of test rows with the trigger, so many are taken for {taken}: {shares}."


def _malicious(experiment: Experiment) -> AttackSection:
    if experiment.attack is None:
        raise TypeError("nobody is malicious here")
    return experiment.attack


def _notes(rows: Sequence[Row], seeds: int) -> tuple[str, ...]:
    counted = f"{seeds} seed{'s' * (seeds != 1)}"
    same = f'"{CLIP_ONLY}" has the same clip and a noise multiplier of {NEGLIGIBLE}: what it does not stop, only noise could.'
    nothing = "Nothing is promised in this run, so there is no noise to compare the clip with."
    return (
        f"Means of the {last_rounds(lengths(rows))} over {counted}, with Student's interval from three seeds on.",
        same if any(row.cell.label == CLIP_ONLY for row in rows) else nothing,
        f'The backdoor of "{NOBODY}" is that of the final models: what the trigger does to a model that nobody attacked.',
        "An epsilon is about the honest clients: what malicious ones send is the adversary's own.",
    )
