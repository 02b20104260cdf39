import os

import pytest
from redteam.lying_server import Server, experiment

import tacit
from tacit.deploy.operate.init import init
from tacit.deploy.operate.processes import Processes, free_port
from tacit.deploy.operate.serve import register, start_server


@pytest.fixture
def server(tmp_path):
    """A lying server and its one site, for an experiment with changes."""

    def make(**changes):
        return Server(tmp_path / "site", experiment(**changes))

    return make


def make_federation(folder, *, sites=3):
    chosen = tacit.Experiment(name="door", train={"rounds": 1}, privacy={"kind": "local", "epsilon": 1.0})
    return init(folder, sites=str(sites), experiment=chosen, host="127.0.0.1", port=free_port())


@pytest.fixture(scope="session")
def up(tmp_path_factory):
    """A federation whose server is up, started and made under a umask that hides nothing; and its processes."""
    before = os.umask(0)
    try:
        federation = make_federation(tmp_path_factory.mktemp("open") / "federation")
        with Processes(home=federation.home) as processes:
            start_server(federation, processes)
            register(federation, processes)
            os.umask(before)
            yield federation, processes
    finally:
        os.umask(before)
