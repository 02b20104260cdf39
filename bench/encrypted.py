"""What encryption costs: the same run with and without it, in turns, and the integer part of a report on a million parameters.

    python bench/encrypted.py [--rounds 30] [--repeats 3] [--keys "2048 ordinary,3072 ordinary"] [--size 1000000]
    python bench/encrypted.py --rounds 2 --repeats 1 --keys "2048 short-exponent" --size 1000 --proofs 8  # small

`digits-encrypted` runs with sums in clear and under Paillier, each in a fresh process, one after the other, `--repeats` times.
Ratios are of the best whole run (start, key and tables included) and of the median round. Both runs end in the same model, bit
for bit, or the program says so and fails. The second table has
what proofs cost the same runs (`proofs.py` has their parts), the third one client's work before sealing, on one core, the fourth
what it costs to open a sum with shares of the key instead of the whole of it.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from tacit.crypto import proofs, reports
from tacit.crypto import seal as seals

MOST = 3.0  # times the run without encryption
CLIENTS, BITS = 100, 16
HOLDERS, THRESHOLD, SEALED = 20, 11, 7  # digits-encrypted: clients, more than half of them, a report's ciphertexts
CLEAR, KEYS = "in clear", ("2048 ordinary", "2048 short-exponent", "3072 ordinary", "3072 short-exponent")
UNPROVED = ", no proofs"  # the same run with nothing proved and nothing checked, which only a benchmark can have


def without_proofs() -> None:
    """Makes this process, and its forks, send zeros for proofs and believe everybody."""
    seals.prove = lambda claim, messages, secret: bytes(proofs.proof_bytes(claim.public))
    reports.unproved = lambda found: {}
    proofs.comb = lambda public: None


def contenders(keys: list[str]) -> dict[str, dict[str, str]]:
    """What is set for the run in clear, and for the run under each key."""
    found = {CLEAR: {"protect.kind": "none", "protect.key": ""}}
    for key in keys:
        bits, shape = key.split()
        found[key] = {"protect.key": f'{{bits = {bits}, shape = "{shape}"}}'}
    return found


def one(settings: dict[str, str], rounds: int) -> dict[str, Any]:
    """Runs one contender in this process."""
    import tacit

    if settings.pop(UNPROVED, None):
        without_proofs()
    changes = [f"{key}={value}" for key, value in settings.items()]
    experiment = tacit.Experiment.load("digits-encrypted", (f"train.rounds={rounds}", *changes))
    began, spent = time.perf_counter(), _processor()
    with tempfile.TemporaryDirectory() as folder:
        history = tacit.run(experiment, out=f"{folder}/run")
        seconds = time.perf_counter() - began
        model = (Path(folder) / "run" / "model.safetensors").read_bytes().hex()
    return {
        "run": seconds,
        "processor": _processor() - spent,
        "rounds": [record["seconds"] for record in history.rounds],
        "uplink": history.summary["uplink_bytes"],
        "model": model,
    }


def in_turns(contenders: dict[str, dict[str, str]], rounds: int, repeats: int) -> dict[str, list[dict[str, Any]]]:
    """Every contender once, then every contender again."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, settings in contenders.items():
            words = [sys.executable, __file__, "--one", json.dumps(settings), "--rounds", str(rounds)]
            done = subprocess.run(words, check=True, capture_output=True, text=True)
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
    return found


