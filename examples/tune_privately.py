"""Fine-tuning: a small transformer learns from public rows, and a few parameters of it from private ones, under DP-SGD."""

import tempfile
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import tacit

PUBLIC, WIDTH = 800, 32


class Block(nn.Module):
    """Attention among the rows of an image, then two layers for each of them."""

    def __init__(self):
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.feed = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)  # [batch, rows, 32] each
        x = x + F.scaled_dot_product_attention(q, k, v)
        return x + self.feed(x)


digits: Any = load_digits()
x, y = torch.tensor(digits.images / 16.0, dtype=torch.float32), torch.tensor(digits.target)
torch.manual_seed(0)
body = nn.Sequential(nn.Linear(8, WIDTH), Block(), Block(), nn.Flatten(), nn.LayerNorm(8 * WIDTH))

# The public rows, and another question about them: is the number even?
even = nn.Linear(8 * WIDTH, 2)
optimizer = torch.optim.Adam([*body.parameters(), *even.parameters()], lr=2e-3)
for _ in range(60):
    loss = F.cross_entropy(even(body(x[:PUBLIC])), y[:PUBLIC] % 2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# The private rows: the body is frozen, and a head for the ten digits is all that is trained, noised and sent.
model = nn.Sequential(body.requires_grad_(False), nn.Linear(8 * WIDTH, 10))
data = tacit.Dataset(
    x[PUBLIC:-300].numpy(), y[PUBLIC:-300].numpy(), classes=10, test=(x[-300:].numpy(), y[-300:].numpy())
)
experiment = tacit.Experiment(
    data={"clients": 3},
    train={"rounds": 5, "local_steps": 5, "sampling_rate": 0.25, "learning_rate": 0.5},
    privacy={"kind": "local", "epsilon": 5.0, "delta": 1e-4},
)
with tempfile.TemporaryDirectory() as out:
    history = tacit.run(experiment, data=data, model=model, out=out)
trained, fixed = (history.summary[key] for key in ("parameters", "frozen_parameters"))
print(f"accuracy {history.summary['test_accuracy']:.3f}: {trained} parameters trained on {fixed} that are frozen")
print(history.sentence)
