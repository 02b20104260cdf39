"""Tacit's client under Flower's own FedAvg: the server knows nothing of privacy, the sites protect themselves.

Each site brings its own experiment: DP-SGD with its own epsilon, a limit of rounds, and a ledger that is paid first.
Here all of it runs in one process; behind a SuperLink the strategy and the app are the same.
"""

import tempfile
from pathlib import Path

import torch
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg

import tacit
from tacit.deploy.server.client import LocalGrid, client_app
from tacit.deploy.site.limits import make_site
from tacit.engine.assemble import build
from tacit.privacy.guarantee import shown
from tacit.privacy.ledger import reader as books

EPSILONS = {"client-0": 1.0, "client-1": 3.0, "client-2": 10.0}

experiment = tacit.Experiment(
    data={"name": "digits", "clients": 3},
    train={"rounds": 3, "local_steps": 5, "sampling_rate": 0.25},
    privacy={"kind": "local", "epsilon": EPSILONS},
    run={"randomness": "os"},
)
parts = build(experiment)  # the server's own model and test rows: any model of the same shape would do
model, test = parts.model, parts.dataset
arrays = ArrayRecord({name: Array(tensor.detach().numpy()) for name, tensor in model.named_parameters()})

with tempfile.TemporaryDirectory() as place:
    for name, epsilon in EPSILONS.items():
        make_site(Path(place, name), experiment, name=name, epsilon=epsilon)
        Path(place, name, "experiment.toml").write_text(experiment.toml())
    grid = LocalGrid(client_app(), [Path(place, name) for name in EPSILONS])
    result = FedAvg(fraction_evaluate=0.0).start(grid=grid, initial_arrays=arrays, num_rounds=3)
    model.load_state_dict({name: torch.from_numpy(array.numpy().copy()) for name, array in result.arrays.items()})
    right = (model.eval()(test.test_x).argmax(1) == test.test_y).float().mean()
    print(f"accuracy {right:.3f}")
    for name in EPSILONS:
        for (site, unit), spent in books.spent(books.entries(Path(place, name, "ledger.db")), delta=1e-5).items():
            print(f"{site}: epsilon {shown(spent)} per {unit}, delta 1e-05, by its own ledger")
