"""Fine-tuning: bytes up and time of a round that trains a small adapter on a large frozen body, beside a plain loop that does so.

The body is a transformer of 10 million parameters, frozen; low-rank adapters in its blocks and a head, 50,000 parameters, train.
After every round of Tacit the plain loop takes its own: the same clients, steps and batches by `torch.autograd`, no privacy, no
messages, and the same look at the test rows. One process, one thread; the ratio is that of the medians.

    python bench/finetune.py [--kind local] [--rounds 5] [--clients 2] [--steps 5] [--blocks 3] [--json FILE]
    python bench/finetune.py --rounds 2 --steps 1 --blocks 1  # small
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import tacit

WIDTH, TIME, RANK, CLASSES = 512, 8, 15, 8
EXAMPLES, BATCH, TESTS = 160, 32, 64
MOST_BYTES, MOST_TIME = 0.02, 1.3  # more than 4 bytes a parameter; times the plain loop


class Block(nn.Module):
    """Attention and two layers, frozen; beside them a low-rank way, which trains."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )
        self.requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, RANK, bias=False), nn.Linear(RANK, WIDTH, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v)) + self.up(self.down(x))
        return x + self.feed(x)


class Last(nn.Module):
    """The mean over time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(1)


def tuned(blocks: int) -> nn.Module:
    """Body, adapters and head."""
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(blocks)), Last(), nn.Linear(WIDTH, CLASSES))


def rows(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Random rows: what they say does not matter for the time."""
    rng = np.random.default_rng(count)
    return rng.normal(size=(count, TIME, WIDTH)).astype(np.float32), rng.integers(0, CLASSES, count)


def plain_round(model: nn.Module, x: torch.Tensor, y: torch.Tensor, *, clients: int, steps: int) -> float:
    """Seconds of one round of averaging by hand."""
    began = time.perf_counter()
    params = [parameter for parameter in model.parameters() if parameter.requires_grad]
    start, total = [p.detach().clone() for p in params], [torch.zeros_like(p) for p in params]
    for client in range(clients):
        own = torch.arange(client * EXAMPLES, (client + 1) * EXAMPLES)
        for parameter, value in zip(params, start, strict=True):
            parameter.data.copy_(value)
        for _ in range(steps):
            batch = own[torch.randperm(EXAMPLES)[:BATCH]]
            gradients = torch.autograd.grad(F.cross_entropy(model(x[batch]), y[batch]), params)
            for parameter, gradient in zip(params, gradients, strict=True):
                parameter.data.add_(gradient, alpha=-0.01)
        for part, parameter, value in zip(total, params, start, strict=True):
            part.add_(parameter.data - value, alpha=1 / clients)
    for parameter, value, part in zip(params, start, total, strict=True):
        parameter.data.copy_(value + part)
    with torch.no_grad():
        model(x[:TESTS]).argmax(1)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", default="local", choices=["none", "local", "central", "distributed"])
    for name, value in (("rounds", 5), ("clients", 2), ("steps", 5), ("blocks", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, plain = tuned(args.blocks), tuned(args.blocks)
    x, y = rows(args.clients * EXAMPLES)
    data = tacit.Dataset(x, y, classes=CLASSES, test=rows(TESTS))
    train = {"rounds": args.rounds, "local_steps": args.steps, "batch_size": BATCH, "learning_rate": 0.01}
    privacy = {"kind": args.kind} | ({} if args.kind == "none" else {"epsilon": 8.0, "delta": 1e-3})
    experiment = tacit.Experiment(data={"clients": args.clients}, train=train, privacy=privacy, run={"workers": 1})
    ours, theirs, ends = list[float](), list[float](), [time.perf_counter()]

    def turn(record: dict[str, Any]) -> None:
        ours.append(time.perf_counter() - ends[-1])  # the record's own seconds would hold the other's turn
        theirs.append(
            plain_round(plain, torch.from_numpy(x), torch.from_numpy(y), clients=args.clients, steps=args.steps)
        )
        ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as out:
        history = tacit.run(experiment, data=data, model=model, out=f"{out}/run", observe=turn, page=False)
    found = _measured(history, ours, theirs, messages=args.rounds * args.clients)
    print("\n".join(f"{key:>20}: {value}" for key, value in found.items()))
    if args.json:
        args.json.write_text(json.dumps(vars(args) | found, indent=1, default=str))


def _measured(history: tacit.History, ours: list[float], theirs: list[float], *, messages: int) -> dict[str, Any]:
    """What is compared with the two aims; the first round, in which a path is chosen, is left out of the times."""
    summary = history.summary
    up = summary["uplink_bytes"] / messages / (4 * summary["parameters"])
    ratio = statistics.median(ours[1:] or ours) / statistics.median(theirs[1:] or theirs)
    return {
        "parameters": summary["parameters"],
        "frozen": summary["frozen_parameters"],
        "bytes over 4 a number": round(up, 4),
        "time over plain": round(ratio, 3),
        "first round": round(ours[0], 3),
        "seconds": round(statistics.median(ours[1:] or ours), 3),
        "plain seconds": round(statistics.median(theirs[1:] or theirs), 3),
        "within": up <= 1 + MOST_BYTES and ratio <= MOST_TIME,
    }


if __name__ == "__main__":
    main()
