"""Masks: what a client and the server of a secret sum of records spend, next to Paillier, CKKS and Flower's own SecAgg+.

One core, processor time, the best of --repeats. A client's part is everything between its clipped sum and its report: rounding,
its share of the noise, its keys and shares for the others, theirs checked, and the masks. The server adds all reports and opens the
sum, with everybody and without the --absent. The peers' figures are for all parameters, by what a sample of them took.

    python bench/masks.py [--parameters 1000000] [--clients 30,100] [--absent 5] [--multiplier 2.0] [--repeats 3] [--rounds 25]
    python bench/masks.py --parameters 2000 --clients 6 --absent 1 --repeats 1 --key-bits 2048 --sample 8 --rounds 4  # small

Flower's arithmetic is that of its client on a complete graph, by `flwr.common.secure_aggregation`: keys, shares and messages are
left out, and its masks are those of a Mersenne Twister with a seed of 32 bits. Where a peer has no noise, ours is added.

At the end whole simulated rounds of 20 clients with 100 random images each (LogR, 7,850 parameters, all rows in every round): one
step of local DP, noise once under a trusted server, and on secret sums in clear and under masks."""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("RAYON_NUM_THREADS", "1")

import numpy as np
import paillier

import tacit
from tacit.crypto.grid import SumGrid
from tacit.crypto.keys import new_signer
from tacit.crypto.masks import Attempt, Collecting, Party, Roster
from tacit.crypto.threshold import fewest_shares
from tacit.privacy.distributed.mechanism import SharedNoise
from tacit.random import seeded

CLIP, BATCH = 1.0, 100.0
TARGETS = {30: 0.3, 100: 0.5}  # seconds a client
OPENING, OPENING_ABSENT, BYTES = 1.0, 3.0, 4.2
MODEL = "a model"
CLIENTS, ROWS, SKIPPED = 20, 100, 3  # of the simulated rounds; how many of them warm up
KINDS = {
    "local": ({"kind": "local"}, "none"),
    "trusted server": ({"kind": "central", "unit": "record"}, "none"),
    "secret sum, in clear": ({"kind": "distributed", "unit": "record"}, "none"),
    "secret sum, masks": ({"kind": "distributed", "unit": "record"}, "masks"),
}


