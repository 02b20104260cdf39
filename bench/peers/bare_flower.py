"""A bare Flower app across machines: plain SGD of the same steps, FedAvg, nothing else.

By itself Flower starts a process for every message, and its server looks for replies every 3 s. Like for like, a node answers
all messages in one process, by this program (Tacit's loop around the bare ClientApp), and the server looks as often as Tacit's.
"""

import itertools
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tacit.deploy.operate.certificates import make_node_key
from tacit.deploy.operate.layout import CONNECTION, Federation
from tacit.deploy.operate.processes import Processes, free_port, program

APP = """
import os, time
import numpy as np, torch
from flwr.app import ArrayRecord, MetricRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from tacit.parts import models

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

def look_often(grid):
    def send_and_receive(messages, *, timeout=None):
        open_, found = set(grid.push_messages(messages)), []
        while open_:
            replies = list(grid.pull_messages(open_))
            found += replies
            open_ -= {{reply.metadata.reply_to_message_id for reply in replies}}
            time.sleep({poll} if open_ else 0)
        return found
    grid.send_and_receive = send_and_receive

@server.main()
def main(grid, context):
    if {poll}:
        look_often(grid)
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


@dataclass(frozen=True)
class Bare:
    """Where the app and its nodes lie, and what they work with."""

    place: Path
    rows: Path  # a file per node
    names: tuple[str, ...]
    federation: Federation
    processes: Processes

    @property
    def app(self) -> Path:
        """The app's own folder."""
        return self.place / "app"


Start = Callable[[Bare, str], None]


def process_per_message(bare: Bare, name: str) -> None:
    """Starts a node as Flower does."""
    bare.processes.start(f"node {name}", _node(bare, name, free_port()), log=bare.place / f"{name}.log")


def one_process(bare: Bare, name: str) -> None:
    """Starts a node whose messages are all answered by one process."""
    port = free_port()
    command = [*_node(bare, name, port), "--isolation", "process"]
    bare.processes.start(f"node {name}", command, log=bare.place / f"{name}.log")
    answers = [sys.executable, __file__, str(port), bare.app]
    bare.processes.start(f"answers {name}", answers, log=bare.place / f"{name}.log")


def seconds_per_round(bare: Bare, start: Start, *, poll: float | None, model: str, steps: int, rounds: int) -> float:
    """Runs the app on a SuperLink that runs already, with nodes of its own: the median, without the first round.

    Its server looks for replies every `poll` seconds, or as Flower does.
    """
    bare.app.mkdir(parents=True)
    times = bare.place / "times"
    (bare.app / "bare.py").write_text(APP.format(model=model, steps=steps, rounds=rounds, times=str(times), poll=poll))
    (bare.app / "pyproject.toml").write_text(PYPROJECT)
    for name in bare.names:  # new keys: the SuperLink may take the sites' own for online for another minute
        (bare.place / name).mkdir()
        make_node_key(bare.place / name)
    keys = [f"bare-{name}={bare.place / name / 'node.pub'}" for name in bare.names]
    bare.processes.call(
        [sys.executable, "-m", "tacit.deploy.server.superlink", "register", CONNECTION, *keys], seconds=300
    )
    for name in bare.names:
        start(bare, name)
    bare.processes.call([program("flwr"), "run", bare.app, CONNECTION], seconds=300)
    while not times.exists() or len(times.read_text().splitlines()) <= rounds:
        bare.processes.refuse_ended()
        time.sleep(0.2)
    marks = [float(line) for line in times.read_text().splitlines()]
    steps_taken = [after - before for before, after in itertools.pairwise(marks)]
    return statistics.median(steps_taken[1:] or steps_taken)


def _node(bare: Bare, name: str, port: int) -> list[str | Path]:
    command: list[str | Path] = [program("flower-supernode"), "--root-certificates", bare.federation.server / "ca.crt"]
    command += ["--superlink", bare.federation.control, "--port", str(port)]  # the gateway knows the sites' keys alone
    command += ["--auth-supernode-private-key", bare.place / name / "node.key"]
    return [*command, "--node-config", f'rows="{bare.rows / f"{name}.npz"}"']


def main(port: str, app: str) -> None:
    sys.path.insert(0, app)
    from bare import client  # pyright: ignore[reportMissingImports]
    from executor import answer_with  # pyright: ignore[reportMissingImports]

    answer_with(client, address=f"127.0.0.1:{port}", alive=lambda: True)


if __name__ == "__main__":
    main(*sys.argv[1:])
