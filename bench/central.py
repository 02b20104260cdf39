"""What central DP adds to a round: the server's clipping, its noise and the ledger, as a share of the round's time.

A real run (MLP with 159,010 parameters, 60 random examples a client, cohorts of 100 drawn at random) in which the calls of
the server are timed where they happen; clients train in processes of their own, so their clipping is not counted.
The same round without privacy stands beside it.

    python bench/central.py [--clients 1000] [--cohort 100] [--rounds 10] [--json FILE]
    python bench/central.py --clients 20 --cohort 5 --rounds 2  # small
"""

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tacit
from tacit.privacy.central.kind import CohortGaussian
from tacit.privacy.ledger.ledger import Ledger

EXAMPLES, SIDE, CLASSES = 60, 28, 10
TARGET = 0.05  # of a round
PARTS = {"clip": (CohortGaussian, "bound"), "noise": (CohortGaussian, "noise"), "ledger": (Ledger, "admit_everybody")}


def timed(spent: dict[str, float]) -> None:
    """Adds up, from now on, the seconds that each part takes in this process."""
    for part, (owner, name) in PARTS.items():
        setattr(owner, name, _watched(getattr(owner, name), part, spent))


def _watched(real: Callable[..., Any], part: str, spent: dict[str, float]) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        started = time.perf_counter()
        try:
            return real(*given, **named)
        finally:
            spent[part] += time.perf_counter() - started

    return call


def data(place: Path, clients: int) -> None:
    """Random images: what they show does not matter for the time."""
    rng = np.random.default_rng(0)
    rows = clients * EXAMPLES
    np.savez(
        place,
        x=rng.random((rows, 1, SIDE, SIDE), dtype=np.float32),
        y=rng.integers(0, CLASSES, rows),
        client=np.repeat(np.arange(clients), EXAMPLES),
        x_test=rng.random((100, 1, SIDE, SIDE), dtype=np.float32),
        y_test=rng.integers(0, CLASSES, 100),
    )


def experiment(place: Path, *, cohort: int, rounds: int, privacy: dict[str, Any]) -> tacit.Experiment:
    """One local epoch in batches of 20; two processes at least, so that clients do not train in this one."""
    return tacit.Experiment(
        data={"name": "npz", "path": str(place), "partition": "natural", "classes": CLASSES},
        model={"name": "mlp"},
        train={
            "rounds": rounds,
            "clients_per_round": cohort,
            "local_steps": {"epochs": 1},
            "batch_size": 20,
            "learning_rate": 0.1,
        },
        privacy=privacy,
        run={"workers": 2},
    )


def measure(*, clients: int, cohort: int, rounds: int) -> dict[str, Any]:
    """The share of each part, and the round's time over that of a round without privacy."""
    spent: dict[str, float] = defaultdict(float)
    timed(spent)
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "clients.npz"
        data(place, clients)
        for kind, privacy in (
            ("none", {"kind": "none"}),
            ("central", {"kind": "central", "epsilon": 8.0, "clip": 0.1}),
        ):
            chosen = experiment(place, cohort=cohort, rounds=rounds, privacy=privacy)
            seconds[kind] = [r["seconds"] for r in tacit.run(chosen, out=Path(folder) / kind).rounds]
    total = sum(seconds["central"])
    shares = {part: spent[part] / total for part in PARTS}
    ratio = float(np.median(seconds["central"]) / np.median(seconds["none"]))
    return {"shares": shares, "overhead": sum(shares.values()), "over_a_round_without": ratio, "rounds": rounds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = measure(clients=options.clients, cohort=options.cohort, rounds=options.rounds)
    print(f"{options.clients:,} clients, cohorts of {options.cohort}, 159,010 parameters, {options.rounds} rounds")
    for part, share in found["shares"].items():
        print(f"  {part:8}{100 * share:8.2f} % of a round")
    verdict = "met" if found["overhead"] < TARGET else "missed"
    print(f"  together{100 * found['overhead']:8.2f} % of a round (target < {100 * TARGET:g} %: {verdict})")
    print(f"  a round over one without privacy {found['over_a_round_without']:.2f} x (a Poisson cohort varies in size)")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
