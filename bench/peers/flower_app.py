"""Flower's simulation engine (Ray) with a plain ClientApp and FedAvg; with Opacus inside the client it is "Flower + Opacus".

A round lasts from `configure_train` to the end of `aggregate_train`; there is no evaluation.
"""

import os
from collections.abc import Iterable
from typing import Any

import local
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from turns import Turns


class InTurns(FedAvg):
    """FedAvg that waits for its turn before each round."""

    def __init__(self, turns: Turns, clients: int):
        super().__init__(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
        self._turns = turns

    def configure_train(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
        self._turns.wait()
        return super().configure_train(*args, **kwargs)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        if arrays is None:
            raise RuntimeError("Flower's clients sent nothing that could be averaged")
        self._turns.done()
        return arrays, metrics


def client_app(data: str, name: str, kind: str) -> ClientApp:
    """A client that trains on its partition."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        rows = local.clients(data)[int(context.node_config["partition-id"])]
        model = local.build(name)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        local.train(kind, model, rows)
        metrics = MetricRecord({"num-examples": len(rows[1])})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    return app


def server_app(turns: Turns, name: str, rounds: int, clients: int) -> ServerApp:
    """A server that averages."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        initial = ArrayRecord(local.build(name).state_dict())
        InTurns(turns, clients).start(grid=grid, initial_arrays=initial, num_rounds=rounds)

    return app


def main() -> None:
    args = local.arguments()
    turns, clients, cores = Turns(args.rounds), len(local.clients(args.data)), len(os.sched_getaffinity(0))
    run_simulation(
        server_app=server_app(turns, args.model, args.rounds, clients),
        client_app=client_app(args.data, args.model, args.train),
        num_supernodes=clients,
        backend_config={
            "init_args": {"address": "local", "num_cpus": cores, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main()
