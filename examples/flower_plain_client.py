"""Somebody else's Flower client (NumPy, its own rows, its own training) in a central-DP run, through Tacit's mod.

The client below knows nothing of privacy. Tacit checks the site's limits, pays its ledger and bounds what it sends; the
server adds the noise. Here all of it runs in one process; behind a SuperNode the app is the same.
"""

import tempfile
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits

import tacit
from tacit.deploy.server.client import LocalGrid, greet, tacit_mod
from tacit.deploy.server.server import Call, serve
from tacit.deploy.site.limits import make_site

SITES, EXAMPLES = ("client-0", "client-1", "client-2"), 400
PIXELS, DIGITS = (np.asarray(part) for part in load_digits(return_X_y=True))
app = greet(ClientApp(mods=[tacit_mod]))


@app.train()
def train(message: Message, context: Context) -> Message:
    """Softmax regression by hand: arrays in, arrays and num-examples out."""
    rows = slice(EXAMPLES * (context.node_id - 1), EXAMPLES * context.node_id)
    x, y = PIXELS[rows] / 16, np.eye(10)[DIGITS[rows]]
    w, b = message.content.array_records["arrays"].to_numpy_ndarrays()
    for _ in range(20):
        scores = x @ w.T + b
        p = np.exp(scores - scores.max(1, keepdims=True))
        error = (p / p.sum(1, keepdims=True) - y) / len(x)
        w, b = w - 0.5 * error.T @ x, b - 0.5 * error.sum(0)
    records = {"arrays": ArrayRecord([w, b]), "metrics": MetricRecord({"num-examples": len(x)})}
    return Message(RecordDict(records), reply_to=message)


experiment = tacit.Experiment(
    data={"name": "digits", "clients": 3},
    train={"rounds": 5},
    privacy={"kind": "central", "epsilon": 20.0},
    run={"randomness": "os"},
)
with tempfile.TemporaryDirectory() as place:
    for name in SITES:
        make_site(Path(place, name), experiment, name=name, epsilon=20.0)
        with Path(place, name, "site.toml").open("a") as file:
            file.write(f"examples = {EXAMPLES}\n")  # Tacit never sees the rows
    grid = LocalGrid(app, [Path(place, name) for name in SITES])
    history = serve(grid, experiment, Call(out=Path(place, "results"), sites=SITES))
    print(f"accuracy {history.summary['test_accuracy']:.3f}")
    print(history.sentence)
