"""`run.engine = "flower-simulation"`: the cohort is trained by Flower's simulation engine, on a Ray cluster.

The loop, the ledger and the files are the simulator's own; only the trainer is another. Every worker builds the experiment
once and derives a client's randomness from its place, so the model is the same, bit for bit on one kind of machine. Ray's
start and its messages cost more than small models take to train: docs/how-to-deploy.md says when it is worth it."""

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from tacit.deploy.server.gather import POLL_SECONDS, gather
from tacit.deploy.server.incoming import answer, read
from tacit.engine import trainers
from tacit.engine.assemble import Parts
from tacit.engine.pool import Reply, Trainer
from tacit.errors import BadInput, TacitError
from tacit.machine import cores
from tacit.privacy.ledger.before import recorded

SECONDS = 3600.0  # for a round: a client that takes longer is lost, and the run with it
CLUSTER = "TACIT_RAY_ADDRESS"  # the address of a running Ray cluster; a local one is started without it


class OnRay:
    """Trains cohorts on Ray: a `Trainer`. Flower's simulation runs in a thread of its own and is given one round after the other.

    Guarantee: replies come in the cohort's order, and have the bits that one process would give, on one kind of machine; a worker
    that finds other rows, code or budgets than were paid for trains nothing.

    Raises: BadInput where Ray is not installed; when called, TacitError where a worker fails or the simulation ends.
    """

    def __init__(self, parts: Parts):
        _require_ray()
        self._jobs: queue.Queue[Any] = queue.Queue()
        self._done: queue.Queue[Any] = queue.Queue()
        workers = parts.experiment.run.workers or cores()
        arguments = (
            client_app(parts.experiment.toml(), parts.releases.digest, json.dumps(parts.before.record())),
            self._server(),
            min(workers, parts.cohort),
            workers,
        )
        self._thread = threading.Thread(target=_simulate, args=(*arguments, self._done), daemon=True)
        self._thread.start()

    def __call__(self, received: bytes, round: int, cohort: Sequence[int]) -> Iterator[Reply]:
        self._jobs.put((received, round, list(cohort)))
        while True:
            try:
                result = self._done.get(timeout=1.0)
                break
            except queue.Empty:
                if not self._thread.is_alive():
                    raise TacitError(
                        "Flower's simulation ended before the round did: see its messages above."
                    ) from None
        if isinstance(result, BaseException):
            raise result
        yield from result

    def close(self) -> None:
        """Ends the simulation, and waits up to a minute for it."""
        self._jobs.put(None)
        self._thread.join(timeout=60)

    def _server(self) -> ServerApp:
        app = ServerApp()

        @app.main()
        def main(grid: Grid, context: Context) -> None:
            del context
            while (job := self._jobs.get()) is not None:
                try:
                    self._done.put(_round(grid, *job))
                except BaseException as error:  # noqa: BLE001 - told to the thread that waits for the round
                    self._done.put(error)

        return app


def _round(grid: Grid, received: bytes, round: int, cohort: list[int]) -> list[Reply]:
    """Deals the cohort to the nodes, a few clients each, and returns the replies in the cohort's order."""
    while not (nodes := sorted(grid.get_node_ids())):  # they register a moment after the server has started
        time.sleep(POLL_SECONDS)
    hands = {node: cohort[first :: len(nodes)] for first, node in enumerate(nodes)}
    asks = {node: {"kind": "train", "round": round, "cohort": hand} for node, hand in hands.items() if hand}
    heard = gather(grid, asks, received, seconds=SECONDS, again=SECONDS)  # a worker would train again
    lost = heard.refusals | heard.lost
    if lost or len(heard.answers) < len(asks):
        raise TacitError(
            f"A worker of Flower's simulation failed in round {round + 1}: {next(iter(lost.values()), 'no answer')}"
        )
    replies: dict[int, Reply] = {}
    for node, (head, body) in heard.answers.items():
        start = 0
        for index, length, info in zip(hands[node], head["lengths"], head["info"], strict=True):
            replies[index] = (body[start : start + length], info)
            start += length
    return [replies[index] for index in cohort]


def client_app(text: str, digest: str, before: str) -> ClientApp:
    """A ClientApp that trains the clients it is dealt; it holds nothing but the experiment's text, and what was paid for.

    `digest` names the releases that the paying process has charged for, `before` what other runs of its ledger have sealed: a
    worker builds the experiment from these and refuses where it comes to another digest.
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        del context
        ask, body = read(message)
        replies = list(_trainer(text, digest, before)(body, int(ask["round"]), ask["cohort"]))
        head = {"lengths": [len(raw) for raw, _ in replies], "info": [info for _, info in replies]}
        return answer(head, b"".join(raw for raw, _ in replies), to=message)

    return app


@lru_cache(maxsize=1)
def _trainer(text: str, digest: str, before: str) -> Trainer:
    """Built once in every worker, from the same rows and code as in the process that pays. Raises BadInput for others."""
    import tomllib

    from tacit.engine.assemble import build
    from tacit.experiment import Experiment

    parts = build(Experiment(**tomllib.loads(text)), before=recorded(json.loads(before)))
    if not parts.nonce and parts.releases.digest != digest:
        raise BadInput("A worker found other rows, code or budgets than the run was paid for: start it again.")
    return trainers.alone(parts, model=parts.model)


def _simulate(client: ClientApp, server: ServerApp, nodes: int, workers: int, done: "queue.Queue[Any]") -> None:
    from flwr.simulation import run_simulation

    cluster: dict[str, Any] = {"address": os.environ.get(CLUSTER, "local")}
    if cluster["address"] == "local":
        cluster |= {"num_cpus": workers, "include_dashboard": False}
    try:
        backend: Any = {"init_args": cluster, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
        run_simulation(server, client, num_supernodes=nodes, backend_config=backend)
    except BaseException as error:  # noqa: BLE001 - told to the thread that waits for a round
        done.put(error if isinstance(error, TacitError) else TacitError(f"Flower's simulation failed: {error}"))


def _require_ray() -> None:
    try:
        import ray  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise BadInput(
            'run.engine = "flower-simulation" needs Ray: pip install "flwr[simulation]>=1.41,<1.43"'
        ) from None
    for name, value in (("RAY_USAGE_STATS_ENABLED", "0"), ("FLWR_TELEMETRY_ENABLED", "0")):
        os.environ.setdefault(name, value)
    paths = os.pathsep.join(dict.fromkeys(filter(None, [*sys.path, os.environ.get("PYTHONPATH", "")])))
    os.environ["PYTHONPATH"] = paths  # the workers import the same modules
