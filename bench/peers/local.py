"""What every peer shares: the arguments, the data, the models and one client's local training, as a user of torch writes them.

The models are those of tacit.parts.models, written again so that a peer's environment needs torch alone.
"""

import argparse
from functools import lru_cache

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

BATCH = 50
LEARNING_RATE = 0.1
CLIP = 1.0
NOISE_MULTIPLIER = 1.0

Rows = tuple[torch.Tensor, torch.Tensor]


def arguments() -> argparse.Namespace:
    """The arguments of a contender's program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True, help=".npz with x, y and client")
    parser.add_argument("--model", choices=("mlp", "cnn", "cnn-ordinary"), required=True)
    parser.add_argument("--train", choices=("plain", "dp", "opacus", "ghost"), default="plain")
    parser.add_argument("--threads", type=int, default=0, help="0 = torch's default")
    parser.add_argument("--rounds", type=int, required=True)
    return parser.parse_args()


@lru_cache  # read once per process
def clients(path: str) -> list[Rows]:
    """The rows of each client."""
    with np.load(path) as file:
        x, y, client = torch.from_numpy(file["x"]), torch.from_numpy(file["y"]), file["client"]
    places = [torch.from_numpy(np.flatnonzero(client == k)) for k in np.unique(client)]
    return [(x[mine], y[mine]) for mine in places]


class ChannelsLast(nn.Module):
    """As in tacit.parts.models: the channels innermost in memory, which makes max-pooling on a CPU much faster."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def build(name: str) -> nn.Sequential:
    """MLP 784-200-10, or the CNN of 26,010 parameters; "cnn-ordinary" is the same CNN in torch's default memory layout."""
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))
    layers = (
        nn.Conv2d(1, 16, 8, stride=2, padding=3), ChannelsLast(), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10),
    )  # fmt: skip
    return nn.Sequential(*(layer for layer in layers if name == "cnn" or not isinstance(layer, ChannelsLast)))


def train(kind: str, model: nn.Module, rows: Rows) -> None:
    """One client's round, in place."""
    if kind == "plain":
        plain(model, rows)
    else:
        opacus(model, rows, ghost=kind == "ghost")


def plain(model: nn.Module, rows: Rows) -> None:
    """One epoch of SGD on shuffled batches, without a DataLoader, which would only be slower."""
    x, y = rows
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for batch in torch.randperm(len(y)).split(BATCH):
        optimizer.zero_grad()
        cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()


def opacus(model: nn.Module, rows: Rows, *, ghost: bool) -> None:
    """As many Poisson-sampled steps of Opacus, by materialised per-example gradients (its default) or by ghost clipping."""
    from opacus import PrivacyEngine

    criterion = nn.CrossEntropyLoss()
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        criterion=criterion,
        data_loader=DataLoader(TensorDataset(*rows), batch_size=BATCH),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=CLIP,
        grad_sample_mode="ghost" if ghost else "hooks",
    )
    private, optimizer, criterion, loader = made if ghost else (made[0], made[1], criterion, made[-1])
    for x, y in loader:
        optimizer.zero_grad()
        criterion(private(x), y).backward()
        optimizer.step()
