"""A round on a GPU: pfl-research's CIFAR10 benchmark (50 clients, 5 steps of 10 images, 1,626,442 parameters), everything included.

    python bench/gpu.py [--rounds 100] [--device cuda] [--only bare,pfl,none,central,local,once] [--precision float32]
    python bench/gpu.py --only mnist-central,pfa [--device cpu]      # whole runs, each a process of its own
    python bench/gpu.py --device cpu --rounds 4 --clients 4 --cohort 2 --test 10  # small
    python bench/gpu.py --device cpu --rounds 4 --clients 3 --test 10 --only once,once-secret  # small
    python bench/gpu.py --device cpu --rounds 4 --clients 4 --cohort 2 --only pfl  # small, with pfl

`bare` is the loop that anybody would write first: clients one after the other, no privacy, no accounting, no checkpoint; `pfl` is
pfl-research's simulated backend without privacy, where its package can be imported (it and prv-accountant, both without their
dependencies, on the PYTHONPATH will do). Neither evaluates or writes anything; Tacit does. `once` is noise once under a trusted
server: --cohort clients, all in every round, each of which draws 10 of its 50 images on average and adds up their clipped
gradients; `once-secret` is the same with integer shares of the noise, which are drawn on the CPU. Times are
milliseconds of a median round after the first ten; compare them within one run only. The images are random, which costs nothing.

`mnist-central` and `pfa` (30 clients, CNN, four views: experiments/pfa_paper.py) need MNIST ($TACIT_DATA). Of a whole run the
process's seconds are given, from its start to its end, and what its rounds took of them.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from torch import nn

import tacit
from tacit.privacy.accounting import price

ROWS, STEPS, BATCH = 50, 5, 10
WARM, FEWEST = 10, 4  # rounds before those that count (half of them in a short run), and the fewest of a run
WHOLE_RUNS = ("mnist-central", "pfa")
KINDS = {
    "none": {"kind": "none"},
    "central": {"kind": "central", "epsilon": 2.0, "clip": 0.4, "delta": 1e-6},
    "local": {"kind": "local", "epsilon": 8.0, "clip": 0.4, "delta": 1e-5},
    "once": {"kind": "central", "unit": "record", "clip": 0.4, "delta": 1e-5, "noise_multiplier": 1.0},
    "once-secret": {"kind": "distributed", "unit": "record", "clip": 0.4, "delta": 1e-5, "noise_multiplier": 1.0},
}


def cnn() -> nn.Module:
    """The model of that benchmark."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * 14 * 14, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )


