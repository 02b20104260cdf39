"""A federation of three sites on scikit-learn's digits, in folders of its own and in one process."""

import pytest

from tacit.deploy.server.client import LocalGrid, client_app
from tacit.deploy.server.server import Call, serve
from tacit.deploy.site.keys import make_keys
from tacit.deploy.site.limits import make_site
from tacit.engine.assemble import clients

THREE = {
    "data": {"clients": 3, "examples_per_client": 60},
    "train": {"rounds": 3},
    "privacy": {"epsilon": [1.0, 2.0, 8.0]},
}


class Federation:
    """Sites in folders, and a server that reaches them through an in-process grid."""

    def __init__(self, folder, experiment):
        self.folder, self.experiment = folder, experiment
        _, _, population = clients(experiment)
        self.names = population.names
        for name, epsilon in zip(population.names, population.epsilons.tolist(), strict=True):
            make_site(folder / "sites" / name, experiment, name=name, epsilon=epsilon)
        if experiment.protect.kind == "paillier":
            make_keys(experiment, folder / "server", {name: folder / "sites" / name for name in self.names})

    def site(self, index):
        return self.folder / "sites" / self.names[index]

    def grid(self):
        return LocalGrid(client_app(), [self.site(index) for index in range(len(self.names))])

    def run(self, grid=None, *, experiment=None, observe=None, **call):
        call = {"out": self.folder / "out", "sites": self.names, "join_seconds": 20, "round_seconds": 20} | call
        call["keys"] = self.folder / "server"
        return serve(grid or self.grid(), experiment or self.experiment, Call(**call), observe)


@pytest.fixture
def federation(tmp_path, small):
    """Makes a federation for a small experiment, with changes."""

    def make(**changes):
        return Federation(
            tmp_path, small(**{key: THREE.get(key, {}) | changes.get(key, {}) for key in {*THREE, *changes}})
        )

    return make
