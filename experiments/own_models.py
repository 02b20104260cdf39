"""What a client gets alone, from the common model and from its own: the table of docs/results.md.

    python experiments/own_models.py --out runs/own [--cells digits-0.3 ...] [--seeds 0,1,2]

Every cell is trained once a seed; each way of adapting then begins with the same common model, because no release depends on
`[personal]`. Finished cells are kept: the table is made of what lies in --out.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

import tacit
from tacit.build.parts import Parts, build
from tacit.personal import everybody
from tacit.train.flat import blocks

KINDS = ("mean-regularised", "shrinkage", "finetune")
DIGITS = {
    "name": "digits",
    "data": {"name": "digits", "clients": 10, "own_share": 0.3},
    "model": {"name": "logr"},
    "train": {"rounds": 40, "local_steps": 5, "sampling_rate": 0.25, "learning_rate": 0.5},
    "privacy": {"kind": "local", "epsilon": "uniform", "delta": 1e-5, "clip": 1.0},
}
LOOSE = {"epsilon": [10.0] + [0.1] * 9}  # one loose client among tight ones


def changed(**changes: dict) -> dict:
    """The digits with other values in some sections."""
    return DIGITS | {section: DIGITS.get(section, {}) | values for section, values in changes.items()}


def cells() -> dict[str, dict]:
    """Every cell's experiment, by name."""
    here = Path(__file__).resolve().parents[1] / "examples" / "hospitals" / "different.toml"
    found = {"hospitals": tacit.Experiment.load(here).said()}
    for alpha in (0.1, 0.3, 1.0):
        found[f"digits-{alpha:g}"] = changed(data={"partition": "dirichlet", "alpha": alpha})
    shards = {"partition": "shards", "shards_per_client": 2, "examples_per_client": 140}
    found["digits-shards"] = changed(data=shards)
    for rule in ("random-effects", "weighted"):
        found[f"loose-{rule}"] = changed(data=shards, privacy=LOOSE, aggregate={"rule": rule})
    return found


def trained(values: dict, seed: int, out: Path) -> tuple[Parts, torch.Tensor]:
    """The parts of a cell and its common model."""
    sections = {key: value for key, value in values.items() if key != "personal"}
    run = {"seed": seed, "workers": 1}
    experiment = tacit.Experiment(**sections | {"run": run})
    if not (out / "summary.json").exists():
        tacit.run(experiment, out=out, force=True, page=False)
    parts, kept = build(experiment), load_file(out / "model.safetensors")
    return parts, torch.cat([kept[block.name].reshape(-1) for block in blocks(parts.model)])


def judged(parts: Parts, params: torch.Tensor, kind: str) -> dict:
    """What one way of adapting gives."""
    values = parts.experiment.said() | {"personal": {"kind": kind}}
    found = everybody.measured(replace(parts, experiment=tacit.Experiment(**values)), params)
    return found[1] if found else {}


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--cells", nargs="*", default=list(cells()))
    words.add_argument("--kinds", nargs="*", default=list(KINDS))
    words.add_argument("--seeds", default="0,1,2")
    said = words.parse_args()
    seeds = [int(seed) for seed in said.seeds.split(",")]
    for cell in said.cells:
        for seed in seeds:
            files = {kind: said.out / f"{cell}-{seed}" / f"own-{kind}.json" for kind in said.kinds}
            if all(file.exists() for file in files.values()):
                continue
            parts, params = trained(cells()[cell], seed, said.out / f"{cell}-{seed}")
            for kind, file in files.items():
                if not file.exists():
                    file.write_text(json.dumps(judged(parts, params, kind)), "utf-8")
        show(said.out, cell, said.kinds, seeds)


def show(out: Path, cell: str, kinds: list[str], seeds: list[int]) -> None:
    """A cell's lines: means over seeds, and of the paired differences the mean with the least and the greatest."""
    for kind in kinds:
        found = [json.loads((out / f"{cell}-{seed}" / f"own-{kind}.json").read_text("utf-8")) for seed in seeds]
        train = [json.loads((out / f"{cell}-{seed}" / "summary.json").read_text("utf-8"))["seconds"] for seed in seeds]
        cost = sum(one["adapt_seconds"] for one in found) / sum(train)
        for metric in found[0]["metrics"]:
            each = [one["metrics"][metric] for one in found]
            means = " | ".join(
                f"{np.mean([one[name]['value'] for one in each]):.3f}" for name in ("alone", "common", "own")
            )
            gaps = " | ".join(_gap([one[f"own_less_{name}"] for one in each]) for name in ("alone", "common"))
            stay = "/".join(str(one["stay_alone"]) for one in found)
            print(f"| {cell} | {kind} | {metric} | {means} | {gaps} | {stay} | {cost:.0%} |", flush=True)


def _gap(each: list[dict]) -> str:
    values = [one["value"] for one in each]
    ends = f"{min(one['interval'][0] for one in each):+.3f} to {max(one['interval'][1] for one in each):+.3f}"
    return f"{np.mean(values):+.3f} ({ends})"


if __name__ == "__main__":
    main()
