"""What Tacit adds to Flower: time per round next to a bare Flower app of the same model, bytes on the wire, and Ray's crossover.

Three sites on this machine, TLS and node authentication, first as `tacit deploy site` runs them, then as a bare Flower app
(plain SGD of the same steps, FedAvg) on the same SuperLink. Bytes are counted by a proxy in front of the SuperLink.

    python bench/flower.py [--rounds 5] [--model mlp] [--skip ray] [--json FILE]
"""

import argparse
import itertools
import json
import socket
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import tacit
from tacit.deploy.certificates import make_node_key
from tacit.deploy.init import init
from tacit.deploy.layout import CONNECTION, Federation
from tacit.deploy.processes import Processes, free_port, program
from tacit.deploy.up import follow, register, start_site, start_superlink, submit

NAMES, ROWS, STEPS, RATE = ("north", "coast", "valley"), 600, 12, 50 / 600
BARE = """
import os, time
import numpy as np, torch
from flwr.app import ArrayRecord, MetricRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from tacit import models

def build():
    return models.build({model!r}, input_shape=(1, 28, 28), classes=10, seed=0)

client = ClientApp()
server = ServerApp()

@client.train()
def train(message, context):
    torch.set_num_threads(1)
    file = np.load(context.node_config["rows"])
    x, y = torch.from_numpy(file["x"]), torch.from_numpy(file["y"])
    model = build()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range({steps}):
        batch = torch.randint(len(y), (50,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    content = RecordDict({{"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({{"num-examples": len(y)}})}})
    return Message(content=content, reply_to=message)

class Timed(FedAvg):
    def aggregate_train(self, server_round, replies):
        found = super().aggregate_train(server_round, replies)
        with open({times!r}, "a") as file:
            file.write(f"{{time.time()}}\\n")
        return found

@server.main()
def main(grid, context):
    arrays = ArrayRecord(build().state_dict())
    with open({times!r}, "a") as file:
        file.write(f"{{time.time()}}\\n")
    Timed(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3).start(
        grid=grid, initial_arrays=arrays, num_rounds={rounds})
"""
PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "bare"
version = "1.0.0"
dependencies = ["flwr"]
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "bench"
[tool.flwr.app.components]
serverapp = "bare:server"
clientapp = "bare:client"
"""


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


def experiment(place: Path, model: str, rounds: int) -> tacit.Experiment:
    data = {"name": "npz", "path": "unused.npz", "test_path": str(place / "test.npz"), "partition": "natural"}
    return tacit.Experiment(
        name="bench",
        data=data | {"classes": 10},
        model={"name": model},
        train={"rounds": rounds, "local_steps": STEPS, "sampling_rate": RATE, "learning_rate": 0.1},
        privacy={"kind": "local", "epsilon": 8.0},
    )


def tacit_rounds(place: Path, federation: Federation, processes: Processes, proxy: Proxy) -> dict[str, float]:
    """A deployment through the proxy: seconds per round, and bytes beside what summary.json says."""
    for name in NAMES:
        folder = federation.site(name)
        (folder / "records.npz").write_bytes((place / f"{name}.npz").read_bytes())
        text = (folder / "site.toml").read_text().replace(federation.address, f"127.0.0.1:{proxy.port}")
        (folder / "site.toml").write_text(text)
        start_site(federation, name, processes)
    started = time.monotonic()
    submit(federation, processes, resume=False, force=False)
    marks: list[tuple[int, int]] = []
    summary = follow(federation, processes, since=started, observe=lambda record: marks.append((proxy.up, proxy.down)))
    lines = (federation.results / "rounds.jsonl").read_text().splitlines()
    for name in NAMES:
        processes.stop(f"site {name}")
    rounds = [json.loads(line) for line in lines]
    said = {key: sum(record[key] for record in rounds[1:]) for key in ("uplink_bytes", "downlink_bytes")}
    return {
        "seconds": statistics.median(record["seconds"] for record in rounds[1:]),
        "up": (marks[-1][0] - marks[0][0]) / said["uplink_bytes"],  # from the end of round 0: joining is not a round
        "down": (marks[-1][1] - marks[0][1]) / said["downlink_bytes"],
        "parameters": summary["parameters"],
    }


def bare_rounds(place: Path, federation: Federation, processes: Processes, model: str, rounds: int) -> float:
    """Flower alone on the same SuperLink, with the same keys: seconds per round."""
    app, times = place / "bare", place / "times"
    app.mkdir()
    (app / "bare.py").write_text(BARE.format(model=model, steps=STEPS, rounds=rounds, times=str(times)))
    (app / "pyproject.toml").write_text(PYPROJECT)
    for name in NAMES:  # new keys: the SuperLink may take the sites' own for online for another minute
        (place / name).mkdir()
        make_node_key(place / name)
    keys = [place / name / "node.pub" for name in NAMES]
    processes.call([sys.executable, "-m", "tacit.engine.flower.register", CONNECTION, *keys], seconds=90)
    for name in NAMES:
        folder = place / name
        command = [program("flower-supernode"), "--root-certificates", federation.server / "ca.crt"]
        command += ["--superlink", federation.address]
        command += ["--auth-supernode-private-key", folder / "node.key", "--port", str(free_port())]
        command += ["--node-config", f'rows="{place / f"{name}.npz"}"']
        processes.start(f"node {name}", command, log=place / f"{name}.log")
    processes.call([program("flwr"), "run", app, CONNECTION], seconds=90)
    while not times.exists() or len(times.read_text().splitlines()) <= rounds:
        processes.refuse_ended()
        time.sleep(0.2)
    marks = [float(line) for line in times.read_text().splitlines()]
    steps = [after - before for before, after in itertools.pairwise(marks)]
    return statistics.median(steps[1:] or steps)


def deployment(model: str, rounds: int, *, bare: bool) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        write_rows(place)
        chosen, port = experiment(place, model, rounds), free_port()
        federation = init(place / "f", sites=",".join(NAMES), experiment=chosen, host="127.0.0.1", port=port)
        with Processes(home=federation.home) as processes:
            start_superlink(federation, processes)
            register(federation, processes)
            found = tacit_rounds(place, federation, processes, Proxy(port))
            if bare:
                found["bare"] = bare_rounds(place, federation, processes, model, rounds)
        return found


def crossover(steps: int) -> tuple[float, float]:
    """Seconds per round of Tacit's own simulator and of Flower's engine, for so many local steps."""
    seconds = []
    for engine in ("tacit", "flower-simulation"):
        chosen = tacit.Experiment(
            data={"clients": 8},
            model={"name": "mlp"},
            train={"rounds": 4, "local_steps": steps, "sampling_rate": 0.3},
            privacy={"kind": "local", "epsilon": 8.0, "accountant": "rdp"},
            run={"engine": engine},
        )
        with tempfile.TemporaryDirectory() as folder:
            history = tacit.run(chosen, out=Path(folder) / "run", page=False)
        seconds.append(statistics.median(record["seconds"] for record in history.rounds[1:]))
    return seconds[0], seconds[1]


def main(args: argparse.Namespace) -> None:
    console, record = Console(width=None if sys.stdout.isatty() else 120), {}
    if "deploy" not in args.skip:
        found = record["deployment"] = deployment(args.model, args.rounds, bare="bare" not in args.skip)
        table = Table("what", "ratio", "target", title=f"deployment, {args.model}, {found['parameters']:,} parameters")
        if "bare" in found:
            table.add_row("a round / a bare Flower app's", f"{found['seconds'] / found['bare']:.2f}", "<= 1.10")
        table.add_row("bytes up / summary.json's", f"{found['up']:.3f}", "<= 1.02")
        table.add_row("bytes down / summary.json's", f"{found['down']:.3f}", "<= 1.02")
        console.print(table, f"a round took {found['seconds']:.2f} s", highlight=False)
    if "ray" not in args.skip:
        table = Table(
            "local steps", "Flower's engine / Tacit's simulator", title="one round of 8 clients, this machine"
        )
        record["crossover"] = {steps: crossover(steps) for steps in (5, 50, 500)}
        for steps, (ours, theirs) in record["crossover"].items():
            table.add_row(str(steps), f"{theirs / ours:.2f}")
        console.print(table, "below 1 the engine is worth it; a cluster divides its part by its nodes", highlight=False)
    if args.json:
        args.json.write_text(json.dumps(record, indent=2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--skip", default="", help="of deploy,bare,ray")
    parser.add_argument("--json", type=Path, help="also write everything measured to this file")
    main(parser.parse_args())
