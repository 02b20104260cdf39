"""Encrypted sums: microseconds and bytes a parameter, next to python-paillier, pypaillier and TenSEAL's CKKS.

All contenders seal, add and open the same vectors on one core, in turns within one run; the best of `--repeats` counts. The
slow ones do a sample. Packed contenders use the same packing: offset lanes with room for the sum of K reports.

    python bench/paillier.py [--parameters 1000000] [--bits 16] [--clients 100] [--key-bits 3072] [--sample 400] [--json FILE]
    python bench/paillier.py --parameters 1000 --key-bits 2048 --sample 8 --repeats 1  # small
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("RAYON_NUM_THREADS", "1")  # pypaillier uses all cores otherwise

import numpy as np

from tacit import store
from tacit.crypto.keys import generate
from tacit.crypto.paillier import SIZES, Randomisers

SLOW = 12  # ciphertexts that python-paillier seals in a turn
PYPAILLIER_RESERVED = 24  # bits of n that it keeps for a sign and a million terms
CKKS_SLOTS, CKKS_CHAIN = 4096, (60, 40, 40)


@dataclass
class Contender:
    """One way of sealing: how many parameters a ciphertext holds, its bytes, and what is timed on how many of them."""

    name: str
    lanes: int
    size: int
    steps: dict[str, tuple[Callable[[], object], int]]
    best: dict[str, float] = field(default_factory=dict)

    def turn(self) -> None:
        """Runs every step once and keeps the best, in microseconds a parameter: processor time, or wall time on all cores."""
        for step, (work, ciphertexts) in self.steps.items():
            clock = time.perf_counter if "cores" in step else time.process_time
            start = clock()
            work()
            spent = 1e6 * (clock() - start) / (ciphertexts * self.lanes)
            self.best[step] = min(spent, self.best.get(step, spent))


def width(bits: int, clients: int) -> int:
    """Bits of a lane: offset values, a quarter more for the tail of the noise, and the sum of all clients."""
    return (int(1.25 * 2**bits) * clients).bit_length()


def pack(values: np.ndarray, lane: int, lanes: int) -> list[int]:
    """Values of at most `lane` bits as numbers of `lanes` lanes."""
    rows = values.reshape(-1, lanes)
    bits = (rows[:, :, None] >> np.arange(lane)) & 1
    packed = np.packbits(bits.astype(np.uint8).reshape(len(rows), -1), axis=1, bitorder="little")
    return [int.from_bytes(row.tobytes(), "little") for row in packed]


def tacit(shape: str, options: argparse.Namespace, lane: int) -> Contender:
    """Tacit on one core; `online` has its randomisers ready, `whole` makes them; the table is made once a key."""
    key = generate(bits=options.key_bits, shape=shape)  # type: ignore[arg-type]
    public, count = key.public, options.sample
    lanes = public.plaintext_bits // lane
    source = Randomisers(public, expected=max(1, options.parameters // lanes), workers=1)
    start = time.process_time()
    source.warm()
    table = time.process_time() - start
    many = store.cores()
    spread = Randomisers(public, expected=max(1, options.parameters // lanes), workers=many)
    spread.warm()
    holder = Randomisers(public, secret=key, expected=max(1, options.parameters // lanes), workers=1)
    holder.warm()
    values = np.random.default_rng(0).integers(0, 2**options.bits, size=count * lanes)
    ready: list = []
    rows = [public.seal(pack(values, lane, lanes), source)] * 2

    class Ready:
        def take(self, count: int) -> list:
            return ready

    few = public.add(rows)[: max(8, count // 8)]
    steps = {
        "randomisers": (lambda: ready.__setitem__(slice(None), source.take(count)), count),
        "online": (lambda: public.to_bytes(public.seal(pack(values, lane, lanes), Ready())), count),
        "whole": (lambda: public.to_bytes(public.seal(pack(values, lane, lanes), source)), count),
        "whole, key holder": (lambda: public.to_bytes(public.seal(pack(values, lane, lanes), holder)), count),
        f"whole on {many} cores": (lambda: public.to_bytes(public.seal(pack(values, lane, lanes), spread)), count),
        "add": (lambda: public.add(rows), count),
        "open": (lambda: key.open(few, workers=1), len(few)),
        f"open on {many} cores": (lambda: key.open(few), len(few)),
    }
    found = Contender(f"Tacit, {shape}", lanes, public.ciphertext_bytes, steps)
    found.best["table, once a key"] = 1e6 * table / options.parameters
    return found


def python_paillier(options: argparse.Namespace, lane: int) -> list[Contender]:
    """python-paillier as it is used (one float a ciphertext), and with our packing."""
    import phe

    public, secret = phe.generate_paillier_keypair(n_length=options.key_bits)
    lanes, size = (options.key_bits - 2) // lane, options.key_bits // 4
    values = np.random.default_rng(0).integers(0, 2**options.bits, size=SLOW * lanes)
    floats = [float(v) for v in values[:SLOW] / 2**options.bits]
    sealed, raw = [public.encrypt(v) for v in floats], [public.raw_encrypt(m) for m in pack(values, lane, lanes)]
    unpacked = {
        "whole": (lambda: [public.encrypt(v) for v in floats], SLOW),
        "add": (lambda: [a + b for a, b in zip(sealed, sealed, strict=True)], SLOW),
        "open": (lambda: [secret.decrypt(c) for c in sealed], SLOW),
    }
    packed = {
        "whole": (lambda: [public.raw_encrypt(m) for m in pack(values, lane, lanes)], SLOW),
        "add": (lambda: [c * c % public.nsquare for c in raw], SLOW),
        "open": (lambda: [secret.raw_decrypt(c) for c in raw], SLOW),
    }
    return [Contender("python-paillier", 1, size, unpacked), Contender("python-paillier, packed", lanes, size, packed)]


def pypaillier(options: argparse.Namespace, lane: int) -> list[Contender]:
    """pypaillier (Rust), packed."""
    here = Path(__file__).resolve().parent
    sys.path[:] = [place for place in sys.path if Path(place).resolve() != here]  # this program has the module's name
    import paillier

    public, secret = paillier.generate_keypair(options.key_bits)
    lanes, count = (options.key_bits - PYPAILLIER_RESERVED) // lane, options.sample // 4
    values = np.random.default_rng(0).integers(0, 2**options.bits, size=count * lanes)
    blobs = [bytes(blob) for blob in paillier.encrypt_integers(public, pack(values, lane, lanes))]
    few = blobs[: max(4, count // 8)]
    steps = {
        "whole": (lambda: paillier.encrypt_integers(public, pack(values, lane, lanes)), count),
        "add": (lambda: [paillier.add_many(public, [blob, blob]) for blob in blobs], count),
        "open": (lambda: paillier.decrypt_exact_many(secret, few), len(few)),
    }
    return [Contender("pypaillier, packed", lanes, len(blobs[0]), steps)]


def ckks(options: argparse.Namespace, lane: int) -> list[Contender]:
    """TenSEAL's CKKS, 4096 approximate numbers a ciphertext; it is not exact, and not Paillier's assumption."""
    import tenseal

    del lane
    context = tenseal.context(
        tenseal.SCHEME_TYPE.CKKS, 2 * CKKS_SLOTS, coeff_mod_bit_sizes=list(CKKS_CHAIN), n_threads=1
    )
    context.global_scale = 2.0 ** CKKS_CHAIN[1]
    row = np.random.default_rng(0).random(CKKS_SLOTS)
    sealed = tenseal.ckks_vector(context, row)
    raw = sealed.serialize()
    steps = {
        "whole": (lambda: [tenseal.ckks_vector(context, row).serialize() for _ in range(SLOW)], SLOW),
        "add": (lambda: [sealed + sealed for _ in range(SLOW)], SLOW),
        "open": (lambda: [tenseal.ckks_vector_from(context, raw).decrypt() for _ in range(SLOW)], SLOW),
    }
    return [Contender("TenSEAL CKKS", CKKS_SLOTS, len(raw), steps)]


def measure(options: argparse.Namespace) -> tuple[list[Contender], dict[str, str]]:
    """All contenders in turns; one that is missing or fails gets a line that says why."""
    lane = width(options.bits, options.clients)
    found, missing = [tacit(shape, options, lane) for shape in ("ordinary", "short-exponent")], {}
    for make in (python_paillier, pypaillier, ckks):
        try:
            found += make(options, lane)
        except Exception as error:  # noqa: BLE001  # a peer may fail in any way
            missing[make.__name__] = f"{type(error).__name__}: {error}"
    for _ in range(options.repeats):
        for contender in found:
            contender.turn()
    return found, missing


def report(found: list[Contender], missing: dict[str, str], options: argparse.Namespace) -> dict:
    """Prints the table, the ratios and the targets."""
    lane = width(options.bits, options.clients)
    print(
        f"{options.parameters:,} parameters, {options.bits} bits in lanes of {lane}, K = {options.clients}, n of {options.key_bits}"
    )
    steps = list(dict.fromkeys(step for contender in found for step in contender.best))
    print("| us a parameter | bytes | " + " | ".join(steps) + " |\n" + "|---" * (len(steps) + 2) + "|")
    for c in found:
        cells = [f"{c.best[step]:.3g}" if step in c.best else "" for step in steps]
        print(f"| {c.name} | {c.size / c.lanes:.2f} | " + " | ".join(cells) + " |")
    for name, why in missing.items():
        print(f"{name} did not run: {why}")
    by = {c.name: c for c in found}
    ours, short = by["Tacit, ordinary"], by["Tacit, short-exponent"]
    aims = {"bytes": (ours.size / ours.lanes, 6 if options.bits == 16 else 4)}
    aims |= {
        "online": (ours.best["online"], 1),
        "whole, ordinary": (ours.best["whole"], 12),
        "whole, short": (short.best["whole"], 5),
    }
    aims |= {"open, ordinary": (ours.best["open"], 25), "open, short": (short.best["open"], 12)}
    for name, (value, most) in aims.items():
        print(f"{name}: {value:.3g} (target <= {most}) {'met' if value <= most else 'MISSED'}")
    ratios = {}
    for c in found[2:]:
        ratios[c.name] = {kind.name: c.best["whole"] / kind.best["whole"] for kind in (ours, short)}
        print(
            f"{c.name} / Tacit, whole encryption: " + ", ".join(f"{v:.3g} ({k[7:]})" for k, v in ratios[c.name].items())
        )
    return {
        "ratios": ratios,
        "targets": aims,
        "us": {c.name: c.best | {"bytes": c.size / c.lanes} for c in found},
        "missing": missing,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--bits", type=int, choices=(8, 12, 16), default=16)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--key-bits", type=int, choices=SIZES, default=3072)
    parser.add_argument("--sample", type=int, default=400, help="ciphertexts in a turn of Tacit's")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = report(*measure(options), options)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
