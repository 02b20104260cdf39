"""A little of `make fuzz`: what each side is sent goes over the lines of a deployment."""

from redteam.fuzz import fuzzed
from redteam.lying_line import LyingRuntime
from redteam.real_grid import RealGrid


def test_a_site_survives_mutated_messages_over_https():
    assert sum(fuzzed("site", 150, 1).values()) > 50


def test_a_server_survives_mutated_messages_over_the_http_grid():
    seen = fuzzed("server", 300, 1, real=0.2, nodes={RealGrid: 8, LyingRuntime: 30})
    lost = seen.pop("lost")
    assert lost + sum(count for kind in seen.values() for count in kind.values()) >= 300
    assert sum(kind["refused"] for kind in seen.values()) > lost