def data(clients: int, test: int) -> tacit.Dataset:
    """Random images of CIFAR10's shape, in clients of 50."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((clients * ROWS + test, 3, 32, 32), dtype=np.float32)
    y = rng.integers(0, 10, len(x))
    return tacit.Dataset(
        x[:-test], y[:-test], clients=np.repeat(np.arange(clients), ROWS), test=(x[-test:], y[-test:]), classes=10
    )


def bare(asked: argparse.Namespace) -> dict[str, float]:
    """FedAvg's round without anything around it."""
    rng, model = np.random.default_rng(0), cnn().to(asked.device)
    rows = data(asked.clients, asked.test).rows
    x, y = rows.x.to(asked.device), rows.y.to(asked.device)
    start = [p.detach().clone() for p in model.parameters()]
    times = []
    for _ in range(asked.rounds):
        began, total = time.perf_counter(), [torch.zeros_like(p) for p in start]
        for client in rng.choice(asked.clients, asked.cohort, replace=False):
            with torch.no_grad():
                for p, first in zip(model.parameters(), start, strict=True):
                    p.copy_(first)
            order = torch.from_numpy(rng.permutation(ROWS)).to(asked.device) + int(client) * ROWS
            for batch in order.split(BATCH)[:STEPS]:
                loss = F.cross_entropy(model(x[batch]), y[batch])
                grads = torch.autograd.grad(loss, list(model.parameters()))
                with torch.no_grad():
                    for p, g in zip(model.parameters(), grads, strict=True):
                        p.sub_(0.1 * g)
            with torch.no_grad():
                for t, p, first in zip(total, model.parameters(), start, strict=True):
                    t.add_(p - first)
        start = [first + t / asked.cohort for first, t in zip(start, total, strict=True)]
        if asked.device.startswith("cuda"):
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return {"ms": 1000 * statistics.median(times[min(WARM, asked.rounds // 2) :])}


def pfl(asked: argparse.Namespace) -> dict[str, float]:
    """pfl-research's round: the same clients, batches, steps and model, not shuffled. Raises ImportError without its package."""
    os.environ["PFL_PYTORCH_DEVICE"] = asked.device
    sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
    from pfl.aggregate.simulate import SimulatedBackend  # pyright: ignore[reportMissingImports]
    from pfl.aggregate.weighting import WeightByUser  # pyright: ignore[reportMissingImports]
    from pfl.algorithm.base import NNAlgorithmParams  # pyright: ignore[reportMissingImports]
    from pfl.algorithm.federated_averaging import FederatedAveraging  # pyright: ignore[reportMissingImports]
    from pfl.callback.base import TrainingProcessCallback  # pyright: ignore[reportMissingImports]
    from pfl.data.federated_dataset import FederatedDataset  # pyright: ignore[reportMissingImports]
    from pfl.data.pytorch import PyTorchTensorDataset  # pyright: ignore[reportMissingImports]
    from pfl.data.sampling import get_user_sampler  # pyright: ignore[reportMissingImports]
    from pfl.hyperparam.base import NNTrainHyperParams  # pyright: ignore[reportMissingImports]
    from pfl.metrics import Metrics  # pyright: ignore[reportMissingImports]
    from pfl.model.pytorch import PyTorchModel  # pyright: ignore[reportMissingImports]
    from pfl_round import NEVER, Scored

    stamps, rows = [], data(asked.clients, asked.test).rows
    x, y = (part.to(asked.device).split(ROWS) for part in (rows.x, rows.y))

    class Watching(TrainingProcessCallback):
        def after_central_iteration(self, metrics: Any, model: Any, *, central_iteration: int) -> tuple[bool, Any]:
            if asked.device.startswith("cuda"):
                torch.cuda.synchronize()
            stamps.append(time.perf_counter())
            return False, Metrics()

    users = FederatedDataset(
        lambda user: PyTorchTensorDataset([x[user], y[user]]),
        get_user_sampler("minimize_reuse", np.arange(asked.clients)),
    )
    model = Scored(cnn())
    params = {"central_num_iterations": asked.rounds, "train_cohort_size": asked.cohort, "val_cohort_size": 0}
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(evaluation_frequency=NEVER, **params),
        backend=SimulatedBackend(training_data=users, val_data=users, postprocessors=[WeightByUser()]),
        model=PyTorchModel(model, torch.optim.SGD, torch.optim.SGD(model.parameters(), lr=1.0)),
        model_train_params=NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.01, local_batch_size=BATCH),
        callbacks=[Watching()],
    )
    return {"ms": 1000 * float(np.median(np.diff(stamps)[min(WARM, asked.rounds // 2) :]))}


WHOLE = """
import json, sys, time
import tacit
sections, out = json.loads(sys.argv[1]), sys.argv[2]
experiment = tacit.Experiment(**sections) if sections.get("data") else tacit.Experiment.load(*sections["known"])
history = tacit.run(experiment, out=out)
print(json.dumps([len(history.rounds), sum(record["seconds"] for record in history.rounds)]))
"""


def whole(name: str, device: str, rounds: int) -> dict[str, float]:
    """A whole run in a process of its own, from the start of Python to its end."""
    if name == "pfa":
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "experiments"))
        import pfa_paper

        case = pfa_paper.Case("ours", "cnn", "mixgauss1", "iid", "random-effects", 1)
        sections = pfa_paper.experiment(case, device=device, rounds=rounds, changes=())
    else:
        sections = {"known": ["mnist-central", [f'run.device="{device}"', f"train.rounds={rounds}"]]}
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        command = [sys.executable, "-c", WHOLE, json.dumps(sections), str(Path(folder) / "run")]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"{name}: {(done.stderr.strip().splitlines() or ['it failed'])[-1]}")
    count, in_rounds = json.loads(done.stdout.splitlines()[-1])
    return {"process s": seconds, "rounds s": in_rounds, "ms a round": 1000 * in_rounds / count}


def epsilon_for(rate: float, *, rounds: int, noise_multiplier: float, delta: float, **_: Any) -> float:
    """The epsilon from which such a sampling rate follows."""
    event = PoissonSampledDpEvent(rate, GaussianDpEvent(noise_multiplier))
    return price.epsilon(((event, rounds),), delta=delta) * 1.001


def ours(kind: str, asked: argparse.Namespace) -> dict[str, float]:
    """Tacit's round from admission to checkpoint."""
    run = {"device": asked.device, **({} if asked.precision == "float32" else {"precision": asked.precision})}
    train, privacy = {"rounds": asked.rounds, "learning_rate": 0.01}, dict(KINDS[kind])
    clients, once = asked.clients, kind.startswith("once")
    if once:
        clients, train["local_steps"] = asked.cohort, 1
        privacy["epsilon"] = epsilon_for(BATCH / ROWS, rounds=asked.rounds, **privacy)
    else:
        train |= {"clients_per_round": asked.cohort, "local_steps": STEPS}
        train |= {"sampling_rate": BATCH / ROWS} if kind == "local" else {"batch_size": BATCH}
    aggregate = {} if privacy["kind"] == "central" else {"rule": "mean"}
    experiment = tacit.Experiment(train=train, privacy=privacy, aggregate=aggregate, run=run)
    stamps = []
    if asked.device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        history = tacit.run(
            experiment,
            data=data(clients, asked.test),
            model=cnn,
            out=out,
            observe=lambda _: stamps.append(time.perf_counter()),
            page=False,
        )
        trained = json.loads((out / "run.json").read_text())
    gaps = np.diff(stamps)[min(WARM, asked.rounds // 2) :]
    found = {"ms": 1000 * float(np.median(gaps))}
    last = history.rounds[min(WARM, asked.rounds // 2) :]
    for stage in ("admit", "train", "server", "evaluate", "write"):
        found[stage] = 1000 * statistics.median(record[f"seconds_{stage}"] for record in last)
    found["at once"] = trained.get("clients_at_once", 0)
    if asked.device.startswith("cuda"):
        found["GiB"] = torch.cuda.max_memory_allocated() / 2**30
    return found


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--cohort", type=int, default=50)
    parser.add_argument("--test", type=int, default=1000, help="rows that Tacit evaluates on")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="bare,none,central,local")
    parser.add_argument("--precision", default="float32")
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := sorted(set(names) - {"bare", "pfl", *KINDS, *WHOLE_RUNS}):
        parser.error(
            f"--only has no {', '.join(unknown)}: bare, pfl, {', '.join(KINDS)}, {' and '.join(WHOLE_RUNS)} are there."
        )
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("there is no CUDA device here: add --device cpu.")
    if options.rounds < FEWEST and not set(names) <= {*WHOLE_RUNS}:
        parser.error(f"a median takes --rounds {FEWEST} or more.")
    for name in names:
        try:
            if name in ("bare", "pfl"):
                found = {"bare": bare, "pfl": pfl}[name](options)
            elif name in KINDS:
                found = ours(name, options)
            else:
                found = whole(name, options.device, options.rounds)
        except ImportError as error:
            print(f"{name:13} left out: {error}", flush=True)
            continue
        print(f"{name:13}", "  ".join(f"{key} {value:.2f}" for key, value in found.items()), flush=True)


if __name__ == "__main__":
    main()
