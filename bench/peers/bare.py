"""The bare torch loop: clients one after another in one process, then the average. With Opacus: make_private for every client."""

import copy

import local
import torch
from torch import nn
from turns import Turns


def one_round(model: nn.Module, clients: list[local.Rows], kind: str) -> None:
    """FedAvg over clients of equal size."""
    total = [torch.zeros_like(p) for p in model.parameters()]
    for rows in clients:
        mine = copy.deepcopy(model)
        local.train(kind, mine, rows)
        torch._foreach_add_(total, [p.detach() for p in mine.parameters()])
    with torch.no_grad():
        for parameter, summed in zip(model.parameters(), total, strict=True):
            parameter.copy_(summed / len(clients))


def main() -> None:
    args = local.arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    turns, clients, model = Turns(args.rounds), local.clients(args.data), local.build(args.model)
    for _ in range(args.rounds):
        turns.wait()
        one_round(model, clients, args.train)
        turns.done()


if __name__ == "__main__":
    main()
