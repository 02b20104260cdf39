"""What Tacit adds to Flower: time per round next to a bare Flower app of the same model, and bytes on the wire.

Three sites on this machine, TLS and node authentication, first as `tacit deploy site` runs them, then as a bare Flower app
(plain SGD of the same steps, FedAvg) on the same SuperLink. Bytes are counted by a proxy in front of the SuperLink. Like for
like is an experiment without privacy against the bare app with one process per node and a server that looks for replies as
often as Tacit's, so that what is left is Tacit's own code.

    python bench/flower.py [--rounds 5] [--model mlp] [--skip bare] [--json FILE]
    python bench/flower.py --rounds 2 --model logr  # small
"""

import argparse
import json
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from peers.bare_flower import Bare, one_process, process_per_message, seconds_per_round
from rich.console import Console
from rich.table import Table

import tacit
from tacit.deploy.operate.init import init
from tacit.deploy.operate.layout import Federation
from tacit.deploy.operate.processes import Processes, free_port
from tacit.deploy.operate.serve import follow, register, start_server, start_site, submit
from tacit.deploy.server.gather import POLL_SECONDS

NAMES, ROWS, STEPS, BATCH = ("north", "coast", "valley"), 600, 12, 50


class Proxy:
    """Counts the bytes between the sites and the SuperLink."""

    def __init__(self, port: int):
        self.up = self.down = 0
        self._target, self._line = port, socket.create_server(("127.0.0.1", 0))
        self.port = self._line.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._line.accept()
            far = socket.create_connection(("127.0.0.1", self._target))
            for here, there, up in ((near, far, True), (far, near, False)):
                threading.Thread(target=self._carry, args=(here, there, up), daemon=True).start()

    def _carry(self, here: socket.socket, there: socket.socket, up: bool) -> None:
        try:
            while chunk := here.recv(1 << 16):
                there.sendall(chunk)
                self.up, self.down = self.up + up * len(chunk), self.down + (not up) * len(chunk)
        except OSError:
            pass
        for line in (here, there):
            line.close()


def write_rows(place: Path) -> None:
    rng = np.random.default_rng(0)
    for name in (*NAMES, "test"):
        x = rng.random((ROWS, 1, 28, 28), dtype=np.float32)
        np.savez(place / f"{name}.npz", x=x, y=rng.integers(0, 10, ROWS))


def experiment(place: Path, model: str, rounds: int, privacy: dict[str, Any]) -> tacit.Experiment:
    data = {"name": "npz", "path": "unused.npz", "test_path": str(place / "test.npz"), "partition": "natural"}
    batches = {"batch_size": BATCH} if privacy["kind"] == "none" else {"sampling_rate": BATCH / ROWS}
    return tacit.Experiment(
        name="bench",
        data=data | {"classes": 10},
        model={"name": model},
        train={"rounds": rounds, "local_steps": STEPS, "learning_rate": 0.1} | batches,
        privacy=privacy,
    )


def start_sites(place: Path, federation: Federation, processes: Processes, *, port: int) -> None:
    """Gives every site its rows and starts it; it finds the server on that port."""
    for name in NAMES:
        folder = federation.site(name)
        (folder / "records.npz").write_bytes((place / f"{name}.npz").read_bytes())
        text = (folder / "site.toml").read_text().replace(federation.address, f"127.0.0.1:{port}")
        (folder / "site.toml").write_text(text)
        start_site(federation, name, processes)


def tacit_rounds(federation: Federation, processes: Processes, observe: Callable[[Any], None]) -> list[dict[str, Any]]:
    """The records of all rounds after the first of a deployment; its sites have ended on return."""
    started = time.monotonic()
    submit(federation, processes, resume=False, force=False)
    follow(federation, processes, since=started, observe=observe)
    lines = (federation.results / "rounds.jsonl").read_text().splitlines()
    for name in NAMES:
        processes.stop(f"site {name}")
    return [json.loads(line) for line in lines[1:]]


