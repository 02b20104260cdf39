"""What a client gets alone, from the common model and from its own: the tables of docs/results.md.

    python experiments/own_models.py --out runs/own [--cells digits-0.3 ...] [--kinds ...] [--seeds 0,1,2]
    python experiments/own_models.py --out runs/own --cells hospitals --noiseless
    python experiments/own_models.py --out runs/cost --cells digits-0.3 mlp-iid --seeds 0 --cost
    python experiments/own_models.py --out runs/own --cells mnist-random-effects mnist-weighted --seeds 0
    python experiments/own_models.py --out runs/small --cells digits-0.3 --kinds mean-regularised --seeds 0  # small

Every cell is trained once a seed; each way of adapting then begins with the same common model, because no release depends on
`[personal]`. With --noiseless it begins with the one that all training rows together give without noise: what is left of a gain
then is no noise's fault. Finished cells are kept: the table is made of what lies in --out. With --cost each cell is trained and
adapted three times in one process, and CPU seconds are compared, the least of each: those of adapting, and of the control `alone`
where it is made by itself, over those of the whole run.
"""

import argparse
import json
import runpy
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

import tacit
from tacit.engine.assemble import Parts, build
from tacit.personal import one
from tacit.personal.home import Home
from tacit.training.flat import blocks

HERE = Path(__file__).resolve()
KINDS = ("mean-regularised", "head")
LINEAR = KINDS[:1]  # of a model of one layer the head is all
DIGITS = {
    "name": "digits",
    "data": {"name": "digits", "clients": 10, "own_share": 0.3},
    "model": {"name": "logr"},
    "train": {"rounds": 40, "local_steps": 5, "sampling_rate": 0.25, "learning_rate": 0.5},
    "privacy": {"kind": "local", "epsilon": "uniform", "delta": 1e-5, "clip": 1.0},
}
LOOSE = {"epsilon": [10.0] + [0.1] * 9}  # one loose client among tight ones
NETWORK = {"model": {"name": "mlp"}, "train": {"rounds": 20}, "privacy": {"epsilon": 5.0}}
CPU = "cpu.json"
TURNS = 3  # a busy machine makes CPU seconds longer, never shorter
MOSTLY_FLAT = 1e-4  # the ridge of the pooled model: a scale for directions that no row has


def changed(**changes: dict) -> dict:
    """The digits with other values in some sections."""
    return DIGITS | {section: DIGITS.get(section, {}) | values for section, values in changes.items()}


def cells() -> dict[str, dict]:
    """Every cell's experiment, by name."""
    hospitals = HERE.parents[1] / "examples" / "hospitals" / "different.toml"
    found = {"hospitals": tacit.Experiment.load(hospitals).said()}
    uneven = {f"{alpha:g}": {"partition": "dirichlet", "alpha": alpha} for alpha in (0.1, 0.3, 1.0)}
    found |= {f"digits-{name}": changed(data=data) for name, data in uneven.items()}
    shards = {"partition": "shards", "shards_per_client": 2, "examples_per_client": 140}
    found["digits-shards"] = changed(data=shards)
    for rule in ("random-effects", "weighted"):
        found[f"loose-{rule}"] = changed(data=shards, privacy=LOOSE, aggregate={"rule": rule})
    return found | {"mlp-iid": changed(**NETWORK), "mlp-0.3": changed(data=uneven["0.3"], **NETWORK)}


def mnist() -> dict[str, dict]:
    """The cell where the default rule loses: MNIST, LogR, MixGauss1, shards, seed 0 of experiments/pfa_paper.py, "ours"."""
    paper, found = runpy.run_path(str(HERE.with_name("pfa_paper.py"))), {}
    for rule in ("random-effects", "weighted"):
        case = paper["Case"]("ours", "logr", "mixgauss1", "shards", rule, 0)
        values = paper["experiment"](case, device="cpu", rounds=100, changes=("data.own_share=0.3",))
        found[f"mnist-{rule}"] = values
    return found


def trained(values: dict, seed: int, out: Path) -> tuple[Parts, torch.Tensor]:
    """The parts of a cell and its common model; how long it took to train is kept beside it."""
    sections = {key: value for key, value in values.items() if key != "personal"}
    run = {"seed": seed, "workers": 1}
    experiment = tacit.Experiment(**sections | {"run": run})
    if not (out / CPU).exists():
        began = time.process_time()
        tacit.run(experiment, out=out, force=True, page=False)
        (out / CPU).write_text(json.dumps(time.process_time() - began), "utf-8")
    parts, kept = build(experiment), load_file(out / "model.safetensors")
    return parts, torch.cat([kept[block.name].reshape(-1) for block in blocks(parts.model)])


