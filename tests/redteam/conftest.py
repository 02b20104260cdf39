import pytest
from redteam.lying_server import Server, experiment


@pytest.fixture
def server(tmp_path):
    """A lying server and its one site, for an experiment with changes."""

    def make(**changes):
        return Server(tmp_path / "site", experiment(**changes))

    return make