def seconds_of(rounds: list[dict[str, Any]]) -> float:
    return statistics.median(record["seconds"] for record in rounds)


@contextmanager
def deployed(model: str, rounds: int, privacy: dict[str, Any]) -> Iterator[tuple[Path, Federation, Processes]]:
    """A federation whose SuperLink runs and whose sites are registered."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        write_rows(place)
        chosen = experiment(place, model, rounds, privacy)
        trial = privacy["kind"] == "none"
        federation = init(
            place / "f", sites=",".join(NAMES), experiment=chosen, host="127.0.0.1", port=free_port(), trial=trial
        )
        with Processes(home=federation.home) as processes:
            start_server(federation, processes)
            register(federation, processes)
            yield place, federation, processes


def deployment(model: str, rounds: int, *, beside_bare: bool) -> dict[str, float]:
    """DP-SGD through the proxy: seconds per round, bytes beside what the round log says, and the bare app's seconds."""
    with deployed(model, rounds, {"kind": "local", "epsilon": 8.0}) as (place, federation, processes):
        proxy = Proxy(federation.port)
        marks: list[tuple[int, int]] = []
        start_sites(place, federation, processes, port=proxy.port)
        records = tacit_rounds(federation, processes, lambda record: marks.append((proxy.up, proxy.down)))
        said = {key: sum(record[key] for record in records) for key in ("uplink_bytes", "downlink_bytes")}
        summary = json.loads((federation.results / "summary.json").read_text())
        found = {
            "seconds": seconds_of(records),
            "up": (marks[-1][0] - marks[0][0]) / said["uplink_bytes"],  # from the end of round 0: joining is no round
            "down": (marks[-1][1] - marks[0][1]) / said["downlink_bytes"],
            "parameters": summary["parameters"],
        }
        if beside_bare:
            app = Bare(place / "bare", place, NAMES, federation, processes)
            found["bare"] = seconds_per_round(
                app, process_per_message, poll=None, model=model, steps=STEPS, rounds=rounds
            )
        return found


def like_for_like(model: str, rounds: int) -> dict[str, float]:
    """Plain SGD on both sides, every node in one process, no proxy: what Tacit's own code adds to a round."""
    with deployed(model, rounds, {"kind": "none"}) as (place, federation, processes):
        start_sites(place, federation, processes, port=federation.port)
        ours = seconds_of(tacit_rounds(federation, processes, lambda record: None))
        app = Bare(place / "bare", place, NAMES, federation, processes)
        theirs = seconds_per_round(app, one_process, poll=POLL_SECONDS, model=model, steps=STEPS, rounds=rounds)
        return {"seconds": ours, "bare": theirs}


def main(args: argparse.Namespace) -> None:
    console, record = Console(width=None if sys.stdout.isatty() else 120), {}
    if "deploy" not in args.skip:
        beside_bare = "bare" not in args.skip
        found = record["deployment"] = deployment(args.model, args.rounds, beside_bare=beside_bare)
        table = Table("what", "ratio", "target", title=f"deployment, {args.model}, {found['parameters']:,} parameters")
        if beside_bare:
            table.add_row("a round / a bare Flower app's", f"{found['seconds'] / found['bare']:.2f}", "<= 1.10")
            plain = record["like_for_like"] = like_for_like(args.model, args.rounds)
            ratio = f"{plain['seconds'] / plain['bare']:.2f}"
            table.add_row("the same, no privacy, both in one process", ratio, "<= 1.10")
        table.add_row("bytes up / summary.json's", f"{found['up']:.3f}", "<= 1.02")
        table.add_row("bytes down / summary.json's", f"{found['down']:.3f}", "<= 1.02")
        console.print(table, f"a round took {found['seconds']:.2f} s", highlight=False)
    if args.json:
        args.json.write_text(json.dumps(record, indent=2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--skip", default="", help="of deploy,bare")
    parser.add_argument("--json", type=Path, help="also write everything measured to this file")
    main(parser.parse_args())
