"""One DP-SGD step against a plain one and against Opacus: time and memory as ratios, measured in one run.

All contenders of a model take turns in one loop and the best time of each counts, so that noise hits all alike. Memory is how
far the peak of the resident set rises above its level after steps on 32 examples, in a process per contender (Linux only).

    python bench/dp_sgd.py [--models mlp,cnn] [--rounds 20] [--json FILE]
    python bench/dp_sgd.py --models logr --rounds 1  # small
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tacit import random
from tacit.parts.models import build
from tacit.training.flat import flatten
from tacit.training.sgd import Clipper

CLIP, NOISE, RATE = 1, 1.0, 0.1
BATCHES = (64, 512)
VOCABULARY, TOKENS, WIDTH, TOPICS = 10_000, 64, 64, 4
WARM_UP, FEW = 2, 32  # Opacus ew fails on fewer examples
TURN = 0.02  # seconds of steps a contender takes before the next one's turn

Step = Callable[[torch.Tensor, torch.Tensor], None]


class Text(nn.Module):
    """The mean of word vectors, then a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, TOPICS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.words(x).mean(1))


def problem(name: str, batch: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A model and a batch for it."""
    torch.manual_seed(1)
    if name == "text":
        return Text(), torch.randint(0, VOCABULARY, (batch, TOKENS)), torch.randint(0, TOPICS, (batch,))
    model = build(name, input_shape=(1, 28, 28), classes=10, seed=1)
    return model, torch.rand(batch, 1, 28, 28), torch.randint(0, 10, (batch,))


def plain(model: nn.Module, batch: int) -> Step:
    """The usual three lines."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def tacit(model: nn.Module, batch: int) -> Step:
    """Clip, noise, update; all on flat vectors."""
    theta, clipper, stream = flatten(model), Clipper(model, clip=CLIP), random.seeded(1)("bench")

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        bounded, _ = clipper(x, y)
        update = bounded.vector.add_(stream.normal(len(theta)), alpha=NOISE * bounded.sensitivity)
        theta.sub_(update, alpha=RATE / batch)

    return step


def opacus(mode: str, *, ghost_norms: bool = True) -> Callable[[nn.Module, int], Step]:
    """Opacus in one of its modes, its own optimizer adding the noise. Without ghost norms "ghost" is fast gradient clipping."""

    def contender(model: nn.Module, batch: int) -> Step:
        from opacus import PrivacyEngine
        from opacus.grad_sample import GradSampleModuleFastGradientClipping

        if isinstance(
            model, nn.Sequential
        ):  # with channels innermost its gradients of the CNN are wrong: it gets torch's layout
            model = nn.Sequential(*(layer for layer in model if type(layer).__name__ != "ChannelsLast"))
        if not ghost_norms:
            model = GradSampleModuleFastGradientClipping(model, max_grad_norm=CLIP, use_ghost_clipping=False)
        dataset = torch.utils.data.TensorDataset(torch.zeros(batch, 1))
        private, optimizer, *rest = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=RATE),
            data_loader=torch.utils.data.DataLoader(dataset, batch_size=batch),
            noise_multiplier=NOISE,
            max_grad_norm=CLIP,
            poisson_sampling=False,
            grad_sample_mode=mode,
        )
        criterion: Any = rest[0] if len(rest) == 2 else nn.CrossEntropyLoss()
        forward: Any = private

        def step(x: torch.Tensor, y: torch.Tensor) -> None:
            optimizer.zero_grad()
            criterion(forward(x), y).backward()
            optimizer.step()

        return step

    return contender


CONTENDERS: dict[str, Callable[[nn.Module, int], Step]] = {
    "plain SGD": plain,
    "tacit": tacit,
    "opacus hooks": opacus("hooks"),
    "opacus ew": opacus("ew"),
    "opacus ghost": opacus("ghost"),
    "opacus fast clipping": opacus("ghost", ghost_norms=False),
}
if importlib.util.find_spec("opacus") is None:
    CONTENDERS = {name: make for name, make in CONTENDERS.items() if "opacus" not in name}


def times(name: str, batch: int, rounds: int) -> dict[str, float]:
    """The best milliseconds of every contender, all in one loop."""
    _, x, y = problem(name, batch)
    steps = {contender: make(problem(name, batch)[0], batch) for contender, make in CONTENDERS.items()}
    for step in steps.values():
        for _ in range(WARM_UP):
            step(x, y)
    best = dict.fromkeys(steps, float("inf"))
    for _ in range(rounds):
        for contender, step in steps.items():
            stop = time.perf_counter() + TURN
            while True:
                start = time.perf_counter()
                step(x, y)
                end = time.perf_counter()
                best[contender] = min(best[contender], 1e3 * (end - start))
                if end > stop:
                    break
    return best


def peak(name: str, contender: str, batch: int) -> float:
    """MiB by which a step of `batch` raises the peak of this process above its level after steps of a few examples."""
    model, x, y = problem(name, batch)
    step = CONTENDERS[contender](model, batch)
    for _ in range(WARM_UP):
        step(x[:FEW], y[:FEW])
    Path("/proc/self/clear_refs").write_text("5")  # 5: the peak starts again from here, proc(5)
    before = resident("VmRSS")
    for _ in range(WARM_UP):
        step(x, y)
    return resident("VmHWM") - before


def resident(field: str) -> float:
    """MiB of the resident set, now (VmRSS) or at its peak (VmHWM). Unlike ru_maxrss it starts afresh with the program."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def peaks(name: str, batch: int, threads: int) -> dict[str, float]:
    """The peak of every contender, each in a fresh process whose freed memory goes back at once."""
    command = [sys.executable, __file__, "--threads", str(threads), "--peak"]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    return {
        contender: float(subprocess.check_output([*command, f"{name},{contender},{batch}"], text=True, env=environment))
        for contender in CONTENDERS
    }


def table(title: str, columns: dict[str, dict[str, float]], unit: str) -> str:
    """Ratios to plain SGD, and what plain SGD takes."""
    lines = [title, f"{'':22}" + "".join(f"{column:>16}" for column in columns)]
    for contender in CONTENDERS:
        ratios = [values[contender] / max(values["plain SGD"], 0.1) for values in columns.values()]
        lines.append(f"{contender:22}" + "".join(f"{ratio:>15.2f}x" for ratio in ratios))
    base = "".join(f"{values['plain SGD']:>16.2f}" for values in columns.values())
    return "\n".join([*lines, f"{'plain SGD, ' + unit:22}" + base])


def main() -> None:
    """Parses, measures, prints."""
    parser = argparse.ArgumentParser(description="One DP-SGD step against a plain one and against Opacus.")
    parser.add_argument("--models", default="logr,mlp,cnn,text")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    if options.peak:
        name, contender, batch = options.peak.split(",")
        print(peak(name, contender, int(batch)))
        return
    names = options.models.split(",")
    milliseconds = {f"{name} {batch}": times(name, batch, options.rounds) for name in names for batch in BATCHES}
    mebibytes = {f"{name} {BATCHES[-1]}": peaks(name, BATCHES[-1], options.threads) for name in names}
    print(table(f"Time of a step over plain SGD, {options.threads} threads", milliseconds, "ms"))
    print()
    print(table("Peak extra memory over plain SGD", mebibytes, "MiB"))
    if len(CONTENDERS) == 2:
        print("left out: Opacus, which is not installed")
    if options.json:
        record = {"threads": options.threads, "milliseconds": milliseconds, "mebibytes": mebibytes}
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
