"""`backdoor`: what malicious clients reach, by round, beside what the clip alone leaves them (Bagdasaryan et al. 2020,
arXiv:1807.00459; Sun et al. 2019, arXiv:1911.07963).
The malicious clients are those of `[attack]`; without it a tenth of the clients replace the model. Clipping does nearly all of
the work of differential privacy as a defence, so a run that promises some is shown with the same run without noise, and with
nobody malicious."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tacit import check
from tacit.engine.assemble import build
from tacit.engine.evaluate import BACKDOOR
from tacit.engine.evaluate import backdoor as measured_backdoor
from tacit.engine.run_files import read
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.experiment.extras import AttackSection
from tacit.lab.attacks import Attack, Estimate, Finding, Line, Place, Plot
from tacit.lab.attacks._runs import train
from tacit.lab.compare import results
from tacit.lab.compare.grid import Cell, seeded, tasks_of
from tacit.lab.compare.results import BACKDOORED, Row
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
        train(tasks, place)
        rows = results.rows_of(tasks, {})
        estimates = [
            _estimate(row, name, row.backdoor if key == BACKDOOR else row.score)
            for row in rows
            for name, key in _measured(row).items()
        ]
        pairs = zip(cells[0].experiments, rows[-1].runs, strict=True)
        clean = results.estimate([untouched(attacked, run.folder) for attacked, run in pairs], (0.0, 1.0))
        estimates.append(_estimate(rows[-1], BACKDOORED, clean))
        run = read(rows[0].runs[0].folder).experiment  # with the rule that was usual
        attack, promised = run.attack or AttackSection(), run.privacy.kind.replace("none", "no")
        share = f"{attack.clients:.3g} of the clients malicious"
        many = f"{attack.clients} malicious clients" if isinstance(attack.clients, int) else share
        attacked = f"{attack.kind}, {many} from round {attack.start + 1}; {promised} privacy"
        attacked += f", rule {run.aggregate.rule or 'mean'}"
        return Finding(
            "backdoor", experiment.name, attacked, tuple(estimates), (_plot(rows),), _notes(rows, self.seeds)
        )


def untouched(attacked: Experiment, folder: Path) -> float:
    """How often the final model of a run without malicious clients takes triggered rows for the target: chance, for this attack."""
    parts, tensors = build(attacked), load_file(folder / "model.safetensors")
    params = torch.cat([tensors[block.name].reshape(-1) for block in blocks(parts.model)])
    return measured_backdoor(parts, params.to(parts.theta.device))[BACKDOOR]


def variants(experiment: Experiment, seeds: int) -> list[tuple[str, tuple[Experiment, ...]]]:
    """The runs that are compared, each under every seed: attacked, clip only where something is promised, nobody malicious."""
    attack = {"attack": experiment.attack or AttackSection()}
    variants: list[tuple[str, dict[str, Any]]] = [(ATTACKED, attack)]
    sections = {name: getattr(experiment, name) for name in Experiment.model_fields}
    parts = build(Experiment(**sections | attack))  # what cannot be attacked is refused before anything runs
    if parts.plan.priced:
        said = experiment.privacy.model_dump(exclude_none=True)
        privacy = {key: said[key] for key in CLIPPING if key in said}  # its epsilon is without meaning, and said so
        privacy |= {"epsilon": float("inf"), "noise_multiplier": NEGLIGIBLE}
        same = {"aggregate": parts.ruled.aggregate}  # of equal noise another rule may be the usual one
        variants.append((CLIP_ONLY, attack | {"privacy": privacy} | same))
    variants.append((NOBODY, {"attack": None}))
    return [(name, seeded(Experiment(**sections | more), seeds)) for name, more in variants]


def _measured(row: Row) -> dict[str, str]:
    main = {f"main {metrics.words(row.metric)}": row.metric}
    return main if row.cell.label == NOBODY else main | {BACKDOORED: BACKDOOR}


def _estimate(row: Row, name: str, mean: Over | None) -> Estimate:
    if mean is None:
        raise BadInput(f"{row.cell.label}: no run has ended.")
    return Estimate(name, mean.mean, *mean.ends, of=row.cell.label)


def _plot(rows: Sequence[Row]) -> Plot:
    """The mean over seeds by round; the bands run from the lowest seed to the highest."""
    lines = []
    for row in rows:
        for name, key in _measured(row).items():
            values = results.over_rounds(row, key)
            tested = results.tested(values)
            x, values = tuple((tested + 1.0).tolist()), values[:, tested]
            band = [tuple(ends.tolist()) for ends in (values.min(0), values.max(0))] if len(values) > 1 else []
            lines.append(Line(f"{name}, {row.cell.label}", x, tuple(values.mean(0).tolist()), *band))
    return Plot("rounds", "The model and the backdoor by round", "round", metrics.words(rows[0].metric), tuple(lines))


def _notes(rows: Sequence[Row], seeds: int) -> tuple[str, ...]:
    same = f'"{CLIP_ONLY}" has the same clip and a noise multiplier of {NEGLIGIBLE}: what it does not stop, only noise could.'
    nothing = "Nothing is promised in this run, so there is no noise to compare the clip with."
    last = results.last_rounds(results.lengths(rows))
    return (
        f"Means of the {last} over {seeds} seed{'s' * (seeds != 1)}, with Student's interval from three seeds on.",
        same if any(row.cell.label == CLIP_ONLY for row in rows) else nothing,
        f'The backdoor of "{NOBODY}" is that of the final models: what the trigger does to a model that nobody attacked.',
        "An epsilon is about the honest clients: what malicious ones send is the adversary's own.",
    )