def pooled(parts: Parts) -> torch.Tensor:
    """The model that all clients' training rows together give, without noise."""
    x, y = parts.population.x, parts.population.y
    home = Home(parts.model, parts.theta, parts.losses, x, y, task=parts.experiment.task.kind)
    return home.fit(parts.params, centre=torch.zeros_like(parts.params), strength=MOSTLY_FLAT)


def judged(parts: Parts, params: torch.Tensor, kind: str) -> dict:
    """What one way of adapting gives."""
    values = parts.experiment.said() | {"personal": {"kind": kind}}
    found = one.measured(replace(parts, experiment=tacit.Experiment(**values)), params)
    return found[1] if found else {}


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--cells", nargs="*", default=list(cells()))
    words.add_argument("--kinds", nargs="*", default=list(KINDS))
    words.add_argument("--seeds", default="0,1,2")
    words.add_argument("--noiseless", action="store_true")
    words.add_argument("--cost", action="store_true")
    said = words.parse_args()
    seeds, every = [int(seed) for seed in said.seeds.split(",")], cells() | mnist()
    for cell in said.cells:
        kinds = [kind for kind in said.kinds if kind in LINEAR or cell.startswith("mlp")]
        if said.cost:
            cost(every[cell], seeds[0], said.out / cell, kinds)
            continue
        for seed in seeds:
            found(every[cell], seed, said.out / f"{cell}-{seed}", kinds, noiseless=said.noiseless)
        show(said.out, cell, kinds, seeds, noiseless=said.noiseless)


def found(values: dict, seed: int, out: Path, kinds: list[str], *, noiseless: bool) -> None:
    """Makes what is not there yet of a cell."""
    files = {kind: out / _name(kind, noiseless) for kind in kinds}
    if all(file.exists() for file in files.values()):
        return
    parts, params = trained(values, seed, out)
    params = pooled(parts) if noiseless else params
    for kind, file in files.items():
        if not file.exists():
            file.write_text(json.dumps(judged(parts, params, kind)), "utf-8")


def cost(values: dict, seed: int, out: Path, kinds: list[str]) -> None:
    """Prints what every way costs of a run's CPU seconds: adapting, and the control where it is made by itself."""
    runs, each = [], {kind: [] for kind in kinds}
    for turn in range(TURNS):
        place = out / str(turn)
        (place / CPU).unlink(missing_ok=True)
        parts, params = trained(values, seed, place)
        runs.append(json.loads((place / CPU).read_text("utf-8")))
        for kind in kinds:
            told = judged(parts, params, kind)
            each[kind].append((told["adapt_seconds"], told["alone_seconds"]))
    for kind, found in each.items():
        shares = np.min(found, 0) / min(runs)
        print(
            f"| {out.name} | `{kind}` | adapting {shares[0]:.1%} | alone {shares[1]:.1%} | of CPU {min(runs):.2f} s |"
        )


def show(out: Path, cell: str, kinds: list[str], seeds: list[int], *, noiseless: bool) -> None:
    """A line for each way: by metric alone, common and own, and own - alone; how many stay alone."""
    for kind in kinds:
        places = [out / f"{cell}-{seed}" for seed in seeds]
        each = [json.loads((place / _name(kind, noiseless)).read_text("utf-8")) for place in places]
        known = [metric for metric in each[0]["metrics"] if all("own" in one["metrics"][metric] for one in each)]
        told = [_told([one["metrics"][metric] for one in each]) for metric in known]
        stay = "/".join(str(one["stay_alone"]) for one in each)
        print(f"| {cell} | `{kind}` | {' | '.join(told)} | {stay} |", flush=True)


def _told(each: list[dict]) -> str:
    means = " / ".join(f"{np.mean([one[name]['value'] for one in each]):.3f}" for name in ("alone", "common", "own"))
    return f"{means} | {_gap([one['own_less_alone'] for one in each])}"


def _gap(each: list[dict]) -> str:
    ends = f"{min(one['interval'][0] for one in each):+.3f} to {max(one['interval'][1] for one in each):+.3f}"
    return f"{np.mean([one['value'] for one in each]):+.3f} ({ends})"


def _name(kind: str, noiseless: bool) -> str:
    return f"own-{kind}{'-noiseless' if noiseless else ''}.json"


if __name__ == "__main__":
    main()