def _processor() -> float:
    """Seconds of the processor that this process and its children have had."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def with_and_without_proofs(keys: list[str], rounds: int, repeats: int) -> dict[str, tuple[float, float]]:
    """What proofs cost whole runs, by key: the processor's time against the same run without, and what is more, a round.

    The key is made beforehand, one for both: finding primes takes longer or shorter by chance, and more than proofs do.
    """
    from tacit.crypto.keys import generate, save

    pairs: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for key in keys:
            bits, shape = key.split()
            secret, _ = save(Path(folder) / key, generate(bits=int(bits), shape=shape))  # type: ignore[arg-type]
            settings = {"protect.key": str(secret)}
            pairs |= {key: settings, key + UNPROVED: settings | {UNPROVED: "1"}}
        found = {name: min(one["processor"] for one in runs) for name, runs in in_turns(pairs, rounds, repeats).items()}
    proved = {name: (spent, found[name + UNPROVED]) for name, spent in found.items() if UNPROVED not in name}
    return {name: (spent / bare, (spent - bare) / rounds) for name, (spent, bare) in proved.items()}


def stages(size: int) -> dict[str, float]:
    """Seconds of each step between a trained update and its seal, and back."""
    from tacit.crypto.grid import Grid, Lanes
    from tacit.privacy.distributed.mechanism import even
    from tacit.random import seeded

    grid = Grid(size, 1.0, BITS)
    common = {"law": "skellam", "l2_squared": grid.l2_squared, "dimension": size}
    noise = even(multiplier=1.0, fewest=CLIENTS, colluding=0, most=CLIENTS, **common)
    noise.prepare()
    lanes = Lanes(size, grid.largest + noise.tail, CLIENTS, 3070)
    update, found = np.random.default_rng(0).normal(size=size) / 1000, {}

    def timed(name: str, work: Any) -> Any:
        best, result = float("inf"), None
        for _ in range(5):
            began = time.perf_counter()
            result = work()
            best = min(best, time.perf_counter() - began)
        found[name] = best
        return result

    quantised = timed("clip and round to the grid", lambda: grid.quantise(update, stream=seeded(0)("rounding")))
    shared = timed("share of the noise", lambda: noise.noise({}, seeded(0)("share"), quantised)[1])
    packed = timed(f"pack into lanes of {lanes.width} bits", lambda: lanes.pack(shared.vector.numpy()))
    timed("unpack a sum", lambda: lanes.unpack(packed, reports=1))
    return found


def opening() -> dict[str, float]:
    """Seconds, on one core, of opening a sum of `digits-encrypted` with the whole key, and of each step with shares of it."""
    from tacit.crypto.keys import generate
    from tacit.crypto.paillier import Randomisers
    from tacit.crypto.threshold import deal, join, refuse_wrong

    key = generate(bits=2048, shape="safe-prime")
    shares = deal(key, threshold=THRESHOLD, of=HOLDERS)
    whole, total = shares[0].verification, key.public.seal([1] * SEALED, Randomisers(key.public, workers=1))
    partials = [share.open(total, workers=1) for share in shares[:THRESHOLD]]
    steps = {
        "the whole key": lambda: key.open(total, workers=1),
        "a holder of a share": lambda: shares[0].open(total, workers=1),
        "the server, each answer": lambda: refuse_wrong(whole, total, partials[0]),
        f"the server, {THRESHOLD} answers joined": lambda: join(whole, partials),
    }
    return {name: min(timeit.repeat(step, timer=time.process_time, number=1, repeat=9)) for name, step in steps.items()}


def products(counts: list[int]) -> dict[int, float]:
    """How much faster the products of a proof are by buckets than power by power (3072 bits), by how many ciphertexts."""
    import secrets

    from gmpy2 import mpz, powmod

    from tacit.crypto.proofs import product_of_powers
    from tacit.crypto.threshold import BATCH_BYTES

    modulus, found = mpz(secrets.randbits(2 * 3072) | 1), {}
    for count in counts:
        bases = [mpz(secrets.randbelow(int(modulus))) for _ in range(count)]
        exponents = [secrets.randbits(8 * BATCH_BYTES) for _ in bases]
        started = time.process_time()
        expected = mpz(1)
        for base, exponent in zip(bases, exponents, strict=True):
            expected = expected * powmod(base, exponent, modulus) % modulus
        slow, started = time.process_time() - started, time.process_time()
        if product_of_powers(bases, exponents, modulus, bits=8 * BATCH_BYTES) != expected:
            sys.exit("The products differ.")
        found[count] = slow / (time.process_time() - started)
    return found


def main() -> None:
    """Runs all parts and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--keys", type=lambda text: text.split(","), default=list(KEYS))
    parser.add_argument("--size", type=int, default=1_000_000, help="parameters of the report in the third table")
    parser.add_argument(
        "--proofs", type=int, nargs="+", default=[8, 100, 1000], help="ciphertexts that a proof is about"
    )
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(one(json.loads(options.one), options.rounds)))
        return
    console, found = Console(), in_turns(contenders(options.keys), options.rounds, options.repeats)
    table = Table("sums", "run, s", "x", "median round, ms", "x", "uplink, kB", title="digits-encrypted")
    base_run, base_round = _figures(found[CLEAR])
    for name, results in found.items():
        whole, middle = _figures(results)
        ratios = f"{whole / base_run:.2f}", f"{middle / base_round:.2f}"
        uplink = f"{results[0]['uplink'] / 1000:.0f}"
        table.add_row(name, f"{whole:.2f}", ratios[0], f"{1000 * middle:.1f}", ratios[1], uplink)
    console.print(table)
    more = Table("key", "x", "more, ms a round", title="digits-encrypted with proofs, against without: processor time")
    for name, (ratio, seconds) in with_and_without_proofs(options.keys, options.rounds, options.repeats).items():
        more.add_row(name, f"{ratio:.2f}", f"{1000 * seconds:.0f}")
    console.print(more)
    work = Table(
        "step", "ms", "us a parameter", title=f"{options.size:,} parameters, {BITS} bits, {CLIENTS} clients, one core"
    )
    for name, seconds in stages(options.size).items():
        work.add_row(name, f"{1000 * seconds:.0f}", f"{1e6 * seconds / options.size:.3f}")
    console.print(work)
    parts = opening()
    shares = Table(
        "who", "ms", "x", title=f"opening {SEALED} ciphertexts, 2048 bits, {THRESHOLD} of {HOLDERS}, one core"
    )
    for name, seconds in parts.items():
        shares.add_row(name, f"{1000 * seconds:.1f}", f"{seconds / parts['the whole key']:.2f}")
    console.print(shares)
    faster = ", ".join(f"{ratio:.1f} x at {count}" for count, ratio in products(options.proofs).items())
    console.print(f"products of a proof, 3072 bits, by buckets against power by power: {faster} ciphertexts")
    if len({result["model"] for results in found.values() for result in results}) != 1:
        sys.exit("The models differ: encryption changed what it carried.")
    ratio = _figures(found[options.keys[0]])[0] / base_run
    console.print(
        f"Target: a run with encryption ({options.keys[0]}) costs at most {MOST:g} times the same without: {ratio:.2f}."
    )


def _figures(results: list[dict[str, Any]]) -> tuple[float, float]:
    """The best whole run and the median of all rounds but the first of each."""
    rounds = [seconds for result in results for seconds in result["rounds"][1:]]
    return min(result["run"] for result in results), statistics.median(rounds)


if __name__ == "__main__":
    main()
