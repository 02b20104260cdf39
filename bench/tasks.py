"""One DP-SGD step against a plain one, for every task on one and the same body: no task may pay more for privacy than classes do.

The contenders of a task take turns in one loop and the best time of each counts. A body is followed by a linear layer with as many
outputs as the task has; of tokens, the body is applied at every position, and the plain step is the same model's.

    python bench/tasks.py [--rounds 30] [--device cpu] [--json FILE]
    python bench/tasks.py --rounds 1  # small
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tacit import random
from tacit.parts.losses import binary_cross_entropy, cross_entropy, huber, next_token, squared
from tacit.training.flat import flatten
from tacit.training.sgd import Clipper

CLIP, NOISE, RATE, BATCH = 1.0, 1.0, 0.1, 256
WIDTH, HIDDEN, TIME, VOCABULARY = 784, 256, 16, 200
WARM_UP, TURN = 3, 0.02

Step = Callable[[], None]


class Reader(nn.Module):
    """A body at every position of a row of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.body, self.out = (
            nn.Embedding(VOCABULARY, 64),
            nn.Linear(64, HIDDEN),
            nn.Linear(HIDDEN, VOCABULARY),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.body(self.words(x)).relu())


def body(outputs: int) -> nn.Module:
    """The body that all tasks on plain rows have."""
    return nn.Sequential(
        nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, outputs)
    )


def problem(task: str) -> tuple[nn.Module, Callable, torch.Tensor, torch.Tensor]:
    """A model, its loss per example, and a batch."""
    torch.manual_seed(1)
    x = torch.rand(BATCH, WIDTH)
    if task == "classification":
        return body(10), cross_entropy, x, torch.randint(0, 10, (BATCH,))
    if task == "binary":
        return body(1), binary_cross_entropy, x, torch.randint(0, 2, (BATCH,))
    if task == "multilabel":
        return body(10), binary_cross_entropy, x, torch.randint(0, 2, (BATCH, 10)).float()
    if task in ("regression", "huber"):
        return body(1), squared if task == "regression" else huber, x, torch.randn(BATCH)
    tokens = torch.randint(0, VOCABULARY, (BATCH, TIME + 1))
    return Reader(), next_token, tokens[:, :-1], tokens[:, 1:].contiguous()


def contenders(task: str, device: str) -> tuple[dict[str, Step], str]:
    """The plain step, the private one, and how the latter clips."""
    model, losses, x, y = problem(task)
    x, y, model = x.to(device), y.to(device), model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def plain() -> None:
        optimizer.zero_grad()
        losses(model(x), y).mean().backward()
        optimizer.step()

    other = problem(task)[0].to(device)
    theta, clipper, stream = flatten(other), Clipper(other, clip=CLIP, losses=losses), random.seeded(1)("bench")

    def private() -> None:
        bounded, _ = clipper(x, y)
        noise = stream.normal(len(theta)).to(device)
        theta.sub_(bounded.vector.add_(noise, alpha=NOISE * bounded.sensitivity), alpha=RATE / BATCH)

    private()
    return {"plain": plain, "private": private}, str(clipper.path)


def best(steps: dict[str, Step], rounds: int, device: str) -> dict[str, float]:
    """The best milliseconds of each, in turns."""
    found = dict.fromkeys(steps, float("inf"))
    for turn in range(WARM_UP + rounds):
        for name, step in steps.items():
            stop = time.perf_counter() + TURN
            while True:
                start = time.perf_counter()
                step()
                if device != "cpu":
                    torch.cuda.synchronize()
                end = time.perf_counter()
                found[name] = min(found[name], 1e3 * (end - start)) if turn >= WARM_UP else found[name]
                if end > stop:
                    break
    return found


def main() -> None:
    """Parses, measures, prints."""
    parser = argparse.ArgumentParser(description="One DP-SGD step against a plain one, by task.")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows: dict[str, dict[str, Any]] = {}
    for task in ("classification", "binary", "multilabel", "regression", "huber", "tokens"):
        steps, path = contenders(task, options.device)
        times = best(steps, options.rounds, options.device)
        rows[task] = times | {"ratio": times["private"] / times["plain"], "path": path}
    base = rows["classification"]["ratio"]
    print(f"{'task':16}{'path':>14}{'private / plain':>18}{'of classification':>20}{'plain, ms':>12}")
    for task, row in rows.items():
        print(f"{task:16}{row['path']:>14}{row['ratio']:>17.2f}x{row['ratio'] / base:>20.2f}{row['plain']:>12.2f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
