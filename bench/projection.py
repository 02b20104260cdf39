"""Projecting 1,000 private updates by 10 public ones at d = 10^6, k = 5: Tacit's rule, and Lanczos (scipy svds) on the same rows.

Private updates are one buffer, changed and fed to the rule as a stream. Memory is the peak of the process beyond what it held
before the public rows were made (VmHWM, reset for the measurement), in vectors of length d: public rows and buffer included.

    python bench/projection.py [--private 1000] [--size 1000000] [--rank 5] [--json FILE]
    python bench/projection.py --private 5 --size 10000  # small
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import scipy.sparse.linalg
import torch

from tacit.algorithms import PopulationStatistics, combined
from tacit.algorithms.rules.pfa import pfa
from tacit.types import Message

PUBLIC = 10
PAPER_SECONDS = (56, 214)  # Liu et al., PVLDB 15(4): what they report for the projection


def messages(public: list[torch.Tensor], count: int, size: int):
    """The round's messages; every private one is the same buffer with another first number, so that making it costs nothing."""
    for index, row in enumerate(public):
        yield Message(f"public-{index}", {"update": row}, {"epsilon": 10.0, "group": "public"})
    buffer = torch.randn(size, generator=torch.Generator().manual_seed(1))
    for index in range(count):
        buffer[0] = index
        yield Message(f"private-{index}", {"update": buffer}, {"epsilon": 0.1, "group": "private"})


def resident(key: str) -> int:
    """VmRSS (now) or VmHWM (the highest since it was reset) of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) * 1024


def measure(*, private: int, size: int, rank: int) -> dict[str, float]:
    rule = pfa(rank=rank, blocks="model", split="top")
    warm = [torch.randn(1 << 17) for _ in range(PUBLIC)]
    few = np.array([10.0] * PUBLIC + [0.1] * 2)
    combined(rule, rule.init(((0, 1 << 17),), PopulationStatistics(few, 1 / few)), messages(warm, 2, 1 << 17))
    before = resident("VmRSS")
    generator = torch.Generator().manual_seed(0)
    public = [torch.randn(size, generator=generator) for _ in range(PUBLIC)]
    epsilons = np.array([10.0] * PUBLIC + [0.1] * private)
    memory = rule.init(((0, size),), PopulationStatistics(epsilons, 1 / epsilons))
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    start = time.perf_counter()
    combined(rule, memory, messages(public, private, size))
    ours = time.perf_counter() - start
    held = resident("VmHWM") - before
    rows = np.stack([row.numpy() for row in public])
    start = time.perf_counter()
    scipy.sparse.linalg.svds(rows - rows.mean(0), k=rank)
    lanczos = time.perf_counter() - start
    start = time.perf_counter()
    rule.spaces(memory, public, [1.0] * PUBLIC)
    exact = time.perf_counter() - start
    return {
        "seconds": ours,
        "paper_over_ours_low": PAPER_SECONDS[0] / ours,
        "paper_over_ours_high": PAPER_SECONDS[1] / ours,
        "lanczos_over_gram": lanczos / exact,
        "vectors": held / (4 * size),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--private", type=int, default=1000)
    parser.add_argument("--size", type=int, default=1_000_000)
    parser.add_argument("--rank", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = measure(private=options.private, size=options.size, rank=options.rank)
    print(f"{options.private} private updates by {PUBLIC} public ones, d = {options.size:,}, k = {options.rank}")
    print(
        f"  the paper's 56-214 s over ours     {found['paper_over_ours_low']:8.0f} to {found['paper_over_ours_high']:.0f} x"
    )
    print(f"  Lanczos (svds) over the Gram matrix {found['lanczos_over_gram']:7.1f} x (the subspace alone)")
    print(f"  vectors of length d held            {found['vectors']:7.1f}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
