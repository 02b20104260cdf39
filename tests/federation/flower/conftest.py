"""A federation of three sites on scikit-learn's digits, in folders of its own and in one process."""

import pytest

from tacit.deploy.server.client import LocalGrid, client_app
from tacit.deploy.server.messages import read
from tacit.deploy.server.server import Call, serve
from tacit.deploy.site.keys import make_keys
from tacit.deploy.site.limits import make_site
from tacit.engine.assemble import clients

THREE = {
    "data": {"clients": 3, "examples_per_client": 60},
    "train": {"rounds": 3},
    "privacy": {"epsilon": [1.0, 2.0, 8.0]},
}


class Line(LocalGrid):
    """A grid that hands every request to `see`, which may return what answers in the site's place, and every reply to `change`,
    which may alter it or lose it by returning None. Nodes that are `gone` are not connected. It keeps what was asked and replied.
    """

    def __init__(self, folders, *, see=lambda message: None, change=lambda ask, node, reply: reply, gone=()):
        super().__init__(client_app(), folders)
        self.see, self.change, self.gone, self.asked, self.replied = see, change, gone, [], []

    def get_node_ids(self):
        return [node for node in super().get_node_ids() if node not in self.gone]

    def push_messages(self, messages):
        return [self._pushed(message, message.metadata.dst_node_id) for message in messages]

    def _pushed(self, message, node):
        if node in self.gone:
            return ""
        instead = self.see(message)
        (name,) = super().push_messages([message]) if instead is None else (f"instead {len(self.asked)}",)
        message.metadata.__dict__["_message_id"] = name
        ask, body = read(message)
        reply = self.change(ask, node, self._replies.pop(name) if instead is None else instead(message))
        self.asked.append((ask, body))
        if reply is not None:
            self._replies[name] = reply
            self.replied.append((ask, reply))
        return name


def lost(*places, kinds=("train",)):
    """Loses the replies of these (node, round) on their way."""
    return lambda ask, node, reply: None if ask["kind"] in kinds and (node, ask.get("round")) in places else reply


class Federation:
    """Sites in folders, and a server that reaches them through an in-process grid."""

    def __init__(self, folder, experiment):
        self.folder, self.experiment = folder, experiment
        _, _, population = clients(experiment)
        self.names = population.names
        for name, epsilon in zip(population.names, population.epsilons.tolist(), strict=True):
            make_site(folder / "sites" / name, experiment, name=name, epsilon=epsilon)
        if experiment.protect.kind != "none":
            make_keys(experiment, folder / "server", {name: folder / "sites" / name for name in self.names})

    def site(self, index):
        return self.folder / "sites" / self.names[index]

    def grid(self, kind=None, **options):
        folders = [self.site(index) for index in range(len(self.names))]
        return (kind or Line)(folders, **options) if kind or options else LocalGrid(client_app(), folders)

    def edit(self, index, old, new, *, file="budget.toml"):
        """The people of a site edit a file of theirs."""
        path = self.site(index) / file
        path.write_text(path.read_text().replace(old, new))

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
