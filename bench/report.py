"""What a report page costs: seconds to make it, its size, and its first paint in headless Chromium.

A folder as a run of `--rounds` x `--clients` leaves it is made first (a real ledger, every client charged in every
round), then the page is made from it twice: with all prices to compute, and with what the first page noted.

    .venv/bin/python bench/report.py --rounds 500 --clients 1000
    python bench/report.py --rounds 5 --clients 10  # small
"""

import argparse
import json
import sqlite3
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import tacit
from tacit.engine.evaluate import STAGES
from tacit.privacy.accounting import price
from tacit.privacy.guarantee import promise, sentence
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.local import SampledGaussian, promised
from tacit.report.page import write_page

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
KINDS = 40  # distinct budgets


def folder(place: Path, *, rounds: int, clients: int) -> None:
    """Writes what a run of this size leaves."""
    rng = np.random.default_rng(0)
    names = [f"client-{index}" for index in range(clients)]
    limits = np.sort(rng.uniform(1, 10, KINDS))[rng.integers(0, KINDS, clients)]
    train = {"rounds": rounds, "local_steps": 1, "sampling_rate": 0.01}
    experiment = tacit.Experiment(
        name="large", data={"clients": clients}, train=train, privacy={"kind": "local", "epsilon": "uniform"}
    )
    place.mkdir(parents=True)
    (place / "experiment.toml").write_text(experiment.toml())
    (place / "run.json").write_text(json.dumps({"run": "bench"}))
    with (place / "rounds.jsonl").open("w") as file:
        for r in range(rounds):
            file.write(json.dumps(_record(rng, r, rounds, clients)) + "\n")
    _charge(place / "ledger.db", names, limits, rounds=rounds)
    blank = promise(experiment, promised("record"))
    known = {"names": names, "records": rng.integers(20, 200, clients).tolist(), "limits": limits.tolist()}
    known |= {"classes": [str(label) for label in range(10)], "together": 1, "guarantee": blank.record()}
    known |= {"labels": rng.integers(0, 60, (clients, 10)).tolist(), "ledger": "ledger.db", "notes": []}
    (place / "clients.json").write_text(json.dumps(known))
    summary = {"metric": "accuracy", "metrics": {"accuracy": {"value": 0.9}}, "test_accuracy": 0.9}
    summary |= {"rounds": rounds, "stopped": "rounds", "clients": clients, "seconds": 1.0}
    summary |= {"sentence": sentence(blank), "guarantee": blank.record(), "uplink_bytes": 1, "downlink_bytes": 1}
    summary |= {"noise_multiplier": {"min": 1.0, "median": 2.0, "max": 3.0}, "notes": []}
    (place / "summary.json").write_text(json.dumps(summary))


def _record(rng: np.random.Generator, r: int, rounds: int, clients: int) -> dict:
    record = {"round": r, "accuracy": 0.9 - 0.8 * 0.98**r, "loss": 2.3 * 0.99**r, "train_loss": 2.4 * 0.99**r}
    record |= {"clipped": float(rng.uniform(0.4, 0.6)), "cohort": clients, "out_of_budget": 0, "dropped": []}
    record |= {"epsilon_tightest": r / rounds, "epsilon_loosest": 9 * r / rounds, "update_norm": 1.0}
    record |= {key: float(rng.uniform(0, 1)) for key in ("signal_to_noise",)}
    record |= {"signal_to_noise_low": 0.0, "signal_to_noise_high": 1.5, "uplink_bytes": 10**6, "downlink_bytes": 10**6}
    return record | {f"seconds_{stage}": 0.01 for stage in STAGES} | {"seconds": 0.05}


def _charge(path: Path, names: list[str], limits: np.ndarray, *, rounds: int) -> None:
    Ledger(path, population="bench", run="bench").close()
    zs = {limit: SampledGaussian(12.0 / float(limit), 1.0, 0.01) for limit in set(limits.tolist())}
    texts = {limit: price.to_text(mechanism.event()) for limit, mechanism in zs.items()}
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA synchronous=OFF")
        db.executemany("INSERT INTO events (text) VALUES (?)", [(text,) for text in texts.values()])
        ids = {text: key for key, text in db.execute("SELECT id, text FROM events")}
        rows = (
            (name, "bench", r, "a", "record", ids[texts[limit]], "")
            for name, limit in zip(names, limits.tolist(), strict=True)
            for r in range(rounds)
        )
        db.executemany("INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    db.close()


def first_paint(page: Path) -> str:
    """Milliseconds to the first paint with content, or why that is unknown."""
    from browser import CHROMIUM, WHY_NOT, Browser

    if CHROMIUM is None:
        return WHY_NOT
    with Browser() as browser:
        found = []
        for _ in range(5):
            browser.open(page.resolve().as_uri())
            browser.wait("performance.getEntriesByName('first-contentful-paint').length > 0")
            found.append(browser.value("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
        return f"{np.median(found):.0f} ms (median of {len(found)}; worst {max(found):.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--keep", type=Path, help="leave the folder here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as somewhere:
        place = options.keep or Path(somewhere) / "run"
        folder(place, rounds=options.rounds, clients=options.clients)
        page = place / "report.html"
        for words in ("first page", "second page"):
            began = time.perf_counter()
            write_page([place], page)
            print(f"{words}: {time.perf_counter() - began:.2f} s, {page.stat().st_size / 1e6:.2f} MB")
        print(f"first paint: {first_paint(page)}")


if __name__ == "__main__":
    main()
