"""Any torch model trains under DP-SGD: a GRU that reads digits row by row. Run: python examples/own_model.py"""

import tempfile

import torch
from torch import nn

import tacit


class RowReader(nn.Module):
    """An 8x8 image as a sequence of 8 rows."""

    def __init__(self, classes: int):
        super().__init__()
        self.gru = nn.GRU(8, 24, batch_first=True)
        self.head = nn.Linear(24, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.gru(x[:, 0])  # [batch, rows, 24]
        return self.head(states[:, -1])


def build(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Tacit calls this once: "own_model:build" in the experiment."""
    return RowReader(classes)


def main() -> tacit.History:
    experiment = tacit.Experiment(
        data={"clients": 4},
        model={"name": "own_model:build"},
        train={"rounds": 5, "local_steps": 3, "sampling_rate": 0.05, "learning_rate": 2.0},
        privacy={"kind": "local", "epsilon": 8.0},
    )
    history = tacit.run(experiment, out=tempfile.mkdtemp() + "/run")
    print(f"accuracy {history.summary['test_accuracy']:.3f}")
    print(history.sentence)
    return history


if __name__ == "__main__":
    main()
