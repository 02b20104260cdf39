"""Own models during training against one model for all and against none: the order of the MR-MTL paper (arXiv:2206.07902).

    python experiments/mean_regularised.py --out runs/mr-mtl [--epsilon 6] [--apart 0.12] [--choose 100,101,102] [--seeds 3,4,5,6,7]
    python experiments/mean_regularised.py --out runs/small --rounds 2 --choose 100 --seeds 3  # small

Silos of a linear regression, each with an optimum of its own around a common one. By `personal.when = "during"`: strength 0 is
training alone with noise, "one model" the run without own models, and between them is MR-MTL, with the strength that is best on the
seeds of --choose. After the last round: what silos make of the one model at home, without noise, by a strength of each one's own
(cross-validation) and by the best of all strengths on the seeds themselves, which no silo could know. Finished runs are kept.

How far silos lie apart decides who wins: one model errs by what they differ, FEATURES apart^2, noise alone by its own variance, and
a mean of both by less than either, most where the two are about alike.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

import tacit
from tacit.data.given import Dataset
from tacit.engine.assemble import build
from tacit.experiment.extras import PersonalSection
from tacit.personal import one
from tacit.simulation import with_passed
from tacit.training.flat import blocks

SILOS, ROWS, FEATURES, COMMON = 20, 110, 28, 0.3  # about as many rows and features as a school of the paper has
APART, ROUNDS = 0.12, 30
DURING = (0.0, 0.1, 0.3, 1.0, 3.0)
AFTER = (10.0, 3.0, 1.0, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01)


def silos(seed: int, apart: float = APART) -> Dataset:
    """Everybody's rows: y = x (w + u_k) + noise, u_k of standard deviation `apart` in every coordinate."""
    rng = np.random.default_rng([seed, 7])
    w = COMMON * rng.normal(size=FEATURES) + apart * rng.normal(size=(SILOS, FEATURES))
    x = rng.normal(size=(SILOS, ROWS, FEATURES))
    y = np.einsum("krd,kd->kr", x, w) + rng.normal(size=(SILOS, ROWS))
    names = np.repeat([f"silo-{k}" for k in range(SILOS)], ROWS)
    return Dataset(
        x.reshape(-1, FEATURES).astype(np.float32), y.reshape(-1), clients=names, classes="numbers", test_share=0
    )


def experiment(epsilon: float, seed: int, personal: dict, rounds: int = ROUNDS) -> tacit.Experiment:
    """A run of so many rounds of 5 steps."""
    return tacit.Experiment(
        data={"own_share": 0.3},
        task={"kind": "regression"},
        train={"rounds": rounds, "local_steps": 5, "sampling_rate": 0.2, "learning_rate": 0.1},
        privacy={"kind": "local", "epsilon": epsilon, "delta": 1e-4, "clip": 2.0},
        personal=personal,
        run={"seed": seed, "workers": 1},
    )


def told(whole: dict, model: str) -> float:
    """The mean squared error of a model on kept rows, over the rows of all silos."""
    each = [(one["rows"], one["metrics"]["rmse"][model]["value"]) for one in whole["clients"]]
    return sum(rows * error**2 for rows, error in each) / sum(rows for rows, _ in each)


def trained(made: tacit.Experiment, data: Dataset, out: Path) -> dict:
    """What a run says of own models; one that has ended is not run again."""
    if not (out / "summary.json").exists():
        tacit.run(made, data=data, out=out, force=True, page=False)
    return json.loads((out / "personal.json").read_text("utf-8"))


def during(epsilon: float, apart: float, rounds: int, seed: int, out: Path) -> dict[str, float]:
    """The squared errors of own models kept during training, by every strength."""
    found = {}
    for strength in DURING:
        own = {"kind": "mean-regularised", "strength": strength, "when": "during"}
        whole = trained(experiment(epsilon, seed, own, rounds), silos(seed, apart), out / f"{strength:g}")
        found[f"during, {strength:g}"] = told(whole, "own")
    return found


def after(epsilon: float, apart: float, rounds: int, seed: int, out: Path) -> dict[str, float]:
    """The squared errors of one model, and of what silos make of it: by strengths of their own, and by every strength."""
    plain = experiment(epsilon, seed, {"kind": "mean-regularised"}, rounds)
    whole = trained(plain, silos(seed, apart), out / "one")
    parts, kept = build(with_passed(plain, data=silos(seed, apart))), load_file(out / "one" / "model.safetensors")
    params = torch.cat([kept[block.name].reshape(-1) for block in blocks(parts.model)])
    found = {"one model": told(whole, "common")}
    for name, own in (
        ("own strengths", {"kind": "mean-regularised"}),
        *((f"after, {each:g}", held(each)) for each in AFTER),
    ):
        again = plain.model_copy(update={"personal": PersonalSection(**own)})
        measured = one.measured(replace(parts, experiment=again), params)
        found[name] = told(measured[0], "own") if measured else np.nan
    return found


def held(strength: float) -> dict:
    """Own models by one strength, said."""
    return {"kind": "mean-regularised", "strength": strength}


def best(each: list[dict[str, float]], way: str) -> str:
    """The strength of the least mean error."""
    return min((key for key in each[0] if key.startswith(way)), key=lambda key: np.mean([one[key] for one in each]))


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--epsilon", type=float, default=6.0)
    words.add_argument("--apart", type=float, default=APART)
    words.add_argument("--rounds", type=int, default=ROUNDS)
    words.add_argument("--choose", default="100,101,102")
    words.add_argument("--seeds", default="3,4,5,6,7")
    said = words.parse_args()

    def places(seeds: str) -> list[tuple[int, Path]]:
        name = f"{said.epsilon:g}" if said.apart == APART else f"{said.epsilon:g}-apart{said.apart:g}"
        return [(int(seed), said.out / f"{name}-{seed}") for seed in seeds.split(",")]

    setting = (said.epsilon, said.apart, said.rounds)
    chosen = best([during(*setting, *place) for place in places(said.choose)], "during")
    each = [during(*setting, *place) | after(*setting, *place) for place in places(said.seeds)]
    for key in each[0]:
        values = [found[key] for found in each]
        roots = ", ".join(f"{value**0.5:.3f}" for value in values)
        print(f"| {key}{' (chosen)' if key == chosen else ''} | {np.mean(values):.3f} | {roots} |")
    order = [found[chosen] < found["one model"] < found["during, 0"] for found in each]
    print(f"mean-regularised ({chosen}) < one model < alone, with noise: {sum(order)} of {len(order)} seeds")
    derived, tuned = (np.array([found[key] for found in each]) for key in ("own strengths", best(each, "after")))
    square, root = derived.mean() / tuned.mean() - 1, np.sqrt(derived).mean() / np.sqrt(tuned).mean() - 1
    print(
        f"own strengths above the best tuned ({best(each, 'after')}): {square:+.1%} squared, {root:+.1%} root mean square"
    )


if __name__ == "__main__":
    main()