def best(work: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """The least processor time of several turns, and what the last one gave."""
    least, made = float("inf"), None
    for _ in range(repeats):
        began = time.process_time()
        made = work()
        least = min(least, time.process_time() - began)
    return least, made


def noise_of(grid: SumGrid, clients: int, absent: int, multiplier: float) -> SharedNoise:
    """Shares for a sum from which `absent` clients are missing, and whose noise one member knows."""
    fewest = clients - absent
    variance = multiplier**2 * grid.l2_squared / (fewest - 1)
    return SharedNoise("discrete-gaussian", variance, grid.l2_squared, grid.size, fewest, 1, clients)


def masks(clients: int, asked: argparse.Namespace) -> dict[str, float]:
    """Seconds of every step of one client and of the server."""
    grid = SumGrid(asked.parameters, CLIP, BATCH)
    noise = noise_of(grid, clients, asked.absent, asked.multiplier)
    noise.prepare()
    parties = [Party(new_signer(f"site-{k:03}"), bytes([k + 1]) * 32) for k in range(clients)]
    fewest = fewest_shares(of=clients, colluding=1)
    attempt = Attempt(Roster("bench", {one.name: one.signer.public for one in parties}, fewest), 0)
    setups = {one.name: one.setup(attempt) for one in parties}
    me, vector = parties[0], np.random.default_rng(0).normal(size=asked.parameters) / asked.parameters**0.5
    timed = partial(best, repeats=asked.repeats)
    found: dict[str, float] = {}
    found["rounding"], rounded = timed(lambda: grid.quantise(vector, stream=seeded(0)("rounding")))
    found["noise"], (_, shared) = timed(lambda: noise.noise({}, seeded(0)("share"), rounded))
    found["keys and shares"], _ = timed(lambda: me.setup(attempt))
    found["others' checked"], joined = timed(lambda: me.join(attempt, setups.values(), model=MODEL))
    integers, reach = shared.vector.numpy(), grid.largest + noise.tail
    bits = 32 if 2 * reach * clients < 2**32 else 64
    found["masks"], masked = timed(lambda: joined.mask(integers, bits=bits))
    found["a client"] = sum(found.values())
    found["bytes a parameter"] = masked.nbytes / asked.parameters
    everybody = {one.name: one.join(attempt, setups.values(), model=MODEL) for one in parties}
    reports = {name: each.mask(integers, bits=bits) for name, each in everybody.items()}
    for absent, column in ((0, "server"), (asked.absent, f"server, {asked.absent} absent")):
        names = sorted(reports)[: clients - absent]

        signatures = {name: everybody[name].agree(names) for name in names}
        answers = {name: everybody[name].unmask(names, signatures) for name in names[:fewest]}

        def summed(names: list[str] = names, answers: dict[str, Any] = answers) -> np.ndarray:
            collecting = Collecting.of(attempt, MODEL, setups, asked.parameters, bits)
            for name in names:
                collecting.add(name, reports[name])
            return collecting.opened(answers)

        found[column], total = timed(summed)
        if (total != len(names) * integers).any():
            raise SystemExit("the opened sum is not the sum of the integers")
    return found


def flower(clients: int, asked: argparse.Namespace) -> float:
    """Seconds of a client's arithmetic in Flower's SecAgg+, every other client a neighbour. Raises: ImportError."""
    from flwr.common.secure_aggregation.ndarrays_arithmetic import parameters_addition, parameters_mod
    from flwr.common.secure_aggregation.quantization import quantize
    from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

    vector, span = [np.random.default_rng(0).normal(size=asked.parameters) / asked.parameters**0.5], 1 << 32

    def masked(neighbours: int) -> None:
        total: Any = quantize(vector, 8.0, 1 << 22)
        for _ in range(neighbours):
            total = parameters_addition(total, pseudo_rand_gen(bytes(32), span, [vector[0].shape]))
        parameters_mod(total, span)

    few, more = (best(lambda count=count: masked(count), asked.repeats)[0] for count in (1, 4))
    return few + (more - few) / 3 * (clients - 1)  # a mask of its own and one for each other client


def peers(asked: argparse.Namespace) -> list[tuple[str, float, float, float]]:
    """(name, seconds to seal, seconds to open, bytes a parameter) of other encryption, by a sample."""
    options = argparse.Namespace(
        parameters=asked.parameters, bits=16, clients=30, key_bits=asked.key_bits, sample=asked.sample
    )
    found, lane = [], paillier.width(16, 30)
    for make in (partial(paillier.tacit, "short-exponent"), paillier.ckks):
        try:
            made = make(options, lane)
        except ImportError as error:
            print(f"left out: {error}")
            continue
        for contender in made if isinstance(made, list) else [made]:
            contender.steps = {step: contender.steps[step] for step in ("whole", "open")}
            contender.turn()
            seconds = [contender.best[step] * asked.parameters / 1e6 for step in ("whole", "open")]
            found.append((contender.name, *seconds, contender.size / contender.lanes))
    return found


def rounds(count: int) -> dict[str, float]:
    """The processor time of a median simulated round, in milliseconds."""
    rng, found = np.random.default_rng(0), {}
    x = rng.random((CLIENTS * ROWS, 1, 28, 28), dtype=np.float32)
    y, owners = rng.integers(0, 10, len(x)), np.repeat(np.arange(CLIENTS), ROWS)
    data = tacit.Dataset(x, y, clients=owners, test=(x[:ROWS], y[:ROWS]), classes=10)
    for name, (privacy, protect) in KINDS.items():
        train = {"rounds": count, "local_steps": 1} | ({"sampling_rate": 1.0} if name == "local" else {})
        experiment = tacit.Experiment(
            model={"name": "logr"},
            train=train,
            privacy=privacy | {"epsilon": 1.0, "delta": 1e-5},
            protect={"kind": protect},
            run={"workers": 1},
        )
        ended: list[float] = []
        with tempfile.TemporaryDirectory() as folder:
            out, watch = Path(folder) / "run", ended.append
            tacit.run(experiment, data=data, out=out, page=False, observe=lambda _, w=watch: w(time.process_time()))
        found[name] = 1000 * float(np.median(np.diff(ended)[min(SKIPPED, count // 2) :]))
    return found


def main() -> None:
    """Prints a table, and what of the targets is met."""
    parser = argparse.ArgumentParser(description="Masks beside other encryption.")
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--clients", default="30,100")
    parser.add_argument("--absent", type=int, default=5)
    parser.add_argument("--multiplier", type=float, default=2.0, help="noise over sensitivity on the sum")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--key-bits", type=int, default=3072)
    parser.add_argument("--sample", type=int, default=100, help="ciphertexts of a peer")
    parser.add_argument("--rounds", type=int, default=25, help="of the simulated runs")
    asked = parser.parse_args()
    noise = 0.0
    for clients in map(int, asked.clients.split(",")):
        found = masks(clients, asked)
        noise = found["noise"]
        print(f"{asked.parameters:,} parameters, {clients} clients, z = {asked.multiplier:g}")
        print("  " + "  ".join(f"{step} {value:.3f}" for step, value in found.items()))
        aims = {"a client": TARGETS.get(clients, 0.0), "server": OPENING, "bytes a parameter": BYTES}
        aims[f"server, {asked.absent} absent"] = OPENING_ABSENT
        for step, most in aims.items():
            if most and asked.parameters >= 10**6:
                print(f"  {step}: {found[step]:.3f} (target <= {most}) {'met' if found[step] <= most else 'MISSED'}")
        try:
            print(f"  Flower's arithmetic: {flower(clients, asked) + noise:.3f} a client")
        except ImportError as error:
            print(f"  Flower's arithmetic left out: {error}")
    for name, sealed, opened, size in peers(asked):
        print(f"{name}: {sealed + noise:.2f} a client, {opened:.2f} to open, {size:.2f} bytes a parameter")
    found = rounds(asked.rounds)
    for name, spent in found.items():
        print(f"a simulated round, {name}: {spent:.1f} ms, {spent / found['local']:.2f} of local DP's")


if __name__ == "__main__":
    main()
